"""`onnx:FILE.onnx[,key=value...]`: a classifier from any framework, through ONNX Runtime.

What the weights expect of an image stands in a JSON file of the same name beside it (the format of
our weight cards), or in the options: `onnx:m.onnx,input_size=96,mean=(0.5,0.5,0.5)`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shiftbench.errors import ModelError, UsageError
from shiftbench.models.classifier import (
    Classifier,
    Preprocessing,
    as_classifier,
    as_preprocessing,
    first_line,
    square,
)
from shiftbench.models.source import SOURCES, ModelEntry, ModelSpec, building
from shiftbench.registry import unknown_name

DEFAULT_SIZE = 224  # where neither the file nor its card nor an option says one
PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")  # what runs it, best first
FLOATS: Mapping[str, type[np.floating[Any]]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
}
RECIPE = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")


@dataclass(frozen=True)
class Signature:
    """What goes into a network and what comes out of it."""

    input: str
    output: str
    dtype: type[np.floating[Any]]
    batch: int | None  # how many images it takes at once; None: any number
    channels_last: bool  # (B, H, W, 3), as Keras has it
    size: int | None  # side of its input in pixels; None: any


class OnnxNetwork(nn.Module):
    """Normalised images (B, 3, S, S) in, logits out, computed by ONNX Runtime."""

    def __init__(self, session: Any, signature: Signature) -> None:
        super().__init__()
        self._session = session
        self._signature = signature
        self.gives_probabilities = False

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits, (B, classes), on the device of the images."""
        form = self._signature
        if form.channels_last:
            images = images.permute(0, 2, 3, 1)
        pixels = np.ascontiguousarray(images.detach().cpu().numpy(), dtype=form.dtype)
        answers = [self._run(part)[: len(part)] for part in self._parts(pixels)]
        logits = torch.from_numpy(np.concatenate(answers).astype(np.float32, copy=False))
        if self.gives_probabilities:
            # Logits up to a constant per image, which softmax and every margin leave out.
            logits = logits.clamp_min(torch.finfo(torch.float32).tiny).log()
        return logits.to(images.device)

    def _parts(self, pixels: NDArray[Any]) -> Iterator[NDArray[Any]]:
        size = self._signature.batch or max(1, len(pixels))
        return (pixels[start : start + size] for start in range(0, len(pixels), size))

    def _run(self, pixels: NDArray[Any]) -> NDArray[Any]:
        missing = (self._signature.batch or len(pixels)) - len(pixels)
        if missing:  # a network for batches of one size: fill the last one up
            pixels = np.concatenate([pixels, np.repeat(pixels[:1], missing, axis=0)])
        feed = {self._signature.input: pixels}
        answer: NDArray[Any] = self._session.run([self._signature.output], feed)[0]
        return answer


class OnnxSource:
    """ONNX files."""

    def load(self, spec: ModelSpec) -> Classifier:
        """Opens the file; its card and the options say what its weights expect."""
        path = Path(spec.name)
        if not path.is_file():
            raise UsageError(f"no ONNX file {spec.name!r} for the model {spec.text!r}")
        session = _open(path)
        signature = _signature(session, path)
        card = _card(path.with_suffix(".json"))
        recipe = _recipe(spec, card, signature)
        parameters, digest = _weights(path)
        names = tuple(map(str, card.get("class_names") or ()))
        with building(spec):
            network = OnnxNetwork(session, signature)
            found = as_classifier(
                network,
                recipe,
                name=spec.public_text,
                source="onnx",
                digest=digest,
                class_names=names,
            )
            network.gives_probabilities = _are_probabilities(network, recipe.input_size)
        if names and len(names) != found.num_classes:
            raise ModelError(
                f"the card {path.with_suffix('.json').name} names {len(names)} classes, and "
                f"{path.name} answers with {found.num_classes}: correct the card"
            )
        return replace(found, parameters=parameters)

    def entries(self) -> Iterable[ModelEntry]:
        """Nothing: the user's files are the user's."""
        return ()


def _open(path: Path) -> Any:
    try:
        import onnx  # noqa: F401 (reads the weights)
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"{path.name} needs ONNX Runtime: pip install 'shiftbench[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # its errors are raised; its warnings are about other things
    available = onnxruntime.get_available_providers()
    try:
        return onnxruntime.InferenceSession(
            str(path), options, providers=[name for name in PROVIDERS if name in available]
        )
    except Exception as error:
        raise ModelError(
            f"{path} is not an ONNX model that ONNX Runtime can run: {first_line(error)}"
        ) from error


def _signature(session: Any, path: Path) -> Signature:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1:
        raise ModelError(
            f"expected one input, images, in {path.name}, got {len(inputs)} "
            f"({', '.join(entry.name for entry in inputs)}): export the image classifier alone"
        )
    (images,) = inputs
    shape: Sequence[int | str | None] = images.shape
    if images.type not in FLOATS or len(shape) != 4 or 3 not in (shape[1], shape[3]):
        raise ModelError(
            f"expected an input of floating-point images (batch, 3, height, width) or (batch, "
            f"height, width, 3) in {path.name}, got {images.type} of shape {_text(shape)}"
        )
    scores = [entry for entry in outputs if entry.type in FLOATS and len(entry.shape) == 2]
    if not scores:
        got = "; ".join(f"{entry.name} {_text(entry.shape)}" for entry in outputs)
        raise ModelError(f"expected logits, (batch, classes), from {path.name}, got {got}")
    channels_last = shape[1] != 3
    sides = [side for side in (shape[1:3] if channels_last else shape[2:]) if isinstance(side, int)]
    return Signature(
        input=images.name,
        output=scores[0].name,
        dtype=FLOATS[images.type],
        batch=shape[0] if isinstance(shape[0], int) else None,
        channels_last=channels_last,
        size=square(sides) if sides else None,
    )


def _text(shape: Sequence[int | str | None]) -> str:
    return f"({', '.join('?' if side is None else str(side) for side in shape)})"


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


def _recipe(spec: ModelSpec, card: Mapping[str, Any], signature: Signature) -> Preprocessing:
    unknown = next((key for key in spec.options if key not in RECIPE), None)
    if unknown is not None:
        raise unknown_name("option of an ONNX model", unknown, RECIPE)
    said = {key: card[key] for key in RECIPE if key in card} | dict(spec.options)
    said.setdefault("input_size", signature.size or DEFAULT_SIZE)
    try:
        recipe = as_preprocessing(said)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"cannot read how {spec.text} wants its images: {first_line(error)}"
        ) from error
    if len(recipe.mean) != 3 or len(recipe.std) != 3:
        raise UsageError(
            f"expected three numbers as mean and as std of {spec.text}, got {recipe.mean} and "
            f"{recipe.std}"
        )
    if signature.size not in (None, recipe.input_size):
        raise UsageError(
            f"{spec.text} takes images of {signature.size} pixels, and {recipe.input_size} were "
            "asked for: leave input_size out, or export the model with a free size"
        )
    if "crop_pct" in card:
        enlarged = math.floor(recipe.input_size / float(card["crop_pct"]) + 1e-6)
        return replace(recipe, canvas=enlarged)
    return recipe


def _are_probabilities(network: OnnxNetwork, size: int) -> bool:
    """Whether the answers are a softmax already, as Keras likes to export them."""
    generator = torch.Generator().manual_seed(0)
    answers = network(torch.randn(4, 3, size, size, generator=generator))
    total = answers.double().sum(1)
    return bool((answers >= 0).all() and torch.allclose(total, torch.ones_like(total), atol=1e-3))


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


SOURCES.register("onnx", OnnxSource())
