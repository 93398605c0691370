"""From the rows of every metric to the table of images and the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.errors import DataError, RecordError
from shiftbench.metrics import score_rows
from shiftbench.metrics.base import METRICS, NEAR_TIE, PASSES, Metric
from shiftbench.records.record import KEY, MetricInfo, OffsetScore, Record, images_digest
from shiftbench.run.plan import Plan
from shiftbench.run.resume import SECONDS, Rows


def assemble(
    plan: Plan, rows: Rows, before: Record | None, environment: Mapping[str, Any]
) -> tuple[Record, pd.DataFrame]:
    """The record of everything that is measured, with its table of images.

    Args:
        plan: What this run asked for.
        rows: By metric: of the plan, and of the record that grows.
        before: The record that grows.
        environment: Where the new part was made.

    Raises:
        RecordError: Images lack rows that they should have.
        DataError: No image could be read.
    """
    metrics = {metric.name: metric for metric in plan.metrics}
    metrics |= {name: m for name, m in metrics_of(before).items() if name not in metrics}
    asked = {metric.name: plan.keys_of(metric) for metric in plan.metrics}
    settled = {
        name: metric.complete_rows(rows[name], rows[name].index.isin(asked.get(name, [])))
        for name, metric in metrics.items()
        if len(rows[name])
    }
    samples = _join(plan, settled)
    missing = _missing(plan, settled)
    if missing and not plan.skips_bad:
        raise RecordError(
            f"{missing} of {len(plan.images)} images have no rows: every process must write to "
            "the same folder; run the same command to continue"
        )
    if samples.empty:
        raise DataError(f"none of the {len(plan.images)} images could be read")
    known = [metrics[name].as_measured(samples) for name in settled]
    work = [frame[[PASSES, SECONDS]].sum() for frame in settled.values()]
    record = Record(
        model=plan.model,
        data=replace(
            plan.data, images=len(samples), skipped=missing, geometry=_geometry(plan, before)
        ),
        settings=_settings(plan, samples, before),
        metrics={metric.name: _describe(metric, samples) for metric in known},
        scores=score_rows(known, samples),
        maps={m.name: cells for m in known if (cells := _map(m, samples))},
        environment=environment,
        seconds=float(sum(w[SECONDS] for w in work)) + (before.seconds if before else 0.0),
        forward_passes=int(sum(w[PASSES] for w in work)) + (before.forward_passes if before else 0),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    return record, samples


def metrics_of(record: Record | None) -> dict[str, Metric]:
    """The metrics of a record that are known here."""
    infos = {} if record is None else record.metrics
    loaded = {name: info.load() for name, info in infos.items()}
    return {name: metric for name, metric in loaded.items() if metric is not None}


def _join(plan: Plan, rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row per image that has any, in the order of the data set."""
    keys = {key for frame in rows.values() for key in frame.index}
    order = pd.Index([key for key in plan.dataset.keys if key in keys], name=KEY)
    own = [
        _nullable(frame.drop(columns=[PASSES, SECONDS, NEAR_TIE])).reindex(order)
        for frame in rows.values()
    ]
    ties = pd.concat([frame[NEAR_TIE] for frame in rows.values()], axis=1).reindex(order)
    table = pd.concat(own, axis=1)
    return table.assign(**{NEAR_TIE: ties.eq(True).any(axis=1)}).reset_index()


def _nullable(frame: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers and truth values that stay so where cells are empty."""
    kinds = {"i": "Int64", "b": "boolean"}
    types = {name: kinds[t.kind] for name, t in frame.dtypes.items() if t.kind in kinds}
    return frame.astype(types)


def _missing(plan: Plan, rows: Mapping[str, pd.DataFrame]) -> int:
    """How many images lack something that this run asked for."""
    lacking: set[str] = set()
    for metric in plan.metrics:
        frame = rows.get(metric.name, pd.DataFrame(index=pd.Index([], name=KEY)))
        keys = pd.Index(plan.keys_of(metric), name=KEY)
        lacking |= set(keys[metric.missing(frame.reindex(keys))])
    return len(lacking)


def _settings(plan: Plan, samples: pd.DataFrame, before: Record | None) -> dict[str, Any]:
    """The settings of this run; limits speak of everything that is there."""
    settings = dict(plan.settings)
    if before is not None:
        old, everyone = before.settings, len(samples) == len(plan.dataset)
        settings["limit"] = None if everyone else max(len(samples), settings["limit"] or 0)
        limits = [s["search_limit"] for s in (settings, old) if "search_limit" in s]
        settings["search_limit"] = None if None in limits else max(limits)
        settings["skip_bad"] = settings["skip_bad"] or bool(old.get("skip_bad"))
    return settings


def _geometry(plan: Plan, before: Record | None) -> dict[str, Any]:
    """How the images were cut: with the widest margin that any part of the record needed."""
    margins = [r.data.geometry["margin"] for r in (before,) if r is not None]
    return {**plan.data.geometry, "margin": max([plan.data.geometry["margin"], *margins])}


def _describe(metric: Metric, samples: pd.DataFrame) -> MetricInfo:
    outcomes = metric.outcomes(samples)
    measured = samples[metric.columns[0]].notna()

    def digest(chosen: pd.Series | NDArray[np.bool_]) -> str:
        return images_digest(samples.loc[chosen, KEY], samples.loc[chosen, "label"])

    # A grid that grew on some of the images only leaves its outer rings to them.
    fewer = {name: pd.notna(values) for name, values in outcomes.items()}
    return MetricInfo(
        kind=next(kind for kind in METRICS if type(metric) is METRICS.get(kind)),
        settings=metric.settings(),
        scores=tuple(dict.fromkeys(name.stem for name in outcomes)),
        images=int(measured.sum()),
        digest=digest(measured),
        parts={str(n): digest(there) for n, there in fewer.items() if (there != measured).any()},
    )


def _map(metric: Metric, samples: pd.DataFrame) -> tuple[OffsetScore, ...]:
    scores = metric.offset_scores(samples)
    return tuple(OffsetScore.at(offset, score) for offset, score in scores.items())
