"""A network under repair, its changes and the obstacles."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from timm.layers import SpaceToDepth
from torch import nn

from aft_models.errors import AftModelsError
from aft_models.layers.polyphase import Pair
from aft_models.remedies.layer import Repaired, Sampler, SlidingLayer, sliding, window_of
from aft_models.remedies.phases import ForwardPass
from aft_models.remedies.survey import Survey
from aft_models.remedies.window import Window

# Layers that resample without a window.
_OTHERS = (nn.LPPool2d, nn.FractionalMaxPool2d, nn.PixelUnshuffle, SpaceToDepth, nn.Unfold)
_KNOWN = ("torch.nn.", "timm.layers.", "aft_models.layers.")


@dataclass(frozen=True)
class Change:
    """A layer that a remedy changed."""

    layer: str  # dotted name in the model; "" is the model itself
    kind: str  # its class
    what: str  # before and after, as a short text


@dataclass(frozen=True)
class Obstacle:
    """Operation that a remedy should have changed and could not."""

    where: str  # a layer, or a line of the model's code
    why: str  # as a short text


@dataclass(frozen=True)
class RepairReport:
    """The effect of one remedy on a model."""

    remedy: str  # as written: "blurpool:3"
    changed: tuple[Change, ...]
    unchanged: tuple[Obstacle, ...] = ()
    margin: int = 0  # pixels needed on each side of the network's view, in network pixels
    scale: int = 1  # image pixels per network pixel
    needs_finetuning: bool = False  # the accuracy is low before more training


class RepairContext:
    """The network that a remedy changes, and a list of the changes."""

    def __init__(
        self, model: nn.Module, survey: Survey, forward_pass: ForwardPass, size: Pair
    ) -> None:
        self.model, self.survey, self.forward_pass = model, survey, forward_pass
        self.size = size  # of the input images
        self.changes: list[Change] = []
        self.obstacles: list[Obstacle] = []

    def layers(self) -> Iterator[tuple[str, nn.Module]]:
        """Iterate over all modules, each under its first name."""
        return iter(list(self.model.named_modules()))

    def changed(self, name: str, layer: nn.Module, what: str) -> None:
        """Add a change to the report."""
        self.changes.append(Change(name, type(layer).__name__, what))

    def left(self, where: str, why: str) -> None:
        """Add an obstacle to the report."""
        self.obstacles.append(Obstacle(where, why))

    def left_functional(self, *kinds: str) -> None:
        """Add the operations of these kinds in the model's own code as obstacles."""
        for op in self.survey.functional:
            if op.kind in kinds:
                self.left(op.where, f"{op.operator} in the model's own code")

    def take(self, name: str, module: nn.Module) -> SlidingLayer | None:
        """Return the layer prepared for repair; None if it does more than slide a window."""
        if not isinstance(module, SlidingLayer) and not _is_faithful(module):
            self.left(name, f"{type(module).__name__} computes more than its window")
            return None
        return sliding(module)

    def give_sampler(self, name: str, module: nn.Module, sampler: Sampler, what: str) -> None:
        """Set the sub-sampling of a layer, and add the change or the obstacle to the report."""
        layer = self.take(name, module)
        if layer is None:
            return
        if layer.sampler is not None:
            raise AftModelsError(
                f"{name} is repaired with {layer.sampler.name} already. Start from the original "
                "model"
            )
        layer.sampler = sampler
        self.changed(name, layer, what)

    def replace_strides(self, sampler: Sampler, what: str) -> None:
        """Give every strided layer a sampler."""
        for name, module in self.layers():
            window = window_of(module)
            if window is not None and window.strided:
                self.give_sampler(name, module, sampler, f"{window}: {what}")
        self.note_unreached()

    def note_unreached(self) -> None:
        """Add resampling operations without a window as obstacles."""
        for name, module in self.layers():
            if isinstance(module, _OTHERS) and not isinstance(module, Repaired):
                self.left(name, f"{type(module).__name__} sub-samples by no window")
            elif isinstance(module, nn.ConvTranspose2d) and max(module.stride) > 1:
                self.left(name, "ConvTranspose2d up-samples from a fixed grid")
        self.left_functional("sampling")

    def covers_map(self, name: str, window: Window) -> bool:
        """Return True if one window of a layer covers a whole map."""
        return any(window.covers(size) for size in self.survey.sizes(name))

    def is_flattened(self, pool: nn.Module) -> bool:
        """Return True if a linear layer reads the flattened pixels of a pooled map."""
        if not isinstance(pool, nn.AdaptiveAvgPool2d) or pool.output_size in (1, (1, 1)):
            return False
        modules = [m for _, m in self.layers()]
        after = modules[modules.index(pool) + 1 :]
        weighted = (m for m in after if isinstance(m, (nn.Linear, nn.Conv2d)))
        return isinstance(next(weighted, None), nn.Linear)


@torch.no_grad()
def _is_faithful(layer: nn.Module) -> bool:
    """Return True if a layer has the same output when its input is padded outside of it.

    This is true of the classes of torch and timm. Any other class is tested.
    """
    if type(layer).__module__.startswith(_KNOWN):
        return True
    try:
        ours = sliding(copy.deepcopy(layer))
        like = next(layer.parameters(), torch.zeros(()))
        sides = [2 * e + s for e, s in zip(ours.window.extent, ours.window.stride, strict=True)]
        x = torch.randn(1, getattr(layer, "in_channels", 2), *sides).to(like)
        expected, got = layer.forward(x), ours.forward(x)
    except Exception:  # any error: not a plain window
        return False
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-3, atol=1e-4)
