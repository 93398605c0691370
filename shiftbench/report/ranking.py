"""Which scores of comparable records may be ranked, and which are the best of their column.

Scores alone decide wherever they lie far enough apart. Only where they do not are the images
compared: each record's samples are read once, and of them the columns that these scores need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class _Contest:
    """Scores of one column that may be compared."""

    scores: Mapping[int, Score]  # by the number of the record
    leader: int | None = None  # whose score is the best; None: nothing to win
    rivals: tuple[int, ...] = ()  # whose images decide whether they differ from the leader


def rank(records: Sequence[Record], names: Sequence[ScoreName]) -> list[dict[ScoreName, Measured]]:
    """The scores of each record with their marks.

    Args:
        records: One group: everything but the metrics' own conditions agrees.
        names: The scores, with their radius where they are points of a curve.
    """
    contests = {name: _contest(records, name) for name in names}
    needed: dict[int, set[ScoreName]] = {}
    for name, contest in contests.items():
        if contest.leader is not None and contest.rivals:
            for index in (contest.leader, *contest.rivals):
                needed.setdefault(index, set()).add(name)
    outcomes = {index: _read(records[index], wanted) for index, wanted in needed.items()}
    points: list[dict[ScoreName, Measured]] = [{} for _ in records]
    for name, contest in contests.items():
        best = _winners(name, contest, outcomes)
        for index, record in enumerate(records):
            score = record.scores.get(name)
            if score is not None:
                points[index][name] = Measured(
                    score,
                    bound=record.is_upper_bound(name),
                    ranked=index in contest.scores,
                    best=index in best,
                    own_n=score.n != record.data.images,
                )
    return points


def lower_is_better(records: Sequence[Record], name: ScoreName) -> bool:
    """Whether less of a score is better, by the metric that measured it."""
    infos = (info for r in records if (info := r.metric_of(name)) is not None)
    metric = next((metric for info in infos if (metric := info.load()) is not None), None)
    return metric is not None and metric.lower_is_better(name)


def _contest(records: Sequence[Record], name: ScoreName) -> _Contest:
    """The largest set of records whose score is comparable and exact."""
    there = [index for index, record in enumerate(records) if name in record.scores]
    keys = {
        index: None if records[index].is_upper_bound(name) else comparison_key(records[index], name)
        for index in there
    }
    largest = Counter(key for key in keys.values() if key is not None).most_common(1)
    if not largest:
        return _Contest({})
    scores = {i: records[i].scores[name] for i in there if keys[i] == largest[0][0]}
    if len(scores) < 2 or any(score.unit in UNRANKED_UNITS for score in scores.values()):
        return _Contest(scores)
    lower = lower_is_better([records[i] for i in scores], name)
    leader = (min if lower else max)(scores, key=lambda i: scores[i].value)
    rivals = [
        i for i in scores if i != leader and not differ_for_any_pairing(scores[leader], scores[i])
    ]
    return _Contest(scores, leader, tuple(rivals))


def _read(record: Record, names: set[ScoreName]) -> Outcomes:
    infos = {id(info): info for name in names if (info := record.metric_of(name)) is not None}
    metrics = [metric for info in infos.values() if (metric := info.load()) is not None]
    columns = dict.fromkeys(["label", *(c for metric in metrics for c in metric.columns)])
    try:
        samples = record.samples(list(columns))
    except RecordError:
        return {}  # a record without its table of images: only equal scores are tied
    outcomes = {name: v for metric in metrics for name, v in metric.outcomes(samples).items()}
    return {n: v[~np.isnan(v)] for n, v in outcomes.items() if n in names}


def _winners(name: ScoreName, contest: _Contest, outcomes: Mapping[int, Outcomes]) -> set[int]:
    """The leader, and the rivals that a paired test does not tell from it."""
    if contest.leader is None:
        return set()
    winners, best = {contest.leader}, contest.scores[contest.leader]
    for rival in contest.rivals:
        first, second = (outcomes[index].get(name) for index in (contest.leader, rival))
        # The scores are of the same images in the same order: their digests are equal.
        if first is None or second is None or len(first) != len(second):
            tied = contest.scores[rival].value == best.value
        else:
            tied = not compare_paired(first, second, unit=best.unit).is_significant
        if tied:
            winners.add(rival)
    return winners
