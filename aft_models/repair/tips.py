"""``tips``: translation-invariant polyphase sampling, Saha and Gokhale, 2024."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from aft_models.repair.context import RepairContext
from aft_models.repair.layer import extend
from aft_models.repair.polyphase import Choice, Mixture, Scorer, blocks, install_learned
from aft_models.repair.remedy import Remedy, register


class MixtureScorer(Scorer):
    """Per channel, a score of each polyphase component.

    The pooling is over each component. (Pooled over the cells of an ``s x s`` grid on the image,
    as one may also read the paper, the scores would not move with the image.)
    """

    def __init__(self, channels: int) -> None:
        super().__init__(
            first=(channels, 1, 3, 3), first_bias=(channels,), second=(channels, 1, 1, 1)
        )

    def forward(self, y: Tensor, stride: tuple[int, int]) -> Tensor:
        """``(B, C, sy, sx)``."""
        channels = y.shape[1]
        around = extend(y, (1, 1), (1, 1), border="circular")
        hidden = F.relu(F.conv2d(around, self["first"], self["first_bias"], groups=channels))
        pooled = blocks(hidden, stride).mean((2, 4))
        return F.conv2d(pooled, self["second"], groups=channels)

    def choose(self, scores: Tensor, training: bool) -> Choice:
        """All components, weighted per channel."""
        return Mixture(scores.flatten(2).softmax(2).view_as(scores))


def _apply(context: RepairContext, _: int) -> None:
    what = "each channel mixes its polyphase components"
    install_learned(context, "tips", MixtureScorer, what)


register(
    Remedy(
        name="tips",
        group="sampling",
        summary="a stride mixes the polyphase components, by learned weights per channel",
        apply=_apply,
        treats=("sub-sampling",),
        needs_finetuning=True,
        learns=True,
    )
)
