"""torchvision's sets of (image, label), by name: `cifar10:ROOT`, `flowers102:ROOT`, ..."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from shiftbench.data.base import (
    ALL,
    DATA_SOURCES,
    DataRequest,
    DataSource,
    ImageSet,
    content_digest,
    numbered,
    numbered_keys,
)
from shiftbench.data.images import all_sized, to_rgb, unreadable
from shiftbench.errors import DataError, first_line
from shiftbench.files import cache_folder
from shiftbench.registry import unknown_name

TRAIN_FLAG: Mapping[str, Any] = {"test": {"train": False}, "train": {"train": True}}


def _splits(*names: str) -> Mapping[str, Any]:
    return {name: {"split": name} for name in names}


@dataclass(frozen=True)
class Entry:
    """Class and arguments of a data set in torchvision."""

    name: str
    kind: str  # the class in torchvision.datasets
    splits: Mapping[str, Mapping[str, Any]]  # split -> constructor arguments; the first is default
    checked: bool = False  # torchvision compares the checksums of files whenever it opens them


ENTRIES = (
    Entry("cifar10", "CIFAR10", TRAIN_FLAG, checked=True),
    Entry("cifar100", "CIFAR100", TRAIN_FLAG, checked=True),
    Entry("stanford_cars", "StanfordCars", _splits("test", "train")),
    Entry("country211", "Country211", _splits("test", "valid", "train")),
    Entry("dtd", "DTD", _splits("test", "val", "train")),
    Entry("eurosat", "EuroSAT", {ALL: {}}),
    Entry("fashion_mnist", "FashionMNIST", TRAIN_FLAG),
    Entry("fgvc_aircraft", "FGVCAircraft", _splits("test", "val", "train", "trainval")),
    Entry("flowers102", "Flowers102", _splits("test", "val", "train")),
    Entry("food101", "Food101", _splits("test", "train")),
    Entry("gtsrb", "GTSRB", _splits("test", "train")),
    Entry("imagenette", "Imagenette", _splits("val", "train")),
    Entry("kmnist", "KMNIST", TRAIN_FLAG),
    Entry("mnist", "MNIST", TRAIN_FLAG),
    Entry("oxford_iiit_pet", "OxfordIIITPet", _splits("test", "trainval")),
    Entry("rendered_sst2", "RenderedSST2", _splits("test", "val", "train")),
    Entry("stl10", "STL10", _splits("test", "train"), checked=True),
    Entry("sun397", "SUN397", {ALL: {}}),
    Entry("svhn", "SVHN", _splits("test", "train", "extra"), checked=True),
)


@dataclass(frozen=True, eq=False)
class TorchvisionSet(ImageSet):
    """A torchvision data set; the key of an image is its index in torchvision's order."""

    data: Any  # the torchvision data set itself
    checked: bool = False  # see `Entry`

    def image(self, index: int) -> Image:
        """Return an image as torchvision decodes it."""
        try:
            return to_rgb(self.data[index][0])
        except (OSError, SyntaxError, ValueError) as error:
            raise unreadable(f"{self.keys[index]} of {self.name}", error) from error

    @property
    def _pixels(self) -> NDArray[np.uint8] | None:
        """All images of a data set in memory."""
        pixels = getattr(self.data, "data", None)
        return None if pixels is None else np.asarray(pixels)

    @property
    def _files(self) -> Sequence[Path]:
        """One file per image, for data sets that read files; torchvision has several attributes."""
        for attribute in ("_samples", "samples", "_image_files", "_images"):
            files = getattr(self.data, attribute, None)
            if files is not None:
                return [Path(item[0] if isinstance(item, tuple) else item) for item in files]
        return ()

    def has_size(self, side: int) -> bool:
        """Return True if some image has this side, by file headers or the first image in memory."""
        if self._pixels is None:
            return all_sized(self._files, side)
        return self.image(0).size == (side, side)

    def load(self, index: int) -> tuple[Image, int]:
        """Decode one image; its digest is of its file, if it has one, otherwise of its pixels."""
        files = self._files
        if not files:
            return super().load(index)
        return self.image(index), content_digest(files[index].read_bytes())


def torchvision_set(name: str, split: str, data: Any, *, checked: bool = False) -> TorchvisionSet:
    """Wrap a torchvision data set as an `ImageSet`."""
    labels = _labels(data)
    # Imagenette is identified by its wnids, like its folders: descriptions of a class differ.
    names = getattr(data, "wnids", None) or getattr(data, "classes", None)
    words = [n if isinstance(n, str) else ", ".join(n) for n in names or ()]
    return TorchvisionSet(
        name,
        split,
        numbered_keys(split, len(data)),
        labels,
        words or numbered(max(labels) + 1),
        data,
        checked,
        by_order=bool(words),
    )


def _labels(data: Any) -> list[int]:
    """Return the labels without decoding, from the attribute that the data set has."""
    for attribute in ("targets", "labels", "_labels"):
        if hasattr(data, attribute):
            return [int(label) for label in getattr(data, attribute)]
    for attribute in ("_samples", "samples", "_image_files"):
        if hasattr(data, attribute):
            return [int(label) for _, label in getattr(data, attribute)]
    raise AssertionError(f"{type(data).__name__} has its labels in an unknown attribute")


def default_root() -> Path:
    """Return the default folder of data sets: `$SHIFTBENCH_DATA`, or a cache."""
    place = os.environ.get("SHIFTBENCH_DATA")
    return Path(place).expanduser() if place else cache_folder() / "data"


def load_torchvision(entry: Entry, request: DataRequest) -> TorchvisionSet:
    """Open a torchvision data set; the network is used only if the request allows it."""
    from torchvision import datasets

    split = request.split or next(iter(entry.splits))
    if split not in entry.splits:
        raise unknown_name(f"split of {entry.name}", split, entry.splits)
    root = request.path or default_root()
    if request.download:
        root.mkdir(parents=True, exist_ok=True)
    try:
        kind = getattr(datasets, entry.kind)
        data = kind(str(root), download=request.download, **entry.splits[split])
    except Exception as error:  # the exceptions for absent or corrupt files differ between sources
        cause = error if isinstance(error, ImportError) else error.__context__
        if isinstance(cause, ImportError):
            raise DataError(f"{entry.name} needs a package that is absent: {cause}") from error
        if request.download:
            raise DataError(
                f"could not download {entry.name} ({first_line(error)}): download it manually "
                f"and pass its folder as {entry.name}:ROOT"
            ) from error
        folder = root / str(getattr(getattr(datasets, entry.kind), "base_folder", "no such folder"))
        if folder.is_dir():
            raise DataError(
                f"cannot read {entry.name} in {folder}: a file is missing or its checksum differs "
                f"({first_line(error)}). Remove the folder and pass --download"
            ) from error
        raise DataError(
            f"{entry.name} is not in {root} as torchvision expects it: allow the download "
            f"(--download), or pass its folder as {entry.name}:ROOT"
        ) from error
    return torchvision_set(entry.name, split, data, checked=entry.checked)


for _entry in ENTRIES:
    _usual = next(iter(_entry.splits))
    _summary = f"{_entry.name}[:ROOT], torchvision's {_entry.kind}, {_usual} split"
    DATA_SOURCES.register(_entry.name, DataSource(_summary, partial(load_torchvision, _entry)))
