"""The loss of a recipe with `shift`: cross entropy, and consistency between two windows.

Two windows of every image, a random shift apart, are classified. The loss is the cross entropy of
both plus `consistency` times the divergence of their predictions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from aft_models.training.recipe import Recipe


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute KL(p || q) of each row, from logarithms of probabilities (B, classes).

    >>> divergence(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.5, 0.5]]).log())
    tensor([0.])
    """
    return (log_p.exp() * (log_p - log_q)).sum(1)


def symmetric_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute the mean of KL(p || q) and KL(q || p) of each row."""
    return (divergence(log_p, log_q) + divergence(log_q, log_p)) / 2


def shift_consistency_loss(
    recipe: Recipe, forward: Callable[[Tensor], Tensor], views: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the loss of a batch of two windows per image.

    Args:
        recipe: Supplies `consistency` and `label_smoothing`.
        forward: The model, from images to logits.
        views: (2, B, C, H, W), in the order of `draw_windows`.
        labels: (B,).

    Returns:
        The loss and, before its weight, the consistency term.
    """
    logits = forward(views.flatten(0, 1))  # (2 B, classes)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    term = symmetric_divergence(*logits.log_softmax(1).chunk(2)).mean()
    entropy = F.cross_entropy(logits, labels.repeat(2), label_smoothing=recipe.label_smoothing)
    return recipe.consistency * term + entropy, term
