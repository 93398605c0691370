"""`folder:PATH`: image files with one folder per class."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL.Image import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from shiftbench.datasets.base import SOURCES, Request, Source
from shiftbench.datasets.images import read_image
from shiftbench.errors import DataError, UsageError

SPLITS = ("val", "test", "train")  # in order of preference, when the user names none


@dataclass(frozen=True)
class FileSet:
    """Image files of one split; a file's key is its path below `root`, with slashes."""

    name: str
    split: str
    root: Path
    keys: Sequence[str]
    labels: Sequence[int]
    class_names: Sequence[str]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        return read_image(self.root / self.keys[index]), self.labels[index]

    @cached_property
    def _sizes(self) -> list[int]:
        return [(self.root / key).stat().st_size for key in self.keys]

    def fingerprint(self, *, content: bool = False) -> str:
        """Digest of every key, label and file size; with `content`, of the bytes as well."""
        digest = hashlib.sha256(f"{self.name}/{self.split}/{len(self)}".encode())
        for key, label, size in zip(self.keys, self.labels, self._sizes, strict=True):
            digest.update(f"\n{key}\0{label}\0{size}".encode())
            if content:
                digest.update(hashlib.sha256((self.root / key).read_bytes()).digest())
        return digest.hexdigest()


def split_folder(path: Path | None, split: str | None, *, name: str) -> tuple[Path, str]:
    """Finds the folder that holds the class folders, and the name of its split."""
    if path is None:
        raise UsageError(f"data {name!r} needs a folder: write it as {name}:PATH")
    if not path.is_dir():
        raise DataError(f"there is no folder {path}: check the path after {name!r}")
    wanted = SPLITS if split is None else (split,)
    for candidate in wanted:
        if (path / candidate).is_dir():
            return path / candidate, candidate
    if split is not None and path.name != split:
        raise DataError(f"there is no folder {split!r} in {path}: give the folder itself instead")
    return path, path.name if path.name in SPLITS else "all"


def class_folders(root: Path, *, name: str) -> list[str]:
    """The names of the class folders, sorted; none at all is an error."""
    folders = sorted(e.name for e in os.scandir(root) if e.is_dir() and e.name[0] != ".")
    if not folders:
        raise DataError(f"expected one folder per class in {root}, found none: check {name}:PATH")
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
    name: str, split: str, root: Path, classes: Mapping[str, int], class_names: Sequence[str]
) -> FileSet:
    """Collects the images of the class folders in `classes` (name -> index)."""
    keys: list[str] = []
    labels: list[int] = []
    for folder, label in classes.items():
        found = find_images(root, folder)
        keys += found
        labels += [label] * len(found)
    if not keys:
        endings = ", ".join(IMG_EXTENSIONS[:4])
        raise DataError(f"there are no images ({endings}, ...) in the class folders of {root}")
    return FileSet(name, split, root, keys, labels, class_names)


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


def _classes(folders: Sequence[str], class_map: Path | None) -> dict[str, int]:
    if class_map is not None:
        known = read_class_map(class_map)
        missing = [folder for folder in folders if folder not in known]
        if missing:
            raise DataError(
                f"the class map {class_map} has no entry for {len(missing)} of {len(folders)} "
                f"folders, such as {missing[0]!r}: add them"
            )
        return {folder: known[folder] for folder in folders}
    named = [folder for folder in folders if not folder.isdecimal()]
    if named:
        raise UsageError(
            f"folder {named[0]!r} is not a class index: name the folders by integers, give "
            '--class-map FILE (JSON such as {"cat": 0, "dog": 1}, or CSV), or use imagenet:PATH '
            "for wnid folders"
        )
    return {folder: int(folder) for folder in sorted(folders, key=int)}


def load_folder(request: Request) -> FileSet:
    """`folder:PATH`: integer folder names are class indices, others need a class map."""
    root, split = split_folder(request.path, request.split, name="folder")
    classes = _classes(class_folders(root, name="folder"), request.class_map)
    names = [str(index) for index in range(max(classes.values()) + 1)]
    for folder, index in classes.items():
        names[index] = folder
    return file_set("folder", split, root, classes, names)


SOURCES.register(
    "folder",
    Source(
        "folder", "folder:PATH, one folder per class, named by index or --class-map", load_folder
    ),
)
