"""LaTeX: booktabs tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from shiftbench.report.formats.base import (
    FORMATS,
    Format,
    grid,
    marked,
    plain_columns,
    titles,
)
from shiftbench.report.ranking import Measured
from shiftbench.report.table import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: rf"\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "≤": r"$\le$",
    "†": r"$\dagger$",
    "↓": r"$\downarrow$",
}


def latex_escape(text: str) -> str:
    """Makes a name from a record plain text in LaTeX."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _header(table: Table) -> list[str]:
    plain, scored = plain_columns(table), table.measured_columns()
    first, rules, at = [""] * len(plain), [], len(plain) + 1
    for family, members in groupby(scored, key=lambda column: column.family):
        width = len(list(members))
        if family:
            first.append(rf"\multicolumn{{{width}}}{{c}}{{{family}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        else:
            first += [""] * width
        at += width
    names = [column.title for column in plain] + [column.short_title for column in scored]
    lines = [" & ".join(first) + r" \\", " ".join(rules)] if rules else []
    return [*lines, " & ".join(latex_escape(name) for name in names) + r" \\"]


def _table(table: Table, intervals: bool) -> str:
    def score(cell: Measured) -> str:
        text = cell.score.text()
        text = marked(cell, rf"\textbf{{{text}}}" if cell.best else text)
        text = text.replace("≤ ", r"$\le$\,").replace(" †", r"$^\dagger$")
        detail = f"{cell.score.interval()} " if intervals else ""
        detail += f"$n$={cell.score.n}" if cell.own_n else ""
        return rf"{text} {{\scriptsize {detail.strip()}}}" if detail else text

    body = grid(table, escape=latex_escape, score=score)
    caption = latex_escape(f"{table.label}. {table.notes(intervals=intervals)}")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(titles(table)) - 1)}}}",
            r"\toprule",
            *_header(table),
            r"\midrule",
            *(" & ".join(line) + r" \\" for line in body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_latex(tables: Sequence[Table], intervals: bool = False) -> str:
    """One booktabs table per group, the best of each column in bold."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(_table(t, intervals) for t in tables)


FORMATS.register(
    "latex",
    Format(
        (".tex",),
        lambda report: to_latex(report.tables, report.intervals),
        "booktabs tables with captions",
        intervals=False,
    ),
)
