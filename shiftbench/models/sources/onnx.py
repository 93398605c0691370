"""`FILE.onnx[,key=value...]`: a classifier from any framework, through ONNX Runtime.

The preprocessing is in the metadata of an exported file, in a JSON file of the same name beside it
(the format of weight cards), or in the options: `m.onnx,input_size=96,mean=0.5,std=0.5`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aft_models.preprocessing import ASSUMED, Preprocessing, square
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request
from shiftbench.models.transforms import FIELDS, read_preprocessing
from shiftbench.registry import unknown_name

METADATA = "shiftbench"  # key of an ONNX file's metadata: Preprocessing and class names as JSON

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
INPUTS: Mapping[str, Any] = {**FLOATS, "tensor(uint8)": np.uint8}


class OnnxNetwork(nn.Module):
    """Normalized images (B, 3, S, S) in, logits out, computed by ONNX Runtime.

    The network runs on the device of the images: the CPU or a GPU.
    """

    def __init__(self, model: bytes | Path, *, name: str, tf32: bool = False) -> None:
        """Open the network.

        Args:
            model: The content of an ONNX file, or its path.
            name: Name in errors.
            tf32: Allow a GPU to round float32 products to TF32.
        """
        super().__init__()
        self._model = model
        self._name = name
        self._tf32 = tf32
        self._sessions: dict[torch.device, Any] = {}
        session = self._session(torch.device("cpu"))
        images, shape = _image_input(session, name)
        self._input, self._output = images.name, _logit_output(session, name)
        self._kind = INPUTS[images.type]
        self.takes_bytes = self._kind == np.uint8  # pixels of 0 to 255
        self.batch = shape[0] if isinstance(shape[0], int) else None  # None: any number of images
        self._channels_last = shape[1] != 3  # (B, H, W, 3), as in Keras
        self.metadata: Mapping[str, str] = session.get_modelmeta().custom_metadata_map
        sides = shape[1:3] if self._channels_last else shape[2:]
        fixed = [side for side in sides if isinstance(side, int)]
        self.size = square(fixed) if fixed else None  # side of its input; None: any

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes) on the device of the images."""
        images = images.detach()
        if self._channels_last:
            images = images.permute(0, 2, 3, 1)
        if self.takes_bytes:  # from pixels in [0, 1]; a shift by part of a pixel is rounded
            images = images.mul(255).round().clamp(0, 255)
        ready = images.to(torch.from_numpy(np.empty(0, self._kind)).dtype).contiguous()
        parts = torch.split(ready, self.batch or max(1, len(images)))
        return torch.cat([self._run(part) for part in parts]).float().to(images.device)

    def _run(self, images: Tensor) -> Tensor:
        count = len(images)
        missing = (self.batch or count) - count
        if missing:  # a network for batches of one size: fill the last one up
            images = torch.cat([images, images[:1].expand(missing, *images.shape[1:])])
        session = self._session(images.device)
        if images.device.type == "cpu":
            (logits,) = session.run([self._output], {self._input: images.numpy()})
        else:
            logits = self._run_on_gpu(session, images)
        return torch.from_numpy(logits)[:count]

    def _run_on_gpu(self, session: Any, images: Tensor) -> Any:
        """Run on a GPU without copying the images; only the logits are copied to the CPU."""
        binding = session.io_binding()
        torch.cuda.current_stream(images.device).synchronize()  # the images must be ready
        binding.bind_input(
            self._input,
            "cuda",
            images.device.index or 0,
            self._kind,
            tuple(images.shape),
            images.data_ptr(),
        )
        binding.bind_output(self._output)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]

    def _session(self, device: torch.device) -> Any:
        if device in self._sessions:
            return self._sessions[device]
        runtime = _runtime(self._name)
        providers = _providers(device, runtime, tf32=self._tf32)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors are raised; warnings do not concern the user
        # Between two batches the cores are needed to prepare the next one.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._sessions[device] = runtime.InferenceSession(
                self._model if isinstance(self._model, bytes) else str(self._model),
                options,
                providers=providers,
                # On a CPU the fused operator is several times slower than the norm by itself.
                disabled_optimizers=["SkipLayerNormFusion"],
            )
        except Exception as error:  # of many types, none of them public
            raise ModelError(
                f"cannot run {self._name} in ONNX Runtime: {first_line(error)}. Export it again"
            ) from error
        return self._sessions[device]


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


