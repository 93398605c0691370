"""Layer normalization that commutes with sub-pixel shifts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.resample import working_dtype


class _AliasFreeNorm(torch.autograd.Function):
    """Layer norm that saves the input and two small statistics, like the built-in one."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean_axis: int, eps: float
    ) -> Tensor:
        wide = x.to(working_dtype(x.dtype))
        mean = wide.mean(mean_axis, keepdim=True)
        centered = wide - mean
        norm = torch.linalg.vector_norm(centered, dim=(1, 2), keepdim=True)
        scale = torch.rsqrt(norm * norm / (x.shape[1] * x.shape[2]) + eps)  # (B, 1, 1)
        ctx.save_for_backward(x, mean, scale, weight)
        ctx.mean_axis = mean_axis
        return torch.addcmul(bias, centered, scale * weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, scale, weight = ctx.saved_tensors
        wide, g = x.to(mean.dtype), grad.to(mean.dtype)
        gain = scale * weight  # (B, 1, C)
        total = g.sum(1, keepdim=True)
        along_tokens = (g * wide).sum(1, keepdim=True)  # with the centered input, after this:
        if ctx.mean_axis == 2:
            along_tokens -= mean.transpose(1, 2) @ g
            mean_grad = g @ (gain / x.shape[2]).transpose(1, 2)
        else:
            along_tokens -= mean * total
            mean_grad = gain * total / x.shape[1]
        radial = (along_tokens * weight).sum(2, keepdim=True) * (
            scale**3 / (x.shape[1] * x.shape[2])
        )
        grad_x = torch.addcmul(radial * mean - mean_grad, g, gain)
        grad_x.addcmul_(wide, radial, value=-1.0)
        grad_weight, grad_bias = (along_tokens * scale).sum((0, 1)), total.sum((0, 1))
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None


def alias_free_layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, mean: str = "token", eps: float = 1e-6
) -> Tensor:
    """Apply :class:`AliasFreeLayerNorm` as a function of tokens ``(B, N, C)``."""
    weight = x.new_ones(x.shape[2]) if weight is None else weight
    bias = x.new_zeros(x.shape[2]) if bias is None else bias
    result: Tensor = _AliasFreeNorm.apply(x, weight, bias, 2 if mean == "token" else 1, eps)
    return result


class AliasFreeLayerNorm(nn.Module):
    """Normalization of tokens ``(B, N, C)`` with shift-invariant statistics.

    A plain layer norm divides each token by its own deviation, a non-linear function of position
    that creates new frequencies. This norm uses one deviation for all tokens of an image.

    Property: equivariant to permutations of the tokens, and to resampling by any circular linear
    filter that preserves the energy.

    Args:
        dim: channels.
        mean: ``"token"`` subtracts each token's mean over its channels (the paper's equation);
            ``"channel"`` subtracts each channel's mean over the tokens (the authors' released
            code). Both are shift-equivariant.
        eps: added to the variance.

    >>> tokens = torch.randn(2, 16, 8)
    >>> norm = AliasFreeLayerNorm(8)
    >>> torch.allclose(norm(tokens.roll(3, 1)), norm(tokens).roll(3, 1), atol=1e-6)
    True
    """

    def __init__(self, dim: int, *, mean: str = "token", eps: float = 1e-6) -> None:
        super().__init__()
        if mean not in ("token", "channel"):
            raise AftModelsError(f"norm mean must be 'token' or 'channel', got {mean!r}")
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.mean, self.eps = mean, eps

    @override
    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, mean={self.mean}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``(B, N, C)`` to the same shape."""
        if x.ndim != 3:
            raise AftModelsError(f"expected tokens (B, N, C), got shape {tuple(x.shape)}")
        return alias_free_layer_norm(x, self.weight, self.bias, mean=self.mean, eps=self.eps)


def token_norm(kind: str, dim: int, *, mean: str = "token") -> nn.Module:
    """Build the norm named ``kind``, ``"layer"`` or ``"af"``, over ``dim`` channels."""
    return nn.LayerNorm(dim, eps=1e-6) if kind == "layer" else AliasFreeLayerNorm(dim, mean=mean)
