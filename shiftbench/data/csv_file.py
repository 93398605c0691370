"""`csv:FILE.csv`: image files without class folders, each with its label in a table.

A row has a path, from the table's folder, and a class index or a class name:

    path,label
    photos/0001.jpg,cat
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

from shiftbench.data.base import ALL, DATA_SOURCES, DataRequest, DataSource, set_name
from shiftbench.data.folder import FileSet
from shiftbench.data.labels import MAP_HINT, class_indices, names_by_index
from shiftbench.errors import DataError, UsageError, reason

COLUMNS = ("path", "label")
USUAL = "images"  # the name of such a table is that of its folder
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?", re.ASCII)


def load_csv(request: DataRequest) -> FileSet:
    """Read the table; class names are numbered in alphabetical order, as for folders."""
    if request.path is None:
        raise UsageError("data 'csv' needs a table: write it as csv:FILE.csv")
    if request.split not in (None, ALL):
        raise UsageError(
            f"a table has no splits, got {request.split!r}: pass the table of that split"
        )
    table = request.path
    rows = _rows(table)
    keys = [path for path, _ in rows]
    repeated = next((key for key, count in Counter(keys).items() if count > 1), None)
    if repeated is not None:
        raise DataError(f"{table} names the image {repeated} more than once: keep one row of it")
    missing = [key for key in keys if not (table.parent / key).is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(keys)} images of {table} are missing, such as {missing[0]}: "
            "paths start from the folder of the table"
        )
    own = table.resolve()
    name = set_name(own.parent.name if own.stem == USUAL else own.stem)
    labels = [label if request.by_name else _whole(label) for _, label in rows]
    indices, by_order = class_indices(labels, what="label", by_name=request.by_name)
    return FileSet(
        name,
        ALL,
        keys,
        [indices[label] for label in labels],
        names_by_index(indices),
        table.parent,
        keys,
        by_order=by_order,
    )


def _whole(label: str) -> str:
    """Return a number without sign and fraction, for columns of floats that pandas writes."""
    if not NUMBER.fullmatch(label):
        return label
    if float(label) < 0 or float(label) % 1:
        raise UsageError(
            f"expected integers from 0 for labels, got {label}. Correct them, or {MAP_HINT}"
        )
    return str(int(float(label)))


def _rows(table: Path) -> list[tuple[str, str]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            absent = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if absent:
                raise DataError(
                    f"expected the columns path and label in {table}, and there is no {absent[0]}"
                )
            rows = [((row["path"] or "").strip(), (row["label"] or "").strip()) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read the table {table}: {reason(error)}") from error
    for number, row in enumerate(rows, start=2):
        if not all(row):
            raise DataError(f"row {number} of {table} has no {COLUMNS[row.index('')]}: fill it in")
    if not rows:
        raise DataError(f"{table} names no images")
    return rows


DATA_SOURCES.register(
    "csv",
    DataSource("csv:FILE.csv, image files with their labels: columns path, label", load_csv),
)
