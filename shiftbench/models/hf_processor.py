"""What a processor of transformers does to an image, found out by asking it.

Processors differ in more than their settings say: channels are flipped, scaled twice, cropped by a
rule of one class alone. So the processor itself is shown a few images, what it does is put into our
own words, and these are checked against its answers. One that they do not cover is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shiftbench.errors import ModelError
from shiftbench.preprocessing import INTERPOLATIONS, PAPER_RATIO, CropMode, Geometry, Preprocessing

Answer = NDArray[np.float64]  # (3, H, W)

# PIL's numbers for the filters, which is how preprocessor_config.json writes them.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
CROP_MODES: tuple[CropMode, ...] = ("center", "squash")
TOLERANCE = 0.6  # mean difference in levels of 255: resizing in PIL and in torch rounds differently


@dataclass(frozen=True)
class Learned:
    """A processor in our words."""

    preprocessing: Preprocessing
    channels: tuple[int, ...] = (0, 1, 2)  # which of red, green, blue each input channel is

    @property
    def is_reordered(self) -> bool:
        """Whether the model expects anything but red, green, blue."""
        return self.channels != (0, 1, 2)


@dataclass(frozen=True)
class _Colors:
    """answer = slope x + offset, per channel, where x in [0, 1] is the channel `source` of RGB."""

    source: tuple[int, ...]
    slope: tuple[float, ...]
    offset: tuple[float, ...]

    def undo(self, answer: Answer) -> Answer:
        """The RGB levels, 0..255, that an answer was made of."""
        levels = np.empty_like(answer)
        for channel, source in enumerate(self.source):
            levels[source] = 255 * (answer[channel] - self.offset[channel]) / self.slope[channel]
        return levels

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std of red, green and blue that say the same."""
        order = [self.source.index(channel) for channel in range(3)]
        mean = tuple(_short(-self.offset[i] / self.slope[i]) for i in order)
        return mean, tuple(_short(1 / self.slope[i]) for i in order)


def learn(processor: Any, name: str) -> Learned:
    """Finds out what a processor does; `name` is the model's, for the error."""
    view = _view(processor, name)
    colors = _colors(processor, view, name)
    resize, mode, interpolation = _crop(processor, view, colors, name)
    mean, std = colors.statistics()
    recipe = Preprocessing(view, mean, std, interpolation, view / resize, mode)
    return Learned(recipe, colors.source)


def _view(processor: Any, name: str) -> int:
    """The side of what it yields, which must be one square for every image."""
    shapes = {
        _ask(processor, Image.new("RGB", size), name).shape for size in ((300, 200), (200, 300))
    }
    channels, height, width = shapes.pop()
    if shapes or channels != 3 or height != width:
        raise _refusal(processor, name, "yields no square of fixed size with three channels")
    return int(height)


def _colors(processor: Any, view: int, name: str) -> _Colors:
    """The map of colors, from images of a single one."""

    def answer(*color: int) -> NDArray[np.float64]:
        pixels = _ask(processor, Image.new("RGB", (view, view), color), name)
        if np.ptp(pixels, axis=(1, 2)).max() > 1e-4 * max(1.0, np.abs(pixels).max()):
            raise _refusal(processor, name, "adds a border to images")
        return pixels[:, 0, 0]

    black = answer(0, 0, 0)
    response = np.stack([answer(255, 0, 0), answer(0, 255, 0), answer(0, 0, 255)], 1)
    response -= black[:, None]  # (channels out, channels in)
    source = response.argmax(1)
    slope = response.max(1)
    clean = np.zeros_like(response)
    clean[np.arange(3), source] = slope
    middle = answer(51, 102, 204)
    straight = black + slope * (np.array([51, 102, 204]) / 255)[source]
    close = 1e-4 * np.abs(response).max()
    if (
        sorted(source) != [0, 1, 2]
        or slope.min() <= 0
        or np.abs(response - clean).max() > close
        or np.abs(middle - straight).max() > close
    ):
        raise _refusal(processor, name, "does more to colors than to scale and offset each")
    return _Colors(tuple(source.tolist()), tuple(slope.tolist()), tuple(black.tolist()))


def _crop(processor: Any, view: int, colors: _Colors, name: str) -> tuple[int, CropMode, str]:
    """R, what the resize does, and its filter: the first guess that gives the same pixels."""
    interpolation = _filter(processor)
    short = 2 * round(0.65 * view)  # a size that no guess leaves as it is
    noise = np.random.default_rng(0).integers(0, 256, (short, short * 3 // 2, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    seen = colors.undo(_ask(processor, image, name))
    for resize in _guesses(processor, view):
        for mode in CROP_MODES if interpolation in INTERPOLATIONS else ():
            geometry = Geometry(view, resize, 1, interpolation, pad="reflect", crop_mode=mode)
            canvas = geometry.canvas(image).numpy().astype(np.float64)
            # transformers rounds the corner of an odd crop down, we round it as torchvision does.
            corners = ((y, x) for y in (0, 1) for x in (0, 1))
            views = (canvas[:, y : y + view, x : x + view] for y, x in corners)
            if min(np.abs(seen - ours).mean() for ours in views) <= TOLERANCE:
                return resize, mode, interpolation
    raise _refusal(processor, name, "resizes or crops in a way of its own")


def _filter(processor: Any) -> str:
    """The name of its filter: PIL's number, torchvision's mode, or the word of timm."""
    said = getattr(processor, "resample", None)
    said = _timm_words(processor).get("interpolation", "bilinear") if said is None else said
    value = getattr(said, "value", said)
    return FILTERS.get(value, str(value))


def _timm_words(processor: Any) -> Mapping[str, Any]:
    """The settings of a processor that wraps timm's transforms."""
    return getattr(processor, "data_config", None) or {}


def _guesses(processor: Any, view: int) -> Iterator[int]:
    """What the shorter side may be resized to, from the settings that processors have for it."""
    said = [view, int(view * PAPER_RATIO), getattr(processor, "resize_short", None)]
    size = getattr(processor, "size", None)
    for key in ("shortest_edge", "height"):
        said.append(size.get(key) if isinstance(size, Mapping) else getattr(size, key, None))
    crop_pct = getattr(processor, "crop_pct", None) or _timm_words(processor).get("crop_pct")
    said.append(int(view / crop_pct + 1e-6) if crop_pct else None)
    return (resize for resize in dict.fromkeys(said) if resize is not None and resize >= view)


def _ask(processor: Any, image: Image.Image, name: str) -> Answer:
    pixels = processor(images=image, return_tensors="pt").get("pixel_values")
    if pixels is None or pixels.ndim != 4:
        raise _refusal(processor, name, "yields no images")
    answer: Answer = pixels[0].double().numpy()
    return answer


def _refusal(processor: Any, name: str, problem: str) -> ModelError:
    return ModelError(
        f"{name} cannot be measured as its weights expect: its {type(processor).__name__} "
        f"{problem}; wrap model and preprocessing in a FILE.py:FUNCTION"
    )


def _short(value: float) -> float:
    """Six digits: the answers are single precision, and 0.485 shall stay 0.485."""
    return float(f"{value:.6g}") + 0.0
