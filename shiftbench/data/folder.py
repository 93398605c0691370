"""`folder:PATH`: image files with one folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shiftbench.data.base import ALL, DATA_SOURCES, DataRequest, DataSource, as_text, set_name
from shiftbench.data.images import (
    ENDINGS,
    OTHER_ENDINGS,
    EncodedSet,
    header_problem,
    warn_left_out,
)
from shiftbench.data.labels import class_indices, names_by_index
from shiftbench.errors import DataError, UsageError

SPLITS = ("val", "test", "train")  # in order of preference, if the user names none


@dataclass(frozen=True, eq=False)
class FileSet(EncodedSet):
    """Image files; the key of a file is its path below `root`, with slashes."""

    root: Path
    names: Sequence[str]  # the paths themselves, which need not be UTF-8

    def encoded(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root / self.names[index]

    def bad_headers(self, indices: Iterable[int]) -> dict[int, str]:
        """Return the reason for each file whose header cannot be read."""
        found = ((index, header_problem(self.encoded(index))) for index in indices)
        return {index: problem for index, problem in found if problem}


class UnlabeledSet(FileSet):
    """Image files without labels."""

    task = ""


@dataclass(frozen=True)
class SplitFolder:
    """Folder of the images of one split."""

    root: Path  # contains the class folders
    split: str
    name: str  # of the data set: `/data/birds/val` and `/data/birds` are `birds`


def split_folder(path: Path | None, split: str | None, *, source: str) -> SplitFolder:
    """Find the folder that contains the class folders, and the name of its split."""
    if path is None:
        raise UsageError(f"data {source!r} needs a folder: write it as {source}:PATH")
    if not path.is_dir():
        raise DataError(f"there is no folder {path}: check the path after {source!r}")
    own = path.resolve()
    wanted = SPLITS if split is None else () if split == ALL else (split,)
    for candidate in wanted:
        if (path / candidate).is_dir():
            return SplitFolder(path / candidate, candidate, set_name(own.name))
    if own.name in wanted:
        return SplitFolder(path, own.name, set_name(own.parent.name))
    if split not in (None, ALL):
        raise DataError(
            f"there is no folder {split!r} in {path}: choose another split, or {ALL!r} for {path} "
            "itself"
        )
    return SplitFolder(path, ALL, set_name(own.name))


def class_folders(root: Path, *, source: str) -> list[str]:
    """List the names of the class folders, sorted; raise DataError if there are none."""
    folders = sorted(e.name for e in os.scandir(root) if e.is_dir() and e.name[0] != ".")
    if not folders:
        raise DataError(f"expected one folder per class in {root}, found none: check {source}:PATH")
    return folders


def file_set(
    place: SplitFolder,
    classes: Mapping[str, int],
    class_names: Sequence[str],
    *,
    by_order: bool = False,
    by_number: bool = False,
) -> FileSet:
    """Collect the images anywhere below the class folders in `classes` (name -> index)."""
    names: list[str] = []
    labels: list[int] = []
    others: list[str] = []
    for folder, label in classes.items():
        files: list[str] = []
        for inner, _, inside in os.walk(place.root / folder):
            below = Path(inner).relative_to(place.root).as_posix()
            files += [f"{below}/{file}" for file in inside if not file.startswith(".")]
        files.sort()
        images = [file for file in files if file.lower().endswith(ENDINGS)]
        others += [file for file in files if file.lower().endswith(OTHER_ENDINGS)]
        names += images
        labels += [label] * len(images)
    warn_left_out(place.root, others)
    if not names:
        endings = ", ".join(ENDINGS[:4])
        raise DataError(f"there are no images ({endings}, ...) below {place.root}: check the path")
    keys = [as_text(file) for file in names]
    keys = names if keys == names else keys  # free a list of up to a million names
    class_names = [as_text(c) for c in class_names]
    return FileSet(
        place.name,
        place.split,
        keys,
        labels,
        class_names,
        place.root,
        names,
        by_order=by_order,
        by_number=by_number,
    )


def files_in(folder: Path) -> list[str]:
    """List the image files directly in a folder, sorted."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    return [name for name in names if name.lower().endswith(ENDINGS) and name[0] != "."]


def load_folder(request: DataRequest) -> FileSet:
    """Open `folder:PATH`: folders are class indices, or names numbered alphabetically."""
    place = split_folder(request.path, request.split, source="folder")
    if images := files_in(place.root):  # images beside each other: there are no classes
        return UnlabeledSet(
            place.name, place.split, images, [0] * len(images), ("image",), place.root, images
        )
    folders = class_folders(place.root, source="folder")
    classes, by_order = class_indices(folders, what="folder", by_name=request.by_name)
    return file_set(
        place, classes, names_by_index(classes), by_order=by_order, by_number=not by_order
    )


DATA_SOURCES.register(
    "folder",
    DataSource("folder:PATH, one folder per class: an index, a name, or --class-map", load_folder),
)
