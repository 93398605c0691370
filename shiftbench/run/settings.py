"""Everything that can change a number of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from shiftbench.errors import UsageError
from shiftbench.grid import Grid
from shiftbench.measure.attacks import ATTACKS, DEFAULT_RADIUS
from shiftbench.measure.consistency import CONSISTENCIES
from shiftbench.measure.search import Mode

PAPER_ATTACKS = ("integer", "half", "crop", "bilinear")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Settings:
    """What is measured. Two runs with different settings never share work."""

    attacks: tuple[str, ...] = PAPER_ATTACKS
    max_shift: int = DEFAULT_RADIUS  # radius of the grids, in steps
    step: str | None = None  # pixels between offsets, such as "1/4"; None: each attack's own
    mode: str = "exhaustive"  # or "full_grid", or "sampled:K": then scores are upper bounds
    consistency: tuple[str, ...] = ("integer", "half", "crop")
    repeats: int = 1  # random shifts per image
    limit: int | None = None  # size of the class-balanced subset
    search_limit: int | None = None  # size of its part whose grids are searched
    seed: int = 0
    precision: str = "fp32"
    compile: bool = False  # compiled kernels round differently
    crop_pct: str = "paper"  # or "model", or a number: how the view is cut from the image
    pad: str = "none"  # or "reflect", "zeros": where the margin comes from when pixels are short
    skip_bad: bool = False  # leave unreadable images out

    def __post_init__(self) -> None:
        for attack in self.attacks:
            ATTACKS.get(attack)
        for kind in self.consistency:
            CONSISTENCIES.get(kind)
        Mode.parse(self.mode)
        if self.repeats < 1:
            raise UsageError(f"expected 1 or more repeats, got {self.repeats}")
        if self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise UsageError(f"unknown precision {self.precision!r}. Known: {known}")

    def grid(self, attack: str) -> Grid:
        """The offsets an attack searches."""
        return Grid(self.max_shift, self.step_of(attack))

    def step_of(self, attack: str) -> Fraction:
        """Pixels between neighbouring offsets."""
        if self.step is None:
            return ATTACKS.get(attack).step
        try:
            return Fraction(self.step)
        except (ValueError, ZeroDivisionError) as error:
            raise UsageError(
                f"expected a step in pixels such as 1, 0.5 or 1/6, got {self.step!r}"
            ) from error

    @property
    def is_upper_bound(self) -> bool:
        """Whether some offsets go untried, so that adversarial accuracy is an upper bound."""
        mode = Mode.parse(self.mode)
        return not all(mode.is_exact(self.grid(attack)) for attack in self.attacks)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a record."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """Reads settings back from a record, which may carry more than these."""
        known: dict[str, Any] = {k: content[k] for k in cls.__dataclass_fields__ if k in content}
        for key in ("attacks", "consistency"):
            known[key] = tuple(known.get(key, ()))
        return cls(**known)


def attack_names(names: Iterable[str], *, camera: bool) -> tuple[str, ...]:
    """Resolves `all` and `none`, drops repetitions, keeps the registry's order."""
    wanted = set(names)
    if wanted == {"none"}:
        return ()
    if not wanted or "all" in wanted:
        wanted = (wanted - {"all"}) | {
            name for name in ATTACKS if camera or ATTACKS.get(name).shift != "camera"
        }
    for name in wanted:
        ATTACKS.get(name)
    return tuple(name for name in ATTACKS if name in wanted)


def images_digest(keys: Iterable[str], labels: Iterable[int]) -> str:
    """Names the chosen images and their labels, so that another subset or class map is noticed."""
    text = "\n".join(f"{label} {key}" for key, label in zip(keys, labels, strict=True))
    return hashlib.sha256(text.encode()).hexdigest()
