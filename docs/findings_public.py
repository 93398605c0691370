"""Findings about public networks on ImageNet images."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from findings_measurements import correlation_cell
from findings_records import at, committed, count, difference, extent, shown, table
from matplotlib.figure import Figure

from shiftbench.records.folder import select
from shiftbench.records.result import Result
from shiftbench.report.formats import to_markdown
from shiftbench.report.plots import overview_figure, short_name
from shiftbench.report.scores import leaderboard, score_cells
from shiftbench.scores import ACCURACY, ScoreName

PAPER = Path(__file__).parents[1] / "shiftbench" / "published"
CROP = at("crop", 6)
POINTS = (("crop", 1), ("crop", 3), ("crop", 6), ("bilinear", 6), ("integer", 3), ("half", 3))
CONSISTENCY = ScoreName("consistency", "crop")
SELECT = "+select:12"
FEWEST_NETWORKS = 5  # for a rank correlation


def networks() -> list[Result]:
    """Return the results on ImageNet with crop shifts, by adversarial accuracy."""
    results = [r for r in select(committed(), data="imagenet") if CROP in r.scores]
    return sorted(results, key=lambda result: -result.scores[CROP].value)


def zoo() -> str:
    """Tabulate public networks with their public weights."""
    columns = {
        "accuracy": ACCURACY,
        "consistency crop": CONSISTENCY,
        **{extent(*point): at(*point) for point in POINTS},
    }
    scores = [result.scores for result in networks()]
    header = [f"{title}{count(scores, name)}" for title, name in columns.items()]
    rows = [
        [short_name(r.model.name), *(shown(r.scores.get(name)) for name in columns.values())]
        for r in networks()
    ]
    return table(["", *header], rows)


def front() -> str:
    """Tabulate the public networks in five columns, for the README."""
    columns = ["param_count", *(name.column for name in (ACCURACY, CONSISTENCY, CROP))]
    tables = [table.only(columns) for table in leaderboard(score_cells(networks()))]
    return to_markdown(tables).strip()


def selected() -> str:
    """Tabulate public networks with and without crop selection, nothing trained."""
    results = {result.model.name: result for result in select(committed(), data="imagenet")}
    pairs = [(one, results.get(one.model.name + SELECT)) for one in networks()]
    points = {"clean": at("crop", 0), "crop 1 px": at("crop", 1), "crop 3 px": at("crop", 3)}
    rows = [
        [
            short_name(plain.model.name),
            *(f"{shown(plain.scores[p])} → {shown(select.scores[p])}" for p in points.values()),
            difference(plain, select, at("crop", 3)),
        ]
        for plain, select in pairs
        if select is not None
    ]
    scores = [networks()[0].scores]
    header = [f"{title}{count(scores, name)}" for title, name in points.items()]
    return table(["", *header, "difference at 3 px"], rows)


def published() -> str:
    """Tabulate published and measured numbers of the same weights.

    Crop consistency was published of torchvision's own weights: `tv:NAME` alone has it.
    """
    consistency = {
        f"tv:{row['model']}": row[CONSISTENCY.column]
        for row in _rows("antialiased_cnns.csv")
        if row["variant"] == "baseline"
    }
    measured = {result.model.name: result for result in select(committed(), data="imagenet")}
    rows = []
    for row in _rows("public_networks.csv"):
        result = measured.get(row["model"])
        if result is None:
            continue
        top1 = result.scores[ACCURACY]
        remark = row["remark"]
        if not (remark or top1.low <= float(row["top1"]) / 100 <= top1.high):
            raise ValueError(f"expected a remark on the published top1 of {row['model']}")
        rows.append(
            [
                row["model"],
                f"{row['top1']} ({row['published_by']})",
                shown(top1),
                consistency.get(row["model"], ""),
                shown(result.scores.get(CONSISTENCY)),
                "; ".join(filter(None, (row["weights"], row["license"], remark))),
            ]
        )
    heads = ["model", "top1 published", "top1 here", "crop consistency published"]
    return table([*heads, "crop consistency here", "weights and license"], rows)


def _rows(name: str) -> list[dict[str, str]]:
    with (PAPER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicts() -> str:
    """Tabulate how accuracy and consistency predict adversarial accuracy, networks as units."""
    results = networks()
    if len(results) < FEWEST_NETWORKS:
        return f"{len(results)} networks are too few for a rank correlation."
    scores: Mapping[str, Callable[[Result], float]] = {
        "adversarial accuracy": lambda r: r.scores[CROP].value,
        "retained accuracy": lambda r: r.scores[CROP].value / r.scores[at("crop", 0)].value,
    }
    rows = []
    for title, name in {"accuracy": ACCURACY, "consistency crop": CONSISTENCY}.items():
        x = np.array([r.scores[name].value if name in r.scores else np.nan for r in results])
        y = [np.array([score(r) for r in results]) for score in scores.values()]
        rows.append([title, *(correlation_cell(x, values) for values in y)])
    return table(["", *(f"{name}, crop 6 px" for name in scores)], rows)


def overview() -> Figure:
    """Draw adversarial against clean accuracy of the public networks."""
    return overview_figure(leaderboard(score_cells(networks()))[0])
