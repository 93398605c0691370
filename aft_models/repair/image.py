"""What the remedies that move the image have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from aft_models.errors import AftModelsError


def images_of(inputs: tuple[Any, ...], remedy: str) -> tuple[Any, ...]:
    """The positional arguments of a model, of which the first must be images."""
    first = inputs[0] if inputs else None
    if isinstance(first, Tensor) and first.ndim == 4 and first.is_floating_point():
        return inputs
    got = f"shape {tuple(first.shape)} of {first.dtype}" if isinstance(first, Tensor) else "none"
    raise AftModelsError(
        f"{remedy} moves images: expected a floating-point tensor (B, C, H, W) as the model's "
        f"first argument, got {got}"
    )
