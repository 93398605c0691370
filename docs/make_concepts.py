"""Draw the picture of docs/concepts.md: canvas, view, margin, and the grid of offsets.

python docs/make_concepts.py
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from shiftbench.data import RenderedSet
from shiftbench.models import load_model
from shiftbench.pictures.predictions import (
    CORRECT,
    MISCLASSIFIED,
    PredictionGrid,
    draw_grid,
    open_image,
    predict_image,
)
from shiftbench.report.plots import save_figure
from shiftbench.running.job import Settings

PICTURE = Path(__file__).parent / "images" / "concepts.png"
IMAGE, MODEL = "scenes:52", "xcit_pico_6_p8.scenes"
RADIUS = 3  # steps of the grid, and margin of the canvas (px)
OFFSET = (2, 3)  # dy, dx of the drawn shifted view
RING_COLOR = "#222222"


def main() -> None:
    """Write the picture."""
    image = open_image(IMAGE)
    settings = Settings(attacks=("crop",), max_shift=RADIUS)
    grid = predict_image(load_model(MODEL), image, settings)
    figure = Figure(figsize=(9.2, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_canvas(left, grid)
    draw_grid(right, grid, legend=False)
    draw_rings(right)
    right.set_title("")
    right.set_title(
        "The grid of offsets: correct at every cell up to ring r?", fontsize=10, loc="left"
    )
    handles = [
        Patch(facecolor=CORRECT, label="correct"),
        Patch(facecolor=MISCLASSIFIED, label="misclassified"),
    ]
    right.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=2,
        fontsize=9,
        frameon=False,
    )
    save_figure(figure, PICTURE)


def draw_canvas(axes: Axes, grid: PredictionGrid) -> None:
    """Draw the canvas with the view at (0, 0), a shifted view and the margin."""
    view, margin = grid.geometry.view, grid.geometry.margin
    image = open_image(IMAGE)
    assert isinstance(image, RenderedSet)
    pixels = image.render([0], view, margin)[0].permute(1, 2, 0).numpy()
    axes.imshow(pixels, interpolation="nearest")
    height, start = view + 2 * margin, margin - 0.5
    box(axes, start, start, view, "-", "white")
    box(axes, start + OFFSET[1], start + OFFSET[0], view, (0, (4, 2)), "#FFD92F")
    note = {"fontsize": 9, "color": "black", "annotation_clip": False}
    axes.annotate(f"view, {view} px, at offset (0, 0)", (start, start), (start, -1.6), **note)
    axes.annotate(
        f"view at offset (dy {OFFSET[0]}, dx {OFFSET[1]})",
        (start + OFFSET[1], start + view + OFFSET[0]),
        (start + 14, height + 3.2),
        **note,
    )
    middle = height / 2
    axes.text(-1.2, middle, f"margin\n{margin} px →", fontsize=9, ha="right", va="center")
    axes.set_title(
        f"The canvas, {height} px: all pixels that the offsets read",
        fontsize=10,
        loc="left",
        pad=18,
    )
    axes.set_axis_off()


def box(axes: Axes, x: float, y: float, side: float, line: object, color: str) -> None:
    """Draw a square that is visible on any image."""
    for outline, width in (("black", 3.4), (color, 1.8)):
        style = {"fill": False, "color": outline, "linewidth": width, "linestyle": line}
        axes.add_patch(Rectangle((x, y), side, side, **style))


def draw_rings(axes: Axes) -> None:
    """Draw the outlines of rings 1 to 3."""
    for ring in range(1, RADIUS + 1):
        side = 2 * ring + 1
        corner = (-ring - 0.5, -ring - 0.5)
        style = {"fill": False, "edgecolor": RING_COLOR, "linewidth": 2, "linestyle": (0, (3, 2))}
        axes.add_patch(Rectangle(corner, side, side, **style))
        axes.text(RADIUS + 0.7, -ring, f"ring {ring}", fontsize=9, va="center", color=RING_COLOR)


if __name__ == "__main__":
    main()
