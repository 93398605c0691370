"""What every model source yields."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Preprocessing:
    """What a model's weights expect of an image."""

    input_size: int  # S: height and width of the view in pixels
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    interpolation: str = "bicubic"  # nearest, bilinear, bicubic, lanczos, ...
    crop_pct: float = 224 / 256  # the model's own recipe; used only when it is asked for


@dataclass(frozen=True)
class Classifier:
    """A model ready to be measured: in eval mode, images in, logits out."""

    module: nn.Module  # normalised images (B, 3, S, S) -> logits (B, classes)
    preprocessing: Preprocessing
    name: str  # as the user wrote it: "timm:resnet50"
    source: str  # which source loaded it: "bundled", "timm", "torchvision", "huggingface", "python"
    num_classes: int
    parameters: int  # count of trainable and frozen parameters
    digest: str  # sha256 of the weights, so that a record can name what it measured

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the logits, (B, classes)."""
        logits: Tensor = self.module(images)
        return logits
