"""How far a run is, for one process or added up over all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shiftbench.run.distributed import Group
from shiftbench.statistics import Score

INTERVAL = 1.0  # seconds between two messages of a process
SHARED = ("measured", "under_way", "passes")  # what processes add up, besides what is left


@dataclass(frozen=True)
class Estimate:
    """What the work may take, before it begins."""

    passes: int  # at most: an image that breaks early needs fewer
    seconds: float  # at the speed of a small batch, for this process


@dataclass(frozen=True)
class Progress:
    """How far a metric is."""

    metric: str
    done: int  # images, with those of earlier runs
    total: int
    measured: int = 0  # images of this run
    under_way: float = 0.0  # images' worth of the batch that is being measured
    passes: int = 0  # images through the model in this run
    seconds: float = 0.0  # of this run
    score: Score | None = None  # so far: the last of the metric's first score


ProgressCallback = Callable[[Estimate | Progress], None]


@dataclass
class GroupProgress:
    """A progress callback whose main process reports the work of all of them."""

    group: Group
    callback: ProgressCallback | None
    _mine: dict[str, dict[str, float]] = field(default_factory=dict)  # metric -> its counts
    _others: list[dict[str, dict[str, float]]] = field(default_factory=list)
    _exchanged: float = float("-inf")

    def __call__(self, event: Estimate | Progress) -> None:
        """Adds the work of the other processes to an event, and passes it on."""
        if isinstance(event, Estimate):
            # The processes have equal shares, so that all need about as long as this one.
            event = replace(event, passes=event.passes * self.group.count)
        elif self.group.is_main:
            event = self._with_others(event)
        else:
            self._send(event)
        if self.callback is not None:
            self.callback(event)

    def _send(self, progress: Progress) -> None:
        left = progress.total - progress.done
        counts = {name: getattr(progress, name) for name in SHARED}
        self._mine[progress.metric] = {**counts, "left": left}
        if time.monotonic() - self._exchanged > INTERVAL or not left:
            self._exchanged = time.monotonic()
            self.group.check_alive()
            self.group.publish("progress", json.dumps(self._mine))

    def _with_others(self, progress: Progress) -> Progress:
        if time.monotonic() - self._exchanged > INTERVAL:
            self._exchanged = time.monotonic()
            self.group.check_alive()
            self._others = [json.loads(text) for text in self.group.published("progress")]
        for counts in (
            other[progress.metric] for other in self._others if progress.metric in other
        ):
            progress = replace(
                progress,
                done=progress.done + int(counts["measured"]),
                total=progress.total + int(counts["measured"] + counts["left"]),
                **{name: getattr(progress, name) + counts[name] for name in SHARED},
            )
        return progress
