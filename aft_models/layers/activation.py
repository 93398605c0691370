"""Alias-free activations: up-sample, apply, low-pass, sub-sample, by products with small matrices.

An up-sampled image is its ``up * up`` phases, each the image shifted by a fraction of a pixel.
Applying a pointwise function to every phase and bringing each back with the transposed shift is
therefore the whole operation (``docs/alias-free.md`` has the derivation), and needs only products
with ``n x n`` matrices. Large images go phase by phase; on a grid of tokens only the rows do, the
columns are up-sampled whole. Either way the backward pass saves the input alone and computes the
rest again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from aft_models.errors import AftModelsError
from aft_models.layers.pointwise import GELU, Pointwise, Polynomial
from aft_models.resample import (
    alias_free_downsample,
    alias_free_upsample,
    contract,
    downsample_matrix,
    shift_matrix,
    upsample_matrix,
    without_autocast,
    working_dtype,
)

# Elements per temporary and thread on a CPU: the phases of a chunk of images stay in the cache,
# and no temporary is large enough for the allocator to return it to the system each time.
_CPU_CHUNK = 2**19

# Up to this many samples the columns are cheaper to up-sample outright: memory is the limit there,
# and fewer, larger products move less of it than the phases do, for more operations.
_SMALL = 16

# Least-squares fit of GELU on [-2, 2], so that a network starts from a familiar shape.
GELU_QUADRATIC = (0.0169394634, 0.5, 0.3078363964)


# Filled in eager mode only, like the cache of the matrices themselves.
_AXES: dict[tuple[int, int, int, torch.device, torch.dtype], AxisPhases] = {}


@dataclass(frozen=True)
class AxisPhases:
    """The matrices of one axis of ``n`` samples, for phases ``0 .. up - 1``."""

    forth: tuple[Tensor, ...]  # S_p (n, n): the signal shifted by p / up; S_0 is the identity
    back: tuple[Tensor, ...]  # (m, n): low-pass and sub-sample what phase p contributes, times up
    nyquist: Tensor | None  # v_j = (-1)^j when m = n is even: phase 0 must lose this component

    @staticmethod
    def of(n: int, up: int, down: int, device: torch.device, dtype: torch.dtype) -> AxisPhases:
        """Matrices for one axis; ``down`` divides ``n``."""
        key = (n, up, down, device, dtype)
        if not torch.compiler.is_compiling() and key in _AXES:
            return _AXES[key]
        m = n // down
        with torch.inference_mode(False), torch.no_grad():
            forth = tuple(shift_matrix(n, p / up, device=device, dtype=dtype) for p in range(up))
            columns = downsample_matrix(n * up, m, device=device, dtype=dtype)
            back = tuple((up * columns[:, p::up]).contiguous() for p in range(up))
            alternating = None
            if down == 1 and n % 2 == 0:
                alternating = 1 - 2 * (torch.arange(n, device=device) % 2).to(dtype)
        axis = AxisPhases(forth, back, alternating)
        if not torch.compiler.is_compiling() and type(back[0]) is Tensor:
            _AXES[key] = axis
        return axis

    def beyond_first(self) -> Iterable[tuple[Tensor, Tensor]]:
        """There and back, for the phases that are true shifts."""
        return zip(self.forth[1:], self.back[1:], strict=True)


def chunk_images(x: Tensor, per_image: int) -> int:
    """How many images to process at a time: all, except in eager mode on a CPU."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return x.shape[0]
    return min(x.shape[0], torch.get_num_threads() * max(1, _CPU_CHUNK // per_image))


def in_chunks(images: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The tensors, at most so many images at a time.

    A traced batch is one chunk, so that its size can stay symbolic.
    """
    if torch.compiler.is_compiling() or images >= tensors[0].shape[0]:
        return [tensors]
    chunks = -(-tensors[0].shape[0] // images)
    return zip(*(tensor.chunk(chunks) for tensor in tensors), strict=True)


def remove_nyquist_(x: Tensor, vector: Tensor | None, axis: int) -> None:
    """Subtract the alternating component along ``axis``, a rank-1 update."""
    if vector is None:
        return
    n = vector.shape[0]
    component = contract(vector[None], x, axis)
    contract(vector[:, None], component, axis, out=x, keep=1.0, scale=-1.0 / n)


def sample_fine_grid(fine: Tensor, height: int, width: int, axis: int) -> Tensor:
    """Low-pass a fine grid and sample it at ``height x width`` points."""
    like: dict[str, Any] = {"device": fine.device, "dtype": fine.dtype}
    rows = downsample_matrix(fine.shape[axis], height, **like)
    columns = downsample_matrix(fine.shape[axis + 1], width, **like)
    return contract(columns, contract(rows, fine, axis), axis + 1)


def _on_the_fine_grid(
    x: Tensor, function: Pointwise, params: Sequence[Tensor], up: int, down: int, axis: int
) -> Tensor:
    """The operator as it is written, for a compiler: that plans the memory itself."""
    height, width = x.shape[axis], x.shape[axis + 1]
    fine = _spread(_spread(x, up, axis + 1), up, axis)
    return sample_fine_grid(function(fine, params), height // down, width // down, axis)


def _spread(x: Tensor, up: int, axis: int) -> Tensor:
    """Up-sample one axis; many samples phase by phase, since the first is at hand."""
    n = x.shape[axis]
    like: dict[str, Any] = {"device": x.device, "dtype": x.dtype}
    if n <= _SMALL:
        return contract(upsample_matrix(n, up, **like), x, axis)
    shifts = [shift_matrix(n, p / up, **like) for p in range(1, up)]
    phases = [x, *(contract(shift, x, axis) for shift in shifts)]
    return torch.stack(phases, axis + 1).flatten(axis, axis + 1)


class _AliasFree(torch.autograd.Function):
    """The operator for one contiguous layout; saves its input and the parameters only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, function: Pointwise, up: int, down: int, axis: int, *params: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, *params)
        ctx.settings = (function, up, down, axis)
        dtype = working_dtype(x.dtype)
        wide = [p.to(dtype) for p in params]
        with without_autocast(x):
            if torch.compiler.is_compiling():
                return _on_the_fine_grid(x.to(dtype), function, wide, up, down, axis).to(x.dtype)
            plan = _plan(x, up, down, axis, slopes=False)
            applied = _Function(function, wide)
            y = x.new_empty(plan.result_shape, dtype=dtype)
            for part, out in in_chunks(plan.images, x, y):
                plan.forward(part.to(dtype), out, applied)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *params = ctx.saved_tensors
        function, up, down, axis = ctx.settings
        dtype = working_dtype(x.dtype)
        grad = grad.contiguous()
        with without_autocast(x):
            plan = _plan(x, up, down, axis, slopes=True)
            applied = _Function(function, [p.to(dtype) for p in params])
            grad_x = x.new_empty(x.shape, dtype=dtype)
            for part, g, out in in_chunks(plan.images, x, grad, grad_x):
                plan.backward(g.to(dtype), part.to(dtype), out, applied)
        narrow = [total.to(p.dtype) for total, p in zip(applied.grads, params, strict=True)]
        return (grad_x.to(x.dtype), None, None, None, None, *narrow)


class _Function:
    """A pointwise function with its parameters, and their gradients as they add up."""

    def __init__(self, function: Pointwise, params: Sequence[Tensor]) -> None:
        self.function, self.params = function, params
        self.grads = [torch.zeros_like(p) for p in params]

    def apply_to(self, x: Tensor, out: Tensor) -> None:
        self.function.apply_to(x, out, self.params)

    def pull_back(self, grad: Tensor, x: Tensor, out: Tensor) -> None:
        self.function.pull_back(grad, x, out, self.params, self.grads)


class _Plan:
    """Matrices and buffers for a chunk of images whose rows and columns are ``axis, axis + 1``."""

    def __init__(self, x: Tensor, up: int, down: int, axis: int, *, largest: int) -> None:
        """``largest``: the most elements that a buffer holds per element of ``x``."""
        self.like, self.dtype, self.axis = x, working_dtype(x.dtype), axis
        self.height, self.width = x.shape[axis], x.shape[axis + 1]
        self.up = up
        self.rows = AxisPhases.of(self.height, up, down, x.device, self.dtype)
        self.buffers: list[Tensor] = []
        self.images = chunk_images(x, largest * math.prod(x.shape[1:]))
        self.result_shape = self.shape(x.shape[0], self.height // down, self.width // down)

    def shape(self, images: int, height: int, width: int) -> list[int]:
        """A shape in this layout."""
        rest = self.like.shape
        return [images, *rest[1 : self.axis], height, width, *rest[self.axis + 2 :]]

    def buffer(self, height: int, width: int) -> Tensor:
        """Room for a chunk at another size."""
        return self.like.new_empty(self.shape(self.images, height, width), dtype=self.dtype)

    def room(self, images: int) -> list[Tensor]:
        """The buffers, as far as so many images need them."""
        return self.buffers if images == self.images else [b[:images] for b in self.buffers]

    def add_row_phases(self, v: Tensor, t: Tensor, total: Tensor, function: _Function) -> None:
        """Add to ``total`` what all phases of the rows of ``v`` but the first bring back."""
        for forth, back in self.rows.beyond_first():
            contract(forth, v, self.axis, out=t)
            function.apply_to(t, t)
            contract(back, t, self.axis, out=total, keep=1.0)

    def pull_back_row_phases(
        self, q: Tensor, v: Tensor, z: Tensor, t: Tensor, total: Tensor, function: _Function
    ) -> None:
        """Add to ``total`` the gradient of ``v`` through them, given that of what they brought."""
        for forth, back in self.rows.beyond_first():
            contract(forth, v, self.axis, out=z)
            contract(back.t(), q, self.axis, out=t)
            function.pull_back(t, z, t)
            contract(forth.t(), t, self.axis, out=total, keep=1.0)


class _FineColumns(_Plan):
    """Up-samples the columns outright and visits the rows' phases. For few samples per axis.

    Phase 0 of the rows comes back as it is but for its Nyquist component; among so few samples
    that is removed by a product too.
    """

    def __init__(self, x: Tensor, up: int, axis: int, *, slopes: bool) -> None:
        super().__init__(x, up, 1, axis, largest=up)
        height, width = self.height, self.width
        like: dict[str, Any] = {"device": x.device, "dtype": self.dtype}
        self.project = downsample_matrix(height, height, **like)
        self.up_columns = upsample_matrix(width, up, **like)
        self.down_columns = downsample_matrix(width * up, width, **like)
        self.buffers = [self.buffer(height, width)]
        self.buffers += [self.buffer(height, up * width) for _ in range(5 if slopes else 3)]

    def forward(self, x: Tensor, out: Tensor, function: _Function) -> None:
        """Write the activation of ``x`` to ``out``."""
        axis = self.axis
        coarse, fine, t, total = self.room(x.shape[0])
        contract(self.up_columns, x, axis + 1, out=fine)
        function.apply_to(fine, total)
        self.add_row_phases(fine, t, total, function)
        contract(self.down_columns, total, axis + 1, out=coarse)
        contract(self.project, coarse, axis, out=out, scale=1.0 / self.up)

    def backward(self, grad: Tensor, x: Tensor, out: Tensor, function: _Function) -> None:
        """Write the gradient with respect to ``x`` to ``out``; add to the parameters' ones."""
        axis = self.axis
        g, fine, z, t, q, total = self.room(x.shape[0])
        contract(self.up_columns, x, axis + 1, out=fine)
        contract(self.project, grad, axis, out=g, scale=1.0 / self.up)
        contract(self.down_columns.t(), g, axis + 1, out=q)
        function.pull_back(q, fine, total)
        self.pull_back_row_phases(q, fine, z, t, total, function)
        contract(self.up_columns.t(), total, axis + 1, out=out)


class _Phases(_Plan):
    """Visits the phases one by one and never forms the fine grid. For many samples per axis.

    The column phases are the outer loop and the row phases the inner one: a product along the rows
    has the longer contiguous lines and is the cheaper of the two.
    """

    def __init__(self, x: Tensor, up: int, down: int, axis: int, *, slopes: bool) -> None:
        super().__init__(x, up, down, axis, largest=1)
        self.columns = AxisPhases.of(self.width, up, down, x.device, self.dtype)
        self.direct = down == 1  # phase 0 comes back as it is but for its Nyquist component
        self.share = 1.0 / up**2
        full = [self.buffer(self.height, self.width) for _ in range(4 if slopes else 2)]
        self.buffers = [self.buffer(self.height // down, self.width), *full]

    def shift(self, x: Tensor, r: int, room: Tensor) -> Tensor:
        """Column phase ``r``."""
        return x if r == 0 else contract(self.columns.forth[r], x, self.axis + 1, out=room)

    def remove_nyquist_(self, y: Tensor) -> None:
        """Of both axes."""
        remove_nyquist_(y, self.columns.nyquist, self.axis + 1)
        remove_nyquist_(y, self.rows.nyquist, self.axis)

    def forward(self, x: Tensor, out: Tensor, function: _Function) -> None:
        """Write the activation of ``x`` to ``out``."""
        axis, rows, direct = self.axis, self.rows, self.direct
        column, shifted, t = self.room(x.shape[0])
        for r in range(self.up):
            v = self.shift(x, r, shifted)
            target = out if direct and r == 0 else column
            function.apply_to(v, target if direct else t)
            if not direct:
                contract(rows.back[0], t, axis, out=target)
            self.add_row_phases(v, t, target, function)
            if target is not out:
                keep = 0.0 if r == 0 else self.share if direct and r == 1 else 1.0
                back = self.columns.back[r]
                contract(back, column, axis + 1, out=out, keep=keep, scale=self.share)
        self.remove_nyquist_(out)

    def backward(self, grad: Tensor, x: Tensor, out: Tensor, function: _Function) -> None:
        """Write the gradient with respect to ``x`` to ``out``; add to the parameters' ones."""
        axis, rows, columns = self.axis, self.rows, self.columns
        column, shifted, z, t, total = self.room(x.shape[0])
        g = grad * self.share
        self.remove_nyquist_(g)
        for r in range(self.up):
            v, q = self.shift(x, r, shifted), g
            if r > 0 or not self.direct:
                q = contract(columns.back[r].t(), g, axis + 1, out=column)
            target = total if r else out
            first = q if self.direct else contract(rows.back[0].t(), q, axis, out=target)
            function.pull_back(first, v, target)
            self.pull_back_row_phases(q, v, z, t, target, function)
            if r > 0:
                contract(columns.forth[r].t(), target, axis + 1, out=out, keep=1.0)


def _plan(x: Tensor, up: int, down: int, axis: int, *, slopes: bool) -> _FineColumns | _Phases:
    """The cheaper plan for a size; ``slopes`` asks for the further buffers of a backward pass."""
    if down == 1 and max(x.shape[axis], x.shape[axis + 1]) <= _SMALL:
        return _FineColumns(x, up, axis, slopes=slopes)
    return _Phases(x, up, down, axis, slopes=slopes)


def phasewise_activation(
    x: Tensor,
    function: Pointwise,
    params: Sequence[Tensor] = (),
    *,
    up: int = 2,
    down: int = 1,
    axis: int,
) -> Tensor:
    """Alias-free ``function`` of a 4-D tensor whose rows and columns are ``axis, axis + 1``."""
    for a in (axis, axis + 1):
        if x.shape[a] % down:
            raise AftModelsError(
                f"cannot down-sample {x.shape[a]} samples by {down}: the factor must divide it"
            )
    result: Tensor = _AliasFree.apply(x.contiguous(), function, up, down, axis, *params)
    return result


class AliasFreeActivation(nn.Module):
    """A pointwise non-linearity that commutes with sub-pixel shifts, up to its own residue.

    Law: shifting the input cyclically by any multiple of ``1 / up`` pixel shifts the output alike,
    exactly, for any function. Polynomials of degree d are exact for *every* shift once
    ``up >= (d + 1) / 2``; GELU leaves a residue that falls about tenfold with each step of ``up``.

    Args:
        function: ``"gelu"``, ``"poly"``, or any elementwise callable or module (which then runs
            through plain autograd and saves its phases).
        channels: needed by ``"poly"``, whose coefficients are learned per channel.
        up: up-sampling factor, 2 in the paper.
        down: sub-sample by this factor in the same pass.
        degree: of ``"poly"``.
        layout: ``"NCHW"``, or ``"NHWC"`` for tokens reshaped to their grid.

    >>> x = torch.randn(1, 4, 7, 7, dtype=torch.float64)
    >>> gelu = AliasFreeActivation("gelu")
    >>> from aft_models.layers import fractional_shift
    >>> shifted = fractional_shift(gelu(x), 0.5, 1.0)
    >>> torch.allclose(gelu(fractional_shift(x, 0.5, 1.0)), shifted)
    True
    """

    def __init__(
        self,
        function: str | Callable[[Tensor], Tensor] = "gelu",
        *,
        channels: int | None = None,
        up: int = 2,
        down: int = 1,
        degree: int = 2,
        layout: str = "NCHW",
    ) -> None:
        super().__init__()
        if up < 2:
            raise AftModelsError(f"up must be an integer of at least 2, got {up}")
        if layout not in ("NCHW", "NHWC"):
            raise AftModelsError(f"layout must be 'NCHW' or 'NHWC', got {layout!r}")
        self.up, self.down, self.layout = up, down, layout
        self.coefficients: nn.Parameter | None = None
        self.function: Callable[[Tensor], Tensor] | None = None
        self.pointwise: Pointwise | None = None
        if function == "gelu":
            self.pointwise = GELU
        elif function == "poly":
            if channels is None or degree < 1:
                raise AftModelsError("a polynomial activation needs channels=... and degree >= 1")
            if 2 * up < degree + 1:
                warnings.warn(
                    f"a polynomial of degree {degree} is exactly alias-free only from up = "
                    f"{(degree + 2) // 2}; with up = {up} a residue remains",
                    stacklevel=2,
                )
            self.pointwise = Polynomial()
            start = torch.zeros(channels, degree + 1)
            start[:, : min(3, degree + 1)] = torch.tensor(GELU_QUADRATIC[: degree + 1])
            self.coefficients = nn.Parameter(start)
        elif callable(function):
            self.function = function
        else:
            raise AftModelsError(
                f"unknown activation {function!r}: expected 'gelu', 'poly' or a callable"
            )

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        name = self.pointwise.name if self.pointwise else "custom"
        return f"{name}, up={self.up}, down={self.down}, layout={self.layout}"

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` or ``(B, H, W, C)`` to the same, spatial sizes divided by ``down``."""
        if x.ndim != 4:
            raise AftModelsError(f"expected a 4-D {self.layout} tensor, got shape {tuple(x.shape)}")
        if self.pointwise is None:
            assert self.function is not None
            planes = x if self.layout == "NCHW" else x.permute(0, 3, 1, 2)
            y = self.function(alias_free_upsample(planes, self.up))
            y = alias_free_downsample(y, self.up * self.down)
            return y if self.layout == "NCHW" else y.permute(0, 2, 3, 1)
        params = () if self.coefficients is None else (self.coefficients.t(),)  # by power
        if self.layout == "NHWC":
            return self._run(x, params, 1)
        if x.is_contiguous(memory_format=torch.channels_last):
            # Same memory as NHWC: resample there and hand back channels-last.
            return self._run(x.permute(0, 2, 3, 1), params, 1).permute(0, 3, 1, 2)
        return self._run(x, tuple(p[:, :, None, None] for p in params), 2)

    def _run(self, x: Tensor, params: tuple[Tensor, ...], axis: int) -> Tensor:
        assert self.pointwise is not None
        return phasewise_activation(
            x, self.pointwise, params, up=self.up, down=self.down, axis=axis
        )
