"""Quality of a score: forward passes until two networks differ, and what it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from records_tables import KINDS, at, committed, extent, images, table
from scipy.stats import rankdata

from shiftbench.figures import COLORS
from shiftbench.records.compare import unequal
from shiftbench.records.result import Result
from shiftbench.report.scores import group_labels
from shiftbench.scores import ScoreName, curve_of
from shiftbench.shifts import ATTACKS, PAPER_ATTACKS
from shiftbench.statistics import Z95

RADIUS = 1  # steps, which every record has
FEWEST = 3  # networks of a rank correlation
POWER = 0.8416212335729143  # the 80% quantile of the normal distribution


@dataclass(frozen=True)
class Trial:
    """Outcomes of two networks on the same images."""

    outcomes: tuple[NDArray[np.float64], NDArray[np.float64]]
    passes: float  # forward passes per image, of both networks

    @property
    def passes_needed(self) -> float:
        """Forward passes of a paired test with a power of 80% (Connor 1987)."""
        change = self.outcomes[1] - self.outcomes[0]
        effect, discordant = abs(change.mean()), (change**2).mean()
        if effect == 0:
            return np.inf
        rest = np.sqrt(max(0.0, discordant - effect**2))
        images = ((Z95 * np.sqrt(discordant) + POWER * rest) / effect) ** 2
        return float(max(images, 1.0) * self.passes)


def search_passes(rows: pd.DataFrame, attack: str, radius: int) -> NDArray[np.float64]:
    """Return the forward passes of each image in a search up to a radius."""
    grid = ATTACKS.get(attack).grid(radius)
    index = {(offset.dy, offset.dx): i for i, offset in enumerate(grid)}
    offsets = zip(rows[f"{attack}_dy"], rows[f"{attack}_dx"], strict=True)
    return np.array(
        [len(grid) if pd.isna(dy) else index.get((dy, dx), len(grid) - 1) + 1 for dy, dx in offsets]
    )


def trial(first: Result, second: Result, name: ScoreName) -> Trial | None:
    """Compare two networks on the images that both classify correctly without a shift."""
    both = (first, second)
    if any(name not in r.scores for r in both):
        return None
    if unequal(first.settings_of(name), second.settings_of(name)):
        return None
    tables, pair = [images(r) for r in both], [r.outcomes()[name] for r in both]
    correct = [t.index[t["prediction"] == t["label"]] for t in tables]
    keys = pair[0].index.intersection(pair[1].index)
    keys = keys.intersection(correct[0]).intersection(correct[1])
    if name.family == "consistency":
        passes = 4.0  # two views, two networks
    else:
        assert name.radius is not None
        passes = float(
            sum(search_passes(t.loc[keys], name.kind, name.radius).mean() for t in tables)
        )
    one, two = (o.loc[keys].to_numpy(np.float64) for o in pair)
    return Trial((one, two), passes)


Pair = tuple[Result, Result]


@cache
def trials() -> dict[str, list[tuple[Pair, Trial]]]:
    """Return the comparisons of all pairs of networks measured alike, by measurement."""
    names = [ScoreName("consistency", kind) for kind in KINDS]
    names += [at(attack, radius) for attack in PAPER_ATTACKS for radius in (1, 3, 6)]
    labels = group_labels(committed())
    pairs = [
        (first, second)
        for (first, one), (second, other) in combinations(zip(committed(), labels, strict=True), 2)
        if one == other
    ]
    found = {}
    for name in names:
        label = (
            f"consistency, {name.kind}" if name.radius is None else extent(name.kind, name.radius)
        )
        made = [(pair, t) for pair in pairs if (t := trial(*pair, name)) is not None]
        if made:
            found[label] = made
    return found


def median_passes() -> dict[str, float]:
    """Return the median forward passes until two networks differ, fewest first."""
    medians = {
        label: float(np.median([t.passes_needed for _, t in made]))
        for label, made in trials().items()
    }
    return dict(sorted(medians.items(), key=lambda item: item[1]))


def common_medians(*labels: str) -> tuple[int, list[float]]:
    """Return the number of pairs that all measurements compare, and the median passes of each."""
    passes = [{pair: t.passes_needed for pair, t in trials()[label]} for label in labels]
    common = set.intersection(*map(set, passes))
    return len(common), [float(np.median([p[key] for key in common])) for p in passes]


def passes_until_different() -> str:
    """Tabulate the forward passes until two networks differ significantly, by score."""
    rows = []
    for label, median in median_passes().items():
        made = [t for _, t in trials()[label]]
        within = np.mean([t.passes_needed <= 10_000 for t in made])
        rows.append(
            [
                label,
                str(len(made)),
                f"{np.mean([t.passes for t in made]) / 2:.1f}",
                f"{median:,.0f}" if np.isfinite(median) else "more than any",
                f"{100 * within:.0f}%",
            ]
        )
    header = [
        "measurement",
        "pairs of networks",
        "passes per image",
        "passes until two differ, median",
        "differ within 10,000",
    ]
    return table(header, rows)


def passes_figure() -> Figure:
    """Draw the median forward passes until two networks differ, a dot per measurement."""
    medians = {label: m for label, m in median_passes().items() if np.isfinite(m)}
    figure = Figure(figsize=(7.6, 0.24 * len(medians) + 0.9), layout="constrained")
    axes = figure.subplots()
    random = [label.startswith("consistency") for label in medians]
    colors = [COLORS[0 if one else 1] for one in random]
    axes.scatter(list(medians.values()), list(medians), color=colors, zorder=2)
    for row, value in enumerate(medians.values()):
        axes.annotate(
            f"{value:,.0f}", (value, row), (7, 0), textcoords="offset points", va="center",
            fontsize=8,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.04)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.set_xlabel("forward passes until two networks differ (median over pairs)")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


def retained(result: Result, attack: str) -> float:
    """Return adversarial divided by clean accuracy at `RADIUS`."""
    curve = curve_of(result.scores, at(attack, 0))
    return curve[RADIUS].value / curve[0].value if RADIUS in curve else np.nan


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank correlation along the last axis; NaN if all values are equal."""
    ranks = [rankdata(values, axis=-1) for values in (x, y)]
    one, two = (r - r.mean(-1, keepdims=True) for r in ranks)
    with np.errstate(invalid="ignore"):
        correlation: NDArray[np.float64] = (one * two).sum(-1) / np.sqrt(
            (one**2).sum(-1) * (two**2).sum(-1)
        )
    return correlation


def correlation_cell(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """Format the rank correlation with a bootstrap interval over networks."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < FEWEST:
        return ""
    draws = np.random.default_rng(0).integers(len(x), size=(2000, len(x)))
    low, high = np.nanquantile(spearman(x[draws], y[draws]), [0.025, 0.975])
    return f"{spearman(x, y):+.2f} [{low:+.2f}, {high:+.2f}], {len(x)}"


def correlations() -> str:
    """Tabulate how consistency predicts retained accuracy, networks as units."""
    worst = {a: np.array([retained(r, a) for r in committed()]) for a in PAPER_ATTACKS}
    rows = []
    for kind in KINDS:
        scores = (r.scores.get(ScoreName("consistency", kind)) for r in committed())
        random = np.array([np.nan if s is None else s.value for s in scores])
        rows.append(
            [
                f"consistency, {kind}",
                *(correlation_cell(random, worst[attack]) for attack in PAPER_ATTACKS),
            ]
        )
    return table(["", *(f"retained, {extent(attack, RADIUS)}" for attack in PAPER_ATTACKS)], rows)
