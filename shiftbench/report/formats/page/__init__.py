"""The leaderboard as one self-contained page: no network, opens from disk.

The page gets its records as JSON and builds everything it shows as text nodes, so nothing that
stands in a record can become markup. Its content security policy forbids loading anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from shiftbench.records.choose import is_upper_bound, pixels, search_mode, summary
from shiftbench.records.record import OffsetScore, Record
from shiftbench.registry import unknown_name
from shiftbench.report.table import DEFAULT_SORT, attacks_of, columns_of, shown_radius

_SCRIPTS = ("state.js", "charts.js", "table.js", "detail.js", "main.js")
# Shown in other ways, or only in a model's detail: the table has to fit a screen.
_HIDDEN_COLUMNS = {"data", "top1_low", "top1_high", "date", "mode", "img_size", "forward_passes"}


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def script_safe(content: Any) -> str:
    """JSON that can stand inside a script element: no `<` can end it or open a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _ticks(attack: str, radius: int) -> list[str]:
    """The max shift for each ring, as exact fractions of a pixel: 0, 1/6, 1/3, ..."""
    return [str(s if (px := pixels(attack, s)) is None else px) for s in range(radius + 1)]


def _heat_map(offsets: Sequence[OffsetScore]) -> dict[str, Any]:
    """A full grid in few bytes: each cell is [dy, dx, value, low, high]."""
    cells = [[round(x, 4) for x in (o.dy, o.dx, o.value, o.low, o.high)] for o in offsets]
    return {"n": offsets[0].n, "cells": cells}


def _entry(record: Record) -> dict[str, Any]:
    entry = record.to_json()
    offsets: Mapping[str, Sequence[OffsetScore]] = record.scores.offsets
    entry["scores"]["offsets"] = {a: _heat_map(cells) for a, cells in offsets.items() if cells}
    entry["upper_bound"] = is_upper_bound(record)
    entry["mode"] = search_mode(record)
    return entry


def _attack(records: Sequence[Record], attack: str) -> dict[str, Any]:
    radii = [max(r.scores.adversarial.get(attack, {0: None})) for r in records]
    return {
        "name": attack,
        "summary": summary(attack),
        "ticks": _ticks(attack, max(radii)),
    }


def payload(records: Sequence[Record], *, sort: str = DEFAULT_SORT) -> dict[str, Any]:
    """What the page's script reads."""
    columns = columns_of(records)
    if sort not in columns:
        raise unknown_name("column to sort by", sort, columns)
    attacks = attacks_of(records)
    return {
        "sort": sort,
        "columns": [column for column in columns if column not in _HIDDEN_COLUMNS],
        "attacks": [_attack(records, attack) for attack in attacks],
        "radius": max((shown_radius(records, attack) for attack in attacks), default=0),
        "records": [_entry(record) for record in records],
    }


def render_page(records: Sequence[Record], *, sort: str = DEFAULT_SORT) -> str:
    """The whole page as one HTML file."""
    parts = {
        "STYLE": _read("style.css"),
        "SCRIPT": "\n".join(_read(name) for name in _SCRIPTS),
        "DATA": script_safe(payload(records, sort=sort)),
    }
    # One pass, so that a record that contains a token stays what it is.
    return re.sub(r"@@(STYLE|SCRIPT|DATA)@@", lambda m: parts[m.group(1)], _read("template.html"))
