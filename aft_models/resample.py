"""Exact band-limited resampling of periodic images, as small dense matrices.

A row of ``n`` pixels is one period of a band-limited signal. Fractional shifts, up-sampling and
down-sampling are therefore linear maps with closed forms. For image-sized ``n`` a matrix product is
faster than a pair of FFTs, needs neither complex numbers nor permutes, and runs unchanged under
autograd, ``torch.compile`` and ``torch.export``. The tests compare the matrices with FFTs.

Exact equivariance follows from two rules about the Nyquist bin of an even ``n``:

* up-sampling and shifts split it equally between ``+n/2`` and ``-n/2``;
* down-sampling to an even size zeroes the Nyquist bin of the *new* size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from aft_models.errors import AftModelsError

_CACHE: dict[tuple[Any, ...], Tensor] = {}
_CACHE_LIMIT = 2048  # matrices; bounds the memory of a search over many fractional offsets


def _cached(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Cache one matrix per function, sizes, device and dtype.

    A module-level cache needs no buffers to copy, pickle, save or broadcast, and supports any input
    size. While a compiler traces, the matrix is built in the graph instead: sizes may be symbolic,
    and a traced tensor is invalid after its trace. An export uses the matrices that a preceding
    forward pass has cached, as constants of its graph.
    """

    @wraps(build)
    def matrix(
        *sizes: float, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
    ) -> Tensor:
        device = torch.device(device)
        work = device if device.type in ("cpu", "cuda") else "cpu"  # float64 needed
        key = (build, sizes, device, dtype)
        if torch.compiler.is_compiling():
            if torch.compiler.is_exporting() and key in _CACHE:
                return _CACHE[key]
            return build(*sizes, work).to(device=device, dtype=dtype)
        if key in _CACHE:
            return _CACHE[key]
        # Inference tensors cannot be used in training.
        with torch.inference_mode(False), torch.no_grad():
            built = build(*sizes, work).to(device=device, dtype=dtype).contiguous()
        if type(built) is Tensor:  # not a fake or otherwise wrapped tensor
            if len(_CACHE) >= _CACHE_LIMIT:
                _CACHE.clear()
            _CACHE[key] = built
        return built

    return matrix


