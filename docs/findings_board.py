"""The committed records, and how the findings show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from shiftbench.records.choose import load_records
from shiftbench.records.record import Record, read_record
from shiftbench.report.axis import ShiftAxis
from shiftbench.report.compare import compare
from shiftbench.scores import ScoreName, Scores
from shiftbench.statistics import Score, mean_score

RECORDS = Path(__file__).parents[1] / "results" / "records"
KINDS = ("integer", "half", "crop")  # of consistency


@cache
def board() -> tuple[Record, ...]:
    """Every committed record."""
    return tuple(load_records([RECORDS]))


def samples(record: Record) -> pd.DataFrame:
    """A row per image of a record."""
    return _samples(_folder(record))


def outcomes(record: Record) -> dict[ScoreName, pd.Series]:
    """A number per image and score of a record."""
    return _outcomes(_folder(record))


def _folder(record: Record) -> Path:
    assert record.folder is not None
    return record.folder


@cache
def _samples(folder: Path) -> pd.DataFrame:
    return read_record(folder).samples().set_index("key")


@cache
def _outcomes(folder: Path) -> dict[ScoreName, pd.Series]:
    return read_record(folder).outcomes()


def record(model: str, data: str) -> Record:
    """The record of a model."""
    (chosen,) = (r for r in board() if (r.model.name, r.data.name) == (model, data))
    return chosen


def shown(score: Score | None) -> str:
    """A score with its interval."""
    return "" if score is None else f"{score.text()} {score.interval()}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def at(attack: str, radius: int) -> ScoreName:
    """A point of a curve."""
    return ScoreName("adversarial", attack, radius)


def reach(attack: str, radius: int) -> str:
    """`half 3 px`."""
    return f"{attack} {ShiftAxis.of(at(attack, radius)).reach(radius)}"


def lost(record: Record, name: ScoreName) -> Score | None:
    """The share of clean right answers that are wrong somewhere up to a radius."""
    every = outcomes(record)
    if name not in every:
        return None
    right = every[at(name.kind, 0)] == 1
    return mean_score(1 - every[name][right])


def scores_table(names: Mapping[str, str], data: str, columns: Mapping[str, ScoreName]) -> str:
    """A row per model, a column per score, with the number of images at its head."""
    scores = {row: record(model, data).scores for row, model in names.items()}
    header = [f"{title}, {count(scores.values(), name)}" for title, name in columns.items()]
    rows = [[row, *(shown(s.get(name)) for name in columns.values())] for row, s in scores.items()]
    return table(["", *header], rows)


def count(models: Iterable[Scores], name: ScoreName) -> str:
    """Of how many images a score is, the same for all models."""
    (n,) = {scores[name].n for scores in models if name in scores}
    return f"n={n:,}"


def paired_table(
    pairs: Mapping[str, tuple[str, str]], data: str, points: Sequence[tuple[str, int]]
) -> str:
    """The second model minus the first, in points."""
    rows = [
        [label, *(difference(record(first, data), record(second, data), at(*p)) for p in points)]
        for label, (first, second) in pairs.items()
    ]
    titles = ["clean" if not radius else reach(attack, radius) for attack, radius in points]
    scores = [record(model, data).scores for pair in pairs.values() for model in pair]
    header = [f"{title}, {count(scores, at(*p))}" for title, p in zip(titles, points, strict=True)]
    return table(["points", *header], rows)


def difference(first: Record, second: Record, name: ScoreName) -> str:
    """Of one score, with its interval."""
    if name not in first.scores or name not in second.scores:
        return ""
    compared = compare(first, second, max_shift=name.radius).scores
    (one,) = (score.paired for score in compared if score.name == name)
    return f"{100 * one.difference:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
