"""What a transform does to an image, found out by trying it.

Image processors of transformers and transforms of torchvision, timm or the user's own differ in
more than their settings say: channels are flipped, scaled twice, cropped by a rule of one class
alone. So the transform itself is given a few images; what it does is expressed as a `Preprocessing`
and checked against its outputs. One that resizes, crops or colors in another way is refused: shifts
happen between the crop and the normalization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from shiftbench.errors import ModelError, first_line
from shiftbench.preprocessing import CROP_CORNERS, Geometry, Preprocessing, as_preprocessing

Output = NDArray[np.float64]  # (3, H, W)

FILTERS = ("bilinear", "bicubic", "lanczos", "nearest", "box", "hamming")
REPEATS = 8  # of one image, in which a random transform shows
TOLERANCE = 0.6  # mean difference in levels of 255: resizing in PIL and in torch rounds differently


@dataclass(frozen=True)
class _Reordered:
    """A hook that reorders the channels of images."""

    channels: tuple[int, ...]

    def __call__(self, _: nn.Module, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first, *rest = images
        return first[:, list(self.channels)], *rest


@dataclass(frozen=True)
class _Colors:
    """output = slope x + offset, per channel, where x in [0, 1] is the channel `source` of RGB."""

    source: NDArray[np.intp]  # (3,), as the others
    slope: Output
    offset: Output

    def undo(self, output: Output) -> Output:
        """The RGB levels, 0..255, that an output was made of."""
        offset, slope = self.offset[:, None, None], self.slope[:, None, None]
        return (255 * (output - offset) / slope)[np.argsort(self.source)]

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std of red, green and blue that say the same."""
        order = np.argsort(self.source)
        mean, std = -self.offset / self.slope, 1 / self.slope
        return tuple(map(_short, mean[order])), tuple(map(_short, std[order]))


def preprocessing_for(
    model: Any, given: Any, name: str, default: Preprocessing | None = None
) -> Preprocessing:
    """Reads what a user says of a model's images: a preprocessing, a mapping, or a transform.

    `name` is for errors; `default` has the fields that a mapping leaves out.
    """
    if isinstance(given, Preprocessing | Mapping):
        return as_preprocessing(given, default)
    if not callable(given):
        raise ModelError(
            f"expected the preprocessing of {name} as a mapping such as "
            f'{{"input_size": 224, "mean": 0.5, "std": 0.5}}, or as a transform from a PIL image '
            f"to a tensor; got a {type(given).__name__}"
        )
    return learn(given, name, model)


def learn(transform: Callable[..., Any], name: str, model: Any = None) -> Preprocessing:
    """Finds out what a transform does: a callable, or an image processor of transformers.

    A module that expects another order of channels is made to take red, green, blue.
    """
    trial = _Trial(transform, name)
    view = trial.view()
    colors = trial.colors(view)
    resize, mode = trial.resize(view, colors)
    interpolation, resize, corner = trial.details(view, colors, resize, mode)
    mean, std = colors.statistics()
    if colors.source.tolist() != [0, 1, 2]:
        if not isinstance(model, nn.Module):
            raise ModelError(f"the transform of {name} reorders channels: do that in the model")
        model.register_forward_pre_hook(_Reordered(tuple(colors.source.tolist())))
    return Preprocessing(
        view,
        mean,
        std,
        interpolation,
        crop_pct=view / resize,
        crop_mode=mode,
        crop_corner=corner,
        origin=type(transform).__name__,
    )


