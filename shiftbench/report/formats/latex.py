"""LaTeX: booktabs tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from shiftbench.report.formats.base import FORMATS, PLAIN, Format, grid, marked
from shiftbench.report.table import Column, Measured, Table

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


def _name(column: Column) -> str:
    """What stands below the family: the kind alone."""
    return column.title.removeprefix(column.group).strip()


def _header(columns: Sequence[Column]) -> list[str]:
    first, rules, at = [""] * len(PLAIN), [], len(PLAIN) + 1
    for family, members in groupby(columns, key=lambda column: column.group):
        width = len(list(members))
        if family:
            first.append(rf"\multicolumn{{{width}}}{{c}}{{{family}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        else:
            first += [""] * width
        at += width
    names = [Column(name).title for name in PLAIN]
    names += [_name(column) for column in columns]
    lines = [" & ".join(first) + r" \\", " ".join(rules)] if rules else []
    return [*lines, " & ".join(latex_escape(name) for name in names) + r" \\"]


def _table(table: Table, intervals: bool) -> str:
    columns = table.measured_columns()

    def score(cell: Measured) -> str:
        text = cell.score.text()
        text = marked(cell, rf"\textbf{{{text}}}" if cell.best else text)
        text = text.replace("≤ ", r"$\le$\,").replace(" †", r"$^\dagger$")
        detail = f"{cell.score.interval()} " if intervals else ""
        detail += f"$n$={cell.score.n}" if cell.own_n else ""
        return rf"{text} {{\scriptsize {detail.strip()}}}" if detail else text

    body = grid(table, columns, escape=latex_escape, score=score)
    caption = latex_escape(f"{table.label}. {table.notes(intervals=intervals)}")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(PLAIN) - 1 + len(columns))}}}",
            r"\toprule",
            *_header(columns),
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


FORMATS.register("latex", Format((".tex",), to_latex, intervals=False))
