"""Recipes: everything about a training run that changes its numbers, in one frozen value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, get_args, get_origin, get_type_hints

from torch import nn

from aft_models.errors import AftModelsError, unknown
from aft_models.presets import PRESETS

PIPELINES = ("memory", "loader")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
EXPECTED = {  # in words, per kind of field
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple[float, float]: "two numbers, as in 0.9,0.999",
    tuple[float, ...]: "three numbers, as in 0.5,0.5,0.5",
    tuple[int, ...]: "whole numbers, as in 16,24,32",
}
IDENTITY = ("name", "summary", "adjustments")  # what a recipe is called, not what it does


@dataclass(frozen=True)
class ModelInput:
    """What a model, or its trained weights, expect of an image."""

    size: int = 224  # height and width in pixels
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # per channel, of pixels in [0, 1]
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @classmethod
    def of(cls, model: nn.Module) -> ModelInput:
        """As timm keeps it with a model; ImageNet's usual values for any other."""
        known = getattr(model, "default_cfg", None) or {}
        return cls(
            size=known.get("input_size", (cls.size,))[-1],
            interpolation=known.get("interpolation", cls.interpolation),
            mean=tuple(known.get("mean", cls.mean)),
            std=tuple(known.get("std", cls.std)),
        )


@dataclass(frozen=True)
class Adjustment:
    """One field that differs for the presets with certain values of a switch."""

    switch: str  # of XCiTConfig
    values: tuple[Any, ...]  # of the switch
    field: str
    value: Any


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; `lr` alone scales with the batch, other rates hold as they are."""

    name: str
    summary: str
    epochs: int
    batch_size: int  # images per update, over all processes and accumulated steps
    lr: float  # peak learning rate for updates of `lr_batch_size` images; 0 learns no weights
    lr_batch_size: int
    optimizer: str = "adamw"  # any name that timm.optim knows
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
    norm_momentum: float = 0.0  # of the statistics of batch norms; 0 is the model's own
    image_size: int = 224  # 0 is the model's own
    sizes: tuple[int, ...] = ()  # sides of the images in successive equal parts of the epochs
    interpolation: str = "bicubic"  # nothing is the model's own
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of pixels in [0, 1]; () is the model's own
    std: tuple[float, ...] = (0.229, 0.224, 0.225)  # likewise
    pipeline: str = "loader"  # loader: timm's transforms in workers; memory: batched, on pixels
    flip: float = 0.5  # probability of a mirror image
    canvas: int = 0  # memory pipeline: side that random windows are cut from; 0 is `image_size`
    zoom: tuple[float, float] = (1.0, 1.0)  # memory pipeline: window side over `image_size`
    settle: float = 0.0  # last part of the epochs, without `zoom` and `sizes`: as the model is used
    # The loader pipeline: timm's parts.
    crop_scale: tuple[float, float] = (0.08, 1.0)  # area of a random resized crop
    rand_augment: str = ""
    color_jitter: float = 0.0
    random_erasing: float = 0.0  # probability, filled with noise per pixel
    repeated_augmentation: int = 1  # views of an image in an epoch's stream
    mixup: float = 0.0
    cutmix: float = 0.0
    mixup_switch: float = 0.5  # probability of cutmix where both are on
    adjustments: tuple[Adjustment, ...] = ()

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr_batch_size", "accumulate"):
            _require(getattr(self, name) >= 1, self, name, "at least 1")
        _require(self.image_size >= 0, self, "image_size", "at least 0")
        for name in ("mean", "std"):
            _require(len(getattr(self, name)) in (0, 3), self, name, "three numbers, or ()")
        _require(self.lr >= 0, self, "lr", "at least 0")
        _require(self.repeated_augmentation >= 1, self, "repeated_augmentation", "at least 1")
        _require(
            self.canvas == 0 or self.canvas >= self.image_size,
            self,
            "canvas",
            "0 or at least `image_size`",
        )
        _require(0 < self.zoom[0] <= self.zoom[1], self, "zoom", "two factors, the smaller first")
        _require(
            self.zoom == (1.0, 1.0)
            or (self.pipeline == "memory" and self.windows[1] <= (self.canvas or self.image_size)),
            self,
            "zoom",
            "1,1, or for the memory pipeline at most `canvas` / `image_size`",
        )
        _require(
            self.settle == 0 or (self.pipeline == "memory" and 0 < self.settle <= 1),
            self,
            "settle",
            "0, or for the memory pipeline a fraction of the epochs",
        )
        _require(0 <= self.warmup_epochs < self.epochs, self, "warmup_epochs", "from 0 to `epochs`")
        for name in (
            "weight_decay",
            "clip_grad",
            "min_lr",
            "warmup_lr",
            "mixup",
            "cutmix",
        ):
            _require(getattr(self, name) >= 0, self, name, "at least 0")
        for name in ("drop_path", "label_smoothing", "ema_decay", "norm_momentum"):
            _require(0 <= getattr(self, name) < 1, self, name, "from 0 to below 1")
        for name in ("flip", "random_erasing", "mixup_switch"):
            _require(0 <= getattr(self, name) <= 1, self, name, "a probability")
        _require(
            self.interpolation in ("", *INTERPOLATIONS),
            self,
            "interpolation",
            f"one of {', '.join(INTERPOLATIONS)}",
        )
        _require(self.pipeline in PIPELINES, self, "pipeline", f"one of {', '.join(PIPELINES)}")
        _require(all(size >= 1 for size in self.sizes), self, "sizes", "at least 1")
        _require(
            not self.sizes or self.pipeline == "memory", self, "sizes", "empty with the loader"
        )
        _require(
            self.batch_size % self.accumulate == 0, self, "accumulate", "a divisor of `batch_size`"
        )
        if self.mixup or self.cutmix:
            share = self.batch_size // self.accumulate
            _require(share % 2 == 0, self, "batch_size", "even shares: mixup pairs images")

    @property
    def windows(self) -> tuple[int, int]:
        """The smallest and the largest side of the windows that `zoom` allows, in pixels."""
        return round(self.zoom[0] * self.image_size), round(self.zoom[1] * self.image_size)

    def windows_at(self, epoch: int) -> tuple[int, int]:
        """The same in an epoch: windows that are not resized show what the benchmark shows."""
        return (self.image_size, self.image_size) if self._settles(epoch) else self.windows

    def _settles(self, epoch: int) -> bool:
        return epoch >= round((1 - self.settle) * self.epochs)

    def size_at(self, epoch: int) -> int:
        """The side of the images in an epoch: small ones first make early epochs cheap."""
        if not self.sizes or self._settles(epoch):
            return self.image_size
        return self.sizes[min(epoch * len(self.sizes) // self.epochs, len(self.sizes) - 1)]

    @property
    def peak_lr(self) -> float:
        """`lr` at this recipe's batch size (the linear rule)."""
        return self.lr * self.batch_size / self.lr_batch_size

    def for_model(self, model: str) -> Recipe:
        """The recipe with the adjustments for a preset applied; other models have none."""
        config = PRESETS.get(model)
        if config is None:
            return self
        changes = {
            a.field: a.value for a in self.adjustments if getattr(config, a.switch) in a.values
        }
        return replace(self, **changes)

    def for_input(self, model_input: ModelInput) -> Recipe:
        """The recipe with what it leaves to the model filled in."""
        return replace(
            self,
            image_size=self.image_size or model_input.size,
            interpolation=self.interpolation or model_input.interpolation,
            mean=self.mean or model_input.mean,
            std=self.std or model_input.std,
        )

    def settings(self) -> dict[str, Any]:
        """Every field that can change a number, by name, as plain values."""
        return _plain({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """As `settings`, of the fields that have a default: what a recipe that names none has."""
        return _plain({f.name: f.default for f in fields(cls) if f.default is not MISSING})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name not in IDENTITY
    }


def override(recipe: Recipe, assignments: Iterable[str]) -> Recipe:
    """Applies `field=value` texts, such as `epochs=10`, and refuses what does not fit.

    Raises:
        AftModelsError: An unknown field, or a value of another kind than the field's.
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


def _require(good: bool, recipe: Recipe, name: str, expected: str) -> None:
    if not good:
        raise AftModelsError(
            f"recipe {recipe.name}: {name} must be {expected}, got {getattr(recipe, name)!r}"
        )
