"""Some images of a record measured again, to see whether it holds."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from shiftbench.data import ImageSet, load_dataset, relabeled
from shiftbench.data.base import in_turn
from shiftbench.errors import DataError, UsageError
from shiftbench.metrics.base import KEY, NEAR_TIE_COLUMN
from shiftbench.models import load_model
from shiftbench.models.model import Model
from shiftbench.records.record import Record, read_record
from shiftbench.records.verify import contradictions, save_verification
from shiftbench.run.engine import Engine, choose_device, float32_arithmetic
from shiftbench.run.job import Job, canvas_for
from shiftbench.run.runner import Execution, measure
from shiftbench.run.store import Store
from shiftbench.scores import ACCURACY

CHANGE_TOLERANCE = 1e-3  # of an outcome that is no prediction, measured again in other batches
MOST_TIES = 0.2  # share of near ties above which nothing is verified


@dataclass(frozen=True)
class VerifyResult:
    """What checking a record found.

    >>> print(VerifyResult(problems=(), images=20, seed=3))
    scores match samples; 20 images re-measured (seed 3), all match
    """

    problems: tuple[str, ...]  # every disagreement in words; none: the record holds
    images: int = 0  # that were re-measured
    seed: int | None = None  # which images they were

    def __str__(self) -> str:
        again = f"; {self.images} images re-measured (seed {self.seed})" if self.images else ""
        if self.problems:
            return f"{len(self.problems)} problem{'s' * (len(self.problems) > 1)}{again}"
        return f"scores match samples{again}{', all match' * bool(again)}"


def verify(
    record: Record | str | Path,
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
    """Checks a record against its own samples and, with a model and data, against the model.

    Args:
        record: A record, or its folder.
        model: As for `shiftbench run`; `NAME=MODEL` where the record has a name of its own.
        data: As for `shiftbench run`.
        checkpoint: Weights for the model.
        strip_prefix: Part of the checkpoint's keys to remove.
        images: How many to measure again.
        seed: Which of them; by default random ones, so that no record can be made for them.
        device: Where to measure.
        save: Write a note next to the record that it was verified.

    >>> verify("results/runs/resnet50--birds").problems  # doctest: +SKIP
    ()
    """
    record = record if isinstance(record, Record) else read_record(Path(record))
    if (model is None) != (data is None):
        raise UsageError("to measure images again, give both --model and --data")
    if save and model is None:
        raise UsageError("--save notes a new measurement: give --model and --data")
    problems = contradictions(record)
    if model is None or data is None or problems:
        return VerifyResult(tuple(problems))
    dataset = load_dataset(data, split=record.data.split)
    classifier = load_model(
        model,
        checkpoint=checkpoint,
        strip_prefix=strip_prefix,
        class_names=dataset.class_names,
    )
    seed = secrets.randbelow(2**31) if seed is None else seed
    execution = Execution(device=device)
    problems, count = remeasure(
        record, classifier, dataset, images=images, seed=seed, execution=execution
    )
    if save and not problems:
        save_verification(record, count)
    return VerifyResult(tuple(problems), count, seed)


def job_of(record: Record, classifier: Model, dataset: ImageSet) -> Job:
    """The job that would measure a record again, with the metrics that the record itself has."""
    dataset = relabeled(dataset, classifier.num_classes, classifier.class_names)
    loaded = (info.load() for info in record.metrics.values())
    metrics = tuple(metric for metric in loaded if metric is not None)
    geometry = canvas_for(
        classifier,
        dataset,
        crop_pct=str(record.data.geometry["crop"]),
        pad=str(record.data.geometry["pad"]),
        margin=max(metric.margin() for metric in metrics),
        shift=f"the record of {record.model.name}",
    )
    samples = record.samples()
    keys = {m.name: list(samples.loc[samples[m.columns[0]].notna(), KEY]) for m in metrics}
    return Job.of(classifier, dataset, geometry, metrics, keys, record.settings)


def disagreements(record: Record, job: Job) -> list[str]:
    """Where a record is of another model, of other data or of fewer images than it says."""
    pairs = {
        "model name": (record.model.name, job.model.name),
        "weights": (record.model.digest[:12], job.model.digest[:12]),
        "input size": (record.model.input_size, job.model.input_size),
        "mean": (record.model.mean, job.model.mean),
        "std": (record.model.std, job.model.std),
        "interpolation": (record.model.interpolation, job.model.interpolation),
        "split": (record.data.split, job.data.split),
        "images": (record.data.fingerprint[:12], job.data.fingerprint[:12]),
        "labels": (record.data.labels[:12], job.data.labels[:12]),
        "class names": (record.data.classes, job.data.classes),
        "geometry": (
            {**record.data.geometry, "margin": 0},
            {**job.geometry.to_json(), "margin": 0},
        ),
    }
    problems = [
        f"the {what} of the record: {theirs!s:.80}; of what was given: {ours!s:.80}"
        for what, (theirs, ours) in pairs.items()
        if theirs != ours
    ]
    return problems or _picked_images(record, job.dataset)


def _picked_images(record: Record, dataset: ImageSet) -> list[str]:
    """Scores whose images were picked: a limit takes them in turn, and leaves out unreadable ones.

    A score that leaves out images which a model gets wrong follows from its samples all the same.
    """
    number = {key: i for i, key in enumerate(dataset.keys)}
    seed, limit = record.settings.get("seed", 0), record.settings.get("limit")
    order = [dataset.keys[i] for i in in_turn(dataset.keys, dataset.labels, seed)]
    place = {key: i for i, key in enumerate(order)}

    @cache
    def is_readable(key: str) -> bool:
        try:
            dataset.image(number[key])
        except DataError:
            return False
        return True

    problems = []
    for name, outcomes in record.outcomes().items():
        keys = set(outcomes.index)
        last = max((place.get(key, len(order)) for key in keys), default=-1)
        due = order[:limit] if name == ACCURACY else order[: last + 1]
        left_out = next((key for key in due if key not in keys and is_readable(key)), None)
        if left_out is not None or not keys.issubset(due):
            problems.append(
                f"{name} is of {len(keys)} images, but not of those that a limit takes"
                + (f": {left_out} is left out" if left_out else "")
            )
    return problems


def remeasure(
    record: Record,
    classifier: Model,
    dataset: ImageSet,
    *,
    images: int = 20,
    seed: int = 0,
    execution: Execution | None = None,
) -> tuple[list[str], int]:
    """Measures some random images of a record again.

    Args:
        record: What is claimed.
        classifier: The model it claims to be of.
        dataset: The data it claims to be of, the whole split.
        images: How many to measure; of each metric, about as many of its own images.
        seed: Which of them.
        execution: How it is done.

    Returns:
        Every disagreement in words, and how many images were measured.
    """
    execution = execution or Execution()
    job = job_of(record, classifier, dataset)
    problems = disagreements(record, job)
    if problems:
        return problems, 0
    chosen = _choose(job, images, seed)
    job = replace(
        job, keys={name: [k for k in keys if k in chosen] for name, keys in job.keys.items()}
    )
    store = Store()
    precision = record.settings.get("precision", "fp32")
    with float32_arithmetic(precision):
        engine = Engine(
            classifier,
            device=choose_device(execution.device),
            precision=precision,
            engine=record.settings.get("engine", "torch"),
            batch_size=execution.batch_size,
        )
        measure(job, store, engine)
    return differing(record, store.derive(job, {})), len(chosen)


def _choose(job: Job, images: int, seed: int) -> set[str]:
    """Random images, as far as possible those that every metric has measured."""
    everyone = set.intersection(*map(set, job.keys.values()))
    generator = random.Random(seed)
    chosen = set(generator.sample(sorted(everyone), min(images, len(everyone))))
    for keys in job.keys.values():
        lacking = min(images, len(keys)) - len(chosen.intersection(keys))
        if lacking > 0:
            others = sorted(set(keys) - chosen)
            chosen.update(generator.sample(others, min(lacking, len(others))))
    return chosen


def differing(record: Record, again: Record) -> list[str]:
    """Images whose outcomes differ between two measurements of one model.

    Only the near ties of the new measurement are excused: the record's own flags are a claim too.
    """
    ours, theirs = record.outcomes(), again.outcomes()
    samples = again.samples().set_index(KEY)
    tied = set(samples.index[samples[NEAR_TIE_COLUMN].astype(bool)])
    if len(tied) > max(MOST_TIES * len(samples), 1):
        return [
            f"rounding may decide {len(tied)} of {len(samples)} images that were measured again, "
            "too many to verify anything"
        ]
    problems: dict[str, str] = {}
    for name, values in theirs.items():
        if name not in ours:
            problems.setdefault("", f"{name}: the record has none")
            continue
        both = values.index.intersection(ours[name].index)
        before, after = ours[name].loc[both], values.loc[both]
        apart = ~np.isclose(before, after, rtol=CHANGE_TOLERANCE, atol=CHANGE_TOLERANCE)
        for key in both[apart]:
            if key not in tied:
                words = f"{name} was {before.loc[key]:g}, is {after.loc[key]:g}"
                problems.setdefault(key, f"{key}: {words}")
    return list(problems.values())
