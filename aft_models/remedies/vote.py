"""``vote``: the mean prediction over shifted views, for any classifier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.remedies.inputs import InputRemedy, Undo
from aft_models.resample import fractional_shift


@dataclass(frozen=True)
class Vote(InputRemedy):
    """Mean probability over a square grid of cyclic shifts."""

    side: int  # views along each axis, one pixel apart

    def offsets(self) -> list[float]:
        """List the offsets along an axis; those of an even side are between the pixels.

        >>> Vote(3).offsets(), Vote(2).offsets()
        ([-1.0, 0.0, 1.0], [-0.5, 0.5])
        """
        return [i - (self.side - 1) / 2 for i in range(self.side)]

    @override
    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        views = [fractional_shift(images, y, x) for y in self.offsets() for x in self.offsets()]
        return torch.cat(views), self._mean

    def _mean(self, logits: Any) -> Tensor:
        """Compute the logarithm of the mean probability over the views: (B, classes)."""
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise AftModelsError(
                f"expected logits (B, classes) from the model for vote, got {got}. Return the "
                "logits alone"
            )
        views = self.side**2
        log_p = logits.view(views, -1, logits.shape[1]).log_softmax(2)
        return log_p.logsumexp(0) - math.log(views)


def build(side: int) -> Vote:
    """Build the remedy for a grid of `side` x `side` shifts."""
    return Vote(side)
