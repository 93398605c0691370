"""What a remedy is, the registry of all of them, and how they are written.

A remedy is written by its name, some with a number: ``circular``, ``blurpool:3``; several are
joined by ``+``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from aft_models.errors import AftModelsError, unknown
from aft_models.repair.context import RepairContext, RepairReport

# What a remedy decides; of each group one remedy at most can hold. Applied in this order.
GROUPS = {
    "padding": "how maps are padded",
    "sampling": "how layers sub-sample",
    "placement": "where the image lies",
    "view": "which part of the view the network sees",
}
Cause = Literal["border", "sub-sampling", "non-linearity", "position"]  # as an audit names them


@dataclass(frozen=True)
class Number:
    """The number that follows a remedy's name."""

    meaning: str
    lowest: int
    highest: int
    default: int


@dataclass(frozen=True)
class Remedy:
    """One way to make a model less sensitive to shifts: all that lists, docs and laws need."""

    name: str
    group: str  # a key of GROUPS
    summary: str  # what it does, in a line
    apply: Callable[[RepairContext, int], None]  # changes the layers of a model in place
    treats: tuple[Cause, ...]  # what it acts on
    # Cyclic shifts that leave the logits as they are, of a network with nothing else to blame
    # (circular padding, no weights tied to places).
    exact: Literal["none", "whole pixels", "all"] = "none"
    needs_finetuning: bool = False  # whether pretrained weights lose accuracy before more training
    learns: bool = False  # whether it brings parameters that mean nothing untrained
    number: Number | None = None


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

    def apply(self, context: RepairContext) -> RepairReport:
        """Applies the remedy; finding nothing to change is an error."""
        before = _count_parameters(context)
        self.remedy.apply(context, self.number)
        if not context.changes:
            reasons = [f"{o.where}: {o.why}" for o in context.obstacles[:3]]
            seen = f" It could not reach {'; '.join(reasons)}." if reasons else ""
            raise AftModelsError(
                f"{self} finds nothing to change in {type(context.model).__name__}, which leaves "
                f"it as it is.{seen}"
            )
        return RepairReport(
            remedy=str(self),
            changed=tuple(context.changes),
            unchanged=tuple(context.obstacles),
            new_parameters=_count_parameters(context) - before,
            view_margin=context.view_margin,
            needs_finetuning=self.remedy.needs_finetuning,
        )


def _count_parameters(context: RepairContext) -> int:
    return sum(p.numel() for p in context.model.parameters())


REMEDIES: dict[str, Remedy] = {}


def register(remedy: Remedy) -> None:
    """Adds a remedy to the registry."""
    if remedy.name in REMEDIES:
        raise AftModelsError(f"a remedy named {remedy.name!r} is registered already")
    if remedy.group not in GROUPS:
        raise AftModelsError(unknown(f"group of the remedy {remedy.name}", remedy.group, GROUPS))
    REMEDIES[remedy.name] = remedy


def parse(text: str) -> tuple[RemedySpec, ...]:
    """Reads remedies joined by ``+``, in the order in which they are applied.

    >>> [str(p) for p in parse("blurpool:3+circular")]
    ['circular', 'blurpool:3']
    """
    return in_order(_parse_one(part) for part in text.split("+"))


def in_order(specs: Iterable[RemedySpec]) -> tuple[RemedySpec, ...]:
    """Sorted as they are applied; two remedies that decide the same thing are an error."""
    groups = list(GROUPS)
    ordered = sorted(specs, key=lambda spec: groups.index(spec.remedy.group))
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
        raise AftModelsError(unknown("remedy", name, REMEDIES))
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
