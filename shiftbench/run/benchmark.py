"""One model on one data set under every attack: resumable, shared between processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import pandas as pd

from shiftbench.datasets.base import ImageSet
from shiftbench.errors import DataError, RecordError
from shiftbench.models.classifier import Classifier
from shiftbench.records.record import RECORD_FILE, SAMPLES_FILE, Record, ResultStore, read_record
from shiftbench.run.engine import Engine, choose_device, float32_arithmetic
from shiftbench.run.environment import describe_environment
from shiftbench.run.plan import Plan, make_plan
from shiftbench.run.processes import ALONE, Group
from shiftbench.run.resume import (
    IMAGE,
    Parts,
    exclusive,
    identity_of,
    prepare_folder,
    refuse_mixing,
)
from shiftbench.run.scores import PASSES, SECONDS, join_samples, score_samples
from shiftbench.run.settings import Settings
from shiftbench.run.worker import Watcher, Worker


@dataclass(frozen=True)
class Execution:
    """How a run is done; no number depends on it."""

    device: str = "auto"
    batch_size: int | None = None  # None: as many as are useful and fit
    workers: int | None = None  # data loading processes; None: the loader's own choice
    group: Group = ALONE  # the processes that share the run


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    record: Record
    reused: bool  # it was there already: nothing was measured


def run(
    classifier: Classifier,
    dataset: ImageSet,
    settings: Settings,
    store: ResultStore,
    *,
    execution: Execution | None = None,
    fresh: bool = False,
    watch: Watcher | None = None,
) -> Outcome:
    """Measures a model on a data set, or what an earlier run left to measure, and writes a record.

    Args:
        classifier: The model.
        dataset: The images.
        settings: Everything that can change a number.
        store: Where the record goes.
        execution: How it is done: device, batch size, processes.
        fresh: Drop a record or unfinished parts that are there, and start over.
        watch: Is told how far each task is.

    Raises:
        ShiftbenchError: In every process of the group when any of them fails.
    """
    execution = execution or Execution()
    group = execution.group
    with group.together():
        plan = make_plan(classifier, dataset, settings, workers=execution.workers)
        device = choose_device(execution.device, local_rank=group.local_rank)
        folder = store.folder(plan.model.name, plan.data.name)
        if group.is_main:
            prepare_folder(folder, len(plan.images))
    if len({str(identity) for identity in group.gather(plan.identity)}) > 1:
        raise RecordError("the processes see different models or data: give each the same files")
    with _owned(folder, group):
        parts, found = Parts.of(folder), None
        with group.together():
            if group.is_main:
                found = _open(folder, parts, plan, fresh=fresh)
        found = group.gather(found)[0]
        if found is not None:
            return Outcome(found, reused=True)
        with group.together(), float32_arithmetic(settings.precision):
            engine = Engine(
                classifier,
                device=device,
                precision=settings.precision,
                compiled=settings.compile,
                batch_size=execution.batch_size,
            )
            _measure(plan, parts, engine, group, watch)
        written: Record | None = None
        with group.together():
            if group.is_main:
                about = describe_environment(device, processes=group.size)
                written = _assemble(plan, parts, store, about)
        record = group.gather(written)[0]
    assert record is not None
    return Outcome(record, reused=False)


@contextmanager
def _owned(folder: Path, group: Group) -> Iterator[None]:
    """The main process holds the lock for all of them."""
    with ExitStack() as stack:
        with group.together():
            if group.is_main:
                stack.enter_context(exclusive(folder))
        yield


def _open(folder: Path, parts: Parts, plan: Plan, *, fresh: bool) -> Record | None:
    """Makes the folder ready for the plan; returns the record when it is there already."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    if fresh:
        parts.clear()
        for name in (RECORD_FILE, SAMPLES_FILE):
            (folder / name).unlink(missing_ok=True)
    if (folder / RECORD_FILE).is_file() and (folder / SAMPLES_FILE).is_file():
        record = read_record(folder)
        old = identity_of(record.model, record.data, record.settings)
        refuse_mixing(folder, "a record", old, plan.identity)
        parts.clear()
        return record
    parts.open(plan.identity)
    return None


def _measure(plan: Plan, parts: Parts, engine: Engine, group: Group, watch: Watcher | None) -> None:
    finished = {task.name: parts.read(task.name) for task in plan.tasks}
    left: set[int] = set()
    for task in plan.tasks:
        done = finished[task.name]
        left |= set(plan.images_of(task)) - (set() if done is None else set(done[IMAGE]))
    # Every process must have seen the same parts before any of them writes new ones.
    group.barrier()
    rows = {task: frame for task, frame in finished.items() if frame is not None}
    Worker(plan, engine, parts, watch).run(group.share(sorted(left)), rows)


def _assemble(
    plan: Plan, parts: Parts, store: ResultStore, environment: Mapping[str, str | int]
) -> Record:
    """Joins the parts into a record, and removes them."""
    rows = {task.name: parts.read(task.name) for task in plan.tasks}
    complete = {task: frame for task, frame in rows.items() if frame is not None}
    samples = join_samples(complete, plan) if len(complete) == len(rows) else pd.DataFrame()
    missing = len(plan.images) - len(samples)
    if missing and not plan.skips_bad:
        raise RecordError(
            f"{missing} of {len(plan.images)} images have no rows in {parts.folder}: every process "
            "must write to the same folder; run the same command to go on"
        )
    if samples.empty:
        raise DataError(f"none of the {len(plan.images)} images could be read")
    record = Record(
        model=plan.model,
        data=replace(plan.data, images=len(samples), skipped=missing),
        settings=plan.settings,
        scores=score_samples(samples, plan.tasks),
        environment=environment,
        seconds=float(sum(frame[SECONDS].sum() for frame in complete.values())),
        forward_passes=int(sum(frame[PASSES].sum() for frame in complete.values())),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    folder = store.write(record, samples)
    parts.clear()
    return replace(record, folder=folder)
