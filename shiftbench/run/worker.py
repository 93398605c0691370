"""A process's share of a run: loads shards ahead, measures every task, saves rows as it goes."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pandas as pd

from shiftbench.datasets.canvases import Batch
from shiftbench.measure.metrics import UNSHIFTED, AttackTask, Shard, Task
from shiftbench.run.engine import Engine, is_out_of_memory
from shiftbench.run.plan import Plan
from shiftbench.run.resume import IMAGE, Parts
from shiftbench.run.scores import SECONDS
from shiftbench.run.shard_size import Pace
from shiftbench.statistics import Score, wilson

log = logging.getLogger(__name__)

# Rows wait this long, or for the end of one task on one shard, to be saved: often at first, when a
# mistake is noticed, then rarely, so that a run of hours does not leave a hundred thousand files.
FIRST_SAVE, LAST_SAVE = 2.0, 30.0  # seconds; doubles from one to the other


@dataclass(frozen=True)
class Tally:
    """How far a task is, for whoever watches."""

    task: str
    done: int  # images, with those of earlier runs
    total: int
    measured: int = 0  # images of this run
    passes: int = 0  # images through the model in this run
    seconds: float = 0.0  # of this run
    successes: int = 0
    trials: int = 0

    @property
    def score(self) -> Score | None:
        """The task's score so far."""
        return wilson(self.successes, self.trials) if self.trials else None


Watcher = Callable[[Tally], None]


@dataclass
class Worker:
    """Measures what is missing for some images of a plan."""

    plan: Plan
    engine: Engine
    parts: Parts
    watch: Watcher | None = None
    _missing: dict[str, set[int]] = field(default_factory=dict)  # task -> images it lacks
    _tallies: dict[str, Tally] = field(default_factory=dict)
    _waiting: dict[str, list[pd.DataFrame]] = field(default_factory=dict)  # rows not saved yet
    _saved_at: float = field(default_factory=time.monotonic)
    _interval: float = FIRST_SAVE
    _current: str = UNSHIFTED  # the task the engine's passes belong to

    def run(self, images: Sequence[int], finished: Mapping[str, pd.DataFrame]) -> None:
        """Measures the images, except what `finished` has already."""
        for task in self.plan.tasks:
            rows = finished.get(task.name)
            done = set() if rows is None else set(rows[IMAGE])
            self._missing[task.name] = set(images) & set(self.plan.images_of(task)) - done
            tally = Tally(task.name, len(done), len(done) + len(self._missing[task.name]))
            self._tallies[task.name] = tally if rows is None else _count(tally, task.score(rows))
        # Images with as many tasks before them stay together: a search needs many to fill a batch.
        tasks = Counter(image for missing in self._missing.values() for image in missing)
        todo = sorted(tasks, key=lambda image: (-tasks[image], image))
        for name in self._tallies:
            self._tell(name)
        if not todo:
            return
        most = max((len(t.grid) for t in self.plan.tasks if isinstance(t, AttackTask)), default=1)
        pace = Pace(self.engine.batch_size, guess=most * self.engine.seconds_per_image())
        self.engine.on_passes = self._passed
        try:
            for batch, waited in self._load_ahead(todo, pace):
                self._measure(batch, waited, pace)
        finally:
            self.engine.on_passes = None
            self._save()

    def _load_ahead(self, todo: Sequence[int], pace: Pace) -> Iterator[tuple[Batch, float]]:
        """Yields batches and the seconds spent waiting for them; the next one loads meanwhile."""
        stream = self.plan.stream(todo)
        with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
            pending = pool.submit(stream.take, pace.next_size())
            while True:
                began = time.monotonic()
                batch = pending.result()
                waited = time.monotonic() - began
                if batch is None:
                    return
                pending = pool.submit(stream.take, pace.next_size())
                self._warn(batch)
                if len(batch):
                    yield batch, waited

    def _warn(self, batch: Batch) -> None:
        for key in batch.bad:
            log.warning("left out %s: it cannot be read", key)

    def _measure(self, batch: Batch, waited: float, pace: Pace) -> None:
        try:
            self._measure_tasks(batch, waited, pace)
        except Exception as error:
            if not is_out_of_memory(error) or len(batch.indices) == 1:
                raise
            # What the tasks finished is kept: only the rest is measured again, on fewer images.
            self.engine.shrink(max(1, self.engine.batch_size // 2))
            half = len(batch.indices) // 2
            self._measure(_rows(batch, slice(half)), 0.0, pace)
            self._measure(_rows(batch, slice(half, None)), 0.0, pace)

    def _measure_tasks(self, batch: Batch, waited: float, pace: Pace) -> None:
        pace.batch_size = self.engine.batch_size
        began = time.monotonic() - waited
        self._current = UNSHIFTED
        shard = self.plan.shard(self.engine, batch)
        for task in self.plan.tasks:
            self._current = task.name
            rows = [i for i, image in enumerate(shard.images) if image in self._missing[task.name]]
            if rows:
                part = shard if len(rows) == len(shard.images) else shard.take(rows)
                found = task.measure(self.engine, part)
                seconds = time.monotonic() - began
                self._keep(task, part, found, seconds)
                pace.note(task.name, len(rows), seconds)
            began = time.monotonic()

    def _keep(self, task: Task, shard: Shard, rows: pd.DataFrame, seconds: float) -> None:
        rows = rows.copy()
        rows[IMAGE] = shard.images
        rows[SECONDS] = seconds / len(rows)
        self._waiting.setdefault(task.name, []).append(rows)
        self._missing[task.name] -= set(shard.images.tolist())
        tally = _count(self._tallies[task.name], task.score(rows))
        self._tallies[task.name] = replace(
            tally,
            done=tally.done + len(rows),
            measured=tally.measured + len(rows),
            seconds=tally.seconds + seconds,
        )
        self._tell(task.name)
        if time.monotonic() - self._saved_at > self._interval:
            self._save()
            self._interval = min(2 * self._interval, LAST_SAVE)

    def _save(self) -> None:
        writer = f"{socket.gethostname()}-{os.getpid()}"
        for task, frames in self._waiting.items():
            self.parts.save(task, pd.concat(frames, ignore_index=True), writer=writer)
        self._waiting.clear()
        self._saved_at = time.monotonic()

    def _passed(self, images: int) -> None:
        tally = self._tallies[self._current]
        self._tallies[self._current] = replace(tally, passes=tally.passes + images)
        self._tell(self._current)

    def _tell(self, task: str) -> None:
        if self.watch is not None:
            self.watch(self._tallies[task])


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.canvas[rows], batch.labels[rows], batch.keys[rows], batch.indices[rows])


def _count(tally: Tally, score: Score) -> Tally:
    successes = tally.successes + round(score.value * score.n)
    return replace(tally, successes=successes, trials=tally.trials + score.n)
