"""What a run is to measure: which images, which metrics, how wide the canvas. Nothing runs yet."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shiftbench.data import Canvases, ImageSet, RenderedSet, balanced, relabeled
from shiftbench.errors import DataError, UsageError
from shiftbench.metrics import plan_metric
from shiftbench.metrics.base import Metric
from shiftbench.metrics.predictions import check_labels
from shiftbench.models.classifier import Classifier
from shiftbench.preprocessing import Geometry, geometry_for
from shiftbench.records.record import DataInfo, ModelInfo, images_digest
from shiftbench.run.settings import Settings
from shiftbench.shifts import SHIFTS
from shiftbench.shifts.attacks import ATTACKS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A run before it begins."""

    dataset: ImageSet
    geometry: Geometry
    images: Sequence[int]  # which images of the data set, ascending
    searched: Sequence[int]  # those of them that costly metrics measure, ascending
    metrics: tuple[Metric, ...]  # accuracy first
    model: ModelInfo
    data: DataInfo
    settings: Mapping[str, Any]  # as the record keeps them
    skips_bad: bool
    workers: int | None  # data loading processes; None: the loader's own choice

    def images_of(self, metric: Metric) -> Sequence[int]:
        """The images that a metric measures, by number in the data set."""
        return self.searched if metric.searched else self.images

    def keys_of(self, metric: Metric) -> list[str]:
        """Their keys, in the order of the data set."""
        return [self.dataset.keys[image] for image in self.images_of(metric)]

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of an image in the data set, by key."""
        return {key: index for index, key in enumerate(self.dataset.keys)}

    def stream(self, images: Sequence[int]) -> Canvases:
        """Decodes some images ahead, once for every metric."""
        return Canvases(
            self.dataset, self.geometry, images, workers=self.workers, skip_bad=self.skips_bad
        )


def make_plan(
    classifier: Classifier, dataset: ImageSet, settings: Settings, *, workers: int | None = None
) -> Plan:
    """Chooses the images, the metrics and the one canvas that serves all of them."""
    dataset = relabeled(dataset, classifier.num_classes, classifier.class_names)
    _check(classifier, dataset, settings)
    finished = dataset.has_size(classifier.preprocessing.input_size)
    bare = _geometry(classifier, dataset, settings, {}, finished)
    request = settings.request(view=bare.view, resize=bare.resize)
    texts = [t for t in settings.metric_texts() if t not in _without_room(settings, bare)]
    metrics = {text: plan_metric(text, request) for text in texts}
    needed = {text: metric.margin() for text, metric in metrics.items()}
    geometry = _geometry(classifier, dataset, settings, needed, finished)
    images, searched = _choose(dataset, settings)
    recipe = classifier.preprocessing
    return Plan(
        dataset=dataset,
        geometry=geometry,
        images=images,
        searched=searched,
        metrics=tuple(metrics.values()),
        model=ModelInfo(
            name=classifier.name,
            source=classifier.source,
            digest=classifier.digest,
            parameters=classifier.parameters,
            input_size=recipe.input_size,
            mean=recipe.mean,
            std=recipe.std,
            interpolation=recipe.interpolation,
        ),
        data=DataInfo(
            name=dataset.name,
            split=dataset.split,
            images=len(images),
            fingerprint=dataset.fingerprint(),
            geometry=geometry.to_json(),
            labels=images_digest(dataset.keys, dataset.labels),
            classes=_named_classes(dataset),
        ),
        settings={
            # A limit that leaves nothing out is none.
            "limit": settings.limit if len(images) < len(dataset) else None,
            "search_limit": settings.search_limit if len(searched) < len(images) else None,
            "seed": settings.seed,
            "precision": settings.precision,
            "engine": settings.engine,
            "skip_bad": settings.skip_bad,
        },
        skips_bad=settings.skip_bad,
        workers=workers,
    )


def _named_classes(dataset: ImageSet) -> tuple[str, ...]:
    """What the classes are called; nothing where the set has indices for names."""
    names = tuple(dataset.class_names)
    return () if names == tuple(map(str, range(len(names)))) else names


def _check(classifier: Classifier, dataset: ImageSet, settings: Settings) -> None:
    """Refuses what cannot be measured, before anything is decoded."""
    check_labels(np.asarray(dataset.labels, dtype=np.int64), classifier.num_classes)
    if classifier.num_classes != len(dataset.class_names):
        log.warning(
            "%s answers with %d classes and %s has %d: was it trained on them?",
            classifier.name,
            classifier.num_classes,
            dataset.name,
            len(dataset.class_names),
        )
    key, count = max(Counter(dataset.keys).items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        raise DataError(
            f"{count} images of {dataset.name} have the key {key!r}: each needs a name of its own"
        )
    for name in settings.attacks:
        if SHIFTS.get(ATTACKS.get(name).shift).rendered and not isinstance(dataset, RenderedSet):
            raise UsageError(
                f"attack {name!r} moves the camera itself, which data {dataset.name!r} cannot: "
                "use --data scenes, or another attack"
            )


def _choose(dataset: ImageSet, settings: Settings) -> tuple[Sequence[int], Sequence[int]]:
    """The images, and those that are searched: the smaller choice is part of the larger one."""

    def chosen(limit: int | None, others: Sequence[int]) -> Sequence[int]:
        if limit is None or limit >= len(others):
            return others
        return balanced(dataset.keys, dataset.labels, limit, settings.seed)

    images = chosen(settings.limit, range(len(dataset)))
    return images, chosen(settings.search_limit, images)


def _without_room(settings: Settings, geometry: Geometry) -> set[str]:
    """Random crops that the canvas has no room for; an error only for who asks for them alone."""
    room = geometry.resize - geometry.view
    return set() if room >= 2 else {"consistency:crop"} - set(settings.metrics)


def _geometry(
    classifier: Classifier,
    dataset: ImageSet,
    settings: Settings,
    needed: Mapping[str, int],
    finished: bool,
) -> Geometry:
    """The canvas with the widest margin that any metric needs, which errors call by name."""
    widest = max(needed, key=lambda name: needed[name], default="nothing")
    return geometry_for(
        classifier.preprocessing,
        crop_pct=settings.crop_pct,
        margin=needed.get(widest, 0),
        pad=settings.pad,
        finished=finished,
        rendered=isinstance(dataset, RenderedSet),
        shift=widest,
    )
