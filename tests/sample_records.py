"""Records of made-up outcomes, image by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aft_models.preprocessing import Preprocessing
from shiftbench.geometry import geometry_for
from shiftbench.grid import Grid
from shiftbench.metrics.accuracy import Accuracy
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.consistency import Consistency
from shiftbench.metrics.search import Mode
from shiftbench.records.record import (
    DataInfo,
    ModelInfo,
    Record,
    images_digest,
    read_record,
    record_folder,
)
from shiftbench.records.record import write_record as write
from shiftbench.run.store import describe
from shiftbench.shifts import ATTACKS

Radii = Sequence[int | None]  # per image: the ring that broke it; None when nothing did
CHANGE = 1 / 64  # how much every probability moves under a random shift
# What `settings` may name, with what it is otherwise; anything else is kept as it is.
SETTINGS: dict[str, Any] = {
    "mode": "exhaustive",  # or "full_grid", or "sampled:K"
    "step": None,  # of every grid; None: each attack's own
    "search_limit": None,  # how many images are searched
    "seed": 0,  # chooses them too
    "repeats": 1,
    "split": "test",
    "precision": "fp32",
    "engine": "torch",
    "crop": "paper",
    "pad": "none",
}


def spread(n: int, at: Sequence[int]) -> list[int | None]:
    """Radii of `n` images of which `at[r]` break at ring r, in order, and the others never."""
    broken: list[int | None] = [r for r, count in enumerate(at) for _ in range(count)]
    return broken + [None] * (n - len(broken))


def make_samples(
    searches: Mapping[Adversarial, Radii],
    consistent: Mapping[str, Sequence[int]],
    labels: Sequence[int],
    how: Mapping[str, Any],
) -> pd.DataFrame:
    """The table of images of a run."""
    first, n = next(iter(searches.values())), len(labels)
    correct = [r is None or r > 0 for r in first]
    wrong = [(y + 1) % 10 for y in labels]
    columns: dict[str, Any] = {
        "key": [f"test/{i:05d}" for i in range(n)],  # as `scenes` names its images
        "label": list(labels),
        "prediction": np.where(correct, labels, wrong),
        "margin": np.where(correct, 1.0, -1.0),
    }
    for kind, agreed in consistent.items():
        columns[f"draws_{kind}"] = [how["repeats"]] * n
        columns[f"agreed_{kind}"] = [int(count) for count in agreed]
        columns[f"consistent_{kind}"] = [int(count) == how["repeats"] for count in agreed]
        columns[f"change_{kind}"] = [CHANGE] * n
    count = n if how["search_limit"] is None else how["search_limit"]
    searched = {(how["seed"] * count + i) % n for i in range(count)}  # another seed, others
    for metric, radii in searches.items():
        grid, name = metric.grid, metric.label
        rows = [r if i in searched else None for i, r in enumerate(radii)]

        def column(values: Sequence[Any], where: Sequence[bool], kind: str = "Int64") -> Any:
            return pd.array([v if w else None for v, w in zip(values, where, strict=True)], kind)

        there, lost = [i in searched for i in range(n)], [r is not None for r in rows]
        columns[f"{name}_reach"] = column([grid.radius] * n, there)
        columns[f"{name}_broken_radius"] = column(rows, lost)
        columns[f"{name}_dy"] = column([float((r or 0) * grid.step) for r in rows], lost, "Float64")
        columns[f"{name}_dx"] = column([0.0] * n, lost, "Float64")
        columns[f"{name}_prediction"] = column(wrong, lost)
        if metric.mode.samples:
            columns[f"{name}_sampled"] = column([metric.mode.samples] * n, there)
        if metric.mode.full:
            rings = np.array([grid.ring(offset) for offset in grid])
            far = [grid.radius + 1 if r is None else r for r in rows]
            bitmaps = [np.packbits(rings < r).tobytes() for r in far]
            columns[f"{name}_bitmap"] = [
                b if w else None for b, w in zip(bitmaps, there, strict=True)
            ]
    return pd.DataFrame({**columns, "near_tie": [False] * n})


def record_with_samples(
    model: str = "a",
    *,
    broken: Mapping[str, Radii] | None = None,  # by attack, the ring that broke each image
    consistent: Mapping[str, Sequence[int]] | None = None,  # by kind, how many draws agree
    data: str = "scenes",
    max_shift: int = 6,
    parameters: int = 1_000_000,
    created: str = "2026-01-02T03:04:05+00:00",
    full_grid: bool = False,  # short for the mode `full_grid`: then the record has heat maps
    settings: Mapping[str, Any] | None = None,  # any of `SETTINGS`; others are kept as they are
    fingerprint: str = "f" * 64,
    labels: Sequence[int] | None = None,
) -> Record:
    """A record whose scores follow from the outcomes of its images."""
    broken = broken or {"crop": spread(100, [10, 5, 5])}
    consistent = consistent or {}
    labels = labels or [i % 10 for i in range(len(next(iter(broken.values()))))]
    how = {**SETTINGS, **({"mode": "full_grid"} if full_grid else {}), **(settings or {})}
    mode = Mode.parse(how["mode"])
    seed = how["seed"] if mode.samples else 0
    searches = {}
    for name, radii in broken.items():
        attack = ATTACKS.get(name)
        grid = Grid(max_shift, Fraction(how["step"] or attack.step))
        searches[Adversarial(attack, grid, mode, seed)] = radii
    draws = [Consistency(kind, 9, how["repeats"], how["seed"]) for kind in consistent]
    samples = make_samples(searches, consistent, labels, how)
    preprocessing = Preprocessing(64, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    geometry = geometry_for(preprocessing, margin=6, rendered=True).to_json()
    elsewhere = {"mode", "step", "repeats", "split", "crop", "pad"}
    record = describe(
        [Accuracy(), *draws, *searches],
        samples,
        model=ModelInfo(
            name=model,
            source="bundled",
            digest="d" * 64,
            parameters=parameters,
            input_size=preprocessing.input_size,
            mean=preprocessing.mean,
            std=preprocessing.std,
            interpolation=preprocessing.interpolation,
        ),
        data=DataInfo(
            name=data,
            split=how["split"],
            images=len(samples),
            fingerprint=fingerprint,
            geometry={**geometry, "crop": how["crop"], "pad": how["pad"]},
            labels=images_digest(samples["key"], samples["label"]),
        ),
        settings={"limit": None, **{k: v for k, v in how.items() if k not in elsewhere}},
        environment={"shiftbench": "0.1.0", "torch": "2.13.0", "device": "cpu"},
        seconds=12.5,
        forward_passes=4321,
    )
    return replace(record, created=created)


def make_record(model: str = "a", **how: Any) -> Record:
    """Such a record, whose images are not at hand."""
    return replace(record_with_samples(model, **how), table=None)


def write_record(root: Path, model: str = "a", **how: Any) -> Record:
    """Such a record, written with its samples and read back."""
    record = record_with_samples(model, **how)
    folder = record_folder(root, record.model.name, record.data.name)
    write(folder, record)
    return read_record(folder)


def trio(
    root: Path, *, data: str = "scenes", n: int = 400, full_grid: bool = False
) -> list[Record]:
    """Three records such as a demo makes: a baseline, aps and af, with every attack."""
    curves = {
        "xcit_pico_6_p4": {
            "integer": [40, 20, 16, 12, 8, 8, 6],
            "half": [40, 16, 14, 10, 8, 6, 6],
            "crop": [40, 24, 18, 12, 12, 8, 8],
            "bilinear": [40, 6, 6, 4, 4, 8, 4],
            "camera": [40, 5, 5, 4, 4, 4, 4],
        },
        "xcit_pico_6_p4_aps": {
            "integer": [44],
            "half": [44, 18, 4, 2, 2, 2],
            "crop": [44, 6, 6, 4, 4, 4, 4],
            "bilinear": [44, 4, 4, 4, 2, 2, 2],
            "camera": [44, 4, 4, 2, 2, 2, 2],
        },
        "xcit_pico_6_p4_af": {
            "integer": [36, 1, 1],
            "half": [36, 1, 1, 0, 1],
            "crop": [36, 6, 5, 4, 4, 2, 2],
            "bilinear": [36, 1, 1, 2, 0, 0, 1],
            "camera": [36, 1, 1, 0, 1, 1],
        },
    }
    agree = {"xcit_pico_6_p4": 350, "xcit_pico_6_p4_aps": 392, "xcit_pico_6_p4_af": 398}
    return [
        write_record(
            root,
            f"{model}.{data}",
            broken={attack: spread(n, at) for attack, at in rings.items()},
            consistent={
                kind: [i < agree[model] - 2 * k for i in range(n)]
                for k, kind in enumerate(("integer", "half", "crop"))
            },
            data=data,
            full_grid=full_grid,
            parameters=480_000 + 1_000 * len(model),
        )
        for model, rings in curves.items()
    ]
