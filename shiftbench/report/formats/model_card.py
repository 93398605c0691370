"""The `model-index` block of Hugging Face model cards: paste it into the head of the card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from shiftbench.records.record import Record
from shiftbench.report.formats.base import FORMATS, Format
from shiftbench.report.ranking import Measured
from shiftbench.report.table import Column, Table

TASK = {"type": "image-classification", "name": "Image classification under shifts"}


def to_model_card(tables: Sequence[Table]) -> str:
    """An entry per model, with a result per record; fractions stay fractions, as in records."""
    entries: dict[str, list[dict[str, Any]]] = {}
    for table in tables:
        columns = table.measured_columns()
        for row in table.rows:
            metrics = [
                _metric(row.record, column, cell)
                for column in columns
                if isinstance(cell := row.cell(column), Measured)
            ]
            result = {"task": dict(TASK), "dataset": _dataset(row.record), "metrics": metrics}
            entries.setdefault(row.record.model.name, []).append(result)
    index = [{"name": name, "results": results} for name, results in entries.items()]
    text: str = yaml.safe_dump(
        {"model-index": index}, sort_keys=False, allow_unicode=True, width=1000
    )
    return text


def _dataset(record: Record) -> dict[str, Any]:
    data, geometry = record.data, record.data.geometry
    cut = {key: geometry[key] for key in ("view", "resize", "crop", "pad") if key in geometry}
    return {
        "type": data.name,
        "name": data.name,
        "split": data.split,
        "args": {"images": data.images, **cut},
    }


def _metric(record: Record, column: Column, cell: Measured) -> dict[str, Any]:
    assert column.score is not None
    info, score = record.metric_of(column.score), cell.score
    unit = "" if score.is_fraction else f" {score.unit}".rstrip()
    interval = f"95% interval {score.low:.4g} to {score.high:.4g}{unit}, n = {score.n:,}"
    return {
        "type": column.score.stem,
        "name": ", ".join(_words(column, cell)) + f" ({interval})",
        "value": float(f"{score.value:.4g}"),
        "args": {
            **(info.settings if info is not None else {}),
            **({} if column.score.radius is None else {"radius": column.score.radius}),
        },
    }


def _words(column: Column, cell: Measured) -> Iterator[str]:
    yield column.title
    if column.reach:
        yield f"every shift up to {column.reach}"
    if cell.bound:
        yield "upper bound"


FORMATS.register(
    "model-card",
    Format(
        (".yaml", ".yml"),
        lambda report: to_model_card(report.tables),
        "the model-index block of a Hugging Face model card",
    ),
)
