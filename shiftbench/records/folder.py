"""Records on disk: read, write, find and select them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from shiftbench.errors import RecordError, UsageError, reason
from shiftbench.files import file_safe, write_atomic
from shiftbench.records.result import SCHEMA, TABLES_FOLDER, Result
from shiftbench.records.sections import DataInfo, ModelInfo, RequestInfo
from shiftbench.registry import unknown_name
from shiftbench.scores import scores_from_json
from shiftbench.tables import Tables, table_files, to_parquet

RECORD_FILE = "record.json"
VERIFIED_FILE = "verified.json"  # states that cells were predicted again: see `verify`
RUNS = Path("results/runs")  # default folder of records

T = TypeVar("T")


def _build(kind: type[T], content: Any, where: str) -> T:
    """Build a dataclass from a JSON object; missing and unknown fields are errors."""
    if not isinstance(content, dict):
        raise RecordError(f"{where}: expected an object, got {type(content).__name__}")
    known = {f.name for f in fields(kind) if f.name not in ("folder", "_tables")}  # type: ignore[arg-type]
    unknown = sorted(content.keys() - known)
    if unknown:
        raise RecordError(f"{where}: unknown fields {', '.join(unknown)}")
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in content.items()})
    except TypeError as error:
        raise RecordError(f"{where}: {error}") from error


def result_from_json(content: Any, *, where: str) -> Result:
    """Validate and build a record; `where` names it in errors."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int):
        raise RecordError(f"{where} is not a shiftbench record: it has no schema number")
    if schema != SCHEMA:
        advice = "Upgrade shiftbench" if schema > SCHEMA else "Run the evaluation again"
        raise RecordError(f"{where}: expected schema {SCHEMA}, got {schema}. {advice}")
    record = _build(Result, content, where)
    try:
        scores = scores_from_json(content["scores"])
    except (ValueError, TypeError) as error:
        raise RecordError(f"{where}: scores: {error}") from error
    return replace(
        record,
        model=_build(ModelInfo, record.model, f"{where}: model"),
        data=_build(DataInfo, record.data, f"{where}: data"),
        requests=tuple(
            _build(RequestInfo, request, f"{where}: requests[{i}]")
            for i, request in enumerate(record.requests)
        ),
        scores=scores,
    )


def record_folder(root: Path, model: str, data: str) -> Path:
    """Return the folder of the record of a model on a data set.

    >>> record_folder(Path("runs"), "timm:vit", "imagenet").name
    'timm_vit--imagenet'
    """
    return root / f"{file_safe(model)}--{file_safe(data)}"


def write_record(folder: Path, result: Result) -> Result:
    """Write `record.json` unless there is an equal one; return the result with its folder."""
    with suppress(RecordError):  # missing or damaged
        before = load_record(folder)
        same = replace(before, created=result.created, environment=result.environment)
        if json.dumps(same.to_json()) == json.dumps(result.to_json()):
            return before
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VERIFIED_FILE).unlink(missing_ok=True)  # belongs to the replaced record
    text = json.dumps(result.to_json(), indent=1, allow_nan=False)
    write_atomic(folder / RECORD_FILE, (text + "\n").encode())
    return replace(result, folder=folder)


def save_tables(folder: Path, tables: Tables, identity: Mapping[str, Any]) -> None:
    """Write tables as the only file of a record."""
    content = to_parquet(tables, identity)
    place = folder / TABLES_FOLDER
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{hashlib.sha256(content).hexdigest()[:16]}.parquet"
    write_atomic(path, content)
    for other in table_files(place):
        if other != path:
            other.unlink()


def load_record(path: Path) -> Result:
    """Read one `record.json`, or the one in a folder.

    >>> load_record(Path("results/records/xcit_pico_6_p8.scenes--scenes")).data.images
    120
    """
    path = path / RECORD_FILE if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(
            f"there is no record {path}. Make one with `shiftbench run -o DIR`"
        ) from None
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read the record {path}: {reason(error)}") from error
    return replace(result_from_json(content, where=str(path)), folder=path.parent)


def load_records(
    paths: Iterable[Path], on_unreadable: Callable[[RecordError], None] | None = None
) -> list[Result]:
    """Read every record at or below the given paths.

    Args:
        paths: Folders, record files, or suites, whose records are in `results/runs/<suite>`.
        on_unreadable: Receives the error of each record that cannot be read, which is left out.
            Without it, the first such record is an error.

    >>> len(load_records([Path("results/records/xcit_pico_6_p8.scenes--scenes")]))
    1

    Raises:
        RecordError: There is no such folder, or no record in it.
    """
    folders = [_folder_of(path) for path in paths]
    records: list[Result] = []
    for folder in folders:
        if not folder.exists():
            raise RecordError(
                f"there is no folder {folder}. Make records with `shiftbench run -o {folder}`"
            )
        for file in [folder] if folder.is_file() else sorted(folder.rglob(RECORD_FILE)):
            try:
                records.append(load_record(file))
            except RecordError as error:
                if on_unreadable is None:
                    raise
                on_unreadable(error)
    if not records:
        places = ", ".join(map(str, folders))
        raise RecordError(f"there are no records in {places}. Make some with `shiftbench run`")
    return records


def _folder_of(path: Path) -> Path:
    """Return the folder to search for records; for a suite, the output folder of its runs."""
    is_suite = path.suffix in (".yaml", ".yml") or not path.exists()
    folder = RUNS / path.stem
    return folder if is_suite and folder.is_dir() else path


def select(
    results: Iterable[Result], *, models: Sequence[str] = (), data: str | None = None
) -> list[Result]:
    """Choose results by the names of models and data.

    Args:
        results: All results.
        models: Names or patterns such as `xcit*`, in the order of the output; empty: all models.
        data: Name of a data set.

    Raises:
        UsageError: A name matches no result.
    """
    left = list(results)
    if data is not None:
        known = {result.data.name for result in left}
        left = [result for result in left if result.data.name == data]
        if not left:
            raise unknown_name("data set in these records", data, known)
    chosen: dict[Result, None] = {}
    for pattern in models:
        found = [r for r in left if r.model.name == pattern or fnmatchcase(r.model.name, pattern)]
        if not found:
            raise unknown_name("model in these records", pattern, {r.model.name for r in left})
        chosen |= dict.fromkeys(found)
    return list(chosen) if models else left


def find(results: Iterable[Result], model: str, *, data: str | None = None) -> Result:
    """Return the only result of a model, given by its name or by the folder of its record."""
    if Path(model).is_dir():
        return load_record(Path(model))
    found = select(results, models=[model], data=data)
    if len(found) > 1:
        places = ", ".join(f"{result.data.name} in {result.folder}" for result in found)
        raise UsageError(
            f"expected one record of {model}, got {len(found)} ({places}). Choose with --data, or "
            "give the folder of the record"
        )
    return found[0]
