"""Alias-free activations: up-sample, apply, low-pass, sub-sample, by products with small matrices.

An up-sampled image consists of ``up * up`` phases. Each phase is the image shifted by a fraction of
a pixel. The operation applies a pointwise function to every phase and shifts each result back with
the transposed matrix. This requires only products with ``n x n`` matrices (see the page alias-free
of the documentation). The fine grid is never formed. The backward pass saves the input alone and
recomputes the rest.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.layers.pointwise import GELU, Fused, Polynomial, pointwise
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

# Least-squares fit of GELU on [-2, 2]: the initial polynomial approximates GELU.
GELU_QUADRATIC = (0.0169394634, 0.5, 0.3078363964)


# Filled in eager mode only, like the cache of the matrices themselves.
_AXES: dict[tuple[int, int, int, torch.device, torch.dtype], AxisPhases] = {}


@dataclass(frozen=True)
class AxisPhases:
    """Matrices of one axis of ``n`` samples, for phases ``0 .. up - 1``."""

    forth: tuple[Tensor, ...]  # S_p (n, n): the signal shifted by p / up; S_0 is the identity
    back: tuple[Tensor, ...]  # (m, n): low-pass and sub-sample phase p, times up
    nyquist: Tensor | None  # v_j = (-1)^j when m = n is even: phase 0 must lose this component

    @staticmethod
    def of(n: int, up: int, down: int, device: torch.device, dtype: torch.dtype) -> AxisPhases:
        """Build the matrices for one axis; ``down`` divides ``n``."""
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


def chunk_images(x: Tensor, per_image: int) -> int:
    """Return the number of images per chunk: all, except in eager mode on a CPU."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return x.shape[0]
    return min(x.shape[0], torch.get_num_threads() * max(1, _CPU_CHUNK // per_image))


def in_chunks(images: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Yield chunks of the tensors with at most ``images`` images each.

    A traced batch is one chunk, so that its size can stay symbolic.
    """
    if torch.compiler.is_compiling() or images >= tensors[0].shape[0]:
        return [tensors]
    chunks = -(-tensors[0].shape[0] // images)
    return zip(*(tensor.chunk(chunks) for tensor in tensors), strict=True)


def sample_fine_grid(fine: Tensor, height: int, width: int, axis: int) -> Tensor:
    """Low-pass a fine grid and sample it at ``height x width`` points."""
    like: dict[str, Any] = {"device": fine.device, "dtype": fine.dtype}
    rows = downsample_matrix(fine.shape[axis], height, **like)
    columns = downsample_matrix(fine.shape[axis + 1], width, **like)
    return contract(columns, contract(rows, fine, axis), axis + 1)


def _spread(x: Tensor, up: int, axis: int) -> Tensor:
    """Up-sample one axis; for many samples phase by phase, because phase 0 is the input."""
    n = x.shape[axis]
    like: dict[str, Any] = {"device": x.device, "dtype": x.dtype}
    if n <= 16:  # one larger product is cheaper
        return contract(upsample_matrix(n, up, **like), x, axis)
    shifts = [shift_matrix(n, p / up, **like) for p in range(1, up)]
    phases = [x, *(contract(shift, x, axis) for shift in shifts)]
    return torch.stack(phases, axis + 1).flatten(axis, axis + 1)


class _AliasFree(torch.autograd.Function):
    """Operator for one contiguous layout; saves its input and the coefficients only."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        fused: Fused | None,
        up: int,
        down: int,
        axis: int,
        powers: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, powers)
        ctx.settings = (fused, up, down, axis)
        dtype = working_dtype(x.dtype)
        grid = (x.shape[axis] // down, x.shape[axis + 1] // down)
        with without_autocast(x):
            if torch.compiler.is_compiling():  # written out: a compiler plans the memory
                fine = _spread(_spread(x.to(dtype), up, axis + 1), up, axis)
                y = pointwise(fused, powers, dtype)(fine)
                return sample_fine_grid(y, *grid, axis).to(x.dtype)
            operator = _Operator(x, powers, *ctx.settings)
            y = x.new_empty([*x.shape[:axis], *grid, *x.shape[axis + 2 :]], dtype=dtype)
            for part, out in in_chunks(operator.images, x, y):
                operator.forward(part.to(dtype), out)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, powers = ctx.saved_tensors
        operator = _Operator(x, powers, *ctx.settings)
        dtype, function = operator.dtype, operator.function
        with without_autocast(x):
            grad_x = x.new_empty(x.shape, dtype=dtype)
            for part, g, out in in_chunks(operator.images, x, grad.contiguous(), grad_x):
                operator.backward(part.to(dtype), g.to(dtype), out)
        total = function.grad.to(powers.dtype) if isinstance(function, Polynomial) else None
        return grad_x.to(x.dtype), None, None, None, None, total


class _Operator:
    """Function and matrices for chunks of images like ``x``."""

    def __init__(
        self, x: Tensor, powers: Tensor | None, fused: Fused | None, up: int, down: int, axis: int
    ) -> None:
        self.dtype = working_dtype(x.dtype)
        self.function = pointwise(fused, powers, self.dtype)
        self.up, self.down, self.axis = up, down, axis
        self.rows = AxisPhases.of(x.shape[axis], up, down, x.device, self.dtype)
        self.columns = AxisPhases.of(x.shape[axis + 1], up, down, x.device, self.dtype)
        self.images = chunk_images(x, math.prod(x.shape[1:]))

    def forward(self, x: Tensor, out: Tensor) -> None:
        """Write the activation of ``x`` to ``out``.

        The column phases are the outer loop and the row phases the inner one: a product along the
        rows has the longer contiguous lines and is the cheaper of the two.
        """
        axis, share = self.axis, 1.0 / self.up**2
        for r in range(self.up):
            v = contract(self.columns.forth[r], x, axis + 1) if r else x
            if self.down == 1 and r == 0:  # unchanged except for its Nyquist component
                self.function.apply_to(v, out)
                self.add_row_phases(v, out)
                continue
            total = self.function(v)
            if self.down > 1:
                total = contract(self.rows.back[0], total, axis)
            self.add_row_phases(v, total)
            keep = 0.0 if r == 0 else share if self.down == 1 and r == 1 else 1.0
            contract(self.columns.back[r], total, axis + 1, out=out, keep=keep, scale=share)
        self.remove_nyquist_(out)

    def backward(self, x: Tensor, grad: Tensor, out: Tensor) -> None:
        """Write the gradient with respect to ``x`` to ``out``; add to the coefficients'."""
        axis, columns = self.axis, self.columns
        g = grad * (1.0 / self.up**2)
        self.remove_nyquist_(g)
        for r in range(self.up):
            v = contract(columns.forth[r], x, axis + 1) if r else x
            q = contract(columns.back[r].t(), g, axis + 1) if r or self.down > 1 else g
            total = torch.empty_like(x) if r else out
            first = contract(self.rows.back[0].t(), q, axis) if self.down > 1 else q
            self.function.pull_back(first, v, total)
            self.pull_back_row_phases(q, v, total)
            if r:
                contract(columns.forth[r].t(), total, axis + 1, out=out, keep=1.0)

    def add_row_phases(self, v: Tensor, total: Tensor) -> None:
        """Add to ``total`` the contributions of all row phases of ``v`` but the first."""
        for forth, back in zip(self.rows.forth[1:], self.rows.back[1:], strict=True):
            t = contract(forth, v, self.axis)
            self.function.apply_to(t, t)
            contract(back, t, self.axis, out=total, keep=1.0)
            del t  # frees the memory for the next phase while it is in the cache

    def pull_back_row_phases(self, q: Tensor, v: Tensor, total: Tensor) -> None:
        """Add to ``total`` the gradient of ``v`` through the row phases but the first."""
        for forth, back in zip(self.rows.forth[1:], self.rows.back[1:], strict=True):
            z, t = contract(forth, v, self.axis), contract(back.t(), q, self.axis)
            self.function.pull_back(t, z, t)
            contract(forth.t(), t, self.axis, out=total, keep=1.0)
            del z, t

    def remove_nyquist_(self, x: Tensor) -> None:
        """Subtract the alternating component along both axes, rank-1 updates."""
        for phases, axis in ((self.columns, self.axis + 1), (self.rows, self.axis)):
            if (v := phases.nyquist) is not None:
                component = contract(v[None], x, axis)
                contract(v[:, None], component, axis, out=x, keep=1.0, scale=-1.0 / len(v))


def phasewise_activation(
    x: Tensor,
    fused: Fused | None,
    powers: Tensor | None = None,
    *,
    up: int = 2,
    down: int = 1,
    axis: int,
) -> Tensor:
    """Apply an alias-free function to a 4-D tensor with rows and columns ``axis, axis + 1``.

    The function is ``fused``, or the polynomial with the coefficients ``powers``, one row per
    power.

    Returns:
        A tensor like ``x``, with rows and columns divided by ``down``.
    """
    for a in (axis, axis + 1):
        if x.shape[a] % down:
            raise AftModelsError(
                f"cannot down-sample {x.shape[a]} samples by {down}: the factor must divide it"
            )
    result: Tensor = _AliasFree.apply(x.contiguous(), fused, up, down, axis, powers)
    return result


class AliasFreeActivation(nn.Module):
    """Pointwise non-linearity that commutes with sub-pixel shifts, up to a residue.

    Property: a cyclic shift of the input by any multiple of ``1 / up`` pixel shifts the output by
    the same offset, exactly, for any function. Polynomials of degree d are exact for *every* shift
    once ``up >= (d + 1) / 2``; GELU leaves a residue that falls about tenfold with each step of
    ``up``.

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
        self.pointwise: Fused | None = None
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
            start = torch.zeros(channels, degree + 1)
            start[:, : min(3, degree + 1)] = torch.tensor(GELU_QUADRATIC[: degree + 1])
            self.coefficients = nn.Parameter(start)
        elif callable(function):
            self.function = function
        else:
            raise AftModelsError(
                f"unknown activation {function!r}: expected 'gelu', 'poly' or a callable"
            )

    @override
    def extra_repr(self) -> str:
        name = "polynomial" if self.coefficients is not None else "custom"
        name = self.pointwise.name if self.pointwise else name
        return f"{name}, up={self.up}, down={self.down}, layout={self.layout}"

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` or ``(B, H, W, C)`` to the same layout, sizes over ``down``."""
        if x.ndim != 4:
            raise AftModelsError(f"expected a 4-D {self.layout} tensor, got shape {tuple(x.shape)}")
        if self.function is not None:
            planes = x if self.layout == "NCHW" else x.permute(0, 3, 1, 2)
            y = self.function(alias_free_upsample(planes, self.up))
            y = alias_free_downsample(y, self.up * self.down)
            return y if self.layout == "NCHW" else y.permute(0, 2, 3, 1)
        if self.layout == "NHWC":
            return self._run(x, 1)
        if x.is_contiguous(memory_format=torch.channels_last):
            # Same memory as NHWC: resample in this layout and return channels-last.
            return self._run(x.permute(0, 2, 3, 1), 1).permute(0, 3, 1, 2)
        return self._run(x, 2)

    def _run(self, x: Tensor, axis: int) -> Tensor:
        return phasewise_activation(
            x, self.pointwise, self.powers(axis), up=self.up, down=self.down, axis=axis
        )

    def powers(self, axis: int) -> Tensor | None:
        """Return the coefficients by power, for maps with rows on this axis (1 or 2)."""
        if self.coefficients is None:
            return None
        powers = self.coefficients.t()
        return powers if axis == 1 else powers[:, :, None, None]
