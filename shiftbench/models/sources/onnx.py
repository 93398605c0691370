"""`FILE.onnx[,key=value...]`: a classifier from any framework, through ONNX Runtime.

The preprocessing is in the metadata of a file that `shiftbench export` wrote, in a JSON file of the
same name beside it (the format of weight cards), or in the options:
`m.onnx,input_size=96,mean=0.5,std=0.5`. Of several outputs `,output=NAME` chooses one.
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

from aft_models.preprocessing import ASSUMED, Preprocessing, square
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.models.exported import (
    METADATA,
    ExportInfo,
    read_options,
    to_bytes,
    to_pixels,
    warn_assumed,
)
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request
from shiftbench.models.transforms import FIELDS, read_preprocessing

OPTIONS = (*FIELDS, "output")
LOGITS = "logits"  # usual name of the output

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
INPUTS: Mapping[str, Any] = {**FLOATS, "tensor(uint8)": np.uint8}


class OnnxNetwork(nn.Module):
    """Normalized images (B, 3, S, S) in, logits out, computed by ONNX Runtime.

    The network runs on the device of the images: the CPU or a GPU.
    """

    def __init__(
        self,
        model: bytes | Path,
        *,
        name: str,
        output: str | None = None,
        classes: int | None = None,
        tf32: bool = False,
    ) -> None:
        """Open the network.

        Args:
            model: The content of an ONNX file, or its path.
            name: Name in errors.
            output: Name of the output to read; by default `logits`, or the only candidate.
            classes: Number of classes, which distinguishes logits from other outputs.
            tf32: Allow a GPU to round float32 products to TF32.
        """
        super().__init__()
        self.model = model
        self._name = name
        self._tf32 = tf32
        self._sessions: dict[torch.device, Any] = {}
        session = self._session(torch.device("cpu"))
        images, shape = _image_input(session, name)
        self.metadata: Mapping[str, str] = session.get_modelmeta().custom_metadata_map
        self.info: ExportInfo | None = None  # of a file that `shiftbench export` wrote
        if METADATA in self.metadata:
            path = model if isinstance(model, Path) else Path(name)
            self.info = ExportInfo.from_json(self.metadata[METADATA], path)
        if self.info is not None and self.info.class_names:
            classes = len(self.info.class_names)
        self.input = images.name
        self.output, self.several_outputs = _logit_output(session, name, output, classes)
        self._kind = INPUTS[images.type]
        self.takes_bytes = self._kind == np.uint8  # pixels of 0 to 255
        self.batch = shape[0] if isinstance(shape[0], int) else None  # None: any number of images
        self._channels_last = shape[1] != 3  # (B, H, W, 3), as in Keras
        sides = shape[1:3] if self._channels_last else shape[2:]
        fixed = [side for side in sides if isinstance(side, int)]
        self.size = square(fixed) if fixed else None  # side of its input; None: any
        self.size_assumed = False  # True: neither the file nor the user states a size

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes) on the device of the images."""
        ready = self.prepare(images.detach()).contiguous()
        parts = torch.split(ready, self.batch or max(1, len(images)))
        return torch.cat([self._run(part) for part in parts]).float().to(images.device)

    def prepare(self, images: Tensor) -> Tensor:
        """Convert normalized images (B, 3, S, S) to the input of the graph."""
        if self.info is not None and self.info.include:
            facts = self.info.preprocessing
            images = to_pixels(images, facts.mean, facts.std)
        if self.takes_bytes:
            images = to_bytes(images)
        if self._channels_last:
            images = images.permute(0, 2, 3, 1)
        return images.to(torch.from_numpy(np.empty(0, self._kind)).dtype)

    def _run(self, images: Tensor) -> Tensor:
        count = len(images)
        missing = (self.batch or count) - count
        if missing:  # a network for batches of one size: fill the last one up
            images = torch.cat([images, images[:1].expand(missing, *images.shape[1:])])
        session = self._session(images.device)
        if images.device.type == "cpu":
            (logits,) = session.run([self.output], {self.input: images.numpy()})
        else:
            logits = self._run_on_gpu(session, images)
        return torch.from_numpy(logits)[:count]

    def _run_on_gpu(self, session: Any, images: Tensor) -> Any:
        """Run on a GPU without copying the images; only the logits are copied to the CPU."""
        binding = session.io_binding()
        torch.cuda.current_stream(images.device).synchronize()  # the images must be ready
        binding.bind_input(
            self.input,
            "cuda",
            images.device.index or 0,
            self._kind,
            tuple(images.shape),
            images.data_ptr(),
        )
        binding.bind_output(self.output)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]

    def _session(self, device: torch.device) -> Any:
        if device in self._sessions:
            return self._sessions[device]
        runtime = load_runtime(self._name)
        providers = _providers(device, runtime, tf32=self._tf32)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # errors are raised, and not printed too
        # Between two batches the cores are needed to prepare the next one.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._sessions[device] = runtime.InferenceSession(
                self.model if isinstance(self.model, bytes) else str(self.model),
                options,
                providers=providers,
                # On a CPU the fused operator is several times slower than the norm alone.
                disabled_optimizers=["SkipLayerNormFusion"],
            )
        except Exception as error:  # of many types, none of them public
            raise ModelError(
                f"cannot run {self._name} in ONNX Runtime: {first_line(error)}. Export it again"
            ) from error
        return self._sessions[device]


