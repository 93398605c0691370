"""`folder:PATH`: image files with one folder per class."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL.Image import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from shiftbench.data.base import DATA_SOURCES, DataRequest, DataSource
from shiftbench.data.fingerprint import content_digest
from shiftbench.data.images import all_sized, read_image
from shiftbench.errors import DataError, UsageError

SPLITS = ("val", "test", "train")  # in order of preference, when the user names none
ALL = "all"  # the split of a folder that has no splits


@dataclass(frozen=True)
class FileSet:
    """Image files of one split; a file's key is its path below `root`, with slashes."""

    name: str
    split: str
    root: Path
    keys: Sequence[str]
    labels: Sequence[int]
    class_names: Sequence[str]
    by_order: bool = False  # classes count in the order of their names, which a model may not share

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        return read_image(self.root / self.keys[index]), self.labels[index]

    @property
    def _files(self) -> list[Path]:
        return [self.root / key for key in self.keys]

    def has_size(self, side: int) -> bool:
        """By the headers of the files."""
        return all_sized(self._files, side)

    def fingerprint(self, *, verify: bool = False) -> str:
        """Digest of every key, label and file."""
        digest = hashlib.sha256(content_digest(self._files, verify=verify).encode())
        for key, label in zip(self.keys, self.labels, strict=True):
            digest.update(f"\n{key}\0{label}".encode())
        return digest.hexdigest()


def set_name(name: str) -> str:
    """The name of a data set of the user's own, which never is that of a source."""
    return f"folder-{name}" if not name or name in DATA_SOURCES else name


@dataclass(frozen=True)
class SplitFolder:
    """Where the images of one split lie."""

    root: Path  # holds the class folders
    split: str
    home: Path  # the whole data set's folder, which gives it its name

    @property
    def name(self) -> str:
        """`/data/birds/val` and `/data/birds` are `birds`; no folder takes a source's name."""
        return set_name(self.home.resolve().name)


def split_folder(path: Path | None, split: str | None, *, source: str) -> SplitFolder:
    """Finds the folder that holds the class folders, and the name of its split."""
    if path is None:
        raise UsageError(f"data {source!r} needs a folder: write it as {source}:PATH")
    if not path.is_dir():
        raise DataError(f"there is no folder {path}: check the path after {source!r}")
    wanted = SPLITS if split is None else () if split == ALL else (split,)
    for candidate in wanted:
        if (path / candidate).is_dir():
            return SplitFolder(path / candidate, candidate, path)
    own = path.resolve()
    if own.name in wanted:
        return SplitFolder(path, own.name, own.parent)
    if split not in (None, ALL):
        raise DataError(f"there is no folder {split!r} in {path}: give the folder itself instead")
    return SplitFolder(path, ALL, path)


def class_folders(root: Path, *, source: str) -> list[str]:
    """The names of the class folders, sorted; none at all is an error."""
    folders = sorted(e.name for e in os.scandir(root) if e.is_dir() and e.name[0] != ".")
    if not folders:
        raise DataError(f"expected one folder per class in {root}, found none: check {source}:PATH")
    return folders


def find_images(root: Path, folder: str) -> list[str]:
    """Keys of the images anywhere below a class folder, sorted."""
    keys = []
    for place, _, names in os.walk(root / folder):
        below = Path(place).relative_to(root).as_posix()
        keys += [
            f"{below}/{name}"
            for name in names
            if name.lower().endswith(IMG_EXTENSIONS) and not name.startswith(".")
        ]
    return sorted(keys)


def file_set(
    name: str, place: SplitFolder, classes: Mapping[str, int], class_names: Sequence[str]
) -> FileSet:
    """Collects the images of the class folders in `classes` (name -> index)."""
    root = place.root
    keys: list[str] = []
    labels: list[int] = []
    for folder, label in classes.items():
        found = find_images(root, folder)
        keys += found
        labels += [label] * len(found)
    if not keys:
        endings = ", ".join(IMG_EXTENSIONS[:4])
        raise DataError(f"there are no images ({endings}, ...) in the class folders of {root}")
    return FileSet(name, place.split, root, keys, labels, class_names)


def read_class_map(path: Path) -> dict[str, int]:
    """Reads folder name -> class index: a JSON object, a JSON list of names, or CSV rows."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(text.splitlines())) if path.suffix == ".csv" else _json_rows(text)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the class map {path}: {error}") from error
    if rows and not str(rows[0][-1]).strip().isdecimal():
        rows = rows[1:]  # a CSV may begin with a row of titles
    bad = next((r for r in rows if len(r) != 2 or not str(r[1]).strip().isdecimal()), None)
    if bad is not None or not rows:
        got = "nothing" if bad is None else repr(bad)
        raise DataError(
            f"the class map {path} must pair folder names with class indices, got {got}"
        )
    return {str(folder).strip(): int(index) for folder, index in rows}


def _json_rows(text: str) -> list[list[Any]]:
    content = json.loads(text)
    if isinstance(content, list):
        return [[name, index] for index, name in enumerate(content)]
    if isinstance(content, dict):
        return [list(pair) for pair in content.items()]
    raise ValueError(f"expected a JSON object or list, got {type(content).__name__}")


def _mapped(folders: Sequence[str], class_map: Path) -> dict[str, int]:
    known = read_class_map(class_map)
    missing = [folder for folder in folders if folder not in known]
    if missing:
        raise DataError(
            f"the class map {class_map} has no entry for {len(missing)} of {len(folders)} "
            f"folders, such as {missing[0]!r}: add them"
        )
    return {folder: known[folder] for folder in folders}


def _numbered(folders: Sequence[str]) -> dict[str, int] | None:
    """Folders named by their index; None where they have other names."""
    named = [folder for folder in folders if not folder.isdecimal()]
    if len(named) == len(folders):
        return None
    if named:
        raise UsageError(
            f"folder {named[0]!r} is not a class index, and others are: name all of them by "
            'integers, or give --class-map FILE (JSON such as {"cat": 0, "dog": 1}, or CSV)'
        )
    return {folder: int(folder) for folder in sorted(folders, key=int)}


def load_folder(request: DataRequest) -> FileSet:
    """`folder:PATH`: folders are class indices, or names that count in alphabetical order.

    The second is the custom of torchvision's ImageFolder, and so of most training scripts.
    """
    place = split_folder(request.path, request.split, source="folder")
    folders = class_folders(place.root, source="folder")
    if request.class_map is not None:
        classes = _mapped(folders, request.class_map)
    else:
        numbered = _numbered(folders)
        if numbered is None:
            ordered = {folder: index for index, folder in enumerate(folders)}
            return replace(file_set(place.name, place, ordered, folders), by_order=True)
        classes = numbered
    names = [str(index) for index in range(max(classes.values()) + 1)]
    for folder, index in classes.items():
        names[index] = folder
    return file_set(place.name, place, classes, names)


DATA_SOURCES.register(
    "folder",
    DataSource(
        "folder", "folder:PATH, one folder per class: an index, a name, or --class-map", load_folder
    ),
)
