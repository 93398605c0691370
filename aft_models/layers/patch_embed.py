"""Patch embedding of an image by 3 x 3 convolutions, each followed by a halving of the grid."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.layers.activation import AliasFreeActivation
from aft_models.layers.padding import conv3x3
from aft_models.layers.polyphase import ApsDownsample
from aft_models.layers.stem import phasewise_stem
from aft_models.resample import alias_free_downsample


class AliasFreeDownsample(nn.Module):
    """Ideal low-pass and sub-sampling of ``(B, C, H, W)``.

    Property: any shift of the input shifts the output by the same distance in the image, exactly,
    including fractions of an output pixel.

    >>> AliasFreeDownsample(2)(torch.randn(1, 3, 8, 8)).shape
    torch.Size([1, 3, 4, 4])
    """

    def __init__(self, down: int = 2) -> None:
        super().__init__()
        self.down = down

    @override
    def extra_repr(self) -> str:
        return f"down={self.down}"

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, C, H / down, W / down)``."""
        return alias_free_downsample(x, self.down)


class ConvPatchEmbed(nn.Module):
    """Convolutional patch embedding of XCiT, with the paper's three ways to halve the grid.

    The sub-modules are ``proj.0.0`` (convolution), ``proj.0.1`` (batch norm), ``proj.1``
    (activation and, unless strided, down-sampling), ``proj.2.0``, ...: the key names of timm.

    One stage per factor of two of the patch size; the stages before the last have half, a quarter,
    ... of the channels. The switches are explained at :class:`aft_models.XCiTConfig`.

    >>> tokens, (height, width) = ConvPatchEmbed(32, patch_size=8)(torch.randn(1, 3, 64, 64))
    >>> tokens.shape, height, width
    (torch.Size([1, 64, 32]), 8, 8)
    """

    def __init__(
        self,
        dim: int,
        patch_size: int,
        *,
        in_chans: int = 3,
        padding: str = "zeros",
        downsample: str = "stride",
        activation: str = "gelu",
        last_activation: bool = False,
        up: int = 2,
        degree: int = 3,
    ) -> None:
        super().__init__()
        stages = patch_size.bit_length() - 1
        self.patch_size = patch_size
        widths = [dim >> (stages - 1 - i) for i in range(stages)]
        layers: list[nn.Module] = []
        previous = in_chans
        for i, width in enumerate(widths):
            stride = 2 if downsample == "stride" else 1
            conv = conv3x3(previous, width, padding=padding, stride=stride, bias=False)
            layers.append(nn.Sequential(conv, nn.BatchNorm2d(width)))
            kind = activation if last_activation or i < stages - 1 else None
            tail = _tail(kind, downsample, channels=width, up=up, degree=degree)
            if tail is not None:
                layers.append(tail)
            previous = width
        self.proj = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Map ``(B, channels, H, W)`` to contiguous tokens ``(B, N, C)`` and their grid."""
        height, width = x.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise AftModelsError(
                f"the patch size {self.patch_size} does not divide the image, {height} x {width} "
                "pixels: resize or crop it to a multiple"
            )
        layers = list(self.proj)
        if self._stem_applies():
            (conv, norm), activation = cast(Any, self.proj[:2])
            x = phasewise_stem(x, conv, norm, activation)
            layers = layers[2:]
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            # Channels-last: faster convolutions, norms and resampling, tokens without a copy.
            x = x.contiguous(memory_format=torch.channels_last)
        for layer in layers:
            x = layer(x)
        grid = (x.shape[2], x.shape[3])
        return x.flatten(2).transpose(1, 2).contiguous(), grid

    def _stem_applies(self) -> bool:
        """Return True if the fused first stage is equivalent to the modules."""
        if len(self.proj) < 2 or not isinstance(self.proj[1], AliasFreeActivation):
            return False
        conv, norm = cast(Any, self.proj[0])
        if any(m._forward_hooks or m._forward_pre_hooks for m in (conv, norm, *self.proj[:2])):
            return False  # hooks expect these modules to be called
        return (
            conv.padding_mode == "circular"
            and conv.stride == (1, 1)
            # A synchronized norm gathers its statistics itself: run the module.
            and type(norm) is nn.BatchNorm2d
            and self.proj[1].function is None
            and self.proj[1].down > 1
        )


def _tail(
    activation: str | None, downsample: str, *, channels: int, up: int, degree: int
) -> nn.Module | None:
    """Build the layer that follows a convolution of the patch embedding."""
    if activation in ("af_gelu", "af_poly"):
        down = 2 if downsample == "af" else 1
        kind = activation.removeprefix("af_")
        layer = AliasFreeActivation(kind, channels=channels, up=up, down=down, degree=degree)
        return nn.Sequential(layer, ApsDownsample(2)) if downsample == "aps" else layer
    gelu = nn.GELU() if activation == "gelu" else None
    if downsample == "aps":
        return ApsDownsample(2, gelu)
    if downsample == "stride":
        return gelu
    low_pass = AliasFreeDownsample(2)
    return low_pass if gelu is None else nn.Sequential(gelu, low_pass)
