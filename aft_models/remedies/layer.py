"""Repaired layers: the same objects, with a class that pads and sub-samples by other rules.

A remedy changes the *class* of a layer, not the layer. Parents keep their child, shared layers
remain shared, and hooks remain. Parameters keep their names, so that a checkpoint of the original
loads into the repaired model and vice versa.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from aft_models.layers.padding import Margin, circular_pad
from aft_models.remedies.window import Window, map_size, plain_class, read_window, without_padding


class Repaired(nn.Module):
    """Mixin for the class of a layer, see :func:`change_class`."""

    mixin: ClassVar[type[nn.Module]]
    original: ClassVar[type[nn.Module]]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle both classes, since no module contains the mixed class under a name."""
        return _revive, (self.mixin, self.original), self.__dict__


Mixin = TypeVar("Mixin", bound=Repaired)


def change_class(
    layer: nn.Module, mixin: type[Mixin], original: type[nn.Module] | None = None
) -> Mixin:
    """Put the methods of ``mixin`` before those of a layer's own class, in place."""
    layer.__class__ = _mixed_class(mixin, original or type(layer))
    assert isinstance(layer, mixin)
    return layer


_MIXED: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


def _mixed_class(mixin: type[nn.Module], original: type[nn.Module]) -> type[nn.Module]:
    if (mixin, original) not in _MIXED:
        halves = {"mixin": mixin, "original": original}
        _MIXED[mixin, original] = type(original.__name__, (mixin, original), halves)
    return _MIXED[mixin, original]


def _revive(mixin: type[nn.Module], original: type[nn.Module]) -> nn.Module:
    mixed = _mixed_class(mixin, original)
    layer: nn.Module = mixed.__new__(mixed)
    return layer


class Sampler(Protocol):
    """Sub-sampling of a repaired layer."""

    @property
    def name(self) -> str:
        """Name of the remedy."""

    def __call__(self, layer: SlidingLayer, x: Tensor) -> Tensor:
        """Return the output of the layer for the map ``x``."""


class SlidingLayer(Repaired):
    """A layer with a window, whose border and sub-sampling can be set."""

    window: Window
    sampler: Sampler | None  # None: by the stride, as in the original
    bare: tuple[nn.Module, nn.Module]  # the layer without padding, at its stride and at stride one

    @override
    def extra_repr(self) -> str:
        done = [] if self.window.border == "zeros" else [f"border={self.window.border}"]
        done += [] if self.sampler is None else [f"sampling={self.sampler.name}"]
        own = self.original.extra_repr(self)
        return ", ".join([own, *done] if own else done)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to a map of the size divided by the stride."""
        return self.at_stride(x) if self.sampler is None else self.sampler(self, x)

    def at_stride(self, x: Tensor) -> Tensor:
        """Run the original layer, except for its border."""
        return self._slide(x, full=False)

    def at_every_pixel(self, x: Tensor) -> Tensor:
        """Run the layer at stride one: all polyphase components; the original is the first."""
        return self._slide(x, full=True)

    def _slide(self, x: Tensor, *, full: bool) -> Tensor:
        y = self.slide_over(self.extend(x, full=full), full=full)
        if self.window.border != "zeros":
            return y
        if self.window.kind == "max":  # a window without pixels, at stride one
            return y.masked_fill(y == -torch.inf, 0.0) if full else y
        counted = self.window.counted
        if counted is None:
            return y
        # Mean of the counted pixels; a window without any has the mean zero.
        inside = extend(torch.ones_like(x[:1, :1]), *counted, border="replicate")
        (top, bottom), (left, right) = self.window.reach(map_size(x), full=full)
        (a, b), (c, d) = counted
        inside = extend(inside, (top - a, bottom - b), (left - c, right - d), border="zeros")
        share = self.slide_over(inside, full=full)
        return y / share.clamp(min=torch.finfo(share.dtype).eps)

    def slide_over(self, extended: Tensor, *, full: bool) -> Tensor:
        """Run the layer on an extended map, at stride one if ``full``."""
        result: Tensor = self.bare[full].forward(extended)
        return result

    def extend(self, x: Tensor, *, full: bool) -> Tensor:
        """Pad the map for its windows, at stride one if ``full``."""
        margins = self.window.reach(map_size(x), full=full)
        fill = -torch.inf if self.window.kind == "max" else 0.0
        return extend(x, *margins, border=self.window.border, fill=fill)


def sliding(layer: nn.Module) -> SlidingLayer:
    """Change a layer in place to one whose border and sub-sampling can be set."""
    if isinstance(layer, SlidingLayer):
        return layer
    window = read_window(layer)
    assert window is not None
    bare = (without_padding(layer, window.stride), without_padding(layer, (1, 1)))
    changed = change_class(layer, SlidingLayer, plain_class(layer))
    changed.window, changed.sampler, changed.bare = window, None, bare
    return changed


def window_of(layer: nn.Module) -> Window | None:
    """Return the window of a layer, repaired or not."""
    return layer.window if isinstance(layer, SlidingLayer) else read_window(layer)


def extend(x: Tensor, rows: Margin, columns: Margin, *, border: str, fill: float = 0.0) -> Tensor:
    """Pad a map ``(B, C, H, W)``; a negative margin crops.

    >>> line = torch.arange(3.0).view(1, 1, 1, 3)
    >>> extend(line, (0, 0), (4, -1), border="circular").flatten().tolist()
    [2.0, 0.0, 1.0, 2.0, 0.0, 1.0]
    """
    height, width = map_size(x)
    (top, bottom), (left, right) = rows, columns
    more_rows, more_columns = (max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0))
    if max(*more_rows, *more_columns) > 0:
        if border != "circular":
            mode = "constant" if border == "zeros" else border
            value = fill if border == "zeros" else None
            x = F.pad(x, (*more_columns, *more_rows), mode=mode, value=value)
        elif max(more_rows) <= height and max(more_columns) <= width:
            x = circular_pad(x, more_rows, more_columns)
        else:  # wider than the map
            for axis, size, (before, after) in ((2, height, more_rows), (3, width, more_columns)):
                x = x.index_select(
                    axis, torch.arange(-before, size + after, device=x.device) % size
                )
    if min(top, bottom, left, right) < 0:
        cut_rows = slice(max(-top, 0), x.shape[2] - max(-bottom, 0))
        cut_columns = slice(max(-left, 0), x.shape[3] - max(-right, 0))
        x = x[:, :, cut_rows, cut_columns]
    return x