def _image_input(session: Any, name: str) -> tuple[Any, Sequence[Any]]:
    """Return the only input of a network, and its shape: numbers, or names of free sides."""
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise ModelError(
            f"expected one input, images, in {name}, got {len(inputs)} "
            f"({', '.join(entry.name for entry in inputs)}): export the image classifier alone"
        )
    (images,) = inputs
    shape = images.shape
    if images.type not in INPUTS or len(shape) != 4 or 3 not in (shape[1], shape[3]):
        raise ModelError(
            f"expected an input of float or uint8 images (batch, 3, height, width) or (batch, "
            f"height, width, 3) in {name}, got {images.type} of shape {_text(shape)}"
        )
    return images, shape


def _logit_output(session: Any, name: str) -> str:
    outputs = session.get_outputs()
    scores = [entry.name for entry in outputs if entry.type in FLOATS and len(entry.shape) == 2]
    if not scores:
        got = "; ".join(f"{entry.name} {_text(entry.shape)}" for entry in outputs)
        raise ModelError(f"expected logits, (batch, classes), from {name}, got {got}")
    return str(scores[0])


def _text(shape: Sequence[Any]) -> str:
    return f"({', '.join('?' if side is None else str(side) for side in shape)})"


def build(name: ModelName, request: Request) -> Built:
    """Open the file, and read its preprocessing."""
    request.require_own_weights(name.text)
    path = Path(name.name)
    if not path.is_file():
        raise UsageError(f"no ONNX file {name.name!r} for the model {name.text!r}")
    unknown = next((key for key in request.options if key not in FIELDS), None)
    if unknown is not None:
        raise unknown_name("option of an ONNX model", unknown, FIELDS)
    network = OnnxNetwork(path, name=path.name)
    parameters, digest = _weights(path)
    if METADATA in network.metadata:  # written by an export, with the preprocessing complete
        preprocessing, class_names = _read_metadata(network.metadata[METADATA], path)
        preprocessing = read_preprocessing(request.options, name.text, preprocessing)
    else:
        card = _card(path.with_suffix(".json"))
        preprocessing = _read_card(name, card, request.options, network)
        class_names = tuple(map(str, card.get("class_names") or ()))
    if network.size not in (None, preprocessing.size):
        raise UsageError(
            f"expected images of {network.size} pixels for {name.text}, got "
            f"{preprocessing.size}: leave input_size out, or export the model with a free size"
        )
    return Built(network, preprocessing, class_names, weights=digest, parameters=parameters)


def _read_metadata(text: str, path: Path) -> tuple[Preprocessing, tuple[str, ...]]:
    try:
        content = json.loads(text)
        names = tuple(map(str, content.pop("class_names", ())))
        known = {field.name for field in fields(Preprocessing)}
        read = {key: value for key, value in content.items() if key in known}
        read |= {key: tuple(read[key]) for key in ("mean", "std")}
        return Preprocessing(**read), names
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(
            f"cannot read the metadata {METADATA!r} of {path}: {first_line(error)}. Export the "
            "model again"
        ) from error


def _card(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read the card {path}: {first_line(error)}") from error
    if not isinstance(card, dict):
        raise ModelError(f"expected a JSON object in the card {path}, got {type(card).__name__}")
    return card


def _read_card(
    name: ModelName, card: Mapping[str, Any], options: Mapping[str, Any], network: OnnxNetwork
) -> Preprocessing:
    """Read the preprocessing from the card beside the file and the options; both may be partial."""
    default = Preprocessing(network.size or 224, origin=ASSUMED)
    fields_of_card = {key: card[key] for key in FIELDS if key in card}
    known = read_preprocessing(fields_of_card, name.text, default)
    known = replace(known, enlarge="crop_pct" in card)
    if network.takes_bytes:
        named = {"mean", "std"} & {*card, *options}
        if named:
            raise UsageError(
                f"{name.text} takes pixels of 0 to 255 and normalizes them itself: leave "
                f"{' and '.join(sorted(named))} out"
            )
        known = replace(known, mean=(0.0,) * 3, std=(1.0,) * 3, origin="bytes")
    return read_preprocessing(options, name.text, known)


def _weights(path: Path) -> tuple[int, str]:
    """Return the number of parameters, and the digest of the file and its external data."""
    import onnx

    tensors = onnx.load(str(path), load_external_data=False).graph.initializer
    files = {
        entry.value
        for tensor in tensors
        for entry in tensor.external_data
        if entry.key == "location"
    }
    digest = hashlib.sha256(path.read_bytes())
    for file in sorted(files):
        digest.update((path.parent / file).read_bytes())
    return sum(math.prod(tensor.dims) for tensor in tensors), digest.hexdigest()
