"""What is to be measured: a model, images and metrics. Nothing runs yet."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from shiftbench.data import Canvases, ImageSet, RenderedSet, balanced, relabeled
from shiftbench.errors import DataError, UsageError
from shiftbench.geometry import Geometry, geometry_for
from shiftbench.metrics import METRICS, Metric, MetricOptions, plan_metric
from shiftbench.metrics.consistency import CONSISTENCIES
from shiftbench.metrics.predictions import check_labels
from shiftbench.metrics.search import Mode
from shiftbench.models.model import Model
from shiftbench.records.record import DataInfo, ModelInfo, images_digest
from shiftbench.registry import unknown_name
from shiftbench.run.engine import AUTO, AUTOCAST, ENGINES, PRECISIONS
from shiftbench.shifts import ATTACKS, PAPER_ATTACKS, SHIFTS, parse_attack

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings(MetricOptions):
    """Every option that can change a number.

    >>> Settings(attacks=("crop",), consistency=()).metric_texts()
    ['accuracy', 'adversarial:crop']
    """

    attacks: tuple[str, ...] = PAPER_ATTACKS  # or "all"; a step may follow: "bilinear:1/4"
    consistency: tuple[str, ...] = ("integer", "half", "crop")
    metrics: tuple[str, ...] = ()  # further ones, such as "flip" or "agreement:5"
    limit: int | None = None  # size of the class-balanced subset
    search_limit: int | None = None  # size of its part whose grids are searched
    precision: str = "fp32"
    engine: str = "torch"  # what runs the forward pass, each rounds in its own way; or "auto"
    crop_pct: str = "paper"  # or "model", or a number: how the view is cut from the image
    pad: str = "none"  # or "reflect", "zeros": where the margin comes from when pixels are short
    skip_bad: bool = False  # leave unreadable images out

    def __post_init__(self) -> None:
        for attack in {*self.attacks} - {"all", "none"}:
            parse_attack(attack)
        for kind in self.consistency:
            CONSISTENCIES.get(kind)
        for text in self.metrics:
            METRICS.get(text.partition(":")[0])
        Mode.parse(self.mode)
        for name in ("repeats", "limit", "search_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be 1 or more, got {value}")
        for what, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("engine", self.engine, (AUTO, *ENGINES)),
        ):
            if value not in known:
                raise unknown_name(what, value, known)
        if self.engine == "onnx" and self.precision in AUTOCAST:
            raise UsageError(
                f"engine onnx computes in float32, and precision {self.precision} was requested: "
                "leave the precision out, or use engine torch"
            )

    def for_data(self, dataset: ImageSet) -> Settings:
        """With `all` and `none` among the attacks resolved to what the data set allows."""
        camera = isinstance(dataset, RenderedSet)
        chosen = attack_names(self.attacks, camera=camera) if self.attacks else ()
        return replace(self, attacks=chosen)

    def metric_texts(self) -> list[str]:
        """Every metric, as `--metric` spells them; accuracy comes first."""
        texts = [f"consistency:{kind}" for kind in self.consistency]
        texts += [f"adversarial:{attack}" for attack in self.attacks]
        return list(dict.fromkeys(["accuracy", *texts, *self.metrics]))


def attack_names(names: Iterable[str], *, camera: bool) -> tuple[str, ...]:
    """Resolves `all` and `none`, drops repetitions, keeps the registry's order.

    Args:
        names: As the user wrote them; none at all means all.
        camera: Whether the data set can be rendered again, which some attacks need.
    """
    wanted = set(names)
    if wanted == {"none"}:
        return ()
    if not wanted or "all" in wanted:
        usual = {name for name in ATTACKS if not ATTACKS.get(name).opt_in}
        fitting = {a for a in usual if camera or not SHIFTS.get(ATTACKS.get(a).shift).rendered}
        wanted = (wanted - {"all"}) | fitting
    order = {name: place for place, name in enumerate(ATTACKS)}
    for name in wanted:
        ATTACKS.get(name.partition(":")[0])
    return tuple(sorted(wanted, key=lambda name: (order[name.partition(":")[0]], name)))


@dataclass(frozen=True)
class Job:
    """A model, images and metrics, before anything runs."""

    classifier: Model
    dataset: ImageSet
    geometry: Geometry
    metrics: tuple[Metric, ...]  # accuracy first
    keys: Mapping[str, Sequence[str]]  # metric -> its images, in the order of the data set
    model: ModelInfo
    data: DataInfo
    settings: Mapping[str, Any]  # as the record keeps them
    workers: int | None = None  # data loading processes; None: the loader's own choice

    @classmethod
    def of(
        cls,
        classifier: Model,
        dataset: ImageSet,
        geometry: Geometry,
        metrics: Iterable[Metric],
        keys: Mapping[str, Sequence[str]],
        settings: Mapping[str, Any],
        workers: int | None = None,
    ) -> Job:
        """With what a record says of the model and the images."""
        names = tuple(dataset.class_names)
        data = DataInfo(
            name=dataset.name,
            split=dataset.split,
            images=len(dataset),
            fingerprint=dataset.fingerprint(),
            geometry=geometry.to_json(),
            labels=images_digest(dataset.keys, dataset.labels),
            classes=() if names == tuple(map(str, range(len(names)))) else names,
        )
        model = ModelInfo.of(classifier)
        return cls(
            classifier, dataset, geometry, tuple(metrics), keys, model, data, settings, workers
        )

    def with_engine(self, engine: str) -> Job:
        """The same job, run by another engine."""
        return replace(self, settings={**self.settings, "engine": engine})

    def passes(self) -> int:
        """Forward passes that it takes at most, (0, 0) aside."""
        return sum(
            m.passes(pd.DataFrame(index=range(len(self.keys[m.name])))) for m in self.metrics
        )

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of an image in the data set, by key."""
        return {key: index for index, key in enumerate(self.dataset.keys)}

    def stream(self, keys: Sequence[str]) -> Canvases:
        """Decodes some images ahead, once for every metric."""
        images = [self.number[key] for key in keys]
        skip_bad = bool(self.settings["skip_bad"])
        return Canvases(
            self.dataset, self.geometry, images, workers=self.workers, skip_bad=skip_bad
        )


