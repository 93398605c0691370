"""``select``: the content determines which crop of a wider view the network is given.

The idea is that of Shifman and Weiss, "Robust Inference by Crop Selection", ECCV 2024. A view with
a margin of ``m`` pixels contains ``(2 m + 1)^2`` crops of the network's own size. The highest peak
of a score of the content, anywhere in the view, is the origin of a lattice with a period of
``2 m + 1`` pixels. The crop that begins at a point of the lattice is taken: there is exactly one.
Under a shift by a few integer pixels the peak is the same, and so is the crop, pixel by pixel,
until the crop would leave the view and the next point of the lattice applies. Along an axis this
happens once in ``2 m + 1`` pixels; no choice among these crops can change less often.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.layers.polyphase import Phase
from aft_models.remedies.inputs import InputRemedy, Undo, same
from aft_models.remedies.phases import window_each
from aft_models.remedies.window import map_size
from aft_models.resample import without_autocast, working_dtype

_SIGMAS = (2.0, 4.0)  # pixels: the score is the difference of two Gaussians
_RADIUS = 8  # pixels around a place that its score sees, twice the wider sigma
_BLOCK = 16  # rows that are blurred together


def _kernels() -> Tensor:
    """Return both Gaussians as matrices ``(2, block, block + 2 r)``."""
    inside = torch.arange(_RADIUS, _BLOCK + _RADIUS, dtype=torch.float64)
    distance = torch.arange(_BLOCK + 2 * _RADIUS) - inside[:, None]
    squared = torch.stack([(distance / sigma) ** 2 for sigma in _SIGMAS])
    weights = torch.exp(-0.5 * squared) * (distance.abs() <= _RADIUS)
    return weights / weights.sum(-1, keepdim=True)


_KERNELS = _kernels()  # a constant: torch.compile cannot trace a cached function


@dataclass(frozen=True)
class Select(InputRemedy):
    """The inner crop of each image on the lattice of the highest peak of the content score."""

    margin: int
    keeps_pixels = True

    @override
    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        height, width = (side - 2 * self.margin for side in map_size(images))
        rows, columns = self.place(images).unbind(1)
        return window_each(images, rows, columns, (height, width)), same

    @torch.no_grad()
    def place(self, images: Tensor) -> Tensor:
        """Return the first row and column of each crop: ``(B, 2)``, 0 to 2 m."""
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
    """Compute the score of each inner position; 0 where the score has no peak.

    The score is the absolute difference of two Gaussians of the mean over the channels. A slope
    that continues outside has its maximum at the edge, which changes with the shift.
    """
    gray = images.mean(1, keepdim=True, dtype=working_dtype(images.dtype))
    fine, coarse = _blur(_blur(gray).mT).mT.unbind(1)
    scores = (fine - coarse).abs()
    inner = scores[:, 1:-1, 1:-1]
    above_and_below = torch.maximum(scores[:, :-2, 1:-1], scores[:, 2:, 1:-1])
    beside = torch.maximum(scores[:, 1:-1, :-2], scores[:, 1:-1, 2:])
    return inner * (inner >= torch.maximum(above_and_below, beside))


def _blur(maps: Tensor) -> Tensor:
    """Apply both Gaussians along the rows: ``(B, 1 or 2, H, W)`` to ``(B, 2, H - 2 r, W)``.

    Products with a small matrix, one per block of rows, are ten times faster on a CPU than
    convolutions, which have one channel.
    """
    height = maps.shape[2] - 2 * _RADIUS
    starts = range(0, height, _BLOCK)
    padded = F.pad(maps, (0, 0, 0, len(starts) * _BLOCK - height))
    blocks = torch.stack([padded[:, :, i : i + _BLOCK + 2 * _RADIUS] for i in starts], 2)
    return (_KERNELS.to(maps)[:, None] @ blocks).flatten(2, 3)[:, :, :height]


def build(margin: int) -> Select:
    """Build the remedy for a view with a margin of `margin` pixels."""
    return Select(margin)
