"""Limits on scores, and tests against a baseline, for continuous integration."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shiftbench.errors import UsageError
from shiftbench.metrics.base import Request, score_names
from shiftbench.records.compare import compare
from shiftbench.records.result import Result
from shiftbench.registry import unknown_name
from shiftbench.report.scores import Cell
from shiftbench.scores import ScoreName
from shiftbench.statistics import SIGNIFICANCE, holm

if TYPE_CHECKING:
    from shiftbench.geometry import Geometry
    from shiftbench.tasks import Task

log = logging.getLogger(__name__)

ENDS = ("low", "high")  # of an interval


class Planned(Protocol):
    """Settings of a run, `shiftbench.Settings`."""

    def requests(self, geometry: Geometry, images: int, task: Task) -> Sequence[Request]:
        """Plan the metrics of the run."""
        ...


def planned_scores(runs: Iterable[Planned]) -> dict[ScoreName, bool]:
    """List the scores of runs before a model is loaded.

    The task follows from the model: scores of every task are listed.

    Returns:
        Each score, with True if lower values are better.
    """
    from shiftbench.geometry import Geometry  # imports torch
    from shiftbench.tasks import TASKS

    # Names of scores do not depend on the size of the images.
    geometry = Geometry(view=224, resize=448, margin=0, interpolation="none")
    found: dict[ScoreName, bool] = {}
    for settings in runs:
        for task in map(TASKS.get, ("classification", *TASKS)):
            with suppress(UsageError):  # an attack or metric that the task does not have
                for metric, _ in settings.requests(geometry, 1, task):
                    found |= {n: metric.lower_is_better(n) for n in score_names(metric)}
    return found


@dataclass(frozen=True)
class Limit:
    """The worst allowed value of a score, or of one end of its interval."""

    name: ScoreName  # without a radius: the largest of the record
    end: str  # value, low or high
    bound: float  # fraction
    above: bool  # fail above the bound instead of below

    @classmethod
    def parse(cls, text: str, *, above: bool, scores: Mapping[ScoreName, bool]) -> Limit:
        """Read `adversarial_crop@3=0.7` or `top1_low=0.7`.

        Args:
            text: Score and bound.
            above: Fail above the bound instead of below.
            scores: Scores of the run, see `planned_scores`.

        Raises:
            UsageError: The text cannot be read, there is no such score, or the limit does not fail
                for bad values.
        """
        option = "--fail-above" if above else "--fail-below"
        word, _, number = (part.strip() for part in text.partition("="))
        known = {str(name): name for name in scores}
        # A name without a radius is the widest grid of these scores: a record may go further.
        known |= {w: name for name in _widest(scores) for w in (name.stem, name.column)}
        stem, _, end = word.rpartition("_")
        if word in known or end not in ENDS:
            stem, end = word, "value"
        if stem not in known:
            raise unknown_name("score of this run", stem, known)
        if scores[known[stem]] != above:
            better, other = ("lower", "--fail-above") if not above else ("higher", "--fail-below")
            raise UsageError(f"{better} values of {stem} are better. Use {other} {text}")
        try:
            bound = float(number)
        except ValueError:
            raise UsageError(
                f"expected {option} SCORE=FRACTION such as top1=0.7, got {text!r}"
            ) from None
        if not 0 <= bound <= 1:
            raise UsageError(f"expected {option} {word}=FRACTION from 0 to 1, got {number}")
        return cls(known[stem], end, bound, above)

    def problem(self, result: Result) -> str | None:
        """Describe how a result misses the limit; None if it does not."""
        score = result.scores.get(self.name)
        if score is None:
            return f"{result.model.name} has no {self.name}"
        value: float = getattr(score, self.end)
        if value <= self.bound if self.above else value >= self.bound:
            return None
        which = str(self.name) if self.end == "value" else f"{self.name} ({self.end} end)"
        side = "above" if self.above else "below"
        return f"{result.model.name}: {which} is {value:.4f}, {side} {self.bound:g}"


def _widest(scores: Collection[ScoreName]) -> list[ScoreName]:
    widest: dict[ScoreName, ScoreName] = {}
    for name in scores:
        known = widest.get(name.curve, name)
        widest[name.curve] = max(known, name, key=lambda one: one.radius or 0)
    return list(widest.values())


def missed(cells: Sequence[Cell], limits: Sequence[Limit]) -> list[str]:
    """Describe every limit that a result misses."""
    results = dict.fromkeys(cell.result for cell in cells)
    return [text for limit in limits for r in results if (text := limit.problem(r)) is not None]


def worse(baseline: Result, results: Sequence[Result]) -> list[str]:
    """Describe the scores in which results are significantly worse than a baseline.

    The p-values of a result are adjusted for the number of its scores (Holm): without that, one of
    five equally good models would fail.

    Raises:
        UsageError: A result was measured under other conditions.
    """
    problems = []
    for result in results:
        differences, left_out = compare(baseline, [result])
        for reason in left_out:
            log.warning("not compared with the baseline: %s", reason)
        adjusted = holm([difference.test.p_value for difference in differences])
        for one, p_value in zip(differences, adjusted, strict=True):
            if one.gain < 0 and p_value < SIGNIFICANCE:
                problems.append(
                    f"{result.model.name}: {one.name} is {one.value.value:.4f}, significantly "
                    f"worse than {one.baseline.value:.4f} of {baseline.folder or 'the baseline'} "
                    f"(adjusted p = {p_value:.2g})"
                )
    return problems
