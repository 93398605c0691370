"""A model under repair, what was done to it, and what could not be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from timm.layers import SpaceToDepth
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.layer import Repaired, Sampler, SlidingLayer, sliding, window_of
from aft_models.repair.phases import ForwardPass
from aft_models.repair.survey import Survey
from aft_models.repair.window import Pair, Window

# Layers that resample by something else than a window.
_OTHERS = (nn.LPPool2d, nn.FractionalMaxPool2d, nn.PixelUnshuffle, SpaceToDepth, nn.Unfold)
_KNOWN = ("torch.nn.", "timm.layers.", "aft_models.layers.")


@dataclass(frozen=True)
class Change:
    """A layer that a remedy changed."""

    layer: str  # dotted name in the model; "" is the model itself
    kind: str  # its class
    what: str  # before and after, in a few words


@dataclass(frozen=True)
class Obstacle:
    """Something that a remedy should have changed and could not."""

    where: str  # a layer, or a line of the model's code
    why: str  # in a few words


@dataclass(frozen=True)
class RepairReport:
    """What one remedy did to a model."""

    remedy: str  # as written: "blurpool:3"
    changed: tuple[Change, ...]
    unchanged: tuple[Obstacle, ...]
    new_parameters: int  # numbers to be trained that the original does not have
    view_margin: int  # pixels that it takes on each side beyond what the network itself sees
    needs_finetuning: bool  # whether the accuracy is not to be trusted before more training


@dataclass
class ImageMove:
    """A forward pre-hook that moves images before a model sees them."""

    remedy: str  # its name, for errors
    move: Callable[[Tensor], Tensor]  # to images of the same size, or of a smaller one
    keeps_pixels: bool  # it crops or rolls, so that two views may become the same, bit by bit

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments of the model, the first of them moved."""
        first = inputs[0] if inputs else None
        if isinstance(first, Tensor) and first.ndim == 4 and first.is_floating_point():
            return self.move(first), *inputs[1:]
        raise AftModelsError(
            f"{self.remedy} moves images: expected a floating-point tensor (B, C, H, W) as the "
            f"model's first argument, got "
            + (f"{first.dtype} {tuple(first.shape)}" if isinstance(first, Tensor) else "none")
        )


def network_input(model: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """What a network itself sees of images, where several views may become the same to it.

    Equal inputs have equal logits: a search need not predict them again.
    """
    hooks = (hook for hook in model._forward_pre_hooks.values() if isinstance(hook, ImageMove))
    moves = list(takewhile(lambda hook: hook.keeps_pixels, hooks))
    if not moves:
        return None

    def seen(images: Tensor) -> Tensor:
        for hook in moves:
            images = hook.move(images)
        return images

    return seen


class RepairContext:
    """The model that a remedy works on, and notes of what the remedy did."""

    def __init__(
        self, model: nn.Module, survey: Survey, forward_pass: ForwardPass, size: Pair
    ) -> None:
        self.model, self.survey, self.forward_pass = model, survey, forward_pass
        self.size = size  # of the images that the model takes
        self.changes: list[Change] = []
        self.obstacles: list[Obstacle] = []
        self.view_margin = 0

    def layers(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module once, under its first name."""
        return iter(list(self.model.named_modules()))

    def changed(self, name: str, layer: nn.Module, what: str) -> None:
        """Notes a change."""
        self.changes.append(Change(name, type(layer).__name__, what))

    def left(self, where: str, why: str) -> None:
        """Notes an obstacle."""
        self.obstacles.append(Obstacle(where, why))

    def left_functional(self, *kinds: str) -> None:
        """Notes the operations of these kinds that the model's own code carries out."""
        for op in self.survey.functional:
            if op.kind in kinds:
                self.left(op.where, f"{op.operator} in the model's own code")

    def move_images(
        self,
        remedy: str,
        move: Callable[[Tensor], Tensor],
        what: str,
        *,
        keeps_pixels: bool = False,
        first: bool = False,
    ) -> None:
        """Puts a function of the images in front of the model, and notes ``what`` it does.

        One that ``keeps_pixels`` only crops or rolls: a search then predicts equal results once.
        ``first`` puts it before the moves of other remedies, not after them.
        """
        hook = ImageMove(remedy, move, keeps_pixels)
        self.model.register_forward_pre_hook(hook, prepend=first)
        self.changed("", self.model, what)

    def take(self, name: str, module: nn.Module) -> SlidingLayer | None:
        """The layer made ready for repair; None, with a note, where it does more than slide."""
        if not isinstance(module, SlidingLayer) and not _is_faithful(module):
            self.left(name, f"{type(module).__name__} does more than its window says")
            return None
        return sliding(module)

    def give_sampler(self, name: str, module: nn.Module, sampler: Sampler, what: str) -> None:
        """Sets how a layer sub-samples, and notes it or that it is not possible."""
        layer = self.take(name, module)
        if layer is None:
            return
        if layer.sampler is not None:
            raise AftModelsError(
                f"{name} is repaired with {layer.sampler.name} already: start from the original "
                "model"
            )
        layer.sampler = sampler
        self.changed(name, layer, what)

    def replace_strides(self, sampler: Sampler, what: str) -> None:
        """Gives every strided layer a sampler, and notes what it is and what was missed."""
        for name, module in self.layers():
            window = window_of(module)
            if window is not None and window.strided:
                self.give_sampler(name, module, sampler, f"{window}: {what}")
        self.note_unreached()

    def note_unreached(self) -> None:
        """Notes whatever resamples and is no layer with a window."""
        for name, module in self.layers():
            if isinstance(module, _OTHERS) and not isinstance(module, Repaired):
                self.left(name, f"{type(module).__name__} sub-samples by no window")
            elif isinstance(module, nn.ConvTranspose2d) and max(module.stride) > 1:
                self.left(name, "ConvTranspose2d up-samples from a fixed grid")
        self.left_functional("sampling")

    def covers_map(self, name: str, window: Window) -> bool:
        """Whether a layer sees a whole map in one window."""
        return any(window.covers(size) for size in self.survey.sizes(name))

    def is_flattened(self, pool: nn.Module) -> bool:
        """Whether a layer pools to more than a pixel, and a linear layer takes each by itself."""
        if not isinstance(pool, nn.AdaptiveAvgPool2d) or pool.output_size in (1, (1, 1)):
            return False
        modules = [m for _, m in self.layers()]
        after = modules[modules.index(pool) + 1 :]
        weighted = (m for m in after if isinstance(m, (nn.Linear, nn.Conv2d)))
        return isinstance(next(weighted, None), nn.Linear)


@torch.no_grad()
def _is_faithful(layer: nn.Module) -> bool:
    """Whether a layer gives the same output when its input is padded outside of it.

    Classes of torch and timm are known; any other is tried.
    """
    if type(layer).__module__.startswith(_KNOWN):
        return True
    try:
        ours = sliding(copy.deepcopy(layer))
        like = next(layer.parameters(), torch.zeros(()))
        sides = [2 * e + s for e, s in zip(ours.window.extent, ours.window.stride, strict=True)]
        x = torch.randn(1, getattr(layer, "in_channels", 2), *sides).to(like)
        expected, got = layer.forward(x), ours.forward(x)
    except Exception:  # whatever it does, it is not a plain window
        return False
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-3, atol=1e-4)
