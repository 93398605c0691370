"""Two models on the same images: how much better, how sure, and which images tell them apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    shared, left_out = _shared(first, second, max_shift)
    compared = []
    for name in shared:
        reasons = why_not(first, second, name)
        if not reasons and not (name in ours and name in theirs):
            reasons = [f"{name.stem} comes from a metric that is not known here: name its --plugin"]
        if reasons:
            left_out += reasons
        else:
            a, b = ours[name].align(theirs[name], join="inner")
            unit, bound = first.scores[name].unit, first.is_upper_bound(name)
            paired = compare_paired(a, b, unit=unit)
            scores = [mean_score(values, unit=unit) for values in (a, b)]
            compared.append(ScoreComparison(name, scores[0], scores[1], paired, bound))
    return Comparison(first, second, tuple(compared), tuple(dict.fromkeys(left_out)))


def _shared(
    first: Record, second: Record, max_shift: int | None
) -> tuple[list[ScoreName], list[str]]:
    """The scores both records have, curves at one radius each; and curves that do not reach it."""
    shared, short = [], {}
    for stem in first.scores.stems():
        if stem not in second.scores.stems():
            continue
        radii = set(first.scores.curve(stem)) & set(second.scores.curve(stem))
        if not radii:
            shared.append(stem)
        elif max_shift is None or max_shift in radii:
            radius = max(radii) if max_shift is None else max_shift
            shared.append(replace(stem, radius=radius))
        else:
            short[stem] = max(radii)
    if short and not any(name.radius is not None for name in shared):
        raise UsageError(
            f"both records reach a max shift of {max(short.values())}, got --max-shift {max_shift}"
        )
    return shared, [f"{stem} reaches a max shift of {far} in both" for stem, far in short.items()]


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
