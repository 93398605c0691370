"""A model under repair, what was done to it, and what could not be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.phases import ForwardPass
from aft_models.repair.survey import Survey
from aft_models.repair.window import Pair, Window


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
        """Puts a function of the images in front of the model, and notes it.

        Args:
            remedy: Its name.
            move: From images to images.
            what: What the report says.
            keeps_pixels: Whether it only crops or rolls: a search then predicts equal results once.
            first: Before the moves of other remedies, not after them.
        """
        hook = ImageMove(remedy, move, keeps_pixels)
        self.model.register_forward_pre_hook(hook, prepend=first)
        self.changed("", self.model, what)

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
