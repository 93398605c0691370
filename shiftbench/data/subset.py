"""Parts of a data set, and the class-balanced part that `--limit` takes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from PIL.Image import Image
from torch import Tensor

from shiftbench.data.base import ImageSet, RenderedSet
from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.shifts.base import Views


@dataclass(frozen=True)
class Subset:
    """Some images of a data set, with their keys."""

    whole: ImageSet
    indices: Sequence[int]  # into `whole`

    @property
    def name(self) -> str:
        """The name of the whole."""
        return self.whole.name

    @property
    def split(self) -> str:
        """The split of the whole."""
        return self.whole.split

    @property
    def class_names(self) -> Sequence[str]:
        """The classes of the whole, present or not."""
        return self.whole.class_names

    @cached_property
    def keys(self) -> Sequence[str]:
        """The keys the images have in the whole."""
        return [self.whole.keys[index] for index in self.indices]

    @cached_property
    def labels(self) -> Sequence[int]:
        """The labels of the chosen images."""
        return [self.whole.labels[index] for index in self.indices]

    def has_size(self, side: int) -> bool:
        """Whether the images of the whole have this size."""
        return self.whole.has_size(side)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        return self.whole[self.indices[index]]

    def fingerprint(self, *, verify: bool = False) -> str:
        """Digest of the whole and of which images were chosen."""
        digest = hashlib.sha256(self.whole.fingerprint(verify=verify).encode())
        digest.update("\n".join(self.keys).encode())
        return digest.hexdigest()


class RenderedSubset(Subset):
    """Some images of a data set that can be rendered again."""

    def render(
        self, indices: Sequence[int], view: int, margin: int = 0, offset: Offset = ORIGIN
    ) -> Tensor:
        """As the whole renders them."""
        whole = cast("RenderedSet", self.whole)
        return whole.render([self.indices[i] for i in indices], view, margin, offset)

    def views(self, indices: Sequence[int], view: int, reach: int = 1) -> Views:
        """As the whole prepares them."""
        whole = cast("RenderedSet", self.whole)
        return whole.views([self.indices[i] for i in indices], view, reach)


def subset(dataset: ImageSet, indices: Sequence[int]) -> Subset:
    """The chosen images; a set that can be rendered again still can."""
    kind = RenderedSubset if isinstance(dataset, RenderedSet) else Subset
    return kind(dataset, list(indices))


def balanced(keys: Sequence[str], labels: Sequence[int], limit: int, seed: int) -> list[int]:
    """Chooses `limit` images that spread over the classes as evenly as these allow.

    Classes take turns, each giving its images in the order of a keyed hash: the choice depends
    on the seed and the keys alone, and a smaller limit is a part of a larger one.

    Returns:
        Indices, ascending; all of them when there are no more than `limit`.
    """
    if limit < 1:
        raise UsageError(f"a limit must leave at least 1 image, got {limit}")

    def order(text: str) -> bytes:
        return hashlib.sha256(f"{seed}/{text}".encode()).digest()

    by_class: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        by_class[label].append(index)
    turns = []
    for label, members in by_class.items():
        queue = sorted(members, key=lambda index: order(keys[index]))
        turns += [(turn, order(f"class {label}"), index) for turn, index in enumerate(queue)]
    return sorted(index for _, _, index in sorted(turns)[:limit])