@_cached
def shift_matrix(n: int, offset: float, device: torch.device) -> Tensor:
    """Return the matrix ``S`` with ``(S @ x)[j] = x(j + offset)`` for ``n`` periodic samples."""
    kernel = _dirichlet(n, (n - 1) // 2, _scalar(offset, device)) / n
    if n % 2 == 0:
        sign = 1 - 2 * (torch.arange(n, device=device) % 2).to(torch.float64)
        kernel = kernel + sign * math.cos(math.pi * offset) / n
    steps = torch.arange(n, device=device)
    return kernel[(steps[:, None] - steps) % n]


@_cached
def upsample_matrix(n: int, up: int, device: torch.device) -> Tensor:
    """Return the matrix ``(up * n, n)`` that zero-pads the spectrum and preserves the samples."""
    phases = [shift_matrix(n, p / up, device=device) for p in range(up)]
    return torch.stack(phases, dim=1).reshape(n * up, n)


@_cached
def downsample_matrix(n: int, m: int, device: torch.device) -> Tensor:
    """Return the matrix ``(m, n)`` that keeps the bins below ``m / 2`` and samples at ``m`` points.

    For even ``m`` the Nyquist bin ``m / 2`` is zeroed: one real sample per period cannot represent
    its phase, and keeping it would violate equivariance. ``m = n`` is the projection that drops
    Nyquist.
    """
    if m > n:
        raise AftModelsError(f"cannot down-sample {n} samples to {m}: use upsample_matrix")
    if n % m == 0:
        kernel = _dirichlet(n, (m - 1) // 2, _scalar(0.0, device)) / n
        rows = torch.arange(0, n, n // m, device=device)
        return kernel[(rows[:, None] - torch.arange(n, device=device)) % n]
    positions = torch.arange(m, device=device).to(torch.float64) * (n / m)
    distance = positions[:, None] - torch.arange(n, device=device)
    bins = torch.arange(1, (m - 1) // 2 + 1, device=device)
    return (1 + 2 * torch.cos(2 * math.pi / n * distance[..., None] * bins).sum(-1)) / n


@_cached
def low_pass_matrix(n: int, m: int, device: torch.device) -> Tensor:
    """Return the matrix ``(n, n)`` that removes the bins that :func:`downsample_matrix` removes."""
    kernel = _dirichlet(n, (m - 1) // 2, _scalar(0.0, device)) / n
    steps = torch.arange(n, device=device)
    return kernel[(steps[:, None] - steps) % n]


def shift_matrices(offsets: Tensor, n: int) -> Tensor:
    """Return the matrices of ``out[j] = x(j + offset)`` for n periodic samples, no Nyquist bin.

    Unlike `shift_matrix`, the offsets ``(B,)`` are a tensor: real sums, which ONNX can express.

    Returns:
        ``(B, n, n)``, in the dtype of the offsets.
    """
    steps = torch.arange(n, device=offsets.device)
    kernel = _dirichlet(n, (n - 1) // 2, offsets) / n
    return kernel[:, (steps[:, None] - steps) % n]


def _scalar(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device=device)


def _dirichlet(n: int, bins: int, offset: Tensor) -> Tensor:
    """Compute ``1 + 2 * sum_{q=1..bins} cos(2 pi q (r + offset) / n)`` for r = 0..n-1.

    An offset of shape ``(...)`` gives ``(..., n)``, in its dtype.
    """
    q = torch.arange(1, bins + 1, device=offset.device)
    # Reducing q * r modulo n in integers keeps the angles exact for any size.
    turns = torch.arange(n, device=offset.device)[:, None] * q % n + offset[..., None, None] * q
    return 1 + 2 * torch.cos(2 * math.pi / n * turns).sum(-1)


def contract(
    matrix: Tensor,
    x: Tensor,
    axis: int,
    *,
    out: Tensor | None = None,
    keep: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """Apply ``matrix (m, n)`` along one axis of a contiguous ``x`` by a single (batched) GEMM.

    A contiguous ``out`` becomes ``keep * out + scale * (matrix applied to x)``.
    """
    m, n = matrix.shape
    inner = math.prod(x.shape[axis + 1 :])
    if out is None and torch.compiler.is_compiling():
        if axis == x.ndim - 1:
            return x @ matrix.t()
        product = matrix @ x.flatten(axis + 1)  # no expanded matrix, no size of the batch
        return product.view(*x.shape[:axis], m, *x.shape[axis + 1 :])
    if inner == 1:
        lines = x.reshape(-1, n)
        if out is not None:
            out.view(-1, m).addmm_(lines, matrix.t(), beta=keep, alpha=scale)
            return out
        product = torch.mm(lines, matrix.t())
    else:
        blocks = x.reshape(-1, n, inner)
        # A stride-0 batch of one matrix: no copy, and no transposed result as matmul would give.
        batched = matrix.expand(blocks.shape[0], m, n)
        if out is not None:
            out.view(-1, m, inner).baddbmm_(batched, blocks, beta=keep, alpha=scale)
            return out
        product = torch.bmm(batched, blocks)
    return product.view(*x.shape[:axis], m, *x.shape[axis + 1 :])


def fractional_shift(x: Tensor, dy: float, dx: float) -> Tensor:
    """Shift cyclically and band-limited: ``out[..., y, x] = in[..., y + dy, x + dx]``.

    Integer offsets equal ``torch.roll``. Other offsets are sinc interpolation of the periodic
    image. It multiplies the Nyquist bin of an even size by ``cos(pi * offset)``.

    Args:
        x: real floating-point tensor ``(..., H, W)``.
        dy: rows (pixels); positive values move the content up.
        dx: columns (pixels); positive values move the content left.

    >>> x = torch.arange(4.0).expand(1, 4, 4)
    >>> torch.equal(fractional_shift(x, 0, 1), x.roll(-1, -1))
    True
    """
    _require_image(x)
    for axis, offset in ((x.ndim - 2, float(dy)), (x.ndim - 1, float(dx))):
        if offset.is_integer():
            x = torch.roll(x, -int(offset), axis) if offset else x
        else:
            x = _resample(x, axis, shift_matrix, offset)
    return x


def alias_free_upsample(x: Tensor, up: int = 2) -> Tensor:
    """Up-sample ``(..., H, W)`` by an integer factor along both axes, exactly.

    >>> x = torch.randn(1, 5, 5)
    >>> torch.allclose(alias_free_upsample(x)[..., ::2, ::2], x, atol=1e-6)
    True
    """
    _require_image(x)
    if up < 1:
        raise AftModelsError(f"up-sampling factor must be a positive integer, got {up}")
    x = _resample(x, x.ndim - 2, upsample_matrix, up)
    return _resample(x, x.ndim - 1, upsample_matrix, up)


def alias_free_downsample(x: Tensor, down: int = 2) -> Tensor:
    """Low-pass and sub-sample ``(..., H, W)`` by an integer factor along both axes, exactly.

    >>> alias_free_downsample(torch.ones(1, 6, 6), 3)
    tensor([[[1., 1.],
             [1., 1.]]])
    """
    _require_image(x)
    for axis in (x.ndim - 2, x.ndim - 1):
        n = x.shape[axis]
        if down < 1 or n % down:
            raise AftModelsError(
                f"cannot down-sample {n} samples by {down}: the factor must divide the size; "
                "resize or pad the input first"
            )
        x = _resample(x, axis, downsample_matrix, n // down)
    return x


def cut_spectrum(x: Tensor, rows: int, columns: int, *, sample: bool = True) -> Tensor:
    """Remove the frequencies of ``(..., H, W)`` that a smaller grid cannot represent, exactly.

    Args:
        x: real floating-point tensor.
        rows: rows of the smaller grid.
        columns: columns of the smaller grid.
        sample: return the smaller grid; otherwise the low-pass filtered original grid.

    >>> cut_spectrum(torch.ones(8, 8), 4, 2).shape
    torch.Size([4, 2])
    """
    for axis, m in ((x.ndim - 2, rows), (x.ndim - 1, columns)):
        if x.shape[axis] != m:
            x = _resample(x, axis, downsample_matrix if sample else low_pass_matrix, m)
    return x


def _resample(x: Tensor, axis: int, kind: Callable[..., Tensor], size: float) -> Tensor:
    matrix = kind(x.shape[axis], size, device=x.device, dtype=working_dtype(x.dtype))
    with without_autocast(x):
        return contract(matrix, x.to(matrix.dtype).contiguous(), axis).to(x.dtype)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast for the device of ``x``: reduced precision would not be exact."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype used for resampling: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _require_image(x: Tensor) -> None:
    if x.ndim < 2 or not x.is_floating_point():
        raise AftModelsError(
            f"expected a real floating-point tensor (..., H, W), got shape {tuple(x.shape)} of "
            f"{x.dtype}: convert the image to float first"
        )
