"""The leaderboard for people: Markdown and LaTeX, and the part of a README it is kept in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from shiftbench.errors import UsageError
from shiftbench.files import write_atomic
from shiftbench.records.choose import pixels
from shiftbench.report.table import Cell, Measured, Row, Table
from shiftbench.statistics import Score

START_MARKER = "<!-- leaderboard:start -->"
END_MARKER = "<!-- leaderboard:end -->"

_PLAIN_COLUMNS = ("model", "images", "param_count", "img_size")
_TITLES = {"model": "model", "images": "images", "param_count": "params", "img_size": "px"}


def count(number: int) -> str:
    """A count for people: 3053224 -> `3.05M`."""
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


def title(column: str) -> str:
    """A column's name for people: `adversarial_crop` -> `adversarial crop`."""
    return _TITLES.get(column, column.replace("_", " "))


def interval(score: Score) -> str:
    """The Wilson interval in percent: `[78.9, 83.3]`."""
    return f"[{100 * score.low:.1f}, {100 * score.high:.1f}]"


def reach_note(table: Table, columns: Sequence[str]) -> str:
    """What the adversarial columns mean: how far each grid reaches."""
    parts = [
        f"{attack} {f'{radius} steps' if (px := pixels(attack, radius)) is None else f'{px} px'}"
        for attack, radius in table.radius.items()
        if f"adversarial_{attack}" in columns
    ]
    return f"adversarial: right at every shift up to {', '.join(parts)}" if parts else ""


def notes(table: Table, columns: Sequence[str], *, intervals: bool = True) -> str:
    """The sentence under a table: units, what adversarial means, what marks mean."""
    found = ["Percent with Wilson 95% intervals" if intervals else "Percent"]
    if reach := reach_note(table, columns):
        found.append(reach)
    cells = [row.cells[column] for row in table.rows for column in columns]
    if any(isinstance(cell, Measured) and cell.upper_bound for cell in cells):
        found.append("≤: an upper bound, from a search that sampled its grid")
    return "; ".join(found) + "."


def _is_best(cell: Cell, best: float | None) -> bool:
    return (
        isinstance(cell, Measured)
        and not cell.upper_bound
        and best is not None
        and round(100 * cell.score.value, 1) == best
    )


def _plain(row: Row, column: str) -> str:
    cell = row.cells[column]
    assert isinstance(cell, str | int)
    if column == "param_count":
        return count(int(cell))
    return cell if isinstance(cell, str) else f"{cell:,}"


def _grid_of_text(
    table: Table,
    columns: Sequence[str],
    *,
    escape: Callable[[str], str],
    score: Callable[[Measured, bool, bool], str],
) -> list[list[str]]:
    """Every cell as text; `score` gets a cell, whether it is the best, and whether n is its own."""
    best = {column: table.best(column) for column in columns}
    lines = []
    for row in table.rows:
        line = [escape(_plain(row, column)) for column in _PLAIN_COLUMNS]
        for column in columns:
            cell = row.cells[column]
            if isinstance(cell, Measured):
                own_n = cell.score.n != row.record.data.images
                line.append(score(cell, _is_best(cell, best[column]), own_n))
            else:
                line.append("")
        lines.append(line)
    return lines


# --- Markdown


