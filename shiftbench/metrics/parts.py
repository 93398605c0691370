"""Objects of detectors and pixels of segmenters: without a shift, and at every offset of a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shiftbench.metrics.accuracy import Accuracy
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import METRICS
from shiftbench.scores import ScoreName

DETECTED, SEGMENTED = ScoreName("detected"), ScoreName("segmented")


@dataclass(frozen=True)
class Objects(Accuracy):
    """Share of an image's objects that are detected without a shift."""

    score_name: ClassVar[ScoreName] = DETECTED
    name = DETECTED.family


@dataclass(frozen=True)
class Detected(Adversarial):
    """Share of an image's objects detected at every offset of an attack (detected:ATTACK)."""

    family: ClassVar[str] = DETECTED.family


@dataclass(frozen=True)
class Pixels(Accuracy):
    """Share of an image's pixels with the correct class without a shift."""

    score_name: ClassVar[ScoreName] = SEGMENTED
    name = SEGMENTED.family


@dataclass(frozen=True)
class Segmented(Adversarial):
    """Share of an image's pixels correct at every offset of an attack (segmented:ATTACK)."""

    family: ClassVar[str] = SEGMENTED.family


METRICS.register("objects", Objects)
METRICS.register("detected", Detected)
METRICS.register("pixels", Pixels)
METRICS.register("segmented", Segmented)
