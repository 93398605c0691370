"""Figure of an image under each shift type, as in the paper's appendix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from shiftbench.data.images import read_image
from shiftbench.errors import UsageError
from shiftbench.geometry import PAPER_RATIO, Geometry
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.shifts import ATTACKS, SHIFTS

DEFAULT_OFFSETS: Mapping[str, Offset] = {  # of the paper's figure
    "integer": Offset(16, 16),
    "half": Offset(16.5, 16.5),
    "crop": Offset(16, 16),
    "bilinear": Offset(0.5, 0.5),
}
_NAMES = {
    "integer": "cyclic, integer",
    "half": "cyclic, sinc",
    "crop": "crop",
    "bilinear": "bilinear",
}


def default_offsets(view: int) -> dict[str, Offset]:
    """Return the paper's offsets; crops of a smaller view shift less, as its margin is smaller."""
    most = float(min(16, (round(view * PAPER_RATIO) - view) // 2))
    return {**DEFAULT_OFFSETS, "crop": Offset(most, most)}


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
    """Draw the mean over channels, with a color bar."""
    mean = difference.mean(0)
    limit = max(float(mean.abs().quantile(0.99)), 1e-6)
    drawn = axes.imshow(mean.numpy(), cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title(title, fontsize=8)
    assert axes.figure is not None
    bar = axes.figure.colorbar(drawn, ax=axes, location="bottom", shrink=0.8, aspect=30, pad=0.02)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.ax.locator_params(nbins=3)


def _detailed(image: Tensor, side: int) -> tuple[slice, slice]:
    """Return the window of an image (channels, H, W) with the largest sum of gradients."""
    gray = image.mean(0)
    energy = torch.zeros_like(gray)
    energy[1:] += gray.diff(dim=0).abs()
    energy[:, 1:] += gray.diff(dim=1).abs()
    sums = F.avg_pool2d(energy[None, None], side, stride=1)[0, 0]
    top, left = divmod(int(sums.argmax()), sums.shape[1])
    return slice(top, top + side), slice(left, left + side)


def show_image(path: Path, *, offsets: Mapping[str, Offset], view: int = 224) -> Figure:
    """Draw an image under each shift, what the shift changes, and its most detailed window.

    The image is cut as in the protocol: its shorter side is resized to view * 256 / 224. The panel
    below the original is the half-pixel sinc shift minus the bilinear shift at the same offset. The
    sinc shift assumes that the view is one period of an image, so it rings at opposite borders
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
    rows, columns = _detailed(original, zoom)
    heading = f"{zoom} px with most detail\n(row {rows.start}, column {columns.start})"
    _picture(panels[2, 0], original[:, rows, columns], heading)
    half = offsets.get("half", DEFAULT_OFFSETS["half"])
    part = Offset(half.dy % 1, half.dx % 1)  # the fraction of a pixel fits into any margin
    sinc, lerp = (SHIFTS.get(k).views(canvas, margin)(part)[0] for k in ("cyclic", "bilinear"))
    heading = f"sinc minus bilinear, both\nat dy {part.dy:g}, dx {part.dx:g}"
    _difference(panels[1, 0], sinc - lerp, heading)
    for column, (attack, moved) in enumerate(shown.items(), start=1):
        place = f"dy {offsets[attack].dy:g}, dx {offsets[attack].dx:g}"
        _picture(panels[0, column], moved, f"{_NAMES[attack]}\n{place}")
        heading = f"values {float(moved.min()):.2f} to {float(moved.max()):.2f}\nminus the original"
        _difference(panels[1, column], moved - original, heading)
        _picture(panels[2, column], moved[:, rows, columns], "")
    return figure


def reach(offset: Offset) -> int:
    """Return the largest component of an offset, rounded up to an integer (pixels)."""
    return math.ceil(max(abs(offset.dy), abs(offset.dx)))
