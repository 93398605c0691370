"""What every data source yields, and the one list of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from PIL.Image import Image
from torch import Tensor

from shiftbench.grid import Offset
from shiftbench.registry import Registry
from shiftbench.shifts.base import Views


class ImageSet(Protocol):
    """A map-style set of (PIL image, label), with a stable key per image."""

    @property
    def name(self) -> str:
        """As the user wrote it, without local paths: `imagenet`, `scenes`."""
        ...

    @property
    def split(self) -> str:
        """`val`, `test`, ..."""
        ...

    @property
    def class_names(self) -> Sequence[str]:
        """The name of every class, by index."""
        ...

    @property
    def keys(self) -> Sequence[str]:
        """One per image, stable across runs and machines."""
        ...

    @property
    def labels(self) -> Sequence[int]:
        """One per image, known without decoding."""
        ...

    def has_size(self, side: int) -> bool:
        """Whether all images are squares of `side` pixels.

        A subset answers for the whole, so that no number of images changes how they are cut.
        """
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Image, int]:
        """Decodes one image; always RGB and upright. Unreadable: a DataError that names it."""
        ...

    def fingerprint(self, *, verify: bool = False) -> str:
        """Images and labels in one digest, so that a record can name what it measured.

        It is the same for a copy of the data on another machine, and another one when a single
        image changes.

        Args:
            verify: Read all files again, even those that show no sign of a change.
        """
        ...


@runtime_checkable
class RenderedSet(Protocol):
    """A data set that renders its images again, seen from any sub-pixel offset."""

    def render(
        self, indices: Sequence[int], view: int, margin: int = 0, offset: Offset = ...
    ) -> Tensor:
        """Returns uint8 (B, 3, view + 2 margin, view + 2 margin), seen from `offset` pixels."""
        ...

    def views(self, indices: Sequence[int], view: int, reach: int = 1) -> Views:
        """Prepares a batch for many offsets of up to `reach` pixels; equal to `render` at each."""
        ...


@dataclass(frozen=True)
class DataRequest:
    """What a source is asked for."""

    path: Path | None = None  # what follows the colon
    split: str | None = None  # None: the source's usual evaluation split
    download: bool = False  # whether the network may be used
    class_map: Path | None = None  # JSON or CSV from folder names to class indices


@dataclass(frozen=True)
class DataSource:
    """A kind of data, by the name before the colon."""

    name: str
    summary: str  # one line for `shiftbench list datasets`
    load: Callable[[DataRequest], ImageSet]


DATA_SOURCES: Registry[DataSource] = Registry("data set")
