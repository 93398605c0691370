"""Crops of wider, finer views, resized to the network's input as PIL resizes a box.

A view has a margin of ``m`` network pixels on each side and ``scale`` camera pixels per network
pixel. One antialiased resize cuts a crop at any position, so fractions of a pixel add no blur.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self, override

from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing
from aft_models.remedies.inputs import InputRemedy, Undo, same

FINE = 16  # crop positions per network pixel: equal crops stay bit-equal
FILTERS = {"bilinear": 1, "bicubic": 2}  # half-width of PIL's filters (output pixels)
_BLOCK = 4  # output rows of one matrix product in an exported graph


class CropResize(nn.Module):
    """Crops of a view, resized to the input of a network.

    Args:
        name: Name in errors, such as ``"align:12"``.
        size: Input size of the network (pixels), ``S`` or ``(height, width)``.
        margin: Margin of the view on each side (network pixels).
        scale: Camera pixels per network pixel. At scale 1 positions are integer pixels, and crops
            are exact.
        interpolation: Filter of the model's preprocessing, ``"bilinear"`` or ``"bicubic"``.
        mean: Mean that normalization subtracts from each channel.
        std: Standard deviation that normalization divides each channel by.
    """

    _first: Tensor  # (steps,): first camera pixel of a crop at each position
    _windows: Tensor  # (side, window): camera pixels from each output pixel on
    _weights: Tensor  # (steps, block, window): camera pixels of blocks of output pixels
    _black: Tensor  # (C, 1, 1): normalized 0
    _white: Tensor  # (C, 1, 1): normalized 1

    def __init__(
        self,
        name: str,
        size: int | tuple[int, int],
        *,
        margin: int,
        scale: int,
        interpolation: str,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        self.name = name
        self.size = (size, size) if isinstance(size, int) else size
        self.margin, self.scale, self.interpolation = margin, scale, interpolation
        self.mean, self.std = tuple(mean), tuple(std)
        self._check_settings()
        self._fine = FINE if scale > 1 else 1  # crop positions per network pixel
        self._add_filter()

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the view (camera pixels)."""
        height, width = (self.scale * (side + 2 * self.margin) for side in self.size)
        return height, width

    def normalize(self, images: Tensor) -> Tensor:
        """Convert 8-bit images ``(B, C, H, W)`` to normalized float32 images."""
        if images.dtype != torch.uint8:
            raise AftModelsError(f"expected uint8 images, got {images.dtype}. Pass 8-bit pixels")
        return images / 255 * (self._white - self._black) + self._black

    def _add_filter(self) -> None:
        """Add PIL's filter weights for each position, and the range of pixel values."""
        self._taps = 2 * self.scale * FILTERS[self.interpolation] if self.scale > 1 else 1
        start = torch.arange(2 * self.margin * self._fine + 1, dtype=torch.float64) / self._fine
        center = self.scale * (start + 0.5)  # of the first output pixel (camera pixels)
        first = torch.floor(center - self._taps / 2 + 0.5)
        pixel = first[:, None] + torch.arange(self._taps) + 0.5
        weights = _kernel((pixel - center[:, None]).abs() / self.scale, self.interpolation)
        weights = weights / weights.sum(1, keepdim=True)  # (steps, taps)
        wider = self.scale * (_BLOCK - 1)
        block = [F.pad(weights, (n, wider - n)) for n in range(0, wider + 1, self.scale)]
        mean, std = torch.tensor(self.mean)[:, None, None], torch.tensor(self.std)[:, None, None]
        windows = self.scale * torch.arange(max(self.size))[:, None]
        self._add("_windows", windows + torch.arange(self._taps + wider))
        self._add("_first", first.long())
        self._add("_weights", torch.stack(block, 1).float())
        self._add("_black", -mean / std)
        self._add("_white", (1 - mean) / std)

    def _add(self, name: str, constant: Tensor) -> None:
        self.register_buffer(name, constant.contiguous(), persistent=False)

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Constants follow the device of the module but keep their precision: phases need float32.
        for name, constant in self._buffers.items():
            if constant is not None:
                self._buffers[name] = constant.to(fn(constant).device)
        return self

    def _check_images(self, images: Tensor) -> None:
        channels, (height, width) = len(self.mean), self.input_size
        if images.ndim != 4 or tuple(images.shape[1:]) != (channels, height, width):
            raise AftModelsError(
                f"{self.name} at scale {self.scale} expected images of shape (B, {channels}, "
                f"{height}, {width}) for a network input of {_text(self.size)}, got "
                f"{tuple(images.shape)}. Resize the images to {height} x {width}"
            )
        if not images.is_floating_point():
            raise AftModelsError(
                f"expected normalized float images, got {images.dtype}. Call normalize() first"
            )

    def _check_settings(self) -> None:
        """Raise an error if the settings do not fit together."""
        if self.scale > 1 and self.interpolation not in FILTERS:
            raise AftModelsError(
                f"{self.name} supports models with {' or '.join(FILTERS)} interpolation, got "
                f"{self.interpolation!r}. State the filter of the model's preprocessing"
            )
        if self.scale < 1:
            raise AftModelsError(
                f"expected a scale of 1 or more, got {self.scale}. Use scale 1 or 2"
            )
        if len(self.mean) != len(self.std):
            raise AftModelsError(
                f"expected one mean and std per channel, got {len(self.mean)} and "
                f"{len(self.std)}. Pass tuples of equal length"
            )

    def _cut(self, images: Tensor, position: Tensor) -> Tensor:
        """Resize the crops to ``(B, C, H, W)``."""
        row, column = position.unbind(1)
        height, width = self.size
        wide = images.to(torch.promote_types(images.dtype, torch.float32))
        if self.interpolation == "bicubic":  # PIL's order, which matters as each pass clips
            crops = self._resize(self._resize(wide.mT, column, width).mT, row, height)
        else:  # the cheaper order
            crops = self._resize(self._resize(wide, row, height).mT, column, width).mT
        return crops.to(images.dtype).contiguous()

    def _resize(self, images: Tensor, position: Tensor, size: int) -> Tensor:
        """Resize the rows from a position on: ``(B, C, N, L)`` to ``(B, C, size, L)``."""
        batch, channels, height, length = images.shape
        block = _BLOCK if is_traced() else 1
        window = self._taps + self.scale * (block - 1)
        first = self._first.index_select(0, position)[:, None, None]
        rows = first + self._windows[:size:block, :window]  # (B, blocks, window)
        inner = rows.clamp(0, height - 1)
        weights = self._weights[:, :block, :window].index_select(0, position)[:, None]
        weights = weights * (rows == inner)[:, :, None]  # PIL omits pixels outside the view
        weights = (weights / weights.sum(3, keepdim=True)).to(images.dtype)
        image = (height * range_like(batch * channels, images)).view(batch, channels, 1, 1)
        table, rows = images.reshape(-1, length), inner[:, None] + image
        if is_traced():  # one channel at a time stays in the processor's cache
            parts = [mix_rows(table, part, weights[:, None]) for part in torch.split(rows, 1, 1)]
            return torch.cat(self._clip(parts), 1).flatten(2, 3)[:, :, :size]
        resized = mix_rows(table, rows, weights[:, None]).flatten(2, 3)
        self._clip([resized[:, channel] for channel in range(channels)])
        return resized

    def _clip(self, channels: list[Tensor]) -> list[Tensor]:
        """Limit channels in place to the range of pixels, which the bicubic filter exceeds."""
        if self._taps <= 2 * self.scale:
            return channels
        return [
            part.clamp_(-mean / std, (1 - mean) / std)  # 8x faster than with tensors
            for part, mean, std in zip(channels, self.mean, self.std, strict=True)
        ]


