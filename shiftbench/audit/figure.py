"""How the error of a shift grows along the depth of networks, from the tables of audits."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from shiftbench.report.plots import Look

MARKED = 3  # layers per model: those that break most by themselves
FLOOR = 1e-5  # smaller errors are drawn here: float32 arithmetic makes such by itself


def depth_figure(audits: Mapping[str, pd.DataFrame]) -> Figure:
    """Relative error after every layer of the path, on a logarithmic scale, one line per model.

    Networks of different depth share an axis: at 0% is the image, at 100% are the logits. The
    layers that break most by themselves are marked.

    Args:
        audits: A table of layers (`shiftbench.audit.layer_report.to_frame`) per model's name.
    """
    lines = -(-len(audits) // 2)
    figure = Figure(figsize=(8.0, 4.0 + 0.2 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    handles = []
    for index, (name, frame) in enumerate(audits.items()):
        look = Look.number(index)
        path = _path(frame)
        error = path["accumulated"].clip(lower=FLOOR).to_numpy()
        depth = [100 * (i + 1) / len(path) for i in range(len(path))]
        axes.plot(depth, error, color=look.color, linestyle=look.dash, linewidth=1.4, gid=name)
        worst = path.loc[path["cause"].notna(), "own"].nlargest(MARKED).index
        marked = [i for i, layer in enumerate(path.index) if layer in worst]
        axes.plot(
            [depth[i] for i in marked],
            [error[i] for i in marked],
            color=look.color,
            linestyle="none",
            marker=look.marker,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.6,
        )
        axes.plot(depth[-1], error[-1], color=look.color, marker="|", markersize=12)
        handles.append(
            Line2D(
                [],
                [],
                color=look.color,
                linestyle=look.dash,
                linewidth=1.4,
                marker=look.marker,
                label=f"{name}: logits {error[-1]:.2g}",
            )
        )
    axes.set_yscale("log")
    axes.set_xlim(0, 101)
    axes.set_xlabel("depth: layers that have finished (%)", fontsize=9)
    axes.set_ylabel("relative error of the shifted path", fontsize=9)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(2, len(handles)),
        fontsize=8,
        frameon=False,
        handlelength=3.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar in a name is a dollar
    figure.suptitle(
        f"error of a shifted image after each layer; markers: the {MARKED} layers of a model that "
        "break most by themselves",
        fontsize=9,
    )
    return figure


def _path(frame: pd.DataFrame) -> pd.DataFrame:
    """The leaves whose outputs are maps, then those after the last map, then the model itself.

    What has no place on the image while there still are maps, such as a gate or a class token that
    has seen little of them yet, would only make the line jump.
    """
    judged = frame[frame["accumulated"].notna() & (frame["leaf"] | (frame["name"] == ""))]
    is_map = judged["lattice"] != ""
    return judged[is_map | (is_map[::-1].cumsum()[::-1] == 0)]
