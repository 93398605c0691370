"""The optimizer and the learning-rate schedule of a recipe."""

from __future__ import annotations

from typing import Any

from timm.optim import create_optimizer_v2, param_groups_weight_decay
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import nn
from torch.optim import Optimizer

from aft_models.training.recipe import Recipe


def make_optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    """Weight decay for matrices and kernels; what the model exempts follows the recipe.

    XCiT lists its attention temperatures as exempt, but attention modules list them themselves,
    where the authors' training script does not look: their models were trained with the decay.
    """

    def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
        listed = getattr(module, "no_weight_decay", None)
        exempt = set() if listed is None else set(listed())
        if recipe.decay_temperatures:
            exempt = {name for name in exempt if not name.endswith("temperature")}
        groups: list[dict[str, Any]] = param_groups_weight_decay(
            module, recipe.weight_decay, no_weight_decay_list=exempt
        )
        return groups

    optimizer: Optimizer = create_optimizer_v2(
        model,
        opt=recipe.optimizer,
        lr=recipe.peak_lr,
        betas=recipe.betas,
        param_group_fn=parameter_groups,
    )
    return optimizer


def make_scheduler(optimizer: Optimizer, recipe: Recipe, updates: int) -> Scheduler:
    """A warm-up and a cosine, a step per update; `updates` is how many an epoch has."""
    scheduler, _ = create_scheduler_v2(
        optimizer,
        "cosine",
        num_epochs=recipe.epochs,
        warmup_epochs=recipe.warmup_epochs,
        warmup_lr=recipe.warmup_lr,
        min_lr=recipe.min_lr,
        step_on_epochs=False,
        updates_per_epoch=updates,
    )
    return scheduler
