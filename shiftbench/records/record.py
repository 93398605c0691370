"""Records of what was measured, and the folder that keeps them.

A record is one folder, `<model>--<data>/`, with `record.json` (what was measured, how, and the
scores) and `samples.parquet` (a row per image). Files are written to a temporary name and renamed,
so a reader never sees half a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shiftbench.errors import RecordError
from shiftbench.files import file_safe, write_atomic
from shiftbench.grid import Offset
from shiftbench.identity import plugin_digests
from shiftbench.logs import open_logs
from shiftbench.metrics.base import KEY as KEY
from shiftbench.metrics.base import METRICS, Metric, kind_of
from shiftbench.scores import ACCURACY, ScoreName, Scores
from shiftbench.statistics import Score

if TYPE_CHECKING:
    from shiftbench.models.model import Model

SCHEMA = 2
RECORD_FILE = "record.json"
SAMPLES_FILE = "samples.parquet"
VERIFIED_FILE = "verified.json"  # a note that images were measured again: see `verify`
# Conditions of a record that a table names only where they differ from this.
USUAL_CONDITIONS = {"crop": "paper", "pad": "none", "precision": "fp32", "engine": "torch"}


@dataclass(frozen=True)
class ModelInfo:
    """Which weights were measured."""

    name: str
    source: str
    digest: str
    parameters: int
    input_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    parts: Mapping[str, Any] = field(default_factory=dict)  # `Identity.to_json()`

    @classmethod
    def of(cls, classifier: Model) -> ModelInfo:
        """What a record says of a classifier."""
        return cls(
            name=classifier.name,
            source=classifier.source,
            digest=classifier.identity.digest,
            parameters=classifier.parameter_count,
            input_size=classifier.preprocessing.input_size,
            mean=classifier.preprocessing.mean,
            std=classifier.preprocessing.std,
            interpolation=classifier.preprocessing.interpolation,
            parts=classifier.identity.to_json(),
        )


@dataclass(frozen=True)
class DataInfo:
    """Which images were measured, and how they were cut."""

    name: str
    split: str
    images: int  # how many were measured
    fingerprint: str  # of the whole split
    geometry: Mapping[str, Any]  # resize, view, margin, crop, pad, interpolation
    labels: str = ""  # digest of every key and label of the split
    skipped: int = 0  # unreadable files left out because the user allowed it
    classes: tuple[str, ...] = ()  # what each class is called, by index; empty where unknown

    def __str__(self) -> str:
        return f"{self.name} {self.split}, {self.images:,} images"

    def class_name(self, index: int) -> str:
        """What people call a class: its name, or its index where that is all there is."""
        return self.classes[index] if 0 <= index < len(self.classes) else str(index)


@dataclass(frozen=True)
class MetricInfo:
    """What a metric measured, and on which images."""

    kind: str  # a name of shiftbench.metrics.METRICS
    settings: Mapping[str, Any]  # what its numbers depend on besides model and images
    scores: tuple[str, ...]  # stems of the scores that come from it
    images: int
    digest: str  # of the keys and labels of its images
    parts: Mapping[str, str] = field(default_factory=dict)  # the same, for scores of fewer images
    code: Mapping[str, str] = field(default_factory=dict)  # digests of what a plug-in defines of it

    def images_of(self, name: ScoreName) -> str:
        """The digest of the images that one of its scores is of."""
        return self.parts.get(str(name), self.digest)

    def load(self) -> Metric | None:
        """The metric itself; None when it was plugged in and is not here."""
        return self._metric

    @cached_property
    def _metric(self) -> Metric | None:
        return METRICS.get(self.kind).load(self.settings) if self.kind in METRICS else None

    @cached_property
    def conditions(self) -> dict[str, str]:
        """What must agree before its scores are compared with another's, as words."""
        own = self.settings if self._metric is None else self._metric.conditions()
        return {key: str(value) for key, value in own.items()}


