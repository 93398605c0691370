"""Results of synthetic predictions, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shiftbench.metrics.accuracy import Accuracy
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import Metric, Request
from shiftbench.metrics.consistency import Consistency
from shiftbench.records.folder import load_record, record_folder, save_tables, write_record
from shiftbench.records.result import SCHEMA, Result, derive_result
from shiftbench.records.sections import DataInfo, ModelInfo
from shiftbench.shifts import ATTACKS
from shiftbench.tables import CLEAN, DIGEST, LABEL, Cells, Tables

Radii = Sequence[int | None]  # per image: the first ring with a misclassified offset; None: none
CLASSES = 10
CHANGE = 1 / 64  # of every probability under a random shift
SPAN = 9  # pixels
ATTACKS_OF_TRIO = ("integer", "half", "crop", "bilinear", "camera")
HOSTILE = {  # hostile names in records of others
    "html": "x</script><script>window.hacked=1</script><img src=x onerror=hacked=1>",
    "markdown": "a|b](javascript:alert(1)) **bold** `code` <b>\n# head",
    "latex": r"\input{/etc/passwd} $x$ 100% a_b^c~d#e&f{g}",
    "formula": '=HYPERLINK("http://example.org","x")',
    "plus": "+1+cmd|' /C calc'!A0",
    "yaml": "a: [b, {c: *d}] # - !!python/object",
    "unicode": "模型-\u202e\u2028é$1",
}


def spread(n: int, at: Sequence[int]) -> list[int | None]:
    """Return radii of `n` images of which `at[r]` fail at ring r, in order, and others never."""
    failing: list[int | None] = [ring for ring, count in enumerate(at) for _ in range(count)]
    return failing + [None] * (n - len(failing))


def _grid_cells(metric: Adversarial, radii: Radii, labels: Sequence[int]) -> Cells:
    """Predict the offsets up to the first misclassified one; all of them for a full grid."""
    rings = np.array(metric.grid.rings)
    true = np.array(labels)[:, None]
    far = np.array([metric.radius + 1 if r is None else r for r in radii])[:, None]
    classes = np.where(rings < far, true, (true + 1) % CLASSES)
    if not metric.full_grid:
        later = np.arange(len(rings)) > (rings < far).sum(1, keepdims=True)
        classes = np.where(later, -1, classes)
    return Cells(classes.astype(np.int16), np.full(classes.shape, -1, np.float32), true[:, 0])


def _draw_cells(metric: Consistency, agreed: Sequence[int], clean: np.ndarray) -> Cells:
    """Predict the clean class in as many draws of an image as agree."""
    per_draw = metric.draws.per_draw
    same = np.arange(metric.samples) < np.array(agreed, dtype=int)[:, None]  # (images, draws)
    second = np.where(same, clean[:, None], (clean[:, None] + 1) % CLASSES)
    classes = np.repeat(clean[:, None], 1 + per_draw * metric.samples, axis=1)
    classes[:, per_draw::per_draw] = second
    probabilities = np.full(classes.shape, 0.5, np.float32)
    probabilities[:, per_draw::per_draw] += CHANGE
    return Cells(classes.astype(np.int16), probabilities, clean.astype(np.int64))


def make_result(
    model: str = "a",
    *,
    failures: Mapping[str, Radii] | None = None,  # by attack
    consistent: Mapping[str, Sequence[int]]
    | None = None,  # by kind, draws of each image that agree
    data: str = "scenes",
    max_shift: int = 6,
    step: str | None = None,  # of all attacks; None: each attack's own
    full_grid: bool = False,
    attack_limit: int | None = None,  # images of the attacks
    samples: int = 1,
    seed: int = 0,
    digests: Sequence[int] | None = None,
    labels: Sequence[int] | None = None,
    parameters: int = 1_000_000,
    created: str = "2026-01-02T03:04:05+00:00",
    metrics: Sequence[Metric] = (),  # further ones, of the clean image
    **conditions: str,  # split, crop, pad, precision
) -> Result:
    """Return a result that was not saved; its scores follow from its cells."""
    failures = {"crop": spread(100, [10, 5, 5])} if failures is None else failures
    consistent = consistent or {}
    radii = next(iter(failures.values()), [])
    n = len(radii) or len(next(iter(consistent.values())))
    labels = [i % CLASSES for i in range(n)] if labels is None else labels
    tables = Tables([f"test/{i:05d}" for i in range(n)])
    tables.array(LABEL, 1)[:, 0] = labels
    tables.array(DIGEST, 1)[:, 0] = [1000 + i for i in range(n)] if digests is None else digests
    wrong = np.array([radius == 0 for radius in radii] or [False] * n)
    clean = np.where(wrong, (np.array(labels) + 1) % CLASSES, labels)
    tables.array(CLEAN, 1)[:, 0] = clean
    requests = [Request(metric, n) for metric in (Accuracy(), *metrics)]
    for attack, rings in failures.items():
        own_step = step or str(ATTACKS.get(attack).step if attack in ATTACKS else 1)
        search = Adversarial(attack, max_shift, own_step, full_grid)
        tables.write(search.table, tables.keys, _grid_cells(search, rings, labels))
        requests.append(Request(search, attack_limit or n))
    tables.array(CLEAN, 1)[:, 0] = clean
    for kind, agreed in consistent.items():
        draws = Consistency(kind, SPAN, samples, seed)
        tables.write(draws.table, tables.keys, _draw_cells(draws, agreed, clean))
        requests.append(Request(draws, n))
    precision, split = conditions.get("precision", "fp32"), conditions.get("split", "test")
    geometry = {"view": 64, "resize": 73, "margin": 4, "interpolation": "bicubic"}
    geometry |= {"pad": conditions.get("pad", "none"), "crop": conditions.get("crop", "paper")}
    result = derive_result(
        tables,
        requests,
        model=ModelInfo(
            name=model,
            source="bundled",
            digest="d" * 64,
            parameters=parameters,
            input_size=64,
            mean=(0.5, 0.5, 0.5),
            std=(0.25, 0.25, 0.25),
            interpolation="bicubic",
            identity={"weights": "d" * 64, "remedies": "", "code": {}, "logits": []},
        ),
        data=DataInfo(data, split, images=0, geometry={**geometry, "rendered": True}),
        settings={"seed": seed, "precision": precision},
        environment={"shiftbench": "0.1.0", "torch": "2.13.0", "device": "cpu"},
    )
    return replace(result, created=created)


def save_result(root: Path, result: Result) -> Result:
    """Write a result as a record and read it back."""
    folder = record_folder(root, result.model.name, result.data.name)
    identity = {
        "schema": SCHEMA,
        "model": result.model.identity,
        "mean": list(result.model.mean),
        "std": list(result.model.std),
        "data": result.data.name,
        "geometry": {k: v for k, v in result.data.geometry.items() if k != "margin"},
        "classes": CLASSES,
        **result.settings,
    }
    save_tables(folder, result.tables, identity)
    write_record(folder, result)
    return load_record(folder)


def make_record(root: Path, model: str = "a", **how: Any) -> Result:
    """Return a result that was written and read back."""
    return save_result(root, make_result(model, **how))


def make_trio(root: Path, *, data: str = "scenes", n: int = 400, **how: Any) -> list[Result]:
    """Return three records as of the demo: a baseline, aps and af, with every attack."""
    rings = {
        "xcit": ([40, 20, 16, 12, 8, 8, 6], [40, 16, 14, 10, 8, 6, 6], [40, 24, 18, 12, 12, 8, 8]),
        "xcit_aps": ([44], [44, 18, 4, 2, 2, 2], [44, 6, 6, 4, 4, 4, 4]),
        "xcit_af": ([36, 1, 1], [36, 1, 1, 0, 1], [36, 6, 5, 4, 4, 2, 2]),
    }
    agree = {"xcit": 350, "xcit_aps": 392, "xcit_af": 398}
    return [
        make_record(
            root,
            f"{model}.{data}",
            failures={
                attack: spread(n, at[min(index, 2)]) for index, attack in enumerate(ATTACKS_OF_TRIO)
            },
            consistent={
                kind: [i < agree[model] - 2 * k for i in range(n)]
                for k, kind in enumerate(("integer", "half", "crop"))
            },
            data=data,
            parameters=480_000 + 1_000 * len(model),
            **how,
        )
        for model, at in rings.items()
    ]
