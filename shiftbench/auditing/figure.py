"""Figure of the shift error along the depth of networks, from the tables of audits."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shiftbench.figures import Look

MARKED = 3  # marked layers per model: those with the largest layer error
FLOOR = 1e-5  # smaller errors, of float32 arithmetic alone, are drawn at this value


def depth_figure(audits: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the relative error after every layer, on a logarithmic scale, a line per model.

    Networks of different depth share an axis: 0% is the image, 100% are the logits. The layers with
    the largest layer error are marked.

    Args:
        audits: A table of layers (`Audit.to_frame`) per model's name.
    """
    figure = Figure(figsize=(8.0, 4.0 + 0.1 * len(audits)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, (name, frame) in enumerate(audits.items()):
        look, path = Look.number(index), _path(frame)
        error = path["accumulated"].clip(lower=FLOOR).to_numpy()
        worst = path.loc[path["cause"].notna(), "own"].nlargest(MARKED).index
        axes.plot(
            [100 * (i + 1) / len(path) for i in range(len(path))],
            error,
            color=look.color,
            linestyle=look.dash,
            linewidth=1.4,
            marker=look.marker,
            markevery=[i for i, layer in enumerate(path.index) if layer in worst],
            markeredgecolor="white",
            markeredgewidth=0.6,
            label=f"{name}: logits {error[-1]:.2g}",
            gid=name,
        )
        axes.plot(100, error[-1], color=look.color, marker="|", markersize=12)
    axes.set_yscale("log")
    axes.set_xlim(0, 101)
    axes.set_xlabel("depth: layers that have finished (%)", fontsize=9)
    axes.set_ylabel("relative error of the shifted path", fontsize=9)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, length=2)
    axes.spines[["top", "right"]].set_visible(False)
    legend = figure.legend(
        loc="outside lower center",
        ncols=min(2, len(audits)),
        fontsize=8,
        frameon=False,
        handlelength=3.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar in a name is a dollar
    figure.suptitle(
        f"error of a shifted image after each layer; markers: the {MARKED} layers of a model "
        "with the largest layer error",
        fontsize=9,
    )
    return figure


def _path(frame: pd.DataFrame) -> pd.DataFrame:
    """Select the leaves whose outputs are maps, then those after the last map, then the model.

    Outputs without a position are left out while maps follow: a gate or an early class token would
    make the line jump.
    """
    judged = frame[frame["accumulated"].notna() & (frame["leaf"] | (frame["name"] == ""))]
    is_map = judged["lattice"] != ""
    return judged[is_map | (is_map[::-1].cumsum()[::-1] == 0)]
