"""Write the table of remedies in docs/repair.md.

python docs/make_remedies.py
"""

from __future__ import annotations

from pathlib import Path

from aft_models.remedies import GROUPS, REMEDIES, Remedy

PAGE = Path(__file__).with_name("repair.md")
BEGIN, END = "<!-- the remedies, by docs/make_remedies.py -->\n", "<!-- end -->\n"


def table() -> str:
    """Return the table, in the order of application."""
    rows = [["remedy", "decides", "what it does", "exact for cyclic", "before training"]]
    rows.append(["---"] * len(rows[0]))
    groups = list(GROUPS)
    for remedy in sorted(REMEDIES.values(), key=lambda r: (groups.index(r.group), r.name)):
        rows.append(_row(remedy))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(remedy: Remedy) -> list[str]:
    name, what = remedy.name, remedy.summary
    for letter, number in zip("nm", remedy.numbers, strict=False):
        name += f"[:{letter}]"
        what += f"; {letter}: {number.meaning}, {number.lowest} to {number.highest}"
        what += f" ({number.default})"
    exact = "" if remedy.exact == "none" else remedy.exact
    if exact and remedy.group == "sampling":
        exact += ", with `circular`"
    training = "fine-tune" if remedy.needs_finetuning else "usable"
    return [f"`{name}`", GROUPS[remedy.group], what, exact, training]


def main() -> None:
    """Replace the text between the two marks."""
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + table() + END + after, "utf-8")


if __name__ == "__main__":
    main()
