"""One model on one data set: measures what is missing, shared between processes."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from shiftbench.data import CanvasBatch, ImageSet, RenderedSet, load_dataset
from shiftbench.errors import RecordError, UsageError
from shiftbench.metrics.base import ImageBatch, Metric, score_rows
from shiftbench.models import load_model
from shiftbench.models.model import Model
from shiftbench.records.record import Record, record_folder
from shiftbench.run.distributed import SINGLE_PROCESS, Group, Shard
from shiftbench.run.engine import (
    AUTO,
    Engine,
    choose_device,
    choose_engine,
    float32_arithmetic,
    is_out_of_memory,
)
from shiftbench.run.folder import FolderStore, exclusive, make_folder
from shiftbench.run.job import Job, Settings, make_job
from shiftbench.run.progress import Estimate, GroupProgress, Progress, ProgressCallback
from shiftbench.run.store import Store, requested
from shiftbench.shifts.base import Views
from shiftbench.statistics import Score

log = logging.getLogger(__name__)

# Images that are measured together: enough to fill batches until the end of a search, few enough
# that a kill loses little.
FIRST_IMAGES = 16  # before anything is known about the speed
GROWTH = 4  # at most, from one part to the next
FULL_BATCHES = 4
SECONDS_AT_A_TIME = 40.0


@dataclass(frozen=True)
class Execution:
    """How a run is done; no number depends on it."""

    device: str = "auto"
    batch_size: int | None = None  # None: as many as are useful and fit
    workers: int | None = None  # data loading processes; None: the loader's own choice
    group: Group = SINGLE_PROCESS  # the processes that share the run
    shard: Shard | None = None  # measure this share only, beside other jobs; None: everything


@dataclass(frozen=True)
class RunResult:
    """What a run has done."""

    # With all that was measured now or before; None: other shards have images left.
    record: Record | None
    requested: Record | None  # the part of it that this run asked for
    reused: bool  # everything was there already: nothing was measured
    left: int = 0  # images that other shards have to measure


def run(
    model: Model | str,
    data: ImageSet | str = "scenes",
    settings: Settings | None = None,
    output: str | Path = "results/runs",
    *,
    execution: Execution | None = None,
    fresh: bool = False,
    callback: ProgressCallback | None = None,
) -> RunResult:
    """Measures what the record of a model on a data set lacks, and writes it.

    The record may be there already: with other attacks, smaller grids, fewer images or draws. What
    it has is kept, and the result equals that of one run for everything.

    Args:
        model: A model, or its name as for `shiftbench run`.
        data: Images, or their name.
        settings: Everything that can change a number.
        output: Folder of records; this one goes to `<model>--<data>` below it.
        execution: How it is done: device, batch size, processes.
        fresh: Drop a record or unfinished parts that are there, and start over.
        callback: Called with an estimate of the work, and with the progress of each metric.

    Raises:
        ShiftbenchError: In every process of the group when any of them fails.

    >>> import tempfile
    >>> quick = Settings(attacks=("crop",), max_shift=1, limit=12)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = run("xcit_pico_6_p8.scenes", "scenes", quick, folder)
    >>> result.record.scores.find("accuracy").n
    12
    """
    dataset = load_dataset(data) if isinstance(data, str) else data
    classifier = (
        load_model(model, class_names=dataset.class_names) if isinstance(model, str) else model
    )
    settings = settings or Settings()
    execution = execution or Execution()
    group, shard = execution.group, execution.shard
    if shard is not None and fresh:
        raise UsageError(
            "--fresh would remove what other shards have measured: remove the folder before any "
            "of them starts, or leave --shard out"
        )
    with group.raise_on_all_ranks():
        job = make_job(classifier, dataset, settings, workers=execution.workers)
        device = choose_device(execution.device, local_rank=group.local_rank)
        store = FolderStore(record_folder(Path(output), job.model.name, job.data.name))
    if len(set(group.gather((job.model.digest, job.data.fingerprint)))) > 1:
        raise RecordError("the processes see different models or data: give each the same files")
    with ExitStack() as stack:
        with group.raise_on_all_ranks():
            if group.is_main:
                make_folder(store.folder, images=len(dataset))
                if shard is None:
                    stack.enter_context(exclusive(store.folder))
                stack.callback(store.close)
                job = _prepare(job, store, device, shard, fresh=fresh)
        job = job.with_engine(group.gather(job.settings["engine"])[0])
        with group.raise_on_all_ranks():
            store.read(job)
            missing, part = store.missing(job), job
            if shard is not None:
                mine = shard.share(_in_order(job, job.keys))
                missing, part = _only(mine, missing), replace(job, keys=_only(mine, job.keys))
        group.wait()  # every process has seen the same parts before any of them writes new ones
        if any(missing.values()):
            with group.raise_on_all_ranks(), float32_arithmetic(settings.precision):
                engine = Engine(
                    classifier,
                    device=device,
                    precision=settings.precision,
                    engine=job.settings["engine"],
                    batch_size=execution.batch_size,
                )
                shared = GroupProgress(group, callback) if group.count > 1 else callback
                try:
                    measure(part, store, engine, missing, group=group, callback=shared)
                finally:
                    store.close()
        record: Record | None = None
        written, left = False, 0
        with group.raise_on_all_ranks():
            if group.is_main:
                if shard is not None:  # the last of them writes the record
                    store.read(job)
                    left = store.left(job)
                if not left:
                    environment = describe_environment(device, processes=group.count)
                    record, written = store.finish(job, environment)
        record, written, left = group.gather((record, written, left))[0]
    asked = None if record is None else requested(record, job)
    return RunResult(record, asked, reused=record is not None and not written, left=left)


def _prepare(
    job: Job, store: FolderStore, device: torch.device, shard: Shard | None, *, fresh: bool
) -> Job:
    """Makes the folder ready; the job that is returned says which engine `auto` stands for.

    Work that has begun goes on with its engine.
    """
    shards = None if shard is None else shard.count
    if job.settings["engine"] != AUTO:
        store.prepare(job, fresh=fresh, shards=shards)
        return job
    engine = None if fresh else store.engine()
    if engine is None:
        precision, passes = job.settings["precision"], job.passes()
        engine = choose_engine(job.classifier, device=device, precision=precision, passes=passes)
    try:
        store.prepare(job.with_engine(engine), fresh=fresh, shards=shards)
    except RecordError:  # another shard may have begun with another one meanwhile
        begun = store.engine()
        if begun in (None, engine):
            raise
        engine = begun
        store.prepare(job.with_engine(engine), shards=shards)
    return job.with_engine(engine)


def _in_order(job: Job, keys: Mapping[str, Sequence[str]]) -> list[str]:
    """The images of any metric, in the order of the data set."""
    return sorted({key for own in keys.values() for key in own}, key=job.number.__getitem__)


def _only(chosen: Sequence[str], keys: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The chosen ones among the images of each metric."""
    some = set(chosen)
    return {name: [key for key in own if key in some] for name, own in keys.items()}


