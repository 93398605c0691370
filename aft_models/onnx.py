"""Any classifier as an ONNX file.

>>> from torch import Tensor, nn
>>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)).eval()
>>> Path("model.onnx").write_bytes(export_onnx(model, (3, 8, 8)))  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError

INPUT, OUTPUT = "images", "logits"  # names in the files written here


def export_onnx(module: nn.Module, input_shape: tuple[int, int, int]) -> bytes:
    """The file of a classifier for batches of any size.

    Args:
        module: in evaluation mode; takes ``(B, channels, H, W)``, returns ``(B, classes)``.
        input_shape: ``(channels, H, W)``.

    Raises:
        AftModelsError: the module cannot be exported; the message names the operator if it is one.
    """
    try:
        import_module("onnxscript")
    except ImportError as error:
        raise AftModelsError(
            "onnxscript is not installed: pip install 'shiftbench[onnx]'"
        ) from error
    name = type(module).__name__
    if module.training:
        raise AftModelsError(f"{name} is in training mode: call .eval() before exporting it")
    like = next(module.parameters(), torch.empty(0))
    images = torch.zeros(2, *input_shape, device=like.device, dtype=like.dtype)
    with torch.no_grad(), _quiet():
        module(images)  # what this computes once and keeps becomes constants of the graph
        try:
            batch = torch.export.Dim("batch")
            graph = torch.export.export(
                module, (images,), dynamic_shapes=({0: batch},), strict=False
            ).run_decompositions({torch.ops.aten.unbind.int: _unbind})
            _broadcast_divisors(graph.graph)
            program = torch.onnx.export(
                graph,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: "batch"},),
                verbose=False,
                dynamo=True,
            )
            assert program is not None
            content: bytes = program.model_proto.SerializeToString()
        except Exception as error:  # of many kinds, from tracing, conversion and serialization
            raise AftModelsError(
                f"cannot export {name} to ONNX: {_reason(error)}; run it in PyTorch instead"
            ) from error
    return content


def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """One selection each: ONNX Runtime transposes the slices of the usual form 20 times slower.

    Attention is where it counts: queries, keys and values are unbound from one tensor.
    """
    return [x.select(dim, i) for i in range(x.shape[dim])]


def _broadcast_divisors(graph: torch.fx.Graph) -> None:
    """Divides by what `F.normalize` expands without expanding it: division broadcasts itself."""
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
    """Silences the exporter."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """Why the export failed, in a few words: the operator if one is named."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    text = "\n".join(map(str, chain))
    if operator := re.search(r"No ONNX function found for .*?op='([\w.]+)'", text):
        return f"the operator {operator[1]} has no ONNX form"
    if "data-dependent" in text:
        return "its code branches on the values of a tensor"
    if "Constraints violated" in text:
        return "its code fixes the batch size"
    first = str(chain[-1]).strip().splitlines()
    return f"{type(chain[-1]).__name__}: {first[0]}" if first else type(chain[-1]).__name__
