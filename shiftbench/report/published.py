"""Figures that papers printed, read from `results/paper`: shown beside ours, never among them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from shiftbench.errors import DataError
from shiftbench.records.record import Record
from shiftbench.report.paper import TABLES, read_claims
from shiftbench.report.table import Column
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import Score

ALIAS_FREE = "Alias-Free ViT (NeurIPS 2025)"
ANTIALIASED = "Zhang (ICML 2019), table of adobe/antialiased-cnns"
CROP_CONSISTENCY = ScoreName("consistency", "crop")
PROTOCOLS = (
    "Published on all 50,000 validation images; crop consistency by Zhang, where five passes draw "
    "one pair of corners (0 to 31 px) per batch, and here every image draws its own pairs"
)  # in which both measurements of one network differ


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
    figures = [*_alias_free(folder), *_antialiased(folder)]
    if not figures:
        raise DataError(
            f"no published figures in {folder}: expected files such as "
            f"{next(iter(TABLES))}.csv, as "
            "in results/paper of the source tree"
        )
    return figures


def _alias_free(folder: Path) -> Iterator[Published]:
    for name, table in TABLES.items():
        if not (folder / f"{name}.csv").is_file():
            continue
        source = f"{ALIAS_FREE}, {table.place}: {table.about}"
        for claim in read_claims(name, folder):
            if claim.published is not None:
                head = _head(claim.score)
                yield Published(source, claim.entry, claim.data, head, str(claim.published))


def _antialiased(folder: Path) -> Iterator[Published]:
    """Networks as they are and with blur pooling; crops of 256-px images, means of five passes."""
    source = f"{ANTIALIASED}: networks of torchvision, plain and with blur pooling of 4 taps"
    for row in _read(folder / "antialiased_cnns.csv"):
        model = row["model"] if row["variant"] == "baseline" else f"{row['model']} {row['variant']}"
        for score in (ACCURACY, CROP_CONSISTENCY):
            yield Published(source, model, "imagenet", _head(score), row[score.column])


def _read(path: Path) -> list[dict[str, str]]:
    """The rows of a file; none where it is not there."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _head(score: ScoreName) -> str:
    column = Column(score.column, score)
    return f"{column.title} {column.reach}".rstrip()


@dataclass(frozen=True)
class SideBySide:
    """A public network: what was published of its weights, and what was measured here."""

    model: str
    weights: str  # which, where they come from, and their license
    published_by: str
    published_top1: Decimal  # percent
    top1: Score
    remark: str  # why both differ, where the published figure lies outside our interval
    published_consistency: Decimal | None = None  # percent, of two random crops
    consistency: Score | None = None

    @property
    def agrees(self) -> bool:
        """Whether the published accuracy lies in our interval."""
        return self.top1.low <= float(self.published_top1) / 100 <= self.top1.high

    def cells(self) -> list[str]:
        """The row of a table: see `SIDE_BY_SIDE_HEADS`."""
        published = "" if self.published_consistency is None else str(self.published_consistency)
        crop = [published, _with_interval(self.consistency)]
        top1 = [f"{self.published_top1} ({self.published_by})", _with_interval(self.top1)]
        return [self.model, *top1, *crop, "; ".join(filter(None, (self.weights, self.remark)))]


SIDE_BY_SIDE_HEADS = (
    *("model", "top1 published", "top1 here"),
    *("crop consistency published", "crop consistency here", "weights and license"),
)


def _with_interval(score: Score | None) -> str:
    return "" if score is None else f"{score.text()} {score.interval()}"


def side_by_side(records: Sequence[Record], folder: Path) -> list[SideBySide]:
    """The networks of `public_networks.csv` that have a record on ImageNet, in its order.

    Crop consistency was published of torchvision's own weights: `tv:NAME` alone has it.
    """
    zhang = {
        f"tv:{row['model']}": Decimal(row[CROP_CONSISTENCY.column])
        for row in _read(folder / "antialiased_cnns.csv")
        if row["variant"] == "baseline"
    }
    measured = {r.model.name: r for r in records if r.data.name == "imagenet"}
    pairs = []
    for row in _read(folder / "public_networks.csv"):
        record = measured.get(row["model"])
        if record is not None and ACCURACY in record.scores:
            pairs.append(
                SideBySide(
                    model=row["model"],
                    weights=f"{row['weights']}; {row['license']}",
                    published_by=row["published_by"],
                    published_top1=Decimal(row["top1"]),
                    top1=record.scores[ACCURACY],
                    remark=row["remark"],
                    published_consistency=zhang.get(row["model"]),
                    consistency=record.scores.get(CROP_CONSISTENCY),
                )
            )
    return pairs
