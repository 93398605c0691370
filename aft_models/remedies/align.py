"""``align``: a crop of a wider view, at a position that follows the image content.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing
from aft_models.remedies.crops import CropResize, is_traced, mix_rows, range_like
from aft_models.remedies.inputs import InputRemedy, Undo
from aft_models.resample import without_autocast

_DARK = 0.02  # added to gray (0 to 1) before the logarithm, limits the effect of dark noise
_NO_PHASE = 2e-4  # weaker waves (units of the logarithm) count as absent
_TAPERS = 4  # taper positions per network pixel: all starts end at the same taper
_STEPS = 3  # moves of the taper to the crop


@dataclass(frozen=True)
class AlignUndo:
    """Mapping from the aligned crops to the unshifted center views.

    A point of a crop is at the same coordinates plus the offset in the center view.
    """

    offset: Tensor  # (B, 2): (dy, dx) of each crop relative to the center (network pixels)
    has_phase: Tensor  # (B,): False if an axis has no phase and the crop is centered along it
    size: tuple[int, int]  # (height, width) of the network input (pixels)

    def __call__(self, outputs: Any) -> Any:
        """Move the outputs of a network to the center views.

        Args:
            outputs: Logits ``(B, classes)``, which have no position; maps ``(B, C, h, w)``; or
                detections as of torchvision, a dict with ``boxes`` per image.
        """
        if isinstance(outputs, Tensor):
            return self.maps(outputs) if outputs.ndim == 4 else outputs
        if isinstance(outputs, list) and all(isinstance(one, dict) for one in outputs):
            shifts = self.offset.flip(1).repeat(1, 2)  # (B, 4): x, y, x, y
            return [
                {**one, "boxes": one["boxes"] + shift.to(one["boxes"])} if "boxes" in one else one
                for one, shift in zip(outputs, shifts, strict=True)
            ]
        return outputs

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


class Align(CropResize, InputRemedy):
    """Crop of a wider view at the position where the phase of the crop is zero.

    Args:
        size: Input size of the network (pixels), ``S`` or ``(height, width)``.
        margin: Margin of the view on each side (network pixels).
        scale: Camera pixels per network pixel. At scale 1 positions are integers, and crops are
            exact.
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
        super().__init__(
            f"align:{margin}",
            size,
            margin=margin,
            scale=scale,
            interpolation=interpolation,
            mean=mean,
            std=std,
        )
        self.keeps_pixels = scale == 1
        self._period = 2 * margin - 1  # network pixels
        self._add_gray()
        self._add_tapers()

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

    @override
    def resized(self, size: tuple[int, int]) -> Align:
        return Align(
            size,
            margin=self.margin,
            scale=self.scale,
            interpolation=self.interpolation,
            mean=self.mean,
            std=self.std,
        )

    def has_phase(self, images: Tensor) -> Tensor:
        """Return ``(B,)``, False for images without a phase, whose crop is in the center."""
        self._check_images(images)
        return self._locate(images)[1].all(1)

    @override
    def _check_settings(self) -> None:
        super()._check_settings()
        margin, side = self.margin, min(self.size)
        if margin < 2:
            raise AftModelsError(f"expected a margin of 2 px or more, got {margin}. Use align:2")
        if side < 2 * margin:
            raise AftModelsError(
                f"cannot align crops of {side} px with a margin of {margin} px: expected sides of "
                f"{2 * margin} px or more. Use a margin of at most {side // 2} px"
            )

    def place(self, images: Tensor) -> Tensor:
        """Return the offset (dy, dx) of each crop from the center: ``(B, 2)`` (network pixels)."""
        self._check_images(images)
        return self._offset(self._locate(images)[0])

    @override
    def show(self, images: Tensor) -> tuple[Tensor, AlignUndo]:
        self._check_images(images)
        position, has_phase = self._locate(images)
        undo = AlignUndo(self._offset(position), has_phase.all(1), self.size)
        return self._cut(images, position), undo

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

    def _offset(self, position: Tensor) -> Tensor:
        return position / self._fine - self.margin

    def _locate(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Find the crop whose own phase is zero.

        Returns:
            Rows and columns ``(B, 2)`` where the crops start, in integer steps of ``1 / fine``
            network pixels, and which of these have a phase ``(B, 2)``.
        """
        with without_autocast(images):
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
        if is_traced():
            # Products with small matrices are faster in ONNX Runtime than its pooling.
            gray = self._gray_weights[:, :: self.scale] @ images.flatten(2)
            gray = self._gray_sums[:1, : self.scale] @ gray.view(batch, -1, self.scale, width)
            gray = gray.view(batch, -1, self._gray_sums.shape[1]) @ self._gray_sums.mT
            gray = gray.view(batch, height // self.scale, width // self.scale)
        else:
            rows = self._gray_rows + (height * channels) * range_like(batch, images)[:, None, None]
            sums = mix_rows(images.reshape(-1, width), rows, self._gray_weights)[:, :, 0]
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
        if is_traced():  # half-angle form of atan2: fewer operators in an exported graph
            size = torch.sqrt(real * real + imaginary * imaginary)
            angle = 2 * torch.atan(imaginary / (size + real + 1e-30))
        else:
            size, angle = torch.hypot(real, imaginary), torch.atan2(imaginary, real)
        return angle * (self._period * _TAPERS / (2 * math.pi)), size


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


@dataclass(frozen=True)
class AlignSettings(InputRemedy):
    """The remedy before the network is known."""

    margin: int
    scale: int

    @override
    def bound(self, network: Preprocessing) -> Align:
        return Align(
            network.input_size,
            margin=self.margin,
            scale=self.scale,
            interpolation=network.interpolation,
            mean=network.mean,
            std=network.std,
        )

    @override
    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        raise AssertionError("bound() comes first")


def build(margin: int, scale: int) -> AlignSettings:
    """Build the remedy for a view with a margin of `margin` network pixels."""
    return AlignSettings(margin, scale)
