"""What a run will do: which images, which tasks, how wide the canvas; nothing is measured yet."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from shiftbench.datasets.base import Camera, ImageSet
from shiftbench.datasets.canvases import Batch, Canvases
from shiftbench.datasets.geometry import Geometry, geometry_for
from shiftbench.datasets.labels import relabelled
from shiftbench.datasets.subset import balanced
from shiftbench.errors import UsageError
from shiftbench.grid import Offset
from shiftbench.measure.answers import check_labels
from shiftbench.measure.attacks import ATTACKS
from shiftbench.measure.consistency import CONSISTENCIES
from shiftbench.measure.metrics import AttackTask, ConsistencyTask, Shard, Task, UnshiftedTask
from shiftbench.models.classifier import Classifier
from shiftbench.records.record import DataInfo, ModelInfo
from shiftbench.run.engine import Engine
from shiftbench.run.resume import identity_of
from shiftbench.run.settings import Settings, images_digest
from shiftbench.shifts import SHIFTS
from shiftbench.shifts.base import Views

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A run before it begins. Two plans with the same identity yield the same rows."""

    classifier: Classifier
    dataset: ImageSet
    geometry: Geometry
    images: Sequence[int]  # which images of the data set, ascending
    searched: Sequence[int]  # those of them that the attacks search, ascending
    tasks: tuple[Task, ...]
    model: ModelInfo
    data: DataInfo
    settings: Mapping[str, Any]  # as the record keeps them
    skips_bad: bool
    workers: int | None  # data loading processes; None: the loader's own choice

    @property
    def identity(self) -> dict[str, Any]:
        """What must agree with work that is there already."""
        return identity_of(self.model, self.data, self.settings)

    def images_of(self, task: Task) -> Sequence[int]:
        """The images that a task measures."""
        return self.searched if isinstance(task, AttackTask) else self.images

    def stream(self, images: Sequence[int]) -> Canvases:
        """Decodes some images ahead, once for every task."""
        return Canvases(
            self.dataset,
            self.geometry,
            images,
            workers=self.workers,
            skip_bad=self.skips_bad,
        )

    def shard(self, engine: Engine, batch: Batch) -> Shard:
        """Puts a batch on the engine's device and asks about the unshifted images."""
        return Shard.ask(
            engine,
            engine.prepare(batch.canvas),
            self.geometry.margin,
            np.array(batch.indices, dtype=np.int64),
            batch.keys,
            batch.labels.numpy(),
            camera=lambda: self._camera(engine, batch),
        )

    def _camera(self, engine: Engine, batch: Batch) -> Views:
        assert isinstance(self.dataset, Camera)
        reach = max(task.grid.reach for task in self.tasks if isinstance(task, AttackTask))
        views = self.dataset.views(batch.indices, self.geometry.view, reach=math.ceil(reach))
        return _Prepared(views, engine)


@dataclass(frozen=True)
class _Prepared:
    """Views that come as bytes, normalised on the device."""

    views: Views
    engine: Engine

    def __call__(self, offset: Offset, rows: Tensor | None = None) -> Tensor:
        return self.engine.prepare(self.views(offset, rows))


def make_plan(
    classifier: Classifier, dataset: ImageSet, settings: Settings, *, workers: int | None = None
) -> Plan:
    """Chooses the images, the tasks and the one canvas that serves all of them."""
    dataset = relabelled(dataset, classifier.num_classes, classifier.class_names)
    check_labels(np.asarray(dataset.labels, dtype=np.int64), classifier.num_classes)
    if classifier.num_classes != len(dataset.class_names):
        log.warning(
            "%s answers with %d classes and %s has %d: was it trained on them?",
            classifier.name,
            classifier.num_classes,
            dataset.name,
            len(dataset.class_names),
        )
    attacks = [_attack(name, dataset, settings) for name in settings.attacks]
    finished = dataset.has_size(classifier.preprocessing.input_size)
    draws = _draws(settings, _geometry(classifier, dataset, settings, {}, finished))
    needed = {f"attack {task.name!r} up to {task.grid.reach} px": _margin(task) for task in attacks}
    needed |= {f"consistency {task.kind.name!r}": task.kind.margin(task.span) for task in draws}
    geometry = _geometry(classifier, dataset, settings, needed, finished)
    images: Sequence[int] = range(len(dataset))
    searched = images
    if settings.search_limit is not None:
        searched = balanced(dataset.keys, dataset.labels, settings.search_limit, settings.seed)
    recipe = classifier.preprocessing
    return Plan(
        classifier=classifier,
        dataset=dataset,
        geometry=geometry,
        images=images,
        searched=searched,
        tasks=(UnshiftedTask(), *draws, *attacks),
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
        ),
        settings={
            **settings.to_json(),
            # A limit that leaves nothing out is none.
            "search_limit": settings.search_limit if len(searched) < len(images) else None,
            "consistency": [task.kind.name for task in draws],
            "spans": {task.kind.name: task.span for task in draws},  # how far the draws go
            "upper_bound": settings.is_upper_bound,
            "images": images_digest(
                (dataset.keys[i] for i in images), (dataset.labels[i] for i in images)
            ),
        },
        skips_bad=settings.skip_bad,
        workers=workers,
    )


def _attack(name: str, dataset: ImageSet, settings: Settings) -> AttackTask:
    attack = ATTACKS.get(name)
    if attack.shift == "camera" and not isinstance(dataset, Camera):
        raise UsageError(
            f"attack {name!r} moves the camera itself, which data {dataset.name!r} cannot: "
            "use --data scenes, or another attack"
        )
    return AttackTask(attack, settings.grid(name), settings.mode, settings.seed)


def _draws(settings: Settings, geometry: Geometry) -> list[ConsistencyTask]:
    """The kinds of random shift that the canvas allows: crops need room around the view."""
    draws = []
    for name in settings.consistency:
        kind = CONSISTENCIES.get(name)
        if kind.shift == "crop" and geometry.resize - geometry.view < 2:
            continue
        span = kind.span(geometry.view, geometry.resize)
        draws.append(ConsistencyTask(kind, span, settings.repeats, settings.seed))
    return draws


def _margin(task: AttackTask) -> int:
    shift = task.attack.shift
    return 0 if shift == "camera" else SHIFTS.get(shift).margin(task.grid)


def _geometry(
    classifier: Classifier,
    dataset: ImageSet,
    settings: Settings,
    needed: Mapping[str, int],
    finished: bool,
) -> Geometry:
    """The canvas with the widest margin that anything needs, which errors call by name."""
    widest = max(needed, key=lambda name: needed[name], default="nothing")
    return geometry_for(
        classifier.preprocessing,
        crop_pct=settings.crop_pct,
        margin=needed.get(widest, 0),
        pad=settings.pad,
        finished=finished,
        rendered=isinstance(dataset, Camera),
        shift=widest,
    )
