"""How a layer's window slides over its map: kernel, stride, dilation and border, for any layer.

Convolutions, max, average and blur pooling of torch and timm differ in how they say it. A
:class:`Window` says it once; everything a remedy needs to know about sizes follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from timm.layers import AvgPool2dSame, BlurPool2d, Conv2dSame
from timm.layers.pool2d_same import MaxPool2dSame
from torch import Tensor, nn

from aft_models.layers.padding import CircularConv2d, Margin
from aft_models.layers.polyphase import Pair

Margins = tuple[Margin, Margin]  # of the rows and of the columns

# Classes that only add a way of padding to another one, which is all that a repaired layer needs.
_PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    CircularConv2d: nn.Conv2d,
    Conv2dSame: nn.Conv2d,
    MaxPool2dSame: nn.MaxPool2d,
    AvgPool2dSame: nn.AvgPool2d,
}


@dataclass(frozen=True)
class Window:
    """The geometry of a layer that slides a window over a map."""

    kind: Literal["conv", "max", "average", "blur"]
    kernel: Pair
    stride: Pair
    dilation: Pair
    margins: Margins | None  # None: "same", by the map's size
    border: str  # what lies beyond the map: "zeros", "circular", "reflect" or "replicate"
    ceil: bool  # whether a last, incomplete window counts
    grouped: bool  # whether each output channel sees one input channel only
    counted: Margins | None = None  # pixels beyond the map that a mean counts; None: all of them

    def __str__(self) -> str:
        """In a few words.

        >>> print(read_window(nn.Conv2d(3, 8, 3, stride=(2, 1))))
        3 x 3, stride 2 x 1
        """
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return f"{kh} x {kw}, stride {sh if sh == sw else f'{sh} x {sw}'}"

    @property
    def strided(self) -> bool:
        """Whether the layer sub-samples."""
        return max(self.stride) > 1

    @property
    def extent(self) -> Pair:
        """Rows and columns that one window spans."""
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return dh * (kh - 1) + 1, dw * (kw - 1) + 1

    @property
    def pointwise(self) -> bool:
        """Whether a window is a single pixel."""
        return self.extent == (1, 1)

    @property
    def unpadded(self) -> bool:
        """Whether no window reaches beyond the map."""
        return self.margins == ((0, 0), (0, 0))

    @property
    def crosses_border(self) -> bool:
        """Whether, on a torus, some window would lie across the border."""
        return any(e > s for e, s in zip(self.extent, self.stride, strict=True))

    @property
    def fits_torus(self) -> bool:
        """Whether the padding, if it wraps round, gives one output per step of the torus."""
        steps = zip(self.margins or (), self.extent, self.stride, strict=False)
        return all(extent - stride <= sum(margin) < extent for margin, extent, stride in steps)

    def covers(self, size: Pair) -> bool:
        """Whether one unpadded window sees the whole map: a flattened head in other words.

        >>> head = read_window(nn.Conv2d(8, 16, kernel_size=7))
        >>> head.covers((7, 7)), head.covers((14, 14))
        (True, False)
        """
        return self.unpadded and self.extent == size and size != (1, 1)

    def outputs(self, size: Pair) -> Pair:
        """Rows and columns of the output.

        On a torus that the stride divides every layer gives the size divided by the stride.

        >>> read_window(nn.Conv2d(3, 8, 3, stride=2, padding=1)).outputs((7, 8))
        (4, 4)
        """
        return self._outputs(size, 0), self._outputs(size, 1)

    def _outputs(self, size: Pair, axis: int) -> int:
        n, stride, extent = size[axis], self.stride[axis], self.extent[axis]
        if self.margins is None:
            return -(-n // stride)
        if self.border == "circular" and n % stride == 0 and not self.covers(size):
            return n // stride
        before, after = self.margins[axis]
        room = n + before + after - extent
        count = (-(-room // stride) if self.ceil else room // stride) + 1
        if self.ceil and (count - 1) * stride >= n + before:
            count -= 1  # a window must start on the map or before it
        return count

    def reach(self, size: Pair, *, full: bool) -> Margins:
        """Pixels needed beyond each end of the map; fewer than none where some are never seen.

        Args:
            size: of the map.
            full: for the layer at stride one, so that every polyphase component of its output,
                of which the layer itself gives the first, is as large as the first.
        """
        margins = []
        for axis, count in enumerate(self.outputs(size)):
            n, stride, extent = size[axis], self.stride[axis], self.extent[axis]
            if self.margins is None:
                before = max((count - 1) * stride + extent - n, 0) // 2
            else:
                before = self.margins[axis][0]
            last = count * stride - 1 if full else (count - 1) * stride
            margins.append((before, last + extent - n - before))
        return margins[0], margins[1]


def read_window(layer: nn.Module) -> Window | None:
    """The window of a layer, or None where there is none that this package knows to move.

    >>> read_window(nn.MaxPool2d(3, stride=2, padding=1)).outputs((56, 56))
    (28, 28)
    """
    like: Any = layer  # attributes are read by name; mypy knows them as tensors or modules
    same = isinstance(layer, (Conv2dSame, MaxPool2dSame, AvgPool2dSame))
    same = same or bool(getattr(layer, "same_pad", False))
    border, dilation, ceil, grouped, counted = "zeros", (1, 1), False, True, None
    if isinstance(layer, nn.Conv2d):
        kind, border, dilation = "conv", like.padding_mode, _pair(like.dilation)
        grouped = like.groups == like.in_channels > 1
        same = same or like.padding == "same"
    elif isinstance(layer, nn.MaxPool2d) and not like.return_indices:
        kind, dilation, ceil = "max", _pair(like.dilation), like.ceil_mode
    elif isinstance(layer, nn.AvgPool2d):
        kind, ceil = "average", like.ceil_mode
    elif isinstance(layer, BlurPool2d):
        border = "zeros" if like.pad_mode == "constant" else like.pad_mode
        padding, kernel, kind = (like.padding[0],) * 2, (like.filt_size,) * 2, "blur"
    else:
        return None
    if kind != "blur":
        kernel = _pair(like.kernel_size)
        padding = (0, 0) if like.padding in ("same", "valid") else _pair(like.padding)
    margins = None if same else ((padding[0], padding[0]), (padding[1], padding[1]))
    if kind == "average" and not same and like.divisor_override is None:
        counted = margins if like.count_include_pad else ((0, 0), (0, 0))
    return Window(
        kind=kind,  # type: ignore[arg-type]
        kernel=kernel,
        stride=_pair(like.stride),
        dilation=dilation,
        margins=margins,
        border=border,
        ceil=ceil,
        grouped=grouped,
        counted=counted,
    )


def plain_class(layer: nn.Module) -> type[nn.Module]:
    """The class whose forward pass works on a map that is padded already."""
    return _PLAIN.get(type(layer), type(layer))


def without_padding(layer: nn.Module, stride: Pair) -> nn.Module:
    """The same layer, parameters and all, at another stride and with no padding of its own.

    It is not a copy: the two share their dictionaries of parameters and buffers, so that whatever
    happens to the weights of one happens to the other.
    """
    base = plain_class(layer)
    twin: Any = base.__new__(base)
    twin.__dict__.update(layer.__dict__)
    changes: dict[str, Any] = {"stride": stride, "padding": (0, 0)}
    if isinstance(layer, BlurPool2d):
        changes |= {"stride": stride[0], "padding": [0] * 4, "pad_mode": "constant"}
    for name, value in (("padding_mode", "zeros"), ("same_pad", False), ("ceil_mode", False)):
        if hasattr(layer, name):
            changes[name] = value
    twin.__dict__.update(changes)
    assert isinstance(twin, nn.Module)
    return twin


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def map_size(x: Tensor) -> Pair:
    """Rows and columns of a map ``(B, C, H, W)``."""
    return x.shape[2], x.shape[3]
