"""The rows of a record: what there is, what is missing, and the record that follows from them.

A record grows: a later run may ask for other metrics, wider grids, more images or draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.errors import DataError, RecordError
from shiftbench.identity import changed_digests, plugin_digests
from shiftbench.metrics.base import KEY, NEAR_TIE_COLUMN, PASSES, Metric, column, score_rows
from shiftbench.records.record import (
    DataInfo,
    MetricInfo,
    ModelInfo,
    Record,
    describe_metric,
)
from shiftbench.run.job import Job

SECONDS = "seconds"  # column of the rows, besides those of the metric
NOTHING = pd.DataFrame(index=pd.Index([], name=KEY))


class Store:
    """Rows in memory, on top of the record that they are added to."""

    def __init__(self, before: Record | None = None) -> None:
        self.before = before
        self._table: pd.DataFrame | None = None
        self._added: dict[str, list[pd.DataFrame]] = {}  # series -> rows by key, oldest first
        self._skipped: set[str] = set()  # images that cannot be read

    def append(self, metric: Metric, rows: pd.DataFrame, seconds: float = 0.0) -> None:
        """Adds rows, by key, that took some time."""
        timed = rows.assign(**{SECONDS: seconds / max(1, len(rows))})
        self._added.setdefault(series_folder(metric), []).append(timed)

    def extend(self, other: Store) -> None:
        """Adds the rows of another store, which are of other images."""
        for series, frames in other._added.items():
            self._added.setdefault(series, []).extend(frames)

    def skip(self, keys: Sequence[str]) -> None:
        """Notes images that cannot be read."""
        self._skipped.update(keys)

    def added(self, metric: Metric) -> pd.DataFrame:
        """The rows added so far, one per image."""
        return widest(metric, self._added.get(series_folder(metric), []))

    def answers(self, metric: Metric) -> pd.DataFrame:
        """The rows added so far that answer a metric, reduced to what it asks.

        Near ties and the work of all rows of an image count.
        """
        # Each for itself: of draws there may be too many in the widest row, and enough in another.
        frames = self._added.get(series_folder(metric), [])
        exact = widest(metric, [metric.as_asked(rows) for rows in frames])
        whole = widest(metric, frames)
        common = (NEAR_TIE_COLUMN, PASSES, SECONDS)
        return exact.assign(**{c: whole.loc[exact.index, c] for c in common if len(exact)})

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
        rows = samples.loc[samples[columns[0]].notna(), [*columns, NEAR_TIE_COLUMN]].copy()
        return rows.assign(**{PASSES: 0, SECONDS: 0.0})

    def missing(self, job: Job) -> dict[str, list[str]]:
        """The images that each metric has still to measure: the one place that decides it."""
        return {m.name: self._missing(m, job.keys[m.name]) for m in self._to_measure(job)}

    def _missing(self, metric: Metric, keys: Sequence[str]) -> list[str]:
        recorded = self.recorded(metric)
        answered = {
            *recorded.index[metric.answered(recorded)],
            *self.answers(metric).index,
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
            changed = changed_digests(info.code, plugin_digests(*metric.code())) if info else []
            if changed:
                raise RecordError(
                    f"{', '.join(changed)} changed since {metric.name} was measured: give another "
                    "--output or --name, or replace the record with --fresh"
                )
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
        asked, recorded = set(keys), self.recorded(metric)
        exact = metric.as_asked(_of(asked, recorded)).assign(**{NEAR_TIE_COLUMN: False})
        return widest(metric, [recorded, exact, _of(asked, self.answers(metric))])

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
        known = _of(set(job.keys[metric.name]), known)
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


def series_folder(metric: Metric) -> str:
    """A series as the name of a folder."""
    return metric.series.replace("/", "_")


def _of(keys: set[str], rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of some images; `isin` of pandas takes a second for the strings of 50,000."""
    return rows[np.array([key in keys for key in rows.index.tolist()], dtype=bool)]


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
    rows = rows.reset_index().drop_duplicates().set_index(KEY)  # files that are being merged
    best = rows.iloc[np.argsort(extent(metric, rows), kind="stable")]
    best = best[~best.index.duplicated(keep="last")]
    work = rows.groupby(level=0)[[PASSES, SECONDS]].sum()
    ties = rows[NEAR_TIE_COLUMN].astype(bool).groupby(level=0).any()
    return best.assign(**{NEAR_TIE_COLUMN: ties, PASSES: work[PASSES], SECONDS: work[SECONDS]})


def extent(metric: Metric, rows: pd.DataFrame) -> NDArray[np.float64]:
    """How much was measured of each image, where a metric may measure more or less of it."""
    return np.zeros(len(rows)) if metric.amount is None else column(rows, metric.columns[0])


def join_rows(order: Sequence[str], rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row per image that any metric has, in the order of the keys."""
    frames = [frame for frame in rows.values() if len(frame)]
    keys = {key for frame in frames for key in frame.index}
    index = pd.Index([key for key in order if key in keys], name=KEY)
    if not frames:
        return pd.DataFrame({KEY: index})
    own = [
        _nullable(frame.drop(columns=[PASSES, SECONDS, NEAR_TIE_COLUMN])).reindex(index)
        for frame in frames
    ]
    ties = pd.concat([frame[NEAR_TIE_COLUMN] for frame in frames], axis=1).reindex(index)
    table = pd.concat(own, axis=1).dropna(axis=1, how="all")
    return table.assign(**{NEAR_TIE_COLUMN: ties.eq(True).any(axis=1)}).reset_index()


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
        maps={name: cells for name, cells in maps.items() if cells},
        environment=environment,
        seconds=seconds,
        forward_passes=forward_passes,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        table=samples,
    )


def _sum(rows: Mapping[str, pd.DataFrame], name: str) -> float:
    return float(sum(frame[name].sum() for frame in rows.values() if len(frame)))


def _settings(metric: Metric) -> str:
    return ", ".join(f"{k} {v}" for k, v in metric.settings().items() if k != "upper_bound")
