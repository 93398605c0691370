"""Choices of polyphase components, shared by all layers of a network.

A residual block sub-samples twice: in its branch and on its shortcut. Components chosen separately
would add pixels of different positions. Therefore the first layer that sub-samples a map of some
size in a forward pass chooses, and later layers with the same map size and stride use its choice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.layers.polyphase import Pair, Phase


def window_each(x: Tensor, top: Tensor, left: Tensor, size: Pair) -> Tensor:
    """Cut a window at another position of each image ``(B, C, H, W)``, with circular padding.

    >>> line = torch.arange(4.0).view(1, 1, 1, 4)
    >>> window_each(line, torch.tensor([0]), torch.tensor([2]), (1, 3)).flatten().tolist()
    [2.0, 3.0, 0.0]
    """
    height, width = x.shape[2:]
    rows = (torch.arange(size[0], device=x.device) + top[:, None]) % height
    columns = (torch.arange(size[1], device=x.device) + left[:, None]) % width
    source = (rows[:, :, None] * width + columns[:, None]).flatten(1)
    chosen = x.flatten(2).gather(2, source[:, None].expand(-1, x.shape[1], -1))
    return chosen.view(*x.shape[:2], *size)


def roll_each(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Roll images ``(B, C, H, W)``, each by another distance."""
    return window_each(x, -rows, -columns, (x.shape[2], x.shape[3]))


class _Pass(threading.local):
    """Choices of this thread so far."""

    def __init__(self) -> None:
        self.choices: dict[Any, Any] = {}
        self.first: nn.Module | None = None  # the layer that chose first


class ForwardPass:
    """Choices of the current forward pass, shared by all layers of one model.

    The root module calls it as a hook before and after each pass. If a caller bypasses the root
    (``model.forward_features``), a pass ends when the layer that chose first is called again.
    """

    def __init__(self) -> None:
        self._pass = _Pass()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle without the choices."""
        return ForwardPass, ()

    def __call__(self, *_: Any) -> None:
        """Clear all choices: a forward hook of the root."""
        self._pass.choices.clear()
        self._pass.first = None

    @property
    def choices(self) -> dict[tuple[Pair, Pair], Any]:
        """Choices so far, by size of the map and stride, in the order of the pass."""
        return dict(self._pass.choices)

    def find(self, layer: nn.Module, size: Pair, stride: Pair) -> Any:
        """Return the choice to follow, or None for the layer that must choose."""
        if layer is self._pass.first:
            self()
        return self._pass.choices.get((size, stride))

    def keep(self, layer: nn.Module, size: Pair, stride: Pair, choice: Any) -> None:
        """Store a choice for the layers that follow."""
        if self._pass.first is None:
            self._pass.first = layer
        self._pass.choices[size, stride] = choice

    def origin(self, coarse: Pair, fine: Pair) -> tuple[Tensor, Tensor] | None:
        """Return the position of a coarser map's first pixel on a finer map; None if unknown.

        The coarser map must derive from one of the finer size, in one or more steps.
        """
        size, step = fine, (1, 1)
        place: tuple[Tensor, Tensor] | None = None
        while size != coarse:
            choices = [c for (s, _), c in self._pass.choices.items() if s == size]
            if len(choices) != 1 or not isinstance(choices[0], Phase):
                return None
            phase = choices[0]
            y, x = phase.rows * step[0], phase.columns * step[1]
            place = (y, x) if place is None else (place[0] + y, place[1] + x)
            step = step[0] * phase.stride[0], step[1] * phase.stride[1]
            size = size[0] // phase.stride[0], size[1] // phase.stride[1]
        return place

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Open a separate pass inside another one, for a layer that is called alone."""
        outer = self._pass.choices, self._pass.first
        self._pass.choices, self._pass.first = {}, None
        try:
            yield
        finally:
            self._pass.choices, self._pass.first = outer


@contextmanager
def own_pass(model: nn.Module) -> Iterator[None]:
    """Separate the choices of layers that are called alone from those of the model.

    Without it these layers would use or replace the choices of the model's forward pass.
    """
    hooks = (hook for module in model.modules() for hook in module._forward_hooks.values())
    forward_pass = next((hook for hook in hooks if isinstance(hook, ForwardPass)), None)
    with nullcontext() if forward_pass is None else forward_pass.apart():
        yield
