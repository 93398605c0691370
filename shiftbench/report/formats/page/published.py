"""Figures that papers printed, for a section of the page of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shiftbench.report.published import PROTOCOLS, SIDE_BY_SIDE_HEADS, Published, SideBySide


def describe_published(
    figures: Sequence[Published], pairs: Sequence[SideBySide] = ()
) -> list[dict[str, Any]]:
    """For each data set, a table of each source, with a row per model.

    >>> described = describe_published([Published("Table 1", "vit", "imagenet", "top1", "70.4")])
    >>> described[0]["data"], described[0]["tables"][0]["rows"]
    ('imagenet', [['vit', '70.4']])
    """
    described = {
        data: [
            _table(source, [f for f in figures if (f.data, f.source) == (data, source)])
            for source in dict.fromkeys(f.source for f in figures if f.data == data)
        ]
        for data in dict.fromkeys(figure.data for figure in figures)
    }
    if pairs:
        heads, rows = list(SIDE_BY_SIDE_HEADS[1:]), [pair.cells() for pair in pairs]
        both = {
            "source": f"Published and measured here. {PROTOCOLS}.",
            "heads": heads,
            "rows": rows,
        }
        described["imagenet"] = [both, *described.get("imagenet", [])]
    return [{"data": data, "tables": tables} for data, tables in described.items()]


def _table(source: str, figures: Sequence[Published]) -> dict[str, Any]:
    metrics = list(dict.fromkeys(figure.metric for figure in figures))
    values = {(figure.model, figure.metric): figure.value for figure in figures}
    rows = [
        [model, *(values.get((model, metric), "") for metric in metrics)]
        for model in dict.fromkeys(figure.model for figure in figures)
    ]
    return {"source": source, "heads": metrics, "rows": rows}
