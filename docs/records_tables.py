"""Committed records, and Markdown tables of their scores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from shiftbench.records.compare import compare, unequal
from shiftbench.records.folder import load_records
from shiftbench.records.result import Result, image_ids
from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS
from shiftbench.statistics import PairedComparison, Score, mean_score

RESULTS = Path(__file__).parents[1] / "results"
KINDS = ("integer", "half", "crop")  # of consistency
Scores = Mapping[ScoreName, Score]


@cache
def committed() -> tuple[Result, ...]:
    """Read every committed record at scale 1."""
    return tuple(load_records([RESULTS / "records"]))


@cache
def at_camera_scale() -> tuple[Result, ...]:
    """Read the records of `align` and `camera`, at two camera pixels per network pixel."""
    return tuple(load_records([RESULTS / "camera"]))


@cache
def images(result: Result) -> pd.DataFrame:
    """Return a row per image of a result, by image identifier."""
    frame = result.to_frame()
    ids = image_ids(result.tables)[result.tables.rows(frame["key"])]
    return frame.set_index(ids)


def find(model: str, data: str) -> Result | None:
    """Return the result of a model, or None if there is no record."""
    found = (r for r in committed() if (r.model.name, r.data.name) == (model, data))
    return next(found, None)


def record(model: str, data: str) -> Result:
    """Return the result of a model."""
    found = find(model, data)
    assert found is not None, f"there is no record of {model} on {data}"
    return found


def original(repaired: Result) -> Result | None:
    """Return the record of the same network at that scale, without remedies."""
    base = repaired.model.name.partition("+")[0]
    names = re.compile(rf"{re.escape(base)}([ .@(].*)?")  # also `tv:mobilenet_v2 (scale 2)`
    for result in at_camera_scale():
        same = "+" not in result.model.name and names.fullmatch(result.model.name)
        if same and not unequal(result.conditions, repaired.conditions):
            return result
    return None


def shown(score: Score | None) -> str:
    """Format a score with its interval."""
    return "" if score is None else f"{score.text()} {score.interval()}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def at(attack: str, radius: int) -> ScoreName:
    """Return the name of a point of a curve."""
    return ScoreName("adversarial", attack, radius)


def extent(attack: str, radius: int) -> str:
    """Return an attack with its largest shift: `half 3 px`."""
    known = ATTACKS.get(attack)
    return f"{attack} {radius * known.step} {known.unit}"


def lost(result: Result, name: ScoreName) -> Score | None:
    """Return the fraction of correctly classified images that are misclassified up to a radius."""
    outcomes = result.outcomes()
    if name not in outcomes:
        return None
    correct = outcomes[at(name.kind, 0)] == 1
    return mean_score(1 - outcomes[name][correct])


def scores_table(names: Mapping[str, str], data: str, columns: Mapping[str, ScoreName]) -> str:
    """Return a row per model and a column per score; the head contains the number of images."""
    scores = {row: record(model, data).scores for row, model in names.items()}
    known = {title: n for title, n in columns.items() if any(n in s for s in scores.values())}
    header = [f"{title}{count(scores.values(), name)}" for title, name in known.items()]
    rows = [[row, *(shown(s.get(name)) for name in known.values())] for row, s in scores.items()]
    return table(["", *header], rows)


def count(models: Iterable[Scores], name: ScoreName) -> str:
    """Return the number of images of a score, which all models share; empty if none has it."""
    found = {scores[name].n for scores in models if name in scores}
    if not found:
        return ""
    (n,) = found
    return f", n={n:,}"


def paired_table(
    pairs: Mapping[str, tuple[str, str]], data: str, points: Sequence[tuple[str, int]]
) -> str:
    """Return differences of the second model minus the first, in points."""
    rows = [
        [label, *(difference(record(first, data), record(second, data), at(*p)) for p in points)]
        for label, (first, second) in pairs.items()
    ]
    titles = ["clean" if not radius else extent(attack, radius) for attack, radius in points]
    scores = [record(model, data).scores for pair in pairs.values() for model in pair]
    header = [f"{title}{count(scores, at(*p))}" for title, p in zip(titles, points, strict=True)]
    return table(["points", *header], rows)


def difference(first: Result, second: Result, name: ScoreName) -> str:
    """Format the paired difference of one score with its interval; empty if one has no score."""
    if name not in first.scores or name not in second.scores:
        return ""
    return points(paired_test(first, second, name))


def paired_test(first: Result, second: Result, name: ScoreName) -> PairedComparison:
    """Compare one score of two results, image by image."""
    differences, _ = compare(first, [second], max_shift=name.radius)
    (test,) = (one.test for one in differences if one.name == name)
    return test


def points(test: PairedComparison) -> str:
    """Format a difference with its interval, in points."""
    return f"{100 * test.difference:+.1f} [{100 * test.low:+.1f}, {100 * test.high:+.1f}]"


def over_offsets(result: Result, name: ScoreName) -> pd.DataFrame:
    """Return a row per image of a full grid: `average` and `changed`, fractions of offsets.

    `average` counts correct predictions, `changed` shifted offsets with another class than the
    unshifted image.
    """
    request = result.request_of(name)
    assert request is not None, f"expected {name} of {result.model.name}"
    cells = result.cells(request)
    assert cells.known.all(), f"expected a full grid of {name.kind} of {result.model.name}"
    classes = cells.classes  # (images, offsets); column 0 is unshifted
    return pd.DataFrame(
        {
            "average": (~cells.wrong).mean(1),
            "changed": (classes[:, 1:] != classes[:, :1]).mean(1),
        },
        index=result.outcomes()[name].index,
    )
