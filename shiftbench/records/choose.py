"""Which records a table or a figure is about: reading them, and choosing by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from shiftbench.errors import RecordError, UsageError
from shiftbench.records.result import Record, load_record, load_records
from shiftbench.registry import unknown_name

RUNS = Path("results/runs")  # where records go unless the user says otherwise


def records_of(path: Path) -> Path:
    """Where to look for records: a folder, or the one that a suite of this name or file went to."""
    folder = RUNS / path.stem
    is_suite = path.suffix in (".yaml", ".yml") or not path.exists()
    return folder if is_suite and folder.is_dir() else path


def load_records(
    paths: Iterable[Path], *, on_unreadable: Callable[[RecordError], None] | None = None
) -> list[Record]:
    """Reads every record below `paths`; finding none is an error that says how to make some.

    Args:
        paths: Folders, record files, or names and files of suites.
        on_unreadable: Receives the error of each record that cannot be read: see `load_records`.

    >>> records = load_records([Path("results/runs")])  # doctest: +SKIP
    """
    folders = [records_of(path) for path in paths]
    records = load_records(folders, on_unreadable=on_unreadable)
    if not records:
        places = ", ".join(str(folder) for folder in folders)
        raise RecordError(f"no records in {places}: make some with `shiftbench run -o DIR`")
    return records


def filter_by_dataset(records: Sequence[Record], data: str | None) -> list[Record]:
    """The records of one data set, by name; all of them when no name is given."""
    if data is None:
        return list(records)
    chosen = [record for record in records if record.data.name == data]
    if not chosen:
        raise unknown_name("data set in these records", data, {r.data.name for r in records})
    return chosen


def filter_by_model(records: Sequence[Record], models: Sequence[str]) -> list[Record]:
    """The records of the named models, in that order; all of them when no name is given.

    A name may be a pattern such as `xcit*`; a record that several of them name comes once.
    """
    if not models:
        return list(records)
    chosen: dict[int, Record] = {}
    for model in models:
        matching = {
            id(r): r for r in records if r.model.name == model or fnmatchcase(r.model.name, model)
        }
        if not matching:
            known = {record.model.name for record in records}
            raise unknown_name("model in these records", model, known)
        chosen |= matching
    return list(chosen.values())


def find_record(records: Sequence[Record], model: str, *, data: str | None = None) -> Record:
    """The one record of a model, given by its name or by the folder of its record."""
    if Path(model).is_dir():
        return load_record(Path(model))
    matching = filter_by_model(filter_by_dataset(records, data), [model])
    if len(matching) > 1:
        places = ", ".join(f"{r.data.name} in {r.folder}" for r in matching)
        raise UsageError(
            f"{model} has {len(matching)} records ({places}): "
            "choose one with --data, or give its folder"
        )
    return matching[0]
