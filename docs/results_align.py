"""Tables and the figure of `align`, from records at two camera pixels per network pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from records_tables import (
    at,
    at_camera_scale,
    extent,
    original,
    over_offsets,
    points,
    table,
)

from shiftbench.figures import COLORS
from shiftbench.metrics.adversarial import AVERAGE
from shiftbench.records.compare import compare
from shiftbench.records.result import Result
from shiftbench.report.plots import short_name
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import PairedComparison, compare_paired

ALIGN = "+align"
ATTACKS = ("crop", "camera")
RADIUS = 3  # steps of both grids
BESIDE: Mapping[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8.5}
Pair = tuple[Result, Result]  # original and aligned


def aligned_pairs(data: str = "imagenet") -> list[Pair]:
    """Return the original and the aligned record of each network, by clean accuracy."""
    pairs = [
        (first, result)
        for result in at_camera_scale()
        if result.data.name == data
        and ALIGN in result.model.name
        and (first := original(result)) is not None
    ]
    return sorted(pairs, key=lambda pair: -pair[0].scores[ACCURACY].value)


def remedy_of(result: Result) -> str:
    """Return the remedies of a record: `align:12`."""
    remedies = result.model.name.partition("+")[2]
    return "align:8" if remedies == "align" else remedies  # names leave out the default


@cache
def columns(result: Result) -> pd.DataFrame:
    """Return a row per image and a column per score: clean, and three per full grid.

    A search that stops at the first misclassified offset has no average over offsets.
    """
    outcomes = result.outcomes()
    frame = pd.DataFrame({"clean": outcomes[ACCURACY]})
    for attack in ATTACKS:
        name, title = at(attack, RADIUS), extent(attack, RADIUS)
        frame[f"every {title}"] = outcomes[name]
        if ScoreName(AVERAGE, attack) in result.scores:
            offsets = over_offsets(result, name)
            frame[f"average {title}"] = offsets["average"]
            frame[f"changed {title}"] = offsets["changed"]
    return frame


def tests(pair: Pair) -> dict[str, PairedComparison]:
    """Compare an aligned network with the original, image by image, by column."""
    compare(pair[0], [pair[1]])  # raises an error if the conditions differ
    first, second = (columns(result) for result in pair)
    common = first.index.intersection(second.index)
    shared = [name for name in first if name in second]
    return {name: compare_paired(first[name][common], second[name][common]) for name in shared}


def titles(pairs: Sequence[Pair]) -> list[str]:
    """List the columns of any network, in the order of the networks with the most of them."""
    every = sorted((list(columns(pair[0])) for pair in pairs), key=len, reverse=True)
    return list(dict.fromkeys(title for own in every for title in own))


def aligned() -> str:
    """Tabulate public networks, original → aligned."""
    return _levels(aligned_pairs())


def aligned_paired() -> str:
    """Tabulate the paired differences of public networks, aligned minus original."""
    return _differences(aligned_pairs())


def aligned_scenes() -> str:
    """Tabulate the bundled networks on rendered images, original → aligned."""
    return _levels(aligned_pairs("scenes"))


def aligned_scenes_paired() -> str:
    """Tabulate the paired differences on rendered images, aligned minus original."""
    return _differences(aligned_pairs("scenes"))


def _levels(pairs: Sequence[Pair]) -> str:
    """Return accuracies and changed predictions, original → aligned, in percent."""
    if not pairs:
        return ""
    means = [[100 * columns(result).mean() for result in pair] for pair in pairs]
    names = titles(pairs)
    rows = [
        [
            short_name(pair[0].model.name),
            *(
                f"{first[name]:.1f} → {second[name]:.1f}"
                if name in first and name in second
                else ""
                for name in names
            ),
        ]
        for pair, (first, second) in zip(pairs, means, strict=True)
    ]
    (n,) = {len(columns(result)) for pair in pairs for result in pair}
    return table([f"%, n={n:,}", *names], rows)


def _differences(pairs: Sequence[Pair]) -> str:
    """Return paired differences in points with their intervals."""
    if not pairs:
        return ""
    found = [tests(pair) for pair in pairs]
    names = titles(pairs)
    rows = [
        [
            short_name(pair[0].model.name),
            *(points(own[name]) if name in own else "" for name in names),
        ]
        for pair, own in zip(pairs, found, strict=True)
    ]
    return table(["points", *names], rows)


def aligned_summary() -> str:
    """State the smallest and largest differences that `align` makes on public networks."""
    pairs = aligned_pairs()
    if not pairs:
        return ""
    found = [tests(pair) for pair in pairs]
    ranges = {}
    for title in titles(pairs):
        measured = [own[title] for own in found if title in own]
        values = [100 * test.difference for test in measured]
        above, below = sum(t.low > 0 for t in measured), sum(t.high < 0 for t in measured)
        text = f"{min(values):+.1f} to {max(values):+.1f} points"
        ranges[title] = f"{text} ({above} of {len(measured)} intervals above 0, {below} below)"
    crop, camera = (extent(attack, RADIUS) for attack in ATTACKS)
    exported = any(result.model.source == "onnx" for pair in pairs for result in pair)
    return (
        f"`{remedy_of(pairs[0][1])}` changes adversarial accuracy by {ranges[f'every {crop}']} "
        f"under crops up to {crop.partition(' ')[2]}, and by {ranges[f'every {camera}']} under a "
        f"camera that moves by up to {camera.partition(' ')[2]}. Clean accuracy changes by "
        f"{ranges['clean']}, the average over crops by {ranges[f'average {crop}']}."
        + " The networks were exported (`shiftbench export`) and ran in ONNX Runtime."
        * exported
    )


def arrows(originals: Sequence[Result]) -> Figure:
    """Draw a row per network: clean accuracy, and an arrow from the original to `align`.

    Args:
        originals: Networks to draw without an arrow if no record has `align`.
    """
    pairs = aligned_pairs()
    rows = [[*pair] for pair in pairs] or [[network] for network in originals]
    figure = Figure(figsize=(7.6, 0.42 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    colors = [COLORS[1], COLORS[0]]  # original, aligned
    for y, results in enumerate(rows):
        values = [[100 * r.scores[at("crop", s)].value for s in (0, RADIUS)] for r in results]
        clean, worst = values[0]
        axes.plot([worst, clean], [y, y], color="#dddddd", linewidth=5, zorder=0)
        axes.plot(clean, y, "|", color="#777777", markersize=15, markeredgewidth=2)
        axes.plot(worst, y, "o", color=colors[0], markersize=8, mfc="white", mew=2)
        axes.annotate(f"{worst:.1f}", (worst, y), (-9, 0), **BESIDE, ha="right")
        for _, raised in values[1:]:
            style = {"arrowstyle": "-|>", "color": colors[1], "lw": 2, "shrinkA": 5, "shrinkB": 4}
            axes.annotate("", (raised, y), (worst, y), arrowprops=style)
            axes.plot(raised, y, "o", color=colors[1], markersize=8)
            axes.annotate(f"{raised:.1f}", (raised, y), (0, 8), **BESIDE, ha="center")
        last = max(clean, values[-1][1])
        axes.annotate(f"{clean:.1f}", (last, y), (9, 0), **BESIDE, color="#555555")
    axes.set_yticks(range(len(rows)), [short_name(results[0].model.name) for results in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.1)
    circle: dict[str, Any] = {"marker": "o", "color": "white", "mew": 2, "markersize": 8}
    handles = [Line2D([], [], **circle, mec=colors[0], label="correct at every crop offset")]
    if pairs:
        name = remedy_of(pairs[0][1])
        handles.append(
            Line2D([], [], **circle, mec=colors[1], mfc=colors[1], label=f"the same with {name}")
        )
    line = {"marker": "|", "color": "white", "mec": "#777777", "mew": 2, "markersize": 12}
    handles.append(Line2D([], [], **line, label="clean accuracy, original"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False,
        handletextpad=0.2,
    )  # fmt: skip
    images = f"{rows[0][0].data.images} ImageNet validation images"
    axes.set_xlabel(f"accuracy on {images}, crops up to {RADIUS} px (%)")
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure
