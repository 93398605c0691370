"""Random cells of a record predicted again, to check that the record is of its model and data."""

from __future__ import annotations

import math
import random
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shiftbench.data import ImageSet, load_dataset
from shiftbench.errors import DataError, UsageError
from shiftbench.metrics.base import Request
from shiftbench.models import Model, load_model
from shiftbench.records.folder import load_record
from shiftbench.records.result import Result
from shiftbench.records.verify import contradictions, save_verification
from shiftbench.running.job import Job, canvas_for, data_for, widest_shift
from shiftbench.running.predict import choose_device, float32_arithmetic, predict_cells
from shiftbench.running.runner import FULL_BATCHES, image_batch, load_ahead, make_predictor
from shiftbench.tables import DIGEST, UNKNOWN, Cells, Tables

CELLS = 2000  # predicted again per metric, at most
CHANGE_TOLERANCE = 1e-3  # of a probability that is predicted again in other batches
MOST_TIES = 0.2  # fraction of near ties above which nothing is verified
# Fields of the model section that an exported file has other values of.
OF_THE_ORIGINAL = ("name", "source", "digest", "parameters")
FORGED = 0.05  # fraction of forged images whose chance to pass is stated


@dataclass(frozen=True)
class VerifyResult:
    """Result of checking a record.

    >>> print(VerifyResult(problems=(), images=20, total=500, cells=480, seed=3))
    scores match the tables; 480 predictions of 20 of 500 images compared (seed 3), 0 differ: a \
record with 5% forged images passes with probability 0.35
    """

    problems: tuple[str, ...]  # every disagreement; empty: the record is consistent
    images: int = 0  # images that were predicted again
    total: int = 0  # images of the record
    cells: int = 0  # predictions that were compared
    seed: int | None = None  # chooses images and cells

    def __str__(self) -> str:
        again = ""
        if self.images:
            again = (
                f"; {self.cells:,} predictions of {self.images} of {self.total:,} images compared "
                f"(seed {self.seed}), {len(self.problems)} differ"
            )
        if self.problems:
            return f"{len(self.problems)} problem{'s' * (len(self.problems) > 1)}{again}"
        if self.images:
            again += (
                f": a record with {FORGED:.0%} forged images passes with probability "
                f"{self.undetected():.2f}"
            )
        return f"scores match the tables{again}"

    def undetected(self, forged: float = FORGED) -> float:
        """Return the probability that no forged image was among those predicted again."""
        honest = self.total - math.ceil(forged * self.total)
        return math.comb(honest, self.images) / math.comb(self.total, self.images)


def verify(
    record: Result | str | Path,
    *,
    model: str | None = None,
    data: str | None = None,
    checkpoint: Path | None = None,
    strip_prefix: str | None = None,
    images: int = 20,
    seed: int | None = None,
    device: str = "auto",
    save: bool = False,
) -> VerifyResult:
    """Check a record against its own tables and, with a model and data, against the model.

    Args:
        record: A record, or its folder.
        model: As for `shiftbench run`; `NAME=MODEL` where the record has a name of its own.
        data: As for `shiftbench run`.
        checkpoint: Weights for the model.
        strip_prefix: Part of the checkpoint's keys to remove.
        images: Number of images to predict again.
        seed: Chooses them; by default at random, so that no record can be made for them.
        device: Where to predict.
        save: Write a note next to the record that it was verified.

    >>> verify("results/runs/resnet50--birds").problems  # doctest: +SKIP
    ()
    """
    record = record if isinstance(record, Result) else load_record(Path(record))
    if (model is None) != (data is None):
        raise UsageError("expected both --model and --data, or neither of them")
    if save and model is None:
        raise UsageError("cannot save a verification without predictions. Add --model and --data")
    problems = contradictions(record)
    if model is None or data is None or problems:
        return VerifyResult(tuple(problems))
    dataset = load_dataset(data, split=record.data.split)
    loaded = load_model(
        model, checkpoint=checkpoint, strip_prefix=strip_prefix, class_names=dataset.class_names
    )
    seed = secrets.randbelow(2**31) if seed is None else seed
    result = predict_again(record, loaded, dataset, images=images, seed=seed, device=device)
    if save and not result.problems:
        save_verification(record, result.images)
    return result


def job_of(record: Result, model: Model, dataset: ImageSet) -> Job:
    """Return the job that would predict a record again."""
    dataset = data_for(model, dataset)
    requests = tuple(
        Request(info.loaded, info.images) for info in record.requests if info.loaded is not None
    )
    stored = record.data.geometry
    scale = int(stored.get("scale", 1))
    geometry = canvas_for(
        model,
        dataset,
        crop_pct=str(stored["crop"]),
        pad=str(stored["pad"]),
        scale=scale,
        margin=widest_shift(model, requests),
        shift=f"the record of {record.model.name}",
        spare=int(stored.get("spare", 0)) // scale,
    )
    return Job(model, dataset, geometry, requests, record.settings)


