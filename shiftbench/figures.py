"""Colors, dashes and markers of models in figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Okabe and Ito's color-blind-safe palette without yellow, which is invisible on white. The periods
# of colors, dashes and markers are 7, 4 and 5: 140 curves differ, 20 of them without color.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Dash = tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "P")


@dataclass(frozen=True)
class Look:
    """Style of one model everywhere in a figure."""

    color: str
    dash: Dash
    marker: str

    @classmethod
    def number(cls, index: int) -> Look:
        """Return the style of the index-th model."""
        return cls(
            COLORS[index % len(COLORS)],
            DASHES[index % len(DASHES)],
            MARKERS[index % len(MARKERS)],
        )

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of a matplotlib line."""
        line = {"color": self.color, "linestyle": self.dash, "marker": self.marker}
        return {**line, "linewidth": 1.8}
