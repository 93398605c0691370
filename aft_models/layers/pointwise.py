"""Pointwise non-linearities in the form that the alias-free layers need.

The alias-free operators recompute their up-sampled phases in the backward pass, phase by phase, in
reused buffers. They need a function and its pull-back as buffer operations, because a graph would
save every phase.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_aten = torch.ops.aten


@dataclass(frozen=True)
class Fused:
    """Function with a forward and a backward kernel in torch, and the arguments after its input."""

    name: str  # name of the operator: "gelu"
    slope: str  # name of the operator of the derivative
    numbers: tuple[float, ...] = ()
    slope_numbers: tuple[float, ...] | None = None  # for the derivative, if different

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the function to ``x``."""
        result: Tensor = getattr(_aten, self.name)(x, *self.numbers)
        return result

    def apply_to(self, x: Tensor, out: Tensor) -> None:
        """Write the function of ``x`` to ``out`` (may be ``x``)."""
        getattr(_aten, self.name).out(x, *self.numbers, out=out)

    def pull_back(self, grad: Tensor, x: Tensor, out: Tensor) -> None:
        """Write ``grad * f'(x)`` to ``out`` (may be ``grad``)."""
        operator = getattr(_aten, self.slope)
        numbers = self.numbers if self.slope_numbers is None else self.slope_numbers
        if torch.compiler.is_compiling():  # fused by the compiler anyway
            out.copy_(operator(grad, x, *numbers))
        elif hasattr(operator, "grad_input"):
            operator.grad_input(grad, x, *numbers, grad_input=out)
        else:
            operator.out(grad, x, *numbers, out=out)


GELU = Fused("gelu", "gelu_backward")  # the exact GELU, by erf


def pointwise_of(module: nn.Module) -> Fused | None:
    """Return the fused form of an activation module, or None if there is none.

    >>> pointwise_of(nn.ReLU6())
    Fused(name='hardtanh', slope='hardtanh_backward', numbers=(0.0, 6.0), slope_numbers=None)
    """
    if isinstance(module, nn.Hardtanh):  # includes ReLU6
        limits = (float(module.min_val), float(module.max_val))
        return Fused("hardtanh", "hardtanh_backward", limits)
    if isinstance(module, nn.GELU):
        return GELU if module.approximate == "none" else None
    if isinstance(module, nn.ReLU):
        return Fused("relu", "threshold_backward", slope_numbers=(0.0,))
    if isinstance(module, nn.SiLU):
        return Fused("silu", "silu_backward")
    return Fused("hardswish", "hardswish_backward") if isinstance(module, nn.Hardswish) else None


class Polynomial:
    """Polynomial ``sum_i c_i x^i``; pulling back accumulates the coefficients' gradient too."""

    def __init__(self, coefficients: Tensor) -> None:
        """Store ``coefficients (degree + 1, ...)``; the trailing axes broadcast against ``x``."""
        self.coefficients, self.grad = coefficients, torch.zeros_like(coefficients)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the function to ``x``."""
        *lower, highest = self.coefficients.unbind(0)
        y = x * highest  # Horner
        for c in lower[:0:-1]:
            y = (y + c) * x
        return y + lower[0]

    def apply_to(self, x: Tensor, out: Tensor) -> None:
        """Write the function of ``x`` to ``out`` (may be ``x``)."""
        x = x.clone() if out is x else x
        torch.mul(x, self.coefficients[-1], out=out)  # Horner
        for c in self.coefficients[1:-1].flip(0):
            out.add_(c).mul_(x)
        out.add_(self.coefficients[0])

    def pull_back(self, grad: Tensor, x: Tensor, out: Tensor) -> None:
        """Write ``grad * f'(x)`` to ``out`` (may be ``grad``)."""
        power = grad.clone()
        slope = torch.zeros_like(x)
        degree = len(self.coefficients) - 1
        for i in range(degree + 1):
            if i:
                power *= x
                slope = slope * x + (degree + 1 - i) * self.coefficients[degree + 1 - i]
            self.grad[i] += power.sum_to_size(self.grad[i].shape)
        torch.mul(grad, slope, out=out)


Pointwise = Fused | Polynomial


def pointwise(fused: Fused | None, powers: Tensor | None, dtype: torch.dtype) -> Pointwise:
    """Return the polynomial of the coefficients if there are any, else the fused function."""
    if powers is not None:
        return Polynomial(powers.to(dtype))
    assert fused is not None
    return fused
