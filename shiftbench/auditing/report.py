"""What an audit says of every layer of a model."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import astuple, dataclass, fields

import pandas as pd

from aft_models.remedies import REMEDIES
from shiftbench.auditing.causes import CAUSES

NAMED = 3  # layers that a summary names of those that could not be judged
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
    shape: tuple[int, ...] = ()  # of the output, without the batch
    lattice: tuple[int, int] | None = None  # rows and columns on the image; None: none, or unknown
    own: float | None = None  # error of the layer alone; None when it could not be judged
    border: float | None = None  # the part of `own` that the border is to blame for
    interior: float | None = None  # the other part: border^2 + interior^2 = own^2
    cause: str | None = None  # a key of `causes.CAUSES`; None where there is nothing to explain
    accumulated: float | None = None  # error of everything up to and including this layer
    eq_t: float | None = None  # the same in dB, infinite for no error at all
    note: str | None = None  # why it was not judged


@dataclass(frozen=True)
class Audit:
    """A report per call of a layer.

    Calls stand in the order in which they finish: containers follow what they hold. Then leaves
    that were never called; the last report, with the empty name, is the model itself.
    """

    layers: tuple[LayerReport, ...]

    @property
    def whole(self) -> LayerReport:
        """The model itself: what shifts do to its logits."""
        return self.layers[-1]

    def breakers(self) -> list[LayerReport]:
        """The layers with an error of their own, worst first: where a repair should start.

        A container is among them when the code between its layers breaks more than the layers do.

        >>> conv = LayerReport("conv", "Conv2d", depth=1, leaf=True, own=0.5, cause="border")
        >>> [layer.name for layer in Audit((conv,)).breakers()]
        ['conv']
        """
        blamed = [layer for layer in self.layers if layer.cause is not None]
        return sorted(blamed, key=lambda layer: -(layer.own or 0.0))

    def unjudged(self) -> dict[str, list[str]]:
        """The leaves that could not be judged, by the reason."""
        names: dict[str, list[str]] = {}
        for layer in self.layers:
            if layer.note is not None and layer.leaf:
                names.setdefault(layer.note, []).append(layer.name)
        return names

    def summary(self) -> list[str]:
        """Sentences: what reaches the logits, the causes with their remedies, what is not known."""
        breakers, whole = self.breakers(), self.whole
        lines = [f"The logits change by {whole.accumulated:.2g} in all: EQ-T {whole.eq_t:.0f} dB."]
        for cause, count in Counter(layer.cause for layer in breakers if layer.cause).items():
            remedies = [name for name, remedy in REMEDIES.items() if cause in remedy.treats]
            lines.append(f"{cause} ({count}): {CAUSES[cause]}. Treated by {', '.join(remedies)}.")
        for reason, names in self.unjudged().items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            lines.append(f"Not judged, {reason}: {', '.join(names[:NAMED])}{more}.")
        return lines

    def to_frame(self) -> pd.DataFrame:
        """A table with a row per report and a column per field; sizes as text: `4x16x16`."""
        columns = [field.name for field in fields(LayerReport)]
        frame = pd.DataFrame([astuple(layer) for layer in self.layers], columns=columns)
        return frame.assign(
            shape=["x".join(map(str, layer.shape)) for layer in self.layers],
            lattice=["x".join(map(str, layer.lattice or ())) for layer in self.layers],
        )


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
