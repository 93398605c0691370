"""Paired differences between models on the images that they have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shiftbench.errors import UsageError
from shiftbench.records.result import Result, paired
from shiftbench.scores import ScoreName
from shiftbench.statistics import PairedComparison, Score, compare_paired, mean_score

# Names of the images. Images are joined by identifier, so their names need not agree.
IMAGES = ("data", "split", "images")
SCALE_TOLERANCE = 0.03  # relative: the paper's resize is rounded to integer pixels


@dataclass(frozen=True)
class Difference:
    """One score of a model and of the baseline on their common images."""

    model: Result
    name: ScoreName
    baseline: Score
    value: Score
    test: PairedComparison  # model minus baseline

    @property
    def gain(self) -> float:
        """Difference with the sign that makes positive values better."""
        sign = -1 if self.model.lower_is_better(self.name) else 1
        return sign * self.test.difference

    @property
    def is_worse(self) -> bool:
        """True if the model is significantly worse than the baseline."""
        return self.gain < 0 and self.test.is_significant


def compare(
    baseline: Result, models: Sequence[Result], *, max_shift: int | None = None
) -> tuple[list[Difference], list[str]]:
    """Compare models with a baseline, image by image.

    Args:
        baseline: Differences are model minus baseline.
        models: Results under the same conditions, of any images.
        max_shift: Radius of the curves (steps); by default the largest that both results have.

    Returns:
        The differences by model and score, and the scores that were left out with the reason.

    >>> from pathlib import Path
    >>> from shiftbench import load_record
    >>> folder = Path("results/records")
    >>> names = ("xcit_pico_6_p8", "xcit_pico_6_p8_af")
    >>> baseline, model = (load_record(folder / f"{name}.scenes--scenes") for name in names)
    >>> differences, left_out = compare(baseline, [model], max_shift=3)
    >>> print(f"{differences[0].name} {differences[0].test.difference:+.3f}")
    accuracy +0.067

    Raises:
        UsageError: The conditions differ, or there is nothing in common.
    """
    differences: list[Difference] = []
    left_out: list[str] = []
    for model in models:
        conditions = unequal(baseline.conditions, model.conditions, skip=IMAGES)
        if reason := "; ".join(filter(None, [conditions, _unequal_inputs(baseline, model)])):
            raise UsageError(
                f"cannot compare {baseline.model.name} and {model.model.name}: {reason}. Run both "
                "under the same conditions"
            )
        for name in shared(baseline, model, max_shift):
            reason = _reason(baseline, model, name)
            a, b = ((), ()) if reason else paired(baseline, model, name)
            if len(a):
                scores = mean_score(a), mean_score(b)
                differences.append(Difference(model, name, *scores, compare_paired(a, b)))
            else:
                left_out.append(f"{model.model.name}: {name}: {reason or 'no common image'}")
    if not differences:
        reasons = "; ".join(dict.fromkeys(left_out)) or "no common score"
        if max_shift is not None:
            reasons += f" at a max shift of {max_shift}"
        raise UsageError(f"cannot compare anything with {baseline.model.name}: {reasons}")
    return differences, left_out


def shared(first: Result, second: Result, max_shift: int | None = None) -> list[ScoreName]:
    """List the scores of both results, each curve at one radius."""
    last: dict[ScoreName, ScoreName] = {}
    for name in first.scores:
        if name not in second.scores or (name.radius is not None and _is_other(name, max_shift)):
            continue
        known = last.get(name.curve, name)
        last[name.curve] = max(known, name, key=lambda one: one.radius or 0)
    return list(last.values())


def _is_other(name: ScoreName, max_shift: int | None) -> bool:
    return max_shift is not None and name.radius != max_shift


def _reason(first: Result, second: Result, name: ScoreName) -> str:
    """Return why a score of two results cannot be compared; empty if it can."""
    if any(name not in result.outcomes() for result in (first, second)):
        return "its metric is not registered. Load its plug-in with --plugin"
    return unequal(first.settings_of(name), second.settings_of(name), skip=IMAGES)


def _unequal_inputs(first: Result, second: Result) -> str:
    """Return why the networks' inputs of two results cannot be compared; empty if they can."""
    cuts = first.data.geometry, second.data.geometry
    if any(cut.get("rendered") or cut.get("crop") == "given" for cut in cuts):
        return ""  # not resized by shiftbench
    sides = [(cut["resize"], cut.get("inner") or cut["view"]) for cut in cuts]
    a, b = (resize / inner for resize, inner in sides)
    scales = [f"{resize}/{inner} px" for resize, inner in sides]
    filters = [result.model.interpolation for result in (first, second)]
    facts = [
        {
            "interpolation": interpolation,
            "squash": "yes" if cut.get("squash") else "no",
            "input scale": "equal" if abs(a / b - 1) < SCALE_TOLERANCE else scale,
        }
        for cut, scale, interpolation in zip(cuts, scales, filters, strict=True)
    ]
    return unequal(*facts)


def unequal(first: Mapping[str, str], second: Mapping[str, str], skip: Collection[str] = ()) -> str:
    """Describe the entries in which two mappings differ; empty if they agree.

    >>> unequal({"pad": "none", "seed": "0"}, {"pad": "reflect", "seed": "0"})
    'pad is none and reflect'
    """
    keys = [key for key in dict.fromkeys((*first, *second)) if key not in skip]
    pairs = [(key, first.get(key, "none"), second.get(key, "none")) for key in keys]
    return "; ".join(f"{key} is {a} and {b}" for key, a, b in pairs if a != b)
