"""Tables and figures of public networks on ImageNet images."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from records_tables import (
    at,
    at_camera_scale,
    committed,
    count,
    difference,
    extent,
    original,
    scale,
    shown,
    table,
)
from results_metrics import correlation_cell

from shiftbench.figures import COLORS
from shiftbench.records.compare import compare
from shiftbench.records.folder import select
from shiftbench.records.result import Result
from shiftbench.report.plots import short_name
from shiftbench.report.scores import fact_text
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import PairedComparison

PAPER = Path(__file__).parents[1] / "shiftbench" / "published"
CROP = at("crop", 6)
POINTS = (("crop", 1), ("crop", 3), ("crop", 6), ("bilinear", 6), ("integer", 3), ("half", 3))
CONSISTENCY = ScoreName("consistency", "crop")
ALIGN = "+align"
EXAMPLE = "vit_tiny"  # network of the first claim of the README
BESIDE: Mapping[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8.5}
FEWEST_NETWORKS = 5  # for a rank correlation


def networks() -> list[Result]:
    """Return the original networks on ImageNet at scale 1, by adversarial accuracy."""
    results = [
        r
        for r in select(committed(), data="imagenet")
        if CROP in r.scores and "+" not in r.model.name and scale(r) == 1
    ]
    return sorted(results, key=lambda result: -result.scores[CROP].value)


def aligned_pairs(data: str = "imagenet") -> list[tuple[Result, Result]]:
    """Return the original and the aligned record of each network, by clean accuracy."""
    pairs = [
        (first, result)
        for result in at_camera_scale()
        if result.data.name == data
        and ALIGN in result.model.name
        and (first := original(result)) is not None
    ]
    return sorted(pairs, key=lambda pair: -pair[0].scores[ACCURACY].value)


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


def remedy_of(result: Result) -> str:
    """Return the remedies of a record: `align:12`."""
    remedies = result.model.name.partition("+")[2]
    return "align:8" if remedies == "align" else remedies  # names leave out the default


def front() -> str:
    """Tabulate the public networks for the README, with and without `align`."""
    pairs = aligned_pairs()
    header = ["model", "params", "top-1", "adversarial accuracy, crop 3 px"]
    header += [f"the same with `{remedy_of(pairs[0][1])}`", "difference"] if pairs else []
    rows = []
    for first, second in pairs or [(network, None) for network in networks()]:
        row = [f"`{first.model.name}`", fact_text(first, "param_count")]
        row += [shown(first.scores[name]) for name in (ACCURACY, at("crop", 3))]
        if second is not None:
            row += [shown(second.scores[at("crop", 3)]), difference(first, second, at("crop", 3))]
        rows.append(row)
    n, used = networks()[0].data.images, 2 if pairs else 1
    return (
        f"{table(header, rows)}\n\nImageNet val, {n} images, scale {used}. Percent, with 95% "
        "intervals. Adversarial accuracy: correct at every one of the 49 crop offsets up to 3 px."
    )


def opening() -> str:
    """Write the first claim of the README and the scores that it follows from."""
    found = [pair for pair in aligned_pairs() if EXAMPLE in pair[0].model.name]
    rows = list(found[0]) if found else [r for r in networks() if EXAMPLE in r.model.name]
    first = rows[0]
    clean, worst = (first.scores[name].text() for name in (ACCURACY, at("crop", 3)))
    text = [
        f"ViT-Tiny classifies {clean}% of {first.data.images} ImageNet validation images "
        f"correctly, but only {worst}% at *every* crop offset up to 3 px."
    ]
    if found:
        raised = rows[1].scores[at("crop", 3)].text()
        text.append(
            f"With `+{remedy_of(rows[1])}` (no training, one forward pass) it is {raised}%."
        )
    width = max(len(r.model.name) for r in rows)
    lines = [f"{'model':{width}}  {'top-1':17}  adversarial accuracy, crop up to 3 px"]
    for row in rows:
        one, two = (shown(row.scores[name]) for name in (ACCURACY, at("crop", 3)))
        lines.append(f"{row.model.name:{width}}  {one:17}  {two}")
    names = " ".join(f"-m {row.model.name}" for row in rows)
    command = f"$ shiftbench run {names} -d imagenet:/data -a crop --max-shift 3"
    return "\n".join([" ".join(text), "", "```console", command, *lines, "```"])


def aligned() -> str:
    """Tabulate public networks with and without `align` under crops."""
    return _aligned_table(aligned_pairs(), "crop")


def aligned_camera() -> str:
    """Tabulate public networks with and without `align` under a moving camera."""
    return _aligned_table(aligned_pairs(), "camera")


def aligned_scenes() -> str:
    """Tabulate the bundled networks with and without `align` on rendered images."""
    return _aligned_table(aligned_pairs("scenes"), "camera", "crop")


def _aligned_table(pairs: Sequence[tuple[Result, Result]], *attacks: str) -> str:
    """Return clean and adversarial accuracy, original → aligned, and paired differences."""
    names = [at(attack, radius) for attack in attacks for radius in (1, 3)]
    known = [name for name in names if pairs and all(name in r.scores for p in pairs for r in p)]
    if not known:
        return ""
    columns = {"clean": ACCURACY, **{extent(n.kind, n.radius or 0): n for n in known}}
    last = [name for name in known if name.radius == 3]
    scores = [first.scores for first, _ in pairs]
    header = [f"{title}{count(scores, name)}" for title, name in columns.items()]
    header += [f"difference at {extent(name.kind, 3)}" for name in last]
    rows = [
        [
            short_name(first.model.name),
            *(f"{shown(first.scores[n])} → {shown(second.scores[n])}" for n in columns.values()),
            *(difference(first, second, name) for name in last),
        ]
        for first, second in pairs
    ]
    return table(["", *header], rows)


def aligned_summary() -> str:
    """State the smallest and largest difference that `align` makes, clean and under crops."""
    pairs = aligned_pairs()
    if not pairs:
        return ""
    tests = {radius: [_paired(*pair, at("crop", radius)) for pair in pairs] for radius in (0, 3)}
    (clean_low, clean_high), (low, high) = (
        (100 * min(t.difference for t in found), 100 * max(t.difference for t in found))
        for found in tests.values()
    )
    proven = sum(test.low > 0 for test in tests[3])
    return (
        f"Under crops up to 3 px, `{remedy_of(pairs[0][1])}` changes adversarial accuracy by "
        f"{low:+.1f} to {high:+.1f} points ({proven} of {len(pairs)} paired intervals are above "
        f"0). Clean accuracy changes by {clean_low:+.1f} to {clean_high:+.1f} points. Both are "
        "net effects: the worst case includes the change of clean accuracy."
    )


def _paired(first: Result, second: Result, name: ScoreName) -> PairedComparison:
    differences, _ = compare(first, [second], max_shift=name.radius)
    (test,) = (one.test for one in differences if one.name == name)
    return test


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


def arrows() -> Figure:
    """Draw a row per network: clean accuracy, and an arrow from the original to `align`."""
    pairs = aligned_pairs() or [(network, None) for network in networks()]
    figure = Figure(figsize=(7.6, 0.42 * len(pairs) + 1.5), layout="constrained")
    axes = figure.subplots()
    line = {"clean": "#888888", "original": COLORS[1], "align": COLORS[0]}
    for row, (first, second) in enumerate(pairs):
        clean, worst = (100 * first.scores[at("crop", s)].value for s in (0, 3))
        axes.plot([worst, clean], [row, row], color="#dddddd", linewidth=5, zorder=0)
        axes.plot(clean, row, "|", color=line["clean"], markersize=15, markeredgewidth=2)
        axes.plot(worst, row, "o", color=line["original"], markersize=8, mfc="white", mew=2)
        axes.annotate(f"{worst:.1f}", (worst, row), (-9, 0), **BESIDE, ha="right")
        end = worst
        if second is not None:
            end = 100 * second.scores[at("crop", 3)].value
            style = {"arrowstyle": "-|>", "color": line["align"], "lw": 2, "shrinkA": 5}
            axes.annotate("", (end, row), (worst, row), arrowprops={**style, "shrinkB": 4})
            axes.plot(end, row, "o", color=line["align"], markersize=8)
            axes.annotate(f"{end:.1f}", (end, row), (0, 7), **BESIDE, ha="center")
        axes.annotate(f"{clean:.1f}", (max(clean, end), row), (9, 0), **BESIDE)
    axes.set_yticks(range(len(pairs)), [short_name(first.model.name) for first, _ in pairs])
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.margins(x=0.1)
    shown_as = [
        Line2D([], [], marker="o", color="white", mec=line["original"], mfc="white", mew=2,
               markersize=8, label="correct at every crop offset up to 3 px: original"),
        Line2D([], [], marker="o", color="white", mec=line["align"], mfc=line["align"],
               markersize=8, label="with align"),
        Line2D([], [], marker="|", color="white", mec=line["clean"], mew=2, markersize=12,
               label="clean accuracy"),
    ]  # fmt: skip
    if pairs[0][1] is None:
        del shown_as[1]
    figure.legend(
        handles=shown_as, loc="outside lower center", ncols=len(shown_as), fontsize=9,
        frameon=False, handletextpad=0.2,
    )  # fmt: skip
    axes.set_xlabel(f"accuracy on {pairs[0][0].data.images} ImageNet validation images (%)")
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure
