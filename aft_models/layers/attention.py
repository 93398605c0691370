"""Shift-equivariant attentions, ``Q f(K^T V)``.

A shift of the image is an orthogonal map T on the tokens of Q, K and V. Therefore ``(T K)^T (T V) =
K^T V`` does not change, and the output shifts. Cross-covariance attention (timm's ``XCA``) has this
form, as do the two attentions below. All have the same parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from timm.models.xcit import XCA
from torch import Tensor, nn
from typing_extensions import override

from aft_models.layers.norm import token_norm


class LinearAttention(nn.Module):
    """``Q (K^T V) / N`` per head: no non-linearity. Arguments as for timm's ``XCA``.

    >>> LinearAttention(8, num_heads=2)(torch.randn(3, 16, 8)).shape
    torch.Size([3, 16, 8])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def normalize(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Scale queries and keys ``(B, heads, N, channels)``.

        Returns:
            Both tensors, in the same shapes.
        """
        return q / q.shape[-2], k

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``(B, N, C)`` to the same shape."""
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, N, channels)
        q, k = self.normalize(q, k)
        mixing = self.attn_drop(k.transpose(-2, -1) @ v)  # (B, heads, channels, channels)
        y = (q @ mixing).transpose(1, 2).reshape(batch, tokens, dim)
        return self.proj_drop(self.proj(y))  # type: ignore[no-any-return]


class SimaAttention(LinearAttention):
    """SimA: queries and keys are l1-normalized along the tokens, and no softmax is needed.

    Integer shifts of tokens preserve an l1 norm exactly, fractional shifts approximately.

    >>> SimaAttention(8, num_heads=2)(torch.randn(3, 16, 8)).shape
    torch.Size([3, 16, 8])
    """

    @override
    def normalize(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, p=1.0, dim=-2), F.normalize(k, p=1.0, dim=-2)


ATTENTIONS = {"xca": XCA, "linear": LinearAttention, "sima": SimaAttention}


class AliasFreeClassAttention(nn.Module):
    """Class attention whose class token is invariant to shifts of the patch tokens.

    The class token joins the tokens of a shift-equivariant attention (by default cross-covariance).
    Then an MLP refines the class token alone. With ``residual_norm``, as in the authors' code and
    in XCiT itself, the second normalization feeds the residual too and patches are doubled. Without
    it, as in the paper's text, the block has the structure of the preceding blocks.

    ``attention`` is a key of :data:`ATTENTIONS`, ``norm_mean`` as in :class:`AliasFreeLayerNorm`.
    ``norm="layer"`` is meant for models whose blocks have plain norms too: the class token is then
    invariant to integer shifts of tokens only.

    >>> tokens = torch.randn(3, 1 + 16, 8)  # the class token first
    >>> AliasFreeClassAttention(8, num_heads=2)(tokens).shape
    torch.Size([3, 17, 8])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        attention: str = "xca",
        norm: str = "af",
        norm_mean: str = "token",
        mlp_ratio: float = 4.0,
        layer_scale: float = 1.0,
        residual_norm: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.residual_norm = residual_norm
        self.norm1 = token_norm(norm, dim, mean=norm_mean)
        self.attn = ATTENTIONS[attention](
            dim, num_heads=num_heads, qkv_bias=True, attn_drop=attn_drop, proj_drop=proj_drop
        )
        self.norm2 = token_norm(norm, dim, mean=norm_mean)
        self.mlp = Mlp(dim, hidden_features=int(dim * mlp_ratio), drop=proj_drop)
        self.gamma1 = nn.Parameter(torch.full((dim,), layer_scale))
        self.gamma2 = nn.Parameter(torch.full((dim,), layer_scale))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``(B, 1 + N, C)``, the class token first, to the same shape."""
        x = torch.addcmul(x, self.gamma1, self.attn(self.norm1(x)))
        normed = self.norm2(x)  # of all tokens: an alias-free norm computes one variance for them
        if not self.residual_norm:
            token = torch.addcmul(x[:, :1], self.gamma2, self.mlp(normed[:, :1]))
            return torch.cat([token, x[:, 1:]], dim=1)
        token, patches = normed[:, :1], normed[:, 1:]
        token = torch.addcmul(token, self.gamma2, self.mlp(token))
        return torch.cat([token, 2 * patches], dim=1)
