"""`--fail-under KEY=FRACTION`: scores that guard a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from shiftbench.errors import UsageError
from shiftbench.measure.metrics import plan_metric
from shiftbench.records.record import Record
from shiftbench.registry import unknown_name
from shiftbench.run.settings import Settings

LARGE = 224  # pixels: names of scores do not depend on the size of the view


@dataclass(frozen=True)
class Threshold:
    """A score that must not be lower."""

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

    def check(self, settings: Settings) -> None:
        """Refuses a score that the run will not have, or that can only be too high.

        Scores of further metrics are known only when they are measured.
        """
        request = settings.request(view=LARGE, resize=2 * LARGE)
        metrics = [plan_metric(text, request) for text in settings.metric_texts()]
        known = {
            name: bool(metric.settings().get("upper_bound"))
            for metric in metrics
            for name in metric.score_names()
        }
        texts = {str(name): bound for name, bound in known.items()}
        texts |= {name.stem: bound for name, bound in known.items()}
        if self.name not in texts:
            raise unknown_name("score of this run", self.name, texts)
        if texts[self.name]:
            raise UsageError(
                f"{self.name} of a sampled search is an upper bound and cannot guard: leave "
                "--mode out, or guard another score"
            )

    def complaint(self, record: Record) -> str | None:
        """What is wrong with a record, if it is."""
        score = record.scores.find(self.name)
        stem = self.name.partition("@")[0]
        if any(record.is_upper_bound(n) for n in record.scores.curves() if n.stem == stem):
            return f"{record.model.name}: {self.name} is an upper bound and cannot guard"
        if score.value >= self.least:
            return None
        return f"{record.model.name}: {self.name} is {score.value:.4f}, below {self.least:g}"
