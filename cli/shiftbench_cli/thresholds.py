"""`--fail-under KEY=FRACTION`: scores that guard a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from shiftbench.errors import UsageError
from shiftbench.records.record import Record
from shiftbench.registry import unknown_name
from shiftbench.run.settings import Settings


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
        """Refuses a name that the run will not have, before it begins."""
        known = ["accuracy", *(f"consistency_{kind}" for kind in settings.consistency)]
        for attack in settings.attacks:
            known += [f"adversarial_{attack}"]
            known += [f"adversarial_{attack}@{s}" for s in range(settings.max_shift + 1)]
        if self.name not in known:
            raise unknown_name("score of this run", self.name, known)

    def complaint(self, record: Record) -> str | None:
        """What is wrong with a record, if it is."""
        scores = record.scores.named()
        if self.name not in scores:
            raise unknown_name(f"score of {record.model.name}", self.name, scores)
        value = scores[self.name].value
        if value >= self.least:
            return None
        return f"{record.model.name}: {self.name} is {value:.4f}, below {self.least:g}"
