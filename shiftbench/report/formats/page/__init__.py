"""The leaderboard as one self-contained page: no network, opens from disk.

Python formats, ranks and judges every cell, at every max shift; the script only chooses which of
them to show. It builds everything as text nodes, so nothing that stands in a record can become
markup, and the content security policy of the page forbids loading anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from shiftbench.report.formats.base import FORMATS, Format, Report
from shiftbench.report.formats.page.groups import describe_group
from shiftbench.report.published import PROTOCOLS, SIDE_BY_SIDE_HEADS, Published
from shiftbench.report.table import Table

__all__ = ["payload", "render_page", "script_safe"]

_SCRIPTS = (
    *("state.js", "charts.js", "overview.js", "table.js", "figures.js", "detail.js"),
    *("published.js", "main.js"),
)


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def script_safe(content: Any) -> str:
    r"""JSON that can stand inside a script element: no `<` can end it or open a comment.

    >>> script_safe(["</script>"])
    '["\\u003c/script>"]'
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def payload(report: Report) -> dict[str, Any]:
    """What the page's script reads. It opens on ImageNet, then on the table of most models."""

    def first(table: Table) -> tuple[bool, int]:
        return table.rows[0].record.data.name != "imagenet", -len(table.rows)

    return {
        "intervals": report.intervals,
        "groups": [describe_group(table) for table in sorted(report.tables, key=first)],
        "published": _published(report),
    }


def _published(report: Report) -> list[dict[str, Any]]:
    """For each data set, a table of each source, with a row per model."""
    tables: dict[str, list[dict[str, Any]]] = {}
    if report.side_by_side:
        both = f"Published and measured here. {PROTOCOLS}."
        rows = [pair.cells() for pair in report.side_by_side]
        tables["imagenet"] = [{"source": both, "heads": SIDE_BY_SIDE_HEADS[1:], "rows": rows}]
    for data, source in dict.fromkeys((f.data, f.source) for f in report.published):
        figures = [f for f in report.published if (f.data, f.source) == (data, source)]
        tables.setdefault(data, []).append(_paper_table(source, figures))
    return [{"data": data, "tables": of_data} for data, of_data in tables.items()]


def _paper_table(source: str, figures: Sequence[Published]) -> dict[str, Any]:
    metrics = list(dict.fromkeys(figure.metric for figure in figures))
    values = {(figure.model, figure.metric): figure.value for figure in figures}
    rows = [
        [model, *(values.get((model, metric), "") for metric in metrics)]
        for model in dict.fromkeys(figure.model for figure in figures)
    ]
    return {"source": source, "heads": metrics, "rows": rows}


def render_page(report: Report) -> str:
    """The whole page as one HTML file."""
    parts = {
        "STYLE": _read("style.css"),
        "SCRIPT": "\n".join(_read(name) for name in _SCRIPTS),
        "DATA": script_safe(payload(report)),
    }
    # One pass, so that a record that contains a token stays what it is.
    return re.sub(r"@@(STYLE|SCRIPT|DATA)@@", lambda m: parts[m.group(1)], _read("template.html"))


FORMATS.register(
    "html",
    Format(
        (".html", ".htm"), render_page, "an interactive page in one file, with curves and details"
    ),
)