@dataclass(frozen=True)
class Record:
    """One model on one data set."""

    model: ModelInfo
    data: DataInfo
    settings: Mapping[str, Any]  # what every number depends on: seed, precision, engine, limits
    metrics: Mapping[str, MetricInfo]  # by the metric's name
    scores: Scores
    environment: Mapping[str, Any]  # versions, device, git commit
    seconds: float
    forward_passes: int
    created: str  # ISO 8601, UTC
    maps: Mapping[str, Mapping[Offset, Score]] = field(default_factory=dict)  # full grids, by stem
    schema: int = SCHEMA
    folder: Path | None = field(default=None, compare=False)  # where it was read from; not stored
    table: pd.DataFrame | None = field(default=None, compare=False)  # samples not on disk yet

    def to_json(self) -> dict[str, Any]:
        """The object `record.json` holds."""
        content = asdict(replace(self, scores=Scores({}), maps={}, table=None))
        del content["folder"], content["table"]
        maps = {
            stem: [
                {**vars(o), "value": s.value, "low": s.low, "high": s.high, "n": s.n}
                for o, s in cells.items()
            ]
            for stem, cells in self.maps.items()
        }
        scores = self.scores.to_json()
        return {"schema": content.pop("schema"), **content, "maps": maps, "scores": scores}

    @cached_property
    def conditions(self) -> dict[str, str]:
        """What must agree before any score of two records is compared, by name, as words."""
        data, info = self.data, self.metric_of(ACCURACY)
        measured = "" if info is None else info.digest
        own = {**USUAL_CONDITIONS, **data.geometry, **self.settings}
        if own["engine"] == "onnx":  # it was checked against PyTorch before it ran
            own["engine"] = "torch"
        return {
            "data": data.name,
            "split": data.split,
            "images": f"{data.images:,} ({data.fingerprint[:8]}/{measured[:8]})",
            **{key: str(own[key]) for key in USUAL_CONDITIONS},
        }

    def metric_of(self, name: ScoreName) -> MetricInfo | None:
        """What measured a score."""
        return self._by_stem.get(name.stem)

    @cached_property
    def _by_stem(self) -> dict[str, MetricInfo]:
        return {stem: info for info in self.metrics.values() for stem in info.scores}

    def is_upper_bound(self, name: ScoreName) -> bool:
        """Whether a score can only be too high, because its search sampled the grid."""
        info = self.metric_of(name)
        return bool(info and info.settings.get("upper_bound", False))

    def samples(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The table of images this record was computed from, or those of its columns that exist."""
        if self.table is not None:
            return self.table if columns is None else self.table.filter(items=list(columns))
        if self.folder is None:
            raise RecordError(f"the record of {self.model.name} was not read from a folder")
        path = self.folder / SAMPLES_FILE
        try:
            with pq.ParquetFile(path) as file:
                there = [n for n in file.schema_arrow.names if columns is None or n in columns]
                samples: pd.DataFrame = file.read(there).to_pandas()
                return samples
        except (OSError, ValueError) as error:
            raise RecordError(f"cannot read {path}: {error}; run the evaluation again") from error

    def outcomes(self) -> dict[ScoreName, pd.Series]:
        """One number per image and score, by key: what scores and comparisons are made of."""
        samples = self.samples()
        keys = pd.Index(samples[KEY])
        return {
            name: pd.Series(values, index=keys).dropna()
            for info in self.metrics.values()
            if (metric := info.load()) is not None
            for name, values in metric.outcomes(samples).items()
        }


def images_digest(keys: Iterable[str], labels: Iterable[int]) -> str:
    """Names some images and their labels, so that another subset or class map is noticed.

    >>> images_digest(["a"], [0]) == images_digest(["a"], [1])
    False
    """
    text = "\n".join(f"{label} {key}" for key, label in zip(keys, labels, strict=True))
    return hashlib.sha256(text.encode()).hexdigest()


def describe_metric(metric: Metric, samples: pd.DataFrame) -> MetricInfo:
    """What a table of images says of a metric."""
    outcomes = metric.outcomes(samples)
    measured = samples[metric.columns[0]].notna().to_numpy()

    def digest(chosen: NDArray[np.bool_]) -> str:
        return images_digest(samples.loc[chosen, KEY], samples.loc[chosen, "label"])

    # A grid that grew on some of the images only leaves its outer rings to them.
    scored = {name: ~np.isnan(values) for name, values in outcomes.items()}
    return MetricInfo(
        kind=kind_of(metric),
        settings=metric.settings(),
        scores=tuple(dict.fromkeys(name.stem for name in outcomes)),
        images=int(measured.sum()),
        digest=digest(measured),
        parts={str(n): digest(there) for n, there in scored.items() if (there != measured).any()},
        code=plugin_digests(*metric.code()),
    )


T = TypeVar("T")


def _build(kind: type[T], content: Any, where: str) -> T:
    """Builds a dataclass from a JSON object; missing and unknown fields are errors."""
    if not isinstance(content, dict):
        raise RecordError(f"{where}: expected an object, got {type(content).__name__}")
    known = {f.name for f in fields(kind) if f.name not in ("folder", "table")}  # type: ignore[arg-type]
    unknown = sorted(content.keys() - known)
    if unknown:
        raise RecordError(f"{where}: unknown fields {', '.join(unknown)}")
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in content.items()})
    except TypeError as error:
        raise RecordError(f"{where}: {error}") from error


def _offset_score(*, dy: float, dx: float, **score: Any) -> tuple[Offset, Score]:
    return Offset(dy, dx), Score(**score)


def record_from_json(content: Any, *, where: str) -> Record:
    """Validates and builds a record; `where` names it in errors."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int):
        raise RecordError(f"{where} is not a shiftbench record: it has no schema number")
    if schema != SCHEMA:
        advice = "upgrade shiftbench" if schema > SCHEMA else "evaluate again"
        raise RecordError(f"{where} has schema {schema}, this version reads {SCHEMA}: {advice}")
    record = _build(Record, content, where)
    maps = content.get("maps", {})
    try:
        scores = Scores.from_json(content["scores"])
        maps = {stem: dict(_offset_score(**cell) for cell in maps[stem]) for stem in maps}
    except (ValueError, TypeError) as error:
        raise RecordError(f"{where}: scores: {error}") from error
    return replace(
        record,
        model=_build(ModelInfo, record.model, f"{where}: model"),
        data=_build(DataInfo, record.data, f"{where}: data"),
        metrics={
            name: _build(MetricInfo, info, f"{where}: metrics.{name}")
            for name, info in record.metrics.items()
        },
        scores=scores,
        maps=maps,
    )


def record_folder(root: Path, model: str, data: str) -> Path:
    """Where the record of a model on a data set lives.

    >>> record_folder(Path("runs"), "timm:vit", "imagenet").name
    'timm_vit--imagenet'
    """
    return root / f"{file_safe(model)}--{file_safe(data)}"


def write_record(folder: Path, record: Record) -> Record:
    """Writes a record and its samples, the samples first, so that a record is always whole."""
    assert record.table is not None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VERIFIED_FILE).unlink(missing_ok=True)  # it was of what is overwritten here
    write_atomic(folder / SAMPLES_FILE, record.table.to_parquet(index=False))
    text = json.dumps(record.to_json(), indent=2, allow_nan=False)
    write_atomic(folder / RECORD_FILE, (text + "\n").encode())
    return replace(record, folder=folder, table=None)


