"""How far all processes of a run are, told by the first of them.

Every process leaves a small file beside the parts now and then; the main one adds them up.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shiftbench.files import write_atomic
from shiftbench.run.processes import Group
from shiftbench.run.worker import Estimate, Progress, ProgressCallback

INTERVAL = 1.0  # seconds between two files of a process
FIELDS = ("measured", "under_way", "passes", "left")


@dataclass
class SharedProgress:
    """A watcher that speaks for every process."""

    folder: Path  # where all processes can write
    group: Group
    watch: ProgressCallback | None
    _mine: dict[str, dict[str, Any]] = field(default_factory=dict)  # metric -> its counts
    _written: float = 0.0

    def __call__(self, event: Estimate | Progress) -> None:
        """Adds what the others have done to an event, and passes it on."""
        if isinstance(event, Estimate):
            # The processes have equal shares, so that all need about as long as this one.
            event = replace(event, passes=event.passes * self.group.count)
        elif self.group.is_main:
            event = self._with_others(event)
        else:
            self._tell_main(event)
        if self.watch is not None:
            self.watch(event)

    @staticmethod
    def forget(folder: Path) -> None:
        """Removes what the processes of a run that was killed have left."""
        for file in folder.glob(".progress-*.json"):
            file.unlink(missing_ok=True)

    def _place(self, rank: int) -> Path:
        return self.folder / f".progress-{rank}.json"

    def _tell_main(self, tally: Progress) -> None:
        left = tally.total - tally.done
        self._mine[tally.metric] = {
            k: v for k, v in {**asdict(tally), "left": left}.items() if k in FIELDS
        }
        now = time.monotonic()
        if now - self._written > INTERVAL or not left:
            self._written = now
            with suppress(PermissionError):  # Windows, while the main process reads: next time
                write_atomic(self._place(self.group.rank), json.dumps(self._mine).encode())

    def _with_others(self, tally: Progress) -> Progress:
        for rank in range(1, self.group.count):
            try:
                counts = json.loads(self._place(rank).read_text("utf-8"))[tally.metric]
            except (OSError, ValueError, KeyError):
                continue  # it has not come so far
            tally = replace(
                tally,
                done=tally.done + counts["measured"],
                total=tally.total + counts["measured"] + counts["left"],
                measured=tally.measured + counts["measured"],
                under_way=tally.under_way + counts["under_way"],
                passes=tally.passes + counts["passes"],
            )
        return tally
