"""The rows of a record: what there is, what is missing, and the record that follows from them.

A record grows: a later run may ask for other metrics, wider grids, more images or draws. Rows wait
in `parts/` until the record is written anew: `parts/identity.json` says what is measured, and
`parts/<series>/*.parquet` hold rows by image. Rows do not depend on how the images were batched or
shared between processes, and files are only ever added, so a killed run continues where it stopped.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

from shiftbench.errors import DataError, RecordError
from shiftbench.files import write_atomic
from shiftbench.identity import changed_parts, plugin_parts
from shiftbench.metrics.base import KEY, NEAR_TIE, PASSES, Metric, score_rows
from shiftbench.preprocessing import Geometry
from shiftbench.records.record import (
    RECORD_FILE,
    SAMPLES_FILE,
    SCHEMA,
    DataInfo,
    MetricInfo,
    ModelInfo,
    OffsetScore,
    Record,
    describe_metric,
    read_record,
    write_record,
)
from shiftbench.run.job import Job

log = logging.getLogger(__name__)

PARTS_FOLDER = "parts"
IDENTITY_FILE = "identity.json"
LOCK_FILE = ".lock"
SECONDS = "seconds"  # column of the rows, besides those of the metric
SPARE_BYTES = 16 * 2**20  # free disk a run asks for besides its own files
BYTES_PER_IMAGE = 1024  # a generous bound for a row in the parts and in the samples
# Rows wait this long to be saved: briefly at first, when mistakes are noticed, then longer, so that
# a run of hours leaves no hundred thousand files.
FIRST_SAVE, LAST_SAVE = 2.0, 30.0  # seconds; doubles from one to the other

NOTHING = pd.DataFrame(index=pd.Index([], name=KEY))


class Store:
    """Rows in memory, on top of the record that they are added to."""

    def __init__(self, before: Record | None = None) -> None:
        self.before = before
        self._table: pd.DataFrame | None = None
        self._added: dict[str, list[pd.DataFrame]] = {}  # series -> rows by key, oldest first

    def append(self, metric: Metric, rows: pd.DataFrame) -> None:
        """Adds rows, indexed by key."""
        self._added.setdefault(_folder_name(metric), []).append(rows.rename_axis(KEY))

    def added(self, metric: Metric) -> pd.DataFrame:
        """The rows added so far, one per image."""
        return widest(metric, self._added.get(_folder_name(metric), []))

    def _samples(self) -> pd.DataFrame:
        """The table of the record, read once."""
        assert self.before is not None
        if self._table is None:
            self._table = self.before.samples().set_index(KEY)
        return self._table

    def recorded(self, metric: Metric) -> pd.DataFrame:
        """The rows that the record has of a metric; none of another series."""
        if self.before is None or metric.name not in self.before.metrics:
            return NOTHING
        old = self.before.metrics[metric.name].load()
        if old is None or old.series != metric.series:
            return NOTHING
        samples = self._samples()
        columns = [name for name in metric.columns if name in samples]
        rows = samples.loc[samples[columns[0]].notna(), [*columns, NEAR_TIE]].copy()
        return rows.assign(**{PASSES: 0, SECONDS: 0.0})

    def missing(self, job: Job) -> dict[str, list[str]]:
        """The images that each metric has still to measure: the one place that decides it."""
        return {m.name: self._missing(m, job.keys[m.name]) for m in self._to_measure(job)}

    def _missing(self, metric: Metric, keys: Sequence[str]) -> list[str]:
        recorded = self.recorded(metric)
        answered = {
            *recorded.index[metric.answered(recorded)],
            *metric.as_asked(self.added(metric)).index,
        }
        return [key for key in keys if key not in answered]

    def _to_measure(self, job: Job) -> list[Metric]:
        """The metrics of a job, without those that the record answers by a more thorough search.

        Raises:
            RecordError: The record holds a metric of another series, which cannot be combined.
        """
        chosen = []
        for metric in job.metrics:
            info = None if self.before is None else self.before.metrics.get(metric.name)
            old = None if info is None else _loaded(info)
            if info is not None:
                self._refuse_changed_code(metric, info)
            if old is None or old.series == metric.series:
                chosen.append(metric)
                continue
            samples = self._samples()
            there = set(samples.index[samples[old.columns[0]].notna()])
            if old.supersedes(metric) and there.issuperset(job.keys[metric.name]):
                continue
            if not (metric.supersedes(old) and there.issubset(job.keys[metric.name])):
                raise RecordError(
                    f"the record has {metric.name} of {len(there)} images measured as "
                    f"{_settings(old)}, and {len(job.keys[metric.name])} as {_settings(metric)} "
                    "cannot be combined with them: ask for the same mode, give another --output "
                    "or --name, or replace the record with --fresh"
                )
            chosen.append(metric)
        return chosen

    def _refuse_changed_code(self, metric: Metric, info: MetricInfo) -> None:
        changed = changed_parts(info.code, plugin_parts(*metric.code()))
        if changed:
            raise RecordError(
                f"{', '.join(changed)} changed since {metric.name} was measured: give another "
                "--output or --name, or replace the record with --fresh"
            )

    def partial(self, metric: Metric, keys: Sequence[str]) -> pd.DataFrame:
        """What there is of images that are not finished; empty cells for the others."""
        rows = [
            rows[~metric.answered(rows)] for rows in (self.recorded(metric), self.added(metric))
        ]
        return widest(metric, rows).reindex(pd.Index(list(keys), name=KEY))

    def rows(self, metric: Metric, keys: Sequence[str]) -> pd.DataFrame:
        """The rows of a metric in a record: all that it had, and what a job asked for.

        A stopped run may have left rows of other images, or wider ones: these stay in the parts.
        """
        recorded, added = self.recorded(metric), self.added(metric)
        asked = pd.Index(keys, name=KEY)
        return widest(
            metric,
            [
                recorded,
                metric.as_asked(recorded[recorded.index.isin(asked)]).assign(**{NEAR_TIE: False}),
                metric.as_asked(added[added.index.isin(asked)]),
            ],
        )

    def derive(self, job: Job, environment: Mapping[str, Any]) -> Record:
        """The record of everything that is measured, with its table of images.

        Raises:
            RecordError: Images lack rows that they should have.
            DataError: No image could be read.
        """
        metrics = {metric.name: metric for metric in self._to_measure(job)}
        if self.before is not None:
            old = {name: _loaded(info) for name, info in self.before.metrics.items()}
            metrics |= {name: metric for name, metric in old.items() if name not in metrics}
        rows = {name: self.rows(metric, job.keys.get(name, ())) for name, metric in metrics.items()}
        missing = len({key for keys in self.missing(job).values() for key in keys})
        if missing and not job.settings["skip_bad"]:
            raise RecordError(
                f"{missing} images have no rows: every process must write to the same folder; run "
                "the same command to continue"
            )
        samples = join_rows(job.dataset.keys, rows)
        if samples.empty:
            raise DataError(f"none of the {len(job.keys[job.metrics[0].name])} images can be read")
        before = self.before
        geometry = dict(job.data.geometry)
        if before is not None:
            geometry["margin"] = max(geometry["margin"], before.data.geometry["margin"])
        return describe(
            [metrics[name] for name in rows if len(rows[name])],
            samples,
            model=job.model,
            data=replace(job.data, images=len(samples), skipped=missing, geometry=geometry),
            settings=self._merged_settings(job, samples),
            environment=environment,
            seconds=_sum(rows, SECONDS) + (before.seconds if before else 0.0),
            forward_passes=int(_sum(rows, PASSES)) + (before.forward_passes if before else 0),
        )

    def _merged_settings(self, job: Job, samples: pd.DataFrame) -> dict[str, Any]:
        """The settings of a job; limits are of everything in the record."""
        settings = dict(job.settings)
        if self.before is not None:
            old, everyone = self.before.settings, len(samples) == len(job.dataset)
            settings["limit"] = None if everyone else max(len(samples), settings["limit"] or 0)
            limits = [s["search_limit"] for s in (settings, old) if "search_limit" in s]
            settings["search_limit"] = None if None in limits else max(limits)
            settings["skip_bad"] = settings["skip_bad"] or bool(old.get("skip_bad"))
        return settings


def _loaded(info: MetricInfo) -> Metric:
    """The metric of a record that grows."""
    metric = info.load()
    if metric is None:
        raise RecordError(
            f"the record has a metric of the kind {info.kind!r}, which is not registered here: "
            "load its plug-in with --plugin"
        )
    return metric


def requested(record: Record, job: Job) -> Record:
    """What a job asked for of a record that holds more: its metrics, its images, its grids."""
    store, rows, metrics = Store(record), {}, []
    for metric in job.metrics:
        info = record.metrics.get(metric.name)
        recorded = None if info is None else info.load()
        if recorded is None:
            continue
        known = store.recorded(recorded)
        known = known[known.index.isin(job.keys[metric.name])]
        if recorded.series == metric.series:
            exact = metric.as_asked(known)  # sums of more draws cannot be taken apart
            known = exact if len(exact) == len(known) else known
        rows[metric.name] = known
        metrics.append(recorded)
    samples = join_rows(job.dataset.keys, rows)
    part = describe(
        metrics,
        samples,
        model=record.model,
        data=replace(record.data, images=len(samples)),
        settings=record.settings,
        environment=record.environment,
        seconds=record.seconds,
        forward_passes=record.forward_passes,
    )
    part = replace(part, folder=record.folder, created=record.created)
    return record if part.scores == record.scores else part


class FolderStore(Store):
    """Rows on disk: the folder of one record. Several processes may add rows at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.parts = folder / PARTS_FOLDER
        self._identity: dict[str, Any] = {}
        self._files: list[Path] = []  # parts that were read
        self._unsaved: dict[str, list[pd.DataFrame]] = {}
        self._saved_at, self._interval = time.monotonic(), FIRST_SAVE

    def prepare(self, job: Job, *, fresh: bool = False) -> None:
        """Makes the folder ready for a job, which the main process does once for all of them.

        Raises:
            RecordError: The folder cannot be written, or holds other work.
        """
        self._identity = identity_of(job.model, job.data, job.settings)
        if fresh:
            shutil.rmtree(self.parts, ignore_errors=True)
            for name in (RECORD_FILE, SAMPLES_FILE):
                (self.folder / name).unlink(missing_ok=True)
        self.read(job)
        if self.before is not None:
            old = identity_of(self.before.model, self.before.data, self.before.settings)
            _refuse_mixing(self.folder, "a record", old, self._identity)
        file = self.parts / IDENTITY_FILE
        if file.is_file():
            try:
                old = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RecordError(f"cannot read {file}: start over with --fresh") from error
            _refuse_mixing(self.folder, "unfinished parts", old, self._identity)
        self._to_measure(job)

    def read(self, job: Job) -> None:
        """Reads the record and the parts as they are now."""
        self._identity = identity_of(job.model, job.data, job.settings)
        whole = (self.folder / RECORD_FILE).is_file() and (self.folder / SAMPLES_FILE).is_file()
        self.before = read_record(self.folder) if whole else None
        self._table, self._added, self._files = None, {}, []
        for path in sorted(self.parts.glob("*/*.parquet")):  # names begin with the time of writing
            try:
                rows = pd.read_parquet(path).set_index(KEY)
            except (OSError, ValueError, KeyError):
                log.warning("cannot read %s: its images are measured again", path)
                continue
            self._files.append(path)
            self._added.setdefault(path.parent.name, []).append(rows)

    def append(self, metric: Metric, rows: pd.DataFrame) -> None:
        """Adds rows, and saves them now and then."""
        super().append(metric, rows)
        self._unsaved.setdefault(_folder_name(metric), []).append(rows)
        if time.monotonic() - self._saved_at > self._interval:
            self.flush()
            self._interval = min(2 * self._interval, LAST_SAVE)

    def flush(self) -> None:
        """Saves the rows that are not saved yet."""
        for series, frames in self._unsaved.items():
            self._write(series, pd.concat(frames))
        self._unsaved.clear()
        self._saved_at = time.monotonic()

    def _write(self, series: str, rows: pd.DataFrame) -> None:
        folder = self.parts / series
        folder.mkdir(parents=True, exist_ok=True)
        if not (self.parts / IDENTITY_FILE).is_file():
            content = json.dumps(self._identity, indent=2).encode()
            write_atomic(self.parts / IDENTITY_FILE, content)
        # No other process has this name, and the order of the names is that of writing.
        name = f"{time.time_ns()}-{socket.gethostname()}-{os.getpid()}.parquet"
        write_atomic(folder / name, rows.rename_axis(KEY).reset_index().to_parquet(index=False))

    def finish(self, job: Job, environment: Mapping[str, Any]) -> tuple[Record, bool]:
        """Writes the record of all rows, unless it is there already.

        Returns:
            The record, and whether it was written.
        """
        self.read(job)
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        record = self.derive(job, environment)
        if self.before is not None and _says_the_same(self.before, record):
            record, written = self.before, False
        else:
            record, written = write_record(self.folder, record), True
        self._drop_parts(job)
        return record, written

    def _drop_parts(self, job: Job) -> None:
        """Removes the parts that went into the record; what a job did not ask for stays."""
        used = {_folder_name(m): (m, set(job.keys[m.name])) for m in job.metrics}
        for series, frames in self._added.items():
            if series in used:
                metric, keys = used[series]
                rows = widest(metric, frames)
                exact = metric.as_asked(rows)
                went = rows.index.isin(exact.index[exact.index.isin(keys)])
                whole = pd.Series(metric.extent(exact), exact.index).reindex(rows.index)
                cut = metric.extent(rows) > whole.to_numpy()
                rows.loc[went, [PASSES, SECONDS]] = 0  # counted in the record
                if (~went | cut).any():
                    self._write(series, rows[~went | cut])
        for path in self._files:
            if path.parent.name in used:
                path.unlink(missing_ok=True)
        remove_if_empty(self.parts)


