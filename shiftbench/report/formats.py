"""Tables as text: CSV, Markdown, LaTeX and the metadata of model cards."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from shiftbench.errors import UsageError
from shiftbench.files import csv_safe, write_atomic
from shiftbench.records.compare import Difference
from shiftbench.records.result import Result
from shiftbench.report.page import render_page
from shiftbench.report.scores import FACTS, STANDARD, Cell, Table, fact_text, further_order
from shiftbench.scores import ScoreName

FACT_TITLES = {"param_count": "params", "img_size": "px", "forward_passes": "passes"}
FIRST_FACTS = ("model", "data", "images", "param_count", "img_size")  # of a CSV file
LAST_FACTS = ("forward_passes", "date")
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"†": r"$^\dagger$", "↓": r"$\downarrow$"}
)
TASK = {"type": "image-classification", "name": "Image classification under shifts"}


def to_csv(tables: Sequence[Table], *, intervals: bool = True) -> str:
    """Return a row per record, in percent, with the columns of timm's result files first."""
    curves = dict.fromkeys(column.curve for table in tables for column in table.columns)
    restricted = any(table.restricted for table in tables)
    standard = [name for name in STANDARD if name in curves or not restricted]
    further = sorted(curves.keys() - {*STANDARD}, key=further_order)
    rows = []
    for table in tables:
        first = ("model", *table.facts) if table.restricted else FIRST_FACTS
        last = () if table.restricted else LAST_FACTS
        about = {"scores_in": "percent", "max_shift": table.extents()}
        at = {column.curve: column for column in table.columns}
        for result in table.rows:
            conditions = ", ".join(f"{name} {value}" for name, value in result.conditions.items())
            cells = {name: table.get(result, column) for name, column in at.items()}
            rows.append(
                {name: FACTS[name](result) for name in first}
                | _percentages(cells, standard, intervals)
                | {name: FACTS[name](result) for name in last}
                | _percentages(cells, further, intervals)
                | {"conditions": conditions, "geometry": result.data.geometry_text, **about}
            )
    return _csv_text(rows)


def _percentages(
    cells: Mapping[ScoreName, Cell | None], names: Sequence[ScoreName], intervals: bool
) -> dict[str, str]:
    columns = {}
    for name in names:
        for end in ("value", "low", "high") if intervals else ("value",):
            cell = cells.get(name)
            title = name.column if end == "value" else f"{name.column}_{end}"
            columns[title] = "" if cell is None else f"{100 * getattr(cell.value, end):.2f}"
    return columns


def _csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_safe, rows[0]))
    writer.writerows(map(csv_safe, row.values()) for row in rows)
    return out.getvalue()


def to_images_csv(results: Sequence[Result]) -> str:
    """Return a row per record and image: prediction, and first misclassified offset per attack."""
    frames = []
    for result in results:
        frame = result.to_frame()
        frame["key"] = frame["key"].map(csv_safe)
        frame.insert(0, "data", csv_safe(result.data.name))
        frame.insert(0, "model", csv_safe(result.model.name))
        frames.append(frame)
    text: str = pd.concat(frames, ignore_index=True).to_csv(index=False, lineterminator="\n")
    return text


def _lines(
    table: Table,
    *,
    bold: Callable[[str], str],
    detail: Callable[[str], str],
    escape: Callable[[str], str],
    intervals: bool,
) -> list[list[str]]:
    """Format the head and the rows of a table; a cell is empty if nothing was measured."""

    def text(cell: Cell | None) -> str:
        if cell is None:
            return ""
        score = cell.value
        value = bold(score.text()) if cell.best else score.text()
        value += f" {escape('†')}" if cell.unlike else ""
        parts = [score.interval()] * intervals
        parts += [f"n={score.n:,}"] * (score.n != cell.result.data.images)
        return value + (detail(" ".join(parts)) if parts else "")

    facts = ("model", *table.facts)
    titles = [FACT_TITLES.get(name, name) for name in facts]
    lines = [[escape(title) for title in (*titles, *map(table.title, table.columns))]]
    for row in table.rows:
        own = [escape(fact_text(row, name)) for name in facts]
        lines.append([*own, *(text(table.get(row, column)) for column in table.columns)])
    return lines


def to_markdown(tables: Sequence[Table], *, intervals: bool = True) -> str:
    """Return one Markdown table per group of comparable records."""
    parts = []
    for table in tables:
        head, *body = _lines(
            table,
            bold=lambda text: f"**{text}**",
            detail=lambda text: f"<br><sub>{text}</sub>",
            escape=markdown_escape,
            intervals=intervals,
        )
        rule = ["---", *["---:"] * (len(head) - 1)]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))
        notes = markdown_escape(table.notes(intervals=intervals))
        parts.append(f"**{markdown_escape(table.label)}**\n\n{rows}\n\n{notes}\n")
    return "\n".join(parts)


