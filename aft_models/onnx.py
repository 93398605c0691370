"""Any classifier as an ONNX file, and its forward pass in ONNX Runtime.

>>> from torch import nn
>>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)).eval()
>>> predict = OnnxSession(export_onnx(model, (3, 8, 8)))
>>> predict(torch.zeros(5, 3, 8, 8)).shape
torch.Size([5, 10])
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
    _require("onnxscript")
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
            )
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
        except Exception as error:  # of many kinds, from tracing, conversion and serialisation
            raise AftModelsError(
                f"cannot export {name} to ONNX: {_reason(error)}; run it in PyTorch instead"
            ) from error
    return content


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says about its own parts."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """What stood in the way, in a few words: the operator if one is named."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    told = "\n".join(map(str, chain))
    if found := re.search(r"No ONNX function found for .*?op='([\w.]+)'", told):
        return f"the operator {found[1]} has no ONNX form"
    if "data-dependent" in told:
        return "its code branches on the values of a tensor"
    if "Constraints violated" in told:
        return "its code fixes the batch size"
    first = str(chain[-1]).strip().splitlines()
    return f"{type(chain[-1]).__name__}: {first[0]}" if first else type(chain[-1]).__name__


class OnnxSession:
    """A classifier in ONNX Runtime: a batch of images to logits.

    Args:
        model: the content of an ONNX file, or its path.
        device: where the model runs and the images lie, ``"cpu"`` or ``"cuda"``.
        threads: of ONNX Runtime; by default as many as PyTorch has.
    """

    def __init__(
        self,
        model: bytes | str | os.PathLike[str],
        *,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ) -> None:
        runtime = _require("onnxruntime")
        self.device = torch.device(device)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; warnings are about its own optimisations
        # Between two batches the cores belong to whoever prepares the next one.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        source = model if isinstance(model, bytes) else os.fspath(model)
        try:
            self._session = runtime.InferenceSession(
                source, options, providers=_providers(self.device, runtime)
            )
        except Exception as error:  # of many kinds, none of them public
            given = "these bytes" if isinstance(model, bytes) else repr(os.fspath(model))
            reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
            raise AftModelsError(
                f"ONNX Runtime cannot load {given}: {reason.splitlines()[0]}"
            ) from error
        self._input, self.input_shape, self.batch_size = _only_input(self._session)
        self._output = self._session.get_outputs()[0].name

    def __call__(self, images: Tensor) -> Tensor:
        """Images ``(B, channels, H, W)`` to logits ``(B, classes)``.

        A file made for batches of one size gets them in that size, the last one padded.
        """
        size = self.batch_size or max(1, len(images))
        starts = range(0, max(1, len(images)), size)
        logits = torch.cat([self._run(images[i : i + size], size) for i in starts])
        if logits.ndim != 2:
            raise AftModelsError(
                f"expected logits (batch, classes) from the model, got shape {tuple(logits.shape)}"
            )
        return logits

    def _run(self, images: Tensor, size: int) -> Tensor:
        count = len(images)
        if count < size:
            images = torch.cat([images, images.new_zeros(size - count, *images.shape[1:])])
        images = images.detach().contiguous()
        if images.device.type == "cpu":
            (logits,) = self._session.run([self._output], {self._input: images.numpy()})
        else:
            (logits,) = self._run_on_gpu(images)
        return torch.from_numpy(logits)[:count].to(images.device)

    def _run_on_gpu(self, images: Tensor) -> list[NDArray[np.float32]]:
        """Reads the images where they are; only the logits, which are few, come back."""
        binding = self._session.io_binding()
        torch.cuda.current_stream(images.device).synchronize()  # the images must be ready
        where = images.device.index or 0
        shape, address = tuple(images.shape), images.data_ptr()
        binding.bind_input(self._input, "cuda", where, np.float32, shape, address)
        binding.bind_output(self._output)
        self._session.run_with_iobinding(binding)
        outputs: list[NDArray[np.float32]] = binding.copy_outputs_to_cpu()
        return outputs


def _only_input(session: Any) -> tuple[str, tuple[int | None, ...], int | None]:
    """Name, ``(channels, H, W)`` and batch size of the one input; ``None`` where any size goes."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
        found = ", ".join(f"{i.name}: {i.type} of {i.shape}" for i in inputs)
        raise AftModelsError(
            f"expected one float32 input (batch, channels, height, width), got {found}"
        )
    if not outputs or len(outputs[0].shape) != 2:
        raise AftModelsError(
            f"expected logits (batch, classes) as the first output, got {outputs[0].shape}"
        )
    batch, *shape = (size if isinstance(size, int) else None for size in inputs[0].shape)
    return inputs[0].name, tuple(shape), batch


def _providers(device: torch.device, runtime: ModuleType) -> list[str]:
    if device.type == "cpu":
        return ["CPUExecutionProvider"]
    if device.type != "cuda":
        raise AftModelsError(f"ONNX Runtime runs on 'cpu' or 'cuda' here, not on {device.type!r}")
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        raise AftModelsError(
            "this ONNX Runtime has no CUDA: install onnxruntime-gpu in place of onnxruntime, or "
            "use the CPU"
        )
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def _require(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise AftModelsError(
            f"{package} is not installed: pip install 'shiftbench[onnx]'"
        ) from error
