"""Results: requests for a model on a data set, and their scores.

A record is one folder, `<model>--<data>/`, with `tables/*.parquet` (the predictions) and
`record.json`, which is derived from them. Files are written to a temporary name and renamed, so a
reader never reads a partial file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shiftbench.errors import RecordError, reason
from shiftbench.grid import Offset
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import (
    Request,
    Scored,
    image_outcomes,
    kind_of,
    read_cells,
    score,
    score_names,
)
from shiftbench.records.sections import DataInfo, ModelInfo, RequestInfo
from shiftbench.registry import unknown_name
from shiftbench.scores import ACCURACY, ScoreName, find_score, scores_to_json
from shiftbench.statistics import Score
from shiftbench.tables import (
    CLEAN,
    DIGEST,
    ENLARGED,
    LABEL,
    NEAR_TIE,
    NO_PHASE,
    PART,
    UNREADABLE,
    WHOLE,
    Cells,
    Tables,
    merged,
    read_tables,
    table_files,
)

SCHEMA = 3
TABLES_FOLDER = "tables"
# Conditions of a record that a table names only where they differ from these values.
USUAL_CONDITIONS = {
    "crop": "paper",
    "pad": "none",
    "scale": "1",
    "spare": "0",
    "precision": "fp32",
    "task": "classification",
    "labels": "data",
}
# Odd numbers that spread labels and occurrences over the 64 bits of an image's identifier.
LABEL_STEP, OCCURRENCE_STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, eq=False)  # compared by identity: a key of tables
class Result:
    """A record in memory: one model on one data set.

    >>> import shiftbench
    >>> result = shiftbench.load_record(Path("results/records/xcit_pico_6_p8.scenes--scenes"))
    >>> result.model.name, result.score("adversarial_crop@3").text()
    ('xcit_pico_6_p8.scenes', '62.5')
    """

    model: ModelInfo
    data: DataInfo
    settings: Mapping[str, Any]  # settings of every prediction: seed, precision
    requests: tuple[RequestInfo, ...]
    scores: Mapping[ScoreName, Score]
    environment: Mapping[str, Any]  # versions, device, git commit
    forward_passes: int  # known cells
    near_ties: int  # images with a prediction that rounding may have decided
    created: str  # ISO 8601, UTC
    # Numbers beside the scores that are never ranked: AP of a detector. The tables lack them.
    shown: Mapping[str, float] = field(default_factory=dict)
    schema: int = SCHEMA
    folder: Path | None = None  # not stored
    _tables: Tables | None = field(default=None, repr=False)  # of a result that was not saved yet

    def to_json(self) -> dict[str, Any]:
        """Return the content of `record.json`."""
        sections = asdict(replace(self, scores={}, folder=None, _tables=None))
        for name in ("folder", "_tables", "scores"):
            del sections[name]
        scores = scores_to_json(self.scores)
        return {"schema": sections.pop("schema"), **sections, "scores": scores}

    def score(self, text: str) -> Score:
        """Return a score by its text: `accuracy`, `consistency_half`, `adversarial_crop@3`."""
        return find_score(self.scores, text)

    @cached_property
    def conditions(self) -> dict[str, str]:
        """Conditions that must agree before any score of two records is ranked, by name."""
        own = {**USUAL_CONDITIONS, **self.data.geometry, **self.settings}
        request = self.request_of(ACCURACY) or next(iter(self.requests), None)
        images = "" if request is None else request.image_set[:8]
        return {
            "data": self.data.name,
            "split": self.data.split,
            "images": f"{self.data.images:,} ({images})",
            **{key: str(own[key]) for key in USUAL_CONDITIONS},
        }

    def request_of(self, name: ScoreName) -> RequestInfo | None:
        """Return the request that a score follows from."""
        return self._requests.get(str(name))

    @cached_property
    def _requests(self) -> dict[str, RequestInfo]:
        return {name: request for request in self.requests for name in request.scores}

    def lower_is_better(self, name: ScoreName) -> bool:
        """Return True if lower values of a score are better."""
        request = self.request_of(name)
        return request is not None and str(name) in request.lower_is_better

    def settings_of(self, name: ScoreName) -> dict[str, str]:
        """Return what must agree before a score is ranked besides the conditions."""
        request = self.request_of(name)
        if request is None:
            return {}
        images = f"{self.scores[name].n:,} ({request.image_set[:8]})"
        return {**request.conditions, "images": images}

    @cached_property
    def tables(self) -> Tables:
        """Predictions of the record, rows in the order in which a growing limit takes images."""
        return self._read_tables()

    def in_memory(self) -> Result:
        """Return the result with its tables, independent of its folder."""
        return replace(self, folder=None, _tables=self.tables)

    def _read_tables(self) -> Tables:
        if self._tables is not None:
            return self._tables
        if self.folder is None:
            raise RecordError(f"the record of {self.model.name} was not read from a folder")
        files = table_files(self.folder / TABLES_FOLDER)
        if not files:
            raise RecordError(
                f"cannot read {self.folder / TABLES_FOLDER}: it contains no tables. Run the "
                "evaluation again"
            )
        try:
            parts = [read_tables(file)[0] for file in files]
        except OSError as error:
            raise RecordError(
                f"cannot read the tables of {self.folder}: {reason(error)}"
            ) from error
        return parts[0] if len(parts) == 1 else merged(parts)

    def keys(self, images: int) -> list[str]:
        """Return the keys of the first images, unreadable ones left out."""
        return readable(self.tables, self.tables.keys[:images])

    def cells(self, request: RequestInfo) -> Cells:
        """Return the predictions that the scores of a request follow from."""
        assert request.loaded is not None
        return read_cells(self.tables, request.loaded, self.keys(request.images))

    def outcomes(self) -> Mapping[ScoreName, pd.Series]:
        """Return one number per image for each score, by image identifier.

        The scores of a metric whose plug-in is not loaded are left out.
        """
        return self._outcomes

    @cached_property
    def _outcomes(self) -> dict[ScoreName, pd.Series]:
        # Tables are many times larger than the outcomes: a paired test does not retain them.
        tables = self.__dict__.get("tables") or self._read_tables()
        ids = image_ids(tables)
        found: dict[ScoreName, pd.Series] = {}
        for request in self.requests:
            if request.loaded is None:
                continue
            keys = readable(tables, tables.keys[: request.images])
            own = ids if len(keys) == len(ids) else ids[tables.rows(keys)]
            cells = read_cells(tables, request.loaded, keys)
            images, outcomes = image_outcomes(request.loaded, cells)
            own = own if len(images) == len(own) else own[images]
            for name, values in outcomes.items():
                if str(name) not in request.scores:
                    continue
                if np.isnan(values).any():
                    raise RecordError(
                        f"cannot compute {name} of {self.folder}: its tables lack predictions. Run "
                        "the evaluation again"
                    )
                found[name] = pd.Series(values, index=own)
        return found

    def to_frame(self) -> pd.DataFrame:
        """Return a row per image or part: its prediction, and what follows for every request.

        An attack has the columns `<attack>_failure_radius`, `_dy`, `_dx` and `_class` of the first
        misclassified offset, which are empty where there is none. Other metrics have a column per
        score.
        """
        tables = self.tables
        keys = self.keys(len(tables.keys))
        rows, images = tables.part_rows(keys)
        frame = pd.DataFrame({"label": tables.column(LABEL)[rows].astype(np.int64)}, index=rows)
        frame["prediction"] = tables.column(CLEAN)[rows].astype(np.int64)
        frame["near_tie"] = tables.column(NEAR_TIE)[tables.rows(keys)[images]] > 0
        for request in self.requests:
            metric = request.loaded
            if metric is None:
                continue
            cells = self.cells(request)
            if isinstance(metric, Adversarial):
                columns = _failures(metric, cells)
            else:
                columns = {str(name): pd.array(v) for name, v in metric.outcomes(cells).items()}
            for name, values in columns.items():
                if name not in frame or len(cells.labels) == len(frame):
                    frame[name] = pd.Series(values, index=cells.rows)
        frame.insert(0, "key", [keys[image] for image in images])
        if PART in tables.arrays:
            frame.insert(1, "part", tables.column(PART)[rows].astype(np.int64))
        return frame.drop(columns=[str(ACCURACY)], errors="ignore").reset_index(drop=True)

    def accuracy_by_offset(self, attack: str) -> dict[Offset, Score]:
        """Return the accuracy at each offset of an attack that every image was predicted at."""
        found: dict[Offset, Score] = {}
        known = []
        for request in self.requests:
            metric = request.loaded
            if isinstance(metric, Adversarial):
                known.append(metric.label)
                if metric.label == attack:
                    cells = metric.accuracy_by_offset(self.cells(request))
                    found = cells if len(cells) > len(found) else found
        if not found:
            raise unknown_name("attack in this record", attack, known)
        return found


def _failures(metric: Adversarial, cells: Cells) -> dict[str, Any]:
    """Return the columns of the first misclassified offset of each image."""
    first, grid = metric.first_wrong(cells), metric.grid
    fails = first >= 0
    offsets = np.array([(offset.dy, offset.dx) for offset in grid])[first]
    classes = cells.classes[np.arange(len(first)), first]
    values = {
        "failure_radius": (np.array(grid.rings)[first], "Int64"),
        "dy": (offsets[:, 0], "Float64"),
        "dx": (offsets[:, 1], "Float64"),
        "class": (classes, "Int64"),
    }
    columns = {}
    for word, (column, dtype) in values.items():
        series = pd.Series(column, dtype=dtype).where(fails)
        columns[f"{metric.label}_{word}"] = series.array
    return columns


def image_ids(tables: Tables) -> pd.Index:
    """Return an identifier per image, from its digest, label and occurrence among equal ones."""
    images = tables.rows(tables.keys)
    digests, labels = (tables.column(name)[images].astype(np.uint64) for name in (DIGEST, LABEL))
    ids = digests + labels * LABEL_STEP  # uint64 wraps around
    order, rows = np.argsort(ids, kind="stable"), np.arange(len(ids))
    new = np.ones(len(ids), bool)
    new[1:] = ids[order][1:] != ids[order][:-1]
    occurrences = np.empty(len(ids), np.uint64)
    occurrences[order] = rows - np.maximum.accumulate(np.where(new, rows, 0))
    found: pd.Index = pd.Index(ids + occurrences * OCCURRENCE_STEP)
    return found


def paired(
    first: Result, second: Result, name: ScoreName
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the outcomes of both results on their common images.

    The order is that of the first result, because sums of floats depend on the order.
    """
    a, b = first.outcomes()[name], second.outcomes()[name]
    if not a.index.equals(b.index):
        common = a.index[a.index.isin(b.index)]
        a, b = a.loc[common], b.loc[common]
    return a.to_numpy(np.float64), b.to_numpy(np.float64)