def markdown_escape(text: str) -> str:
    r"""Escape a text for a Markdown cell, HTML included.

    >>> print(markdown_escape("a_b|<c>"))
    a\_b\|&lt;c&gt;
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(re.sub(r"([\\`*_{}\[\]#|~!])", r"\\\1", text).split())


def to_latex(tables: Sequence[Table], *, intervals: bool = False) -> str:
    """Return one booktabs table per group of comparable records."""
    lines = ["% needs \\usepackage{booktabs}"]
    for table in tables:
        head, *body = _lines(
            table,
            bold=lambda text: rf"\textbf{{{text}}}",
            detail=lambda text: rf" {{\scriptsize {text}}}",
            escape=latex_escape,
            intervals=intervals,
        )
        lines += _booktabs(head, body, f"{table.label}. {table.notes(intervals=intervals)}")
    return "\n".join(lines)


def _booktabs(head: Sequence[str], body: Sequence[Sequence[str]], caption: str) -> list[str]:
    """Return the lines of a table; cells are LaTeX already, the caption is not."""
    return [
        *(r"\begin{table}", r"\centering", rf"\caption{{{latex_escape(caption)}}}"),
        *(rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule"),
        *(" & ".join(head) + r" \\", r"\midrule"),
        *(" & ".join(line) + r" \\" for line in body),
        *(r"\bottomrule", r"\end{tabular}", r"\end{table}", ""),
    ]


def differences_to_latex(baseline: Result, differences: Sequence[Difference]) -> str:
    """Return a booktabs table of paired differences to a baseline, in points."""
    known = {(one.model.model.name, one.name.curve): one for one in differences}
    curves = list(dict.fromkeys(curve for _, curve in known))
    first = {one.name.curve: one.baseline for one in reversed(differences)}
    body = [[latex_escape(f"{baseline.model.name} (baseline)"), *(first[c].text() for c in curves)]]
    for model in dict.fromkeys(name for name, _ in known):
        cells = []
        for curve in curves:
            one = known.get((model, curve))
            if one is None:
                cells.append("")
                continue
            low, high = (f"{100 * end:+.1f}" for end in (one.test.low, one.test.high))
            star = "*" * one.test.is_significant
            cells.append(f"{100 * one.test.difference:+.1f}{star} {{\\scriptsize [{low}, {high}]}}")
        body.append([latex_escape(model), *cells])
    head = ["model", *(latex_escape(curve.column.replace("_", " ")) for curve in curves)]
    caption = (
        f"{baseline.data}. Baseline in percent, models as paired differences to it in points "
        "with 95% intervals. *: p < 0.05."
    )
    return "\n".join(["% needs \\usepackage{booktabs}", *_booktabs(head, body, caption)])


def latex_escape(text: str) -> str:
    """Escape a text for LaTeX."""
    return " ".join(text.split()).translate(LATEX)


def to_model_card(tables: Sequence[Table]) -> str:
    """Return the `model-index` block of a Hugging Face model card, in fractions."""
    entries: dict[str, list[dict[str, Any]]] = {}
    for table in tables:
        for row in table.rows:
            cells = [cell for c in table.columns if (cell := table.get(row, c)) is not None]
            geometry = row.data.geometry
            shown = {key: geometry[key] for key in ("view", "resize", "crop", "pad")}
            dataset = {"type": row.data.name, "name": row.data.name, "split": row.data.split}
            entries.setdefault(row.model.name, []).append(
                {
                    "task": dict(TASK),
                    "dataset": {**dataset, "args": {"images": row.data.images, **shown}},
                    "metrics": [_card_metric(table, cell) for cell in cells],
                }
            )
    index = [{"name": name, "results": results} for name, results in entries.items()]
    content = {"model-index": index}
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    return text


def _card_metric(table: Table, cell: Cell) -> dict[str, Any]:
    score, request = cell.value, cell.result.request_of(cell.name)
    words = [table.title(cell.name)]
    if cell.extent:
        words.append(f"every shift up to {cell.extent}")
    interval = f"95% interval {score.low:.4g} to {score.high:.4g}, n = {score.n:,}"
    settings = {} if request is None else dict(request.settings)
    radius = {} if cell.name.radius is None else {"radius": cell.name.radius}
    return {
        "type": cell.name.stem,
        "name": f"{', '.join(words)} ({interval})",
        "value": float(f"{score.value:.4g}"),
        "args": {**settings, **radius},
    }


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {  # by the ending of the file
    ".csv": to_csv,
    ".md": to_markdown,
    ".tex": to_latex,
    ".html": render_page,
    ".htm": render_page,
    ".yaml": to_model_card,
    ".yml": to_model_card,
}


def markers(name: str) -> tuple[str, str]:
    """Return the lines around a table in a Markdown file.

    >>> markers("leaderboard")[0]
    '<!-- leaderboard:start -->'
    """
    return f"<!-- {name}:start -->", f"<!-- {name}:end -->"


def update_between_markers(path: Path, content: str, *, name: str = "leaderboard") -> bool:
    """Replace the text between two markers of a file.

    Returns:
        True if the text was different.
    """
    text = path.read_text(encoding="utf-8")
    first, last = markers(name)
    start, end = text.find(first), text.find(last)
    if start < 0 or end < start:
        raise UsageError(
            f"cannot update {path}: it has no markers. Add the lines {first} and {last} around "
            "the table"
        )
    new = f"{text[: start + len(first)]}\n{content.strip()}\n{text[end:]}"
    if new != text:
        write_atomic(path, new.encode())
    return new != text
