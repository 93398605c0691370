"""Windows of layers: kernel, stride, dilation and border.

Convolutions, max, average and blur pooling of torch and timm store these in different attributes. A
`Window` is their common form, from which remedies compute all sizes.
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

# Classes that only add padding to another one, which is all that a repaired layer needs.
_PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    CircularConv2d: nn.Conv2d,
    Conv2dSame: nn.Conv2d,
    MaxPool2dSame: nn.MaxPool2d,
    AvgPool2dSame: nn.AvgPool2d,
}


@dataclass(frozen=True)
class Window:
    """Geometry of a layer that slides a window over a map."""

    kind: Literal["conv", "max", "average", "blur"]
    kernel: Pair
    stride: Pair
    dilation: Pair
    margins: Margins | None  # None: "same", from the map's size
    border: str  # padding beyond the map: "zeros", "circular", "reflect" or "replicate"
    ceil: bool  # a last, incomplete window counts
    grouped: bool  # each output channel depends on one input channel alone
    counted: Margins | None = None  # pixels beyond the map that a mean counts; None: all of them

    def __str__(self) -> str:
        """Return kernel and stride as a short text.

        >>> print(read_window(nn.Conv2d(3, 8, 3, stride=(2, 1))))
        3 x 3, stride 2 x 1
        """
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return f"{kh} x {kw}, stride {sh if sh == sw else f'{sh} x {sw}'}"

    @property
    def strided(self) -> bool:
        """True if the layer sub-samples."""
        return max(self.stride) > 1

    @property
    def extent(self) -> Pair:
        """Rows and columns that one window spans."""
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return dh * (kh - 1) + 1, dw * (kw - 1) + 1

    @property
    def pointwise(self) -> bool:
        """True if a window is a single pixel."""
        return self.extent == (1, 1)

    @property
    def unpadded(self) -> bool:
        """True if no window extends beyond the map."""
        return self.margins == ((0, 0), (0, 0))

    @property
    def crosses_border(self) -> bool:
        """True if some window would cross the border with circular padding."""
        return any(e > s for e, s in zip(self.extent, self.stride, strict=True))

    @property
    def fits_circular(self) -> bool:
        """True if the padding, made circular, gives one output per stride."""
        steps = zip(self.margins or (), self.extent, self.stride, strict=False)
        return all(extent - stride <= sum(margin) < extent for margin, extent, stride in steps)

    def covers(self, size: Pair) -> bool:
        """Return True if one unpadded window covers the whole map, as a flattened head does.

        >>> head = read_window(nn.Conv2d(8, 16, kernel_size=7))
        >>> head.covers((7, 7)), head.covers((14, 14))
        (True, False)
        """
        return self.unpadded and self.extent == size and size != (1, 1)

    def outputs(self, size: Pair) -> Pair:
        """Return rows and columns of the output.

        With circular padding, a map that the stride divides gives its size over the stride.

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
        """Return the pixels needed beyond each end of the map; negative if some are not used.

        Args:
            size: of the map.
            full: for the layer at stride one, with every polyphase component as large as the
                first, which is the output of the layer itself.
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
    """Return the window of a layer; None for a layer without a known window.

    >>> read_window(nn.MaxPool2d(3, stride=2, padding=1)).outputs((56, 56))
    (28, 28)
    """
    like: Any = layer  # attributes are read by name; mypy types them as tensors or modules
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
    """Return the class whose forward pass takes a padded map."""
    return _PLAIN.get(type(layer), type(layer))


def without_padding(layer: nn.Module, stride: Pair) -> nn.Module:
    """Return the same layer at another stride and without padding.

    The result is no copy: both share their dictionaries of parameters and buffers, so that a change
    of the weights of one changes the other.
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
    """Return rows and columns of a map ``(B, C, H, W)``."""
    return x.shape[2], x.shape[3]
