"""Any classifier as an ONNX file or a `.pt2` archive.

>>> from torch import Tensor, nn
>>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)).eval()
>>> Path("model.onnx").write_bytes(export_onnx(model, (3, 8, 8)))  # doctest: +SKIP
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError

INPUT, OUTPUT = "images", "logits"  # names in the files written here
OPSET = 18  # the oldest version that the exporter writes
_DOMAIN, _NODE = "aft_models", "Network"  # operator in place of an embedded graph


def export_onnx(
    module: nn.Module,
    input_shape: tuple[int, int, int],
    *,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
    embedded: EmbeddedGraph | None = None,
) -> bytes:
    """Return the ONNX file of a classifier for batches of any size.

    Args:
        module: A module in evaluation mode; images (B, channels, H, W) in, (B, classes) out.
        input_shape: Shape of one image.
        dtype: Type of the images; by default that of the parameters.
        metadata: Texts to store in the file.
        embedded: The graph that the module contains, if any.

    Raises:
        AftModelsError: The module cannot be exported. The message names the operator and its
            module if there is one.
    """
    try:
        onnx = import_module("onnx")
        import_module("onnxscript")
    except ImportError as error:
        missing = (error.name or "onnxscript").partition(".")[0]
        raise AftModelsError(
            f"{missing} is not installed: pip install 'shiftbench[onnx]'"
        ) from error
    graph: Any = _trace(module, input_shape, dtype, "ONNX")
    with torch.no_grad(), _quiet():
        try:
            if _has_attention(graph.graph):  # decomposing takes a quarter of the time
                graph = graph.run_decompositions({torch.ops.aten.unbind.int: _unbind})
                _broadcast_divisors(graph.graph)
            program = torch.onnx.export(
                graph,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: "batch"},),
                opset_version=None if embedded is None else max(OPSET, embedded.opset),
                verbose=False,
                dynamo=True,
            )
            assert program is not None
            model = program.model_proto
            if embedded is not None:
                _embed(model, embedded.model)
            if metadata:
                onnx.helper.set_model_props(model, dict(metadata))
            content: bytes = model.SerializeToString()
        except Exception as error:  # exceptions of many types, from conversion and serialization
            raise _failure(module, "ONNX", error, graph) from error
    return content


def export_pt2(
    module: nn.Module,
    input_shape: tuple[int, int, int],
    *,
    dtype: torch.dtype | None = None,
    extra_files: Mapping[str, str] | None = None,
) -> bytes:
    """Return the `.pt2` archive (`torch.export`) of a classifier for batches of any size.

    Args:
        module: As for `export_onnx`.
        input_shape: Shape of one image.
        dtype: Type of the images; by default that of the parameters.
        extra_files: Texts to store in the archive, by name.

    Raises:
        AftModelsError: The module cannot be exported.
    """
    graph = _trace(module, input_shape, dtype, "a .pt2 archive")
    content = io.BytesIO()
    with _quiet():
        torch.export.save(graph, content, extra_files=dict(extra_files or {}))
    return content.getvalue()


class EmbeddedGraph(nn.Module):
    """The graph of an ONNX file as a layer of a module that is exported to ONNX.

    The layer cannot compute anything: it marks the position of the graph.
    """

    def __init__(self, model: bytes | Path, output: str, classes: int) -> None:
        """Read the file.

        Args:
            model: The content of an ONNX file, or its path.
            output: Name of the output of shape (B, classes).
            classes: Number of classes.
        """
        super().__init__()
        onnx = import_module("onnx")
        self.model = (
            onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(str(model))
        )
        kept = [entry for entry in self.model.graph.output if entry.name == output]
        del self.model.graph.output[:]
        self.model.graph.output.extend(kept)
        self.opset = _opset(self.model)
        if self.opset < OPSET:
            self.model = onnx.version_converter.convert_version(self.model, OPSET)
            self.opset = OPSET
        self.classes = classes

    def forward(self, images: Tensor) -> Tensor:
        """Return a placeholder for the logits (B, classes)."""
        logits: Tensor = torch.onnx.ops.symbolic(
            f"{_DOMAIN}::{_NODE}",
            (images,),
            dtype=torch.float32,
            shape=(images.shape[0], self.classes),
            version=1,
        )
        return logits


def _opset(model: Any) -> int:
    return max((entry.version for entry in model.opset_import if not entry.domain), default=1)


def _embed(model: Any, inner: Any) -> None:
    """Replace the placeholder in a graph by the nodes of another graph."""
    compose = import_module("onnx.compose")
    prefixed = compose.add_prefix(inner, "network/")
    graph, part = model.graph, prefixed.graph
    (place,) = [i for i, node in enumerate(graph.node) if node.domain == _DOMAIN]
    node = graph.node[place]
    identity = import_module("onnx.helper").make_node
    weights = {tensor.name for tensor in part.initializer}  # old files list them as inputs too
    (images,) = [entry.name for entry in part.input if entry.name not in weights]
    nodes = [
        *graph.node[:place],
        identity("Identity", [node.input[0]], [images]),
        *part.node,
        identity("Identity", [part.output[0].name], [node.output[0]]),
        *graph.node[place + 1 :],
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(part.initializer)
    graph.sparse_initializer.extend(part.sparse_initializer)
    model.functions.extend(prefixed.functions)
    known = {entry.domain for entry in model.opset_import}
    model.opset_import.extend(e for e in prefixed.opset_import if e.domain not in known)
    kept = [entry for entry in model.opset_import if entry.domain != _DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    model.ir_version = max(model.ir_version, inner.ir_version)


def _trace(
    module: nn.Module, input_shape: tuple[int, int, int], dtype: torch.dtype | None, target: str
) -> Any:
    """Return the exported program of a module, with a dynamic batch size."""
    if module.training:
        name = type(module).__name__
        raise AftModelsError(f"{name} is in training mode: call .eval() before exporting it")
    like = next(module.parameters(), torch.empty(0))
    images = torch.zeros(2, *input_shape, device=like.device, dtype=dtype or like.dtype)
    embeds = any(isinstance(part, EmbeddedGraph) for part in module.modules())
    entered: list[str] = []
    with torch.no_grad(), _quiet():
        if not embeds:
            module(images)  # values computed once and cached become constants of the graph
        try:
            with _path_of_modules(module, entered):
                return torch.export.export(
                    module,
                    (images,),
                    dynamic_shapes=({0: torch.export.Dim("batch")},),
                    strict=False,
                )
        except Exception as error:  # exceptions of many types
            raise _failure(module, target, error, module_name=entered[-1:]) from error


@contextmanager
def _path_of_modules(module: nn.Module, entered: list[str]) -> Iterator[None]:
    """Record the names of the running modules in `entered`, the innermost last."""
    handles: list[Any] = []

    def watch(part: nn.Module, name: str) -> None:
        def enter(*_: Any) -> None:
            entered.append(f"{name} ({type(part).__name__})")

        def leave(*_: Any) -> None:
            entered.pop()

        handles.append(part.register_forward_pre_hook(enter))
        handles.append(part.register_forward_hook(leave))

    for name, part in module.named_modules():
        if name and not isinstance(part, torch.jit.ScriptModule):
            watch(part, name)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _has_attention(graph: torch.fx.Graph) -> bool:
    """Return True if a graph unbinds or normalizes tensors, as attention does."""
    aten = torch.ops.aten
    named = (aten.unbind.int, aten.expand_as.default, aten.expand.default)
    return any(graph.find_nodes(op="call_function", target=target) for target in named)


def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """Select each slice: ONNX Runtime transposes the slices of `unbind` 20 times slower.

    This matters in attention: queries, keys and values are unbound from one tensor.
    """
    return [x.select(dim, i) for i in range(x.shape[dim])]


def _broadcast_divisors(graph: torch.fx.Graph) -> None:
    """Remove the expansion of divisors by `F.normalize`: division broadcasts by itself."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.expand.default):
        for user in list(node.users):
            if user.target is aten.div.Tensor and user.args[1] is node:
                divided = user.args[0].meta["val"]
                if divided.shape == node.meta["val"].shape:
                    user.replace_input_with(node, node.args[0])
    graph.eliminate_dead_code()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the messages of the exporter."""
    before = logging.root.manager.disable
    logging.disable()
    output = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(output), redirect_stderr(output):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _failure(
    module: nn.Module,
    target: str,
    error: BaseException,
    program: Any = None,
    module_name: list[str] | None = None,
) -> AftModelsError:
    """Build the error of an export: the operator or the module, and the reason."""
    where = "".join(f" in the module {name}" for name in module_name or ())
    return AftModelsError(
        f"cannot export {type(module).__name__} to {target}: {_reason(error, program)}{where}. "
        "Replace that code, or run the model in PyTorch"
    )


def _reason(error: BaseException, program: Any) -> str:
    """Return a short reason of a failed export: the operator if one is named."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    text = "\n".join(map(str, chain))
    if operator := re.search(r"No ONNX function found for .*?op='([\w.]+)'", text):
        return f"the operator {operator[1]}{_module_of(operator[1], program)} has no ONNX form"
    if "data-dependent" in text or "data dependent" in text:
        return "its code branches on the values of a tensor"
    if "Constraints violated" in text:
        return "its code fixes the batch size"
    first = str(chain[-1]).strip().splitlines()
    return f"{type(chain[-1]).__name__}: {first[0]}" if first else type(chain[-1]).__name__


def _module_of(operator: str, program: Any) -> str:
    """Return the innermost module that calls an operator, for a message."""
    if program is None:
        return ""
    # The exporter names operators after further decompositions, which keep the modules.
    for node in program.run_decompositions().graph.nodes:
        if str(node.target).startswith(operator):
            path = [(str(n), kind) for n, kind in node.meta.get("nn_module_stack", {}).values()]
            if path and path[-1][0]:
                name, kind = path[-1]
                kind = kind if isinstance(kind, str) else kind.__name__
                return f" in the module {name} ({kind.rpartition('.')[2]})"
    return ""
