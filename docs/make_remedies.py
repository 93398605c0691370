"""Write the table of remedies in docs/reference/remedies.md.

python docs/make_remedies.py
"""

from __future__ import annotations

from pathlib import Path

from aft_models.remedies import GROUPS, REMEDIES, Remedy
from shiftbench.report.formats import update_between_markers

PAGE = Path(__file__).parent / "reference" / "remedies.md"


def table() -> str:
    """Return the table, in the order of application."""
    rows = [["remedy", "decides", "what it does", "exact for cyclic", "before training"]]
    rows.append(["---"] * len(rows[0]))
    groups = list(GROUPS)
    for remedy in sorted(REMEDIES.values(), key=lambda r: (groups.index(r.group), r.name)):
        rows.append(_row(remedy))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(remedy: Remedy) -> list[str]:
    name, what = remedy.name, remedy.summary
    letters = ("m", "scale") if len(remedy.numbers) > 1 else ("n",)
    for letter, number in zip(letters, remedy.numbers, strict=False):
        name += f"[:{letter}"
        what += f"; {letter}: {number.meaning}, {number.lowest} to {number.highest}"
        what += f" ({number.default})"
    name += "]" * len(remedy.numbers)
    exact = "" if remedy.exact == "none" else remedy.exact
    if exact and remedy.group == "sampling":
        exact += ", with `circular`"
    training = "fine-tune" if remedy.needs_finetuning else "usable"
    return [f"`{name}`", GROUPS[remedy.group], what, exact, training]


if __name__ == "__main__":
    update_between_markers(PAGE, table(), name="remedies")
