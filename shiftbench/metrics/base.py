"""Base class of all metrics: which cells a metric needs, and what follows from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.registry import Registry
from shiftbench.scores import ScoreName
from shiftbench.statistics import Score, mean_score
from shiftbench.tables import Cells, Tables

if TYPE_CHECKING:
    from shiftbench.geometry import Geometry
    from shiftbench.running.job import Settings

Outcomes = dict[ScoreName, NDArray[np.float64]]  # a number in [0, 1] per row; NaN: not known


class View(NamedTuple):
    """An image under one shift: the content of a column."""

    shift: str  # a shift type registered in shiftbench.shifts
    offset: Offset
    # Also store the softmax probability of the class that was predicted in this column, which may
    # be the view's own column or one before it. None: store the class alone.
    reference: int | None = None


CLEAN_VIEW = View("crop", ORIGIN, reference=0)  # column 0 of every metric


class Metric(ABC):
    """A measurement as a pure function of predicted classes.

    A metric is a frozen dataclass whose fields are its settings, as plain values. The first line
    of its docstring is its summary in `shiftbench list metrics`.
    """

    name: str  # identifies the metric in a record: "adversarial_crop"

    @property
    def table(self) -> str:
        """Name of the table of its cells; metrics with equal views may share a table.

        Settings that change the view of a column must change the name. The number of columns must
        not: a smaller request is a prefix of a larger one.
        """
        return self.name

    @classmethod
    def plan(cls, argument: str, settings: Settings, geometry: Geometry) -> Self:
        """Build the metric from the text after its name and a colon, and the settings of a run."""
        if argument:
            raise UsageError(f"expected no argument after the metric's name, got {argument!r}")
        return cls()

    def margin(self) -> int:
        """Return the number of network pixels around the view that its views read."""
        return 0

    def extent(self) -> int:
        """Return the largest shift in pixels; only parts that are whole up to it are counted."""
        return self.margin()

    @abstractmethod
    def views(self, image: str) -> Sequence[View]:
        """List the views of columns 1 and up; random views follow from the image's identifier."""

    def needed(self, cells: Cells) -> NDArray[np.bool_]:
        """Return a mask of the cells to predict next, independent of the others."""
        return ~cells.known

    @abstractmethod
    def outcomes(self, cells: Cells) -> Outcomes:
        """Compute one number per row for each score; the score is the mean over images."""

    def lower_is_better(self, name: ScoreName) -> bool:
        """Return True if lower values of the score are better."""
        return False


METRICS: Registry[type[Metric]] = Registry("metric")


class Request(NamedTuple):
    """A metric on the first images: the upper left corner of its table."""

    metric: Metric
    images: int


def plan_metrics(texts: Iterable[str], settings: Settings, geometry: Geometry) -> list[Metric]:
    """Build the metrics of texts such as `adversarial:crop`."""
    planned = []
    for text in dict.fromkeys(texts):
        name, _, argument = text.partition(":")
        planned.append(METRICS.get(name).plan(argument, settings, geometry))
    return planned


def kind_of(metric: Metric) -> str:
    """Return the name under which the class of a metric is registered."""
    return next(kind for kind in METRICS if type(metric) is METRICS.get(kind))


def read_cells(tables: Tables, metric: Metric, keys: Sequence[str]) -> Cells:
    """Copy the cells of some images that a metric counts."""
    return counted(metric, tables.read(metric.table, len(metric.views("")), keys))


def counted(metric: Metric, cells: Cells) -> Cells:
    """Leave out the parts of images that are not whole under every shift of a metric."""
    return cells if cells.whole is None else cells.take(cells.whole >= metric.extent())


def image_outcomes(metric: Metric, cells: Cells) -> tuple[NDArray[np.intp], Outcomes]:
    """Compute one number per image for each score: the mean over the rows of the image.

    Returns:
        The indices of the images that have rows, and their numbers.
    """
    outcomes = {name: cells.shares(values) for name, values in metric.outcomes(cells).items()}
    images = np.arange(len(cells.labels)) if cells.images is None else np.unique(cells.images)
    return images, outcomes


def score_names(metric: Metric) -> list[ScoreName]:
    """List the scores of a metric; no image is needed."""
    return list(metric.outcomes(read_cells(Tables(), metric, ())))


def score(metric: Metric, cells: Cells) -> dict[ScoreName, Score]:
    """Compute every score that is known for all of the images.

    A mean over the known images alone would be biased: an image that is misclassified at ring 1 is
    known at ring 6, and one that is not is unknown.
    """
    outcomes = image_outcomes(metric, cells)[1].items()
    return {n: mean_score(v) for n, v in outcomes if len(v) and not np.isnan(v).any()}


def remaining_passes(metric: Metric, cells: Cells, unseen: int = 0) -> int:
    """Return the largest number of forward passes that a metric may still need, (0, 0) aside.

    Args:
        metric: The metric.
        cells: Rows of images.
        unseen: Images that have no rows yet.
    """
    unfinished = metric.needed(cells).any(1, keepdims=True)
    seen = int(cells.by_image(~cells.known & unfinished)[:, 1:].sum())
    return seen + unseen * len(metric.views(""))


@dataclass(frozen=True)
class Scored:
    """The scores of several requests, each of the request with the most images."""

    scores: dict[ScoreName, Score]
    requests: dict[ScoreName, Request]  # the request of each score

    @classmethod
    def of(cls, results: Iterable[tuple[Request, dict[ScoreName, Score]]]) -> Scored:
        """Choose for each score the request with the most images, then with the most views."""
        scores, requests = dict[ScoreName, Score](), dict[ScoreName, Request]()
        for request, own in results:
            for name, value in own.items():
                if name not in requests or _extent(request) > _extent(requests[name]):
                    scores[name], requests[name] = value, request
        return cls(scores, requests)


def _extent(request: Request) -> tuple[int, int, str]:
    """Return a sort key of requests; the last entry makes the choice independent of their order."""
    return request.images, len(request.metric.views("")), repr(request.metric)
