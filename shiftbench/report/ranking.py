"""Which scores of comparable records may be ranked, and which are the best of their column.

Scores alone decide wherever they lie far enough apart. Only where they do not are the images
compared: the samples of such a record are read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from shiftbench.errors import RecordError
from shiftbench.records.comparable import comparison_key
from shiftbench.records.record import Record
from shiftbench.scores import UNRANKED_UNITS, ScoreName
from shiftbench.statistics import Score, compare_paired, differ_for_any_pairing

Outcomes = Mapping[ScoreName, NDArray[np.float64]]  # one number per image


@dataclass(frozen=True)
class Measured:
    """A score as a table shows it."""

    score: Score
    bound: bool = False  # from a sampled search: the true value may be lower
    ranked: bool = True  # measured like most of its column: it may be sorted and may win
    best: bool = False  # the best of its column, or not significantly different from it
    own_n: bool = False  # of fewer images than the row's other scores


def rank(records: Sequence[Record], names: Sequence[ScoreName]) -> list[dict[ScoreName, Measured]]:
    """The scores of each record with their marks.

    Args:
        records: One group: everything but the metrics' own conditions agrees.
        names: The scores, with their radius where they are points of a curve.
    """

    @cache
    def outcomes(index: int) -> Outcomes:
        return _read(records[index])

    points: list[dict[ScoreName, Measured]] = [{} for _ in records]
    for name in names:
        ranked = _comparable(records, name)
        best = _best(records, name, ranked, outcomes)
        for index, record in enumerate(records):
            score = record.scores.get(name)
            if score is not None:
                points[index][name] = Measured(
                    score,
                    bound=record.is_upper_bound(name),
                    ranked=index in ranked,
                    best=index in best,
                    own_n=score.n != record.data.images,
                )
    return points


def lower_is_better(records: Sequence[Record], name: ScoreName) -> bool:
    """Whether less of a score is better, by the metric that measured it."""
    infos = (info for r in records if (info := r.metric_of(name)) is not None)
    metric = next((metric for info in infos if (metric := info.load()) is not None), None)
    return metric is not None and metric.lower_is_better(name)


def _comparable(records: Sequence[Record], name: ScoreName) -> dict[int, Score]:
    """The largest set of scores that are exact and may be compared, by the record's number."""
    keys = {
        index: comparison_key(record, name)
        for index, record in enumerate(records)
        if name in record.scores and not record.is_upper_bound(name)
    }
    largest = Counter(key for key in keys.values() if key is not None).most_common(1)
    return {
        index: records[index].scores[name]
        for index, key in keys.items()
        if largest and key == largest[0][0]
    }


def _best(
    records: Sequence[Record],
    name: ScoreName,
    scores: Mapping[int, Score],
    outcomes: Callable[[int], Outcomes],
) -> set[int]:
    """The best of some scores, and those that a paired test does not tell from it."""
    if len(scores) < 2 or any(score.unit in UNRANKED_UNITS for score in scores.values()):
        return set()
    lower = lower_is_better([records[i] for i in scores], name)
    leader = (min if lower else max)(scores, key=scores.__getitem__)
    best, winners = scores[leader], {leader}
    for index, score in scores.items():
        if index == leader or differ_for_any_pairing(best, score):
            continue
        first, second = outcomes(leader).get(name), outcomes(index).get(name)
        # The scores are of the same images in the same order: their digests are equal.
        if first is None or second is None or len(first) != len(second):
            tied = score.value == best.value
        else:
            tied = not compare_paired(first, second, unit=best.unit).is_significant
        if tied:
            winners.add(index)
    return winners


def _read(record: Record) -> Outcomes:
    """Empty for a record without its table of images: there only equal scores are tied."""
    metrics = [m for info in record.metrics.values() if (m := info.load()) is not None]
    try:
        samples = record.samples(["label", *(c for metric in metrics for c in metric.columns)])
    except RecordError:
        return {}
    outcomes = {name: v for metric in metrics for name, v in metric.outcomes(samples).items()}
    return {name: values[~np.isnan(values)] for name, values in outcomes.items()}
