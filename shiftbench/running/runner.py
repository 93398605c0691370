"""One model on one data set: predict the cells that are missing, derive the record."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from aft_models.preprocessing import normalize
from aft_models.remedies.inputs import ShownNetwork
from shiftbench.data import CanvasBatch, Canvases, ImageSet, RenderedSet, load_dataset
from shiftbench.data.canvases import DigitizedViews
from shiftbench.errors import DataError, RecordError, UsageError
from shiftbench.metrics.base import Request, read_cells, remaining_passes
from shiftbench.models import Model, load_model
from shiftbench.records.folder import RECORD_FILE, load_record, record_folder, write_record
from shiftbench.records.result import TABLES_FOLDER, Result, derive_result
from shiftbench.running import Progress, ProgressCallback
from shiftbench.running.job import Job, Settings, class_count, make_job
from shiftbench.running.parts import PartBatch
from shiftbench.running.predict import (
    ImageBatch,
    Predictor,
    choose_device,
    float32_arithmetic,
    is_out_of_memory,
    measure,
)
from shiftbench.running.shards import WHOLE, Shard
from shiftbench.shifts import Views
from shiftbench.tables import (
    CLEAN,
    DIGEST,
    ENLARGED,
    NO_PHASE,
    UNKNOWN,
    UNREADABLE,
    TableFolder,
    Tables,
    identifier,
)
from shiftbench.tasks.frames import Fitted

log = logging.getLogger(__name__)

FULL_BATCHES = 4  # batches of images that are measured together, so that a search fills its batches
FIRST_SAVE, LAST_SAVE = 2.0, 30.0  # seconds between two saves; doubles from one to the other
MOST_ORIGINALS = 64  # decoded images in memory: those of a camera have tens of megabytes each
SAVE_FRACTION = 0.05  # of the time, at most
LISTED = 10  # unreadable images that an error names


@dataclass(frozen=True)
class Execution:
    """Execution settings. They do not affect scores."""

    device: str = "auto"
    batch_size: int | None = None  # None: as many images as are efficient and fit
    workers: int | None = None  # data loading processes; None: chosen by the number of images
    shard: Shard = WHOLE  # predict the missing cells of this share of the images
    average_precision: bool = False  # also measure AP of a detector at every offset


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    record: Result | None  # everything that was ever requested; None: other shards are unfinished
    requested: Result | None  # the part that this run requested
    complete: bool  # True if nothing was missing before the run
    left: int = 0  # images that other shards have to predict


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
    """Predict the cells that a record lacks, and write the record once nothing is missing.

    The record may exist already, with other attacks, smaller grids, fewer images or draws. The
    result equals that of a single run for everything. Any number of processes may work on it.

    Args:
        model: A model, or its name as for `shiftbench run`.
        data: Images, or the name of a data set.
        settings: Everything that can change a number.
        output: Folder of records; this one is written to `<model>--<data>` below it.
        execution: Device, batch size, workers, shard.
        fresh: Discard an existing record and start over.
        callback: Called after each forward pass.

    >>> import tempfile
    >>> quick = Settings(attacks=("crop",), max_shift=1, limit=12)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = run("xcit_pico_6_p8.scenes", "scenes", quick, folder)
    >>> result.record.score("accuracy").n
    12
    """
    execution, settings = execution or Execution(), settings or Settings()
    dataset = load_dataset(data) if isinstance(data, str) else data
    if isinstance(model, str):
        model = load_model(model, class_names=dataset.class_names)
    job = make_job(model, dataset, settings)
    folder = record_folder(Path(output), job.model.name, dataset.name)
    if fresh:
        _discard(folder, execution.shard)
    earlier = _earlier_requests(folder)
    store = TableFolder(folder / TABLES_FOLDER, job.identity, job.images())
    tables = store.read()
    tables.arrays.pop(UNREADABLE, None)  # unreadable images are tried again in every run
    mine, missing = execution.shard.share(job.keys), job.missing(tables)
    todo = [key for key in mine if key in missing]
    if todo:
        _require_readable(job, todo, tables)
        store.save(tables.take(mine))  # a full disk is noticed now, not after hours
        try:
            for _ in predict_missing(job, todo, tables, execution, callback):
                store.save(tables.take(mine))
        finally:  # also after Ctrl-C or an error
            store.save(tables.take(mine))
        tables = store.read()  # includes what other shards predicted meanwhile
    left = len(job.missing(tables))
    if left:
        return RunResult(None, None, complete=False, left=left)
    tables = job.in_order(tables)
    _require_rows(job, tables)
    if todo or len(list(store.folder.glob("*.parquet"))) > 1:
        store.save(tables)
    derive = partial(
        derive_result,
        tables,
        model=job.model_info,
        data=job.data_info,
        settings=job.settings,
        environment=describe_environment(execution.device),
    )
    whole = derive(requests=[*earlier, *_earlier_requests(folder), *job.requests])
    record = write_record(folder, replace(whole, shown=_shown(folder, job, execution)))
    requested = replace(
        derive(requests=job.requests), folder=folder, created=record.created, shown=record.shown
    )
    return RunResult(record, requested, complete=not todo)


def _require_rows(job: Job, tables: Tables) -> None:
    """Raise DataError if no part of any image is whole under every shift of a metric."""
    for metric, images in job.requests:
        if not len(read_cells(tables, metric, job.keys[:images]).labels) and len(job.keys):
            raise DataError(
                f"{metric.name}: expected objects that are whole in every view up to "
                f"{metric.extent()} px, got none in {images} images. Choose a smaller --max-shift, "
                "a lower --score-threshold, or other images"
            )


def _require_readable(job: Job, keys: Sequence[str], tables: Tables) -> None:
    """Raise DataError for all images with unreadable headers at once, before any prediction."""
    if job.skip_bad:
        return
    unread = tables.column(DIGEST)[tables.rows(keys)] == UNKNOWN
    new = [key for key, never_read in zip(keys, unread, strict=True) if never_read]
    problems = job.dataset.bad_headers(job.order[job.position[key]] for key in new)
    if problems:
        named = [f"{job.dataset.keys[i]} ({reason})" for i, reason in problems.items()]
        more = f" and {len(named) - LISTED} more" if len(named) > LISTED else ""
        raise DataError(
            f"cannot read {len(named)} of {len(new)} images: {', '.join(named[:LISTED])}{more}. "
            "Replace the files, or leave such images out with --skip-bad"
        )


def predict_missing(
    job: Job,
    keys: Sequence[str],
    tables: Tables,
    execution: Execution,
    callback: ProgressCallback | None = None,
) -> Iterator[None]:
    """Predict the cells of some images that tables lack; yield when the tables should be saved."""
    device = choose_device(execution.device, process=execution.shard.index - 1)
    with float32_arithmetic(job.settings["precision"]):
        predictor = make_predictor(job, device, execution.batch_size)
        most, done = _most_passes(job, keys, tables), 0
        due, interval = time.monotonic() + FIRST_SAVE, FIRST_SAVE
        size = FULL_BATCHES * predictor.batch_size
        if job.originals:
            size = min(size, MOST_ORIGINALS)
        for canvases in load_ahead(job, keys, size, tables, workers=execution.workers):
            for _ in _measure_in_memory(job, canvases, predictor, tables):
                if callback is not None:
                    callback(Progress(done, len(keys), predictor.passes, most))
                if (began := time.monotonic()) > due:
                    yield
                    interval = min(2 * interval, LAST_SAVE)
                    due = began + max(interval, (time.monotonic() - began) / SAVE_FRACTION)
            done += len(canvases)
        if callback is not None:
            callback(Progress(done, len(keys), predictor.passes, most))


def _most_passes(job: Job, keys: Sequence[str], tables: Tables) -> int:
    """Return the largest number of forward passes that some images may still take."""
    most = int((tables.column(CLEAN)[tables.rows(keys)] < 0).sum())
    for request in job.requests:
        own = [key for key in keys if job.position[key] < request.images]
        cells = read_cells(tables, request.metric, own)
        most += remaining_passes(request.metric, cells, tables.unseen(own))
    return most


def make_predictor(job: Job, device: torch.device, batch_size: int | None) -> Predictor:
    """Move the model of a job to a device, behind the resize that the scale of the job needs."""
    module: nn.Module = job.model
    if job.resize and not job.model.task.has_parts:  # windows of parts are resized before the fill
        module = ShownNetwork(job.model, job.resize)
    return Predictor.of(
        module,
        device,
        name=job.model.name,
        side=job.geometry.view,
        precision=job.settings["precision"],
        batch_size=batch_size,
    )


def load_ahead(
    job: Job, keys: Sequence[str], size: int, tables: Tables, *, workers: int | None = None
) -> Iterator[CanvasBatch]:
    """Yield batches of canvases and load the next one meanwhile; note digests and bad images.

    Raises:
        DataError: An image has changed since it was predicted before.
    """
    indices = [job.order[job.position[key]] for key in keys]
    stream = Canvases(
        job.dataset,
        job.geometry,
        indices,
        workers=workers,
        skip_bad=job.skip_bad,
        originals=job.originals,
    )
    with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        pending = pool.submit(stream.take, size)
        while (batch := pending.result()) is not None:
            pending = pool.submit(stream.take, size)
            for key in batch.bad:
                log.warning("skipped %s: it cannot be read", key)
            tables.array(UNREADABLE, 1)[tables.rows(batch.bad)] = 1
            digests, rows = tables.column(DIGEST), tables.rows(batch.keys)
            for key, row, digest in zip(batch.keys, rows, batch.digests, strict=True):
                if digests[row] not in (UNKNOWN, digest):
                    raise DataError(
                        f"{key} is not the image that was predicted before. Choose another "
                        "--output, or start over with --fresh"
                    )
                digests[row] = digest
            if batch.enlarged and (job.originals or job.geometry.scale > 1):
                tables.array(ENLARGED, 1)[rows, 0] = batch.enlarged
            if len(batch):
                yield batch


def _measure_in_memory(
    job: Job, canvases: CanvasBatch, predictor: Predictor, tables: Tables
) -> Iterator[None]:
    """Measure a batch, in halves when memory runs out; cells that were predicted are kept."""
    try:
        batch = image_batch(job, canvases, predictor)
        _note_phases(batch, tables)
        places = [job.position[key] for key in batch.keys]
        metrics = (
            (request.metric, [i for i, place in enumerate(places) if place < request.images])
            for request in job.requests
        )
        yield from measure(batch, metrics, tables)
    except Exception as error:
        if not is_out_of_memory(error) or len(canvases) == 1:
            raise
        predictor.shrink()
        half = len(canvases) // 2
        for part in (slice(half), slice(half, None)):
            yield from _measure_in_memory(job, canvases.take(part), predictor, tables)


def _note_phases(batch: ImageBatch, tables: Tables) -> None:
    """Note the images without a phase, which `align` leaves in the center."""
    found = batch.has_phase()
    if found is not None:
        tables.array(NO_PHASE, 1)[tables.rows(batch.keys), 0] = ~found


def image_batch(job: Job, canvases: CanvasBatch, predictor: Predictor) -> ImageBatch:
    """Move images to the device of the model and normalize them there."""
    dataset, geometry = job.dataset, job.geometry
    recipe = job.model.preprocessing

    def prepare(pixels: torch.Tensor) -> torch.Tensor:
        moved = pixels.to(predictor.device, non_blocking=True)  # bytes are copied, not floats
        return normalize(moved, recipe.mean, recipe.std)

    def scene() -> Views:
        if isinstance(dataset, RenderedSet):
            inner = geometry.inner or geometry.view
            wider = (geometry.view - inner) // 2
            views = dataset.views(canvases.indices, inner, geometry.scale, wider)
        else:
            views = DigitizedViews(geometry, canvases)
        return lambda offset, rows=None: prepare(views(offset, rows))

    identifiers = [identifier(digest) for digest in canvases.digests]
    if isinstance(geometry, Fitted):
        return PartBatch(
            predictor,
            canvases.keys,
            prepare(canvases.canvas),
            geometry.margin,
            identifiers=identifiers,
            scale=geometry.scale,
            remedies=job.remedies,
            frames=[geometry.frame(*dataset.size(index)) for index in canvases.indices],
            targets=[dataset.target(i) if job.labeled else None for i in canvases.indices],
            fill=prepare(torch.tensor(geometry.fill).view(1, 3, 1, 1))[0, :, 0, 0],
            classes=class_count(job.model),
            threshold=job.settings.get("score_threshold", 0.0),
        )
    return ImageBatch(
        predictor,
        canvases.keys,
        prepare(canvases.canvas),
        geometry.margin,
        scene if isinstance(dataset, RenderedSet) or canvases.originals else None,
        identifiers,
        geometry.scale,
        job.remedies,
    )


def _discard(folder: Path, shard: Shard) -> None:
    """Remove an existing record."""
    if shard.count > 1:
        raise UsageError(
            "cannot combine --fresh with --shard: it would remove the predictions of other "
            "shards. Remove the folder before the first of them starts"
        )
    shutil.rmtree(folder / TABLES_FOLDER, ignore_errors=True)
    (folder / RECORD_FILE).unlink(missing_ok=True)


def _shown(folder: Path, job: Job, execution: Execution) -> Mapping[str, float]:
    """Return the numbers that a record shows beside its scores, new ones if requested."""
    if execution.average_precision:
        from shiftbench.running.precision import precision_by_offset

        values = list(precision_by_offset(job, execution).values())
        return {"ap": values[0], "ap_low": min(values), "ap_high": max(values)}
    return load_record(folder).shown if (folder / RECORD_FILE).is_file() else {}


def _earlier_requests(folder: Path) -> list[Request]:
    """Return the requests of an existing record."""
    if not (folder / RECORD_FILE).is_file():
        return []
    requests = []
    for info in load_record(folder).requests:
        if info.loaded is None:
            raise RecordError(
                f"the record {folder} has the metric {info.metric!r}, which is not registered. "
                "Load its plug-in with --plugin"
            )
        requests.append(Request(info.loaded, info.images))
    return requests


def describe_environment(device: str = "auto") -> dict[str, str]:
    """Return versions and hardware, and the commit if the code is a git checkout."""
    place = choose_device(device)
    cuda = place.type == "cuda"
    about = {
        "shiftbench": importlib.metadata.version("shiftbench"),
        "torch": torch.__version__,
        "torchvision": importlib.metadata.version("torchvision"),
        "timm": importlib.metadata.version("timm"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(place) if cuda else place.type,
    }
    checkout = Path(__file__).parents[2]
    if (checkout / ".git").exists():
        command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            about["commit"] = done.stdout.strip()
    return about
