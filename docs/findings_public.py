"""What the board says: public networks on ImageNet photographs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from findings_board import at, board, count, difference, reach, shown, table
from findings_measurements import correlation_cell
from matplotlib.figure import Figure

from shiftbench.records.choose import filter_by_dataset
from shiftbench.records.record import Record
from shiftbench.report.formats.markdown import to_markdown
from shiftbench.report.overview import short_name
from shiftbench.report.plots import overview_figure
from shiftbench.report.published import SIDE_BY_SIDE_HEADS, side_by_side
from shiftbench.report.table import build_tables
from shiftbench.scores import ACCURACY, ScoreName

PAPER = Path(__file__).parents[1] / "results" / "paper"
CROP = at("crop", 6)
POINTS = (("crop", 1), ("crop", 3), ("crop", 6), ("bilinear", 6), ("integer", 3), ("half", 3))
CONSISTENCY = ScoreName("consistency", "crop")
SELECT = "+select:12"
FEWEST_NETWORKS = 5  # for a rank correlation


def networks() -> list[Record]:
    """The records on ImageNet that were attacked by crops, those that keep the most first."""
    records = [r for r in filter_by_dataset(board(), "imagenet") if CROP in r.scores]
    return sorted(records, key=lambda record: -record.scores[CROP].value)


def zoo() -> str:
    """Public networks with their public weights."""
    columns = {
        "accuracy": ACCURACY,
        "consistency crop": CONSISTENCY,
        **{reach(*point): at(*point) for point in POINTS},
    }
    scores = [record.scores for record in networks()]
    header = [f"{title}, {count(scores, name)}" for title, name in columns.items()]
    rows = [
        [short_name(r.model.name), *(shown(r.scores.get(name)) for name in columns.values())]
        for r in networks()
    ]
    return table(["", *header], rows)


def front() -> str:
    """The board in five columns, as the README opens with it."""
    columns = ["param_count", *(name.column for name in (ACCURACY, CONSISTENCY, CROP))]
    tables = [table.only(columns) for table in build_tables(networks())]
    return to_markdown(tables).strip()


def selected() -> str:
    """Public networks with crop selection and without, nothing trained."""
    records = {record.model.name: record for record in filter_by_dataset(board(), "imagenet")}
    pairs = [(one, records.get(one.model.name + SELECT)) for one in networks()]
    points = [at("crop", 0), at("crop", 1), at("crop", 3)]
    titles = ["clean", "crop 1 px", "crop 3 px"]
    rows = [
        [
            short_name(plain.model.name),
            *(f"{shown(plain.scores[p])} → {shown(select.scores[p])}" for p in points),
            difference(plain, select, points[-1]),
        ]
        for plain, select in pairs
        if select is not None
    ]
    header = [
        f"{title}, {count([networks()[0].scores], p)}"
        for title, p in zip(titles, points, strict=True)
    ]
    return table(["", *header, "difference at 3 px"], rows)


def published() -> str:
    """What was published of the same weights, and what was measured here."""
    return table(SIDE_BY_SIDE_HEADS, [pair.cells() for pair in side_by_side(board(), PAPER)])


def predicts() -> str:
    """Whether accuracy or consistency says what survives, networks as units."""
    records = networks()
    if len(records) < FEWEST_NETWORKS:
        return f"{len(records)} networks are too few for a rank correlation."
    scores = {"adversarial accuracy": lambda r: r.scores[CROP].value, "share kept": _kept}
    measures: Mapping[str, Callable[[Record], float]] = {
        "accuracy": lambda r: r.scores[ACCURACY].value,
        "consistency crop": lambda r: r.scores[CONSISTENCY].value,
    }
    rows = [
        [
            title,
            *(
                correlation_cell(*(np.array([f(r) for r in records]) for f in (x, y)))
                for y in scores.values()
            ),
        ]
        for title, x in measures.items()
    ]
    return table(["", *(f"{name}, crop 6 px" for name in scores)], rows)


def _kept(record: Record) -> float:
    """The share of right answers that survive every crop."""
    return record.scores[CROP].value / record.scores[at("crop", 0)].value


def overview() -> Figure:
    """The board in one picture."""
    return overview_figure(build_tables(networks())[0])
