"""A job: a model, images, and metrics on the first of them. Nothing runs here."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from aft_models.preprocessing import Preprocessing
from aft_models.remedies import parse_remedies
from aft_models.remedies.crops import Downscale
from aft_models.remedies.inputs import InputRemedy, unbound
from shiftbench.data import ImageSet, RenderedSet, relabeled
from shiftbench.data.base import in_turn
from shiftbench.errors import DataError, ModelError, UsageError
from shiftbench.geometry import Geometry, geometry_for
from shiftbench.identity import plugin_digests
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import METRICS, Metric, Request, plan_metrics, read_cells
from shiftbench.metrics.base import remaining_passes as passes_of_metric
from shiftbench.metrics.consistency import DRAWS
from shiftbench.models import Model
from shiftbench.records.result import SCHEMA, readable
from shiftbench.records.sections import DataInfo, ModelInfo
from shiftbench.registry import unknown_name
from shiftbench.running import PRECISIONS
from shiftbench.shifts import ATTACKS, SHIFTS, parse_attack
from shiftbench.tables import CLEAN, LABEL, MOST_CLASSES, Cells, Tables
from shiftbench.tasks import Task
from shiftbench.tasks.classification import CLASSIFICATION, check_labels
from shiftbench.tasks.frames import fitted_for

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttackSpec:
    """An attack with a grid or a number of images of its own.

    >>> AttackSpec("bilinear", step="1/4").text
    'bilinear:1/4'
    """

    attack: str  # a name; a step may follow: "bilinear:1/4"
    step: str | None = None  # pixels between offsets; None: the attack's own
    max_shift: int | None = None  # radius of the grid, in steps; None: that of the settings
    limit: int | None = None  # number of images; None: that of the settings

    @property
    def text(self) -> str:
        """The name and the step, as `--attack` spells them."""
        return f"{self.attack}:{self.step}" if self.step else self.attack


@dataclass(frozen=True)
class Settings:
    """Every option that can change a number.

    >>> Settings(attacks=("crop",), consistency=()).metric_texts()
    ['accuracy', 'adversarial:crop']
    """

    # Names, to which a step may be added ("bilinear:1/4"), "all" or "none".
    attacks: tuple[str | AttackSpec, ...] = ("all",)
    consistency: tuple[str, ...] = ("integer", "half", "crop")
    metrics: tuple[str, ...] = ()  # further ones, such as "flip" or "agreement:5"
    max_shift: int | None = None  # radius of grids, in steps; None: each attack's own
    step: str | None = None  # pixels between offsets, such as "1/4"; None: each attack's own
    full_grid: bool = False  # predict every offset of every image
    consistency_samples: int = 1  # random draws per image
    seed: int = 0
    limit: int | None = None  # number of images, balanced over the classes
    attack_limit: int | None = None  # number of images that attacks are evaluated on
    precision: str = "fp32"
    crop_pct: str = "paper"  # or "model", or a number: how the view is cut from the image
    pad: str = "none"  # or "reflect", "zeros": fills a margin that the image lacks
    # Camera pixels per network pixel; None: as many as the input remedies need, and 2 for the
    # attack `camera` on image files.
    scale: int | None = None
    skip_bad: bool = False  # leave unreadable images out
    # Pixels on each side that random crops leave unused, for input remedies of compared models.
    remedy_margin: int = 0
    score_threshold: float | None = None  # of detections that count; None: the model's own

    def __post_init__(self) -> None:
        for attack in {spec.text for spec in self.attack_specs()} - {"all", "none"}:
            parse_attack(attack)
        for kind in self.consistency:
            DRAWS.get(kind)
        for text in self.metrics:
            METRICS.get(text.partition(":")[0])
        for name in ("consistency_samples", "limit", "attack_limit", "scale"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"expected {name.replace('_', '-')} of 1 or more, got {value}")
        if self.score_threshold is not None and not 0 < self.score_threshold < 1:
            raise UsageError(
                f"expected a score threshold between 0 and 1, got {self.score_threshold:g}"
            )
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)

    def for_model(
        self, model: Preprocessing, dataset: ImageSet, task: Task = CLASSIFICATION
    ) -> Settings:
        """Resolve the scale, and `all` and `none` among the attacks that the task allows.

        Shifts of the network's own input are left out of `all` and of consistency where the view is
        wider or finer than that input.
        """
        rendered = isinstance(dataset, RenderedSet)
        scale = self.scale or max(model.scale, self.needed_scale(rendered=rendered))
        wide = scale > 1 or model.margin > 0
        return replace(self.with_attacks(camera=rendered, wide=wide, task=task), scale=scale)

    def needed_scale(self, *, rendered: bool) -> int:
        """Return the scale that the attacks need: 2 for cameras that digitize image files."""
        names = [spec.attack.partition(":")[0] for spec in self.attack_specs()]
        shifts = [ATTACKS.get(name).shift for name in names if name not in ("all", "none")]
        return 2 if not rendered and any(SHIFTS.get(shift).digitizes for shift in shifts) else 1

    def with_attacks(
        self, *, camera: bool, wide: bool = False, task: Task = CLASSIFICATION
    ) -> Settings:
        """Resolve `all` and `none` among the attacks.

        Args:
            camera: Include those that form images anew in `all`.
            wide: Leave shifts of the network's own input out of `all` and of consistency.
            task: Leave attacks that it does not support out of `all`.
        """
        given = self.attack_specs()
        texts = (spec.text for spec in given)
        names = attack_names(texts, camera=camera, wide=wide, only=task.attacks) if given else ()
        own = {name: [spec for spec in given if spec.text == name] for name in names}
        chosen = [spec for name in names for spec in own[name] or [AttackSpec(name)]]
        kinds = (k for k in self.consistency if not wide or _moves_camera(DRAWS.get(k).shift))
        return replace(self, attacks=tuple(chosen), consistency=tuple(kinds))

    def attack_specs(self) -> list[AttackSpec]:
        """List the attacks, those given by name as well."""
        return [a if isinstance(a, AttackSpec) else AttackSpec(a) for a in self.attacks]

    def metric_texts(self) -> list[str]:
        """List every metric as `--metric` spells it, accuracy first."""
        texts = [f"consistency:{kind}" for kind in self.consistency]
        texts += [f"adversarial:{spec.text}" for spec in self.attack_specs()]
        return list(dict.fromkeys(["accuracy", *texts, *self.metrics]))

    def requests(
        self, geometry: Geometry, images: int, task: Task = CLASSIFICATION
    ) -> list[Request]:
        """Plan every metric of a task on the first of `images` images, accuracy first."""
        attacks: dict[str, list[AttackSpec]] = {}
        for spec in self.attack_specs():
            attacks.setdefault(f"adversarial:{spec.text}", []).append(spec)
        requests = []
        for text in self.metric_texts():
            named = task.metric(text) or (text if text in self.metrics else None)
            if named is None:
                continue
            for spec in attacks.get(text, [AttackSpec("")]):
                grid = self.max_shift if spec.max_shift is None else spec.max_shift
                (metric,) = plan_metrics([named], replace(self, max_shift=grid), geometry)
                most = self.attack_limit if isinstance(metric, Adversarial) else None
                requests.append(Request(metric, min(spec.limit or most or images, images)))
        return requests


def _moves_camera(shift: str) -> bool:
    return SHIFTS.get(shift).moves_camera


def attack_names(
    names: Iterable[str],
    *,
    camera: bool,
    wide: bool = False,
    only: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Resolve `all` and `none`, and sort by the order of the registry.

    Args:
        names: As the user wrote them; none at all means all.
        camera: Include attacks that form images anew in `all`.
        wide: Leave attacks on the network's own input out of `all`.
        only: Attacks that `all` may include. None: any.
    """
    wanted = set(names)
    if wanted == {"none"}:
        return ()
    if not wanted or "all" in wanted:
        usual = {name for name in only or ATTACKS if not ATTACKS.get(name).opt_in}
        shifts = {name: SHIFTS.get(ATTACKS.get(name).shift) for name in usual}
        fitting = {
            name
            for name, shift in shifts.items()
            if (camera or not shift.digitizes) and (shift.moves_camera or not wide)
        }
        wanted = (wanted - {"all"}) | fitting
    order = {name: place for place, name in enumerate(ATTACKS)}
    for name in wanted:
        ATTACKS.get(name.partition(":")[0])
    return tuple(sorted(wanted, key=lambda name: (order[name.partition(":")[0]], name)))


