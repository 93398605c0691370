"""The transformer block of XCiT with its three switches: activation, norm, attention."""

from __future__ import annotations

from functools import partial

import torch
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from aft_models.layers.activation import AliasFreeActivation
from aft_models.layers.attention import ATTENTIONS
from aft_models.layers.norm import token_norm
from aft_models.layers.padding import conv3x3


def token_activation(kind: str, channels: int, *, up: int = 2, degree: int = 2) -> nn.Module:
    """The activation named ``kind``, for tokens on their grid ``(B, H, W, C)``."""
    if kind == "gelu":
        return nn.GELU()
    return AliasFreeActivation(
        kind.removeprefix("af_"), channels=channels, up=up, degree=degree, layout="NHWC"
    )


def _to_grid(x: Tensor, height: int, width: int) -> Tensor:
    return x.reshape(x.shape[0], height, width, x.shape[2])


class GridMlp(Mlp):  # type: ignore[misc]
    """timm's MLP, whose activation is told where the tokens lie."""

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Tokens ``(B, N, C)`` to the same shape."""
        x = self.fc1(x)
        x = self.act(_to_grid(x, height, width)).flatten(1, 2)
        return self.drop2(self.fc2(self.norm(self.drop1(x))))  # type: ignore[no-any-return]


class LocalPatchInteraction(nn.Module):
    """Two depth-wise 3 x 3 convolutions over the token grid, an activation and a norm between.

    Args:
        dim: channels.
        activation: module for ``(B, H, W, C)``.
        padding: ``"zeros"`` or ``"circular"``.
    """

    def __init__(self, dim: int, activation: nn.Module, *, padding: str = "zeros") -> None:
        super().__init__()
        self.conv1 = conv3x3(dim, dim, padding=padding, groups=dim)
        self.act = activation
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = conv3x3(dim, dim, padding=padding, groups=dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Tokens ``(B, N, C)`` to the same shape."""
        x = _to_grid(x, height, width).permute(0, 3, 1, 2)  # channels-last memory
        x = self.conv1(x)
        x = self.act(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.conv2(self.bn(x))
        return x.permute(0, 2, 3, 1).flatten(1, 2)


class XcaBlock(nn.Module):
    """``x += g1 A(N(x)); x += g3 L(N(x)); x += g2 M(N(x))``: attention, local mixing, MLP.

    Args:
        dim: channels.
        num_heads: heads.
        attention: ``"xca"``, ``"linear"`` or ``"sima"``.
        activation: ``"gelu"``, ``"af_gelu"`` or ``"af_poly"``.
        norm: ``"layer"`` or ``"af"``.
        norm_mean: see :class:`AliasFreeLayerNorm`.
        padding: of the local convolutions.
        up: up-sampling factor of alias-free activations.
        degree: of polynomial activations.
        mlp_ratio: hidden width over ``dim``.
        layer_scale: initial residual gain.
        proj_drop: dropout of the projections.
        attn_drop: dropout inside the attention.
        drop_path: stochastic depth.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        attention: str = "xca",
        activation: str = "gelu",
        norm: str = "layer",
        norm_mean: str = "token",
        padding: str = "zeros",
        up: int = 2,
        degree: int = 2,
        mlp_ratio: float = 4.0,
        layer_scale: float = 1.0,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = int(dim * mlp_ratio)
        make_norm = partial(token_norm, norm, dim, mean=norm_mean)
        make_activation = partial(token_activation, activation, up=up, degree=degree)
        self.norm1 = make_norm()
        self.attn = ATTENTIONS[attention](
            dim, num_heads=num_heads, qkv_bias=True, attn_drop=attn_drop, proj_drop=proj_drop
        )
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm3 = make_norm()
        self.local_mp = LocalPatchInteraction(dim, make_activation(dim), padding=padding)
        self.norm2 = make_norm()
        self.mlp = GridMlp(dim, hidden, act_layer=lambda: make_activation(hidden), drop=proj_drop)
        self.gamma1 = nn.Parameter(torch.full((dim,), layer_scale))
        self.gamma3 = nn.Parameter(torch.full((dim,), layer_scale))
        self.gamma2 = nn.Parameter(torch.full((dim,), layer_scale))

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Tokens ``(B, N, C)`` of a ``height x width`` grid to the same shape."""
        x = self._add(x, self.gamma1, self.attn(self.norm1(x)))
        x = self._add(x, self.gamma3, self.local_mp(self.norm3(x), height, width))
        return self._add(x, self.gamma2, self.mlp(self.norm2(x), height, width))

    def _add(self, x: Tensor, gain: Tensor, branch: Tensor) -> Tensor:
        return torch.addcmul(x, gain, self.drop_path(branch))