def _markdown_escape(text: str) -> str:
    """Makes a name from a record plain text in a Markdown cell, HTML included."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]()#|~!])", r"\\\1", text)
    return " ".join(text.split())


def _markdown_table(table: Table, *, intervals: bool) -> str:
    columns = table.measured_columns()

    def score(cell: Measured, best: bool, own_n: bool) -> str:
        text = f"{100 * cell.score.value:.1f}"
        text = f"**{text}**" if best else text
        text = f"≤ {text}" if cell.upper_bound else text
        detail = f"{interval(cell.score)} " if intervals else ""
        detail += f"n={cell.score.n:,}" if own_n else ""
        return f"{text}<br><sub>{detail.strip()}</sub>" if detail else text

    header = [title(c) for c in (*_PLAIN_COLUMNS, *columns)]
    rule = ["---"] + ["---:"] * (len(header) - 1)
    body = _grid_of_text(table, columns, escape=_markdown_escape, score=score)
    lines = ["| " + " | ".join(line) + " |" for line in (header, rule, *body)]
    return "\n".join(lines) + "\n\n" + notes(table, columns, intervals=intervals) + "\n"


def to_markdown(table: Table, *, intervals: bool = True) -> str:
    """One Markdown table per data set, the best of each column in bold."""
    return "\n".join(
        f"**{_markdown_escape(name)}**\n\n" + _markdown_table(part, intervals=intervals)
        for name, part in table.split_by_data().items()
    )


def update_between_markers(path: Path, content: str) -> bool:
    """Replaces what stands between the markers of a file; returns whether it was different."""
    text = path.read_text(encoding="utf-8")
    start, end = text.find(START_MARKER), text.find(END_MARKER)
    if start < 0 or end < start:
        raise UsageError(
            f"{path} has no place for the table: put the lines {START_MARKER} and {END_MARKER} "
            "where it should go"
        )
    new = f"{text[: start + len(START_MARKER)]}\n{content.strip()}\n{text[end:]}"
    if new != text:
        write_atomic(path, new.encode())
    return new != text


# --- LaTeX

_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: rf"\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "≤": r"$\le$",
}


def latex_escape(text: str) -> str:
    """Makes a name from a record plain text in LaTeX."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _column_groups(columns: Sequence[str]) -> list[tuple[str, int]]:
    """Neighbouring columns of one family: (`consistency`, 3), (`adversarial`, 4)."""
    groups: list[tuple[str, int]] = []
    for column in columns:
        family = column.split("_")[0] if "_" in column else ""
        if groups and family and groups[-1][0] == family:
            groups[-1] = (family, groups[-1][1] + 1)
        else:
            groups.append((family, 1))
    return groups


def _latex_header(columns: Sequence[str]) -> list[str]:
    first, rules, at = [""] * len(_PLAIN_COLUMNS), [], len(_PLAIN_COLUMNS) + 1
    for family, width in _column_groups(columns):
        heading = rf"\multicolumn{{{width}}}{{c}}{{{family}}}" if family else ""
        first.append(heading)
        if family:
            rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        at += width
    names = [title(c) for c in _PLAIN_COLUMNS] + [c.split("_")[-1] for c in columns]
    lines = [" & ".join(first) + r" \\", " ".join(rules)] if rules else []
    return [*lines, " & ".join(latex_escape(name) for name in names) + r" \\"]


def _latex_table(name: str, table: Table, *, intervals: bool) -> str:
    columns = table.measured_columns()

    def score(cell: Measured, best: bool, own_n: bool) -> str:
        text = f"{100 * cell.score.value:.1f}"
        text = rf"\textbf{{{text}}}" if best else text
        text = rf"$\le$\,{text}" if cell.upper_bound else text
        detail = f"{interval(cell.score)} " if intervals else ""
        detail += f"$n$={cell.score.n}" if own_n else ""
        return rf"{text} {{\scriptsize {detail.strip()}}}" if detail else text

    body = _grid_of_text(table, columns, escape=latex_escape, score=score)
    caption = latex_escape(notes(table, columns, intervals=intervals))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_escape(name)}. {caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(_PLAIN_COLUMNS) - 1 + len(columns))}}}",
            r"\toprule",
            *_latex_header(columns),
            r"\midrule",
            *(" & ".join(line) + r" \\" for line in body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_latex(table: Table, *, intervals: bool = False) -> str:
    """One booktabs table per data set, the best of each column in bold."""
    parts = table.split_by_data().items()
    tables = [_latex_table(name, part, intervals=intervals) for name, part in parts]
    return "% needs \\usepackage{booktabs}\n" + "\n".join(tables)
