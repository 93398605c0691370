"""Write the tables of shift types and attacks in docs/reference/protocol.md.

python docs/make_attacks.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path

from shiftbench.report.formats import update_between_markers
from shiftbench.shifts import ATTACKS, SHIFTS

PAGE = Path(__file__).parent / "reference" / "protocol.md"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shifts() -> str:
    """Tabulate every shift type with the first line of its docstring."""
    rows = []
    for kind in SHIFTS:
        words, _, _ = inspect.getdoc(type(SHIFTS.get(kind))).partition("\n")  # type: ignore[union-attr]
        rows.append([kind, words[0].lower() + words[1:].rstrip(".")])
    return _table(["shift type", "definition"], rows)


def attacks() -> str:
    """Tabulate every attack with the extent and margin of its grid at the default radius."""
    titles = ["attack", "shift type", "step", "default s", "margin", "what it does", "in `all`"]
    rows = []
    for attack in map(ATTACKS.get, ATTACKS):
        grid = attack.grid()
        margin = SHIFTS.get(attack.shift).margin(grid)
        reach = f"{grid.radius}: {grid.reach} {attack.unit}"
        name, step = f"`{attack.name}`", f"{attack.step} {attack.unit}"
        all_ = "no" if attack.opt_in else "rendered" if attack.shift == "camera" else "yes"
        rows.append([name, attack.shift, step, reach, f"{margin} px", attack.summary, all_])
    return _table(titles, rows)


TABLES = {"shifts": shifts, "attacks": attacks}


if __name__ == "__main__":
    for name, make in TABLES.items():
        update_between_markers(PAGE, make(), name=name)
