"""Where a model stands: its records among those of the public networks that come with the package.

The board is one file of the package, `board.zip`: the record and the samples of every public
network on ImageNet photographs. `python -m shiftbench.report.board DIR` writes it from records.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from shiftbench.files import write_atomic
from shiftbench.records.choose import load_records
from shiftbench.records.comparable import why_not
from shiftbench.records.record import (
    RECORD_FILE,
    SAMPLES_FILE,
    Record,
    record_folder,
    record_from_json,
)
from shiftbench.report.table import Table, build_tables

BOARD_FILE = "board.zip"
SUFFIX = " (board)"  # follows the names of the board's models
_DATE = (2020, 1, 1, 0, 0, 0)  # of every file inside: the same records give the same bytes


def read_board() -> list[Record]:
    """The records of the board, with their samples."""
    content = resources.files("shiftbench.report").joinpath(BOARD_FILE).read_bytes()
    records = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            folder, _, file = name.rpartition("/")
            if file == RECORD_FILE:
                record = record_from_json(json.loads(archive.read(name)), where=name)
                samples = pd.read_parquet(io.BytesIO(archive.read(f"{folder}/{SAMPLES_FILE}")))
                records.append(replace(record, table=samples))
    return records


def write_board(records: Sequence[Record], path: Path) -> None:
    """Writes the board: the records on ImageNet of these."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for record in sorted(records, key=lambda record: record.model.name):
            if record.data.name != "imagenet":
                continue
            assert record.folder is not None
            folder = record_folder(Path(), record.model.name, record.data.name).name
            text = json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False).encode()
            samples = (record.folder / SAMPLES_FILE).read_bytes()
            for name, data in ((RECORD_FILE, text), (SAMPLES_FILE, samples)):
                archive.writestr(zipfile.ZipInfo(f"{folder}/{name}", _DATE), data)
    write_atomic(path, content.getvalue())


def board_tables(records: Sequence[Record], board: Sequence[Record], **how: Any) -> list[Table]:
    """Records among the board's: ranked together where they are of the same photographs.

    Records of other photographs or conditions keep tables of their own, whose notes say what
    differs.

    Args:
        records: One's own.
        board: See `read_board`.
        how: What `build_tables` takes besides.
    """
    named = [
        replace(record, model=replace(record.model, name=f"{record.model.name}{SUFFIX}"))
        for record in board
    ]
    own = {id(record) for record in records}
    mixed, alone, others = [], [], []
    for table in build_tables([*records, *named], **how):
        mine = [row.record for row in table.rows if id(row.record) in own]
        if not mine:
            others.append(table)
        elif len(mine) < len(table.rows):
            mixed.append(table)
        else:
            alone.append(replace(table, remark=_remark(mine[0], board)))
    return [*mixed, *alone, *others]


def _remark(record: Record, board: Sequence[Record]) -> str:
    reasons = min((why_not(record, other) for other in board), key=len)
    return f"Not ranked with the board: {', '.join(reasons)}"


if __name__ == "__main__":
    _folders = [Path(word) for word in sys.argv[1:]]
    write_board(load_records(_folders), Path(__file__).with_name(BOARD_FILE))
