"""``select``: the content chooses which crop of a wider view the network sees.

The idea is that of Shifman and Weiss, "Robust Inference by Crop Selection", ECCV 2024. A view that
is ``m`` pixels wider on each side holds ``(2 m + 1)^2`` crops of the network's own size. The
highest peak of a score of the content, anywhere in the view, is the origin of a lattice with a
period of ``2 m + 1`` pixels, and the crop that begins at a point of the lattice is taken: there is
exactly one. A camera that moves by a few whole pixels finds the same peak, so the same crop, pixel
by pixel, until that crop would leave the view and the next point of the lattice takes over. Along
an axis this happens once in ``2 m + 1`` pixels, and no choice among these crops can do with less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.phases import Phase, window_each
from aft_models.repair.remedy import Number, Remedy, register
from aft_models.repair.window import Pair, map_size
from aft_models.resample import without_autocast, working_dtype

_SIGMAS = (2.0, 4.0)  # pixels: the score is the difference of two Gaussians
_RADIUS = 8  # pixels around a place that its score sees, twice the wider sigma
_BLOCK = 16  # rows that are blurred together


@dataclass
class Select:
    """Of each image the inner crop on the lattice of the highest peak of the content score."""

    margin: int  # m
    size: Pair  # what the network itself takes

    def __call__(self, images: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, C, H - 2 m, W - 2 m)``."""
        height, width = (side - 2 * self.margin for side in map_size(images))
        if map_size(images) == self.size:
            raise AftModelsError(
                f"select:{self.margin} takes images of {images.shape[2] + 2 * self.margin} x "
                f"{images.shape[3] + 2 * self.margin} pixels, of which the network sees "
                f"{images.shape[2]} x {images.shape[3]}: got the latter"
            )
        rows, columns = self.place(images).unbind(1)
        return window_each(images, rows, columns, (height, width))

    @torch.no_grad()
    def place(self, images: Tensor) -> Tensor:
        """Where the crop of each image begins: ``(B, 2)``, rows and columns, 0 to 2 m."""
        least = 2 * max(self.margin, _RADIUS + 1) + 1
        if min(map_size(images)) < least:
            raise AftModelsError(
                f"select:{self.margin} needs images of {least} pixels or more on each side, got "
                f"{images.shape[2]} x {images.shape[3]}: use larger images"
            )
        with without_autocast(images):
            peak = Phase.largest(_scores(images.detach()))
        return torch.stack([peak.rows, peak.columns], 1) % (2 * self.margin + 1)


def _scores(images: Tensor) -> Tensor:
    """The score of each place that lies far enough inside; 0 where it is no peak.

    The absolute difference of two Gaussians of the mean over the channels. Peaks, because a slope
    that goes on outside has its maximum at the edge, which moves with the camera.
    """
    gray = images.mean(1, keepdim=True, dtype=working_dtype(images.dtype))
    fine, coarse = _blur(_blur(gray).mT).mT.unbind(1)
    scores = (fine - coarse).abs()
    inner = scores[:, 1:-1, 1:-1]
    above_and_below = torch.maximum(scores[:, :-2, 1:-1], scores[:, 2:, 1:-1])
    beside = torch.maximum(scores[:, 1:-1, :-2], scores[:, 1:-1, 2:])
    return inner * (inner >= torch.maximum(above_and_below, beside))


def _blur(maps: Tensor) -> Tensor:
    """Both Gaussians down the rows: ``(B, 1 or 2, H, W)`` to ``(B, 2, H - 2 r, W)``.

    Products with a small matrix, one per block of rows, are ten times faster on a CPU than
    convolutions, which have one channel.
    """
    height = maps.shape[2] - 2 * _RADIUS
    starts = range(0, height, _BLOCK)
    padded = F.pad(maps, (0, 0, 0, len(starts) * _BLOCK - height))
    blocks = torch.stack([padded[:, :, i : i + _BLOCK + 2 * _RADIUS] for i in starts], 2)
    return (_kernels().to(maps)[:, None] @ blocks).flatten(2, 3)[:, :, :height]


@cache
def _kernels() -> Tensor:
    """Both Gaussians as matrices ``(2, block, block + 2 r)``."""
    inside = torch.arange(_RADIUS, _BLOCK + _RADIUS, dtype=torch.float64)
    distance = torch.arange(_BLOCK + 2 * _RADIUS) - inside[:, None]
    squared = torch.stack([(distance / sigma) ** 2 for sigma in _SIGMAS])
    weights = torch.exp(-0.5 * squared) * (distance.abs() <= _RADIUS)
    return weights / weights.sum(-1, keepdim=True)


def _apply(context: RepairContext, margin: int) -> None:
    context.view_margin = margin
    what = f"the content chooses one of {2 * margin + 1} x {2 * margin + 1} crops of a wider view"
    select = Select(margin, context.size)
    context.move_images("select", select, what, keeps_pixels=True, first=True)


register(
    Remedy(
        name="select",
        group="view",
        summary="the network sees the crop that the content chooses, of a wider view",
        apply=_apply,
        treats=("position", "sub-sampling"),
        number=Number("how many pixels wider the view is on each side", 1, 64, 8),
    )
)
