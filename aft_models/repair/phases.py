"""Polyphase components that a whole network keeps in step.

A residual block sub-samples twice: in its branch and on its shortcut. If each picked a component of
its own the sum would mix pixels from different places. So within one forward pass the first layer
that sub-samples a map of some size picks, and every later layer that sub-samples a map of that size
by the same stride follows it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.repair.window import Pair


@dataclass(frozen=True)
class Phase:
    """One polyphase component per image."""

    rows: Tensor  # (B,), 0 .. stride - 1
    columns: Tensor  # (B,)
    stride: Pair

    @staticmethod
    def largest(scores: Tensor) -> Phase:
        """The component of the largest score ``(B, rows, columns)``; the first one wins a tie.

        >>> Phase.largest(torch.tensor([[[0.0, 2.0], [1.0, 2.0]]])).columns
        tensor([1])
        """
        height, width = scores.shape[1:]
        chosen = scores.flatten(1).argmax(1)
        return Phase(chosen // width, chosen % width, (height, width))

    def component(self, x: Tensor) -> Tensor:
        """Every ``stride``-th pixel of a map that the stride divides."""
        (sy, sx), width = self.stride, x.shape[3]
        x = _choose(self.rows, [x[:, :, p::sy] for p in range(sy)])
        return _choose(self.columns, [x[..., p:width:sx] for p in range(sx)])

    def crop(self, x: Tensor) -> Tensor:
        """The map from the component's first pixel on, all images to the same size."""
        (sy, sx), (height, width) = self.stride, x.shape[2:]
        x = _choose(self.rows, [x.narrow(2, p, height - sy + 1) for p in range(sy)])
        return _choose(self.columns, [x.narrow(3, p, width - sx + 1) for p in range(sx)])


def _choose(index: Tensor, options: list[Tensor]) -> Tensor:
    """Per image one of the options."""
    chosen, *others = options
    for i, option in enumerate(others, start=1):  # faster than a gather, both ways
        chosen = torch.where((index == i).view(-1, 1, 1, 1), option, chosen)
    return chosen


def window_each(x: Tensor, top: Tensor, left: Tensor, size: Pair) -> Tensor:
    """Of each image ``(B, C, H, W)`` the window that begins at its own place, on a torus.

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
    """``torch.roll`` of ``(B, C, H, W)`` by another distance for each image."""
    return window_each(x, -rows, -columns, (x.shape[2], x.shape[3]))


class _Pass(threading.local):
    """What was chosen so far, in this thread."""

    def __init__(self) -> None:
        self.choices: dict[Any, Any] = {}
        self.first: nn.Module | None = None  # the layer that chose first


class ForwardPass:
    """The choices of the forward pass under way, shared by all layers of one model.

    The model's root calls it as a hook before and after each pass. Where a caller goes round the
    root (``model.forward_features``), a pass ends when the layer that chose first is called again.
    """

    def __init__(self) -> None:
        self._pass = _Pass()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles start afresh."""
        return ForwardPass, ()

    def __call__(self, *_: Any) -> None:
        """Forgets all choices: a forward hook of the root."""
        self._pass.choices.clear()
        self._pass.first = None

    @property
    def choices(self) -> dict[tuple[Pair, Pair], Any]:
        """What was chosen so far, by size of the map and stride, in the order of the pass."""
        return dict(self._pass.choices)

    def find(self, layer: nn.Module, size: Pair, stride: Pair) -> Any:
        """The choice to follow, or None for the layer that must choose."""
        if layer is self._pass.first:
            self()
        return self._pass.choices.get((size, stride))

    def keep(self, layer: nn.Module, size: Pair, stride: Pair, choice: Any) -> None:
        """Makes a choice known to the layers that follow."""
        if self._pass.first is None:
            self._pass.first = layer
        self._pass.choices[size, stride] = choice

    def origin(self, coarse: Pair, fine: Pair) -> tuple[Tensor, Tensor] | None:
        """Where, on a finer map, the first pixel of a coarser one lies; None where it is not known.

        The coarser map must have been made from one of the finer size, in one step or more.
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
        """A pass of its own inside another one, for a layer that is called by itself."""
        outer = self._pass.choices, self._pass.first
        self._pass.choices, self._pass.first = {}, None
        try:
            yield
        finally:
            self._pass.choices, self._pass.first = outer


@contextmanager
def own_pass(model: nn.Module) -> Iterator[None]:
    """Within it, layers of a repaired model can be called by themselves while the model runs.

    Their choices neither follow those of the model's own forward pass nor disturb them.
    """
    passes = (hook for hook in model._forward_hooks.values() if isinstance(hook, ForwardPass))
    forward_pass = next(passes, None)
    with nullcontext() if forward_pass is None else forward_pass.apart():
        yield
