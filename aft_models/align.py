"""Alignment: a crop of a wider view, at a position that follows the image content.

The view has a margin of ``m`` network pixels on each side and ``scale`` camera pixels per network
pixel. On each axis the crop starts where the Fourier phase of the crop itself is zero, at one
period per ``P = 2 m - 1`` network pixels. The phase is that of ``log(gray + 0.02)`` under a Hann
taper on the crop, with gray smoothed by a binomial filter. The logarithm turns exposure into a
constant and vignetting into a slow trend, and the phase ignores both. The position is a real
number that moves with the content. It jumps by ``P`` only where the crop would leave the view. One
antialiased resize cuts the crop at the position, so fractions of a pixel add no blur. No step is
trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self, override

from aft_models.errors import AftModelsError, unknown

_SUPPORT = {"bilinear": 1, "bicubic": 2}  # half-width of PIL's filters (output pixels)
_DARK = 0.02  # added to gray (0 to 1) before the logarithm, limits the effect of dark noise
_NO_PHASE = 2e-4  # weaker waves (units of the logarithm) count as absent
_FINE = 16  # crop positions per network pixel: equal crops stay bit-equal
_TAPERS = 4  # taper positions per network pixel: all starts end at the same taper
_STEPS = 3  # moves of the taper to the crop
_BLOCK = 4  # output rows of one matrix product in an exported graph


@dataclass(frozen=True)
class AlignUndo:
    """Mapping from the aligned crops to the unshifted center views.

    A point of a crop is at the same coordinates plus the offset in the center view.
    """

    offset: Tensor  # (B, 2): (dy, dx) of each crop relative to the center (network pixels)
    has_phase: Tensor  # (B,): False if an axis has no phase and the crop is centered along it
    size: tuple[int, int]  # (height, width) of the network input (pixels)

    def points(self, points: Tensor) -> Tensor:
        """Move points to the center views.

        Args:
            points: ``(B, ..., 2)``, (x, y) in pixels of the network input.

        Returns:
            Points of the same shape, in pixels of the center view.
        """
        return self._moved(points, 2)

    def boxes(self, boxes: Tensor) -> Tensor:
        """Move boxes ``(B, ..., 4)``, (x1, y1, x2, y2) in pixels, to the center views."""
        return self._moved(boxes, 4)

    def maps(self, maps: Tensor, *, mode: str = "bilinear") -> Tensor:
        """Move maps to the center views.

        Args:
            maps: ``(B, C, h, w)``, each over the whole network input, at any stride.
            mode: ``"bilinear"``, or ``"nearest"`` for class indices.

        Returns:
            Maps of the same shape. Pixels outside the crop repeat its edge.
        """
        values = maps if maps.is_floating_point() else maps.float()
        shift = -2 * self.offset.flip(1) / self.offset.new_tensor(self.size[::-1])  # (B, 2): x, y
        affine = torch.eye(2).to(shift).expand(len(shift), 2, 2)
        affine = torch.cat([affine, shift[:, :, None]], 2).to(values)
        grid = F.affine_grid(affine, list(values.shape), align_corners=False)
        moved = F.grid_sample(values, grid, mode, padding_mode="border", align_corners=False)
        return moved.to(maps.dtype)

    def _moved(self, points: Tensor, coordinates: int) -> Tensor:
        if points.shape[-1] != coordinates or len(points) != len(self.offset):
            raise AftModelsError(
                f"expected coordinates of shape ({len(self.offset)}, ..., {coordinates}), got "
                f"{tuple(points.shape)}. Pass one row per image"
            )
        shift = self.offset.flip(1).repeat(1, coordinates // 2).to(points.device)
        return points + shift.view(-1, *[1] * (points.ndim - 2), coordinates)


class Align(nn.Module):
    """Crop of a wider view at the position where the phase of the crop is zero.

    Args:
        size: Input size of the network (pixels), ``S`` or ``(height, width)``.
        margin: Margin of the view on each side (network pixels).
        scale: Camera pixels per network pixel. At scale 1 positions are whole pixels, and crops
            are exact.
        interpolation: Filter of the model's preprocessing, ``"bilinear"`` or ``"bicubic"``.
        mean: Mean that normalization subtracts from each channel.
        std: Standard deviation that normalization divides each channel by.
    """

    _gray_weights: Tensor  # (1, C * scale): weights of the camera rows of a gray row
    _gray_sums: Tensor  # (pixels, pixels * scale): sums of neighboring camera pixels
    _gray_rows: Tensor  # (height, C * scale): camera rows of each gray row
    _view_y: Tensor  # (1, 3, height - 2): taper over the whole view, and its two waves
    _view_x: Tensor  # (1, 3, width - 2)
    _crop_y: Tensor  # (positions, 3, height - 2): taper on the crop, and its two waves
    _crop_x: Tensor  # (positions, 3, width - 2)
    _real: Tensor  # (2,): indices of the products of cosines, for y and x
    _imaginary: Tensor  # (2,): indices of the products of sines
    _first: Tensor  # (steps,): first camera pixel of a crop at each position
    _windows: Tensor  # (side, window): camera pixels from each output pixel on
    _weights: Tensor  # (steps, block, window): camera pixels of blocks of output pixels
    _black: Tensor  # (C, 1, 1): normalized 0
    _white: Tensor  # (C, 1, 1): normalized 1

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        margin: int = 12,
        scale: int = 2,
        interpolation: str = "bilinear",
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__()
        self.size = (size, size) if isinstance(size, int) else size
        _check(self.size, margin, scale, interpolation, mean, std)
        self.margin = margin
        self.scale = scale
        self.interpolation = interpolation
        self.mean = tuple(mean)
        self.std = tuple(std)
        self._period = 2 * margin - 1  # network pixels
        self._fine = _FINE if scale > 1 else 1  # crop positions per network pixel
        self._add_gray()
        self._add_tapers()
        self._add_filter()

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the view (camera pixels)."""
        height, width = (self.scale * (side + 2 * self.margin) for side in self.size)
        return height, width

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Cut the aligned crop of each image.

        Args:
            images: Normalized views ``(B, C, scale (H + 2 m), scale (W + 2 m))``.

        Returns:
            Network inputs ``(B, C, H, W)``.
        """
        self._check_images(images)
        return self._cut(images, self._locate(images)[0])

    def place(self, images: Tensor) -> Tensor:
        """Return the offset (dy, dx) of each crop from the center: ``(B, 2)`` (network pixels)."""
        self._check_images(images)
        return self._offset(self._locate(images)[0])

    def show(self, images: Tensor) -> tuple[Tensor, AlignUndo]:
        """Cut the aligned crops, and return the mapping back to the center views."""
        self._check_images(images)
        position, has_phase = self._locate(images)
        undo = AlignUndo(self._offset(position), has_phase.all(1), self.size)
        return self._cut(images, position), undo

    def normalize(self, images: Tensor) -> Tensor:
        """Convert 8-bit images ``(B, C, H, W)`` to the normalized float32 input of `forward`."""
        if images.dtype != torch.uint8:
            raise AftModelsError(f"expected uint8 images, got {images.dtype}. Pass 8-bit pixels")
        return images / 255 * (self._white - self._black) + self._black

    def _add_gray(self) -> None:
        """Add the camera rows and weights of gray, the mean over channels and camera pixels."""
        height, channels = self.input_size[0], len(self.mean)
        first = torch.arange(channels)[:, None] * height + torch.arange(self.scale)
        weights = torch.tensor(self.std) / (channels * self.scale**2 * 16)  # 16: see _levels
        self._add("_gray_rows", torch.arange(0, height, self.scale)[:, None] + first.flatten())
        self._add("_gray_weights", weights.repeat_interleave(self.scale)[None])
        pixels = math.gcd(self.input_size[1] // self.scale, 8)
        self._add("_gray_sums", torch.eye(pixels).repeat_interleave(self.scale, 1))

    def _add_tapers(self) -> None:
        """Add the tapers over the view and on each position of the crop."""
        positions = torch.arange(2 * self.margin * _TAPERS + 1) / _TAPERS
        self._add("_real", torch.tensor([3, 1]))  # cosine along y and along x
        self._add("_imaginary", torch.tensor([6, 2]))
        middle = torch.tensor([self.margin])
        for axis, side in zip("yx", self.size, strict=True):
            view = side + 2 * self.margin
            self._add(f"_view_{axis}", _waves(view, side, self._period, middle, view / 2 - 1))
            self._add(f"_crop_{axis}", _waves(view, side, self._period, positions, side / 2 - 1))

    def _add_filter(self) -> None:
        """Add PIL's filter weights for each position, and the range of pixel values."""
        self._taps = 2 * self.scale * _SUPPORT[self.interpolation] if self.scale > 1 else 1
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
                f"align:{self.margin} at scale {self.scale} expected images of shape "
                f"(B, {channels}, {height}, {width}) for a network input of {_text(self.size)}, "
                f"got {tuple(images.shape)}. Resize the images to {height} x {width}"
            )
        if not images.is_floating_point():
            raise AftModelsError(
                f"expected normalized float images, got {images.dtype}. Call normalize() first"
            )

    def _offset(self, position: Tensor) -> Tensor:
        return position / self._fine - self.margin

    def _locate(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Find the crop whose own phase is zero.

        Returns:
            Rows and columns ``(B, 2)`` where the crops start, in integer steps of ``1 / fine``
            network pixels, and which of these have a phase ``(B, 2)``.
        """
        with _without_autocast(images):
            levels = self._levels(images.detach().float())
            shift, size = self._phase(levels, self._view_y, self._view_x)
            position = shift + self.margin * _TAPERS  # in steps between tapers
            for _ in range(_STEPS):
                taper = position.round().long().clamp(0, len(self._crop_y) - 1)
                y = self._crop_y.index_select(0, taper[:, 0])
                x = self._crop_x.index_select(0, taper[:, 1])
                shift, size = self._phase(levels, y, x)
                position = shift + taper
        has_phase = size > _NO_PHASE
        position = torch.where(
            has_phase, position * (self._fine / _TAPERS), self.margin * self._fine
        )
        return position.round().long().clamp(0, len(self._first) - 1), has_phase

    def _levels(self, images: Tensor) -> Tensor:
        """Return the logarithm of smooth gray at network pixels: ``(B, H - 2, W - 2)``."""
        batch, channels, height, width = images.shape
        if _traced():
            # Products with small matrices are faster in ONNX Runtime than its pooling.
            gray = self._gray_weights[:, :: self.scale] @ images.flatten(2)
            gray = self._gray_sums[:1, : self.scale] @ gray.view(batch, -1, self.scale, width)
            gray = gray.view(batch, -1, self._gray_sums.shape[1]) @ self._gray_sums.mT
            gray = gray.view(batch, height // self.scale, width // self.scale)
        else:
            rows = self._gray_rows + (height * channels) * _range(batch, images)[:, None, None]
            sums = _mix_rows(images.reshape(-1, width), rows, self._gray_weights)[:, :, 0]
            gray = sums[..., :: self.scale]
            for column in range(1, self.scale):
                gray = gray + sums[..., column :: self.scale]
        # Binomial filter (1, 2, 1) on both axes, of sum 16: fine detail depends on the sampling and
        # moves the phase through the logarithm. Tapers are zero at the pixels lost at the edges.
        for _ in range(2):
            gray = gray[:, 1:] + gray[:, :-1]
            gray = gray[:, :, 1:] + gray[:, :, :-1]
        return torch.log((gray + (sum(self.mean) / channels + _DARK)).clamp(min=_DARK))

    def _phase(self, levels: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Measure phases (steps between tapers) and sizes of the waves of both axes: ``(B, 2)``."""
        sums = ((y @ levels) @ x.mT).flatten(1)  # (B, 9): taper, cosine, sine along each axis
        real, imaginary = sums.index_select(1, self._real), sums.index_select(1, self._imaginary)
        if _traced():  # half-angle form of atan2: fewer operators in an exported graph
            size = torch.sqrt(real * real + imaginary * imaginary)
            angle = 2 * torch.atan(imaginary / (size + real + 1e-30))
        else:
            size, angle = torch.hypot(real, imaginary), torch.atan2(imaginary, real)
        return angle * (self._period * _TAPERS / (2 * math.pi)), size

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
        block = _BLOCK if _traced() else 1
        window = self._taps + self.scale * (block - 1)
        first = self._first.index_select(0, position)[:, None, None]
        rows = first + self._windows[:size:block, :window]  # (B, blocks, window)
        inner = rows.clamp(0, height - 1)
        weights = self._weights[:, :block, :window].index_select(0, position)[:, None]
        weights = weights * (rows == inner)[:, :, None]  # PIL omits pixels outside the view
        weights = (weights / weights.sum(3, keepdim=True)).to(images.dtype)
        image = (height * _range(batch * channels, images)).view(batch, channels, 1, 1)
        resized = _mix_rows(images.reshape(-1, length), inner[:, None] + image, weights[:, None])
        resized = resized.flatten(2, 3)[:, :, :size]
        return self._clip(resized) if self._taps > 2 * self.scale else resized

    def _clip(self, images: Tensor) -> Tensor:
        """Limit images to the range of pixel values, which the bicubic filter exceeds."""
        if _traced():
            return images.clamp(self._black.to(images), self._white.to(images))
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            images[:, channel].clamp_(-mean / std, (1 - mean) / std)  # 8x faster than with tensors
        return images


def _traced() -> bool:
    """Return True while a graph is exported or compiled."""
    return torch.compiler.is_compiling()


def _mix_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Sum weighted rows of a table.

    Args:
        table: ``(N, L)``.
        rows: ``(..., window)``, indices of rows of the table.
        weights: ``(..., block, window)``, expandable to the indices; one block if not traced.

    Returns:
        ``(..., block, L)``.
    """
    window = rows.shape[-1]
    if _traced():  # ONNX has no weighted bags
        return weights @ table.index_select(0, rows.flatten()).view(*rows.shape, table.shape[1])
    each = weights.expand(*rows.shape[:-1], 1, window).reshape(-1, window)
    bags = F.embedding_bag(rows.view(-1, window), table, per_sample_weights=each, mode="sum")
    return bags.view(*rows.shape[:-1], 1, table.shape[1])


def _waves(view: int, crop: int, period: int, positions: Tensor, half: float) -> Tensor:
    """Build Hann tapers of half-width `half` on crops, and their waves without a mean.

    Waves are orthogonal to constants under the taper, so products remove the mean of an image.

    Returns:
        ``(positions, 3, view - 2)``: taper of unit sum, cosine and sine wave from the crop's start,
        at all but the outermost pixels of the view.
    """
    pixel = torch.arange(1, view - 1, dtype=torch.float64) - positions.double()[:, None]
    taper = torch.cos(((pixel - (crop - 1) / 2) / half).clamp(-1, 1) * (math.pi / 2)).square()
    taper = taper / taper.sum(1, keepdim=True)
    angle = pixel * (2 * math.pi / period)
    waves = torch.stack([torch.cos(angle), torch.sin(angle)], 1)  # (positions, 2, view)
    waves = waves - (waves * taper[:, None]).sum(2, keepdim=True)
    return torch.cat([taper[:, None], taper[:, None] * waves], 1).float()


def _kernel(distance: Tensor, interpolation: str) -> Tensor:
    """Evaluate PIL's filters at distances from an output pixel (output pixels)."""
    if interpolation == "bilinear":
        return (1 - distance).clamp(min=0)
    d = distance.clamp(max=2)  # Keys's cubic with a = -0.5 is zero from 2 on
    near = (1.5 * d - 2.5) * d * d + 1
    far = ((-0.5 * d + 2.5) * d - 4) * d + 2
    return torch.where(d < 1, near, far)


def _range(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


def _without_autocast(images: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off: phases need float32 products."""
    device = images.device.type
    if torch.compiler.is_compiling() or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _text(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _check(
    size: tuple[int, int],
    margin: int,
    scale: int,
    interpolation: str,
    mean: Sequence[float],
    std: Sequence[float],
) -> None:
    """Raise an error if the settings of `Align` do not fit together."""
    if interpolation not in _SUPPORT:
        raise AftModelsError(unknown("interpolation", interpolation, _SUPPORT))
    if margin < 2:
        raise AftModelsError(f"expected a margin of 2 px or more, got {margin}. Use align:2")
    if scale < 1:
        raise AftModelsError(f"expected a scale of 1 or more, got {scale}. Use scale 1 or 2")
    if min(size) < 2 * margin:
        raise AftModelsError(
            f"cannot align crops of {_text(size)} pixels with a margin of {margin} px: expected "
            f"sides of {2 * margin} px or more. Use a margin of at most {min(size) // 2} px"
        )
    if len(mean) != len(std):
        raise AftModelsError(
            f"expected one mean and std per channel, got {len(mean)} and {len(std)}. "
            "Pass tuples of equal length"
        )
