"""The leaderboard as one self-contained HTML file: no network, opens from disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from shiftbench.records.result import Result
from shiftbench.records.verify import read_verification
from shiftbench.report.scores import Table, fact_text
from shiftbench.scores import ScoreName


def render_page(tables: Sequence[Table]) -> str:
    """Return the page; it opens with the table of most records."""
    groups = [_group(table) for table in sorted(tables, key=lambda table: -len(table.rows))]
    data = json.dumps(groups, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    template = resources.files("shiftbench.report").joinpath("page.html").read_text("utf-8")
    # Without `<`, no name can end the script element. The page adds names as text, never as markup.
    return template.replace("@@DATA@@", data.replace("<", "\\u003c"))


def _group(table: Table) -> dict[str, Any]:
    """Describe a table. Texts are formatted here, because JavaScript rounds ties differently."""
    index = {row: number for number, row in enumerate(table.rows)}
    columns: dict[ScoreName, dict[str, Any]] = {
        column.curve: {
            "name": table.title(column),
            "lower": table.lower_is_better(column),
            "start": -1 if column.radius is None else column.radius,
            "ticks": {},  # extent by radius
            "cells": {},  # by row and radius
        }
        for column in table.columns
    }
    for cell in table.curves:
        column, score = columns.get(cell.name.curve), cell.value
        if column is None:  # not one of the chosen columns
            continue
        radius = -1 if cell.name.radius is None else cell.name.radius
        numbers = [round(100 * number, 2) for number in (score.value, score.low, score.high)]
        texts = [score.text(), score.interval(), f"{score.n:,}"]
        content = [*texts, *numbers, int(cell.best), cell.unlike]
        column["cells"].setdefault(index[cell.result], {})[radius] = content
        column["ticks"][radius] = cell.extent
    return {
        "label": table.label,
        "notes": table.notes(extents=False),
        "rows": [
            [row.model.name, fact_text(row, "param_count"), _facts(row)] for row in table.rows
        ],
        "columns": list(columns.values()),
    }


def _facts(result: Result) -> dict[str, str]:
    """List the facts in the details of a record besides its scores."""
    verified = read_verification(result)
    facts = {
        "data": str(result.data),
        "verified": "no" if verified is None else f"n={verified.images:,}, {verified.date[:10]}",
        "source": result.model.source,
        "weights": result.model.digest[:16],
        "parameters": f"{result.model.parameters:,}",
        "geometry": result.data.geometry_text,
        "input": f"{result.model.input_size} px, {result.model.interpolation}",
        "conditions": ", ".join(f"{name} {value}" for name, value in result.conditions.items()),
        "forward passes": f"{result.forward_passes:,}",
        "near ties": f"{result.near_ties:,} images",
        "device": str(result.environment.get("device", "")),
        "date": result.created[:10],
    }
    return {name: text for name, text in facts.items() if text}
