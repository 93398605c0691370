"""One record in full, as text: its further scores, its heat maps, where its numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shiftbench.grid import Offset
from shiftbench.records.record import Record
from shiftbench.records.verify import read_verification
from shiftbench.report.formats.page.images import describe_images, number
from shiftbench.report.table import HIDDEN_FAMILIES, Column
from shiftbench.statistics import Score


def describe_detail(record: Record) -> dict[str, Any]:
    """What the dialog of a model shows besides its row of the table."""
    return {
        "line": f"{record.data}, {record.created[:10]}",
        "scores": [
            [Column(name.stem).title, score.text(), score.interval(), f"{score.n:,}"]
            for name, score in record.scores.items()
            if name.family in HIDDEN_FAMILIES
        ],
        "maps": _maps(record),
        "images": describe_images(record),
        "facts": _facts(record),
    }


def sampled_modes(record: Record) -> str:
    """How searches sampled their grids, where one did: `sampled:16`."""
    infos = [info for info in record.metrics.values() if info.settings.get("upper_bound")]
    return ", ".join(sorted({str(info.settings.get("mode", "sampled")) for info in infos}))


def verified(record: Record) -> str:
    """How a record was verified; empty where it was not."""
    verification = read_verification(record)
    if verification is None:
        return ""
    how = f"on {verification.date[:10]} with shiftbench {verification.version}"
    return f"{verification.images:,} images re-measured {how}, all match"


def words(value: Any) -> str:
    """A value of a record's JSON for people.

    >>> words({"span": 3, "ids": [1, 2], "limit": None})
    'span 3, ids 1, 2, limit none'
    """
    if isinstance(value, Mapping):
        return ", ".join(
            f"{str(key).replace('_', ' ')} {words(inner)}" for key, inner in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(words(inner) for inner in value)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


def _maps(record: Record) -> dict[str, Any] | None:
    """Every heat map of a record, on one scale of colors."""
    if not record.maps:
        return None
    scores = [score for cells in record.maps.values() for score in cells.values()]
    return {
        "range": [min(scores).text(), max(scores).text()],
        "all": [_map(stem, cells) for stem, cells in record.maps.items()],
    }


def _map(stem: str, cells: Mapping[Offset, Score]) -> dict[str, Any]:
    """The accuracy at each offset: a matrix of numbers to draw and of texts to read."""
    axis = sorted({offset.dy for offset in cells})
    scores = [[cells.get(Offset(dy, dx)) for dx in axis] for dy in axis]
    lowest = min(cells, key=cells.__getitem__)
    worst = cells[lowest]
    place = f"dy {number(lowest.dy)}, dx {number(lowest.dx)} px"
    title = Column(stem).title
    return {
        "title": title,
        "caption": f"lowest {worst.text()}, n={worst.n:,}",
        "label": f"Accuracy at each offset, {title}: lowest {worst.text()}% at {place}",
        "axis": [number(value) for value in axis],
        "values": [[None if s is None else round(s.value, 4) for s in row] for row in scores],
        "texts": [
            ["" if s is None else f"{s.text()} {s.interval()}" for s in row] for row in scores
        ],
    }


def _facts(record: Record) -> list[list[Any]]:
    """Sections of names and texts."""
    made = {
        "seconds": round(record.seconds, 1),
        "forward_passes": f"{record.forward_passes:,}",
        "created": record.created,
        "schema": record.schema,
    }
    metrics = {
        name: {**info.settings, "images": f"{info.images:,}"}
        for name, info in record.metrics.items()
    }
    data = {**asdict(record.data), "classes": len(record.data.classes) or "without names"}
    sections: dict[str, Mapping[str, Any]] = {
        "Model": asdict(record.model),
        "Data": data,
        "Metrics": metrics,
        "Settings": record.settings,
        "Environment": {**record.environment, **made},
    }
    return [
        [title, [[key.replace("_", " "), words(value)] for key, value in content.items()]]
        for title, content in sections.items()
    ]
