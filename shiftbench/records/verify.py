"""Does a record say what its own table of images says?

`contradictions` needs nothing but the record. Measuring some images again is a run, and lives in
`shiftbench.run.remeasure`.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

from shiftbench.errors import RecordError
from shiftbench.files import write_atomic
from shiftbench.metrics import score_rows
from shiftbench.metrics.base import NEAR_TIE, Metric
from shiftbench.records.record import (
    KEY,
    RECORD_FILE,
    VERIFIED_FILE,
    MetricInfo,
    Record,
    images_digest,
)
from shiftbench.scores import Scores
from shiftbench.statistics import Score

TOLERANCE = 1e-9  # of a score computed again from the same rows
CHANGE_TOLERANCE = 1e-3  # of an outcome that is no answer, measured again on other batches


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
    lacking = [name for name in (KEY, "label", "prediction") if name not in samples]
    if lacking:
        return [f"the samples have no column {', '.join(lacking)}"]
    found = []
    if samples[KEY].duplicated().any():
        twice = samples.loc[samples[KEY].duplicated(), KEY].iloc[0]
        found.append(f"the samples name {twice!r} more than once")
    if len(samples) != record.data.images:
        found.append(f"{record.data.images} images in the record, {len(samples)} in the samples")
    metrics: list[Metric] = []
    for name, info in record.metrics.items():
        metric = info.load()
        if metric is None:
            found.append(f"{name}: the metric {info.kind!r} is not known here; load its plug-in")
        elif metric.columns[0] not in samples:
            found.append(f"{name}: the samples have no column {metric.columns[0]}")
        else:
            metrics.append(metric)
            found += _about_metric(name, info, metric, samples)
    return found + _about_scores(record.scores, score_rows(metrics, samples))


def _about_metric(name: str, info: MetricInfo, metric: Metric, samples: pd.DataFrame) -> list[str]:
    measured = samples[samples[metric.columns[0]].notna()]
    found = metric.contradictions(samples)
    if len(measured) != info.images:
        there = len(measured)
        found.append(f"{name}: {info.images} images in the record, {there} in the samples")
    elif images_digest(measured[KEY], measured["label"]) != info.digest:
        found.append(f"{name}: the samples are of other images or labels than the record")
    return found


def _about_scores(stored: Scores, computed: Scores) -> list[str]:
    """Scores that the samples do not give, one sentence each."""
    found = [f"{name}: the samples do not give it" for name in stored if name not in computed]
    for name, score in computed.items():
        if name not in stored:
            found.append(f"{name}: the samples give {score.value:.6f}, the record has none")
        elif not _same(stored[name], score):
            found.append(f"{name}: {stored[name]} in the record, {score} by its samples")
    return found


def _same(stored: Score, computed: Score) -> bool:
    pairs = (
        (stored.value, computed.value),
        (stored.low, computed.low),
        (stored.high, computed.high),
    )
    close = all(math.isclose(a, b, rel_tol=0, abs_tol=TOLERANCE) for a, b in pairs)
    return close and (stored.n, stored.unit) == (computed.n, computed.unit)


def differing(record: Record, again: Record) -> list[str]:
    """Images whose outcomes differ between two measurements of one model, near ties aside."""
    ours, theirs = record.outcomes(), again.outcomes()
    ties = [r.samples().set_index(KEY)[NEAR_TIE].astype(bool) for r in (record, again)]
    tied = set(pd.concat(ties)[lambda near: near].index)
    found: dict[str, str] = {}
    for name, values in theirs.items():
        if name not in ours:
            continue
        both = values.index.intersection(ours[name].index)
        before, after = ours[name].loc[both], values.loc[both]
        apart = ~np.isclose(before, after, rtol=0, atol=CHANGE_TOLERANCE)
        for key in both[apart]:
            if key not in tied:
                words = f"{name} was {before.loc[key]:g}, is {after.loc[key]:g}"
                found.setdefault(key, f"{key}: {words}")
    return list(found.values())


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
