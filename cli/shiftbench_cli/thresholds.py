"""`--fail-under KEY=FRACTION`: scores that guard a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from shiftbench.errors import UsageError
from shiftbench.metrics import Metric, plan_metric
from shiftbench.records.record import Record
from shiftbench.registry import unknown_name
from shiftbench.run.settings import Settings
from shiftbench.scores import ScoreName

LARGE = 224  # pixels: names of scores do not depend on the size of the view


@dataclass(frozen=True)
class Guard:
    """A score of a run that must not be lower."""

    name: ScoreName
    least: float

    def complaint(self, record: Record) -> str | None:
        """What is wrong with a record, if it is."""
        score = record.scores.get(self.name)
        if score is None:
            return f"{record.model.name} has no {self.name}"
        if record.is_upper_bound(self.name):
            return f"{record.model.name}: {self.name} is an upper bound and cannot guard"
        if score.value >= self.least:
            return None
        return f"{record.model.name}: {self.name} is {score.value:.4f}, below {self.least:g}"


@dataclass(frozen=True)
class Threshold:
    """What the user wrote: the name of a score, and how low it may be."""

    name: str
    least: float

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Reads `adversarial_crop=0.70`."""
        name, _, number = text.partition("=")
        try:
            least = float(number)
        except ValueError:
            least = -1.0
        if not 0 <= least <= 1:
            raise UsageError(
                f"expected --fail-under KEY=FRACTION such as adversarial_crop=0.70, got {text!r}"
            )
        return cls(name.strip(), least)

    def guard(self, settings: Settings) -> Guard:
        """The score of a run that is meant; a curve's own name is the widest grid of this run.

        A record may reach further than the run asks for, and the guard must not depend on that.

        Raises:
            UsageError: The run will not have the score, or can only find it too high.
        """
        request = settings.request(view=LARGE, resize=2 * LARGE)
        known: dict[str, tuple[ScoreName, Metric]] = {}
        for text in settings.metric_texts():
            metric = plan_metric(text, request)
            for name in metric.score_names():  # radii ascend: the last one has the curve's name
                known |= {str(name): (name, metric), name.stem: (name, metric)}
        if self.name not in known:
            raise unknown_name("score of this run", self.name, known)
        name, metric = known[self.name]
        if metric.settings().get("upper_bound"):
            raise UsageError(
                f"{self.name} of a sampled search is an upper bound and cannot guard: leave "
                "--mode out, or guard another score"
            )
        return Guard(name, self.least)
