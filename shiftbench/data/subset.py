"""Parts of a data set, and the class-balanced part that `--limit` takes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from PIL.Image import Image

from shiftbench.data.base import ImageSet, RenderedSet
from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset

if TYPE_CHECKING:
    from torch import Tensor

    from shiftbench.shifts import Views


@dataclass(frozen=True, eq=False)
class Subset(ImageSet):
    """Some images of a data set, with their keys; the classes are those of the whole."""

    whole: ImageSet
    indices: Sequence[int]  # into `whole`

    def image(self, index: int) -> Image:
        """As the whole decodes it."""
        return self.whole[self.indices[index]][0]

    def has_size(self, side: int) -> bool:
        """Whether the images of the whole have this size."""
        return self.whole.has_size(side)

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

    def views(self, indices: Sequence[int], view: int, reach: int = 1, wider: int = 0) -> Views:
        """As the whole prepares them."""
        whole = cast("RenderedSet", self.whole)
        return whole.views([self.indices[i] for i in indices], view, reach, wider)


def subset(dataset: ImageSet, indices: Sequence[int]) -> Subset:
    """The chosen images; a set that can be rendered again still can."""
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
    """Chooses `limit` images that spread over the classes as evenly as these allow.

    Classes take turns, each giving its images in the order of a keyed hash: the choice depends
    on the seed and the keys alone, and a smaller limit is a part of a larger one.

    Returns:
        Indices, ascending; all of them when there are no more than `limit`.
    """
    if limit < 1:
        raise UsageError(f"a limit must leave at least 1 image, got {limit}")
    return sorted(in_turn(keys, labels, seed)[:limit])


def in_turn(keys: Sequence[str], labels: Sequence[int], seed: int) -> list[int]:
    """Every image in the order in which a growing limit takes them."""

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
