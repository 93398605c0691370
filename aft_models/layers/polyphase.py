"""Adaptive polyphase sampling: keep the polyphase component of largest norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.resample import working_dtype


def select_polyphase(x: Tensor, criterion: Tensor, stride: int = 2) -> Tensor:
    """Sub-sample ``x`` at, per image, the polyphase component where ``criterion`` is largest.

    Args:
        x: ``(B, C, H, W)``.
        criterion: tensor of the same spatial size whose l2 norm, over all channels together,
            chooses the component; the lowest index wins a tie.
        stride: sub-sampling factor; sizes it does not divide are padded circularly.

    >>> x = torch.zeros(1, 1, 4, 4)
    >>> x[0, 0, 1, 2] = 1.0
    >>> select_polyphase(x, x).sum().item()
    1.0
    """
    x, criterion = _pad_to_multiple(x, stride), _pad_to_multiple(criterion, stride)
    with torch.no_grad():
        blocks = _components(criterion.detach(), stride)
        wide = working_dtype(blocks.dtype)
        energy = torch.linalg.vector_norm(blocks, dim=(1, 3, 5), dtype=wide)  # (B, s, s)
        chosen = energy.flatten(1).argmax(1)  # (B,)
    images = torch.arange(x.shape[0], device=x.device)
    rows, columns = chosen // stride, chosen % stride
    # Indexed with the channels last, whole lines of channels are copied.
    return _components(x, stride)[images, :, rows, :, columns].permute(0, 3, 1, 2)


def _components(x: Tensor, stride: int) -> Tensor:
    batch, channels, height, width = x.shape
    shape = (batch, height // stride, stride, width // stride, stride, channels)
    return x.permute(0, 2, 3, 1).reshape(shape)


def _pad_to_multiple(x: Tensor, stride: int) -> Tensor:
    bottom, right = -x.shape[-2] % stride, -x.shape[-1] % stride
    return F.pad(x, (0, right, 0, bottom), mode="circular") if bottom or right else x


class ApsDownsample(nn.Module):
    """Adaptive polyphase sub-sampling, optionally of an activation.

    Law: a cyclic integer shift of the input changes the output by a cyclic integer shift at most
    (for sizes the stride divides).

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

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return f"stride={self.stride}"

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, C, ceil(H / stride), ceil(W / stride))``."""
        if self.activation is None:
            return select_polyphase(x, x, self.stride)
        with torch.no_grad():
            activated = self.activation(x)
        return self.activation(select_polyphase(x, activated, self.stride))
