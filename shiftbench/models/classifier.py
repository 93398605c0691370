"""What every model source yields, and how any module or callable becomes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.weights import state_dict_digest
from shiftbench.errors import ModelError
from shiftbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


@dataclass(frozen=True)
class Classifier:
    """A model ready to be measured: in eval mode, images in, logits out."""

    module: nn.Module  # normalized images (B, 3, S, S) -> logits (B, classes)
    preprocessing: Preprocessing
    name: str  # as the user wrote it: "timm:resnet50"
    source: str  # which source loaded it: "bundled", "timm", "torchvision", "huggingface", "python"
    num_classes: int
    parameters: int  # count of trainable and frozen parameters
    digest: str  # sha256 of the weights, so that a record can name what it measured
    class_names: tuple[str, ...] = ()  # by index; empty where they are not known

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the logits, (B, classes)."""
        logits: Tensor = self.module(images)
        return logits


def logits_of(output: Any) -> Tensor:
    """The logits in a model's answer: a tensor, its `.logits`, the first of a tuple or dict."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping):
        values = [output["logits"]] if "logits" in output else list(output.values())
    elif isinstance(output, tuple | list):
        values = list(output)
    else:
        values = []
    if values and isinstance(values[0], Tensor):
        return values[0]
    raise ModelError(
        f"expected logits, a tensor of shape (batch, classes), from the model; "
        f"it answered with a {type(output).__name__}: wrap it in a FILE.py:FUNCTION that unpacks it"
    )


class LogitsOnly(nn.Module):
    """A model reduced to its logits."""

    def __init__(self, model: nn.Module | Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits, (B, classes)."""
        return logits_of(self.model(images))


def as_preprocessing(value: Preprocessing | Mapping[str, Any]) -> Preprocessing:
    """Reads a preprocessing from a mapping: `input_size` as a number or (3, S, S) or (S, S)."""
    if isinstance(value, Preprocessing):
        return value
    known = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")
    unknown = sorted(set(value) - set(known))
    if unknown or "input_size" not in value:
        problem = f"unknown {', '.join(unknown)}" if unknown else "no input_size"
        raise ModelError(f"a preprocessing has the fields {', '.join(known)}; got {problem}")
    return Preprocessing(
        input_size=square(value["input_size"]),
        mean=tuple(float(x) for x in value.get("mean", IMAGENET_MEAN)),
        std=tuple(float(x) for x in value.get("std", IMAGENET_STD)),
        interpolation=str(value.get("interpolation", "bicubic")),
        crop_pct=float(value.get("crop_pct", Preprocessing.crop_pct)),
        crop_mode=str(value.get("crop_mode", Preprocessing.crop_mode)),
    )


def square(size: int | tuple[int, ...] | list[int]) -> int:
    """The side of a square input, from a number, (S, S) or (channels, S, S)."""
    sides = [size] if isinstance(size, int) else list(size)[-2:]
    if len(set(sides)) != 1 or sides[0] <= 0:
        raise ModelError(f"expected a model with a square input, got {tuple(sides)} pixels")
    return int(sides[0])


def as_classifier(
    model: nn.Module | Callable[[Tensor], Any],
    preprocessing: Preprocessing | Mapping[str, Any],
    *,
    name: str,
    source: str = "python",
    digest: str | None = None,
    class_names: Sequence[str] = (),
) -> Classifier:
    """Makes a classifier of any module or callable; tries it once on a blank image.

    Args:
        model: Takes normalized images (B, 3, S, S); answers with logits, or with a tuple, a dict or
            an object that holds them.
        preprocessing: What its weights expect.
        name: How records call it.
        source: Where it came from.
        digest: Names the weights. By default the digest of the module's state; a plain callable
            shows no weights, so give one when its answers can change under the same name.
        class_names: By index, where they are known: folders of images are then matched by name.
    """
    recipe = as_preprocessing(preprocessing)
    state = model.state_dict() if isinstance(model, nn.Module) else {}
    module = LogitsOnly(model).eval()
    parameters = sum(p.numel() for p in module.parameters())
    return Classifier(
        module=module,
        preprocessing=recipe,
        name=name,
        source=source,
        num_classes=_count_classes(module, recipe, name),
        parameters=parameters,
        digest=digest or state_dict_digest(state),
        class_names=tuple(class_names),
    )


def _count_classes(module: nn.Module, recipe: Preprocessing, name: str) -> int:
    """Runs the model once on a blank image: a model that cannot run fails here, by name."""
    first = next(module.parameters(), None)
    size = recipe.input_size
    blank = torch.zeros(1, len(recipe.mean), size, size)
    if first is not None:
        blank = blank.to(first.device, first.dtype)
    try:
        with torch.inference_mode():
            logits: Tensor = module(blank)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name} fails on an image of {size} x {size} pixels: {first_line(error)}"
        ) from error
    if logits.ndim != 2 or logits.shape[0] != 1 or logits.shape[1] < 2:
        raise ModelError(
            f"{name} is not a classifier: expected logits of shape (1, classes), "
            f"got {tuple(logits.shape)}"
        )
    return int(logits.shape[1])


def first_line(error: BaseException) -> str:
    """An error of a library in one line: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
