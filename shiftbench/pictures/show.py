"""Figure of an image under each shift type, as in the paper's appendix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from shiftbench.data.images import read_image
from shiftbench.errors import UsageError
from shiftbench.geometry import PAPER_RATIO, Geometry
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.shifts import ATTACKS, SHIFTS

DEFAULT_OFFSETS: Mapping[str, Offset] = {
    "integer": Offset(6, 6),
    "half": Offset(0.5, 0.5),
    "crop": Offset(6, 6),
    "bilinear": Offset(0.5, 0.5),
}
_NAMES = {
    "integer": "cyclic, integer",
    "half": "cyclic, sinc",
    "crop": "crop",
    "bilinear": "bilinear",
}


def parse_offset(text: str) -> tuple[str, Offset]:
    """Read an attack and its offset (dy, dx) in pixels, such as `half=0.5,-0.5`."""
    attack, _, numbers = text.partition("=")
    try:
        dy, dx = (float(number) for number in numbers.split(","))
    except ValueError as error:
        raise UsageError(
            f"expected an offset such as half=0.5,-0.5 (attack=dy,dx in pixels), got {text!r}"
        ) from error
    if not (math.isfinite(dy) and math.isfinite(dx)):
        raise UsageError(f"expected finite numbers of pixels, got {text!r}")
    if attack not in DEFAULT_OFFSETS:
        raise UsageError(
            f"cannot show the attack {attack!r}. Choose one of {', '.join(DEFAULT_OFFSETS)}"
        )
    return attack, Offset(dy, dx)


def _picture(axes: Axes, view: Tensor, title: str) -> None:
    axes.imshow(view.clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=9)


def _difference(axes: Axes, difference: Tensor, title: str) -> None:
    """Draw the mean over channels; the title contains the range of the colors."""
    mean = difference.mean(0)
    limit = max(float(mean.abs().quantile(0.99)), 1e-6)
    axes.imshow(mean.numpy(), cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title(f"{title}, ±{limit:.2g}", fontsize=8)


def show_image(path: Path, *, offsets: Mapping[str, Offset], view: int = 224) -> Figure:
    """Draw an image under each shift, its difference from the original, and an enlarged corner.

    The image is cut as in the protocol: its shorter side is resized to view * 256 / 224. The panel
    below the original is the half-pixel sinc shift minus the bilinear shift at the same offset. The
    sinc shift treats the view as one period of a periodic image, so it rings at opposite borders
    that differ and at sharp edges.

    Args:
        path: An image file.
        offsets: Offset (pixels) of each attack to show.
        view: Side of the view (pixels).

    Raises:
        UsageError: The offsets need a larger margin than the image has.
    """
    shifts = {attack: SHIFTS.get(ATTACKS.get(attack).shift) for attack in offsets}
    margin = max(1, *(shifts[attack].margin(Grid(reach(o))) for attack, o in offsets.items()))
    geometry = Geometry(view, round(view * PAPER_RATIO), margin, interpolation="bicubic")
    if geometry.side > geometry.resize:
        raise UsageError(
            f"expected offsets up to {(geometry.resize - view) // 2} px for a view of {view} px, "
            f"got {margin} px. Choose smaller offsets or a larger --size"
        )
    canvas = geometry.canvas(read_image(path)).double()[None] / 255
    original = SHIFTS.get("crop").views(canvas, margin)(ORIGIN)[0]
    shown = {a: shifts[a].views(canvas, margin)(offset)[0] for a, offset in offsets.items()}
    figure = Figure(figsize=(2.3 * (1 + len(shown)), 7.6), layout="constrained")
    panels = figure.subplots(3, 1 + len(shown), squeeze=False)
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    zoom = max(8, view // 9)
    _picture(panels[0, 0], original, "original")
    _picture(panels[2, 0], original[:, :zoom, -zoom:], f"upper right {zoom} px")
    half = offsets.get("half", DEFAULT_OFFSETS["half"])
    if reach(half) > margin:  # the bilinear shift would read beyond the canvas
        panels[1, 0].set_visible(False)
    else:
        sinc, lerp = (SHIFTS.get(k).views(canvas, margin)(half)[0] for k in ("cyclic", "bilinear"))
        heading = f"sinc minus bilinear, both\nat dy {half.dy:g}, dx {half.dx:g}"
        _difference(panels[1, 0], sinc - lerp, heading)
    for column, (attack, moved) in enumerate(shown.items(), start=1):
        place = f"dy {offsets[attack].dy:g}, dx {offsets[attack].dx:g}"
        _picture(panels[0, column], moved, f"{_NAMES[attack]}\n{place}")
        heading = f"values {float(moved.min()):.2f} to {float(moved.max()):.2f}\nminus the original"
        _difference(panels[1, column], moved - original, heading)
        _picture(panels[2, column], moved[:, :zoom, -zoom:], "")
    return figure


def reach(offset: Offset) -> int:
    """Return the largest component of an offset, rounded up to whole pixels."""
    return math.ceil(max(abs(offset.dy), abs(offset.dx)))
