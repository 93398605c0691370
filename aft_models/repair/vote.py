"""``vote``: the mean over shifted views, for any model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.remedy import Number, Remedy, register
from aft_models.resample import fractional_shift


@dataclass
class Vote:
    """Shows a model every view of an image, and averages the answers."""

    side: int  # views along each axis, one pixel apart

    def offsets(self) -> list[float]:
        """Centered on zero; those of an even side lie between the pixels.

        >>> Vote(3).offsets(), Vote(2).offsets()
        ([-1.0, 0.0, 1.0], [-0.5, 0.5])
        """
        return [i - (self.side - 1) / 2 for i in range(self.side)]

    def __call__(self, images: Tensor) -> Tensor:
        """Every view, as one batch."""
        views = [fractional_shift(images, y, x) for y in self.offsets() for x in self.offsets()]
        return torch.cat(views)

    def after(self, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
        """A forward hook of the model: the logarithm of the mean probability."""
        if not isinstance(output, Tensor) or output.ndim != 2:
            raise AftModelsError(
                "vote averages probabilities: expected logits (B, classes) from the model, got "
                f"{tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__}"
            )
        views = self.side**2
        answers = output.view(views, -1, output.shape[1]).log_softmax(2)
        return answers.logsumexp(0) - math.log(views)


def _apply(context: RepairContext, side: int) -> None:
    vote = Vote(side)
    context.move_images("vote", vote, f"mean probability over {side} x {side} shifts")
    context.model.register_forward_hook(vote.after)


register(
    Remedy(
        name="vote",
        group="placement",
        summary="the mean probability over n x n cyclic shifts, one pixel apart",
        apply=_apply,
        treats=("position",),
        number=Number("the side of the grid of shifts", 2, 15, 3),
    )
)
