"""How many images to take at a time: enough to fill batches, few enough to lose little."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST = 16  # images, before anything is known about the speed
GROWTH = 4  # at most, from one shard to the next
BATCHES = 4  # batches' worth: the end of a search, with fewer images left, then weighs little
SECONDS = 40.0  # of work between two saves


@dataclass
class ShardSize:
    """The size of the next shard, from the speed of the last ones.

    No result depends on it: what an image visits follows from the image alone.
    """

    batch_size: int
    guess: float = 0.0  # seconds per image of the slowest metric, before any was measured
    _size: int = FIRST
    _slowest: dict[str, float] = field(default_factory=dict)  # metric -> seconds per image

    def note(self, metric: str, images: int, seconds: float) -> None:
        """Learns what a metric took; an estimate that follows changes of speed."""
        speed = seconds / images
        before = self._slowest.get(metric, speed)
        self._slowest[metric] = 0.5 * before + 0.5 * speed

    def next(self) -> int:
        """Images for the next shard."""
        most = BATCHES * self.batch_size
        slowest = max(self._slowest.values(), default=self.guess)
        growth = GROWTH if self._slowest else 1
        in_time = int(SECONDS / max(slowest, 1e-9))
        self._size = max(1, min(in_time, most, growth * self._size))
        return self._size
