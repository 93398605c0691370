"""What every data source yields, and the one list of them."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from PIL.Image import Image

from shiftbench.grid import Offset
from shiftbench.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts import Views

ALL = "all"  # the split of a set that has no splits


@dataclass(frozen=True, eq=False)
class ImageSet(ABC):
    """A map-style set of (PIL image, label), with a stable key per image."""

    name: str  # as the user wrote it, without local paths: `imagenet`, `scenes`
    split: str  # `val`, `test`, ...
    keys: Sequence[str]  # one per image, stable across runs and machines
    labels: Sequence[int]  # one per image, known without decoding
    class_names: Sequence[str]  # by index
    # Class indices are only the order of the names in this set: a model may have another.
    by_order: bool = field(default=False, kw_only=True)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        return self.image(index), self.labels[index]

    @abstractmethod
    def image(self, index: int) -> Image:
        """Decodes one image, always RGB. Unreadable: a DataError that names it."""

    @abstractmethod
    def has_size(self, side: int) -> bool:
        """Whether all images are squares of `side` pixels.

        A subset answers for the whole, so that no number of images changes how they are cut.
        """

    @abstractmethod
    def fingerprint(self, *, verify: bool = False) -> str:
        """Images and labels in one digest, so that a record can name what it measured.

        It is the same for a copy of the data on another machine, and another one when a single
        image changes.

        Args:
            verify: Read all files again, even those that show no sign of a change.
        """

    def with_labels(self, content: str) -> str:
        """A digest of the images together with keys and labels: the fingerprint of most sets."""
        digest = hashlib.sha256(content.encode())
        for key, label in zip(self.keys, self.labels, strict=True):
            digest.update(f"\n{key}\0{label}".encode())
        return digest.hexdigest()


@runtime_checkable
class RenderedSet(Protocol):
    """A data set that renders its images again, seen from any sub-pixel offset."""

    def render(
        self, indices: Sequence[int], view: int, margin: int = 0, offset: Offset = ...
    ) -> Tensor:
        """Returns uint8 (B, 3, view + 2 margin, view + 2 margin), seen from `offset` pixels."""
        ...

    def views(self, indices: Sequence[int], view: int, reach: int = 1, wider: int = 0) -> Views:
        """Prepares a batch for many offsets of up to `reach` pixels; equal to `render` at each.

        Each view shows `wider` pixels more on each side.
        """
        ...


@dataclass(frozen=True)
class DataRequest:
    """What a source is asked for."""

    path: Path | None = None  # what follows the colon
    split: str | None = None  # None: the source's usual evaluation split
    download: bool = False  # whether the network may be used
    by_name: bool = False  # a class map follows: classes are names, even where they are numbers


@dataclass(frozen=True)
class DataSource:
    """A kind of data, registered by the name before the colon."""

    summary: str  # one line for `shiftbench list datasets`
    load: Callable[[DataRequest], ImageSet]


DATA_SOURCES: Registry[DataSource] = Registry("data set")


def as_text(name: str) -> str:
    r"""A file name as text that can be written anywhere; bytes that are not UTF-8 as `\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def set_name(folder: str) -> str:
    """The name of a data set of the user's own, which never is that of a source."""
    name = as_text(folder)
    return f"folder-{name}" if not name or name in DATA_SOURCES else name


def numbered(count: int) -> list[str]:
    """Names of classes that have none: their indices."""
    return [str(index) for index in range(count)]


def numbered_keys(split: str, count: int) -> list[str]:
    """Keys of images that have no names, in an order that never changes: `test/00042`."""
    return [f"{split}/{index:05d}" for index in range(count)]
