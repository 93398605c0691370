"""A run gives the same rows however it is cut, interrupted or repeated."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from shard_runs import labeled
from torch import Tensor, nn

from shiftbench.data import Scenes, load_dataset, subset
from shiftbench.errors import DataError, ModelError, RecordError, UsageError
from shiftbench.grid import ORIGIN, Grid
from shiftbench.models import Model
from shiftbench.records.record import read_record
from shiftbench.run.engine import choose_device
from shiftbench.run.job import Settings, attack_names, make_job
from shiftbench.run.runner import Execution, run
from shiftbench.scores import ACCURACY, ScoreName

SIDE = 24
RECIPE = {"input_size": SIDE, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
SETTINGS = Settings(attacks=("crop", "camera"), max_shift=2, consistency=("integer", "crop"))
CPU = Execution(device="cpu", batch_size=16)
CROP = ScoreName("adversarial", "crop")


class Nervous(nn.Module):
    """Predictions that depend on where the image stands: few images survive, none is hopeless."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 5, stride=5)
        self.head = nn.Linear(16, classes)
        self.largest = 0  # batch seen

    def forward(self, images: Tensor) -> Tensor:
        self.largest = max(self.largest, len(images))
        logits: Tensor = self.head(self.conv(images).relu().amax((2, 3)))
        return logits


@pytest.fixture(scope="module")
def model() -> Nervous:
    torch.manual_seed(1)
    return Nervous(12).eval()


@pytest.fixture(scope="module")
def classifier(model: Nervous) -> Model:
    return Model(model, RECIPE, name="nervous")


@pytest.fixture(scope="module")
def dataset(model: Nervous) -> Scenes:
    return labeled(model, 30, SIDE, wrong=3)


@pytest.fixture(scope="module")
def undisturbed(
    classifier: Model, dataset: Scenes, tmp_path_factory: pytest.TempPathFactory
) -> pd.DataFrame:
    store = tmp_path_factory.mktemp("undisturbed")
    outcome = run(classifier, dataset, SETTINGS, store, execution=CPU)
    rows = outcome.record.samples()
    broken = rows["crop_broken_radius"]
    assert broken.isna().any()
    assert (broken > 0).any()  # the example can show a difference
    assert list(rows["key"]) == list(dataset.keys)
    return rows


