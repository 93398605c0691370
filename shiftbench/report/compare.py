"""Two models on the same images: how much better, how sure, and which images tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.errors import RecordError, UsageError
from shiftbench.records.choose import is_upper_bound
from shiftbench.records.record import SEARCHED, Record
from shiftbench.report.table import attacks_of
from shiftbench.statistics import PairedComparison, Score, compare_paired, wilson

# A difference between these says nothing about the models.
_SAME_SETTINGS = ("step", "crop_pct", "pad", "seed", "repeats")


@dataclass(frozen=True)
class MetricComparison:
    """One metric of two models."""

    metric: str  # `accuracy`, `consistency_half`, `adversarial_crop`
    first: Score
    second: Score
    paired: PairedComparison
    upper_bound: bool  # a search was sampled: the scores, and their difference, are not exact


@dataclass(frozen=True)
class Comparison:
    """Two models on the same images."""

    first: Record
    second: Record
    max_shift: int  # of the adversarial metrics, in steps
    metrics: tuple[MetricComparison, ...]
    samples: pd.DataFrame  # a row per image, columns of the two with suffixes `_first`, `_second`


def _paired_samples(first: Record, second: Record) -> pd.DataFrame:
    """Joins the two tables of images by key; anything but the same images is refused."""
    a, b = (
        table.drop(columns=[name for name in table if str(name).endswith("_bitmap")])
        for table in (first.samples(), second.samples())
    )
    if set(a["key"]) != set(b["key"]):
        shared = len(set(a["key"]) & set(b["key"]))
        raise RecordError(
            f"{first.model.name} and {second.model.name} were measured on different images "
            f"({len(a)} and {len(b)}, {shared} in common): "
            "run both with the same --data and --limit"
        )
    joined = a.merge(b, on="key", suffixes=("_first", "_second"), validate="one_to_one")
    if (joined["label_first"] != joined["label_second"]).any():
        raise RecordError(
            f"{first.model.name} and {second.model.name} were measured with different labels: "
            "run both with the same --data"
        )
    return joined


def _require_same_settings(first: Record, second: Record) -> None:
    for name in _SAME_SETTINGS:
        a, b = first.settings.get(name), second.settings.get(name)
        if a != b:
            raise UsageError(
                f"{first.model.name} was run with {name}={a} and {second.model.name} with "
                f"{name}={b}: run both alike to compare them"
            )


def searched_by_both(samples: pd.DataFrame) -> NDArray[np.bool_]:
    """Which images of a comparison both records searched."""
    both = np.ones(len(samples), dtype=bool)
    for suffix in ("_first", "_second"):
        if f"{SEARCHED}{suffix}" in samples:
            both &= samples[f"{SEARCHED}{suffix}"].to_numpy(bool)
    return both


def survives(broken_radius: pd.Series, max_shift: int) -> NDArray[np.bool_]:
    """Which images are right at every offset up to `max_shift`; an empty radius never breaks."""
    radius = broken_radius.to_numpy(dtype=np.float64, na_value=np.nan)
    kept: NDArray[np.bool_] = np.isnan(radius) | (radius > max_shift)
    return kept


def _metric(
    name: str, first: NDArray[np.bool_], second: NDArray[np.bool_], *, upper_bound: bool = False
) -> MetricComparison:
    return MetricComparison(
        metric=name,
        first=wilson(int(first.sum()), len(first)),
        second=wilson(int(second.sum()), len(second)),
        paired=compare_paired(first, second),
        upper_bound=upper_bound,
    )


def common_attacks(first: Record, second: Record) -> list[str]:
    """The attacks both records have."""
    return [a for a in attacks_of([first]) if a in second.scores.adversarial]


def _shared_radius(records: Sequence[Record], attacks: Sequence[str], max_shift: int | None) -> int:
    radii = [max(record.scores.adversarial[attack]) for record in records for attack in attacks]
    largest = min(radii, default=0)
    if max_shift is not None and max_shift > largest:
        raise UsageError(
            f"both records reach a max shift of {largest}, got --max-shift {max_shift}"
        )
    return largest if max_shift is None else max_shift


def compare(first: Record, second: Record, *, max_shift: int | None = None) -> Comparison:
    """Compares two records image by image.

    Args:
        first: A record with its samples.
        second: The same images seen by another model; differences are second minus first.
        max_shift: Radius of the adversarial metrics, in steps; the largest both have by default.
    """
    samples = _paired_samples(first, second)
    _require_same_settings(first, second)
    attacks = common_attacks(first, second)
    radius = _shared_radius([first, second], attacks, max_shift)
    bound = is_upper_bound(first) or is_upper_bound(second)

    def outcomes(column: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        a, b = (samples[f"{column}{suffix}"].to_numpy(bool) for suffix in ("_first", "_second"))
        return a, b

    right = [
        (samples[f"prediction{suffix}"] == samples[f"label{suffix}"]).to_numpy(bool)
        for suffix in ("_first", "_second")
    ]
    metrics = [_metric("accuracy", right[0], right[1])]
    for kind in first.scores.consistency:
        if kind in second.scores.consistency:
            metrics.append(_metric(f"consistency_{kind}", *outcomes(f"consistent_{kind}")))
    both = samples[searched_by_both(samples)]
    if attacks and both.empty:
        raise RecordError(
            f"{first.model.name} and {second.model.name} searched different images: "
            "run both with the same --search-limit and --seed"
        )
    for attack in attacks:
        kept = [
            survives(both[f"{attack}_broken_radius{suffix}"], radius)
            for suffix in ("_first", "_second")
        ]
        metrics.append(_metric(f"adversarial_{attack}", kept[0], kept[1], upper_bound=bound))
    return Comparison(first, second, radius, tuple(metrics), samples)


def to_rows(comparison: Comparison) -> list[dict[str, str | float | int | bool]]:
    """The comparison as flat rows of fractions, for programs."""
    return [
        {
            "metric": m.metric,
            "first": m.first.value,
            "first_low": m.first.low,
            "first_high": m.first.high,
            "second": m.second.value,
            "second_low": m.second.low,
            "second_high": m.second.high,
            "difference": m.paired.difference,
            "difference_low": m.paired.low,
            "difference_high": m.paired.high,
            "only_first": m.paired.only_first,
            "only_second": m.paired.only_second,
            "n": m.paired.n,
            "p_value": m.paired.p_value,
            "upper_bound": m.upper_bound,
        }
        for m in comparison.metrics
    ]