def _folder_name(metric: Metric) -> str:
    return metric.series.replace("/", "_")


def remove_if_empty(parts: Path) -> None:
    """Removes folders that hold no parts; one that another process has written to stays."""
    for folder in parts.glob("*/"):
        if not any(folder.iterdir()):
            folder.rmdir()
    if {path.name for path in parts.glob("*")} <= {IDENTITY_FILE}:
        (parts / IDENTITY_FILE).unlink(missing_ok=True)
        if parts.is_dir():
            parts.rmdir()


def widest(metric: Metric, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row per image: the widest of several measurements, the latest of equal ones.

    Near ties of any of them count, and so do the forward passes and seconds of all.
    """
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return NOTHING
    rows = pd.concat(frames)
    if not rows.index.has_duplicates:
        return rows
    best = rows.iloc[np.argsort(metric.extent(rows), kind="stable")]
    best = best[~best.index.duplicated(keep="last")]
    work = rows.groupby(level=0)[[PASSES, SECONDS]].sum()
    ties = rows[NEAR_TIE].astype(bool).groupby(level=0).any()
    return best.assign(**{NEAR_TIE: ties, PASSES: work[PASSES], SECONDS: work[SECONDS]})


def join_rows(order: Sequence[str], rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row per image that any metric has, in the order of the keys."""
    frames = [frame for frame in rows.values() if len(frame)]
    keys = {key for frame in frames for key in frame.index}
    index = pd.Index([key for key in order if key in keys], name=KEY)
    if not frames:
        return pd.DataFrame({KEY: index})
    own = [
        _nullable(frame.drop(columns=[PASSES, SECONDS, NEAR_TIE])).reindex(index)
        for frame in frames
    ]
    ties = pd.concat([frame[NEAR_TIE] for frame in frames], axis=1).reindex(index)
    table = pd.concat(own, axis=1).dropna(axis=1, how="all")
    return table.assign(**{NEAR_TIE: ties.eq(True).any(axis=1)}).reset_index()


def _nullable(frame: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers and truth values that stay so where cells are empty."""
    kinds = {"i": "Int64", "b": "boolean"}
    types = {name: kinds[t.kind] for name, t in frame.dtypes.items() if t.kind in kinds}
    return frame.astype(types)


def describe(
    metrics: Sequence[Metric],
    samples: pd.DataFrame,
    *,
    model: ModelInfo,
    data: DataInfo,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    seconds: float,
    forward_passes: int,
) -> Record:
    """The record of a table of images."""
    measured = [metric.as_measured(samples) for metric in metrics]
    maps = {m.name: m.offset_scores(samples) for m in measured}
    return Record(
        model=model,
        data=data,
        settings=settings,
        metrics={metric.name: describe_metric(metric, samples) for metric in measured},
        scores=score_rows(measured, samples),
        maps={
            name: tuple(OffsetScore.at(offset, score) for offset, score in cells.items())
            for name, cells in maps.items()
            if cells
        },
        environment=environment,
        seconds=seconds,
        forward_passes=forward_passes,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        table=samples,
    )


def _sum(rows: Mapping[str, pd.DataFrame], name: str) -> float:
    return float(sum(frame[name].sum() for frame in rows.values() if len(frame)))


def _says_the_same(old: Record, new: Record) -> bool:
    """Whether a record has the same images, metrics and scores."""
    return (old.metrics, old.scores, old.settings, old.data, dict(old.maps)) == (
        new.metrics,
        new.scores,
        new.settings,
        new.data,
        dict(new.maps),
    )


def _settings(metric: Metric) -> str:
    return ", ".join(f"{k} {v}" for k, v in metric.settings().items() if k != "upper_bound")


# --- what two runs must agree on before they may share work


def identity_of(model: ModelInfo, data: DataInfo, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that must agree; how many images and how wide a margin may differ."""
    whole = Geometry(**data.geometry).to_json()
    content = {
        "schema": SCHEMA,
        "model": {k: v for k, v in vars(model).items() if k not in ("source", "parameters")},
        "data": {
            "name": data.name,
            "split": data.split,
            "fingerprint": data.fingerprint,
            "labels": data.labels,
            "geometry": {key: value for key, value in whole.items() if key != "margin"},
        },
        "settings": {k: settings.get(k) for k in ("seed", "precision", "engine")},
    }
    as_read_back: dict[str, Any] = json.loads(json.dumps(content, default=dict))
    return as_read_back


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where two identities differ, in words."""
    words: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            words += _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            words.append(f"{prefix}{key} was {_short(before)}, is {_short(after)}")
    return words


def _without_parts(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {**identity, "model": {k: v for k, v in identity["model"].items() if k != "parts"}}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}"


def _refuse_mixing(folder: Path, what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    changed = _differences(_without_parts(old), _without_parts(new))
    before, after = (identity["model"].get("parts", {}) for identity in (old, new))
    parts = [
        f"{part} was {before[part]}, is {after[part]}" for part in changed_parts(before, after)
    ]
    if parts:  # which say what the digest cannot
        changed = [*parts, *(words for words in changed if not words.startswith("model.digest"))]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise RecordError(
            f"{folder} holds {what} of other work ({'; '.join(changed[:3])}{more}): "
            "give another --output or --name, or replace it with --fresh"
        )


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the lock of a record folder; a second process is refused.

    The system drops the lock with the process, however it ends, so no lock is ever stale.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RecordError(
            f"{folder} is being written by another process: wait for it, or give another --output"
        ) from error
    try:
        yield
    finally:
        lock.release()  # the file stays: removing it would let two waiting processes in


def make_folder(folder: Path, *, images: int) -> None:
    """Makes the record folder, and fails now rather than after hours if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / ".probe", b"0" * 4096)
        (folder / ".probe").unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise RecordError(
            f"cannot write to the output folder {folder}: {error.strerror or error}; "
            "choose another with --output"
        ) from error
    needed = SPARE_BYTES + images * BYTES_PER_IMAGE
    if free < needed:
        raise RecordError(
            f"the disk of {folder} has {free / 2**20:.0f} MB free and the run may need "
            f"{needed / 2**20:.0f} MB: free some, or choose another --output"
        )
