"""Two models on the same images: how much better, how sure, and which images tell them apart."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from shiftbench.errors import UsageError
from shiftbench.records.comparable import why_not
from shiftbench.records.record import Record
from shiftbench.scores import ScoreName
from shiftbench.statistics import PairedComparison, Score, compare_paired, mean_score


@dataclass(frozen=True)
class ScoreComparison:
    """One score of two models, on the images that both were measured on."""

    name: ScoreName
    first: Score
    second: Score
    paired: PairedComparison
    bound: bool  # a search was sampled: the scores, and their difference, are not exact


@dataclass(frozen=True)
class Comparison:
    """Two models on the same images."""

    first: Record
    second: Record
    scores: tuple[ScoreComparison, ...]
    left_out: tuple[str, ...]  # scores of both that cannot be compared, and why

    def radius(self, name: ScoreName) -> int | None:
        """The max shift, in steps, at which a curve was compared; None where it was not."""
        found = [s.name.radius for s in self.scores if s.name.curve == name.curve]
        return found[0] if found else None


def compare(first: Record, second: Record, *, max_shift: int | None = None) -> Comparison:
    """Compares two records image by image.

    Args:
        first: A record with its samples.
        second: The same images seen by another model; differences are second minus first.
        max_shift: Radius of the adversarial scores, in steps; the largest both have by default.

    Raises:
        UsageError: The records were made under different conditions, or do not reach `max_shift`.
    """
    reasons = why_not(first, second)
    if reasons:
        raise UsageError(
            f"{first.model.name} and {second.model.name} cannot be compared: "
            f"{'; '.join(reasons)}: run both alike"
        )
    ours, theirs = first.outcomes(), second.outcomes()
    shared = _shared(first, second, max_shift)
    left_out = [reason for name in shared for reason in why_not(first, second, name)]
    compared = [
        _compare(name, ours[name], theirs[name], first.is_upper_bound(name))
        for name in shared
        if name in ours and name in theirs and not why_not(first, second, name)
    ]
    return Comparison(first, second, tuple(compared), tuple(dict.fromkeys(left_out)))


def _shared(first: Record, second: Record, max_shift: int | None) -> list[ScoreName]:
    """The scores both records have, curves at one radius each."""
    found = []
    for stem in first.scores.stems():
        if stem not in second.scores.stems():
            continue
        radii = set(first.scores.curve(stem)) & set(second.scores.curve(stem))
        if not radii:
            found.append(stem)
            continue
        if max_shift is not None and max_shift not in radii:
            raise UsageError(
                f"both records reach a max shift of {max(radii)} for {stem}, "
                f"got --max-shift {max_shift}"
            )
        radius = max(radii) if max_shift is None else max_shift
        found.append(ScoreName(stem.family, stem.kind, radius))
    return found


def _compare(name: ScoreName, first: pd.Series, second: pd.Series, bound: bool) -> ScoreComparison:
    both = first.index.intersection(second.index)
    a, b = first.loc[both].to_numpy(), second.loc[both].to_numpy()
    return ScoreComparison(name, mean_score(a), mean_score(b), compare_paired(a, b), bound)


def to_rows(comparison: Comparison) -> list[dict[str, str | float | int | bool]]:
    """The comparison as flat rows of fractions, for programs."""
    return [
        {
            "metric": s.name.stem,
            "max_shift": "" if s.name.radius is None else s.name.radius,
            "first": s.first.value,
            "first_low": s.first.low,
            "first_high": s.first.high,
            "second": s.second.value,
            "second_low": s.second.low,
            "second_high": s.second.high,
            "difference": s.paired.difference,
            "difference_low": s.paired.low,
            "difference_high": s.paired.high,
            "only_first": s.paired.only_first,
            "only_second": s.paired.only_second,
            "n": s.paired.n,
            "p_value": s.paired.p_value,
            "upper_bound": s.bound,
        }
        for s in comparison.scores
    ]
