"""Which records a table or a figure is about: reading them, and choosing by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path

from shiftbench.errors import RecordError, UsageError
from shiftbench.records.record import Record, read_record, read_records
from shiftbench.registry import unknown_name
from shiftbench.scores import ScoreName
from shiftbench.shifts.attacks import ATTACKS


def load_records(paths: Iterable[Path]) -> list[Record]:
    """Reads every record below `paths`; finding none is an error that says how to make some."""
    folders = list(paths)
    records = read_records(folders)
    if not records:
        places = ", ".join(str(folder) for folder in folders)
        raise RecordError(f"no records in {places}: make some with `shiftbench run -o DIR`")
    return records


def grid_of(name: ScoreName) -> tuple[str, Fraction | None]:
    """The attack of a curve and the step of its grid in pixels; None where that is not known.

    >>> grid_of(ScoreName("adversarial", "half[1/4]"))
    ('half', Fraction(1, 4))
    """
    attack, _, step = name.kind.partition("[")
    if step:
        return attack, Fraction(step.rstrip("]"))
    return attack, ATTACKS.get(attack).step if attack in ATTACKS else None


def pixels(name: ScoreName, radius: int) -> Fraction | None:
    """How far a ring of a curve's grid reaches, in pixels; None where that is not known.

    >>> pixels(ScoreName("adversarial", "half"), 3)
    Fraction(3, 2)
    """
    _, step = grid_of(name)
    return None if step is None else radius * step


def summary(name: ScoreName) -> str:
    """What an attack does, in a few words."""
    attack, step = grid_of(name)
    words = ATTACKS.get(attack).summary if attack in ATTACKS else ""
    return words if attack == name.kind else f"{words}, in steps of {step} px"


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
        found = {
            id(r): r for r in records if r.model.name == model or fnmatchcase(r.model.name, model)
        }
        if not found:
            known = {record.model.name for record in records}
            raise unknown_name("model in these records", model, known)
        chosen |= found
    return list(chosen.values())


def find_record(records: Sequence[Record], model: str, *, data: str | None = None) -> Record:
    """The one record of a model, given by its name or by the folder of its record."""
    if Path(model).is_dir():
        return read_record(Path(model))
    found = filter_by_model(filter_by_dataset(records, data), [model])
    if len(found) > 1:
        places = ", ".join(f"{r.data.name} in {r.folder}" for r in found)
        raise UsageError(
            f"{model} has {len(found)} records ({places}): "
            "choose one with --data, or give its folder"
        )
    return found[0]
