"""Which layers of a model break shift-equivariance, and by how much.

A layer f is shift-equivariant when f(shift(x)) = shift(f(x)), with the shift of its output scaled
to the output's own lattice. Two numbers per layer, both relative L2 errors:

- `own`: the layer alone. It is given its own input, exactly shifted, and its answer is compared
  with its exactly shifted output. Nothing upstream counts.
- `accumulated`: the whole path. The *image* is shifted and the layer's output is compared with
  the exactly shifted output for the unshifted image.

All shifts are the cyclic, band-limited ones of the protocol, on every lattice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from aft_models.resample import fractional_shift
from shiftbench.errors import DataError, ModelError
from shiftbench.grid import Offset

DEFAULT_OFFSETS = (Offset(1, 0), Offset(0, 1), Offset(0.5, 0.5))
PREFIX_TOKENS = (0, 1, 2, 4, 5)  # class, distillation and register tokens in front of the patches


@dataclass(frozen=True)
class LayerReport:
    """The equivariance of one layer, averaged (root mean square) over the offsets."""

    name: str  # dotted path in the model; "" is the whole model
    kind: str  # class name
    depth: int  # 1 for a child of the model
    leaf: bool  # whether it has no layers inside
    shape: tuple[int, ...]  # of the output, without the batch
    own: float | None  # error of the layer alone; None when its input has no place on the image
    accumulated: float  # error of everything up to and including this layer


@dataclass(frozen=True)
class _Layout:
    """How a tensor lies on the image plane: (B, C, h, w) after `to_map`, and what is not moved."""

    height: int
    width: int
    form: str  # "map" (B, C, h, w), "channels_last" (B, h, w, C), "tokens" (B, N, C), "vector"
    prefix: int = 0  # tokens in front that have no place

    def shift(self, x: Tensor, offset: Offset, image: tuple[int, int]) -> Tensor:
        """Moves a tensor by an offset given in pixels of the image."""
        if self.form == "vector":
            return x
        dy, dx = offset.dy * self.height / image[0], offset.dx * self.width / image[1]
        if self.form == "map":
            return fractional_shift(x, dy, dx)
        if self.form == "channels_last":
            return fractional_shift(x.permute(0, 3, 1, 2), dy, dx).permute(0, 2, 3, 1)
        patches = x[:, self.prefix :].transpose(1, 2)  # (B, C, h w)
        plane = patches.reshape(*patches.shape[:2], self.height, self.width)
        moved = fractional_shift(plane, dy, dx).flatten(2).transpose(1, 2)
        return torch.cat([x[:, : self.prefix], moved], dim=1)


def _layout(x: Tensor, batch: int, image: tuple[int, int]) -> _Layout | None:
    """Recognises how a tensor lies on the image; None when it has no known place on it."""
    if x.ndim < 2 or x.shape[0] != batch or not x.is_floating_point():
        return None

    def same_ratio(height: int, width: int) -> bool:
        return height * image[1] == width * image[0] and 1 < height <= image[0]

    if x.ndim == 4 and same_ratio(x.shape[2], x.shape[3]):
        return _Layout(x.shape[2], x.shape[3], "map")
    if x.ndim == 4 and same_ratio(x.shape[1], x.shape[2]):
        return _Layout(x.shape[1], x.shape[2], "channels_last")
    if x.ndim == 3:
        for prefix in PREFIX_TOKENS:
            height = math.isqrt(max(0, (x.shape[1] - prefix) * image[0] // image[1]))
            if height == 0 or (x.shape[1] - prefix) % height:
                continue
            width = (x.shape[1] - prefix) // height
            if same_ratio(height, width):
                return _Layout(height, width, "tokens", prefix)
    if x.ndim == 2 or (x.ndim == 4 and x.shape[2:] == (1, 1)):
        return _Layout(1, 1, "vector")
    return None


def _relative(error: Tensor, reference: Tensor) -> float:
    return float(error.norm() / reference.norm().clamp_min(torch.finfo(error.dtype).tiny))


Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any], Tensor]


@contextmanager
def _hooks(model: nn.Module, see: Callable[[str, Call], None]) -> Iterator[None]:
    """Calls `see` with every layer's first call during a forward pass, in order of finishing."""

    def hook(name: str) -> Callable[..., None]:
        def forward_hook(
            module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            if isinstance(output, Tensor):
                see(name, (module, inputs, kwargs, output))

        return forward_hook

    handles = [
        module.register_forward_hook(hook(name), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Audit:
    """Two passes per offset: one on the image (own errors), one on the shifted image."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self.model, self.images = model, images
        self.size = (int(images.shape[2]), int(images.shape[3]))
        self.outputs: dict[str, Tensor] = {}  # of the unshifted image, kept for the second pass
        self.kinds: dict[str, nn.Module] = {}
        self.own: dict[str, list[float]] = {}
        self.accumulated: dict[str, list[float]] = {}

    def unshifted(self, offsets: Sequence[Offset]) -> None:
        """The reference pass; measures every layer alone on the way."""
        busy = False  # a layer that is called again by us calls its own layers again: not seen

        def see(name: str, call: Call) -> None:
            nonlocal busy
            if busy or name in self.outputs:
                return
            busy = True
            try:
                self.outputs[name] = call[3].detach().clone()
                self.kinds[name] = call[0]
                self.own[name] = self._alone(call, offsets)
            finally:
                busy = False

        with _hooks(self.model, see):
            self.model(self.images)

    def _alone(self, call: Call, offsets: Sequence[Offset]) -> list[float]:
        module, inputs, kwargs, output = call
        out = self._layout(output)
        layouts = [self._layout(x) if isinstance(x, Tensor) else None for x in inputs]
        if out is None or not layouts or layouts[0] is None:
            return []
        errors = []
        for offset in offsets:
            moved = [
                layout.shift(x, offset, self.size) if layout else x
                for x, layout in zip(inputs, layouts, strict=True)
            ]
            expected = out.shift(output, offset, self.size)
            errors.append(_relative(module(*moved, **kwargs) - expected, expected))
        return errors

    def shifted(self, offset: Offset) -> None:
        """A pass on the shifted image; measures the whole path up to every layer."""
        seen: set[str] = set()

        def see(name: str, call: Call) -> None:
            before = self.outputs.get(name)
            layout = None if before is None else self._layout(before)
            if name in seen or before is None or layout is None or before.shape != call[3].shape:
                return
            seen.add(name)
            expected = layout.shift(before, offset, self.size)
            error = _relative(call[3] - expected, expected)
            self.accumulated.setdefault(name, []).append(error)

        with _hooks(self.model, see):
            self.model(fractional_shift(self.images, offset.dy, offset.dx))

    def _layout(self, x: Tensor) -> _Layout | None:
        return _layout(x, self.images.shape[0], self.size)

    def reports(self) -> list[LayerReport]:
        return [
            LayerReport(
                name=name,
                kind=type(self.kinds[name]).__name__,
                depth=name.count(".") + 1 if name else 0,
                leaf=next(self.kinds[name].children(), None) is None,
                shape=tuple(self.outputs[name].shape[1:]),
                own=_rms(self.own[name]) if self.own[name] else None,
                accumulated=_rms(self.accumulated[name]),
            )
            for name in self.outputs
            if name in self.accumulated
        ]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


@torch.inference_mode()
def audit(
    model: nn.Module, images: Tensor, *, offsets: Sequence[Offset] = DEFAULT_OFFSETS
) -> list[LayerReport]:
    """Measures every layer of `model` on normalised `images`, (B, C, H, W).

    Returns:
        A report per layer in the order in which layers finish; containers follow what they hold,
        and the last one, with the empty name, is the model itself.
    """
    if images.ndim != 4 or images.shape[0] == 0:
        raise DataError(
            f"an audit needs images of shape (B, C, H, W) with B > 0, got {tuple(images.shape)}"
        )
    if model.training:
        raise ModelError("an audit needs a model in eval mode: call model.eval() first")
    measured = _Audit(model, images)
    measured.unshifted(offsets)
    for offset in offsets:
        measured.shifted(offset)
    return measured.reports()


def breakers(reports: Sequence[LayerReport]) -> list[LayerReport]:
    """The leaves with an error of their own, worst first: where to start mending."""
    leaves = [report for report in reports if report.leaf and report.own is not None]
    return sorted(leaves, key=lambda report: -(report.own or 0.0))


def to_frame(reports: Sequence[LayerReport]) -> pd.DataFrame:
    """The reports as a table, in order of execution."""
    columns = ["name", "kind", "depth", "leaf", "shape", "own", "accumulated"]
    rows = [
        (r.name, r.kind, r.depth, r.leaf, "x".join(map(str, r.shape)), r.own, r.accumulated)
        for r in reports
    ]
    return pd.DataFrame(rows, columns=columns)
