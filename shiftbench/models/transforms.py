"""The preprocessing of a model, from a mapping, a transform or an image processor.

The fields of the steps are read, and one image is compared with the transform's own output. Shifts
happen between the crop and the normalization: a transform that does anything else is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from aft_models.errors import AftModelsError
from aft_models.preprocessing import ASSUMED, Preprocessing, cropped_from, square
from shiftbench.errors import ModelError, first_line
from shiftbench.geometry import geometry_for

FIELDS = (  # of a mapping
    "input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode", "fill", "centered",
)  # fmt: skip
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # in the order of PIL
# Steps that change the container of the pixels alone.
CONVERSIONS = (
    "ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToImage", "ToDtype",
    "ConvertImageDtype", "ToPureTensor", "RGB",
)  # fmt: skip
TOLERANCE = 0.6  # mean difference in levels of 255: PIL and torch round differently


def read_preprocessing(
    value: Any, name: str, default: Preprocessing | None = None
) -> Preprocessing:
    """Read the preprocessing of a model.

    Args:
        value: A `Preprocessing`; a mapping with any of `input_size` (a number, (S, S) or
            (3, S, S)), `mean` and `std` (one number or three, of pixels in [0, 1]),
            `interpolation`, `crop_pct` and `crop_mode`; of a detector or segmenter `fill` (one
            number or three, 0 to 255) and `centered`; a transform of torchvision or timm from a
            PIL image to a tensor; or an image processor of transformers.
        name: The model, for errors.
        default: The fields that a mapping lacks: 224 px and ImageNet's statistics by default.

    >>> read_preprocessing({"input_size": (3, 96, 96), "mean": 0.5, "std": 0.25}, "mine").std
    (0.25, 0.25, 0.25)

    Raises:
        ModelError: A field is invalid, or the transform has steps that cannot be expressed.
    """
    if isinstance(value, Preprocessing):
        return value
    try:
        if isinstance(value, Mapping):
            return _from_mapping(value, default or Preprocessing(224, origin=ASSUMED))
        if callable(value):
            return _from_transform(value, name)
    except AftModelsError as error:
        raise ModelError(str(error)) from error
    raise ModelError(
        f"expected the preprocessing of {name} as a mapping such as "
        f'{{"input_size": 224, "mean": 0.5, "std": 0.5}}, or as a transform from a PIL image to a '
        f"tensor, got a {type(value).__name__}. Return one of them"
    )


def _from_mapping(given: Mapping[str, Any], default: Preprocessing) -> Preprocessing:
    unknown = sorted(map(str, set(given) - set(FIELDS)))
    if unknown:
        raise ModelError(
            f"expected the fields {', '.join(FIELDS)} of a preprocessing, got "
            f"{', '.join(unknown)}. Remove them"
        )
    read = default.at_size(square(given.get("input_size", default.size)))
    mean, std = (
        _per_channel(key, given.get(key, getattr(default, key))) for key in ("mean", "std")
    )
    if min(std) <= 0:
        raise ModelError(f"expected std of each channel above 0, got {std}. Correct it")
    resize = read.resize
    if "crop_pct" in given:
        resize = cropped_from(read.size, float(given["crop_pct"]))
    return replace(
        read,
        mean=mean,
        std=std,
        interpolation=_word(given.get("interpolation", default.interpolation)),
        resize=resize,
        squash=given["crop_mode"] == "squash" if "crop_mode" in given else default.squash,
        origin="given" if {"mean", "std"} <= given.keys() else default.origin,
        states_resize="crop_pct" in given or default.states_resize,
        fill=_per_channel("fill", given.get("fill", default.fill)),
        centered=bool(given.get("centered", default.centered)),
    )


def _per_channel(key: str, value: float | Sequence[float]) -> tuple[float, ...]:
    """Return three numbers from one or three."""
    try:
        numbers = [float(x) for x in ([value] if isinstance(value, int | float) else value)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 3):
        raise ModelError(f"expected {key} as one number or three, got {value!r}. Correct it")
    return tuple(numbers * 3 if len(numbers) == 1 else numbers)


def _word(interpolation: Any) -> str:
    return str(getattr(interpolation, "value", interpolation))  # torchvision's modes are enums


def _from_transform(transform: Callable[..., Any], name: str) -> Preprocessing:
    """Read the fields of a transform, and compare one image."""
    kind = type(transform).__name__
    try:
        if _is_processor(transform):
            read = _from_processor(transform)
        else:
            read = replace(_from_steps(_flattened(transform)), states_resize=True)
        read = replace(read, origin=kind)
        difference = _difference(transform, read)
    except Exception as error:  # of a transform, or of a field that another version lacks
        clear = isinstance(error, ModelError | AftModelsError)
        reason = str(error) if clear else first_line(error)
        raise _inexpressible(kind, name, reason) from error
    if not difference <= TOLERANCE:
        reason = f"its pixels differ by {difference:.2g} levels of 255 from those of its fields"
        raise _inexpressible(kind, name, reason)
    return read


def _inexpressible(kind: str, name: str, reason: str) -> ModelError:
    return ModelError(
        f"cannot express the {kind} of {name} as resize, center crop and normalization: {reason}. "
        'Return the model from a FILE.py:FUNCTION with {"input_size": S, "mean": ..., "std": ...}, '
        "and do the rest in the model"
    )


def _is_processor(transform: object) -> bool:
    """Return True for an image processor of transformers."""
    return hasattr(transform, "model_input_names")


def _flattened(transform: Any) -> list[Any]:
    """List the steps of a transform, those of nested ones included."""
    steps = getattr(transform, "transforms", None)
    return [transform] if steps is None else [s for step in steps for s in _flattened(step)]


def _from_steps(steps: Sequence[Any]) -> Preprocessing:
    """Read Resize, CenterCrop and Normalize of torchvision or timm."""
    size, read = 0, Preprocessing(0, (0.0,) * 3, (1.0,) * 3)
    for step in steps:
        kind = type(step).__name__
        if kind in ("Resize", "ResizeKeepRatio"):
            sides = [step.size] if isinstance(step.size, int) else list(step.size)
            size = square(sides)
            read = replace(read, resize=size, squash=kind == "Resize" and len(sides) == 2)
            read = replace(read, interpolation=_word(step.interpolation))
        elif kind in ("CenterCrop", "CenterCropOrPad"):
            size = square(step.size)
        elif kind == "Normalize":
            mean, std = (tuple(map(_number, getattr(step, key))) for key in ("mean", "std"))
            read = replace(read, mean=mean, std=std)
        elif kind == "ImageClassification":  # the transforms of torchvision's weights
            read = of_weights(step)
            size = read.size
        elif kind not in CONVERSIONS and getattr(step, "__name__", "") != "_convert_to_rgb":
            raise ModelError(f"expected Resize, CenterCrop and Normalize, got {kind}")
    if not size:
        raise ModelError("expected a Resize or CenterCrop to a fixed size, got none")
    return replace(read, size=size)


def of_weights(transforms: Any) -> Preprocessing:
    """Read the transforms of torchvision's weights."""
    return Preprocessing(
        square(transforms.crop_size),
        tuple(transforms.mean),
        tuple(transforms.std),
        _word(transforms.interpolation),
        resize=min(transforms.resize_size),
    )