def measure(
    job: Job,
    store: Store,
    engine: Engine,
    missing: Mapping[str, Sequence[str]] | None = None,
    *,
    group: Group = SINGLE_PROCESS,
    callback: ProgressCallback | None = None,
    at_hand: CanvasBatch | None = None,
) -> None:
    """Adds the rows that are missing; of several processes, each adds its share.

    Args:
        job: What is asked for.
        store: Where the rows go.
        engine: The model.
        missing: Metric -> images to measure; by default all that the store lacks for the job.
        group: The processes that share them.
        callback: Called with an estimate of the work, and with the progress of each metric.
        at_hand: Images that need not be loaded: all of those that are missing.
    """
    missing = store.missing(job) if missing is None else missing
    mine = _only(group.share(_in_order(job, missing)), missing)
    work = []
    for metric in job.metrics:
        if metric.name in missing:
            todo, asked = mine[metric.name], job.keys[metric.name]
            done = len(asked) - len(missing[metric.name])
            work.append(
                _MetricWork(
                    metric,
                    set(todo),
                    before=store.partial(metric, todo),
                    rows=[store.rows(metric, asked)] if callback else [],
                    progress=Progress(metric.name, done, done + len(todo)),
                )
            )
    _Runner(job, store, engine, callback, work).run(at_hand)


@dataclass
class _MetricWork:
    """What is left to do for one metric, and what was done."""

    metric: Metric
    todo: set[str]  # images that it lacks
    before: pd.DataFrame  # what there is of them: a smaller grid, fewer draws
    rows: list[pd.DataFrame]  # of images that are done, to show their score
    progress: Progress

    def score(self) -> Score | None:
        """The metric's first score, at its largest radius, of the images measured so far."""
        if not self.rows:  # nobody looks
            return None
        rows = pd.concat([frame for frame in self.rows if len(frame)] or self.rows[:1])
        scores = score_rows([self.metric], rows[~rows.index.duplicated(keep="last")])
        return scores.at(scores.stems()[0]) if len(scores) else None


