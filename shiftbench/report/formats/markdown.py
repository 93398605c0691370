"""Markdown, and the part of a README that a table is kept in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from shiftbench.errors import UsageError
from shiftbench.files import write_atomic
from shiftbench.report.formats.base import FORMATS, Format, grid, marked, titles
from shiftbench.report.ranking import Measured
from shiftbench.report.table import Table

LEADERBOARD = "leaderboard"


def markers(name: str) -> tuple[str, str]:
    """The lines that a table of this name stands between.

    >>> markers("leaderboard")[0]
    '<!-- leaderboard:start -->'
    """
    return f"<!-- {name}:start -->", f"<!-- {name}:end -->"


START_MARKER, END_MARKER = markers(LEADERBOARD)


def _markdown_escape(text: str) -> str:
    """Makes a name from a record plain text in a Markdown cell, HTML included."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]()#|~!])", r"\\\1", text)
    return " ".join(text.split())


def _table(table: Table, intervals: bool) -> str:
    def score(cell: Measured) -> str:
        text = cell.score.text()
        text = marked(cell, f"**{text}**" if cell.best else text)
        detail = f"{cell.score.interval()} " if intervals else ""
        detail += f"n={cell.score.n:,}" if cell.own_n else ""
        return f"{text}<br><sub>{detail.strip()}</sub>" if detail else text

    header = titles(table)
    rule = ["---"] + ["---:"] * (len(header) - 1)
    body = grid(table, escape=_markdown_escape, score=score)
    lines = ["| " + " | ".join(line) + " |" for line in (header, rule, *body)]
    return "\n".join(lines) + "\n\n" + table.notes(intervals=intervals) + "\n"


def to_markdown(tables: Sequence[Table], intervals: bool = True) -> str:
    """One Markdown table per group, the best of each column in bold."""
    return "\n".join(
        f"**{_markdown_escape(table.label)}**\n\n" + _table(table, intervals) for table in tables
    )


def update_between_markers(path: Path, content: str, *, name: str = LEADERBOARD) -> bool:
    """Replaces what stands between two markers of a file; returns whether it was different."""
    text = path.read_text(encoding="utf-8")
    first, last = markers(name)
    start, end = text.find(first), text.find(last)
    if start < 0 or end < start:
        raise UsageError(
            f"{path} has no place for the table: put the lines {first} and {last} where it should "
            "go"
        )
    new = f"{text[: start + len(first)]}\n{content.strip()}\n{text[end:]}"
    if new != text:
        write_atomic(path, new.encode())
    return new != text


FORMATS.register(
    "markdown",
    Format(
        (".md",),
        lambda report: to_markdown(report.tables, report.intervals),
        "tables for a README, a wiki or an issue",
    ),
)
