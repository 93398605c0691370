"""A network in ONNX Runtime that is called like one of PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shiftbench.errors import ModelError, first_line
from shiftbench.preprocessing import square

FLOATS: Mapping[str, torch.dtype] = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
}
INPUTS: Mapping[str, torch.dtype] = {**FLOATS, "tensor(uint8)": torch.uint8}
NUMPY: Mapping[torch.dtype, type[np.number[Any]]] = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.float64: np.float64,
    torch.uint8: np.uint8,
}


@dataclass(frozen=True)
class Signature:
    """What goes into a network and what comes out of it."""

    input: str
    output: str
    dtype: torch.dtype
    batch: int | None  # how many images it takes at once; None: any number
    channels_last: bool  # (B, H, W, 3), as Keras has it
    size: int | None  # side of its input in pixels; None: any

    @property
    def takes_bytes(self) -> bool:
        """Whether its images are pixels of 0 to 255."""
        return self.dtype == torch.uint8


class OnnxNetwork(nn.Module):
    """Normalized images (B, 3, S, S) in, logits out, computed by ONNX Runtime.

    It runs where the images are: on the CPU, or on the GPU that they lie on.
    """

    def __init__(self, model: bytes | Path, *, name: str, tf32: bool = False) -> None:
        """Opens the network.

        Args:
            model: The content of an ONNX file, or its path.
            name: What errors call it.
            tf32: Whether a GPU may round float32 products to TF32.
        """
        super().__init__()
        self._model = model
        self._name = name
        self._tf32 = tf32
        self._sessions: dict[torch.device, Any] = {}
        self.signature = _signature(self._session(torch.device("cpu")), name)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits, (B, classes), on the device of the images."""
        form = self.signature
        if form.channels_last:
            images = images.permute(0, 2, 3, 1)
        images = images.detach()
        if form.takes_bytes:  # from pixels in [0, 1]; a shift by part of a pixel is rounded
            images = images.mul(255).round().clamp(0, 255)
        ready = images.to(form.dtype).contiguous()
        logits = torch.cat([self._run(part) for part in self._parts(ready)]).float()
        return logits.to(images.device)

    def _parts(self, images: Tensor) -> Iterator[Tensor]:
        size = self.signature.batch or max(1, len(images))
        return (images[start : start + size] for start in range(0, len(images), size))

    def _run(self, images: Tensor) -> Tensor:
        count, form = len(images), self.signature
        missing = (form.batch or count) - count
        if missing:  # a network for batches of one size: fill the last one up
            images = torch.cat([images, images[:1].expand(missing, *images.shape[1:])])
        session = self._session(images.device)
        if images.device.type == "cpu":
            (answer,) = session.run([form.output], {form.input: images.numpy()})
        else:
            answer = self._run_on_gpu(session, images)
        return torch.from_numpy(answer)[:count]

    def _run_on_gpu(self, session: Any, images: Tensor) -> Any:
        """Reads the images where they are; only the logits, which are few, come back."""
        binding = session.io_binding()
        torch.cuda.current_stream(images.device).synchronize()  # the images must be ready
        binding.bind_input(
            self.signature.input,
            "cuda",
            images.device.index or 0,
            NUMPY[images.dtype],
            tuple(images.shape),
            images.data_ptr(),
        )
        binding.bind_output(self.signature.output)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]

    def _session(self, device: torch.device) -> Any:
        if device not in self._sessions:
            self._sessions[device] = self._open(device)
        return self._sessions[device]

    def _open(self, device: torch.device) -> Any:
        runtime = _runtime(self._name)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # its errors are raised; its warnings are about itself
        # Between two batches the cores belong to whoever prepares the next one.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        source = self._model if isinstance(self._model, bytes) else str(self._model)
        try:
            return runtime.InferenceSession(
                source,
                options,
                providers=_providers(device, runtime, tf32=self._tf32),
                # On a CPU the fused operator is several times slower than the norm by itself.
                disabled_optimizers=["SkipLayerNormFusion"],
            )
        except ModelError:
            raise
        except Exception as error:  # of many kinds, none of them public
            raise ModelError(
                f"{self._name} is not an ONNX model that ONNX Runtime can run: {first_line(error)}"
            ) from error


def _runtime(name: str) -> ModuleType:
    try:
        importlib.import_module("onnx")  # reads the weights
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ModelError(f"{name} needs ONNX Runtime: pip install 'shiftbench[onnx]'") from error


def _providers(device: torch.device, runtime: ModuleType, *, tf32: bool) -> list[Any]:
    if device.type == "cpu":
        return ["CPUExecutionProvider"]
    if device.type != "cuda":
        raise ModelError(f"ONNX Runtime runs on cpu or cuda here, not on {device.type}")
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        raise ModelError(
            "this ONNX Runtime has no CUDA: install onnxruntime-gpu in place of onnxruntime, or "
            "use --device cpu"
        )
    cuda = {"device_id": device.index or 0, "use_tf32": int(tf32)}
    return [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]


def _signature(session: Any, name: str) -> Signature:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1:
        raise ModelError(
            f"expected one input, images, in {name}, got {len(inputs)} "
            f"({', '.join(entry.name for entry in inputs)}): export the image classifier alone"
        )
    (images,) = inputs
    shape: Sequence[int | str | None] = images.shape
    if images.type not in INPUTS or len(shape) != 4 or 3 not in (shape[1], shape[3]):
        raise ModelError(
            f"expected an input of float or uint8 images (batch, 3, height, width) or (batch, "
            f"height, width, 3) in {name}, got {images.type} of shape {_text(shape)}"
        )
    scores = [entry for entry in outputs if entry.type in FLOATS and len(entry.shape) == 2]
    if not scores:
        got = "; ".join(f"{entry.name} {_text(entry.shape)}" for entry in outputs)
        raise ModelError(f"expected logits, (batch, classes), from {name}, got {got}")
    channels_last = shape[1] != 3
    sides = [side for side in (shape[1:3] if channels_last else shape[2:]) if isinstance(side, int)]
    return Signature(
        input=images.name,
        output=scores[0].name,
        dtype=INPUTS[images.type],
        batch=shape[0] if isinstance(shape[0], int) else None,
        channels_last=channels_last,
        size=square(sides) if sides else None,
    )


def _text(shape: Sequence[int | str | None]) -> str:
    return f"({', '.join('?' if side is None else str(side) for side in shape)})"
