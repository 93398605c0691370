"""Pointwise non-linearities in the form the alias-free layers need them.

The alias-free operators recompute their up-sampled phases in the backward pass, phase by phase,
in reused buffers. For that they need a function and its pull-back as buffer operations, rather
than as a graph that would save every phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

_aten = torch.ops.aten


class Pointwise(Protocol):
    """A function applied to each element, with learnable parameters or none."""

    @property
    def name(self) -> str:
        """Shown by ``print(model)``."""

    def __call__(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        """The function of ``x``."""

    def apply_to(self, x: Tensor, out: Tensor, params: Sequence[Tensor]) -> None:
        """Write the function of ``x`` to ``out`` (may be ``x``)."""

    def pull_back(
        self,
        grad: Tensor,
        x: Tensor,
        out: Tensor,
        params: Sequence[Tensor],
        param_grads: Sequence[Tensor],
    ) -> None:
        """Write ``grad * f'(x)`` to ``out`` (may be ``grad``); add to the parameters' gradients."""


@dataclass(frozen=True)
class Fused:
    """A function that torch has as one kernel each way, with the numbers that follow its input."""

    name: str  # of the operator: "gelu"
    slope: str  # that of its derivative
    numbers: tuple[float, ...] = ()
    slope_numbers: tuple[float, ...] | None = None  # where the derivative's differ

    def __call__(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        """See :class:`Pointwise`."""
        result: Tensor = getattr(_aten, self.name)(x, *self.numbers)
        return result

    def apply_to(self, x: Tensor, out: Tensor, params: Sequence[Tensor]) -> None:
        """See :class:`Pointwise`."""
        operator = getattr(_aten, self.name)
        if torch.compiler.is_compiling():  # fused by the compiler anyway
            out.copy_(operator(x, *self.numbers))
        else:
            operator.out(x, *self.numbers, out=out)

    def pull_back(
        self,
        grad: Tensor,
        x: Tensor,
        out: Tensor,
        params: Sequence[Tensor],
        param_grads: Sequence[Tensor],
    ) -> None:
        """See :class:`Pointwise`."""
        operator = getattr(_aten, self.slope)
        numbers = self.numbers if self.slope_numbers is None else self.slope_numbers
        if torch.compiler.is_compiling():
            out.copy_(operator(grad, x, *numbers))
        elif hasattr(operator, "grad_input"):
            operator.grad_input(grad, x, *numbers, grad_input=out)
        else:
            operator.out(grad, x, *numbers, out=out)


GELU = Fused("gelu", "gelu_backward")  # the exact one, by erf
RELU = Fused("relu", "threshold_backward", slope_numbers=(0.0,))
SILU = Fused("silu", "silu_backward")
HARD_SWISH = Fused("hardswish", "hardswish_backward")


def pointwise_of(module: nn.Module) -> Pointwise | None:
    """The fast form of an activation module, or None where it has none.

    >>> pointwise_of(nn.ReLU6())
    Fused(name='hardtanh', slope='hardtanh_backward', numbers=(0.0, 6.0), slope_numbers=None)
    """
    if isinstance(module, nn.Hardtanh):  # and ReLU6
        return Fused(
            "hardtanh", "hardtanh_backward", (float(module.min_val), float(module.max_val))
        )
    if isinstance(module, nn.GELU) and module.approximate != "none":
        return None
    kinds = {nn.GELU: GELU, nn.ReLU: RELU, nn.SiLU: SILU, nn.Hardswish: HARD_SWISH}
    return next((fused for kind, fused in kinds.items() if isinstance(module, kind)), None)


class Polynomial:
    """``sum_i c_i x^i`` with one row of coefficients per power, broadcast over the channels.

    The parameter is ``(degree + 1, ...)`` where the trailing shape broadcasts against ``x``.
    """

    name = "polynomial"

    def __call__(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        """See :class:`Pointwise`."""
        *lower, highest = params[0].unbind(0)
        y = x * highest  # Horner
        for c in lower[:0:-1]:
            y = (y + c) * x
        return y + lower[0]

    def apply_to(self, x: Tensor, out: Tensor, params: Sequence[Tensor]) -> None:
        """See :class:`Pointwise`."""
        (coefficients,) = params
        x = x.clone() if out is x else x
        torch.mul(x, coefficients[-1], out=out)  # Horner
        for c in coefficients[1:-1].flip(0):
            out.add_(c).mul_(x)
        out.add_(coefficients[0])

    def pull_back(
        self,
        grad: Tensor,
        x: Tensor,
        out: Tensor,
        params: Sequence[Tensor],
        param_grads: Sequence[Tensor],
    ) -> None:
        """See :class:`Pointwise`."""
        (coefficients,) = params
        (total,) = param_grads
        power = grad.clone()
        slope = torch.zeros_like(x)
        for i in range(len(coefficients)):
            if i:
                power *= x
                slope = slope * x + (len(coefficients) - i) * coefficients[len(coefficients) - i]
            total[i] += power.sum_to_size(total[i].shape)
        torch.mul(grad, slope, out=out)
