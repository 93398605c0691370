"""Camera of `scenes`: a square sensor whose pixels integrate over their area.

A pixel's value is the mean of the scene over the pixel's square, by the 2 x 2 Gauss-Legendre rule,
clipped and rounded to 8 bits. The rule is exact for cubics, and the scene is smooth on the scale of
a pixel of the 64-pixel view.

Positions are exact: offsets are split into an integer number of pixels and a phase. Every
two-dimensional operation is either correctly rounded (float32), or in float64 with errors far below
a gray level. So the pixel at p from offset n + f equals the pixel at p + n from offset f, and an
integer camera shift equals a crop, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shiftbench.grid import MAX_DENOMINATOR, Offset
from shiftbench.scenes.world import (
    CLASSES,
    EDGE,
    OPACITY,
    OUTLINES,
    WEAVES,
    Floats,
    Ripples,
    World,
)

NODES = np.array([-0.5, 0.5]) / math.sqrt(3)  # Gauss-Legendre, in pixels from the center
CHUNK = 32  # images evaluated together: hides the cost of a call and fits the cache


def split_offset(offset: float) -> tuple[int, float]:
    """Split an offset into integer pixels and the phase in [0, 1), exact for every grid."""
    exact = Fraction(offset).limit_denominator(MAX_DENOMINATOR)
    whole = math.floor(exact)
    return whole, float(exact - whole)


def _axis(view: int, margin: int, offset: float) -> Floats:
    """Return the world coordinate of every node along one axis, (nodes, pixels)."""
    whole, phase = split_offset(offset)
    pixels = np.arange(-margin, view + margin) + whole
    return (pixels + (0.5 + phase - view / 2 + NODES)[:, None]) / view


def _ripple_axis(ripples: Ripples, axis: int, at: Floats) -> tuple[Tensor, Tensor]:
    """Return cosine and sine factors (B, K, n) of each ripple, averaged over a pixel."""
    frequency = ripples.frequency[:, :, axis, None, None]
    phase = ripples.phase[:, :, None, None] * axis  # cos(a + b): the phase goes with b
    turn = torch.from_numpy(2 * np.pi * (frequency * at + phase))
    cos, sin = turn.cos(), turn.sin()
    windowed = np.isfinite(ripples.width[0])
    center = ripples.center[:, windowed, axis, None, None]
    distance = torch.from_numpy((at - center) / ripples.width[:, windowed, None, None])
    window = distance.square_().mul_(-0.5).exp_()
    cos[:, windowed] *= window
    sin[:, windowed] *= window
    return cos.mean(2), sin.mean(2)


def _background(world: World, ys: Floats, xs: Floats) -> Tensor:
    """Render background and ripples, float32 (B, 3, H, W); a windowed plane wave is separable."""
    cos_y, sin_y = _ripple_axis(world.ripples, 0, ys)
    cos_x, sin_x = _ripple_axis(world.ripples, 1, xs)
    color = torch.from_numpy(world.ripples.color).transpose(1, 2)[..., None]  # (B, 3, K, 1)
    rows = torch.cat([cos_y, -sin_y], dim=1).transpose(1, 2)[:, None]  # (B, 1, H, 2K)
    columns = torch.cat([color * cos_x[:, None], color * sin_x[:, None]], dim=2)
    image = rows @ columns  # (B, 3, H, W)
    return image.add_(torch.from_numpy(world.ground)[:, :, None, None]).float()


def _turned(
    y: Floats, x: Floats, angle: Floats, scale: Floats, shift: Floats | None = None
) -> list[Tensor]:
    """Return the axes (u, v) of an object as float32 fields (B, nodes, H, nodes, W)."""
    shift = np.zeros((len(angle), 2)) if shift is None else shift
    cos, sin = (f(angle)[:, None, None] for f in (np.cos, np.sin))
    axes = []
    for along_x, along_y, k in ((cos, sin, 0), (-sin, cos, 1)):
        u_x = (along_x * x) / scale[:, None, None] + shift[:, k, None, None]
        u_y = (along_y * y) / scale[:, None, None]
        columns, rows = (torch.from_numpy(u).float() for u in (u_x, u_y))
        axes.append(rows[:, :, :, None, None] + columns[:, None, None, :, :])
    return axes


def _object(world: World, ys: Floats, xs: Floats) -> tuple[Tensor, Tensor]:
    """Return the coverage of pixels by the object, and coverage times weave: float32 (B, H, W)."""
    y = ys - world.center[:, 0, None, None]
    x = xs - world.center[:, 1, None, None]
    weave_names, outline_names = zip(*(CLASSES[label] for label in world.label), strict=True)
    inside, thread = torch.empty((2, len(world), *ys.shape, *xs.shape))
    for name, rows in _groups(outline_names):
        part = _take(world, rows)
        size = np.ones(len(part))
        distance = OUTLINES[name](*_turned(y[rows], x[rows], part.angle, size))
        radius = torch.from_numpy(part.radius).float()[:, None, None, None, None]
        inside[rows] = (radius - distance).div_(EDGE).add_(0.5).clamp_(0, 1)
    for name, rows in _groups(weave_names):
        part = _take(world, rows)
        thread[rows] = WEAVES[name](
            *_turned(y[rows], x[rows], part.weave_angle, part.period, part.weave_phase)
        )
    return _over_nodes(inside), _over_nodes(thread.mul_(inside))


def _groups(names: Sequence[str]) -> list[tuple[str, NDArray[np.intp]]]:
    """Return each name with the rows that have it."""
    column = np.asarray(names)
    return [(str(name), np.flatnonzero(column == name)) for name in np.unique(column)]


def _over_nodes(field: Tensor) -> Tensor:
    """Average the nodes of a pixel in a fixed order: (B, 2, H, 2, W) -> (B, H, W)."""
    return (field[:, 0, :, 0] + field[:, 1, :, 0] + field[:, 0, :, 1] + field[:, 1, :, 1]) * 0.25


def _take(world: World, rows: NDArray[np.intp]) -> World:
    ripples = Ripples(*(part[rows] for part in world.ripples))
    rest = {f.name: getattr(world, f.name)[rows] for f in fields(World) if f.name != "ripples"}
    return World(**rest, ripples=ripples)


def render(world: World, view: int, margin: int, offset: Offset) -> Tensor:
    """Render the scenes at `offset` pixels: uint8 (B, 3, view + 2 margin, view + 2 margin)."""
    ys, xs = _axis(view, margin, offset.dy), _axis(view, margin, offset.dx)
    side = view + 2 * margin
    images = torch.empty((len(world), 3, side, side), dtype=torch.uint8)
    order = np.argsort(world.label, kind="stable")  # few classes in a chunk: few, large operations
    for start in range(0, len(world), CHUNK):
        rows = order[start : start + CHUNK]
        part = _take(world, rows)
        image = _background(part, ys, xs)
        cover, thread = (field[:, None] for field in _object(part, ys, xs))
        body, contrast = (
            torch.from_numpy(color).float()[:, :, None, None] for color in (part.body, part.thread)
        )
        cover = cover * OPACITY
        image.mul_(1 - cover).add_(cover * body).add_(thread * contrast)
        images[rows] = image.mul_(255).add_(0.5).clamp_(0, 255).to(torch.uint8)
    return images


class CameraViews:
    """Views of a batch at many offsets: each sub-pixel phase is rendered once and cropped.

    The 169 offsets of a grid with steps of 1/6 have only 36 phases. Only requested rows are
    rendered, so a search that drops misclassified images renders the others alone.
    """

    def __init__(self, world: World, view: int, reach: int, wider: int = 0) -> None:
        self._world = world
        self._view = view
        self._wider = wider
        self._margin = reach + wider
        self._phases: dict[Offset, tuple[Tensor, Tensor]] = {}  # canvas, rendered rows

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        """Return uint8 (B, 3, side, side), equal to `render` at `offset`, bit for bit.

        The side is the view with `wider` pixels more on each side.
        """
        wanted = torch.arange(len(self._world)) if rows is None else rows.cpu()
        (down, phase_y), (right, phase_x) = split_offset(offset.dy), split_offset(offset.dx)
        needed = max(abs(down), abs(right)) + self._wider
        if needed > self._margin:  # larger offset than before: render a larger canvas
            self._margin = needed
            self._phases.clear()
        canvases = self._canvases(Offset(phase_y, phase_x), wanted)
        top, left = (self._margin - self._wider + whole for whole in (down, right))
        side = self._view + 2 * self._wider
        return canvases[:, :, top : top + side, left : left + side][wanted]

    def _canvases(self, phase: Offset, wanted: Tensor) -> Tensor:
        side = self._view + 2 * self._margin
        if phase not in self._phases:
            blank = torch.zeros((len(self._world), 3, side, side), dtype=torch.uint8)
            self._phases[phase] = blank, torch.zeros(len(self._world), dtype=torch.bool)
        canvases, rendered = self._phases[phase]
        missing = wanted[~rendered[wanted]]
        if len(missing):
            part = _take(self._world, missing.numpy())
            canvases[missing] = render(part, self._view, self._margin, phase)
            rendered[missing] = True
        return canvases