def _from_processor(processor: Any) -> Preprocessing:
    """Read an image processor of transformers, with the special rules of a few classes."""
    kind = type(processor).__name__
    if hasattr(processor, "val_transforms"):  # a model of timm behind transformers
        return _from_steps(_flattened(processor.val_transforms))

    def field(key: str) -> Any:
        return getattr(processor, key, None)

    size, crop, fraction = field("size") or {}, field("crop_size") or {}, field("crop_pct")
    resize = size.get("shortest_edge") or square((size["height"], size["width"]))
    squash = "height" in size
    side = square((crop["height"], crop["width"])) if crop and field("do_center_crop") else resize
    if kind.startswith("ConvNext") and resize >= 384:  # squashed instead of cropped
        squash, fraction = True, None
    if kind.startswith("Levit"):
        resize = int(256 / 224 * resize)
    elif fraction:
        resize = int(resize / fraction)
    # A white pixel before the normalization; 1 after the usual rescaling.
    white = 255 * processor.rescale_factor if processor.do_rescale else 255.0
    mean, std = [0.0] * 3, [1.0] * 3
    if field("do_normalize"):
        mean, std = list(processor.image_mean), list(processor.image_std)
    if field("rescale_offset"):  # EfficientNet rescales to [-1, 1]
        mean = [x + 1 for x in mean]
    if field("include_top"):  # EfficientNet divides by the deviation twice
        std = [x * y for x, y in zip(std, processor.image_std, strict=True)]
    return Preprocessing(
        side,
        tuple(x / white for x in mean),
        tuple(x / white for x in std),
        FILTERS[int(processor.resample)],
        resize=resize,
        squash=squash,
        bgr=bool(field("do_flip_channel_order")),
    )


def _number(value: float | Tensor) -> float:
    # timm stores float32 tensors: seven digits, since 0.229 must not become 0.22900000214.
    return float(f"{float(value):.7g}") if isinstance(value, Tensor) else float(value)


def _difference(transform: Any, read: Preprocessing) -> float:
    """Return the mean difference between a transform and its fields, in levels of 255."""
    short = 2 * round(0.65 * read.size) + 1  # a size that no usual transform leaves unchanged
    ratio = read.own_resize / short
    # Libraries round the corner of an odd crop differently. So the long side has an even remainder,
    # and both corners are compared on the short side.
    widths = range(3 * short // 2, 4 * short)
    long = next(n for n in widths if (int(ratio * n) - read.size) % 2 == 0)
    noise = np.random.default_rng(0).integers(0, 256, (short, long, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    if _is_processor(transform):
        output = transform(images=image, return_tensors="pt")["pixel_values"][0]
    else:
        output = transform(image)
    if not isinstance(output, Tensor) or output.shape != (3, read.size, read.size):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(f"expected an image of shape {(3, read.size, read.size)}, got {shape}")
    output = output.flip(0) if read.bgr else output
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (read.mean, read.std))
    pixels, size = 255 * (output * std + mean), read.size
    canvas = geometry_for(read, crop_pct="model", margin=1, pad="reflect").canvas(image)
    tops = (1,) if (read.own_resize - size) % 2 == 0 else (0, 1)
    views = [canvas[:, top : top + size, 1 : 1 + size] for top in tops]
    return min(float((pixels - view).abs().mean()) for view in views)
