"""`hfds:NAME_OR_PATH`: data sets of the Hugging Face datasets library, from the hub or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from shiftbench.data.base import (
    DATA_SOURCES,
    DataRequest,
    DataSource,
    numbered,
    numbered_keys,
    set_name,
)
from shiftbench.data.images import EncodedSet
from shiftbench.errors import DataError, UsageError, first_line
from shiftbench.registry import unknown_name

SPLITS = ("validation", "val", "test", "train")  # in order of preference
SAVED = ("dataset_info.json", "dataset_dict.json")  # file written by `save_to_disk`


@dataclass(frozen=True, eq=False)
class HubSet(EncodedSet):
    """One split of a data set; the key of an image is its index in the library's order."""

    images: Any  # a table of one column, the images, not decoded: {"bytes", "path"} per row
    column: str  # name of the column

    def encoded(self, index: int) -> Path | BytesIO:
        """Return the bytes of a row, or the file that it names."""
        row = self.images[index][self.column]
        return BytesIO(row["bytes"]) if row["bytes"] else Path(row["path"])


def load_hub_set(request: DataRequest) -> HubSet:
    """Open a data set of the library; the network is used only if the request allows it."""
    if request.path is None:
        raise UsageError("data 'hfds' needs a name or a folder: write it as hfds:NAME_OR_PATH")
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"hfds:{request.path} needs the datasets library: pip install 'shiftbench[hfds]'"
        ) from error
    place = request.path
    if not place.is_dir() and not request.download:
        raise DataError(
            f"there is no folder {place}: allow a download of that name from the hub (--download), "
            "or check the path"
        )
    name = set_name(place.resolve().name if place.is_dir() else place.name)
    try:
        table, split = _open(datasets, place, request.split)
    except UsageError:
        raise
    except Exception as error:  # exceptions of the library depend on the file format
        raise DataError(f"cannot open hfds:{place}: {first_line(error)}") from error
    image, label = _columns(datasets, table, name)
    kind = table.features[label]
    labels = [-1 if value is None else int(value) for value in table[label]]
    if min(labels, default=-1) < 0:
        raise DataError(f"the split {split} of {name} has images without labels: choose another")
    names = getattr(kind, "names", None) or numbered(max(labels) + 1)
    images = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    keys = numbered_keys(split, len(labels))
    by_order = not all(map(str.isdecimal, names))
    return HubSet(name, split, keys, labels, names, images, image, by_order=by_order)


def _open(datasets: Any, place: Path, split: str | None) -> tuple[Any, str]:
    if any((place / name).is_file() for name in SAVED):
        saved = datasets.load_from_disk(str(place))
        if isinstance(saved, datasets.Dataset):
            return saved, str(saved.split or "all")
        chosen = _choose(place, list(saved), split)
        return saved[chosen], chosen
    chosen = _choose(place, datasets.get_dataset_split_names(str(place)), split)
    return datasets.load_dataset(str(place), split=chosen), chosen


def _choose(place: Path, there: Sequence[str], split: str | None) -> str:
    if split is None:
        return next((name for name in SPLITS if name in there), there[0])
    if split not in there:
        raise unknown_name(f"split of {place.name}", split, there)
    return split


def _columns(datasets: Any, table: Any, name: str) -> tuple[str, str]:
    """Return the columns of images and of labels."""
    kinds = table.features
    images = [key for key, kind in kinds.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
    labels += [key for key in ("label", "labels") if key in kinds and key not in labels]
    if not images or not labels:
        raise DataError(
            f"expected a column of images and one of class labels in {name}, got "
            f"{', '.join(kinds)}: choose a data set for image classification"
        )
    return images[0], labels[0]


DATA_SOURCES.register(
    "hfds",
    DataSource("hfds:NAME_OR_PATH, image classification sets of Hugging Face", load_hub_set),
)
