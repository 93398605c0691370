"""Everything that can change a number of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shiftbench.errors import UsageError
from shiftbench.metrics import METRICS
from shiftbench.metrics.base import Request
from shiftbench.metrics.random_views import CONSISTENCIES
from shiftbench.metrics.search import Mode
from shiftbench.registry import unknown_name
from shiftbench.run.forward import AUTOCAST, ENGINES, PRECISIONS
from shiftbench.shifts import SHIFTS
from shiftbench.shifts.attacks import ATTACKS, DEFAULT_RADIUS, PAPER_ATTACKS


@dataclass(frozen=True)
class Settings:
    """What is to be measured, and how.

    >>> Settings(attacks=("crop",), consistency=()).metric_texts()
    ['accuracy', 'adversarial:crop']
    """

    attacks: tuple[str, ...] = PAPER_ATTACKS
    max_shift: int = DEFAULT_RADIUS  # radius of the grids, in steps
    step: str | None = None  # pixels between offsets, such as "1/4"; None: each attack's own
    mode: str = "exhaustive"  # or "full_grid", or "sampled:K": then scores are upper bounds
    consistency: tuple[str, ...] = ("integer", "half", "crop")
    repeats: int = 1  # random shifts per image
    metrics: tuple[str, ...] = ()  # further ones, such as "flip" or "agreement:5"
    limit: int | None = None  # size of the class-balanced subset
    search_limit: int | None = None  # size of its part whose grids are searched
    seed: int = 0
    precision: str = "fp32"
    engine: str = "torch"  # what runs the forward pass; each rounds in its own way
    crop_pct: str = "paper"  # or "model", or a number: how the view is cut from the image
    pad: str = "none"  # or "reflect", "zeros": where the margin comes from when pixels are short
    skip_bad: bool = False  # leave unreadable images out

    def __post_init__(self) -> None:
        for attack in self.attacks:
            ATTACKS.get(attack)
        for kind in self.consistency:
            CONSISTENCIES.get(kind)
        for text in self.metrics:
            METRICS.get(text.partition(":")[0])
        Mode.parse(self.mode)
        for name in ("repeats", "limit", "search_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be 1 or more, got {value}")
        for what, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("engine", self.engine, ENGINES),
        ):
            if value not in known:
                raise unknown_name(what, value, known)
        if self.engine == "onnx" and self.precision in AUTOCAST:
            raise UsageError(
                f"engine onnx computes in float32, and precision {self.precision} was asked for: "
                "leave the precision out, or use engine torch"
            )

    def metric_texts(self) -> list[str]:
        """Every metric asked for, as `--metric` spells them; accuracy comes first."""
        asked = [f"consistency:{kind}" for kind in self.consistency]
        asked += [f"adversarial:{attack}" for attack in self.attacks]
        return list(dict.fromkeys(["accuracy", *asked, *self.metrics]))

    def request(self, *, view: int, resize: int) -> Request:
        """What metrics are planned for, given the geometry of the images."""
        return Request(
            view=view,
            resize=resize,
            max_shift=self.max_shift,
            step=self.step,
            mode=self.mode,
            repeats=self.repeats,
            seed=self.seed,
        )


def attack_names(names: Iterable[str], *, camera: bool) -> tuple[str, ...]:
    """Resolves `all` and `none`, drops repetitions, keeps the registry's order.

    Args:
        names: As the user wrote them; none at all means all.
        camera: Whether the data set can be rendered again, which some attacks need.
    """
    wanted = set(names)
    if wanted == {"none"}:
        return ()
    if not wanted or "all" in wanted:
        usual = {name for name in ATTACKS if not ATTACKS.get(name).opt_in}
        fitting = {a for a in usual if camera or not SHIFTS.get(ATTACKS.get(a).shift).rendered}
        wanted = (wanted - {"all"}) | fitting
    for name in wanted:
        ATTACKS.get(name)
    return tuple(name for name in ATTACKS if name in wanted)
