"""`masks:PATH`: image files in `images/`, and a mask of class indices for each in `masks/`.

Class names are read from the key `names` or `classes` of a YAML file in the folder. Pixels of the
value 255, of a class named `unlabeled`, `ignore` or `void`, or of no class are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from typing_extensions import override

from shiftbench.data.annotated import AnnotatedSet, beside, names_in, require_folder
from shiftbench.data.base import ALL, DATA_SOURCES, DataRequest, DataSource, Target, set_name
from shiftbench.data.images import unreadable
from shiftbench.errors import DataError

IGNORED = 255
IGNORED_NAMES = ("unlabeled", "ignore", "void")
MODES = ("L", "P", "I", "I;16")  # of an image of indices


@dataclass(frozen=True, eq=False)
class MaskSet(AnnotatedSet):
    """Image files with a mask of class indices each."""

    masks: Sequence[Path] = field(kw_only=True)

    task = "segmentation"

    @override
    def used_classes(self) -> set[int]:
        # Without names the classes are known only from the masks, which are checked as they load.
        return super().used_classes() if self.by_order else set()

    @override
    def target(self, index: int) -> Target:
        file = self.masks[index]
        try:
            with Image.open(file) as image:
                mode, values = image.mode, np.asarray(image).astype(np.int64)
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, ...
            raise unreadable(str(file), error) from error
        if mode not in MODES:
            raise DataError(
                f"expected a mask of class indices (one channel), got mode {mode} in {file}. Save "
                "the indices, not colors"
            )
        known = np.append(self.lookup, -1)
        mask = known[np.where(values < len(self.lookup), values, len(self.lookup))]
        return Target(np.empty((0, 4)), np.empty(0, np.int64), mask, self.keys[index])


def load_masks(request: DataRequest) -> MaskSet:
    """Pair images with masks by their names; images without a mask are left out."""
    folder = require_folder(request, "masks")
    images, masks, names = beside(folder, "masks", request.split)
    files = {file.stem: file for file in sorted(masks.iterdir()) if file.is_file()}
    names = [name for name in names if Path(name).stem in files]
    if not names:
        raise DataError(f"expected masks named like the images in {masks}, got none")
    class_names, named = names_in(folder, "*.yaml", IGNORED)
    lookup = np.arange(len(class_names))
    lookup[IGNORED:] = -1
    for index, name in enumerate(class_names):
        if named and (name.casefold() in IGNORED_NAMES or name == str(index)):
            lookup[index] = -1
    return MaskSet(
        set_name(folder.resolve().name),
        request.split or ALL,
        names,
        [0] * len(names),
        class_names,
        images,
        names,
        by_order=named,
        lookup=lookup,
        masks=[files[Path(name).stem] for name in names],
    )


DATA_SOURCES.register(
    "masks", DataSource("masks:PATH, images/ and masks/ of class indices", load_masks)
)
