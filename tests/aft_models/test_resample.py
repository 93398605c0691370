"""Resampling: the matrix forms equal the FFT forms and have the properties of periodic signals."""

from __future__ import annotations

import fft_reference as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from aft_models import AftModelsError
from aft_models.resample import (
    alias_free_downsample,
    alias_free_upsample,
    contract,
    downsample_matrix,
    fractional_shift,
    shift_matrix,
    upsample_matrix,
)

SIZES = [(4, 5), (6, 7), (8, 9), (14, 3), (16, 16), (2, 2), (1, 4), (10, 1)]


def images(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * height + width)
    return torch.randn(2, height, width, dtype=torch.float64, generator=generator)


def without_nyquist(x: torch.Tensor) -> torch.Tensor:
    return reference.fft_downsample(x, (x.shape[-2], x.shape[-1]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("up", [1, 2, 3, 4])
def test_upsample_equals_padded_spectrum(size: tuple[int, int], up: int) -> None:
    x = images(*size)
    torch.testing.assert_close(
        alias_free_upsample(x, up), reference.fft_upsample(x, up), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("n", range(1, 18))
def test_downsample_to_any_size_equals_cut_spectrum(n: int) -> None:
    x = images(3, n)
    for m in range(1, n + 1):
        fast = contract(downsample_matrix(n, m), x, 2)
        torch.testing.assert_close(fast, reference.fft_downsample_1d(x, m), rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [(0.5, 0.0), (0.3, -1.7), (1 / 3, 2.25), (-8.5, 100.1)])
def test_fractional_shift_equals_rotated_spectrum(
    size: tuple[int, int], offset: tuple[float, float]
) -> None:
    x = images(*size)
    torch.testing.assert_close(
        fractional_shift(x, *offset), reference.fft_shift(x, *offset), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("size", SIZES)
def test_integer_shift_equals_roll(size: tuple[int, int]) -> None:
    x = images(*size)
    assert torch.equal(fractional_shift(x, 2, -3), x.roll((-2, 3), (1, 2)))
    assert torch.equal(fractional_shift(x, 0, 0), x)


@given(
    n=st.integers(2, 20),
    d=st.floats(-3, 3, allow_nan=False),
    e=st.floats(-3, 3, allow_nan=False),
)
@settings(max_examples=40, deadline=None)
def test_offsets_add_up_without_nyquist(n: int, d: float, e: float) -> None:
    x = without_nyquist(images(n, n))
    twice = fractional_shift(fractional_shift(x, d, e), e, d)
    torch.testing.assert_close(twice, fractional_shift(x, d + e, d + e), rtol=0, atol=1e-11)


def test_two_half_pixel_shifts_remove_the_nyquist_bin() -> None:
    x = torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=torch.float64)
    assert fractional_shift(x, 0, 0.5).abs().max() < 1e-15


@pytest.mark.parametrize("size", [(8, 12), (12, 20), (6, 10)])
def test_downsampling_commutes_with_every_shift(size: tuple[int, int]) -> None:
    x = without_nyquist(images(*size))
    for dy, dx in ((1, 0), (0.5, 3), (0.37, -1.2)):
        first = alias_free_downsample(fractional_shift(x, dy, dx))
        last = fractional_shift(alias_free_downsample(x), dy / 2, dx / 2)
        torch.testing.assert_close(first, last, rtol=0, atol=1e-13)


def test_resample_gradients_equal_transposes() -> None:
    x = images(6, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: fractional_shift(t, 0.3, 0.7), x)
    assert torch.autograd.gradcheck(lambda t: alias_free_upsample(t, 3), x)


def test_resample_half_precision_computes_in_single() -> None:
    x = images(8, 8).half()
    assert alias_free_upsample(x, 2).dtype == torch.half
    torch.testing.assert_close(
        fractional_shift(x, 0.5, 0.5).float(),
        fractional_shift(x.float(), 0.5, 0.5),
        rtol=1e-3,
        atol=1e-3,
    )


def test_matrices_of_inference_mode_are_usable_in_training() -> None:
    with torch.inference_mode():
        shift_matrix(23, 0.123)
    x = images(23, 23).requires_grad_()
    fractional_shift(x, 0.123, 0.0).sum().backward()
    assert x.grad is not None


def test_fake_tensors_do_not_enter_the_cache() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        upsample_matrix(29, 2)
    assert type(upsample_matrix(29, 2)) is torch.Tensor


def test_matrices_are_cached() -> None:
    x = images(12, 12)
    fractional_shift(x, 0.25, 0.25)

    class NoCosine(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            assert "cos" not in str(func)
            return func(*args, **(kwargs or {}))

    with NoCosine():
        fractional_shift(x, 0.25, 0.25)


def test_resample_invalid_input_raises() -> None:
    with pytest.raises(AftModelsError, match="must divide the size"):
        alias_free_downsample(images(9, 8))
    with pytest.raises(AftModelsError, match="floating-point"):
        fractional_shift(torch.zeros(3, 3, dtype=torch.uint8), 1, 0)
    with pytest.raises(AftModelsError, match="upsample_matrix"):
        downsample_matrix(4, 5)
    with pytest.raises(AftModelsError, match="positive"):
        alias_free_upsample(images(4, 4), 0)
