"""Writes the table of remedies in docs/repair.md from the registry.

python docs/make_remedies.py
"""

from __future__ import annotations

from pathlib import Path

from aft_models.repair import GROUPS, REMEDIES, Remedy

PAGE = Path(__file__).with_name("repair.md")
BEGIN, END = "<!-- the remedies, by docs/make_remedies.py -->\n", "<!-- end -->\n"


def table() -> str:
    """The remedies, in the order in which they are applied."""
    rows = [["remedy", "decides", "what it does", "exact for cyclic shifts by", "before training"]]
    rows.append(["---"] * len(rows[0]))
    groups = list(GROUPS)
    for remedy in sorted(REMEDIES.values(), key=lambda r: (groups.index(r.group), r.name)):
        rows.append(_row(remedy))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(remedy: Remedy) -> list[str]:
    name, what, number = remedy.name, remedy.summary, remedy.number
    if number is not None:
        name = f"{name}[:n]"
        what += f"; n: {number.meaning}, {number.lowest} to {number.highest} ({number.default})"
    exact = {"none": "", "all": "any distance"}.get(remedy.exact, remedy.exact)
    if exact and remedy.group == "sampling":
        exact += ", with `circular`"
    training = "usable"
    if remedy.learns:
        training = "its own parameters must be trained"
    elif remedy.needs_finetuning:
        training = "fine-tune"
    return [f"`{name}`", GROUPS[remedy.group], what, exact, training]


def main() -> None:
    """Replaces what stands between the two marks."""
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + table() + END + after, "utf-8")


if __name__ == "__main__":
    main()
