"""Report of an audit: equivariance errors of every layer of a model."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import astuple, dataclass, fields

import pandas as pd

from aft_models.remedies import REMEDIES
from shiftbench.auditing.causes import CAUSES

NAMED = 3  # layers named in a summary, of those that were not measured
UNCALLED = "never called"
UNREACHED = "not on a path from the image to the logits"
UNKNOWN = "position of the layer or its input on the image is unknown"


@dataclass(frozen=True)
class LayerReport:
    """Equivariance errors of one call of a layer: root mean squares over the offsets."""

    name: str  # dotted path in the model, with "(2)" for a second call; "" is the entire model
    kind: str  # class name
    depth: int  # 1 for a child of the model
    leaf: bool  # True if there are no layers inside
    shape: tuple[int, ...] = ()  # of the output, without the batch
    lattice: tuple[int, int] | None = None  # rows and columns on the image; None: none, or unknown
    own: float | None = None  # error of the layer alone; None if it was not measured
    border: float | None = None  # share of `own` caused by the border
    interior: float | None = None  # the other share: border^2 + interior^2 = own^2
    cause: str | None = None  # a key of `causes.CAUSES`; None without an error
    accumulated: float | None = None  # error of the path up to and including this layer
    eq_t: float | None = None  # the same in dB, infinite without an error
    note: str | None = None  # reason why it was not measured


@dataclass(frozen=True)
class Audit:
    """One report per call of a layer.

    Calls are in the order in which they finish: containers follow their layers. Then leaves that
    were never called. The last report, with the empty name, is the model itself.
    """

    layers: tuple[LayerReport, ...]

    @property
    def whole(self) -> LayerReport:
        """Report of the model itself: the effect of shifts on the logits."""
        return self.layers[-1]

    def breakers(self) -> list[LayerReport]:
        """List the layers with an error of their own, worst first.

        A container is listed if the code between its layers causes more error than the layers.

        >>> conv = LayerReport("conv", "Conv2d", depth=1, leaf=True, own=0.5, cause="border")
        >>> [layer.name for layer in Audit((conv,)).breakers()]
        ['conv']
        """
        found = [layer for layer in self.layers if layer.cause is not None]
        return sorted(found, key=lambda layer: -(layer.own or 0.0))

    def unmeasured(self) -> dict[str, list[str]]:
        """List the leaves that were not measured, by reason.

        Returns:
            Names of layers by reason.
        """
        names: dict[str, list[str]] = {}
        for layer in self.layers:
            if layer.note is not None and layer.leaf:
                names.setdefault(layer.note, []).append(layer.name)
        return names

    def summary(self) -> list[str]:
        """Summarize the change of the logits, the causes with remedies, and unmeasured layers."""
        breakers, whole = self.breakers(), self.whole
        lines = [f"The logits change by {whole.accumulated:.2g}: EQ-T {whole.eq_t:.0f} dB."]
        for cause, count in Counter(layer.cause for layer in breakers if layer.cause).items():
            remedies = [name for name, remedy in REMEDIES.items() if cause in remedy.treats]
            lines.append(f"{cause} ({count}): {CAUSES[cause]}. Remedies: {', '.join(remedies)}.")
        for reason, names in self.unmeasured().items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            lines.append(f"Not measured, {reason}: {', '.join(names[:NAMED])}{more}.")
        return lines

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row per report; sizes are texts (`4x16x16`)."""
        columns = [field.name for field in fields(LayerReport)]
        frame = pd.DataFrame([astuple(layer) for layer in self.layers], columns=columns)
        return frame.assign(
            shape=["x".join(map(str, layer.shape)) for layer in self.layers],
            lattice=["x".join(map(str, layer.lattice or ())) for layer in self.layers],
        )


def eq_t(peak_to_peak: float, mean_squared_error: float) -> float:
    """Compute the equivariance to translation in decibels: 20 log10(I) - 10 log10(MSE).

    >>> eq_t(2.0, 0.04)  # an error of 0.2 of signals in [-1, 1]
    20.0
    """
    if mean_squared_error == 0:
        return math.inf
    if peak_to_peak == 0:
        return -math.inf
    return 20 * math.log10(peak_to_peak) - 10 * math.log10(mean_squared_error)