class Downscale(CropResize, InputRemedy):
    """The whole view resized to the input of a network, as its preprocessing resizes an image.

    >>> Downscale(Preprocessing(32), 2).show(torch.zeros(1, 3, 64, 64))[0].shape
    torch.Size([1, 3, 32, 32])
    """

    def __init__(
        self, network: Preprocessing, scale: int, size: tuple[int, int] | None = None
    ) -> None:
        """Build the resize to the images of a network, or to windows (height, width) of others."""
        super().__init__(
            f"scale {scale}",
            size or network.input_size,
            margin=0,
            scale=scale,
            interpolation=network.interpolation,
            mean=network.mean,
            std=network.std,
        )
        self._network = network

    @override
    def resized(self, size: tuple[int, int]) -> Downscale:
        return Downscale(self._network, self.scale, size)

    @override
    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        self._check_images(images)
        origin = torch.zeros(len(images), 2, dtype=torch.long, device=images.device)
        return self._cut(images, origin), same


def is_traced() -> bool:
    """Return True while a graph is exported or compiled."""
    return torch.compiler.is_compiling()


def mix_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Sum weighted rows of a table.

    Args:
        table: ``(N, L)``.
        rows: ``(..., window)``, indices of rows of the table.
        weights: ``(..., block, window)``, expandable to the indices; one block if not traced.

    Returns:
        ``(..., block, L)``.
    """
    window = rows.shape[-1]
    if is_traced():  # ONNX has no weighted bags
        return weights @ table.index_select(0, rows.flatten()).view(*rows.shape, table.shape[1])
    each = weights.expand(*rows.shape[:-1], 1, window).reshape(-1, window)
    bags = F.embedding_bag(rows.view(-1, window), table, per_sample_weights=each, mode="sum")
    return bags.view(*rows.shape[:-1], 1, table.shape[1])


def _kernel(distance: Tensor, interpolation: str) -> Tensor:
    """Evaluate PIL's filters at distances from an output pixel (output pixels)."""
    if interpolation == "bilinear":
        return (1 - distance).clamp(min=0)
    d = distance.clamp(max=2)  # Keys's cubic with a = -0.5 is zero from 2 on
    near = (1.5 * d - 2.5) * d * d + 1
    far = ((-0.5 * d + 2.5) * d - 4) * d + 2
    return torch.where(d < 1, near, far)


def range_like(count: int, like: Tensor) -> Tensor:
    """Return 0 .. count - 1 on the device of a tensor."""
    return torch.arange(count, device=like.device)


def _text(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
