"""Figure of errors along the depth, compared with the table."""

from __future__ import annotations

import pandas as pd
import pytest

from shiftbench.auditing.figure import FLOOR, depth_figure
from shiftbench.figures import Look


def table(*rows: tuple[str, bool, str, float | None, float | None]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["name", "leaf", "lattice", "own", "accumulated"])
    breaks = frame["leaf"] & frame["own"].gt(0.1)
    return frame.assign(cause=breaks.map({True: "border", False: None}))


FRAME = table(
    ("conv", True, "8x8", 0.5, 0.5),
    ("gate", True, "", 0.0, 0.001),  # no position between maps: not on the line
    ("lost", True, "8x8", None, None),  # not measured
    ("block", False, "8x8", 0.3, 0.3),  # contains layers
    ("act", True, "8x8", 0.0, 0.0),
    ("pool", True, "", 0.0, 0.1),
    ("", False, "", 0.2, 0.2),
)


def test_depth_figure_line_has_maps_then_vectors() -> None:
    axes = depth_figure({"net": FRAME}).axes[0]
    (line,) = [line for line in axes.get_lines() if line.get_gid() == "net"]
    assert list(line.get_ydata()) == [0.5, FLOOR, 0.1, 0.2]  # type: ignore[arg-type]
    assert list(line.get_xdata()) == pytest.approx([25, 50, 75, 100])
    assert axes.get_yscale() == "log"
    assert line.get_marker() == Look.number(0).marker
    assert line.get_markevery() == [0], "the layers that break by themselves"


def test_depth_figure_models_differ_in_style_and_legend_has_logit_errors() -> None:
    figure = depth_figure({f"$net_{i}$": FRAME for i in range(9)})
    lines = [line for line in figure.axes[0].get_lines() if line.get_gid()]
    looks = {(line.get_color(), str(line.get_linestyle()), i % 5) for i, line in enumerate(lines)}
    assert len(looks) == 9
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        f"$net_{i}$: logits 0.2" for i in range(9)
    ]
