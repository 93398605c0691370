"""Remedies against shifts, for any network: the table of all of them and their names.

A remedy is written by its name, some with numbers: ``circular``, ``blurpool:3``. Several are joined
by ``+``. Layer remedies change the layers of a network; input remedies change the images that any
callable receives. The table needs no torch. The file of a remedy's name contains its function:
``apply(context, *numbers)`` of a layer remedy, ``build(*numbers)`` of an input remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

from aft_models.errors import AftModelsError, unknown

# Effect of a remedy. At most one remedy of each group applies, in this order.
GROUPS = {
    "padding": "how feature maps are padded",
    "sampling": "how layers sub-sample",
    "placement": "the position of the image",
    "view": "which crop of a wider view the network is given",
}
Cause = Literal["border", "sub-sampling", "non-linearity", "position"]  # as named by an audit


@dataclass(frozen=True)
class Number:
    """A number after a remedy's name."""

    meaning: str
    lowest: int
    highest: int
    default: int


@dataclass(frozen=True)
class Remedy:
    """A row of the table."""

    name: str
    group: str  # a key of GROUPS
    summary: str  # one line
    treats: tuple[Cause, ...]  # causes that it acts on
    # Cyclic shifts that leave the logits unchanged, for a network with circular padding and no
    # weights tied to positions.
    exact: Literal["none", "integer shifts", "all shifts"] = "none"
    needs_finetuning: bool = False  # pretrained weights lose accuracy before more training
    numbers: tuple[Number, ...] = ()
    input: bool = False  # True: wraps any callable; False: changes the layers of a network
    function: Callable[..., Any] | None = None  # of a plug-in; None: in the file of the name

    def load(self) -> Callable[..., Any]:
        """Import the function of the remedy; see the module's docstring for its signature."""
        if self.function is not None:
            return self.function
        module = import_module(f"{__name__}.{self.name}")
        function: Callable[..., Any] = module.build if self.input else module.apply
        return function


REMEDIES: dict[str, Remedy] = {}


def register(remedy: Remedy) -> None:
    """Add a remedy to the table."""
    if remedy.name in REMEDIES:
        raise AftModelsError(f"a remedy named {remedy.name!r} is registered already: rename it")
    if remedy.group not in GROUPS:
        raise AftModelsError(unknown(f"group of the remedy {remedy.name}", remedy.group, GROUPS))
    REMEDIES[remedy.name] = remedy


for _remedy in (
    Remedy(
        name="circular",
        group="padding",
        summary="replace all padding with circular padding",
        treats=("border",),
        needs_finetuning=True,
    ),
    Remedy(
        name="af",
        group="sampling",
        summary="circular padding, low-pass before sub-sampling, activations on a finer grid",
        treats=("border", "sub-sampling", "non-linearity"),
        needs_finetuning=True,
        numbers=(Number("the up-sampling factor of its activations", 2, 5, 2),),
    ),
    Remedy(
        name="aps",
        group="sampling",
        summary="a stride keeps the polyphase component of largest norm",
        treats=("sub-sampling",),
        exact="integer shifts",
    ),
    Remedy(
        name="blurpool",
        group="sampling",
        summary="a stride becomes stride 1 and a sub-sampling binomial filter",
        treats=("sub-sampling",),
        needs_finetuning=True,
        numbers=(Number("the taps of its filter", 2, 7, 4),),
    ),
    Remedy(
        name="flc",
        group="sampling",
        summary="a stride cuts the spectrum to its center, without the new Nyquist bin",
        treats=("sub-sampling",),
        needs_finetuning=True,
    ),
    Remedy(
        name="canonical",
        group="placement",
        summary="the image is shifted until the phase of its first harmonic is zero on both axes",
        treats=("position",),
        exact="all shifts",
        input=True,
    ),
    Remedy(
        name="vote",
        group="placement",
        summary="the mean probability over n x n cyclic shifts, one pixel apart",
        treats=("position",),
        numbers=(Number("the side of the grid of shifts", 2, 15, 3),),
        input=True,
    ),
    Remedy(
        name="align",
        group="view",
        summary="the phase of the image content places the crop of a wider view",
        treats=("position", "sub-sampling"),
        numbers=(
            Number("the margin of the wider view in network pixels", 2, 64, 8),
            Number("the camera pixels per network pixel", 1, 4, 2),
        ),
        input=True,
    ),
):
    register(_remedy)


@dataclass(frozen=True)
class RemedySpec:
    """A remedy with its numbers."""

    remedy: Remedy
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the text of the remedy; trailing default numbers are left out."""
        numbers = list(self.numbers)
        while numbers and numbers[-1] == self.remedy.numbers[len(numbers) - 1].default:
            numbers.pop()
        return ":".join([self.remedy.name, *map(str, numbers)])


def parse_remedies(text: str) -> tuple[RemedySpec, ...]:
    """Read remedies joined by ``+``, in the order of application.

    >>> [str(spec) for spec in parse_remedies("blurpool:3+circular")]
    ['circular', 'blurpool:3']
    """
    return in_order(_parse_one(part) for part in text.split("+")) if text else ()


def in_order(specs: Iterable[RemedySpec]) -> tuple[RemedySpec, ...]:
    """Sort remedies by their order of application.

    Raises:
        AftModelsError: Two remedies belong to the same group.
    """
    groups = list(GROUPS)
    ordered = sorted(specs, key=lambda spec: groups.index(spec.remedy.group))
    for first, second in pairwise(ordered):
        if first.remedy is second.remedy:
            raise AftModelsError(f"{first.remedy.name} is given twice. Leave one out")
        if first.remedy.group == second.remedy.group:
            raise AftModelsError(
                f"{first} and {second} contradict each other, since both decide "
                f"{GROUPS[first.remedy.group]}. Choose one"
            )
    return tuple(ordered)


def join_remedies(specs: Iterable[RemedySpec]) -> str:
    """Return the text of several remedies, such as ``circular+aps``."""
    return "+".join(map(str, specs))


def _parse_one(text: str) -> RemedySpec:
    name, *written = text.split(":")
    if name not in REMEDIES:
        raise AftModelsError(unknown("remedy", name, REMEDIES))
    remedy = REMEDIES[name]
    if len(written) > len(remedy.numbers):
        count = len(remedy.numbers) or "no"
        raise AftModelsError(
            f"{name} takes {count} number{'s' * (count != 1)}, got {text!r}. Write {name!r}"
        )
    numbers = [number.default for number in remedy.numbers]
    for i, (number, word) in enumerate(zip(remedy.numbers, written, strict=False)):
        value = int(word) if word.isascii() and word.isdigit() else -1
        if not number.lowest <= value <= number.highest:
            raise AftModelsError(
                f"{name} takes {number.meaning}, {number.lowest} to {number.highest}, got "
                f"{word!r}. Write for example '{name}:{number.default}'"
            )
        numbers[i] = value
    return RemedySpec(remedy, tuple(numbers))
