"""What an audit says of every layer, and how to read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import pandas as pd

UNCALLED = "never called"
UNREACHED = "not on a path from the image to the logits"
UNKNOWN = "where it or its input lies on the image could not be followed"


@dataclass(frozen=True)
class LayerReport:
    """The equivariance of one call of a layer, averaged (root mean square) over the offsets."""

    name: str  # dotted path in the model, "(2)" behind it for a second call; "" is the whole model
    kind: str  # class name
    depth: int  # 1 for a child of the model
    leaf: bool  # whether it has no layers inside
    shape: tuple[int, ...]  # of the output, without the batch
    lattice: tuple[int, int] | None  # rows and columns on the image; None: no place, or unknown
    own: float | None  # error of the layer alone; None when it could not be judged
    border: float | None  # the part of `own` that the border is to blame for
    interior: float | None  # the other part: border^2 + interior^2 = own^2
    cause: str | None  # a key of `causes.CAUSES`; None where there is nothing to explain
    accumulated: float | None  # error of everything up to and including this layer
    eq_t: float | None  # the same in dB, infinite for no error at all
    note: str | None  # why it was not judged


def eq_t(peak_to_peak: float, mean_squared_error: float) -> float:
    """Equivariance to translation in decibels: 20 log10(I) - 10 log10(MSE).

    >>> eq_t(2.0, 0.04)  # an error of 0.2 where signals lie in [-1, 1]
    20.0
    """
    if mean_squared_error == 0:
        return math.inf
    if peak_to_peak == 0:
        return -math.inf
    return 20 * math.log10(peak_to_peak) - 10 * math.log10(mean_squared_error)


def breakers(reports: Sequence[LayerReport]) -> list[LayerReport]:
    """The layers with an error of their own, worst first: where to start mending.

    A container is among them when the code between its layers breaks more than the layers do.
    """
    return sorted(
        (report for report in reports if report.cause is not None),
        key=lambda report: -(report.own or 0.0),
    )


def unjudged(reports: Sequence[LayerReport]) -> dict[str, list[str]]:
    """The leaves that could not be judged, by the reason."""
    names: dict[str, list[str]] = {}
    for report in reports:
        if report.note is not None and report.leaf:
            names.setdefault(report.note, []).append(report.name)
    return names


def to_frame(reports: Sequence[LayerReport]) -> pd.DataFrame:
    """The reports as a table, in order of execution."""
    columns = [field.name for field in fields(LayerReport)]
    frame = pd.DataFrame([astuple(report) for report in reports], columns=columns)
    return frame.assign(
        shape=[_times(report.shape) for report in reports],
        lattice=[_times(report.lattice or ()) for report in reports],
    )


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