def read_record(path: Path) -> Record:
    """Reads one `record.json`, or the one in a folder."""
    path = path / RECORD_FILE if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read the record {path}: {error}") from error
    return replace(record_from_json(content, where=str(path)), folder=path.parent)


def read_records(
    paths: Iterable[Path], *, on_unreadable: Callable[[RecordError], None] | None = None
) -> list[Record]:
    """Reads every record at or below the given folders.

    Args:
        paths: Folders, or record files.
        on_unreadable: Receives the error of each record that cannot be read, which is left out.
            Without it, the first such record is an error.
    """
    records: list[Record] = []
    for path in paths:
        if not path.exists():
            raise RecordError(f"no folder {path}: make records with `shiftbench run -o {path}`")
        for file in [path] if path.is_file() else sorted(path.rglob(RECORD_FILE)):
            try:
                records.append(read_record(file))
            except RecordError as error:
                if on_unreadable is None:
                    raise
                on_unreadable(error)
    return records


def log_record(record: Record, logs: Sequence[str], folder: Path) -> None:
    """Sends every score to logs: the points of a curve by max shift, all others at step 0."""
    steps: dict[int, dict[str, float]] = {}
    for name, score in record.scores.items():
        steps.setdefault(name.radius or 0, {})[name.stem] = score.value
    about = {
        "model": asdict(record.model),
        "data": asdict(replace(record.data, classes=())),
        "settings": dict(record.settings),
    }
    with open_logs(logs, folder, record.model.name, about) as write:
        for step in sorted(steps):
            write(step, steps[step])
