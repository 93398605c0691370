"""Embedded, procedural data set `scenes` that is rendered from any camera position.

Every image is a function of (seed, split, index, camera offset) and needs no file. A scene is a
continuous image: a textured background, soft distractors, and one labeled object. The class of the
object is its outline together with its weave, a fine structure of about three to five pixels that a
stride of two under-samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image

from shiftbench.data.base import (
    DATA_SOURCES,
    DataRequest,
    DataSource,
    ImageSet,
    content_digest,
    numbered_keys,
)
from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.registry import unknown_name
from shiftbench.scenes.world import CLASS_NAMES, draw_world

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.scenes.sensor import CameraViews

SPLITS = {"train": 20_000, "val": 2_000, "test": 120}  # default number of images
VERSION = 2  # included in the digests; changes with any pixel of any scene


class Scenes(ImageSet):
    """Images of one split, which can be rendered again from any offset."""

    def __init__(
        self, split: str = "test", size: int | None = None, *, seed: int = 0, view: int = 64
    ) -> None:
        """Describe a split; nothing is rendered yet.

        Args:
            split: `train`, `val` or `test`; no scene is in two of them.
            size: Number of images; the first n are the same scenes whatever the size.
            seed: Seed of the scenes.
            view: Side in pixels of the images that indexing yields.
        """
        if split not in SPLITS:
            raise unknown_name("split of scenes", split, SPLITS)
        if size is not None and size < 1:
            raise UsageError(f"scenes needs a size of at least 1 image, got {size}")
        count = SPLITS[split] if size is None else size
        # Classes alternate, so that the first n images of a split are balanced.
        labels = [index % len(CLASS_NAMES) for index in range(count)]
        super().__init__("scenes", split, numbered_keys(split, count), labels, CLASS_NAMES)
        self.seed = seed
        self.view = view

    def image(self, index: int) -> Image.Image:
        """Render a scene without a camera offset."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        pixels = self.render([index], self.view)[0].permute(1, 2, 0)  # (H, W, 3)
        return Image.fromarray(pixels.numpy())

    def has_size(self, side: int) -> bool:
        """Return False: scenes are rendered at any size, with a margin."""
        return False

    def digest(self, index: int) -> int:
        """Return the digest of a scene, which follows from version, seed and key."""
        return content_digest(f"scenes/{VERSION}/{self.seed}/{self.keys[index]}".encode())

    def render(
        self, indices: Sequence[int], view: int, margin: int = 0, offset: Offset = ORIGIN
    ) -> Tensor:
        """Render scenes for a camera at an offset (pixels of a view of `view` pixels).

        Returns:
            uint8 (B, 3, view + 2 margin, view + 2 margin). A larger view shows the same content
            at a higher resolution. A margin shows the surroundings.
        """
        from shiftbench.scenes import sensor  # imports torch

        world = draw_world(self.seed, self.split, indices)
        return sensor.render(world, view, margin, offset)

    def views(
        self, indices: Sequence[int], view: int, reach: int = 1, wider: int = 0
    ) -> CameraViews:
        """Prepare a batch for many offsets; those up to `reach` pixels share their renderings.

        Each view shows `wider` pixels more on each side.
        """
        from shiftbench.scenes.sensor import CameraViews  # imports torch

        return CameraViews(draw_world(self.seed, self.split, indices), view, reach, wider)


def _load(request: DataRequest) -> Scenes:
    if request.path is not None:
        raise UsageError(f"dataset scenes has no files: write scenes, without ':{request.path}'")
    return Scenes(request.split or "test")


DATA_SOURCES.register(
    "scenes",
    DataSource(
        "embedded procedural scenes, 12 classes, rendered from any offset", _load, rendered=True
    ),
)
