"""One model on one data set: measures what its record lacks, shared between processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from shiftbench.data import ImageSet
from shiftbench.errors import RecordError
from shiftbench.models.classifier import Classifier
from shiftbench.records.record import (
    RECORD_FILE,
    SAMPLES_FILE,
    Record,
    ResultStore,
    read_record,
)
from shiftbench.run.assemble import assemble, metrics_of
from shiftbench.run.engine import Engine, choose_device, float32_arithmetic
from shiftbench.run.environment import describe_environment
from shiftbench.run.plan import Plan, make_plan
from shiftbench.run.processes import SINGLE_PROCESS, Group
from shiftbench.run.resume import (
    Identity,
    Parts,
    Rows,
    exclusive,
    identity_of,
    missing_keys,
    prepare_folder,
    refuse_mixing,
    rows_of,
)
from shiftbench.run.settings import Settings
from shiftbench.run.shared_progress import SharedProgress
from shiftbench.run.worker import ProgressCallback, Worker


@dataclass(frozen=True)
class Execution:
    """How a run is done; no number depends on it."""

    device: str = "auto"
    batch_size: int | None = None  # None: as many as are useful and fit
    workers: int | None = None  # data loading processes; None: the loader's own choice
    group: Group = SINGLE_PROCESS  # the processes that share the run


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    record: Record
    reused: bool  # everything was there already: nothing was measured


def run(
    classifier: Classifier,
    dataset: ImageSet,
    settings: Settings,
    store: ResultStore,
    *,
    execution: Execution | None = None,
    fresh: bool = False,
    watch: ProgressCallback | None = None,
) -> Outcome:
    """Measures what the record of a model on a data set lacks, and writes it.

    The record may be there already: with other attacks, smaller grids, fewer images or draws. What
    it has is kept, and the result equals that of one run for everything.

    Args:
        classifier: The model.
        dataset: The images.
        settings: Everything that can change a number.
        store: Where the record goes.
        execution: How it is done: device, batch size, processes.
        fresh: Drop a record or unfinished parts that are there, and start over.
        watch: Is told what the work may take, and how far each metric is.

    Raises:
        ShiftbenchError: In every process of the group when any of them fails.
    """
    execution = execution or Execution()
    group = execution.group
    with group.raise_on_all_ranks():
        plan = make_plan(classifier, dataset, settings, workers=execution.workers)
        device = choose_device(execution.device, local_rank=group.local_rank)
        folder = store.folder(plan.model.name, plan.data.name)
        if group.is_main:
            prepare_folder(folder, len(plan.images))
    identity = identity_of(plan.model, plan.data, plan.settings)
    if len({str(other) for other in group.gather(identity)}) > 1:
        raise RecordError("the processes see different models or data: give each the same files")
    with _owned(folder, group):
        parts, before = Parts.of(folder), None
        with group.raise_on_all_ranks():
            if group.is_main:
                before = _open(folder, parts, identity, fresh=fresh)
        before = group.gather(before)[0]
        missing = _missing(plan, _rows(plan, before, parts))
        if not missing and before is not None:
            return Outcome(before, reused=True)
        # Every process must have seen the same parts before any of them writes new ones.
        group.wait()
        with group.raise_on_all_ranks():
            if group.is_main:
                parts.open(identity)
                SharedProgress.forget(parts.folder)
        with group.raise_on_all_ranks(), float32_arithmetic(settings.precision):
            engine = Engine(
                classifier,
                device=device,
                precision=settings.precision,
                engine=settings.engine,
                batch_size=execution.batch_size,
            )
            told = SharedProgress(parts.folder, group, watch) if group.count > 1 else watch
            Worker(plan, engine, parts, _rows(plan, before, parts), told).run(group.share(missing))
        written: Record | None = None
        with group.raise_on_all_ranks():
            if group.is_main:
                about = describe_environment(device, processes=group.count)
                rows = _rows(plan, before, parts)
                record, samples = assemble(plan, rows, before, about)
                written = replace(record, folder=store.write(record, samples))
                parts.drop({name: list(frame.index) for name, frame in rows.items()})
        finished = group.gather(written)[0]
    assert finished is not None
    return Outcome(finished, reused=False)


@contextmanager
def _owned(folder: Path, group: Group) -> Iterator[None]:
    """The main process holds the lock for all of them."""
    with ExitStack() as stack:
        with group.raise_on_all_ranks():
            if group.is_main:
                stack.enter_context(exclusive(folder))
        yield


def _open(folder: Path, parts: Parts, identity: Identity, *, fresh: bool) -> Record | None:
    """Makes the folder ready; returns the record that is there already, to be added to."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    if fresh:
        parts.clear()
        for name in (RECORD_FILE, SAMPLES_FILE):
            (folder / name).unlink(missing_ok=True)
    record = None
    if (folder / RECORD_FILE).is_file() and (folder / SAMPLES_FILE).is_file():
        record = read_record(folder)
        old = identity_of(record.model, record.data, record.settings)
        refuse_mixing(folder, "a record", old, identity)
    parts.check(identity)
    return record


def _rows(plan: Plan, before: Record | None, parts: Parts) -> Rows:
    """What is there of every metric, of the plan or of the record that grows."""
    keys = {metric.name: plan.keys_of(metric) for metric in plan.metrics}
    metrics = {**metrics_of(before), **{metric.name: metric for metric in plan.metrics}}
    return {
        name: rows_of(metric, before, parts, keys.get(name, ())) for name, metric in metrics.items()
    }


def _missing(plan: Plan, rows: Rows) -> list[str]:
    """The images that any metric lacks, in the order of the data set."""
    lacking = {
        key
        for metric in plan.metrics
        for key in missing_keys(metric, rows[metric.name], plan.keys_of(metric))
    }
    return sorted(lacking, key=plan.number.__getitem__)
