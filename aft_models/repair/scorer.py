"""The small networks of the learned remedies, and whether they have been trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.layer import SlidingLayer
from aft_models.repair.polyphase import Choice, PolyphaseSampler, install, strongest
from aft_models.repair.window import Pair

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
        return self.get_parameter(name)

    def choose(self, scores: Tensor, training: bool) -> Choice:
        """From the scores of polyphase components, which its forward pass gives, to a choice."""
        raise NotImplementedError

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if any(key.startswith(prefix) for key in state_dict):
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
            self.trained = True


def _choose(layer: SlidingLayer, y: Tensor) -> Choice:
    scorer = layer._modules.get(_NAME)
    if not isinstance(scorer, Scorer):  # nothing to choose when the model was surveyed
        return strongest(y, layer.window.stride)
    return scorer.choose(scorer(y, layer.window.stride), layer.training)


def install_learned(
    context: RepairContext, name: str, kind: Callable[[int], Scorer], what: str
) -> None:
    """Sub-samples by learned scores: adds a scorer to each layer that will have to choose.

    Those are the layers that come first on a map of some size; ``kind`` makes the scorer of one,
    given the channels of its output.
    """
    install(context, PolyphaseSampler(name, context.forward_pass, _choose, learns=True), what)
    like = next(context.model.parameters(), torch.zeros(()))
    if context.survey.failure:
        raise AftModelsError(
            "a learned remedy must see the model run once: pass an image that it takes, as in "
            "repair(model, ..., image=torch.zeros(1, 3, 224, 224))"
        )
    named = dict(context.layers())
    first: dict[tuple[Pair, Pair], SlidingLayer] = {}
    channels: dict[SlidingLayer, int] = {}
    for call in context.survey.calls:
        layer = named[call.layer]
        if not isinstance(layer, SlidingLayer) or not layer.window.strided:
            continue
        if first.setdefault((call.size, layer.window.stride), layer) is layer:
            channels[layer] = int(getattr(layer, "out_channels", call.channels))
    for layer, count in channels.items():
        layer.add_module(_NAME, kind(count).to(like))


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
