"""Some images of a record measured again, to see whether it tells the truth."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from shiftbench.data import ImageSet, subset
from shiftbench.errors import RecordError
from shiftbench.models.classifier import Classifier
from shiftbench.records.record import KEY, Record, ResultStore, images_digest
from shiftbench.records.verify import differing
from shiftbench.run.benchmark import Execution, run
from shiftbench.run.settings import Settings
from shiftbench.shifts.attacks import ATTACKS


def settings_of(record: Record) -> Settings:
    """The settings that would measure a record's metrics again.

    Raises:
        RecordError: Its grids or draws differ, so that no one run makes them.
    """
    by_kind: dict[str, list[Any]] = {"adversarial": [], "consistency": []}
    further = []
    for name, info in record.metrics.items():
        if info.kind in by_kind:
            by_kind[info.kind].append(info.settings)
        elif info.kind != "accuracy":
            argument = name.removeprefix(info.kind).lstrip("_")
            further.append(f"{info.kind}:{argument}" if argument else info.kind)
    searches, draws = by_kind["adversarial"], by_kind["consistency"]
    common: dict[str, Any] = {}
    for option, values in (
        ("max_shift", {s["radius"] for s in searches}),
        ("mode", {s["mode"] for s in searches}),
        ("step", {_own_step(s) for s in searches}),
        ("repeats", {s["repeats"] for s in draws}),
    ):
        if len(values) > 1:
            raise RecordError(
                f"the record of {record.model.name} has several values of {option} "
                f"({', '.join(sorted(map(str, values)))}): no one run measures it again"
            )
        if values:
            common[option] = values.pop()
    return Settings(
        attacks=tuple(s["attack"] for s in searches),
        consistency=tuple(s["views"] for s in draws),
        metrics=tuple(further),
        seed=record.settings.get("seed", 0),
        precision=record.settings.get("precision", "fp32"),
        engine=record.settings.get("engine", "torch"),
        crop_pct=str(record.data.geometry["crop"]),
        pad=str(record.data.geometry["pad"]),
        **common,
    )


def _own_step(search: Mapping[str, Any]) -> str | None:
    """The step of a grid where it is not the attack's own."""
    own = ATTACKS.get(search["attack"]).step
    return None if Fraction(search["step"]) == own else str(search["step"])


def claimed_by_all(record: Record) -> list[str]:
    """The images that every metric has measured: on these each claim can be tested."""
    keys = set(record.samples()[KEY])
    for values in record.outcomes().values():
        keys &= set(values.index)
    return sorted(keys)


def remeasure(
    record: Record,
    classifier: Classifier,
    dataset: ImageSet,
    *,
    images: int = 20,
    seed: int = 0,
    execution: Execution | None = None,
) -> list[str]:
    """Measures some random images again and names every disagreement.

    Args:
        record: What is claimed.
        classifier: The model it claims to be of.
        dataset: The data it claims to be of, the whole split.
        images: How many to measure.
        seed: Which of them.
        execution: How it is done.
    """
    claims = {
        "weights": (record.model.digest, classifier.digest),
        "images": (record.data.fingerprint, dataset.fingerprint()),
    }
    if record.data.labels:
        claims["labels"] = (record.data.labels, images_digest(dataset.keys, dataset.labels))
    found = [
        f"the {what} are not the record's: digest {theirs[:12]} there, {ours[:12]} here"
        for what, (theirs, ours) in claims.items()
        if theirs != ours
    ]
    if found:
        return found
    keys = claimed_by_all(record)
    chosen = random.Random(seed).sample(keys, min(images, len(keys)))
    number = {key: index for index, key in enumerate(dataset.keys)}
    part = subset(dataset, sorted(number[key] for key in chosen))
    with tempfile.TemporaryDirectory() as folder:
        store = ResultStore(Path(folder))
        again = run(classifier, part, settings_of(record), store, execution=execution).record
        return differing(record, again)
