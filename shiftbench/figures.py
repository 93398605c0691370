"""How models are drawn: colors, dashes and markers that tell many of them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Okabe and Ito's color-blind-safe palette without its yellow, which is lost on white. Color, dash
# and marker have periods 7, 4 and 5, so that 140 curves differ, and in black and white 20 do.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Dash = tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "P")


@dataclass(frozen=True)
class Look:
    """How one model is drawn, everywhere in a figure."""

    color: str
    dash: Dash
    marker: str

    @classmethod
    def number(cls, index: int) -> Look:
        """The look of the index-th model."""
        return cls(
            COLORS[index % len(COLORS)],
            DASHES[index % len(DASHES)],
            MARKERS[index % len(MARKERS)],
        )

    @property
    def line(self) -> dict[str, Any]:
        """What matplotlib calls it."""
        line = {"color": self.color, "linestyle": self.dash, "marker": self.marker}
        return {**line, "linewidth": 1.8}