@dataclass
class _Runner:
    """Loads images ahead, measures every metric that lacks them, and adds the rows."""

    job: Job
    store: Store
    engine: Engine
    callback: ProgressCallback | None
    work: Sequence[_MetricWork]
    _current: _MetricWork = field(init=False)  # what the engine's passes belong to
    _worth: float = 0.0  # at least what part of an image one of these passes is

    def run(self, at_hand: CanvasBatch | None = None) -> None:
        """Measures the missing images of each metric."""
        for work in self.work:
            self._emit(work, score=work.score())
        # Images that as many metrics lack stay together: a search needs many to fill a batch.
        lacking = Counter(key for work in self.work for key in work.todo)
        keys = sorted(lacking, key=lambda key: (-lacking[key], self.job.number[key]))
        if not keys:
            return
        seconds = self.engine.seconds_per_image() if at_hand is None else 0.0
        bounds = [work.metric.passes(work.before) for work in self.work]
        passes = len(keys) + sum(bounds)
        if self.callback is not None:
            self.callback(Estimate(passes, passes * seconds))
        size = PartSize(self.engine.batch_size, guess=max(bounds) / len(keys) * seconds)
        self.engine.on_passes = self._passed
        try:
            loaded = self._load_ahead(keys, size) if at_hand is None else [(at_hand, 0.0)]
            for batch, waited in loaded:
                self._measure(batch, waited, size)
        finally:
            self.engine.on_passes = None

    def _load_ahead(
        self, keys: Sequence[str], size: PartSize
    ) -> Iterator[tuple[CanvasBatch, float]]:
        """Yields batches and the seconds spent waiting for them; the next one loads meanwhile."""
        stream = self.job.stream(keys)
        with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
            pending = pool.submit(stream.take, size.next())
            while True:
                began = time.monotonic()
                batch = pending.result()
                waited = time.monotonic() - began
                if batch is None:
                    return
                pending = pool.submit(stream.take, size.next())
                self.store.skip(batch.bad)
                for key in batch.bad:
                    log.warning("left out %s: it cannot be read", key)
                if len(batch):
                    yield batch, waited

    def _measure(self, batch: CanvasBatch, waited: float, size: PartSize) -> None:
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

    def _measure_metrics(self, canvases: CanvasBatch, waited: float, size: PartSize) -> None:
        size.batch_size = self.engine.batch_size
        began = time.monotonic() - waited
        self._current, self._worth = self.work[0], 0.0
        batch = self._predict(canvases)
        for work in self.work:
            images = [i for i, key in enumerate(batch.keys) if key in work.todo]
            if images:
                part = batch.take(images)
                before = work.before.loc[list(part.keys)]
                self._current = work
                self._worth = len(images) / max(1, work.metric.passes(before))
                rows = work.metric.rows(part, before)
                self._keep(work, rows, seconds := time.monotonic() - began)
                size.note(work.metric.name, seconds / len(images))
            began = time.monotonic()

    def _predict(self, canvases: CanvasBatch) -> ImageBatch:
        """Puts images on the engine's device and makes their clean predictions."""
        dataset, geometry = self.job.dataset, self.job.geometry

        def scene() -> Views:
            assert isinstance(dataset, RenderedSet)
            inner = geometry.inner or geometry.view
            views = dataset.views(canvases.indices, inner, wider=(geometry.view - inner) // 2)
            return lambda offset, rows=None: self.engine.prepare(views(offset, rows))

        return ImageBatch.predict(
            self.engine,
            self.engine.prepare(canvases.canvas),
            geometry.margin,
            canvases.keys,
            canvases.labels.numpy(),
            batch_size=self.engine.batch_size,
            scene=scene if isinstance(dataset, RenderedSet) else None,
        )

    def _keep(self, work: _MetricWork, rows: pd.DataFrame, seconds: float) -> None:
        self.store.append(work.metric, rows, seconds)
        if self.callback:
            work.rows.append(rows)
        work.todo -= set(rows.index)
        self._emit(
            work,
            done=work.progress.done + len(rows),
            measured=work.progress.measured + len(rows),
            under_way=0.0,
            seconds=work.progress.seconds + seconds,
            score=work.score(),
        )

    def _passed(self, images: int) -> None:
        progress = self._current.progress
        self._emit(
            self._current,
            passes=progress.passes + images,
            under_way=progress.under_way + images * self._worth,
        )

    def _emit(self, work: _MetricWork, **changes: Any) -> None:
        work.progress = replace(work.progress, **changes)
        if self.callback is not None:
            self.callback(work.progress)


@dataclass
class PartSize:
    """How many images to measure together next, from the speed of the last ones.

    No result depends on it: what an image visits follows from the image alone.
    """

    batch_size: int
    guess: float = 0.0  # seconds per image of the slowest metric, before any was measured
    _size: int = 0
    _speed: dict[str, float] = field(default_factory=dict)  # metric -> seconds per image

    def note(self, metric: str, seconds: float) -> None:
        """Takes in what a metric took per image; an estimate that follows changes of speed."""
        self._speed[metric] = 0.5 * self._speed.get(metric, seconds) + 0.5 * seconds

    def next(self) -> int:
        """Images for the next part."""
        slowest = max(self._speed.values(), default=self.guess)
        in_time = int(SECONDS_AT_A_TIME / max(slowest, 1e-9))
        grown = (GROWTH if self._speed else 1) * (self._size or FIRST_IMAGES)
        self._size = max(1, min(in_time, FULL_BATCHES * self.batch_size, grown))
        return self._size


def describe_environment(device: torch.device, *, processes: int = 1) -> dict[str, str | int]:
    """Names the software and the hardware; the commit when the code is a git checkout."""
    cuda = device.type == "cuda"
    about: dict[str, str | int] = {
        "shiftbench": importlib.metadata.version("shiftbench"),
        "torch": torch.__version__,
        "torchvision": importlib.metadata.version("torchvision"),
        "timm": importlib.metadata.version("timm"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "processes": processes,
    }
    checkout = Path(__file__).parents[2]
    if (checkout / ".git").exists():
        command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            about["commit"] = done.stdout.strip()
    return about
