"""The parts of an XCiT block that see the grid of tokens: MLP and local patch interaction."""

from __future__ import annotations

from timm.layers import Mlp
from torch import Tensor, nn

from aft_models.layers.activation import AliasFreeActivation
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
    """timm's MLP, with an activation on the grid of tokens."""

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
