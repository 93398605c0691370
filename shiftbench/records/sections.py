"""Sections of a record: its model, its data and its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shiftbench.metrics.base import METRICS, Metric

if TYPE_CHECKING:
    from shiftbench.models import Model

EXTENT = ("radius", "full_grid")  # settings of how much was predicted: they need not agree


@dataclass(frozen=True)
class ModelInfo:
    """The model section of a record."""

    name: str
    source: str
    digest: str  # of the weights, the remedies and the user's code
    parameters: int
    input_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    identity: Mapping[str, Any] = field(default_factory=dict)  # what predictions depend on
    originals: tuple[str, ...] = ()  # digests of the models that an exported file was written from

    @classmethod
    def of(cls, model: Model) -> ModelInfo:
        """Build the model section of a record."""
        return cls(
            name=model.name,
            source=model.source,
            digest=model.identity.digest,
            parameters=model.parameter_count,
            input_size=model.preprocessing.input_size,
            mean=model.preprocessing.mean,
            std=model.preprocessing.std,
            interpolation=model.preprocessing.interpolation,
            identity=model.identity.to_json(),
            originals=model.original_digests,
        )


@dataclass(frozen=True)
class DataInfo:
    """The data section of a record."""

    name: str
    split: str
    images: int  # images with a clean prediction
    geometry: Mapping[str, Any]  # resize, view, margin, crop, pad, interpolation
    skipped: int = 0  # unreadable images, left out with --skip-bad
    classes: tuple[str, ...] = ()  # class names by index; empty where unknown
    enlarged: int = 0  # images with fewer pixels than the resized image, where that was counted
    no_phase: int = 0  # images without a phase, which `align` leaves in the center
    rows: int = 0  # objects or pixels; 0: the images are classified
    empty: int = 0  # images without objects, which have no outcome

    def __str__(self) -> str:
        return f"{self.name} {self.split}, {self.images:,} images"

    @property
    def geometry_text(self) -> str:
        """Geometry as text, for example "resized to 256 px, view 224 px, ..."."""
        cut = self.geometry
        if cut["crop"] == "given":  # images in memory
            return f"view {cut['view']} of {cut['resize']} px, margin {cut['margin']} px"
        first = "rendered" if cut["rendered"] else f"resized to {cut['resize']} px"
        if (scale := cut.get("scale", 1)) > 1:
            first = f"scale {scale}, {first}"
        padded = "" if cut["pad"] == "none" else f", margin padded ({cut['pad']})"
        size = f"view {cut['view']} px, margin {cut['margin']} px, {cut['interpolation']}"
        counts = {"enlarged": self.enlarged, "without a phase (not aligned)": self.no_phase}
        noted = [f"; {n:,} of {self.images:,} images {what}" for what, n in counts.items() if n]
        return f"{first}, {size}{padded}{''.join(noted)}"

    def class_name(self, index: int) -> str:
        """Return the name of a class, or its index where it has no name."""
        return self.classes[index] if 0 <= index < len(self.classes) else str(index)


@dataclass(frozen=True)
class RequestInfo:
    """A request of a record: a metric on the first images, with the scores that follow from it."""

    metric: str  # a name of shiftbench.metrics.METRICS
    settings: Mapping[str, Any]  # the fields of the metric
    images: int  # the first images of the tables
    scores: tuple[str, ...]  # names of its scores in the record
    lower_is_better: tuple[str, ...]  # those of `scores` of which lower values are better
    image_set: str  # digest of its images and labels

    @cached_property
    def loaded(self) -> Metric | None:
        """The metric; None if its plug-in is not loaded."""
        return METRICS.get(self.metric)(**self.settings) if self.metric in METRICS else None

    @cached_property
    def conditions(self) -> dict[str, str]:
        """Settings that must agree before its scores are compared with those of another record."""
        return {key: str(value) for key, value in self.settings.items() if key not in EXTENT}
