"""torchvision's sets of (image, label), by name: `cifar10:ROOT`, `flowers102:ROOT`, ..."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image
from torchvision import datasets

from shiftbench.data.base import DATA_SOURCES, DataRequest, DataSource
from shiftbench.data.fingerprint import content_digest
from shiftbench.data.images import all_sized, to_rgb, unreadable
from shiftbench.errors import DataError
from shiftbench.files import cache_folder
from shiftbench.registry import unknown_name

TRAIN_FLAG: Mapping[str, Any] = {"test": {"train": False}, "train": {"train": True}}


def _splits(*names: str) -> Mapping[str, Any]:
    return {name: {"split": name} for name in names}


@dataclass(frozen=True)
class Entry:
    """How torchvision spells a data set."""

    name: str
    kind: type[Any]
    splits: Mapping[str, Mapping[str, Any]]  # split -> constructor arguments; the first is default
    checked: bool = False  # torchvision refuses files of another content whenever it opens them


ENTRIES = (
    Entry("cifar10", datasets.CIFAR10, TRAIN_FLAG, checked=True),
    Entry("cifar100", datasets.CIFAR100, TRAIN_FLAG, checked=True),
    Entry("stanford_cars", datasets.StanfordCars, _splits("test", "train")),
    Entry("country211", datasets.Country211, _splits("test", "valid", "train")),
    Entry("dtd", datasets.DTD, _splits("test", "val", "train")),
    Entry("eurosat", datasets.EuroSAT, {"all": {}}),
    Entry("fashion_mnist", datasets.FashionMNIST, TRAIN_FLAG),
    Entry("fgvc_aircraft", datasets.FGVCAircraft, _splits("test", "val", "train", "trainval")),
    Entry("flowers102", datasets.Flowers102, _splits("test", "val", "train")),
    Entry("food101", datasets.Food101, _splits("test", "train")),
    Entry("gtsrb", datasets.GTSRB, _splits("test", "train")),
    Entry("imagenette", datasets.Imagenette, _splits("val", "train")),
    Entry("kmnist", datasets.KMNIST, TRAIN_FLAG),
    Entry("mnist", datasets.MNIST, TRAIN_FLAG),
    Entry("oxford_iiit_pet", datasets.OxfordIIITPet, _splits("test", "trainval")),
    Entry("rendered_sst2", datasets.RenderedSST2, _splits("test", "val", "train")),
    Entry("stl10", datasets.STL10, _splits("test", "train"), checked=True),
    Entry("sun397", datasets.SUN397, {"all": {}}),
    Entry("svhn", datasets.SVHN, _splits("test", "train", "extra"), checked=True),
)


@dataclass(frozen=True)
class TorchvisionSet:
    """A torchvision data set behind the `ImageSet` seam; an image's key is its number."""

    name: str
    split: str
    data: Any  # the torchvision data set itself
    checked: bool = False  # see `Entry`

    def __len__(self) -> int:
        return len(self.data)

    @cached_property
    def keys(self) -> Sequence[str]:
        """`test/00042`: torchvision fixes the order of each split."""
        return [f"{self.split}/{index:05d}" for index in range(len(self))]

    @cached_property
    def labels(self) -> Sequence[int]:
        """Labels without decoding, from wherever this kind of set keeps them."""
        for attribute in ("targets", "labels", "_labels"):
            if hasattr(self.data, attribute):
                return [int(label) for label in getattr(self.data, attribute)]
        for attribute in ("_samples", "samples", "_image_files"):
            if hasattr(self.data, attribute):
                return [int(label) for _, label in getattr(self.data, attribute)]
        raise AssertionError(f"{type(self.data).__name__} keeps its labels in an unknown place")

    @cached_property
    def class_names(self) -> Sequence[str]:
        """The names torchvision knows, or the indices where it knows none."""
        names = getattr(self.data, "classes", None)
        if names is None:
            return [str(index) for index in range(max(self.labels) + 1)]
        return [name if isinstance(name, str) else ", ".join(name) for name in names]

    def __getitem__(self, index: int) -> tuple[Image, int]:
        try:
            image, label = self.data[index]
            return to_rgb(image), int(label)
        except (OSError, SyntaxError, ValueError) as error:
            raise unreadable(f"{self.keys[index]} of {self.name}", error) from error

    @property
    def _pixels(self) -> NDArray[np.uint8] | None:
        """Every image at once, in sets that are held in memory."""
        pixels = getattr(self.data, "data", None)
        return None if pixels is None else np.asarray(pixels)

    @property
    def _files(self) -> Sequence[Path]:
        """One file per image, in sets that are read from them; torchvision has several words."""
        for attribute in ("_samples", "samples", "_image_files", "_images"):
            files = getattr(self.data, attribute, None)
            if files is not None:
                return [Path(item[0] if isinstance(item, tuple) else item) for item in files]
        return ()

    def has_size(self, side: int) -> bool:
        """By the headers of files; images that are held in memory are all as large as the first."""
        if self._pixels is None:
            return all_sized(self._files, side)
        return self[0][0].size == (side, side)

    def fingerprint(self, *, verify: bool = False) -> str:
        """Digest of name, split, labels and content.

        The files of a set that torchvision checks need not be read: there is one version of them.
        """
        digest = hashlib.sha256(f"{self.name}/{self.split}/{len(self)}".encode())
        digest.update(repr(list(self.labels)).encode())
        if not self.checked:
            pixels = self._pixels
            digest.update(
                content_digest(self._files, verify=verify).encode()
                if pixels is None
                else np.ascontiguousarray(pixels).tobytes()
            )
        return digest.hexdigest()


def default_root() -> Path:
    """Where data sets live when the user names no folder: `$SHIFTBENCH_DATA`, or a cache."""
    place = os.environ.get("SHIFTBENCH_DATA")
    return Path(place).expanduser() if place else cache_folder() / "data"


def load_torchvision(entry: Entry, request: DataRequest) -> TorchvisionSet:
    """Opens a torchvision data set; the network is used only when the request allows it."""
    split = request.split or next(iter(entry.splits))
    if split not in entry.splits:
        raise unknown_name(f"split of {entry.name}", split, entry.splits)
    root = request.path or default_root()
    if request.download:
        root.mkdir(parents=True, exist_ok=True)
    try:
        data = entry.kind(str(root), download=request.download, **entry.splits[split])
        return TorchvisionSet(entry.name, split, data, entry.checked)
    except Exception as error:  # sources differ in what they raise for absent or corrupt files
        cause = error if isinstance(error, ImportError) else error.__context__
        if isinstance(cause, ImportError):
            raise DataError(f"{entry.name} needs a package that is absent: {cause}") from error
        if request.download:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(
                f"could not download {entry.name}: {reason}. Fetch it by hand and give its folder "
                f"as {entry.name}:ROOT"
            ) from error
        raise DataError(
            f"{entry.name} is not in {root} as torchvision expects it: allow the download "
            f"(--download), or give its folder as {entry.name}:ROOT"
        ) from error


for _entry in ENTRIES:
    DATA_SOURCES.register(
        _entry.name,
        DataSource(
            _entry.name,
            f"{_entry.name}[:ROOT], torchvision's {_entry.kind.__name__}, "
            f"{next(iter(_entry.splits))} split",
            partial(load_torchvision, _entry),
        ),
    )
