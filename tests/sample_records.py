"""Records made by hand, the obvious way: every score is counted from the per-image table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from shiftbench.datasets.geometry import geometry_for
from shiftbench.grid import Grid
from shiftbench.measure.attacks import ATTACKS
from shiftbench.models.classifier import Preprocessing
from shiftbench.records.record import (
    DataInfo,
    ModelInfo,
    OffsetScore,
    Record,
    ResultStore,
    Scores,
    read_record,
)
from shiftbench.statistics import wilson

Radii = Sequence[int | None]  # per image: the ring that broke it; None when nothing did


def survivors(radii: Radii, s: int) -> int:
    """How many images are right at every offset up to ring `s`."""
    return sum(r is None or r > s for r in radii)


def spread(n: int, at: Sequence[int]) -> list[int | None]:
    """Radii of `n` images of which `at[r]` break at ring r, in order, and the others never."""
    broken: list[int | None] = [r for r, count in enumerate(at) for _ in range(count)]
    return broken + [None] * (n - len(broken))


def make_samples(
    broken: Mapping[str, Radii],
    consistent: Mapping[str, Sequence[bool]],
    labels: Sequence[int] | None = None,
) -> pd.DataFrame:
    """The per-image table of a run."""
    first = next(iter(broken.values()))
    n = len(first)
    labels = [i % 10 for i in range(n)] if labels is None else list(labels)
    correct = [r is None or r > 0 for r in first]
    frame = pd.DataFrame(
        {
            "key": [f"test/{i:05d}" for i in range(n)],  # as `scenes` names its images
            "label": labels,
            "prediction": [
                y if right else (y + 1) % 10 for y, right in zip(labels, correct, strict=True)
            ],
            "margin": [1.0 if right else -1.0 for right in correct],
        }
    )
    for attack, radii in broken.items():
        step = float(ATTACKS.get(attack).step)
        frame[f"{attack}_broken_radius"] = pd.array(list(radii), dtype="Int64")
        offsets = [None if r is None else r * step for r in radii]
        frame[f"{attack}_dy"] = pd.array(offsets, dtype="Float64")
        frame[f"{attack}_dx"] = pd.array(
            [None if r is None else 0.0 for r in radii], dtype="Float64"
        )
        wrong = [None if r is None else (y + 1) % 10 for y, r in zip(labels, radii, strict=True)]
        frame[f"{attack}_prediction"] = pd.array(wrong, dtype="Int64")
    for kind, same in consistent.items():
        frame[f"consistent_{kind}"] = list(same)
    return frame


def make_record(
    model: str = "a",
    *,
    broken: Mapping[str, Radii] | None = None,
    consistent: Mapping[str, Sequence[bool]] | None = None,
    data: str = "scenes",
    max_shift: int = 6,
    parameters: int = 1_000_000,
    created: str = "2026-01-02T03:04:05+00:00",
    seconds: float = 12.5,
    full_grid: bool = False,
    settings: Mapping[str, Any] | None = None,
    fingerprint: str = "f" * 64,
) -> Record:
    """A record whose scores follow from per-image outcomes."""
    broken = {"crop": spread(100, [10, 5, 5])} if broken is None else broken
    consistent = {} if consistent is None else consistent
    radii = next(iter(broken.values()))
    n = len(radii)
    preprocessing = Preprocessing(64, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    offsets = {}
    if full_grid:
        # Every image is wrong exactly on and beyond the ring that broke it.
        for attack, rings in broken.items():
            grid: Grid = ATTACKS.get(attack).grid(max_shift)
            offsets[attack] = tuple(
                OffsetScore(o.dy, o.dx, score.value, score.low, score.high, score.n)
                for o in grid
                for score in [wilson(survivors(rings, grid.ring(o)), n)]
            )
    return Record(
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
            split="test",
            images=n,
            fingerprint=fingerprint,
            geometry=geometry_for(preprocessing, margin=6, rendered=True).to_json(),
        ),
        settings={"mode": "exhaustive", "max_shift": max_shift, "seed": 0, **(settings or {})},
        scores=Scores(
            accuracy=wilson(survivors(radii, 0), n),
            consistency={k: wilson(sum(v), len(v)) for k, v in consistent.items()},
            mean_change=dict.fromkeys(consistent, 0.01),
            adversarial={
                attack: {s: wilson(survivors(r, s), n) for s in range(max_shift + 1)}
                for attack, r in broken.items()
            },
            offsets=offsets,
        ),
        environment={"shiftbench": "0.1.0", "torch": "2.13.0", "device": "cpu"},
        seconds=seconds,
        forward_passes=4321,
        created=created,
    )


def write_record(
    root: Path,
    model: str = "a",
    *,
    broken: Mapping[str, Radii],
    consistent: Mapping[str, Sequence[bool]] | None = None,
    labels: Sequence[int] | None = None,
    **fields: Any,
) -> Record:
    """Makes a record and its samples, writes both, and reads the record back."""
    record = make_record(model, broken=broken, consistent=consistent, **fields)
    folder = ResultStore(root).write(record, make_samples(broken, consistent or {}, labels))
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
