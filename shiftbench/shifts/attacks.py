"""Attacks: a kind of shift and the step of the grid it is searched over."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from shiftbench.grid import Grid
from shiftbench.registry import Registry

DEFAULT_RADIUS = 6  # steps, for every attack of the paper
PAPER_ATTACKS = ("integer", "half", "crop", "bilinear")


@dataclass(frozen=True)
class Attack:
    """A worst-case search: which shift moves the image, over which lattice of offsets.

    >>> len(ATTACKS.get("half").grid(6)), ATTACKS.get("half").grid(6).reach
    (169, Fraction(3, 1))
    """

    name: str
    shift: str  # a kind registered in shiftbench.shifts
    step: Fraction  # pixels between neighboring offsets
    summary: str  # one line for `shiftbench list attacks`
    opt_in: bool = False  # not one of `all`: only where the user asks for it

    def grid(self, radius: int = DEFAULT_RADIUS) -> Grid:
        """The grid of this attack up to `radius` steps."""
        return Grid(radius, self.step)


ATTACKS: Registry[Attack] = Registry("attack")

for _attack in (
    Attack("integer", "cyclic", Fraction(1), "cyclic shifts by whole pixels (T_integer)"),
    Attack("half", "cyclic", Fraction(1, 2), "cyclic sinc shifts by half pixels (T_half)"),
    Attack("crop", "crop", Fraction(1), "the crop window moves by whole pixels"),
    Attack("bilinear", "bilinear", Fraction(1, 6), "bilinear resampling by sixths of a pixel"),
    Attack(
        "lanczos",
        "lanczos",
        Fraction(1, 6),
        "resampling by sixths of a pixel that hardly blurs",
        opt_in=True,
    ),
    Attack("camera", "camera", Fraction(1, 6), "the scene is rendered again from the moved camera"),
):
    ATTACKS.register(_attack.name, _attack)