def make_job(
    classifier: Model, dataset: ImageSet, settings: Settings, *, workers: int | None = None
) -> Job:
    """Chooses the images, the metrics and the one canvas that serves all of them."""
    dataset = relabeled(dataset, classifier.num_classes, classifier.class_names)
    settings = settings.for_data(dataset)
    _check(classifier, dataset, settings)
    cut = partial(canvas_for, classifier, dataset, crop_pct=settings.crop_pct, pad=settings.pad)
    bare = cut()
    texts = settings.metric_texts()
    if bare.resize - bare.view < 2 and "consistency:crop" not in settings.metrics:
        # No room for random crops: an error only where they were asked for by name.
        texts = [text for text in texts if text != "consistency:crop"]
    metrics = {t: plan_metric(t, settings, view=bare.view, resize=bare.resize) for t in texts}
    widest = max(metrics, key=lambda text: metrics[text].margin())
    geometry = cut(margin=metrics[widest].margin(), shift=widest)
    images: Sequence[int] = range(len(dataset))
    if settings.limit is not None and settings.limit < len(images):
        images = balanced(dataset.keys, dataset.labels, settings.limit, settings.seed)
    searched = images  # or a smaller choice, which is part of the larger one
    if settings.search_limit is not None and settings.search_limit < len(images):
        searched = balanced(dataset.keys, dataset.labels, settings.search_limit, settings.seed)
    chosen = {True: [dataset.keys[i] for i in searched], False: [dataset.keys[i] for i in images]}
    kept = {
        # A limit that leaves nothing out is none.
        "limit": settings.limit if len(images) < len(dataset) else None,
        "search_limit": settings.search_limit if len(searched) < len(images) else None,
        "seed": settings.seed,
        "precision": settings.precision,
        "engine": settings.engine,
        "skip_bad": settings.skip_bad,
    }
    keys = {metric.name: chosen[metric.searched] for metric in metrics.values()}
    return Job.of(classifier, dataset, geometry, metrics.values(), keys, kept, workers)


def _check(classifier: Model, dataset: ImageSet, settings: Settings) -> None:
    """Refuses what cannot be measured, before anything is decoded."""
    check_labels(np.asarray(dataset.labels, dtype=np.int64), classifier.num_classes)
    if classifier.num_classes != len(dataset.class_names):
        log.warning(
            "%s has %d classes and %s has %d: was it trained on them?",
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
        shift = SHIFTS.get(ATTACKS.get(name.partition(":")[0]).shift)
        if shift.rendered and not isinstance(dataset, RenderedSet):
            raise UsageError(
                f"attack {name!r} moves the camera itself, which data {dataset.name!r} cannot: "
                "use --data scenes, or another attack"
            )


def canvas_for(
    classifier: Model,
    dataset: ImageSet,
    *,
    crop_pct: str,
    pad: str,
    margin: int = 0,
    shift: str = "nothing",
) -> Geometry:
    """The canvas of a model's images, with a margin that `shift` needs."""
    return geometry_for(
        classifier.preprocessing,
        crop_pct=crop_pct,
        margin=margin,
        pad=pad,
        finished=dataset.has_size(classifier.preprocessing.size),
        rendered=isinstance(dataset, RenderedSet),
        shift=shift,
    )
