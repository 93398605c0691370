"""Recipes: all settings of a training run that change its numbers, in one frozen value."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, get_args, get_origin, get_type_hints

from aft_models.errors import AftModelsError, unknown
from aft_models.preprocessing import CROP_PCT, IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from aft_models.presets import PRESETS, XCiTConfig

PIPELINES = ("memory", "loader")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
EXPECTED = {  # description of a value, by type of field
    bool: "true or false",
    int: "an integer",
    float: "a number",
    tuple[float, float]: "two numbers, as in 0.9,0.999",
    tuple[float, ...]: "three numbers, as in 0.5,0.5,0.5",
    tuple[int, ...]: "integers, as in 16,24,32",
}
LOWEST = {
    **dict.fromkeys(("epochs", "batch_size", "lr_batch_size", "accumulate"), 1),
    "repeated_augmentation": 1,
    **dict.fromkeys(("image_size", "lr", "weight_decay", "clip_grad", "min_lr", "warmup_lr"), 0),
    **dict.fromkeys(("mixup", "cutmix", "shift", "consistency"), 0),
}
IDENTITY = ("name", "summary", "adjust")  # fields that name a recipe without changing its training


@dataclass(frozen=True)
class Recipe:
    """Settings of a training; only `lr` scales with the batch size, other rates do not."""

    name: str
    summary: str
    epochs: int
    batch_size: int  # images per update, over all processes and accumulated steps
    # Peak learning rate for updates of `lr_batch_size` images. 0 trains nothing: the statistics of
    # batch norms are measured anew, on the views of the benchmark, without dropout.
    lr: float
    lr_batch_size: int
    optimizer: str = "adamw"  # or any name of timm.optim
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.05  # not for biases, norms and other vectors
    decay_temperatures: bool = False  # weight decay for the attention temperatures too
    warmup_epochs: float = 5.0
    warmup_lr: float = 1e-6  # where the warm-up starts, at any batch size
    min_lr: float = 1e-5  # where the cosine ends, at any batch size
    clip_grad: float = 0.0  # largest norm of the gradient; 0 is no limit
    accumulate: int = 1  # backward passes per update
    drop_path: float = 0.0  # stochastic depth
    label_smoothing: float = 0.1
    ema_decay: float = 0.0  # weights averaged over updates are evaluated and exported; 0 is off
    norm_momentum: float = 0.0  # of the statistics of batch norms; 0: that of the model
    image_size: int = 224  # 0: that of the model
    sizes: tuple[int, ...] = ()  # sides of the images in successive equal fractions of the epochs
    interpolation: str = "bicubic"  # empty: that of the model
    mean: tuple[float, ...] = IMAGENET_MEAN  # of pixels in [0, 1]; (): that of the model
    std: tuple[float, ...] = IMAGENET_STD  # likewise
    pipeline: str = "loader"  # loader: timm's transforms in workers; memory: batched, on pixels
    flip: float = 0.5  # probability of a mirror image
    # Side of the resized images that random windows are cut from, in the memory pipeline and with
    # `shift`. 0 is `image_size`; with `shift` the benchmark's own resize, 256 / 224 of it.
    canvas: int = 0
    zoom: tuple[float, float] = (1.0, 1.0)  # likewise: window side over `image_size`
    settle: float = 0.0  # final fraction of the epochs, without `zoom` and `sizes`
    # Two windows of each image, and a term for the difference of their predictions.
    shift: int = 0  # largest offset of the second window from the first, in pixels; 0: one window
    consistency: float = 0.0  # weight of the symmetric KL divergence between the two predictions
    unlabeled: bool = False  # labels are not read; only with an lr of 0
    # The loader pipeline without `shift`: timm's settings.
    crop_scale: tuple[float, float] = (0.08, 1.0)  # area of a random resized crop
    rand_augment: str = ""
    color_jitter: float = 0.0
    random_erasing: float = 0.0  # probability, filled with noise per pixel
    repeated_augmentation: int = 1  # views of an image in an epoch's stream
    mixup: float = 0.0
    cutmix: float = 0.0
    mixup_switch: float = 0.5  # probability of cutmix where both are on
    adjust: Callable[[XCiTConfig], dict[str, Any]] | None = None  # fields that differ for a preset

    def __post_init__(self) -> None:
        for good, name, expected in self._checks():
            if not good:
                raise AftModelsError(
                    f"recipe {self.name}: {name} must be {expected}, got {getattr(self, name)!r}"
                )

    def _checks(self) -> Iterator[tuple[bool, str, str]]:
        """Yield for each field whether it is valid, its name, and the expected value."""
        yield from self._shift_checks()
        for name, lowest in LOWEST.items():
            yield getattr(self, name) >= lowest, name, f"at least {lowest}"
        for name in ("flip", "random_erasing", "mixup_switch"):
            yield 0 <= getattr(self, name) <= 1, name, "a probability"
        for name in ("drop_path", "label_smoothing", "ema_decay", "norm_momentum"):
            yield 0 <= getattr(self, name) < 1, name, "from 0 to below 1"
        for name in ("mean", "std"):
            yield len(getattr(self, name)) in (0, 3), name, "three numbers, or ()"
        windowed = self.pipeline == "memory" or self.shift > 0
        canvas = self.canvas or self.image_size
        yield canvas >= self.image_size, "canvas", "0 or at least `image_size`"
        yield 0 < self.zoom[0] <= self.zoom[1], "zoom", "two factors, the smaller first"
        fits = self.shift > 0 or (windowed and self.windows[1] <= canvas)
        expected = "1,1, or for windows cut from a canvas at most `canvas` / `image_size`"
        yield self.zoom == (1.0, 1.0) or fits, "zoom", expected
        expected = "0, or for windows cut from a canvas a fraction of the epochs"
        yield self.settle == 0 or (windowed and 0 < self.settle <= 1), "settle", expected
        expected = f"below `epochs` ({self.epochs}; add --set warmup_epochs={0.05 * self.epochs:g})"
        yield 0 <= self.warmup_epochs < self.epochs, "warmup_epochs", expected
        expected = f"one of {', '.join(INTERPOLATIONS)}"
        yield self.interpolation in ("", *INTERPOLATIONS), "interpolation", expected
        yield self.pipeline in PIPELINES, "pipeline", f"one of {', '.join(PIPELINES)}"
        yield all(size >= 1 for size in self.sizes), "sizes", "at least 1"
        yield not self.sizes or windowed, "sizes", "empty with the loader"
        yield self.batch_size % self.accumulate == 0, "accumulate", "a divisor of `batch_size`"
        yield self.learns or not self.ema_decay, "ema_decay", "0 where lr is 0"
        odd = (self.mixup or self.cutmix) and self.batch_size // self.accumulate % 2
        yield not odd, "batch_size", "even shares: mixup pairs images"

    def _shift_checks(self) -> Iterator[tuple[bool, str, str]]:
        """Check the fields of recipes with two windows per image."""
        yield not (self.unlabeled and self.learns), "unlabeled", "false where lr is above 0"
        if not self.shift:
            yield not self.consistency, "consistency", "0 where shift is 0"
            return
        for name in ("mixup", "cutmix", "rand_augment", "color_jitter", "random_erasing"):
            yield not getattr(self, name), name, "off with `shift`, which takes plain windows"
        yield self.learns, "lr", "above 0 with `shift`"
        if self.image_size and self.canvas:
            room = self.canvas - max(self.windows[1], self.image_size)
            yield (
                room >= self.shift,
                "canvas",
                f"`shift` {self.shift} px or more larger than the windows of {self.canvas - room} "
                "(a smaller shift or zoom needs less)",
            )

    @property
    def learns(self) -> bool:
        """True if weights change; otherwise only the statistics of batch norms do."""
        return self.lr > 0

    @property
    def resize(self) -> int:
        """Shorter side of the resized images whose center is evaluated (pixels)."""
        if self.canvas:
            return self.canvas
        return round(self.image_size / CROP_PCT) if self.pipeline == "loader" else self.image_size

    @property
    def crop_pct(self) -> float:
        """Fraction of a resized image that a view shows."""
        return self.image_size / self.resize

    @property
    def windows(self) -> tuple[int, int]:
        """Smallest and largest side of the windows that `zoom` allows (pixels)."""
        return round(self.zoom[0] * self.image_size), round(self.zoom[1] * self.image_size)

    def windows_at(self, epoch: int) -> tuple[int, int]:
        """Return `windows` in an epoch; windows that are not resized equal the benchmark's view."""
        return (self.image_size, self.image_size) if self._settles(epoch) else self.windows

    def _settles(self, epoch: int) -> bool:
        return epoch >= round((1 - self.settle) * self.epochs)

    def size_at(self, epoch: int) -> int:
        """Return the side of the images in an epoch; smaller images make early epochs cheaper."""
        if not self.sizes or self._settles(epoch):
            return self.image_size
        return self.sizes[min(epoch * len(self.sizes) // self.epochs, len(self.sizes) - 1)]

    @property
    def peak_lr(self) -> float:
        """Learning rate `lr` scaled to this recipe's batch size (the linear rule)."""
        return self.lr * self.batch_size / self.lr_batch_size

    def for_model(self, model: str) -> Recipe:
        """Apply the adjustments for a preset; other models have none."""
        if model not in PRESETS or self.adjust is None:
            return self
        return replace(self, **self.adjust(PRESETS[model]))

    def for_input(self, preprocessing: Preprocessing) -> Recipe:
        """Complete the fields that the recipe leaves to the model."""
        size = self.image_size or preprocessing.size
        canvas = self.canvas
        if self.shift and not canvas:
            canvas = round(size / CROP_PCT)
        return replace(
            self,
            image_size=size,
            canvas=canvas,
            interpolation=self.interpolation or preprocessing.interpolation,
            mean=self.mean or preprocessing.mean,
            std=self.std or preprocessing.std,
        )

    def settings(self) -> dict[str, Any]:
        """Return every field that can change a number, by name, as plain values."""
        return _plain({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return `settings` of the fields that have a default."""
        return _plain({f.name: f.default for f in fields(cls) if f.default is not MISSING})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name not in IDENTITY
    }


def override(recipe: Recipe, assignments: Iterable[str]) -> Recipe:
    """Apply `field=value` texts, such as `epochs=10`, to a recipe.

    Raises:
        AftModelsError: An unknown field, or a value of another type than the field's.
    """
    kinds = {k: v for k, v in get_type_hints(Recipe).items() if k not in IDENTITY}
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        name = name.strip()
        if not separator:
            raise AftModelsError(f"expected FIELD=VALUE, got {assignment!r}, as in epochs=10")
        if name not in kinds:
            raise AftModelsError(unknown("field of a recipe", name, sorted(kinds), shown=99))
        changes[name] = _parse(name, text.strip(), kinds[name])
    return replace(recipe, **changes)


def _parse(name: str, text: str, kind: Any) -> Any:
    if kind is str:
        return text
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and number:
        return float(value)
    if kind is int and number and value == int(value):
        return int(value)
    if get_origin(kind) is tuple:
        values = value if isinstance(value, (tuple, list)) else (value,)
        entry, *rest = get_args(kind)
        fits = rest == [Ellipsis] or len(values) == len(rest) + 1
        if fits and all(isinstance(v, (int, entry)) for v in values):
            return tuple(entry(v) for v in values)
    expected = EXPECTED[kind]
    raise AftModelsError(f"{name} takes {expected}, got {text!r}")
