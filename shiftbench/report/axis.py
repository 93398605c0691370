"""How far the rings of a curve's grid reach, in the unit of its attack."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from shiftbench.scores import ScoreName
from shiftbench.shifts import ATTACKS


@dataclass(frozen=True)
class ShiftAxis:
    """The axis of max shifts of one curve.

    >>> ShiftAxis.of(ScoreName("adversarial", "half")).reach(3)
    '3/2 px'
    """

    attack: str
    step: Fraction  # between rings, in `unit`
    unit: str  # the attack's own; "steps" where the attack is not known here
    summary: str = ""  # what the attack does, in a few words

    @classmethod
    def of(cls, name: ScoreName) -> ShiftAxis:
        """The axis of a score such as `adversarial_crop` or `adversarial_half[1/4]`."""
        kind, _, step = name.kind.partition("[")
        if kind not in ATTACKS:
            return cls(kind, Fraction(1), "steps")
        attack = ATTACKS.get(kind)
        if not step:
            return cls(kind, attack.step, attack.unit, attack.summary)
        own = Fraction(step.rstrip("]"))
        return cls(kind, own, attack.unit, f"{attack.summary}, in steps of {own} {attack.unit}")

    def tick(self, radius: int) -> str:
        """How far a ring reaches, without the unit."""
        return str(radius * self.step)

    def reach(self, radius: int) -> str:
        """How far a ring reaches: `6 px`."""
        return f"{self.tick(radius)} {self.unit}"
