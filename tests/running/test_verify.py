"""Verification by new predictions accepts a true record and finds every forgery."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import BASE, CLASSES, CPU, PREPROCESSING, Bench, sensitive_network
from torch import Tensor, nn

from shiftbench.data import subset
from shiftbench.errors import UsageError
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.metrics.base import Request
from shiftbench.models import Model
from shiftbench.records.folder import RECORD_FILE, load_record, save_tables, write_record
from shiftbench.records.result import TABLES_FOLDER, Result, derive_result
from shiftbench.records.verify import contradictions, read_verification, save_verification
from shiftbench.running.runner import run
from shiftbench.running.verify import predict_again, verify
from shiftbench.tables import CLEAN, LABEL, Tables, read_tables, table_files

SETTINGS = replace(
    BASE,
    attacks=("crop", "half"),
    consistency=("integer", "crop"),
    consistency_samples=2,
    full_grid=True,
    metrics=("flip",),
)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.make()


@pytest.fixture
def record(bench: Bench, tmp_path: Path) -> Result:
    return load_record(bench.result(tmp_path, SETTINGS).folder or tmp_path)


def again(bench: Bench, record: Result, **options: Any) -> tuple[str, ...]:
    options = {"images": 24, "device": "cpu", **options}
    return predict_again(record, bench.model, bench.images, **options).problems


def forged(record: Result, change: Callable[[Tables], None]) -> Result:
    """Change the tables of a record and derive everything else from them."""
    assert record.folder is not None
    (file,) = table_files(record.folder / TABLES_FOLDER)
    tables, identity = read_tables(file)
    change(tables)
    save_tables(record.folder, tables, identity)
    requests = [Request(info.loaded, info.images) for info in record.requests if info.loaded]
    result = derive_result(
        tables,
        requests,
        model=record.model,
        data=record.data,
        settings=record.settings,
        environment=record.environment,
    )
    write_record(record.folder, result)
    return load_record(record.folder)


def test_verify_true_record_passes(bench: Bench, record: Result) -> None:
    assert contradictions(record) == []
    result = predict_again(record, bench.model, bench.images, images=10, device="cpu", seed=4)
    assert (result.problems, result.images) == ((), 10)
    assert result.cells > 300
    assert "0 differ" in str(result)


def test_verify_all_cells_compares_every_known_cell(bench: Bench, record: Result) -> None:
    few, every = (
        predict_again(record, bench.model, bench.images, images=24, device="cpu", cells=cells).cells
        for cells in (20, math.inf)
    )
    known = 0
    for info in record.requests:
        assert info.loaded is not None
        keys = record.tables.keys[: info.images]
        cells = record.tables.read(info.loaded.table, len(info.loaded.views("")), keys)
        known += int(cells.known.sum())
    assert 0 < few < every == known


def flip_failures(tables: Tables) -> None:
    """Claim that every image is correct at every crop."""
    tables.array("adversarial_crop")[:] = tables.array(LABEL)


def mirror_offsets(tables: Tables) -> None:
    """Exchange the offsets (dy, dx) and (-dy, -dx)."""
    offsets = Adversarial("crop", 1, "1").grid.offsets[1:]
    columns = [offsets.index(replace(o, dy=-o.dy, dx=-o.dx)) for o in offsets]
    tables.array("adversarial_crop")[:] = tables.array("adversarial_crop")[:, columns]


def exchange_wrong_classes(tables: Tables) -> None:
    """Replace each misclassified cell by another wrong class."""
    array, labels = tables.array("adversarial_half"), tables.array(LABEL)
    other = (array + 1) % CLASSES
    other = np.where(other == labels, (other + 1) % CLASSES, other)
    tables.arrays["adversarial_half"] = np.where(array == labels, array, other).astype(np.int16)


def forge_clean(tables: Tables) -> None:
    tables.array(CLEAN)[:] = tables.array(LABEL)


def forge_draws(tables: Tables) -> None:
    name = next(n for n in tables.arrays if n.startswith("consistency_integer."))
    tables.array(name)[:] = tables.array(CLEAN)


def forge_probabilities(tables: Tables) -> None:
    name = next(n for n in tables.arrays if n.startswith("consistency_crop") and n.endswith("ty"))
    tables.arrays[name] = np.full_like(tables.array(name), 0.5)


@pytest.mark.parametrize(
    "change",
    [flip_failures, mirror_offsets, exchange_wrong_classes, forge_clean, forge_draws,
     forge_probabilities],
)  # fmt: skip
def test_verify_finds_forged_cells(
    change: Callable[[Tables], None], bench: Bench, record: Result
) -> None:
    result = forged(record, change)
    assert contradictions(result) == [], "the forgery is consistent with itself"
    assert again(bench, result)


def test_verify_finds_scores_that_do_not_follow(record: Result) -> None:
    assert record.folder is not None
    file = record.folder / RECORD_FILE
    text = file.read_text().replace('"n": 24', '"n": 25')
    file.write_text(text)
    assert contradictions(load_record(record.folder))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("data", "images"), 25),
        (("data", "skipped"), 1),
        (("near_ties",), 9),
        (("forward_passes",), 1),
        (("requests", 0, "image_set"), "0" * 64),
        (("settings", "seed"), 7),
        (("data", "name"), "imagenet"),
        (("model", "digest"), "0" * 64),
        (("data", "geometry", "pad"), "reflect"),
    ],
)
def test_verify_changed_record_json_is_found_without_the_model(
    path: tuple[Any, ...], value: Any, record: Result
) -> None:
    assert record.folder is not None
    file = record.folder / RECORD_FILE
    content = json.loads(file.read_text())
    *inner, last = path
    place = content
    for key in inner:
        place = place[key]
    assert place[last] != value
    place[last] = value
    file.write_text(json.dumps(content))
    assert contradictions(load_record(record.folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"parameters": 1}, "model parameters"), ({"mean": (0.4, 0.4, 0.4)}, "model mean")],
)
def test_verify_changed_model_section_is_found_with_the_model(
    changes: dict[str, Any], words: str, bench: Bench, record: Result
) -> None:
    claimed = replace(record, model=replace(record.model, **changes))
    assert words in again(bench, claimed)[0]


def test_verify_other_weights_and_images_are_named(bench: Bench, record: Result) -> None:
    other = Model(sensitive_network(seed=6), PREPROCESSING, name="sensitive")
    result = predict_again(record, other, bench.images, device="cpu")
    assert "model digest" in result.problems[0]
    fewer = subset(bench.images, range(20))
    result = predict_again(record, bench.model, fewer, device="cpu")
    assert "not the first ones of the data set" in result.problems[0]


def test_verify_changed_labels_are_found(bench: Bench, record: Result) -> None:
    def relabel(tables: Tables) -> None:
        tables.array(LABEL)[:] = tables.array(CLEAN)

    assert "label of" in again(bench, forged(record, relabel))[0]


def test_verify_left_out_images_are_found(bench: Bench, record: Result) -> None:
    """A record of the images that a model classifies correctly, presented as a limit."""
    assert record.folder is not None
    tables = record.tables
    correct = np.flatnonzero(tables.column(CLEAN) == tables.column(LABEL))
    picked = tables.take([tables.keys[row] for row in correct])
    result = replace(
        record,
        _tables=picked,
        folder=None,
        requests=tuple(replace(info, images=len(correct)) for info in record.requests),
    )
    assert again(bench, result) == (
        "the images of the record are not the first ones of the data set",
    )


def test_verify_near_ties_are_excused_unless_there_are_too_many(tmp_path: Path) -> None:
    class Constant(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.zeros(len(images), CLASSES)

    model, images = Model(Constant(), PREPROCESSING, name="constant"), Bench.make().images
    result = run(model, images, BASE, tmp_path, execution=CPU).record
    assert result is not None
    problems = predict_again(result, model, images, device="cpu").problems
    assert "too many to verify" in problems[-1]


def test_verification_note_belongs_to_every_file_of_a_record(record: Result) -> None:
    assert record.folder is not None
    save_verification(record, 20)
    note = read_verification(record)
    assert note is not None
    assert note.images == 20
    (file,) = table_files(record.folder / TABLES_FOLDER)
    content = file.read_bytes()
    file.write_bytes(content + b" ")
    assert read_verification(record) is None
    file.write_bytes(content)
    assert read_verification(record) is not None
    (record.folder / RECORD_FILE).write_text((record.folder / RECORD_FILE).read_text() + "\n")
    assert read_verification(record) is None


def test_verify_needs_model_and_data_together(record: Result) -> None:
    with pytest.raises(UsageError, match="both --model and --data"):
        verify(record, model="timm:resnet18")
    with pytest.raises(UsageError, match="without predictions"):
        verify(record, save=True)
