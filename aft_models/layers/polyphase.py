"""Adaptive polyphase sampling: keep the polyphase component of largest norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.resample import working_dtype

Pair = tuple[int, int]  # rows, columns


@dataclass(frozen=True)
class Phase:
    """A polyphase component per image."""

    rows: Tensor  # (B,), 0 .. stride - 1
    columns: Tensor  # (B,)
    stride: Pair

    @staticmethod
    def largest(scores: Tensor) -> Phase:
        """Choose the component of the largest score ``(B, rows, columns)``; the first wins a tie.

        >>> Phase.largest(torch.tensor([[[0.0, 2.0], [1.0, 2.0]]])).columns
        tensor([1])
        """
        height, width = scores.shape[1:]
        chosen = scores.flatten(1).argmax(1)
        return Phase(chosen // width, chosen % width, (height, width))

    def component(self, x: Tensor) -> Tensor:
        """Return the component of a map whose size is a multiple of the stride."""
        (sy, sx), width = self.stride, x.shape[3]
        x = _choose(self.rows, [x[:, :, p::sy] for p in range(sy)])
        return _choose(self.columns, [x[..., p:width:sx] for p in range(sx)])

    def crop(self, x: Tensor) -> Tensor:
        """Crop maps to begin at the component's first pixel, all to the same size."""
        (sy, sx), (height, width) = self.stride, x.shape[2:]
        x = _choose(self.rows, [x.narrow(2, p, height - sy + 1) for p in range(sy)])
        return _choose(self.columns, [x.narrow(3, p, width - sx + 1) for p in range(sx)])


def _choose(index: Tensor, options: list[Tensor]) -> Tensor:
    """Choose one of the options for each image."""
    chosen, *others = options
    for i, option in enumerate(others, start=1):  # faster than a gather, both ways
        chosen = torch.where((index == i).view(-1, 1, 1, 1), option, chosen)
    return chosen


def blocks(x: Tensor, stride: Pair) -> Tensor:
    """View ``(B, C, H, W)`` as ``(B, C, H / sy, sy, W / sx, sx)``: axes 3 and 5 are the phases."""
    batch, channels, height, width = x.shape
    sy, sx = stride
    return x.reshape(batch, channels, height // sy, sy, width // sx, sx)


@torch.no_grad()
def strongest(y: Tensor, stride: Pair) -> Phase:
    """Choose the polyphase component of the largest l2 norm, over all channels together."""
    wide = working_dtype(y.dtype)
    return Phase.largest(torch.linalg.vector_norm(blocks(y, stride), dim=(1, 2, 4), dtype=wide))


def select_polyphase(x: Tensor, criterion: Tensor, stride: int = 2) -> Tensor:
    """Sub-sample ``x`` at the polyphase component of each image where ``criterion`` is strongest.

    Args:
        x: ``(B, C, H, W)``; sizes that the stride does not divide are padded circularly.
        criterion: Tensor of the same spatial size, with any number of channels.
        stride: Sub-sampling factor.

    >>> x = torch.zeros(1, 1, 4, 4)
    >>> x[0, 0, 1, 2] = 1.0
    >>> select_polyphase(x, x).sum().item()
    1.0
    """
    phase = strongest(_pad_to_multiple(criterion, stride), (stride, stride))
    x = _pad_to_multiple(x, stride)
    images = torch.arange(x.shape[0], device=x.device)
    # With the channels last, indexing copies contiguous lines of channels.
    last = blocks(x, (stride, stride)).permute(0, 2, 3, 4, 5, 1)  # (B, H / s, s, W / s, s, C)
    return last[images, :, phase.rows, :, phase.columns].permute(0, 3, 1, 2)


def _pad_to_multiple(x: Tensor, stride: int) -> Tensor:
    bottom, right = -x.shape[-2] % stride, -x.shape[-1] % stride
    return F.pad(x, (0, right, 0, bottom), mode="circular") if bottom or right else x


class ApsDownsample(nn.Module):
    """Adaptive polyphase sub-sampling, optionally of an activation.

    Property: a cyclic integer shift of the input causes at most a cyclic integer shift of the
    output, for sizes that the stride divides.

    Args:
        stride: sub-sampling factor.
        activation: elementwise function applied first. Doing it here lets the backward pass touch
            the kept component only, a quarter of the pixels.

    >>> x = torch.randn(1, 3, 8, 8)
    >>> aps = ApsDownsample(2)
    >>> torch.equal(aps(x.roll(2, -1)), aps(x).roll(1, -1))
    True
    """

    def __init__(
        self, stride: int = 2, activation: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        if stride < 1:
            raise AftModelsError(f"stride must be a positive integer, got {stride}")
        self.stride = stride
        self.activation = activation

    @override
    def extra_repr(self) -> str:
        return f"stride={self.stride}"

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, C, ceil(H / stride), ceil(W / stride))``."""
        if self.activation is None:
            return select_polyphase(x, x, self.stride)
        with torch.no_grad():
            activated = self.activation(x)
        return self.activation(select_polyphase(x, activated, self.stride))
