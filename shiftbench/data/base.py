"""Base class of data sets, the subsets of `--limit`, and the registry of sources."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image
from typing_extensions import Self, override

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts import Views

ALL = "all"  # the split of a set that has no splits


@dataclass(frozen=True)
class Target:
    """Labels of the objects or pixels of one image, in pixels of the image file."""

    boxes: NDArray[np.float64]  # (objects, 4): x1, y1, x2, y2
    labels: NDArray[np.int64]  # (objects,): class of each box
    mask: NDArray[np.int64] | None = None  # (height, width): class of each pixel; -1: ignored
    name: str = ""  # of the image, for errors


@dataclass(frozen=True, eq=False)
class ImageSet(ABC):
    """Map-style set of (PIL image, label), with a stable key per image."""

    name: str  # as the user wrote it, without local paths: `imagenet`, `scenes`
    split: str  # `val`, `test`, ...
    keys: Sequence[str]  # one per image, stable across runs and machines
    labels: Sequence[int]  # one per image, known without decoding; digests where `annotated`
    class_names: Sequence[str]  # by index
    # Class indices are only the order of the names in this set: a model may have another.
    by_order: bool = field(default=False, kw_only=True)
    # Class folders are named by integers: indices, or names in alphabetical order.
    by_number: bool = field(default=False, kw_only=True)

    task: ClassVar[str] = "classification"  # of the labels; empty: there are no labels
    annotated: ClassVar[bool] = False  # labels are of parts of images: see `target`

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        return self.image(index), self.labels[index]

    @abstractmethod
    def image(self, index: int) -> Image:
        """Decode one image as RGB; an unreadable image raises a DataError with its name."""

    @abstractmethod
    def has_size(self, side: int) -> bool:
        """Return True if all images are squares of `side` pixels.

        A subset returns the value of the entire set, so that a limit does not change the crop.
        """

    def bad_headers(self, indices: Iterable[int]) -> dict[int, str]:
        """Return the reason for each image whose header cannot be read, if that is cheap."""
        return {}

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height of an image in pixels."""
        return self.image(index).size

    def target(self, index: int) -> Target | None:
        """Return the labels of the parts of an image; None: there are none."""
        return None

    def used_classes(self) -> set[int]:
        """Return the indices of the classes that labels have."""
        return set(self.labels)

    def named_classes(self) -> Sequence[str]:
        """Return the names of the classes that a model must have."""
        return self.class_names

    def renumbered(self, indices: Mapping[str, int], class_names: Sequence[str]) -> Self:
        """Return the set with the class indices that a mapping gives its class names."""
        labels = [indices[self.class_names[label]] for label in self.labels]
        names = tuple(class_names)
        return replace(self, labels=labels, class_names=names, by_order=False, by_number=False)

    def load(self, index: int) -> tuple[Image, int]:
        """Decode one image and compute its digest, here of the pixels."""
        image = self.image(index)
        return image, content_digest(repr(image.size).encode() + image.tobytes())


