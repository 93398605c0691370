"""Scores that guard a pipeline: `--fail-under`, `--fail-over`, `--fail-worse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shiftbench.errors import UsageError
from shiftbench.metrics import Metric, plan_metric
from shiftbench.records.record import Record
from shiftbench.registry import unknown_name
from shiftbench.report.compare import compare
from shiftbench.running.job import Settings
from shiftbench.scores import ScoreName
from shiftbench.statistics import FRACTION, SIGNIFICANCE

EXIT_CODE = 3  # of a run whose scores fail a gate: no error, and not done either
BOUNDS = ("low", "high")
VIEW = 224  # pixels: names of scores do not depend on the size of the view


@dataclass(frozen=True)
class Gate:
    """A score of a run, or an end of its interval, and how bad it may be."""

    text: str  # what the user called it
    name: ScoreName
    field: str  # value, low or high
    limit: float
    over: bool  # fails above the limit instead of below: a lower score is better

    def complaint(self, record: Record) -> str | None:
        """Why a record fails, if it does."""
        score = record.scores.get(self.name)
        if score is None:
            return f"{record.model.name} has no {self.name}"
        if record.is_upper_bound(self.name):
            return f"{record.model.name}: {self.name} is an upper bound, which no gate can judge"
        value: float = getattr(score, self.field)
        if value <= self.limit if self.over else value >= self.limit:
            return None
        which = str(self.name) if self.field == "value" else f"{self.name} ({self.field} end)"
        side = "above" if self.over else "below"
        return f"{record.model.name}: {which} is {value:.4f}, {side} {self.limit:g}"


def parse_gates(under: Sequence[str], over: Sequence[str], runs: Sequence[Settings]) -> list[Gate]:
    """Reads the gates of one or more runs.

    A curve's own name is the widest grid of this run: a record may reach further than the run asks
    for, and the gate must not depend on that.

    Raises:
        UsageError: A gate cannot be read, looks in the wrong direction, or is of a score that the
            run will not have or can only find too high.
    """
    known: dict[str, tuple[ScoreName, Metric]] = {}
    for settings in runs:
        for text in settings.metric_texts():
            metric = plan_metric(text, settings, view=VIEW, resize=2 * VIEW)
            for name in metric.score_names():  # radii ascend: the last one has the curve's name
                known |= dict.fromkeys((str(name), name.stem, name.column), (name, metric))
    return [
        *(_parse(text, known, over=False) for text in under),
        *(_parse(text, known, over=True) for text in over),
    ]


def _parse(text: str, known: dict[str, tuple[ScoreName, Metric]], *, over: bool) -> Gate:
    option = "--fail-over" if over else "--fail-under"
    key, _, number = (part.strip() for part in text.partition("="))
    try:
        limit = float(number)
    except ValueError:
        raise UsageError(f"expected {option} SCORE=NUMBER such as top1=0.7, got {text!r}") from None
    stem, _, end = key.rpartition("_")
    score, field = (stem, end) if key not in known and end in BOUNDS else (key, "value")
    if score not in known:
        raise unknown_name("score of this run", score, known)
    name, metric = known[score]
    if metric.lower_is_better(name) != over:
        better, other = ("higher", "--fail-under") if over else ("lower", "--fail-over")
        raise UsageError(f"a {better} {score} is better: use {other} {text} instead of {option}")
    if metric.unit(name) == FRACTION and not 0 <= limit <= 1:
        raise UsageError(f"expected {option} {key}=FRACTION from 0 to 1, got {number}")
    if metric.is_upper_bound:
        raise UsageError(
            f"{score} of a sampled search is an upper bound, which no gate can judge: leave --mode "
            "out, or name another score"
        )
    return Gate(key, name, field, limit, over)


def worse_than(baseline: Record, record: Record, *, max_shift: int | None = None) -> list[str]:
    """In which scores a record is significantly worse than another, a sentence each.

    Raises:
        UsageError: The two were not measured alike.
    """
    complaints = []
    for score in compare(baseline, record, max_shift=max_shift).scores:
        info = record.metric_of(score.name)
        metric = None if info is None else info.load()
        if metric is None or score.bound or score.paired.p_value >= SIGNIFICANCE:
            continue
        if (score.paired.difference > 0) == metric.lower_is_better(score.name):
            complaints.append(
                f"{record.model.name}: {score.name} is {score.second.value:.4f}, significantly "
                f"worse than {score.first.value:.4f} of {baseline.folder} "
                f"(p = {score.paired.p_value:.2g})"
            )
    return complaints