def assert_same(rows: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(rows, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batch_size_changes_nothing(
    batch_size: int, classifier: Model, dataset: Scenes, undisturbed: Any, tmp_path: Path
) -> None:
    execution = replace(CPU, batch_size=batch_size)
    outcome = run(classifier, dataset, SETTINGS, tmp_path, execution=execution)
    assert_same(outcome.record.samples(), undisturbed)


def test_rows_agree_with_the_slow_obvious_way(
    model: Nervous, dataset: Scenes, undisturbed: pd.DataFrame
) -> None:
    canvas = dataset.render(range(len(dataset)), SIDE, margin=2).float() / 255
    canvas = (canvas - 0.5) / 0.25
    labels = torch.tensor(dataset.labels)
    first = torch.full((len(dataset),), 99)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            view = canvas[:, :, 2 + dy : 2 + dy + SIDE, 2 + dx : 2 + dx + SIDE]
            with torch.no_grad():
                wrong = model(view).argmax(1) != labels
            first[wrong] = first[wrong].clamp(max=max(abs(dy), abs(dx)))
    broken = undisturbed["crop_broken_radius"].fillna(99).to_numpy()
    np.testing.assert_array_equal(broken, first.numpy())


@pytest.mark.parametrize("full", [False, True])
def test_a_partial_search_is_part_of_the_whole_one(
    full: bool,
    classifier: Model,
    dataset: Scenes,
    undisturbed: pd.DataFrame,
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, search_limit=11, mode="full_grid" if full else "exhaustive")
    record = run(classifier, dataset, settings, tmp_path, execution=CPU).record
    rows = record.samples()
    searched = rows["crop_reach"].notna()
    assert searched.sum() == 11
    assert {bool(s) for s in searched} == {True, False}
    attacked = [c for c in undisturbed if str(c).startswith(("crop_", "camera_"))]
    whole = [c for c in undisturbed if c not in (*attacked, "near_tie")]
    assert_same(rows[whole], undisturbed[whole])
    assert_same(rows.loc[searched, attacked], undisturbed.loc[searched, attacked])
    assert rows.loc[~searched, attacked].isna().all(axis=None)
    assert record.scores.find("accuracy").n == len(dataset)
    everything = make_job(classifier, dataset, replace(SETTINGS, search_limit=len(dataset)))
    assert everything.settings["search_limit"] is None
    assert {score.n for score in record.scores.curve(CROP).values()} == {11}
    survivors = int(undisturbed.loc[searched, "crop_broken_radius"].isna().sum())
    assert record.scores.find("adversarial_crop@2").value == pytest.approx(survivors / 11)
    if full:
        assert {score.n for score in record.maps["adversarial_crop"].values()} == {11}


def test_a_finished_run_is_not_repeated_and_never_mixed(
    classifier: Model, model: Nervous, dataset: Scenes, tmp_path: Path
) -> None:
    store = tmp_path
    settings = replace(SETTINGS, attacks=("crop",), consistency=())
    first = run(classifier, dataset, settings, store, execution=CPU)
    model.largest = 0
    again = run(classifier, dataset, settings, store, execution=CPU)
    assert again.reused
    assert again.record == first.record
    assert first.record.data.classes == tuple(dataset.class_names)
    assert model.largest == 0
    with pytest.raises(RecordError, match=r"settings\.seed was 0, is 1.*--fresh"):
        run(classifier, dataset, replace(settings, seed=1), store, execution=CPU)
    fresh = run(classifier, dataset, replace(settings, seed=1), store, execution=CPU, fresh=True)
    assert not fresh.reused
    assert read_record(first.record.folder or tmp_path).settings["seed"] == 1


def test_full_grid_counts_every_offset(
    classifier: Model, dataset: Scenes, undisturbed: pd.DataFrame, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, attacks=("crop",), mode="full_grid", consistency=())
    record = run(classifier, dataset, settings, tmp_path, execution=CPU).record
    rows, grid = record.samples(), Grid(2)
    pd.testing.assert_series_equal(rows["crop_broken_radius"], undisturbed["crop_broken_radius"])
    maps = np.stack([np.frombuffer(row, np.uint8) for row in rows["crop_bitmap"]])
    right = np.unpackbits(maps, axis=1, count=len(grid))
    cells = record.maps["adversarial_crop"]
    assert [score.value for score in cells.values()] == right.mean(0).tolist()
    assert list(cells) == list(grid)
    survives = right.all(1)
    assert survives.tolist() == rows["crop_broken_radius"].isna().tolist()
    assert grid.offsets[0] == ORIGIN
    assert cells[ORIGIN].value == record.scores.find("accuracy").value


def test_sampled_offsets_are_marked_as_an_upper_bound(
    classifier: Model, dataset: Scenes, undisturbed: pd.DataFrame, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, attacks=("crop",), mode="sampled:5", consistency=())
    record = run(classifier, dataset, settings, tmp_path, execution=CPU).record
    exact = undisturbed["crop_broken_radius"].isna().mean()
    assert record.is_upper_bound(CROP)
    assert not record.is_upper_bound(ACCURACY)
    assert record.scores.find("adversarial_crop").value >= exact


class Greedy(nn.Module):
    """Has memory for three images."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        logits: Tensor = self.inner(images)
        return logits


def test_out_of_memory_halves_the_batch_and_goes_on(
    model: Nervous,
    dataset: Scenes,
    undisturbed: pd.DataFrame,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    greedy = Model(Greedy(model), RECIPE, name="greedy")
    with caplog.at_level(logging.WARNING, "shiftbench"):
        outcome = run(greedy, dataset, SETTINGS, tmp_path, execution=CPU)
    assert_same(outcome.record.samples(), undisturbed)
    assert "going on with batches of 2" in caplog.text


def test_a_failing_model_is_one_sentence(dataset: Scenes, tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            if len(images) > 2:  # more than it is tried out on
                raise ValueError("first line\nsecond line")
            return torch.zeros(len(images), 12)

    broken = Model(Broken(), RECIPE, name="broken")
    with pytest.raises(ModelError, match=r"broken failed on .*: ValueError: first line$"):
        run(broken, dataset, SETTINGS, tmp_path, execution=CPU)


def test_requests_that_cannot_be(classifier: Model, dataset: Scenes, tmp_path: Path) -> None:
    store = tmp_path
    few = Model(Nervous(3), RECIPE, name="few")
    with pytest.raises(ModelError, match="knows 3 classes"):
        run(few, dataset, SETTINGS, store, execution=CPU)
    with pytest.raises(DataError, match="2 images of scenes have the key 'test/00000'"):
        make_job(classifier, subset(dataset, [0, 0, 1]), SETTINGS)
    with pytest.raises(UsageError, match="unknown attack 'crops'"):
        Settings(attacks=("crops",))
    with pytest.raises(UsageError, match="unknown search mode"):
        Settings(mode="sometimes")
    with pytest.raises(UsageError, match="unknown precision"):
        Settings(precision="fp8")
    with pytest.raises(UsageError, match="engine onnx computes in float32, and precision bf16"):
        Settings(engine="onnx", precision="bf16")
    with pytest.raises(UsageError, match="expected a step"):
        make_job(classifier, dataset, Settings(step="wide"))
    with pytest.raises(UsageError, match="whole pixels"):
        run(classifier, dataset, Settings(attacks=("crop",), step="1/2"), store, execution=CPU)
    for device in ("cuda:99", "tpu", "what"):
        with pytest.raises(UsageError, match=r"device|requested"):
            choose_device(device)


def image_folder(root: Path) -> Path:
    for i in range(6):
        folder = root / "images" / str(i % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 255, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    whole = (root / "images" / "0" / "4.png").read_bytes()
    (root / "images" / "0" / "4.png").write_bytes(whole[: len(whole) // 2])
    return root / "images"


def test_unreadable_images_are_named_or_left_out_and_counted(
    classifier: Model, tmp_path: Path
) -> None:
    images = load_dataset(f"folder:{image_folder(tmp_path)}")
    settings = Settings(attacks=("integer",), max_shift=1, consistency=("integer", "crop"))
    store = tmp_path / "runs"
    with pytest.raises(DataError, match=r"0/4\.png"):
        run(classifier, images, settings, store, execution=CPU)
    skipping = replace(settings, skip_bad=True)
    record = run(classifier, images, skipping, store, execution=CPU, fresh=True).record
    assert (record.data.images, record.data.skipped) == (5, 1)
    assert "0/4.png" not in set(record.samples()["key"])


def test_only_a_data_set_with_a_camera_can_move_it(classifier: Model, tmp_path: Path) -> None:
    images = load_dataset(f"folder:{image_folder(tmp_path)}")
    with pytest.raises(UsageError, match="--data scenes"):
        run(classifier, images, Settings(attacks=("camera",)), tmp_path, execution=CPU)
    assert attack_names(["all"], camera=False) == ("integer", "half", "crop", "bilinear")
    assert attack_names([], camera=True)[-1] == "camera"
    assert attack_names(["all", "lanczos"], camera=False)[-2:] == ("bilinear", "lanczos")
    assert attack_names(["crop", "integer", "crop"], camera=False) == ("integer", "crop")
    assert attack_names(["none"], camera=True) == ()


def test_a_margin_that_is_not_there_is_an_error_with_ways_out(
    classifier: Model, tmp_path: Path
) -> None:
    images = load_dataset(f"folder:{image_folder(tmp_path)}")
    settings = Settings(attacks=("crop",), max_shift=6, skip_bad=True)
    with pytest.raises(UsageError, match=r"adversarial:crop needs 6 pixels.*--pad"):
        run(classifier, images, settings, tmp_path, execution=CPU)
    padded = replace(settings, pad="reflect", max_shift=3)
    record = run(classifier, images, padded, tmp_path, execution=CPU).record
    assert record.data.geometry["pad"] == "reflect"
