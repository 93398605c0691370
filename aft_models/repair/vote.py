"""``vote``: the mean over shifted views, for any model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.image import images_of
from aft_models.repair.remedy import Number, Remedy
from aft_models.resample import fractional_shift


@dataclass
class Vote:
    """Two hooks: one hands the model every view of an image, the other averages the answers."""

    side: int  # views along each axis, one pixel apart

    def offsets(self) -> list[float]:
        """Centered on zero; those of an even side lie between the pixels.

        >>> Vote(3).offsets(), Vote(2).offsets()
        ([-1.0, 0.0, 1.0], [-0.5, 0.5])
        """
        return [i - (self.side - 1) / 2 for i in range(self.side)]

    def before(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """A forward pre-hook of the model."""
        images, *others = images_of(inputs, "vote")
        views = [fractional_shift(images, y, x) for y in self.offsets() for x in self.offsets()]
        return torch.cat(views), *others

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


def _apply(patient: RepairContext, side: int) -> None:
    vote = Vote(side)
    patient.model.register_forward_pre_hook(vote.before)
    patient.model.register_forward_hook(vote.after)
    patient.changed("", patient.model, f"mean probability over {side} x {side} shifts")


VOTE = Remedy(
    name="vote",
    group="image",
    summary="mean probability over a centered grid of shifts, one pixel apart",
    exact_for="nothing",
    apply=_apply,
    needs_finetuning=False,
    number=Number("the side of the grid of shifts", 2, 15, 3),
)
