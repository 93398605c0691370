"""The loss of a recipe with `shift`: right answers that do not change with the view.

Two windows of every photograph, a random shift apart, are classified. Their loss is the cross
entropy of both plus `consistency` times how far their predictions lie apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aft_models.modes import evaluating
from aft_models.training.recipe import Recipe


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) of each row, from logarithms of probabilities (B, classes).

    >>> divergence(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.5, 0.5]]).log())
    tensor([0.])
    """
    return (log_p.exp() * (log_p - log_q)).sum(1)


def symmetric_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """The mean of KL(p || q) and KL(q || p) of each row."""
    return (divergence(log_p, log_q) + divergence(log_q, log_p)) / 2


@dataclass(frozen=True)
class SteadyLoss:
    """The loss of a batch of views."""

    recipe: Recipe
    model: nn.Module  # that is trained
    teacher: nn.Module | None  # frozen, in evaluation mode

    def __call__(
        self, forward: Callable[[Tensor], Tensor], views: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss and, before its weight, the consistency term.

        Args:
            forward: The model as training calls it.
            views: (views, B, C, H, W) in the order of `draw_windows`.
            labels: (B,); not read where the recipe is `unlabeled`.
        """
        first, candidates = views[0], views[1 : 1 + self.recipe.worst_of]
        target = None if self.teacher is None else self._taught(views[1 + self.recipe.worst_of :])
        second = candidates[0]
        if len(candidates) > 1:
            second = self._worst(candidates, labels, target)
        logits = _at_least_float32(forward(torch.cat([first, second])))
        log_p, log_q = logits.log_softmax(1).chunk(2)
        if target is None:
            term = symmetric_divergence(log_p, log_q).mean()
        else:
            term = (divergence(target, log_p) + divergence(target, log_q)).mean() / 2
        loss = self.recipe.consistency * term
        if not self.recipe.unlabeled:
            loss = loss + F.cross_entropy(
                logits, labels.repeat(2), label_smoothing=self.recipe.label_smoothing
            )
        return loss, term

    @torch.no_grad()
    def _taught(self, views: Tensor) -> Tensor:
        """Logarithm of the teacher's mean probabilities over its views, (B, classes)."""
        assert self.teacher is not None
        mean = torch.stack(
            [_at_least_float32(self.teacher(view)).softmax(1) for view in views]
        ).mean(0)
        return mean.clamp(min=torch.finfo(mean.dtype).tiny).log()

    @torch.no_grad()
    def _worst(self, candidates: Tensor, labels: Tensor, target: Tensor | None) -> Tensor:
        """Of each photograph the view with the largest loss, (B, C, H, W)."""
        losses = []
        with evaluating(self.model):
            for view in candidates:
                logits = _at_least_float32(self.model(view))
                if self.recipe.unlabeled:
                    assert target is not None
                    losses.append(divergence(target, logits.log_softmax(1)))
                else:
                    losses.append(F.cross_entropy(logits, labels, reduction="none"))
        worst = torch.stack(losses).argmax(0)  # (B,)
        return candidates[worst, torch.arange(len(worst), device=worst.device)]


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
