"""A process's share of a run: loads shards ahead, measures every metric, saves rows as it goes."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pandas as pd
from torch import Tensor

from shiftbench.data import CanvasBatch, RenderedSet
from shiftbench.grid import Offset
from shiftbench.metrics import score_rows
from shiftbench.metrics.base import Metric, Shard
from shiftbench.records.record import KEY
from shiftbench.run.engine import Engine, is_out_of_memory
from shiftbench.run.plan import Plan
from shiftbench.run.resume import SECONDS, Parts, Rows, missing_keys
from shiftbench.run.shard_size import ShardSize
from shiftbench.shifts.base import Views
from shiftbench.statistics import Score

log = logging.getLogger(__name__)

# Rows wait this long, or for the end of one metric on one shard, to be saved: often at first, when
# a mistake is noticed, then rarely, so that a run of hours leaves no hundred thousand files.
FIRST_SAVE, LAST_SAVE = 2.0, 30.0  # seconds; doubles from one to the other


@dataclass(frozen=True)
class Estimate:
    """What the work may take, before it begins."""

    passes: int  # at most: an image that breaks early needs fewer
    seconds: float  # at the speed of a small batch, for this process


@dataclass(frozen=True)
class Progress:
    """How far a metric is, for whoever watches."""

    metric: str
    done: int  # images, with those of earlier runs
    total: int
    measured: int = 0  # images of this run
    under_way: float = 0.0  # images' worth of the shard that is being measured
    passes: int = 0  # images through the model in this run
    seconds: float = 0.0  # of this run
    score: Score | None = None  # so far: the last of the metric's first score


ProgressCallback = Callable[[Estimate | Progress], None]


@dataclass
class Worker:
    """Measures what is missing for some images of a plan."""

    plan: Plan
    engine: Engine
    parts: Parts
    rows: Rows  # what is there already, by metric
    watch: ProgressCallback | None = None
    _missing: dict[str, set[str]] = field(default_factory=dict)  # metric -> images it lacks
    _tallies: dict[str, Progress] = field(default_factory=dict)
    _new: dict[str, list[pd.DataFrame]] = field(default_factory=dict)  # rows of this run
    _unsaved: dict[str, int] = field(default_factory=dict)  # how many of them are not saved yet
    _saved_at: float = field(default_factory=time.monotonic)
    _interval: float = FIRST_SAVE
    _current: str = ""  # the metric that the engine's passes belong to
    _share: float = 0.0  # of an image, that one pass of the current metric is worth at least

    def run(self, keys: Sequence[str]) -> None:
        """Measures the images that are this process's own, except what is there already."""
        mine = set(keys)
        for metric in self.plan.metrics:
            wanted = self.plan.keys_of(metric)
            missing = missing_keys(metric, self.rows[metric.name], wanted)
            self._missing[metric.name] = mine & set(missing)
            done = len(wanted) - len(missing)
            total = done + len(self._missing[metric.name])
            self._tallies[metric.name] = replace(
                Progress(metric.name, done, total), score=self._score(metric)
            )
            self._emit(metric.name)
        # Images with as many metrics before them stay together: a search needs many for a batch.
        work = Counter(key for missing in self._missing.values() for key in missing)
        todo = sorted(work, key=lambda key: (-work[key], self.plan.number[key]))
        if not todo:
            return
        seconds = self.engine.seconds_per_image()
        bounds = [m.passes(self._before(m, self._missing[m.name])) for m in self.plan.metrics]
        passes = len(todo) + sum(bounds)
        if self.watch is not None:
            self.watch(Estimate(passes, passes * seconds))
        size = ShardSize(self.engine.batch_size, guess=max(bounds) / len(todo) * seconds)
        self.engine.on_passes = self._passed
        try:
            for batch, waited in self._load_ahead([self.plan.number[key] for key in todo], size):
                self._measure(batch, waited, size)
        finally:
            self.engine.on_passes = None
            self._save()

    def _before(self, metric: Metric, keys: Sequence[str] | set[str]) -> pd.DataFrame:
        """The rows that are there for some images, empty cells for the others."""
        return self.rows[metric.name].reindex(pd.Index(list(keys), name=KEY))

    def _load_ahead(
        self, todo: Sequence[int], size: ShardSize
    ) -> Iterator[tuple[CanvasBatch, float]]:
        """Yields batches and the seconds spent waiting for them; the next one loads meanwhile."""
        stream = self.plan.stream(todo)
        with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
            pending = pool.submit(stream.take, size.next())
            while True:
                began = time.monotonic()
                batch = pending.result()
                waited = time.monotonic() - began
                if batch is None:
                    return
                pending = pool.submit(stream.take, size.next())
                for key in batch.bad:
                    log.warning("left out %s: it cannot be read", key)
                if len(batch):
                    yield batch, waited

    def _measure(self, batch: CanvasBatch, waited: float, size: ShardSize) -> None:
        try:
            self._measure_metrics(batch, waited, size)
        except Exception as error:
            if not is_out_of_memory(error) or len(batch) == 1:
                raise
            # What the metrics finished is kept: only the rest is measured again, on fewer images.
            self.engine.shrink(max(1, self.engine.batch_size // 2))
            half = len(batch) // 2
            self._measure(batch.take(slice(half)), 0.0, size)
            self._measure(batch.take(slice(half, None)), 0.0, size)

    def _measure_metrics(self, batch: CanvasBatch, waited: float, size: ShardSize) -> None:
        size.batch_size = self.engine.batch_size
        began = time.monotonic() - waited
        self._current, self._share = self.plan.metrics[0].name, 0.0
        shard = self._shard(batch)
        for metric in self.plan.metrics:
            rows = [i for i, key in enumerate(shard.keys) if key in self._missing[metric.name]]
            if rows:
                part = shard.take(rows)
                before = self._before(metric, part.keys)
                self._current = metric.name
                self._share = len(rows) / max(1, metric.passes(before))
                found = metric.measure(part, before)
                seconds = time.monotonic() - began
                self._keep(metric, part, found, seconds)
                size.note(metric.name, len(rows), seconds)
            began = time.monotonic()

    def _shard(self, batch: CanvasBatch) -> Shard:
        """Puts a batch on the engine's device and asks about the unshifted images."""
        dataset, view = self.plan.dataset, self.plan.geometry.view
        scene = None
        if isinstance(dataset, RenderedSet):

            def scene() -> Views:
                assert isinstance(dataset, RenderedSet)
                return _Prepared(dataset.views(batch.indices, view), self.engine)

        return Shard.predict(
            self.engine,
            self.engine.prepare(batch.canvas),
            self.plan.geometry.margin,
            batch.keys,
            batch.labels.numpy(),
            batch_size=self.engine.batch_size,
            scene=scene,
        )

    def _keep(self, metric: Metric, shard: Shard, rows: pd.DataFrame, seconds: float) -> None:
        rows = rows.set_index(pd.Index(shard.keys, name=KEY))
        rows[SECONDS] = seconds / len(rows)
        self._new.setdefault(metric.name, []).append(rows)
        self._unsaved[metric.name] = self._unsaved.get(metric.name, 0) + 1
        self._missing[metric.name] -= set(shard.keys)
        tally = self._tallies[metric.name]
        self._tallies[metric.name] = replace(
            tally,
            done=tally.done + len(rows),
            measured=tally.measured + len(rows),
            under_way=0.0,
            seconds=tally.seconds + seconds,
            score=self._score(metric),
        )
        self._emit(metric.name)
        if time.monotonic() - self._saved_at > self._interval:
            self._save()
            self._interval = min(2 * self._interval, LAST_SAVE)

    def _score(self, metric: Metric) -> Score | None:
        """The metric's first score, at its largest radius, of the images measured so far."""
        frames = [self.rows[metric.name], *self._new.get(metric.name, [])]
        rows = pd.concat([frame for frame in frames if len(frame)] or frames[:1])
        scores = score_rows([metric], rows[~rows.index.duplicated(keep="last")])
        return scores.at(scores.stems()[0]) if len(scores) else None

    def _save(self) -> None:
        writer = f"{socket.gethostname()}-{os.getpid()}"
        for metric, count in self._unsaved.items():
            self.parts.save(metric, pd.concat(self._new[metric][-count:]), writer=writer)
        self._unsaved.clear()
        self._saved_at = time.monotonic()

    def _passed(self, images: int) -> None:
        tally = self._tallies[self._current]
        under_way = tally.under_way + images * self._share
        self._tallies[self._current] = replace(
            tally, passes=tally.passes + images, under_way=under_way
        )
        self._emit(self._current)

    def _emit(self, metric: str) -> None:
        if self.watch is not None:
            self.watch(self._tallies[metric])


@dataclass(frozen=True)
class _Prepared:
    """Views that come as bytes, normalized on the device."""

    views: Views
    engine: Engine

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        return self.engine.prepare(self.views(offset, rows))