@dataclass(frozen=True)
class _Trial:
    transform: Callable[..., Any]
    name: str

    def view(self) -> int:
        """The side of what it yields, which must be one square for every image."""
        shapes = {self.run(Image.new("RGB", size)).shape for size in ((300, 200), (200, 300))}
        channels, height, width = shapes.pop()
        if shapes or channels != 3 or height != width:
            raise self.refusal("yields no square of fixed size with three channels")
        return int(height)

    def colors(self, view: int) -> _Colors:
        """The map of colors, from images of a single one."""

        def output(*color: int) -> NDArray[np.float64]:
            pixels = self.run(Image.new("RGB", (view, view), color))
            if np.ptp(pixels, axis=(1, 2)).max() > 1e-4 * max(1.0, np.abs(pixels).max()):
                raise self.refusal("adds a border to images")
            return pixels[:, 0, 0]

        black = output(0, 0, 0)
        response = np.stack([output(255, 0, 0), output(0, 255, 0), output(0, 0, 255)], 1)
        response -= black[:, None]  # (channels out, channels in)
        source = response.argmax(1)
        slope = response.max(1)
        clean = np.zeros_like(response)
        clean[np.arange(3), source] = slope
        middle = output(51, 102, 204)
        straight = black + slope * (np.array([51, 102, 204]) / 255)[source]
        close = 1e-4 * np.abs(response).max()
        if (
            sorted(source) != [0, 1, 2]
            or slope.min() <= 0
            or np.abs(response - clean).max() > close
            or np.abs(middle - straight).max() > close
        ):
            raise self.refusal("does more to colors than to scale and offset each")
        return _Colors(source, slope, black)

    def resize(self, view: int, colors: _Colors) -> tuple[int, str]:
        """About what the shorter side is resized to, and what that does to the longer one."""
        resize, mode = self.resize_of(_sides(view), view, colors)
        larger, _ = self.resize_of(_sides(2 * view), view, colors)
        if abs(larger / resize - 1) > 0.02:
            raise self.refusal("crops images that it does not resize")
        return resize, mode

    def resize_of(self, sides: tuple[int, int], view: int, colors: _Colors) -> tuple[int, str]:
        """The same, for an image of one size."""
        short, long = sides
        down, right = np.linspace(0, 255, short)[:, None], np.linspace(0, 255, long)
        rows, columns = (
            self.scale(np.broadcast_to(ramp, (short, long)), axis, view, colors)
            for axis, ramp in enumerate((down, right))
        )
        if abs(columns / rows - short / long) < 0.02:
            return round(rows * short), "squash"
        if abs(columns / rows - 1) < 0.02:
            return round(rows * short), "center"
        raise self.refusal("resizes in a way of its own")

    def scale(self, levels: NDArray[Any], axis: int, view: int, colors: _Colors) -> float:
        """By how much an image grows along an axis: a ramp of gray levels becomes flatter."""
        image = Image.fromarray(np.repeat(levels.round()[..., None], 3, 2).astype(np.uint8))
        profile = colors.undo(self.run(image)).mean((0, 2 - axis))
        inside = slice(view // 8, view - view // 8)  # filters see the border of the image
        slope = np.polyfit(np.arange(view)[inside], profile[inside], 1)[0]
        if not slope > 0:
            raise self.refusal("resizes in a way of its own")
        return float(255 / (levels.shape[axis] - 1) / slope)

    def details(self, view: int, colors: _Colors, about: int, mode: str) -> tuple[str, int, str]:
        """The filter, R and the corner of the crop that give the same pixels."""
        short, long = _sides(view)
        if mode == "center":  # half a pixel left over, which the two rules of the corner tell apart
            ratio = about / short
            sides = (side for side in range(long, 2 * long) if ratio * side % 1 < 0.4)
            long = next((side for side in sides if (int(ratio * side) - view) % 4 == 3), long)
        noise = np.random.default_rng(0).integers(0, 256, (short, long, 3), dtype=np.uint8)
        image = Image.fromarray(noise)
        output = self.run(image)
        if any(not np.array_equal(output, self.run(image)) for _ in range(REPEATS)):
            raise self.refusal("is random, as for training: give the transform of the evaluation")
        seen = colors.undo(output)

        def error(choice: tuple[str, int, str]) -> float:
            interpolation, resize, corner = choice
            geometry = Geometry(view, resize, 0, interpolation, crop_mode=mode, crop_corner=corner)
            return float(np.abs(seen - geometry.canvas(image).numpy()).mean())

        sizes = [resize for resize in (about, about - 1, about + 1) if resize >= view]
        choices = list(product(FILTERS, sizes, CROP_CORNERS))
        best = min(choices, key=error, default=None)
        if best is None or error(best) > TOLERANCE:
            raise self.refusal("resizes or crops in a way of its own")
        return best

    def run(self, image: Image.Image) -> Output:
        """What the transform makes of an image."""
        if hasattr(self.transform, "model_input_names"):  # an image processor of transformers
            batch = self.transform(images=image, return_tensors="pt").get("pixel_values")
            pixels = batch[0] if batch is not None else None
        else:
            try:
                pixels = self.transform(image)
            except Exception as error:
                raise self.refusal(f"fails on a PIL image ({first_line(error)})") from error
        if not isinstance(pixels, Tensor) or pixels.ndim != 3:
            raise self.refusal("yields no images")
        output: Output = pixels.double().numpy()
        return output

    def refusal(self, problem: str) -> ModelError:
        """The error for a transform that cannot be expressed."""
        return ModelError(
            f"{self.name} cannot be measured as its weights expect: its "
            f"{type(self.transform).__name__} {problem}; return the model from a FILE.py:FUNCTION "
            'with {"input_size": S, "mean": ..., "std": ...}, and do the rest in the model'
        )


def _sides(view: int) -> tuple[int, int]:
    """Height and width of a test image, of a size that no usual transform leaves as it is."""
    short = 2 * round(0.65 * view)
    return short, short * 3 // 2


def _short(value: float) -> float:
    """Six digits: the outputs are single precision, and 0.485 shall stay 0.485."""
    return float(f"{value:.6g}") + 0.0