def content_digest(content: bytes) -> int:
    """Return 63 bits that identify an image on every machine and under any key."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


@runtime_checkable
class RenderedSet(Protocol):
    """Data set that renders its images at any sub-pixel offset."""

    def render(
        self, indices: Sequence[int], view: int, margin: int = 0, offset: Offset = ...
    ) -> Tensor:
        """Return uint8 (B, 3, view + 2 margin, view + 2 margin) at `offset` pixels."""
        ...

    def views(self, indices: Sequence[int], view: int, reach: int = 1, wider: int = 0) -> Views:
        """Prepare a batch for many offsets of up to `reach` pixels; equal to `render` at each.

        Each view shows `wider` pixels more on each side.
        """
        ...

    def digest(self, index: int) -> int:
        """Return the digest of an image, which follows from its rendering."""
        ...


@dataclass(frozen=True, eq=False)
class Subset(ImageSet):
    """Subset of a data set, with the keys of its images; the classes do not change."""

    whole: ImageSet
    indices: Sequence[int]  # into `whole`

    @override
    def image(self, index: int) -> Image:
        return self.whole.image(self.indices[index])

    @override
    def has_size(self, side: int) -> bool:
        return self.whole.has_size(side)

    @override
    def bad_headers(self, indices: Iterable[int]) -> dict[int, str]:
        inner = {self.indices[index]: index for index in indices}
        return {inner[i]: reason for i, reason in self.whole.bad_headers(inner).items()}

    @override
    def load(self, index: int) -> tuple[Image, int]:
        return self.whole.load(self.indices[index])

    def size(self, index: int) -> tuple[int, int]:
        """Return the size that the whole set gives the image."""
        return self.whole.size(self.indices[index])

    def target(self, index: int) -> Target | None:
        """Return the labels that the whole set gives the image."""
        return self.whole.target(self.indices[index])

    def used_classes(self) -> set[int]:
        """Return the classes of the whole set, or of the labels of these images."""
        return self.whole.used_classes() if self.annotated else set(self.labels)

    @property
    def task(self) -> str:  # type: ignore[override]
        """Task of the labels of the whole set."""
        return self.whole.task

    @property
    def annotated(self) -> bool:  # type: ignore[override]
        """True if the whole set has labels of parts of images."""
        return self.whole.annotated


class RenderedSubset(Subset):
    """Subset of a data set that renders its images."""

    def render(
        self, indices: Sequence[int], view: int, margin: int = 0, offset: Offset = ORIGIN
    ) -> Tensor:
        """Render images of the subset."""
        whole = cast("RenderedSet", self.whole)
        return whole.render([self.indices[i] for i in indices], view, margin, offset)

    def views(self, indices: Sequence[int], view: int, reach: int = 1, wider: int = 0) -> Views:
        """Prepare images of the subset."""
        whole = cast("RenderedSet", self.whole)
        return whole.views([self.indices[i] for i in indices], view, reach, wider)

    def digest(self, index: int) -> int:
        """Return the digest of an image of the subset."""
        return cast("RenderedSet", self.whole).digest(self.indices[index])


def subset(dataset: ImageSet, indices: Sequence[int]) -> Subset:
    """Return a subset; that of a rendered set is rendered too."""
    kind = RenderedSubset if isinstance(dataset, RenderedSet) else Subset
    return kind(
        dataset.name,
        dataset.split,
        [dataset.keys[index] for index in indices],
        [dataset.labels[index] for index in indices],
        dataset.class_names,
        dataset,
        list(indices),
    )


def balanced(keys: Sequence[str], labels: Sequence[int], limit: int, seed: int) -> list[int]:
    """Choose `limit` images, spread over the classes as evenly as possible.

    Returns:
        Ascending indices; all of them if there are at most `limit`.
    """
    if limit < 1:
        raise UsageError(f"a limit must leave at least 1 image, got {limit}")
    return sorted(in_turn(keys, labels, seed)[:limit])


def in_turn(keys: Sequence[str], labels: Sequence[int], seed: int) -> list[int]:
    """List all images in the order in which a growing limit includes them.

    Classes alternate, with the images of a class in the order of a keyed hash. The choice depends
    on the seed and the keys alone, and a smaller limit is a subset of a larger one.
    """

    def order(text: str) -> bytes:
        return hashlib.sha256(f"{seed}/{text}".encode()).digest()

    by_class: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        by_class[label].append(index)
    turns = []
    for label, members in by_class.items():
        queue = sorted(members, key=lambda index: order(keys[index]))
        turns += [(turn, order(f"class {label}"), index) for turn, index in enumerate(queue)]
    return [index for _, _, index in sorted(turns)]


@dataclass(frozen=True)
class DataRequest:
    """Request to a data source."""

    path: Path | None = None  # text after the colon
    split: str | None = None  # None: the source's usual evaluation split
    download: bool = False  # True if the network may be used
    by_name: bool = False  # True with a class map: even integer classes are names


@dataclass(frozen=True)
class DataSource:
    """Data source, registered by the name before the colon."""

    summary: str  # one line for `shiftbench list datasets`
    load: Callable[[DataRequest], ImageSet]
    rendered: bool = False  # True if its sets render images at any offset


DATA_SOURCES: Registry[DataSource] = Registry("data set")


def as_text(name: str) -> str:
    r"""Return a file name as printable text; bytes that are not UTF-8 become `\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def set_name(folder: str) -> str:
    """Return the name of a user's data set, which is never that of a source."""
    name = as_text(folder)
    return f"folder-{name}" if not name or name in DATA_SOURCES else name


def numbered(count: int) -> list[str]:
    """Return the indices as names of classes without names."""
    return [str(index) for index in range(count)]


def numbered_keys(split: str, count: int) -> list[str]:
    """Return keys of images without names, in a fixed order: `test/00042`."""
    return [f"{split}/{index:05d}" for index in range(count)]
