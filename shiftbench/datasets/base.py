"""What every data source yields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from PIL.Image import Image
from torch import Tensor

from shiftbench.grid import Offset


class ImageSet(Protocol):
    """A map-style set of (PIL image, label), with a stable key per image."""

    name: str  # as the user wrote it, without local paths: "imagenet", "scenes"
    split: str  # "val", "test", ...
    class_names: Sequence[str]
    keys: Sequence[str]  # one per image, stable across runs and machines
    labels: Sequence[int]  # one per image, known without decoding

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Image, int]:
        """Decodes one image; always RGB and upright."""
        ...

    def fingerprint(self) -> str:
        """Names, sizes and count in one digest, so that a record can name what it measured."""
        ...


@runtime_checkable
class Camera(Protocol):
    """A data set that can really move its camera: it renders a view at any sub-pixel offset."""

    def render(
        self, indices: Sequence[int], view: int, margin: int = 0, offset: Offset = ...
    ) -> Tensor:
        """Returns uint8 (B, 3, view + 2 margin, view + 2 margin), seen from `offset` pixels."""
        ...
