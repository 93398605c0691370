"""Pointwise non-linearities in the form the alias-free layers need them.

The alias-free operators recompute their up-sampled phases in the backward pass, phase by phase,
in reused buffers. For that they need a function and its pull-back as buffer operations, rather
than as a graph that would save every phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_aten = torch.ops.aten


class Pointwise(Protocol):
    """A function applied to each element, with learnable parameters or none."""

    def __call__(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        """The function of ``x``."""

    def apply_(self, x: Tensor, params: Sequence[Tensor]) -> None:
        """Overwrite ``x`` by the function of ``x``."""

    def apply_to(self, x: Tensor, out: Tensor, params: Sequence[Tensor]) -> None:
        """Write the function of ``x`` to ``out``."""

    def pull_back(
        self,
        grad: Tensor,
        x: Tensor,
        out: Tensor,
        params: Sequence[Tensor],
        param_grads: Sequence[Tensor],
    ) -> None:
        """Write ``grad * f'(x)`` to ``out`` (may be ``grad``); add to the parameters' gradients."""


class Gelu:
    """Exact (erf) GELU: one fused kernel each way."""

    def __call__(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        """See :class:`Pointwise`."""
        return F.gelu(x)

    def apply_(self, x: Tensor, params: Sequence[Tensor]) -> None:
        """See :class:`Pointwise`."""
        _aten.gelu_(x)

    def apply_to(self, x: Tensor, out: Tensor, params: Sequence[Tensor]) -> None:
        """See :class:`Pointwise`."""
        _aten.gelu.out(x, out=out)

    def pull_back(
        self,
        grad: Tensor,
        x: Tensor,
        out: Tensor,
        params: Sequence[Tensor],
        param_grads: Sequence[Tensor],
    ) -> None:
        """See :class:`Pointwise`."""
        if torch.compiler.is_compiling():  # fused by the compiler anyway
            out.copy_(_aten.gelu_backward(grad, x))
        else:
            _aten.gelu_backward.grad_input(grad, x, grad_input=out)


class Polynomial:
    """``sum_i c_i x^i`` with one row of coefficients per power, broadcast over the channels.

    The parameter is ``(degree + 1, ...)`` where the trailing shape broadcasts against ``x``.
    """

    def __call__(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        """See :class:`Pointwise`."""
        *lower, highest = params[0].unbind(0)
        y = x * highest  # Horner
        for c in lower[:0:-1]:
            y = (y + c) * x
        return y + lower[0]

    def apply_(self, x: Tensor, params: Sequence[Tensor]) -> None:
        """See :class:`Pointwise`."""
        self.apply_to(x.clone(), x, params)

    def apply_to(self, x: Tensor, out: Tensor, params: Sequence[Tensor]) -> None:
        """See :class:`Pointwise`."""
        (coefficients,) = params
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
