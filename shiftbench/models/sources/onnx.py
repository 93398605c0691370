"""`onnx:FILE.onnx[,key=value...]`: a classifier from any framework, through ONNX Runtime.

What the weights expect of an image stands in a JSON file of the same name beside it (the format of
our weight cards), or in the options: `onnx:m.onnx,input_size=96,mean=0.5,std=0.5`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.names import ModelSpec
from shiftbench.models.sources import building
from shiftbench.preprocessing import (
    FIELDS,
    Preprocessing,
    as_preprocessing,
    card_preprocessing,
    square,
)
from shiftbench.registry import unknown_name

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
INPUTS: Mapping[str, Any] = {**FLOATS, "tensor(uint8)": np.uint8}


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
        session = self._session(torch.device("cpu"))
        images, shape = _image_input(session, name)
        self._input, self._output = images.name, _logit_output(session, name)
        self._kind = INPUTS[images.type]
        self.takes_bytes = self._kind == np.uint8  # pixels of 0 to 255
        self.batch = shape[0] if isinstance(shape[0], int) else None  # None: any number of images
        self._channels_last = shape[1] != 3  # (B, H, W, 3), as Keras has it
        sides = shape[1:3] if self._channels_last else shape[2:]
        fixed = [side for side in sides if isinstance(side, int)]
        self.size = square(fixed) if fixed else None  # side of its input; None: any

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits, (B, classes), on the device of the images."""
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
            (answer,) = session.run([self._output], {self._input: images.numpy()})
        else:
            answer = self._run_on_gpu(session, images)
        return torch.from_numpy(answer)[:count]

    def _run_on_gpu(self, session: Any, images: Tensor) -> Any:
        """Reads the images where they are; only the logits, which are few, come back."""
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
        options.log_severity_level = 3  # its errors are raised; its warnings are about itself
        # Between two batches the cores belong to whoever prepares the next one.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._sessions[device] = runtime.InferenceSession(
                self._model if isinstance(self._model, bytes) else str(self._model),
                options,
                providers=providers,
                # On a CPU the fused operator is several times slower than the norm by itself.
                disabled_optimizers=["SkipLayerNormFusion"],
            )
        except Exception as error:  # of many kinds, none of them public
            raise ModelError(
                f"{self._name} is not an ONNX model that ONNX Runtime can run: {first_line(error)}"
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
    """The one input of a network, and its shape: numbers, or names of what is free."""
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


def load(spec: ModelSpec) -> Classifier:
    """Opens the file; its card and the options say what its weights expect."""
    spec.require_own_weights()
    path = Path(spec.name)
    if not path.is_file():
        raise UsageError(f"no ONNX file {spec.name!r} for the model {spec.text!r}")
    network = OnnxNetwork(path, name=path.name)
    card = _card(path.with_suffix(".json"))
    recipe = _recipe(spec, card, network)
    parameters, digest = _weights(path)
    names = tuple(map(str, card.get("class_names") or ()))
    with building(spec):
        classifier = as_classifier(
            network,
            recipe,
            name=spec.public_name(),
            source="onnx",
            digest=digest,
            class_names=names,
            parameters=parameters,
        )
    if names and len(names) != classifier.num_classes:
        raise ModelError(
            f"the card {path.with_suffix('.json').name} names {len(names)} classes, and "
            f"{path.name} answers with {classifier.num_classes}: correct the card"
        )
    return classifier


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


def _recipe(spec: ModelSpec, card: Mapping[str, Any], network: OnnxNetwork) -> Preprocessing:
    """From the card beside the file and the options; both may leave fields out."""
    unknown = next((key for key in spec.options if key not in FIELDS), None)
    if unknown is not None:
        raise unknown_name("option of an ONNX model", unknown, FIELDS)
    default = {"input_size": network.size} if network.size else {}
    known = card_preprocessing({**default, **card})
    if network.takes_bytes:
        named = {"mean", "std"} & {*card, *spec.options}
        if named:
            raise UsageError(
                f"{spec.text} takes pixels of 0 to 255 and normalizes them itself: leave "
                f"{' and '.join(sorted(named))} out"
            )
        known = replace(known, mean=(0.0,) * 3, std=(1.0,) * 3, origin="bytes")
    recipe = as_preprocessing(spec.options, known)
    if network.size not in (None, recipe.input_size):
        raise UsageError(
            f"{spec.text} takes images of {network.size} pixels, and {recipe.input_size} were "
            "asked for: leave input_size out, or export the model with a free size"
        )
    return recipe


def _weights(path: Path) -> tuple[int, str]:
    """The number of parameters, and the digest of the file and of those it keeps weights in."""
    import onnx

    tensors = onnx.load(str(path), load_external_data=False).graph.initializer
    elsewhere = {
        entry.value
        for tensor in tensors
        for entry in tensor.external_data
        if entry.key == "location"
    }
    digest = hashlib.sha256(path.read_bytes())
    for place in sorted(elsewhere):
        digest.update((path.parent / place).read_bytes())
    return sum(math.prod(tensor.dims) for tensor in tensors), digest.hexdigest()
