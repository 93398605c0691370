"""``lps``: learnable polyphase sampling, Rojas-Gomez et al., NeurIPS 2022."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from aft_models.repair.context import RepairContext
from aft_models.repair.layer import extend
from aft_models.repair.phases import Phase
from aft_models.repair.polyphase import Choice, Mixture, Scorer, blocks, install_learned
from aft_models.repair.remedy import Remedy, register

_HIDDEN = 16  # channels between the two convolutions


class PhaseScorer(Scorer):
    """``mean(conv3(relu(conv3(x_i))))`` of each polyphase component ``x_i``, on a torus."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            first=(_HIDDEN, channels, 3, 3), first_bias=(_HIDDEN,), second=(1, _HIDDEN, 3, 3)
        )

    def forward(self, y: Tensor, stride: tuple[int, int]) -> Tensor:
        """A score per component of a map: ``(B, sy, sx)``."""
        parts = blocks(y, stride).permute(0, 3, 5, 1, 2, 4).flatten(0, 2)  # (B sy sx, C, H, W)
        around = extend(parts, (1, 1), (1, 1), border="circular")
        hidden = F.relu(F.conv2d(around, self["first"], self["first_bias"]))
        # On a torus the mean of a convolution is that of its input times the sum of the kernel.
        score = hidden.mean((2, 3)) @ self["second"].sum((2, 3)).t()
        return score.view(-1, *stride)

    def choose(self, scores: Tensor, training: bool) -> Choice:
        """The component of the largest score; while it learns, all of them by Gumbel noise."""
        if not training:
            return Phase.largest(scores)
        weights = F.gumbel_softmax(scores.flatten(1), dim=1).view_as(scores)
        return Mixture(weights[:, None])


def _apply(context: RepairContext, _: int) -> None:
    what = "a small network chooses the polyphase component"
    install_learned(context, "lps", PhaseScorer, what)


register(
    Remedy(
        name="lps",
        group="sampling",
        summary="a stride keeps the polyphase component that a small network chooses",
        apply=_apply,
        treats=("sub-sampling",),
        exact="whole pixels",
        needs_finetuning=True,
        learns=True,
    )
)
