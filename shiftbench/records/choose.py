"""Which records a table or a figure is about: reading, choosing, refusing what does not mix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from shiftbench.errors import RecordError, UsageError
from shiftbench.measure.attacks import ATTACKS
from shiftbench.records.record import Record, read_record, read_records
from shiftbench.registry import unknown_name


def load_records(paths: Iterable[Path]) -> list[Record]:
    """Reads every record below `paths`; finding none is an error that says how to make some."""
    folders = list(paths)
    records = [name_grids(record) for record in read_records(folders)]
    if not records:
        places = ", ".join(str(folder) for folder in folders)
        raise RecordError(f"no records in {places}: make some with `shiftbench run -o DIR`")
    return records


def name_grids(record: Record) -> Record:
    """Calls an attack whose step is not its own `integer@1/4`: then no two grids ever mix."""
    step = record.settings.get("step")
    if step is None:
        return record

    def name(attack: str) -> str:
        own = ATTACKS.get(attack).step if attack in ATTACKS else None
        return attack if Fraction(step) == own else f"{attack}@{Fraction(step)}"

    scores = record.scores
    return replace(
        record,
        scores=replace(
            scores,
            adversarial={name(attack): curve for attack, curve in scores.adversarial.items()},
            offsets={name(attack): cells for attack, cells in scores.offsets.items()},
        ),
    )


def pixels(attack: str, radius: int) -> Fraction | None:
    """How far a ring of an attack's grid reaches, in pixels; None for an attack unknown here."""
    name, _, step = attack.partition("@")
    if step:
        return radius * Fraction(step)
    return radius * ATTACKS.get(name).step if name in ATTACKS else None


def summary(attack: str) -> str:
    """What an attack does, in a few words."""
    name, _, step = attack.partition("@")
    words = ATTACKS.get(name).summary if name in ATTACKS else ""
    return f"{words}, in steps of {step} px" if step else words


def is_upper_bound(record: Record) -> bool:
    """Whether the searches sampled their grids, so that adversarial scores can only be too high."""
    sampled = search_mode(record).startswith("sampled")
    return bool(record.settings.get("upper_bound", sampled))


def search_mode(record: Record) -> str:
    """How the grids were searched: `exhaustive`, `full_grid` or `sampled:k`."""
    return str(record.settings.get("mode", "exhaustive"))


def data_label(record: Record) -> str:
    """The images of a record in a few words: `cifar10 test, 10,000 images, 2,000 searched`."""
    label = f"{record.data.name} {record.data.split}, {record.data.images:,} images"
    searched = record.settings.get("search_limit")
    return label if searched is None else f"{label}, {searched:,} searched"


def same_images(records: Sequence[Record]) -> bool:
    """Whether every record was measured on the same images."""
    # Subsets of one data set differ in the digest of their images, or in how many were searched.
    subsets = {(r.settings.get("images"), r.settings.get("search_limit")) for r in records}
    sets = {(r.data.name, r.data.split, r.data.images, r.data.fingerprint) for r in records}
    return len(sets) <= 1 and len(subsets) <= 1


def require_same_images(records: Sequence[Record], *, what: str) -> None:
    """Refuses records of different images in one comparison."""
    if same_images(records):
        return
    labels = sorted({f"{data_label(r)} ({r.data.fingerprint[:8]})" for r in records})
    raise UsageError(
        f"{what} needs records of the same images, got {'; '.join(labels)}: "
        "choose one with --data, or pass --allow-mixed"
    )


def of_data(records: Sequence[Record], data: str | None) -> list[Record]:
    """The records of one data set, by name; all of them when no name is given."""
    if data is None:
        return list(records)
    chosen = [record for record in records if record.data.name == data]
    if not chosen:
        raise unknown_name("data set in these records", data, {r.data.name for r in records})
    return chosen


def of_models(records: Sequence[Record], models: Sequence[str]) -> list[Record]:
    """The records of the named models, in that order; all of them when no name is given."""
    if not models:
        return list(records)
    known = {record.model.name for record in records}
    for model in models:
        if model not in known:
            raise unknown_name("model in these records", model, known)
    return [record for model in models for record in records if record.model.name == model]


def find_record(records: Sequence[Record], model: str, *, data: str | None = None) -> Record:
    """The one record of a model, given by its name or by the folder of its record."""
    if Path(model).is_dir():
        return read_record(Path(model))
    found = of_models(of_data(records, data), [model])
    if len(found) > 1:
        places = ", ".join(f"{r.data.name} in {r.folder}" for r in found)
        raise UsageError(
            f"{model} has {len(found)} records ({places}): "
            "choose one with --data, or give its folder"
        )
    return found[0]
