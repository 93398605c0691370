"""Objects of detectors: detected without a shift, and at every offset of a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shiftbench.metrics.accuracy import Accuracy
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import METRICS
from shiftbench.scores import ScoreName

DETECTED = ScoreName("detected")


@dataclass(frozen=True)
class Objects(Accuracy):
    """Share of an image's objects that are detected without a shift."""

    score_name: ClassVar[ScoreName] = DETECTED
    name = DETECTED.family


@dataclass(frozen=True)
class Detected(Adversarial):
    """Share of an image's objects detected at every offset of an attack (detected:ATTACK)."""

    family: ClassVar[str] = DETECTED.family


METRICS.register("objects", Objects)
METRICS.register("detected", Detected)
