"""Sub-sampling by polyphase components, one or a mixture, in step through the whole network.

Which component is chosen by its norm, or by a small network that learns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import SpaceToDepth
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.layer import Repaired, SlidingLayer, change_class, window_of
from aft_models.repair.phases import ForwardPass, Phase, roll_each
from aft_models.repair.window import Pair, map_size
from aft_models.resample import working_dtype


@dataclass(frozen=True)
class Mixture:
    """All polyphase components, weighted."""

    weights: Tensor  # (B, channels or 1, rows, columns), of sum 1

    def component(self, x: Tensor) -> Tensor:
        """The weighted mean of the components of a map that the stride divides."""
        weights = self.weights
        if weights.shape[1] != x.shape[1]:
            weights = weights.mean(1, keepdim=True)
        weights = weights.expand(-1, x.shape[1], -1, -1)
        return torch.einsum("bcmynx,bcyx->bcmn", blocks(x, self.stride), weights)

    @property
    def stride(self) -> Pair:
        """Rows and columns of a block."""
        return self.weights.shape[2], self.weights.shape[3]


Choice = Phase | Mixture


def blocks(x: Tensor, stride: Pair) -> Tensor:
    """``(B, C, H, W)`` as ``(B, C, H / sy, sy, W / sx, sx)``: axes 3 and 5 are the phases."""
    batch, channels, height, width = x.shape
    sy, sx = stride
    return x.reshape(batch, channels, height // sy, sy, width // sx, sx)


@torch.no_grad()
def strongest(y: Tensor, stride: Pair) -> Phase:
    """The polyphase component of the largest l2 norm, all channels together."""
    wide = working_dtype(y.dtype)
    return Phase.largest(torch.linalg.vector_norm(blocks(y, stride), dim=(1, 2, 4), dtype=wide))


@dataclass
class PolyphaseSampler:
    """Keeps what ``choose`` says, or what it said for the first layer on a map of this size."""

    name: str
    forward_pass: ForwardPass
    choose: Callable[[SlidingLayer, Tensor], Choice] | None = None  # None: the strongest
    learns: bool = False  # whether gradients flow through the choice in training

    def __call__(self, layer: SlidingLayer, x: Tensor) -> Tensor:
        """See :class:`aft_models.repair.layer.Sampler`."""
        window, size = layer.window, map_size(x)
        if window.covers(size):
            return layer.at_stride(centered(x))
        if not window.strided:
            return layer.at_stride(x)
        choice = self.forward_pass.find(layer, size, window.stride)
        if choice is None:
            grad = torch.is_grad_enabled()
            through = grad and layer.training and self.learns
            with torch.set_grad_enabled(through):
                y = layer.at_every_pixel(x)
                choice = self.choose(layer, y) if self.choose else strongest(y, window.stride)
            self.forward_pass.keep(layer, size, window.stride, choice)
            if through or not grad:
                return choice.component(y)
        return follow(layer, x, choice)


def follow(layer: SlidingLayer, x: Tensor, choice: Choice) -> Tensor:
    """The layer's output at a component that is chosen already, computing no other."""
    if isinstance(choice, Mixture) or layer.window.kind != "conv":
        return choice.component(layer.at_every_pixel(x))
    extended = layer.extend(x, full=True)
    if layer.window.pointwise:
        return layer.slide_over(choice.component(extended), full=True)
    return layer.slide_over(choice.crop(extended), full=False)


def centered(x: Tensor) -> Tensor:
    """A map rolled so that its strongest pixel lies in the middle, for a head that sees it whole.

    Then the head sees the same map wherever the image was.
    """
    with torch.no_grad():
        strongest_pixel = Phase.largest(torch.linalg.vector_norm(x.detach(), dim=1))
    height, width = map_size(x)
    return roll_each(x, height // 2 - strongest_pixel.rows, width // 2 - strongest_pixel.columns)


class CenteredPool(Repaired):
    """Adaptive pooling to more than one pixel, whose answer a linear layer takes flattened."""

    def forward(self, x: Tensor) -> Tensor:
        """The pooled map, of ``x`` rolled so that its strongest window lies in the middle."""
        own: Tensor = self.original.forward(self, centered(x))
        return own


class AlignedUpsample(Repaired):
    """Up-sampling that puts each pixel back where the coarser map's pixel was taken from."""

    forward_pass: ForwardPass
    mode: str

    def forward(self, x: Tensor) -> Tensor:
        """Up-sampled, then rolled by the phases that the coarser map was kept at."""
        y: Tensor = self.original.forward(self, x)
        origin = self.forward_pass.origin(map_size(x), map_size(y))
        return y if origin is None else roll_each(y, *origin)


class AnchoredUnshuffle(Repaired):
    """Blocks of pixels into channels, the blocks beginning where the map's strongest phase is."""

    block: int
    forward_pass: ForwardPass

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, C block^2, H / block, W / block)``."""
        size, stride = map_size(x), (self.block, self.block)
        phase = self.forward_pass.find(self, size, stride)
        if phase is None:
            phase = strongest(x, stride)
            self.forward_pass.keep(self, size, stride, phase)
        y: Tensor = self.original.forward(self, roll_each(x, -phase.rows, -phase.columns))
        return y


def install(context: RepairContext, sampler: PolyphaseSampler, what: str) -> None:
    """Gives every sub-sampling layer of a model a sampler, and keeps them in step."""
    for name, module in context.layers():
        window = window_of(module)
        if window is not None and (window.strided or context.covers_map(name, window)):
            say = what if window.strided else "strongest pixel of its map rolled to the middle"
            context.give_sampler(name, module, sampler, f"{window}: {say}")
        elif context.is_flattened(module):
            pool = change_class(module, CenteredPool)
            context.changed(name, pool, "strongest pixel of its map rolled to the middle")
        elif isinstance(module, (nn.PixelUnshuffle, SpaceToDepth)):
            block = module.downscale_factor if isinstance(module, nn.PixelUnshuffle) else module.bs
            unshuffle = change_class(module, AnchoredUnshuffle)
            unshuffle.block, unshuffle.forward_pass = int(block), context.forward_pass
            context.changed(
                name, unshuffle, f"blocks of {block} begin at the phase of largest norm"
            )
        elif isinstance(module, nn.Upsample):
            upsample = change_class(module, AlignedUpsample)
            upsample.forward_pass = context.forward_pass
            context.changed(name, upsample, "follows the phases that the coarser map was kept at")
            if module.mode != "nearest":
                context.left(name, f"{module.mode} up-sampling mixes pixels across the border")
    context.model.register_forward_pre_hook(context.forward_pass)
    context.model.register_forward_hook(context.forward_pass)
    context.note_unreached()


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
    scorer = layer._modules.get("scorer")
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
        layer.add_module("scorer", kind(count).to(like))


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
