"""Checks a record against its own table of images, which needs nothing but the record.

Measuring some of the images again is a run: see `shiftbench.run.remeasure`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from shiftbench.errors import RecordError
from shiftbench.files import write_atomic
from shiftbench.metrics.base import NEAR_TIE_COLUMN, Metric, score_rows
from shiftbench.records.record import (
    KEY,
    RECORD_FILE,
    VERIFIED_FILE,
    Record,
    describe_metric,
    images_digest,
)
from shiftbench.scores import Scores
from shiftbench.statistics import Score

TOLERANCE = 1e-9  # of a score computed again from the same rows


@dataclass(frozen=True)
class Verification:
    """That some images of a record were measured again, and gave the same answers."""

    record: str  # sha256 of the record.json that was verified
    images: int  # measured again
    date: str  # ISO 8601, UTC
    version: str  # of the shiftbench that measured them


def contradictions(record: Record) -> list[str]:
    """Every way in which a record and its samples disagree; empty when they agree."""
    try:
        samples = record.samples()
    except RecordError as error:
        return [str(error)]
    lacking = [
        name for name in (KEY, "label", "prediction", NEAR_TIE_COLUMN) if name not in samples
    ]
    if lacking:
        return [f"the samples have no column {', '.join(lacking)}"]
    problems = _about_images(record, samples)
    metrics: list[Metric] = []
    for name, info in record.metrics.items():
        metric = info.load()
        if metric is None:
            problems.append(f"{name}: the metric {info.kind!r} is not known here; load its plug-in")
        elif metric.columns[0] not in samples:
            problems.append(f"{name}: the samples have no column {metric.columns[0]}")
        else:
            metrics.append(metric)
            problems += _about_metric(record, name, metric, samples)
    unknown = sorted(set(record.maps) - {metric.name for metric in metrics})
    problems += [f"{name}: scores by offset, but no such metric" for name in unknown]
    return problems + _about_scores(record.scores, score_rows(metrics, samples))


def _about_images(record: Record, samples: pd.DataFrame) -> list[str]:
    problems = []
    if samples[KEY].duplicated().any():
        twice = samples.loc[samples[KEY].duplicated(), KEY].iloc[0]
        problems.append(f"the samples name {twice!r} more than once")
    if len(samples) != record.data.images:
        problems.append(f"{record.data.images} images in the record, {len(samples)} in the samples")
    everyone = record.settings.get("limit") is None and not record.data.skipped
    if everyone and record.data.labels not in ("", images_digest(samples[KEY], samples["label"])):
        problems.append(
            "the record has no limit, but its samples are not all images and labels of the split"
        )
    return problems


def _about_metric(record: Record, name: str, metric: Metric, samples: pd.DataFrame) -> list[str]:
    """What a metric's description and its rows disagree on."""
    info = record.metrics[name]
    if name != metric.name:
        return [f"{name}: its settings are those of {metric.name}"]
    problems = []
    for words, bad in metric.contradictions(samples).items():
        if bad.any():
            first = samples[KEY].iloc[int(bad.argmax())]
            problems.append(f"{name}: {first!r} {words} ({int(bad.sum())} such images)")
    if problems:
        return problems
    expected = describe_metric(metric.as_measured(samples), samples)
    if expected.settings != metric.settings():
        return [f"{name}: {_first_difference(metric.settings(), expected.settings)} by its samples"]
    seed = record.settings.get("seed", 0)
    if info.settings.get("seed", seed) != seed:
        problems.append(f"{name}: its seed is {info.settings['seed']}, the record's is {seed}")
    if info.images != expected.images:
        problems.append(
            f"{name}: {info.images} images in the record, {expected.images} in the samples"
        )
    elif info.digest != expected.digest or dict(info.parts) != dict(expected.parts):
        problems.append(f"{name}: the samples are of other images or labels than the record")
    if set(info.scores) != set(expected.scores):
        problems.append(f"{name}: its scores are {', '.join(expected.scores)} by its samples")
    stored, cells = record.maps.get(name, {}), metric.offset_scores(samples)
    if stored.keys() != cells.keys() or not all(_same(stored[o], cells[o]) for o in cells):
        problems.append(f"{name}: the scores by offset do not follow from the samples")
    return problems


def _first_difference(stored: Mapping[str, Any], computed: Mapping[str, Any]) -> str:
    key = next(k for k in (*computed, *stored) if stored.get(k) != computed.get(k))
    return f"{key} is {stored.get(key)} in the record, {computed.get(key)}"


def _about_scores(stored: Scores, computed: Scores) -> list[str]:
    """Scores that the samples do not give, one sentence each."""
    problems = [f"{name}: the samples do not give it" for name in stored if name not in computed]
    for name, score in computed.items():
        if name not in stored:
            problems.append(f"{name}: the samples give {score.value:.6f}, the record has none")
        elif not _same(stored[name], score):
            problems.append(f"{name}: {stored[name]} in the record, {score} by its samples")
    return problems


def _same(stored: Score, computed: Score) -> bool:
    a, b = ((score.value, score.low, score.high) for score in (stored, computed))
    close = all(math.isclose(x, y, rel_tol=0, abs_tol=TOLERANCE) for x, y in zip(a, b, strict=True))
    return close and (stored.n, stored.unit) == (computed.n, computed.unit)


def save_verification(record: Record, images: int) -> None:
    """Leaves a note beside a record that some of its images were measured again."""
    assert record.folder is not None
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    note = Verification(_digest(record.folder), images, date, version("shiftbench"))
    text = json.dumps(asdict(note), indent=2) + "\n"
    write_atomic(record.folder / VERIFIED_FILE, text.encode())


def read_verification(record: Record) -> Verification | None:
    """The note beside a record; None where there is none, or it is of another version of it."""
    if record.folder is None:
        return None
    try:
        note = Verification(**json.loads((record.folder / VERIFIED_FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return note if note.record == _digest(record.folder) else None


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / RECORD_FILE).read_bytes()).hexdigest()
