"""Records of what was measured, and the folder that keeps them.

A record is one folder, `<model>--<data>/`, with `record.json` (what was measured, how, and the
scores) and `samples.parquet` (a row per image). Files are written to a temporary name and renamed,
so a reader never sees half a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from shiftbench.errors import RecordError
from shiftbench.files import file_safe, write_atomic
from shiftbench.statistics import Score

SCHEMA = 1
RECORD_FILE = "record.json"
SAMPLES_FILE = "samples.parquet"
SEARCHED = "searched"  # column of the samples: whether attacks searched the image; all if absent


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


@dataclass(frozen=True)
class DataInfo:
    """Which images were measured, and how they were cut."""

    name: str
    split: str
    images: int
    fingerprint: str
    geometry: Mapping[str, Any]  # resize, view, margin, crop, pad, interpolation
    skipped: int = 0  # unreadable files left out because the user allowed it


@dataclass(frozen=True)
class OffsetScore:
    """Accuracy at one offset of a grid that was evaluated in full."""

    dy: float
    dx: float
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Scores:
    """Every score of a run, as fractions."""

    accuracy: Score
    consistency: Mapping[str, Score] = field(default_factory=dict)  # kind -> score
    mean_change: Mapping[str, float] = field(default_factory=dict)  # kind -> |change of p|
    adversarial: Mapping[str, Mapping[int, Score]] = field(default_factory=dict)  # attack -> s
    offsets: Mapping[str, tuple[OffsetScore, ...]] = field(default_factory=dict)  # full grids

    def named(self) -> dict[str, Score]:
        """Flat names for every score, as `--fail-under` and the CSV of a run spell them.

        `accuracy`, `consistency_<kind>`, `adversarial_<attack>` over the whole grid, and
        `adversarial_<attack>@<s>` up to every ring.
        """
        names = {"accuracy": self.accuracy}
        names |= {f"consistency_{kind}": score for kind, score in self.consistency.items()}
        for attack, curve in self.adversarial.items():
            names[f"adversarial_{attack}"] = curve[max(curve)]
            names |= {f"adversarial_{attack}@{s}": curve[s] for s in sorted(curve)}
        return names


@dataclass(frozen=True)
class Record:
    """One model on one data set."""

    model: ModelInfo
    data: DataInfo
    settings: Mapping[str, Any]  # every option that can change a number
    scores: Scores
    environment: Mapping[str, Any]  # versions, device, git commit
    seconds: float
    forward_passes: int
    created: str  # ISO 8601, UTC
    schema: int = SCHEMA
    folder: Path | None = field(default=None, compare=False)  # where it was read from; not stored

    def to_json(self) -> dict[str, Any]:
        """The object `record.json` holds."""
        content = asdict(self)
        del content["folder"]
        return {"schema": content.pop("schema"), **content}

    def samples(self) -> pd.DataFrame:
        """The table of images this record was computed from."""
        if self.folder is None:
            raise RecordError(f"the record of {self.model.name} was not read from a folder")
        path = self.folder / SAMPLES_FILE
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise RecordError(f"cannot read {path}: {error}. Run the evaluation again.") from error


def searched_samples(samples: pd.DataFrame) -> pd.DataFrame:
    """The rows that the attacks' columns speak of."""
    return samples[samples[SEARCHED]] if SEARCHED in samples else samples


T = TypeVar("T")


def _build(kind: type[T], content: Any, where: str) -> T:
    """Builds a dataclass from a JSON object; missing and unknown fields are errors."""
    if not isinstance(content, dict):
        raise RecordError(f"{where}: expected an object, got {type(content).__name__}")
    known = {f.name for f in fields(kind) if f.name != "folder"}  # type: ignore[arg-type]
    unknown = sorted(content.keys() - known)
    if unknown:
        raise RecordError(f"{where}: unknown fields {', '.join(unknown)}")
    try:
        return kind(**content)
    except TypeError as error:
        raise RecordError(f"{where}: {error}") from error


def _score(content: Any, where: str) -> Score:
    score = _build(Score, content, where)
    numbers = (score.value, score.low, score.high)
    if not all(isinstance(x, int | float) and 0 <= x <= 1 for x in numbers):
        raise RecordError(f"{where}: scores are fractions in [0, 1], got {numbers}")
    return score


def _scores(content: Any, where: str) -> Scores:
    raw = _build(Scores, content, where)
    return Scores(
        accuracy=_score(raw.accuracy, f"{where}.accuracy"),
        consistency={
            kind: _score(s, f"{where}.consistency.{kind}") for kind, s in raw.consistency.items()
        },
        mean_change=dict(raw.mean_change),
        adversarial={
            attack: {int(s): _score(v, f"{where}.adversarial.{attack}.{s}") for s, v in c.items()}
            for attack, c in raw.adversarial.items()
        },
        offsets={
            attack: tuple(_build(OffsetScore, o, f"{where}.offsets.{attack}") for o in offsets)
            for attack, offsets in raw.offsets.items()
        },
    )


def record_from_json(content: Any, *, where: str) -> Record:
    """Validates and builds a record; `where` names it in errors."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int):
        raise RecordError(f"{where} is not a shiftbench record: it has no schema number")
    if schema > SCHEMA:
        raise RecordError(
            f"{where} has schema {schema}, newer than the {SCHEMA} this version reads: "
            "upgrade shiftbench"
        )
    record = _build(Record, content, where)
    model = _build(ModelInfo, record.model, f"{where}: model")
    return replace(
        record,
        model=replace(model, mean=tuple(model.mean), std=tuple(model.std)),
        data=_build(DataInfo, record.data, f"{where}: data"),
        scores=_scores(record.scores, f"{where}: scores"),
    )


@dataclass(frozen=True)
class ResultStore:
    """A folder of records."""

    root: Path

    def folder(self, model: str, data: str) -> Path:
        """Where the record of a model on a data set lives."""
        return self.root / f"{file_safe(model)}--{file_safe(data)}"

    def write(self, record: Record, samples: pd.DataFrame) -> Path:
        """Writes a record and its samples; the samples first, so that a record is always whole."""
        folder = self.folder(record.model.name, record.data.name)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / SAMPLES_FILE, samples.to_parquet(index=False))
        text = json.dumps(record.to_json(), indent=2, allow_nan=False)
        write_atomic(folder / RECORD_FILE, (text + "\n").encode())
        return folder

    def read_all(self) -> list[Record]:
        """Every record below the root, in a stable order."""
        return read_records([self.root])


def read_record(path: Path) -> Record:
    """Reads one `record.json`, or the one in a folder."""
    path = path / RECORD_FILE if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read the record {path}: {error}") from error
    return replace(record_from_json(content, where=str(path)), folder=path.parent)


def read_records(paths: Iterable[Path]) -> list[Record]:
    """Reads every record at or below the given folders."""
    records: list[Record] = []
    for path in paths:
        if not path.exists():
            raise RecordError(f"no folder {path}: make records with `shiftbench run -o {path}`")
        found = [path] if path.is_file() else sorted(path.rglob(RECORD_FILE))
        records += [read_record(file) for file in found]
    return records