def readable(tables: Tables, keys: Sequence[str]) -> list[str]:
    """Leave out the images that could not be read."""
    rows = tables.rows(keys)
    there = (tables.column(CLEAN)[rows] >= 0) | (tables.column(UNREADABLE)[rows] < 1)
    return [key for key, is_there in zip(keys, there, strict=True) if is_there]


def derive_result(
    tables: Tables,
    requests: Iterable[Request],
    *,
    model: ModelInfo,
    data: DataInfo,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> Result:
    """Build the record of everything that was requested and is known.

    Args:
        tables: Predictions, rows in the order in which a growing limit takes images.
        requests: Metrics, each on the first images; one whose images are not all known has no
            scores and is left out.
        model: The model section.
        data: The data section; `images`, `skipped` and the margin are computed here.
        settings: Settings of every prediction.
        environment: Versions and hardware.
    """
    scored = Scored.of(
        (request, score(request.metric, _cells(tables, request)))
        for request in dict.fromkeys(requests)
        if not tables.unseen(readable(tables, tables.keys[: request.images]))
    )
    infos = []
    for request in dict.fromkeys(scored.requests.values()):
        # In the order of the metric: that of the scores depends on what was requested before.
        own = [n for n in score_names(request.metric) if scored.requests.get(n) == request]
        infos.append(
            RequestInfo(
                metric=kind_of(request.metric),
                settings=dict(vars(request.metric)),
                images=request.images,
                scores=tuple(map(str, own)),
                lower_is_better=tuple(str(n) for n in own if request.metric.lower_is_better(n)),
                image_set=_image_set(tables, tables.keys[: request.images], settings),
            )
        )
    most = max((request.images for request in scored.requests.values()), default=0)
    requested = tables.keys[:most]
    known = readable(tables, requested)
    margin = max((request.metric.margin() for request in scored.requests.values()), default=0)
    margin *= data.geometry.get("scale", 1)
    rows = tables.rows(known)
    enlarged, no_phase = ((tables.column(name)[rows] > 0).sum() for name in (ENLARGED, NO_PHASE))
    geometry, counts = {**data.geometry, "margin": margin}, (0, 0)
    if PART in tables.arrays:
        extent = max((request.metric.extent() for request in scored.requests.values()), default=0)
        parts, owners = tables.part_rows(known)
        counted = owners[tables.column(WHOLE)[parts] >= extent]
        counts = len(counted), len(known) - len(np.unique(counted))
        geometry = dict(data.geometry)  # the margin changes the size of the images
    return Result(
        model=model,
        data=replace(
            data,
            images=len(known),
            skipped=len(requested) - len(known),
            geometry=geometry,
            enlarged=int(enlarged),
            no_phase=int(no_phase),
            rows=counts[0],
            empty=counts[1],
        ),
        settings=dict(settings),
        requests=tuple(infos),
        scores=scored.scores,
        environment=environment,
        forward_passes=tables.predictions(),
        near_ties=int((tables.column(NEAR_TIE) > 0).sum()),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        _tables=tables,
    )


def _cells(tables: Tables, request: Request) -> Cells:
    return read_cells(tables, request.metric, readable(tables, tables.keys[: request.images]))


def _image_set(tables: Tables, keys: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Digest images and labels, so that another subset or class map is noticed."""
    keys = readable(tables, keys)
    columns = [tables.column(name)[tables.rows(keys)].tolist() for name in (DIGEST, LABEL)]
    if settings.get("labels") == "data":  # not those that the model made
        columns.append([tables.parts(key).labels.tolist() for key in keys])
    pairs = sorted(zip(*columns, strict=True))
    return hashlib.sha256(repr(pairs).encode()).hexdigest()
