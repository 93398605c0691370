"""What a remedy is, the table of all of them, and how they are written.

A remedy is written by its name, some with a number: ``circular``, ``blurpool:3``; several are
joined by ``+``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext, RepairReport

# What a remedy decides; of each group one remedy at most can hold. Applied in this order.
GROUPS = {
    "border": "how maps are padded",
    "sampling": "how layers sub-sample",
    "image": "where the image lies",
}


@dataclass(frozen=True)
class Number:
    """The number that follows a remedy's name."""

    meaning: str
    lowest: int
    highest: int
    default: int


@dataclass(frozen=True)
class Remedy:
    """One way to make a model hold still."""

    name: str
    group: Literal["border", "sampling", "image"]
    summary: str  # what it does, in a line
    exact_for: str  # the shifts that leave a model unchanged that has nothing else to blame
    apply: Callable[[RepairContext, int], None]  # changes the layers of a model in place
    needs_finetuning: bool  # whether pretrained weights lose accuracy before more training
    learns: bool = False  # whether it brings parameters that mean nothing untrained
    number: Number | None = None

    @property
    def wraps(self) -> bool:
        """Whether it sits in front of the whole model instead of in its layers."""
        return self.group == "image"


@dataclass(frozen=True)
class RemedySpec:
    """A remedy with its number."""

    remedy: Remedy
    number: int  # 0 where the remedy takes none

    def __str__(self) -> str:
        """As it is written; the default number is left out."""
        number = self.remedy.number
        plain = number is None or self.number == number.default
        return self.remedy.name if plain else f"{self.remedy.name}:{self.number}"

    def apply(self, patient: RepairContext) -> RepairReport:
        """Applies the remedy; finding nothing to change is an error."""
        before = _parameters(patient)
        self.remedy.apply(patient, self.number)
        if not patient.changes:
            reasons = [f"{o.where}: {o.why}" for o in patient.obstacles[:3]]
            seen = f" It could not reach {'; '.join(reasons)}." if reasons else ""
            raise AftModelsError(
                f"{self} finds nothing to change in {type(patient.model).__name__}, which leaves "
                f"it as it is.{seen}"
            )
        return RepairReport(
            remedy=str(self),
            changed=tuple(patient.changes),
            unchanged=tuple(patient.obstacles),
            new_parameters=_parameters(patient) - before,
            wraps=self.remedy.wraps,
            needs_finetuning=self.remedy.needs_finetuning,
        )


def _parameters(patient: RepairContext) -> int:
    return sum(p.numel() for p in patient.model.parameters())


REMEDIES: dict[str, Remedy] = {}


def register(remedy: Remedy) -> Remedy:
    """Adds a remedy to the table."""
    if remedy.name in REMEDIES:
        raise AftModelsError(f"a remedy named {remedy.name!r} is registered already")
    REMEDIES[remedy.name] = remedy
    return remedy


def parse(text: str) -> tuple[RemedySpec, ...]:
    """Reads remedies joined by ``+``, in the order in which they are applied.

    >>> [str(p) for p in parse("blurpool:3+circular")]
    ['circular', 'blurpool:3']
    """
    return in_order(_parse_one(part) for part in text.split("+"))


def in_order(prescriptions: Iterable[RemedySpec]) -> tuple[RemedySpec, ...]:
    """Sorted as they are applied; two remedies that decide the same thing are an error."""
    groups = list(GROUPS)
    ordered = sorted(prescriptions, key=lambda p: groups.index(p.remedy.group))
    for first, second in pairwise(ordered):
        if first.remedy is second.remedy:
            raise AftModelsError(f"{first.remedy.name} is given twice: once is enough")
        if first.remedy.group == second.remedy.group:
            raise AftModelsError(
                f"{first} and {second} contradict each other, since both decide "
                f"{GROUPS[first.remedy.group]}: choose one"
            )
    return tuple(ordered)


def _parse_one(text: str) -> RemedySpec:
    name, colon, written = text.partition(":")
    if name not in REMEDIES:
        near = difflib.get_close_matches(name, REMEDIES, n=3)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise AftModelsError(f"unknown remedy {name!r}.{hint} Known: {', '.join(REMEDIES)}")
    remedy = REMEDIES[name]
    number = remedy.number
    if number is None:
        if colon:
            raise AftModelsError(f"{name} takes no number, got {text!r}: write {name!r}")
        return RemedySpec(remedy, 0)
    value = number.default
    if colon:
        value = int(written) if written.isascii() and written.isdigit() else -1
    if not number.lowest <= value <= number.highest:
        raise AftModelsError(
            f"{name} takes {number.meaning}, {number.lowest} to {number.highest}, got {written!r}: "
            f"write for example '{name}:{number.default}'"
        )
    return RemedySpec(remedy, value)
