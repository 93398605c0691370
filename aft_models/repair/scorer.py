"""The small networks of the learned remedies, and whether they have been trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.layer import SlidingLayer
from aft_models.repair.polyphase import Choice, PolyphaseSampler, choosers, install, strongest

_NAME = "scorer"


class Scorer(nn.Module):
    """Parameters that the original model does not have.

    A checkpoint of the original holds none of them, and loads without complaint: they keep their
    random start, and ``trained`` stays False.
    """

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.trained = False  # whether a checkpoint has filled them
        for name, shape in shapes.items():
            bound = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.0
            self.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def __getitem__(self, name: str) -> Tensor:
        parameter = self._parameters[name]
        assert parameter is not None
        return parameter

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if any(key.startswith(prefix) for key in state_dict):
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
            self.trained = True


Pick = Callable[[SlidingLayer, Tensor], Choice]  # a layer and the scores of its components


def _choose(pick: Pick, layer: SlidingLayer, y: Tensor) -> Choice:
    scorer = layer._modules.get(_NAME)
    if scorer is None:  # a layer that had nothing to choose when the model was surveyed
        return strongest(layer, y)
    return pick(layer, scorer(y, layer.window.stride))


def install_learned(
    context: RepairContext, name: str, kind: Callable[[int], Scorer], pick: Pick, what: str
) -> None:
    """Sub-samples by learned scores: adds a scorer to each layer that will have to choose.

    Args:
        context: The model under repair.
        name: Of the remedy.
        kind: Makes the scorer of a layer, given its channels.
        pick: From scores to a choice.
        what: What the report says of each layer.
    """
    sampler = PolyphaseSampler(name, context.forward_pass, partial(_choose, pick), learns=True)
    install(context, sampler, what)
    like = next(context.model.parameters(), torch.zeros(()))
    if not context.survey.ran:
        raise AftModelsError(
            "a learned remedy must see the model run once: pass an image that it takes, as in "
            "repair(model, ..., image=torch.zeros(1, 3, 224, 224))"
        )
    for layer, channels in choosers(context).items():
        layer.add_module(_NAME, kind(channels).to(like))


def untrained(model: nn.Module) -> tuple[str, ...]:
    """Names of the learned parameters of a repaired model that no checkpoint has filled.

    A model that has any answers at random; train it, or load a checkpoint of it, first.
    """
    return tuple(
        f"{name}.{parameter}"
        for name, module in model.named_modules()
        if isinstance(module, Scorer) and not module.trained
        for parameter, _ in module.named_parameters()
    )
