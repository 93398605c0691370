"""Attacks: a kind of shift and the grid it is searched over. Each registers beside its shift."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from shiftbench.errors import UsageError
from shiftbench.grid import Grid, Line
from shiftbench.registry import Registry

DEFAULT_RADIUS = 6  # steps, for every attack of the paper
PAPER_ATTACKS = ("integer", "half", "crop", "bilinear")


@dataclass(frozen=True)
class Attack:
    """A worst-case search: which shift moves the image, over which grid of offsets.

    >>> len(ATTACKS.get("half").grid(6)), ATTACKS.get("half").grid(6).reach
    (169, Fraction(3, 1))
    """

    name: str
    shift: str  # a kind registered in shiftbench.shifts
    step: Fraction  # between neighboring offsets, in `unit`
    summary: str  # one line for `shiftbench list attacks`
    opt_in: bool = False  # not one of `all`: only where the user asks for it
    unit: str = "px"  # what offsets are counted in; such as "°" for a rotation
    axes: int = 2  # a square of offsets; 1: a line, for a shift with one parameter, `Offset.dy`

    def grid(self, radius: int = DEFAULT_RADIUS) -> Grid:
        """The grid of this attack up to `radius` steps."""
        return (Grid if self.axes == 2 else Line)(radius, self.step)


ATTACKS: Registry[Attack] = Registry("attack")


def parse_attack(text: str) -> Attack:
    """The attack of `NAME` or `NAME:STEP`.

    >>> parse_attack("bilinear").step, parse_attack("bilinear:1/4").step
    (Fraction(1, 6), Fraction(1, 4))
    """
    name, colon, step = text.partition(":")
    attack = ATTACKS.get(name)
    return replace(attack, step=parse_step(step)) if colon else attack


def parse_step(text: str) -> Fraction:
    """The distance between neighboring offsets of a grid.

    >>> parse_step("1/6")
    Fraction(1, 6)
    """
    try:
        return Grid(0, Fraction(text)).step
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"expected a step such as 1, 0.5 or 1/6, got {text!r}") from error
