"""Figures that papers printed, read from `results/paper`: shown beside ours, never among them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shiftbench.errors import DataError
from shiftbench.report.paper import TABLES, read_claims
from shiftbench.report.table import Column
from shiftbench.scores import ACCURACY, ScoreName

ALIAS_FREE = "Alias-Free ViT (NeurIPS 2025)"
ANTIALIASED = "Zhang (ICML 2019), table of adobe/antialiased-cnns"


class Published(NamedTuple):
    """One figure, as it was printed."""

    source: str  # the paper, and where in it
    model: str
    data: str
    metric: str  # as a table's head calls it: `consistency half`
    value: str


def read_published(folder: Path) -> list[Published]:
    """Every figure of the papers in a folder.

    Raises:
        DataError: The folder has none.
    """
    found = [*_alias_free(folder), *_antialiased(folder)]
    if not found:
        raise DataError(
            f"no published figures in {folder}: expected files such as {TABLES.names()[0]}.csv, as "
            "in results/paper of the source tree"
        )
    return found


def _alias_free(folder: Path) -> Iterator[Published]:
    for name in TABLES:
        if not (folder / f"{name}.csv").is_file():
            continue
        table = TABLES.get(name)
        source = f"{ALIAS_FREE}, {table.place}: {table.about}"
        for claim in read_claims(name, folder):
            if claim.published is not None:
                head = _head(claim.score)
                yield Published(source, claim.entry, claim.data, head, str(claim.published))


def _antialiased(folder: Path) -> Iterator[Published]:
    """Networks as they are and with blur pooling; crops of 256-px images, means of five passes."""
    path = folder / "antialiased_cnns.csv"
    if not path.is_file():
        return
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    source = f"{ANTIALIASED}: networks of torchvision, plain and with blur pooling of 4 taps"
    for row in rows:
        model = row["model"] if row["variant"] == "baseline" else f"{row['model']} {row['variant']}"
        for score in (ACCURACY, ScoreName("consistency", "crop")):
            yield Published(source, model, "imagenet", _head(score), row[score.column])


def _head(score: ScoreName) -> str:
    column = Column(score.column, score)
    return f"{column.title} {column.reach}".rstrip()