@dataclass(frozen=True)
class Job:
    """A model, images and requests."""

    model: Model
    dataset: ImageSet
    geometry: Geometry
    requests: tuple[Request, ...]  # accuracy first
    settings: Mapping[str, Any]  # settings of every prediction: seed, precision
    skip_bad: bool = False

    @property
    def originals(self) -> bool:
        """True if a metric forms images anew from their files."""
        views = (view for request in self.requests for view in request.metric.views(""))
        shifts = {view.shift for view in views} & {*SHIFTS}
        return not self.geometry.rendered and any(SHIFTS.get(s).digitizes for s in shifts)

    @cached_property
    def remedies(self) -> tuple[InputRemedy, ...]:
        """Input remedies of the model, the innermost first, and `resize`."""
        return (*self.model.remedies, *self.resize)

    @cached_property
    def resize(self) -> tuple[InputRemedy, ...]:
        """The resize to the view of the model that the scale of the job needs; empty: none."""
        finer = self.geometry.scale // self.model.preprocessing.scale
        return (Downscale(self.model.preprocessing, finer),) if finer > 1 else ()

    @property
    def labeled(self) -> bool:
        """True if the labels of the data set are of the model's task."""
        return self.dataset.task == self.model.task.name

    @property
    def classes(self) -> int:
        """Number of classes of the model, by the data set if the model does not state it."""
        return self.model.num_classes or len(self.dataset.class_names)

    @cached_property
    def order(self) -> list[int]:
        """Every image of the data set, in the order in which a growing limit takes them."""
        return in_turn(self.dataset.keys, self.dataset.labels, self.settings["seed"])

    @cached_property
    def position(self) -> dict[str, int]:
        """Position of every image in that order, by key."""
        return {self.dataset.keys[index]: place for place, index in enumerate(self.order)}

    @cached_property
    def keys(self) -> list[str]:
        """Images of any request, in that order."""
        most = max(request.images for request in self.requests)
        return [self.dataset.keys[index] for index in self.order[:most]]

    def images(self) -> Tables:
        """Return tables of the images and their labels, without predictions."""
        tables = Tables(self.keys)
        labels = [self.dataset.labels[index] for index in self.order[: len(self.keys)]]
        tables.array(LABEL, 1)[:, 0] = labels
        return tables

    def in_order(self, tables: Tables) -> Tables:
        """Sort rows in the order of the limit; images that left the data set come last."""
        last = len(self.order)
        return tables.take(sorted(tables.keys, key=lambda key: self.position.get(key, last)))

    def _cells(self, tables: Tables, request: Request) -> tuple[Cells, list[str]]:
        keys = readable(tables, self.keys[: request.images])
        return read_cells(tables, request.metric, keys), keys

    def missing(self, tables: Tables) -> set[str]:
        """Return the images of which any metric needs a cell."""
        keys = readable(tables, self.keys)
        unseen = np.flatnonzero(tables.column(CLEAN)[tables.rows(keys)] < 0)
        missing = {keys[row] for row in unseen}
        for request in self.requests:
            cells, keys = self._cells(tables, request)
            rows = np.flatnonzero(cells.by_image(request.metric.needed(cells)).any(1))
            missing |= {keys[row] for row in rows}
        return missing

    def remaining_passes(self, tables: Tables) -> int:
        """Return the largest number of forward passes that the job may still take."""
        keys = readable(tables, self.keys)
        clean = int((tables.column(CLEAN)[tables.rows(keys)] < 0).sum())
        for request in self.requests:
            cells, own = self._cells(tables, request)
            clean += passes_of_metric(request.metric, cells, tables.unseen(own))
        return clean

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Values that must agree before predictions are merged."""
        geometry = {k: v for k, v in self.geometry.to_json().items() if k != "margin"}
        return {
            "schema": SCHEMA,
            "model": self.model.identity.to_json(),
            "mean": list(self.model.preprocessing.mean),
            "std": list(self.model.preprocessing.std),
            "data": self.dataset.name,
            "split": self.dataset.split,
            "classes": class_count(self.model) + self.model.task.further_classes,
            "geometry": geometry,
            **self.settings,
            "plugins": _plugin_digests(request.metric for request in self.requests),
        }

    @property
    def model_info(self) -> ModelInfo:
        """The model section of the record."""
        return ModelInfo.of(self.model)

    @property
    def data_info(self) -> DataInfo:
        """The data section of the record."""
        names = tuple(self.dataset.class_names)
        return DataInfo(
            name=self.dataset.name,
            split=self.dataset.split,
            images=0,
            geometry=self.geometry.to_json(),
            classes=() if names == tuple(map(str, range(len(names)))) else names,
        )


def _plugin_digests(metrics: Iterable[Metric]) -> dict[str, dict[str, str]]:
    """Digest the files of plug-ins that define a metric or its shift types, by table."""
    digests = {}
    for metric in metrics:
        shifts = {view.shift for view in metric.views("")}
        digests[metric.table] = plugin_digests(type(metric), *map(SHIFTS.get, shifts))
    return {table: files for table, files in digests.items() if files}


def make_job(model: Model, dataset: ImageSet, settings: Settings) -> Job:
    """Choose the metrics, their images, and the one canvas that serves all of them."""
    task, dataset = model.task, data_for(model, dataset)
    settings = settings.for_model(model.preprocessing, dataset, task)
    _check(model, dataset, settings)
    cut = partial(
        canvas_for,
        model,
        dataset,
        crop_pct=settings.crop_pct,
        pad=settings.pad,
        scale=settings.scale,
        advice=partial(_smaller_shifts, model, settings),
        spare=settings.remedy_margin,
    )
    bare = cut()
    _warn_of_resize(model, bare)
    if bare.resize - bare.view < 2 * bare.scale:
        # Images without a margin for random crops: an error only if they were requested by name.
        kinds = tuple(kind for kind in settings.consistency if kind != "crop")
        settings = replace(settings, consistency=kinds)
    requests = settings.requests(bare, min(settings.limit or len(dataset), len(dataset)), task)
    _require_shifts(model, requests, bare.scale)
    widest = max((request.metric for request in requests), key=lambda metric: metric.margin())
    threshold = settings.score_threshold or model.score_threshold
    further = task.settings(labeled=dataset.task == task.name, threshold=threshold)
    return Job(
        model,
        dataset,
        cut(
            margin=widest_shift(model, requests),
            shift=f"{widest.name.removeprefix('adversarial_')} ({widest.margin()} px)",
        ),
        tuple(requests),
        {"seed": settings.seed, "precision": settings.precision, **further},
        settings.skip_bad,
    )


def data_for(model: Model, dataset: ImageSet) -> ImageSet:
    """Return a data set with the class indices of a model, if its labels are of the same task.

    Raises:
        UsageError: The labels are of another task.
    """
    model.task.require_data(dataset)
    if dataset.task != model.task.name:
        return dataset
    return relabeled(dataset, model.num_classes or len(dataset.class_names), model.class_names)


def class_count(model: Model) -> int:
    """Return the number of classes of a model; the largest possible if it does not state it."""
    return model.num_classes or MOST_CLASSES - 1


def widest_shift(model: Model, requests: Iterable[Request]) -> int:
    """Return the pixels around the view that the shifts of requests need.

    Parts of images have to be whole under every shift, also under those that read no more pixels.
    """
    metrics = [request.metric for request in requests]
    parts = model.task.has_parts
    return max((m.extent() if parts else m.margin() for m in metrics), default=0)


def _check(model: Model, dataset: ImageSet, settings: Settings) -> None:
    """Raise an error for a job that cannot run, before anything is decoded."""
    if not len(dataset):
        raise DataError("expected at least one image, got none. Check the path and the filters")
    if model.num_classes > MOST_CLASSES:
        raise ModelError(
            f"expected a model of at most {MOST_CLASSES:,} classes, got {model.num_classes:,}"
        )
    for text in settings.metrics:
        model.task.require_metric(text)
    labeled = dataset.task == model.task.name
    if labeled and model.num_classes:
        check_labels(np.array(sorted(dataset.used_classes()), np.int64), model.num_classes)
    if labeled and not dataset.annotated and model.num_classes not in (0, len(dataset.class_names)):
        log.warning(
            "%s has %d classes and %s has %d: check that it was trained on them",
            model.name,
            model.num_classes,
            dataset.name,
            len(dataset.class_names),
        )
    key, count = max(Counter(dataset.keys).items(), key=lambda item: item[1])
    if count > 1:
        raise DataError(
            f"expected a distinct key per image, got {key!r} for {count} images of {dataset.name}"
        )


def _require_shifts(model: Model, requests: Iterable[Request], scale: int) -> None:
    """Raise UsageError for a shift that does not support the view of a model, or its scale."""
    plain = model.preprocessing.scale
    for metric in (request.metric for request in requests):
        for shift in {view.shift for view in metric.views("")}:
            if not SHIFTS.get(shift).moves_camera and (scale > 1 or model.preprocessing.margin):
                why = f"views of scale {scale}" if scale > 1 else "+".join(view_remedies(model))
                raise UsageError(
                    f"cannot measure {metric.name} with {why}: it shifts the network's own input. "
                    f"Use --attack crop or camera{', or --scale 1' * (scale > plain)}"
                )
        if isinstance(metric, Adversarial):
            SHIFTS.get(ATTACKS.get(metric.attack).shift).require(metric.grid, scale)


def _warn_of_resize(model: Model, geometry: Geometry) -> None:
    """Warn if the paper's resize replaces one that the user's own transform states."""
    own, used = model.preprocessing, geometry.resize // geometry.scale
    if not own.states_resize or geometry.crop != "paper" or geometry.rendered:
        return
    if own.squash or own.own_resize != used:
        sides = f"{own.own_resize} x {own.own_resize}" if own.squash else str(own.own_resize)
        log.warning(
            "%s: your transform resizes to %s px; evaluating at %d px (--crop-pct model to use "
            "yours)",
            *(model.name, sides, used),
        )


def _smaller_shifts(model: Model, settings: Settings, available: int) -> list[str]:
    """Return a smaller max shift and a smaller remedy that fit a margin of `available` px."""
    ways, remedies = [], model.preprocessing.margin
    radius = max(getattr(metric, "radius", 1) for metric in _attack_metrics(settings))
    radii = range(radius - 1, 0, -1)
    fitting = (r for r in radii if _attack_margin(settings, r) + remedies <= available)
    if smaller := next(fitting, None):
        ways.append(f"--max-shift {smaller}")
    number, names = available - _attack_margin(settings), view_remedies(model)
    if len(names) == 1 and number > 1:
        name, _, *rest = names[0].split(":") if ":" in names[0] else (names[0], "")
        ways.append(":".join([name, str(number), *rest]))
    return ways


def _attack_metrics(settings: Settings, max_shift: int | None = None) -> list[Metric]:
    """Plan the attacks alone, of `max_shift` steps each if given."""
    specs = settings.attack_specs()
    if max_shift is not None:
        specs = [replace(spec, max_shift=max_shift) for spec in specs]
    attacks = replace(settings, attacks=tuple(specs), consistency=(), metrics=())
    return [request.metric for request in attacks.requests(Geometry(1, 1, 0, "none"), 1)]


def _attack_margin(settings: Settings, max_shift: int | None = None) -> int:
    """Return the largest margin of the attacks in network pixels."""
    return max(metric.margin() for metric in _attack_metrics(settings, max_shift))


def view_remedies(model: Model) -> list[str]:
    """List the remedies of a model that need a wider view."""
    specs = [spec for spec in parse_remedies(model.identity.remedies) if spec.remedy.input]
    return [str(spec) for spec in specs if unbound(spec).margin]


def canvas_for(
    model: Model,
    dataset: ImageSet,
    *,
    crop_pct: str,
    pad: str,
    scale: int | None = None,
    margin: int = 0,
    shift: str = "nothing",
    advice: Callable[[int], Sequence[str]] = lambda available: (),
    spare: int = 0,
) -> Geometry:
    """Return the canvas of a model's images, with a margin that `shift` needs."""
    remedy = "+".join(view_remedies(model)) or "the wider view"
    if model.task.has_parts:
        return fitted_for(
            model.preprocessing, margin=margin, spare=spare, scale=scale, remedy=remedy
        )
    return geometry_for(
        model.preprocessing,
        crop_pct=crop_pct,
        margin=margin,
        pad=pad,
        finished=dataset.has_size(model.preprocessing.size),
        rendered=isinstance(dataset, RenderedSet),
        scale=scale,
        shift=shift,
        remedy=remedy,
        advice=advice,
    )