def load_runtime(name: str) -> ModuleType:
    """Import ONNX Runtime; raise ModelError that names the extra if it is not installed."""
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


def _logit_output(
    session: Any, name: str, wanted: str | None, classes: int | None
) -> tuple[str, bool]:
    """Return the name of the output with the logits, and True if there are several candidates."""
    outputs = session.get_outputs()
    got = "; ".join(f"{entry.name} {_text(entry.shape)}" for entry in outputs)
    scores = {
        entry.name: entry.shape[1]
        for entry in outputs
        if entry.type in FLOATS and len(entry.shape) == 2
    }
    if not scores:
        raise ModelError(f"expected logits, (batch, classes), from {name}, got {got}")
    if wanted is not None and wanted not in scores:
        raise UsageError(
            f"expected the name of an output of shape (batch, classes) of {name}, got "
            f"{wanted!r}. Choose one of: {', '.join(scores)}"
        )
    chosen = [LOGITS] if LOGITS in scores else list(scores)
    if len(chosen) > 1 and classes is not None:
        chosen = [key for key in chosen if scores[key] == classes]
    if wanted is None and len(chosen) != 1:
        count = "" if classes is None else f" of {classes} classes"
        raise ModelError(
            f"expected one output with logits{count} from {name}, got {got}. Name it after the "
            f"file: ,output={next(iter(scores))}"
        )
    return wanted or str(chosen[0]), len(scores) > 1


def _text(shape: Sequence[Any]) -> str:
    return f"({', '.join('?' if side is None else str(side) for side in shape)})"


def build(name: ModelName, request: Request) -> Built:
    """Open the file, and read its preprocessing."""
    request.require_own_weights(name.text)
    path = Path(name.name)
    if not path.is_file():
        raise UsageError(f"no ONNX file {name.name!r} for the model {name.text!r}")
    options = dict(read_options(request.options, OPTIONS, "an ONNX model"))
    output = options.pop("output", None)
    card = _card(path.with_suffix(".json"))
    class_names = tuple(map(str, card.get("class_names") or ()))
    classes = len(class_names or request.class_names) or None
    network = OnnxNetwork(
        path, name=path.name, output=None if output is None else str(output), classes=classes
    )
    parameters, digest = _weights(path)
    info = network.info
    if info is not None:
        info.reject_statistics(options, name.text)
        preprocessing = read_preprocessing(options, name.text, info.preprocessing)
        class_names, parameters = info.class_names, info.parameters or parameters
    else:
        preprocessing = _read_card(name, card, options, network)
        given = {*card, *options}
        network.size_assumed = network.size is None and "input_size" not in given
        warn_assumed(path.name, given, preprocessing.size if network.size_assumed else None)
    if network.size not in (None, preprocessing.input_size):
        raise UsageError(
            f"expected images of {network.size} pixels for {name.text}, got "
            f"{preprocessing.input_size}: leave input_size out, or export the model with a free "
            "size"
        )
    return Built(
        network,
        preprocessing,
        class_names,
        code={"output": network.output} if network.several_outputs else {},
        weights=digest,
        parameters=parameters,
        exported=info,
    )


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
