"""Prediction tables: a row per image, a column per view, the entry the predicted class.

Tasks that classify objects or pixels have further rows, one per (image, part). The row of the image
itself then contains 0 where the image was predicted, and the rows of its parts contain classes.

Every array contains -1 where nothing is known yet, so `np.maximum` merges what processes, machines
and earlier runs predicted. On disk a table is a folder of immutable
Parquet files named by their content. A process that wrote a file may remove the files that it
contains, so writers need no lock and a killed process loses nothing that was saved.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shiftbench.errors import RecordError, first_line
from shiftbench.files import write_atomic
from shiftbench.identity import Identity

log = logging.getLogger(__name__)

UNKNOWN = -1
CLEAN = "clean"  # the table of the view at (0, 0), shared by all metrics
PROBABILITY = ".probability"  # suffix of the array beside the classes of a table
LABEL, DIGEST, NEAR_TIE, UNREADABLE = "label", "digest", "near_tie", "unreadable"
# 1: the image has fewer pixels than the canvas was cut from; it has no phase to be aligned by.
ENLARGED, NO_PHASE = "enlarged", "no_phase"
PART, WHOLE, BOX = "part", "whole", "box"  # of rows that are parts of images, see `Parts`
DTYPES: Mapping[str, Any] = {
    LABEL: np.int16,
    DIGEST: np.int64,
    NEAR_TIE: np.int8,
    UNREADABLE: np.int8,
    ENLARGED: np.int8,
    NO_PHASE: np.int8,
    PART: np.int16,
    WHOLE: np.int16,
    BOX: np.float32,
}
MOST_CLASSES = np.iinfo(np.int16).max
MAX_DISAGREEMENT = 0.01  # fraction of common cells that rounding on other hardware may explain
RETRY_SECONDS = 0.02  # until the folder is listed again
ABANDONED_SECONDS = 3600.0  # age of a temporary file whose writer was killed


@dataclass(frozen=True)
class Parts:
    """Objects or pixels of one image that are rows of a table."""

    numbers: NDArray[np.int64]  # (parts,): 1 or more, 0 is the image itself
    labels: NDArray[np.int64]  # (parts,): class index
    whole: NDArray[np.int64]  # (parts,): largest shift (px) at which every view contains the part
    # (parts, 4): x1, y1, x2, y2 in pixels of the resized image. Tables contain them only where they
    # do not follow from labels of the data.
    boxes: NDArray[np.float32]


@dataclass(frozen=True)
class Cells:
    """Predictions of some rows through the views of one metric; column 0 is the clean image."""

    classes: NDArray[np.int16]  # (rows, 1 + views): predicted class; -1: not predicted
    probabilities: NDArray[np.float32]  # same shape: of the reference class; -1: not stored
    labels: NDArray[np.int64]  # (rows,)
    images: NDArray[np.intp] | None = None  # (rows,): index of the image; None: a row per image
    rows: NDArray[np.intp] | None = None  # (rows,): rows of the tables; None: not from tables
    whole: NDArray[np.int64] | None = None  # (rows,): see `Parts`; None: whole under every shift

    def take(self, chosen: NDArray[Any]) -> Cells:
        """Return some of the rows, by mask or index."""
        others = (self.images, self.rows, self.whole)
        return Cells(
            self.classes[chosen],
            self.probabilities[chosen],
            self.labels[chosen],
            *(None if array is None else array[chosen] for array in others),
        )

    def by_image(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return True for images (and columns) of which any row is selected."""
        if self.images is None:
            return mask
        found = np.zeros((1 + self.images.max(initial=-1), *mask.shape[1:]), bool)
        np.logical_or.at(found, self.images, mask)
        return found

    def shares(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the mean of the values of each image's rows; images without rows are left out."""
        if self.images is None:
            return values
        rows = np.bincount(self.images)
        return np.bincount(self.images, values.astype(float))[rows > 0] / rows[rows > 0]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Mask of the predicted cells."""
        return self.classes >= 0

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Mask of the misclassified cells."""
        wrong: NDArray[np.bool_] = self.known & (self.classes != self.labels[:, None])
        return wrong


class Tables:
    """Predictions of one model: named arrays with a row per image.

    >>> first, second = Tables(["a", "b"]), Tables(["b", "c"])
    >>> first.array("crop", 2)[:] = [[7, 7], [5, -1]]
    >>> second.array("crop", 3)[:] = [[5, 9, -1], [3, -1, -1]]
    >>> merged([first, second]).array("crop").tolist()
    [[7, 7, -1], [5, 9, -1], [3, -1, -1]]
    """

    def __init__(self, keys: Iterable[str] = (), *, origin: str = "") -> None:
        self.keys = list(keys)  # images
        self.origin = origin  # the file, named in errors
        self.arrays: dict[str, NDArray[Any]] = {}  # (rows, columns) each
        self._row = {key: row for row, key in enumerate(self.keys)}
        self._parts: dict[str, dict[int, int]] = {}  # image -> number of the part -> row
        self._length = len(self.keys)

    @classmethod
    def from_rows(cls, keys: Sequence[str], parts: Sequence[int], origin: str = "") -> Tables:
        """Build tables of rows in any order; part 0 of an image is the image itself."""
        tables = cls(origin=origin)
        for row, (key, part) in enumerate(zip(keys, parts, strict=True)):
            if part > 0:
                tables._parts.setdefault(key, {})[part] = row
            else:
                tables.keys.append(key)
                tables._row[key] = row
        tables._length = len(keys)
        return tables

    def add(self, keys: Iterable[str]) -> None:
        """Append the images that are missing."""
        new = [key for key in dict.fromkeys(keys) if key not in self._row]
        self._row |= {key: self._length + i for i, key in enumerate(new)}
        self.keys += new
        self._length += len(new)

    def add_parts(self, key: str, numbers: Iterable[int]) -> NDArray[np.intp]:
        """Append the parts of an image that are not there yet; return the rows of all of them."""
        own, rows = self._parts.setdefault(key, {}), []
        for number in map(int, numbers):
            if number not in own:
                own[number] = self._length
                self._length += 1
            rows.append(own[number])
        return np.array(rows, dtype=np.intp)

    def store_parts(self, images: Mapping[str, Parts], *, boxes: Collection[str]) -> None:
        """Append the parts of images, with the boxes of some of them."""
        rows = {key: self.add_parts(key, parts.numbers) for key, parts in images.items()}
        self.array(PART, 1)[self.rows(images)] = 0
        for key, parts in images.items():
            values = {PART: parts.numbers, LABEL: parts.labels, WHOLE: parts.whole}
            for name, value in values.items():
                self.array(name, 1)[rows[key], 0] = value
            if key in boxes:
                self.array(BOX, 4)[rows[key]] = parts.boxes

    def rows(self, keys: Iterable[str]) -> NDArray[np.intp]:
        """Return the row of each image itself."""
        return np.array([self._row[key] for key in keys], dtype=np.intp)

    def part_rows(self, keys: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the rows of classes of some images, and the index of the image of each.

        These are the parts of the images; where no image has parts, the images themselves.
        """
        if PART not in self.arrays:
            return self.rows(keys), np.arange(len(keys))
        own = [list(self._parts.get(key, {}).values()) for key in keys]
        images = np.repeat(np.arange(len(keys)), [len(rows) for rows in own])
        return np.array([row for rows in own for row in rows], dtype=np.intp), images

    def unseen(self, keys: Sequence[str]) -> int:
        """Count the images whose parts are not known yet; 0 if images have no parts."""
        if PART not in self.arrays:
            return 0
        return int((self.column(PART)[self.rows(keys)] < 0).sum())

    def owners(self) -> NDArray[np.intp]:
        """Return for each row the row of its image."""
        owners = np.arange(self._length)
        for key, parts in self._parts.items():
            owners[list(parts.values())] = self._row[key]
        return owners

    def names(self) -> list[str]:
        """Return for each row the key of its image."""
        if not self._parts:
            return list(self.keys)
        names = [""] * self._length
        for key, row in self._row.items():
            for own in (row, *self._parts.get(key, {}).values()):
                names[own] = key
        return names

    def array(self, name: str, columns: int = 0) -> NDArray[Any]:
        """Return an array with at least `columns` columns; new cells are unknown."""
        dtype = np.float32 if name.endswith(PROBABILITY) else DTYPES.get(name, np.int16)
        array = self.arrays.get(name, np.empty((0, 0), dtype))
        if len(array) < self._length or array.shape[1] < columns:
            array = _padded(array, self._length, max(columns, array.shape[1]))
            self.arrays[name] = array
        return array

    def column(self, name: str) -> NDArray[Any]:
        """Return an array of one column, (rows,)."""
        column: NDArray[Any] = self.array(name, 1)[:, 0]
        return column

    def take(self, keys: Sequence[str]) -> Tables:
        """Copy some images, in the order of `keys`."""
        part, rows = Tables(keys), [self.rows(keys)]
        for key in keys if self._parts else ():
            numbers = sorted(self._parts.get(key, {}))
            if numbers:
                part.add_parts(key, numbers)
                rows.append(self.add_parts(key, numbers))
        chosen = np.concatenate(rows)
        part.arrays = {name: self.array(name)[chosen] for name in self.arrays}
        return part

    def read(self, table: str, columns: int, keys: Sequence[str]) -> Cells:
        """Copy the cells of some images: the clean view and the first `columns` of a table."""
        rows, images = self.part_rows(keys)
        classes, probabilities = (
            self._with_clean(table, suffix, columns, rows) for suffix in ("", PROBABILITY)
        )
        labels = self.column(LABEL)[rows].astype(np.int64)
        if PART not in self.arrays:
            return Cells(classes, probabilities, labels, rows=rows)
        whole = self.column(WHOLE)[rows].astype(np.int64)
        return Cells(classes, probabilities, labels, images, rows, whole)

    def parts(self, key: str) -> Parts:
        """Copy the parts of an image."""
        rows, _ = self.part_rows([key])
        numbers, labels, whole = (
            self.column(name)[rows].astype(np.int64) for name in (PART, LABEL, WHOLE)
        )
        boxes = self.array(BOX, 4)[rows] if BOX in self.arrays else np.empty((0, 4), np.float32)
        return Parts(numbers, labels, whole, boxes)

    def _with_clean(
        self, table: str, suffix: str, columns: int, rows: NDArray[np.intp]
    ) -> NDArray[Any]:
        """Copy rows of an array, (rows, 1 + columns), with the clean view in column 0."""
        clean = self.array(CLEAN + suffix, 1)
        cells = np.full((len(rows), 1 + columns), UNKNOWN, clean.dtype)
        cells[:, :1] = clean[rows]
        if columns and table + suffix in self.arrays:
            stored = self.array(table + suffix)[rows, :columns]
            cells[:, 1 : 1 + stored.shape[1]] = stored
        return cells

    def write(self, table: str, keys: Sequence[str], cells: Cells) -> None:
        """Store cells that `read` returned and a model completed."""
        (rows, _), columns = self.part_rows(keys), cells.classes.shape[1] - 1
        for suffix, values in (("", cells.classes), (PROBABILITY, cells.probabilities)):
            self.array(CLEAN + suffix, 1)[rows] = values[:, :1]
            if columns and (values[:, 1:] >= 0).any():
                self.array(table + suffix, columns)[rows, :columns] = values[:, 1:]
        if cells.images is not None:  # an image was predicted where its parts have a class
            image, column = np.nonzero(cells.by_image(cells.known)[:, 1:])
            self.array(table, columns)[self.rows(keys)[image], column] = 0

    def predictions(self) -> int:
        """Count the views of images that were predicted."""
        images = self.rows(self.keys)
        classes = (
            self.array(n) for n in self.arrays if n not in DTYPES and not n.endswith(PROBABILITY)
        )
        return int(sum((array[images] >= 0).sum() for array in classes))


def identifier(digest: int) -> str:
    """Return the identifier of an image, from which its random views follow."""
    return f"{digest:016x}"


def _padded(array: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    padded = np.full((rows, columns), UNKNOWN, array.dtype)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded


def merged(parts: Sequence[Tables]) -> Tables:
    """Merge all images and cells of several tables.

    Up to 1% of the common cells may differ, as rounding on other hardware makes them: the larger
    class is stored and the image is marked as a near tie.

    Raises:
        RecordError: The tables are of different images, labels or models.
    """
    whole = Tables()
    for number, part in enumerate(parts):
        whole.add(part.keys)
        rows = _aligned(whole, part)
        for name in part.arrays:
            theirs = part.array(name)
            array = whole.array(name, theirs.shape[1])
            ours = array[rows, : theirs.shape[1]]
            if differs := _disagreement(name, ours, theirs):
                row, _ = differs[0]
                first = next(p for p in parts[:number] if _contradicts(p, part, name, row))
                both = " and ".join(p.origin or "this run" for p in (first, part))
                image = part.names()[row]
                raise RecordError(
                    f"{both} disagree on {name} of {image!r} ({len(differs)} such cells): "
                    "they are of different models or data. Choose another --output, or start over "
                    "with --fresh"
                )
            array[rows, : theirs.shape[1]] = np.maximum(ours, theirs)
            if name not in DTYPES and not name.endswith(PROBABILITY):
                tied = ((ours >= 0) & (theirs >= 0) & (ours != theirs)).any(1)
                if tied.any():
                    whole.array(NEAR_TIE, 1)[whole.owners()[rows[tied]]] = 1
    return whole


def _aligned(whole: Tables, part: Tables) -> NDArray[np.intp]:
    """Return the row of `whole` for each row of `part`; parts that are new are added."""
    if PART not in part.arrays:
        return whole.rows(part.keys)
    rows = np.empty(len(part.names()), dtype=np.intp)
    rows[part.rows(part.keys)] = whole.rows(part.keys)
    for key in part.keys:
        own, _ = part.part_rows([key])
        rows[own] = whole.add_parts(key, part.column(PART)[own])
    return rows


def _disagreement(name: str, ours: NDArray[Any], theirs: NDArray[Any]) -> list[tuple[int, int]]:
    """Return the cells that differ, if they are more than rounding explains."""
    if name in (NEAR_TIE, UNREADABLE, NO_PHASE, BOX) or name.endswith(PROBABILITY):
        return []
    both = (ours >= 0) & (theirs >= 0)
    differ = np.argwhere(both & (ours != theirs))
    allowed = 0 if name in DTYPES else max(1, MAX_DISAGREEMENT * both.sum())
    return [(int(row), int(column)) for row, column in differ] if len(differ) > allowed else []


def _contradicts(first: Tables, second: Tables, name: str, row: int) -> bool:
    key = second.names()[row]
    if name not in first.arrays or key not in first.keys:
        return False
    one, other = (tables.take([key]) for tables in (first, second))
    rows = _aligned(one, other)  # parts that the first lacks are added
    theirs, ours = one.array(name)[rows], other.array(name)
    width = min(theirs.shape[1], ours.shape[1])
    a, b = theirs[:, :width], ours[:, :width]
    return bool(((a >= 0) & (b >= 0) & (a != b)).any())


class TableFolder:
    """The Parquet files of one record; any number of processes may read and write at a time."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], images: Tables) -> None:
        """Open a folder, which need not exist.

        Args:
            folder: Directory of the files.
            identity: Values that must agree before predictions are merged.
            images: Images of a run with their labels, which those of the files must equal.
        """
        self.folder, self.identity, self._images = folder, identity, images
        self._read: dict[Path, Tables] = {}
        self._last: Path | None = None  # the newest file of this process

    def read(self) -> Tables:
        """Merge everything that any process predicted so far."""
        while True:
            paths = table_files(self.folder)
            with suppress(FileNotFoundError):  # another process has just merged it
                self._read = {path: self._read.get(path) or self._load(path) for path in paths}
                # A single listing may miss both a removed file and its successor.
                if table_files(self.folder) == paths:
                    return merged([self._images, *self._read.values()])
            time.sleep(RETRY_SECONDS)

    def _load(self, path: Path) -> Tables:
        try:
            tables, identity = read_tables(path)
        except RecordError as error:
            log.warning("%s. Its cells are predicted again", error)
            return Tables()  # without an origin: the file is never removed
        require_same_identity(path, identity, self.identity)
        return tables

    def save(self, tables: Tables) -> None:
        """Write tables as one file, and remove the files that it contains.

        Raises:
            RecordError: The folder is read-only, or the disk is full.
        """
        content = to_parquet(tables, self.identity)
        path = self.folder / f"{hashlib.sha256(content).hexdigest()[:16]}.parquet"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_atomic(path, content)
        except OSError as error:
            raise RecordError(
                f"cannot write {path}: {error.strerror or error}. Free some space or choose "
                "another --output; saved predictions are kept"
            ) from error
        images = set(tables.keys)
        for old, part in self._read.items():
            if part.origin and old != path and images.issuperset(part.keys):
                _remove(old)
        if self._last not in (None, path):
            _remove(self._last)
        self._last = path
        with suppress(OSError):
            now = path.stat().st_mtime  # by the clock of the file system: machines may disagree
            for leftover in self.folder.glob(".*.tmp"):
                if now - leftover.stat().st_mtime > ABANDONED_SECONDS:
                    _remove(leftover)


def _remove(path: Path) -> None:
    with suppress(PermissionError):  # Windows, while another process reads the file
        path.unlink(missing_ok=True)


def table_files(folder: Path) -> list[Path]:
    """List the files of a folder of tables."""
    return sorted(folder.glob("*.parquet"))


def to_parquet(tables: Tables, identity: Mapping[str, Any]) -> bytes:
    """Encode tables; equal cells give equal bytes.

    A column contains the rows of one array as lists: a Parquet column per offset would be 30 to 70
    times larger.
    """
    if PART in tables.arrays:
        tables = tables.take(tables.keys)  # images first, then their parts
    columns: dict[str, pa.Array] = {"key": pa.array(tables.names(), pa.string())}
    known = {name: tables.array(name) for name, a in tables.arrays.items() if (a >= 0).any()}
    for name, array in sorted(known.items()):
        flat = pa.array(np.ascontiguousarray(array).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
    table = pa.table(columns).replace_schema_metadata({"shiftbench": json.dumps(identity)})
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", use_dictionary=["key"])
    return out.getvalue()


def read_tables(path: Path) -> tuple[Tables, dict[str, Any]]:
    """Read the tables of a file and their identity.

    Raises:
        RecordError: The file is truncated, or not a table of predictions.
        FileNotFoundError: The file is gone.
    """
    content = path.read_bytes()
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
        identity = json.loads(table.schema.metadata[b"shiftbench"])
        arrays: dict[str, NDArray[Any]] = {}
        for name in table.column_names[1:]:
            width = table.schema.field(name).type.list_size
            flat = table[name].combine_chunks().flatten().to_numpy()
            arrays[name] = flat.reshape(-1, width).copy()
        keys, parts = table["key"].to_pylist(), arrays.get(PART)
        numbers = [0] * len(keys) if parts is None else parts[:, 0].tolist()
        tables = Tables.from_rows(keys, numbers, str(path))
        tables.arrays = arrays
    except (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"cannot read {path}: {first_line(error)}") from error
    return tables, identity


def require_same_identity(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise RecordError if predictions are of another model, data, geometry, precision or seed."""
    models = (Identity.from_json(identity.get("model", {})) for identity in (theirs, ours))
    changed = next(models).difference(next(models))
    others = {name: value for name, value in ours.items() if name != "model"}
    differences = [changed] if changed else []
    differences += [
        f"{name} was {old}, is {new}" for name, old, new in _differences(theirs, others)
    ]
    if differences:
        raise RecordError(
            f"{path.parent.parent} contains other predictions ({'; '.join(differences)}). Choose "
            "another --output or --name, or start over with --fresh"
        )


def _differences(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """List the name, their value and our value of the entries that differ.

    Digests of plug-ins are compared only where both have them.
    """
    found: list[tuple[str, Any, Any]] = []
    for name, value in ours.items():
        other = theirs.get(name)
        if isinstance(value, Mapping):
            found += _differences(other or {}, value, f"{prefix}{name}.")
        elif other != value and not (prefix.startswith("plugins.") and other is None):
            found.append((prefix + name, other, value))
    return found