def differences(record: Result, job: Job) -> list[str]:
    """List where a record is of another model, of other data or of other images than it states."""
    theirs, ours = vars(record.model), vars(job.model_info)
    compared = [name for name in ours if name not in ("identity", "originals")]
    originals = job.model.original_digests
    if theirs["digest"] == ours["digest"]:
        originals = ()
    elif originals or ours["digest"] in record.model.originals:
        # One of the two is an exported file, or both are.
        compared = [name for name in compared if name not in OF_THE_ORIGINAL]
    pairs = {
        **{f"model {name}": (theirs[name], ours[name]) for name in compared},
        "data": (record.data.name, job.dataset.name),
        "split": (record.data.split, job.dataset.split),
        "class names": (record.data.classes, job.data_info.classes),
        "geometry": (
            {**record.data.geometry, "margin": 0},
            {**job.geometry.to_json(), "margin": 0},
        ),
    }
    problems = [
        f"{what}: {stated!s:.80} in the record, {given!s:.80} given"
        for what, (stated, given) in pairs.items()
        if stated != given
    ]
    if originals and not {theirs["digest"], *record.model.originals} & {*originals}:
        problems.append(
            f"model digest: {theirs['digest']} in the record, {job.model.name} was exported from "
            f"{originals[0]}"
        )
    if problems:
        return problems
    expected, labels = job.images(), record.tables
    if len(job.keys) > len(labels.keys) or job.keys != labels.keys[: len(job.keys)]:
        return ["the images of the record are not the first ones of the data set"]
    rows = labels.rows(job.keys)
    different = np.flatnonzero(labels.array("label")[rows, 0] != expected.array("label")[:, 0])
    return [f"label of {job.keys[row]!r} differs from the data set" for row in different[:10]]


def predict_again(
    record: Result,
    model: Model,
    dataset: ImageSet,
    *,
    images: int = 20,
    seed: int = 0,
    device: str = "auto",
    cells: float = CELLS,
) -> VerifyResult:
    """Predict random cells of random images of a record again.

    Near ties of the new predictions are excused; the record's own note of them is a claim too.

    Args:
        record: The record to check.
        model: The model of the record.
        dataset: The data of the record, the whole split.
        images: Number of images.
        seed: Chooses images and cells.
        device: Where to predict.
        cells: Expected number of cells per metric; math.inf for all known cells of the images.
    """
    job = replace(job_of(record, model, dataset), skip_bad=True)
    problems = differences(record, job)
    if problems:
        return VerifyResult(tuple(problems))
    chosen = _choose(job, record.tables, images, seed)
    claimed_digests = record.tables.column(DIGEST)[record.tables.rows(chosen)]
    tables = job.images()
    compared, ties, chooser = 0, 0, np.random.default_rng(seed)
    with float32_arithmetic(job.settings["precision"]):
        predictor = make_predictor(job, choose_device(device), None)
        for canvases in load_ahead(job, chosen, FULL_BATCHES * predictor.batch_size, tables):
            batch = image_batch(job, canvases, predictor)
            problems += [f"{key} cannot be read" for key in canvases.bad]
            try:
                for _ in batch.begin(record.tables):
                    pass
            except DataError as error:
                return VerifyResult((str(error),))
            for request in job.requests:
                rows = [i for i, k in enumerate(batch.keys) if job.position[k] < request.images]
                if not rows:
                    continue
                keys = [batch.keys[i] for i in rows]
                metric = request.metric
                claimed = record.tables.read(metric.table, len(metric.views("")), keys)
                share = cells / max(1, claimed.known.sum()) * len(batch.keys) / len(chosen)
                blank = claimed.known & (chooser.random(claimed.classes.shape) < share)
                new = replace(
                    claimed,
                    classes=np.where(blank, UNKNOWN, claimed.classes).astype(np.int16),
                    probabilities=np.where(blank, UNKNOWN, claimed.probabilities).astype(
                        np.float32
                    ),
                )
                excused = np.zeros(blank.shape, dtype=bool)

                def unknown(new: Cells, blank: NDArray[np.bool_] = blank) -> NDArray[np.bool_]:
                    return blank & ~new.known

                for tied in predict_cells(metric, new, batch, rows, unknown):
                    excused[tied] = True
                compared += int(blank.sum())
                ties += int(excused.sum())
                differ = new.classes != claimed.classes
                change = np.abs(new.probabilities - claimed.probabilities)
                differ |= (claimed.probabilities >= 0) & (change > CHANGE_TOLERANCE)
                owners = range(len(keys)) if claimed.images is None else claimed.images
                names = [keys[image] for image in owners]
                problems += [
                    f"{metric.name}: {names[row]} in column {column}: class "
                    f"{claimed.classes[row, column]} in the record, {new.classes[row, column]} "
                    "predicted"
                    for row, column in np.argwhere(differ & ~excused)
                ]
    found = tables.column(DIGEST)[tables.rows(chosen)]
    for row in np.flatnonzero((claimed_digests != found) & (found >= 0))[:10]:
        problems.append(f"{chosen[row]} is another image than in the record")
    if ties > max(MOST_TIES * compared, 1):
        problems.append(
            f"rounding may decide {ties} of {compared} predictions: too many to verify anything"
        )
    return VerifyResult(tuple(problems), len(chosen), len(job.keys), compared, seed)


def _choose(job: Job, tables: Tables, images: int, seed: int) -> list[str]:
    """Choose random images, as far as possible those of every request."""
    generator = random.Random(seed)
    chosen: list[str] = []
    for request in sorted(job.requests, key=lambda request: request.images):
        rest = sorted(set(job.keys[: request.images]) - set(chosen))
        lacking = min(images, request.images) - len(chosen)
        chosen += generator.sample(rest, max(0, min(lacking, len(rest))))
    return sorted(chosen, key=job.position.__getitem__)
