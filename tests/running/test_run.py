"""Runs: cells independent of batches and repetition, and errors for invalid requests."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import (
    BASE,
    CLASSES,
    CPU,
    PREPROCESSING,
    SIDE,
    Bench,
    ShiftSensitive,
    assert_same_tables,
)
from torch import Tensor, nn

from shiftbench.data import load_dataset, subset
from shiftbench.errors import DataError, ModelError, RecordError, UsageError
from shiftbench.grid import ORIGIN, Grid
from shiftbench.models import Model
from shiftbench.records.folder import load_record
from shiftbench.records.result import Result
from shiftbench.running import Progress, runner
from shiftbench.running.job import Settings, attack_names, make_job
from shiftbench.running.predict import choose_device
from shiftbench.running.runner import Execution, run
from shiftbench.running.shards import Shard

SETTINGS = replace(BASE, attacks=("crop", "camera"), max_shift=2, consistency=("integer", "crop"))


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.make()


@pytest.fixture(scope="module")
def undisturbed(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Result:
    result = bench.result(tmp_path_factory.mktemp("undisturbed"), SETTINGS)
    radius = result.to_frame()["crop_failure_radius"]
    assert radius.isna().any()
    assert (radius > 0).any()  # the example can show a difference
    return result


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_run_independent_of_batch_size(
    batch_size: int, bench: Bench, undisturbed: Result, tmp_path: Path
) -> None:
    result = bench.result(tmp_path, SETTINGS, execution=replace(CPU, batch_size=batch_size))
    assert_same_tables(result.tables, undisturbed.tables)


def test_run_failure_radius_equals_exhaustive_loop(bench: Bench, undisturbed: Result) -> None:
    images, count = bench.images, len(bench.images)
    canvas = (images.render(range(count), SIDE, margin=2).float() / 255 - 0.5) / 0.25
    labels, first = torch.tensor(images.labels), torch.full((count,), 99)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            view = canvas[:, :, 2 + dy : 2 + dy + SIDE, 2 + dx : 2 + dx + SIDE]
            with torch.no_grad():
                wrong = bench.network(view).argmax(1) != labels
            first[wrong] = first[wrong].clamp(max=max(abs(dy), abs(dx)))
    frame = undisturbed.to_frame().set_index("key").loc[list(images.keys)]
    radius = frame["crop_failure_radius"].fillna(99).to_numpy()
    np.testing.assert_array_equal(radius.astype(int), first.numpy())


def test_run_attack_limit_is_part_of_the_whole(
    bench: Bench, undisturbed: Result, tmp_path: Path
) -> None:
    result = bench.result(tmp_path, replace(SETTINGS, attack_limit=11))
    some, whole = (r.to_frame().set_index("key") for r in (result, undisturbed))
    attacked = some.index[:11]
    column = "crop_failure_radius"
    assert some.loc[attacked, column].equals(whole.loc[attacked, column])
    assert some[column].iloc[11:].isna().all()
    points = {
        name.radius: s for name, s in result.scores.items() if name.kind == "crop" and name.radius
    }
    assert {score.n for score in points.values()} == {11}
    assert points[2].value == pytest.approx(whole.loc[attacked, column].isna().mean())


def test_run_finished_record_is_not_predicted_again(bench: Bench, tmp_path: Path) -> None:
    first = bench.run(tmp_path)
    assert not first.complete
    assert first.record is not None
    written = (first.record.folder / "record.json").read_bytes()  # type: ignore[operator]
    bench.network.seen = 0
    again = bench.run(tmp_path)
    assert again.complete
    assert bench.network.seen == 0
    assert (first.record.folder / "record.json").read_bytes() == written  # type: ignore[operator]


def test_run_record_json_is_derived_from_the_tables(bench: Bench, tmp_path: Path) -> None:
    first = bench.result(tmp_path, SETTINGS)
    assert first.folder is not None
    (first.folder / "record.json").unlink()
    again = bench.run(tmp_path, SETTINGS)
    assert again.complete
    assert again.record is not None
    assert again.record.scores == first.scores


def test_run_full_grid_has_every_offset(bench: Bench, undisturbed: Result, tmp_path: Path) -> None:
    result = bench.result(tmp_path, replace(SETTINGS, attacks=("crop",), full_grid=True))
    by_offset = result.accuracy_by_offset("crop")
    assert list(by_offset) == list(Grid(2))
    accuracy = next(score for name, score in result.scores.items() if name.family == "accuracy")
    assert by_offset[ORIGIN] == accuracy
    frames = [r.to_frame()["crop_failure_radius"] for r in (result, undisturbed)]
    assert frames[0].equals(frames[1])


class LittleMemory(nn.Module):
    """Network with memory for three images."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        logits: Tensor = self.inner(images)
        return logits


def test_run_out_of_memory_halves_the_batch(
    bench: Bench, undisturbed: Result, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(LittleMemory(bench.network), PREPROCESSING, name="little")
    with caplog.at_level(logging.WARNING, "shiftbench"):
        result = run(model, bench.images, SETTINGS, tmp_path, execution=CPU).record
    assert result is not None
    assert_same_tables(result.tables, undisturbed.tables)
    assert "batch size 2" in caplog.text


def test_run_failing_model_raises_one_sentence(bench: Bench, tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            if len(images) > 2:  # more than the retries of a loader
                raise ValueError("first line\nsecond line")
            return torch.zeros(len(images), CLASSES)

    broken = Model(Broken(), PREPROCESSING, name="broken")
    with pytest.raises(ModelError, match=r"broken failed on .*: ValueError: first line$"):
        run(broken, bench.images, SETTINGS, tmp_path, execution=CPU)


def test_run_batch_dependent_model_raises(bench: Bench, tmp_path: Path) -> None:
    class Centered(ShiftSensitive):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images - images.mean(0, keepdim=True))

    model = Model(Centered(), PREPROCESSING, name="centered")
    with pytest.raises(ModelError, match="depend on the other images of a batch"):
        run(model, bench.images, BASE, tmp_path, execution=CPU)


def test_run_notices_a_full_disk_before_the_model_runs(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shiftbench.tables.write_atomic", full)
    bench.network.seen = 0
    with pytest.raises(RecordError, match="No space left"):
        bench.run(tmp_path)
    assert bench.network.seen == 0


def test_run_saves_in_the_middle_of_a_batch(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FIRST_SAVE", 0.0)
    monkeypatch.setattr(runner, "LAST_SAVE", 0.0)
    monkeypatch.setattr(runner, "SAVE_FRACTION", 1e9)
    contents: set[str] = set()

    def callback(_: object) -> None:
        contents.update(file.name for file in tmp_path.rglob("*.parquet"))

    bench.run(tmp_path, SETTINGS, callback=callback)
    assert len(contents) > 5
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_run_copy_of_a_record_needs_no_predictions(bench: Bench, tmp_path: Path) -> None:
    result = bench.result(tmp_path / "first", SETTINGS)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    bench.network.seen = 0
    assert bench.run(tmp_path / "copy", SETTINGS).complete
    assert bench.network.seen == 0
    assert load_record(result.folder or tmp_path).scores == result.scores


def test_requests_that_cannot_run_raise(bench: Bench, tmp_path: Path) -> None:
    model, images = bench.model, bench.images
    few = Model(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), PREPROCESSING, name="few")
    with pytest.raises(ModelError, match="a model of 3 classes"):
        run(few, images, SETTINGS, tmp_path, execution=CPU)
    many = Model(nn.Sequential(nn.Flatten(), nn.LazyLinear(40_000)), PREPROCESSING, name="many")
    with pytest.raises(ModelError, match="at most 32,767 classes, got 40,000"):
        run(many, images, SETTINGS, tmp_path, execution=CPU)
    with pytest.raises(DataError, match="'test/00000' for 2 images of scenes"):
        make_job(model, subset(images, [0, 0, 1]), SETTINGS)
    with pytest.raises(UsageError, match="unknown attack 'crops'"):
        Settings(attacks=("crops",))
    with pytest.raises(UsageError, match="unknown precision"):
        Settings(precision="fp8")
    with pytest.raises(UsageError, match="expected limit of 1 or more, got 0"):
        Settings(limit=0)
    with pytest.raises(UsageError, match="expected a step"):
        make_job(model, images, Settings(step="wide"))
    with pytest.raises(UsageError, match="integer pixels"):
        run(model, images, Settings(attacks=("crop",), step="1/2"), tmp_path, execution=CPU)
    for device in ("cuda:99", "tpu", "what"):
        with pytest.raises(UsageError, match=r"device|GPU"):
            choose_device(device)


def image_folder(root: Path) -> Path:
    """Write six images, one of them truncated."""
    for i in range(6):
        folder = root / "images" / str(i % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 255, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    whole = (root / "images" / "0" / "4.png").read_bytes()
    (root / "images" / "0" / "4.png").write_bytes(whole[: len(whole) // 2])
    return root / "images"


def test_run_unreadable_images_are_named_or_skipped_and_counted(
    bench: Bench, tmp_path: Path
) -> None:
    folder = image_folder(tmp_path)
    images = load_dataset(f"folder:{folder}")
    settings = Settings(attacks=("integer",), max_shift=1, consistency=("integer", "crop"))
    with pytest.raises(DataError, match=r"0/4\.png"):
        run(bench.model, images, settings, tmp_path / "runs", execution=CPU)
    skipping = replace(settings, skip_bad=True)
    result = run(bench.model, images, skipping, tmp_path / "runs", execution=CPU).record
    assert result is not None
    assert (result.data.images, result.data.skipped) == (5, 1)
    assert "0/4.png" not in set(result.to_frame()["key"])
    # A file that was replaced is predicted by the next run.
    shutil.copy(folder / "0" / "2.png", folder / "0" / "4.png")
    result = run(bench.model, images, settings, tmp_path / "runs", execution=CPU).record
    assert result is not None
    assert (result.data.images, result.data.skipped) == (6, 0)


def test_run_lists_all_unreadable_images_before_predicting(bench: Bench, tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    for i in range(12):
        (folder / "1" / f"bad{i:02d}.png").write_bytes(b"not an image")
    images = load_dataset(f"folder:{folder}")
    bench.network.seen = 0
    with pytest.raises(DataError, match=r"cannot read 12 of 18 images: .*bad0.*and 2 more"):
        run(bench.model, images, replace(BASE, attacks=()), tmp_path / "runs", execution=CPU)
    assert bench.network.seen == 0


def test_run_changed_image_raises(bench: Bench, tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    images = load_dataset(f"folder:{folder}")
    settings = Settings(attacks=(), consistency=("integer",), skip_bad=True)
    run(bench.model, images, settings, tmp_path / "runs", execution=CPU)
    shutil.copy(folder / "1" / "1.png", folder / "1" / "3.png")
    more = replace(settings, consistency_samples=2)
    with pytest.raises(DataError, match=r"1/3\.png is not the image.*--fresh"):
        run(bench.model, images, more, tmp_path / "runs", execution=CPU)


def test_attack_names_resolve_all_and_none() -> None:
    assert attack_names(["all"], camera=False) == ("integer", "half", "crop", "bilinear")
    assert attack_names([], camera=True)[-1] == "camera"
    assert attack_names(["all", "lanczos"], camera=False)[-2:] == ("bilinear", "lanczos")
    assert attack_names(["crop", "integer", "crop"], camera=False) == ("integer", "crop")
    assert attack_names(["none"], camera=True) == ()


def test_missing_margin_raises_with_ways_out(bench: Bench, tmp_path: Path) -> None:
    images = load_dataset(f"folder:{image_folder(tmp_path)}")
    settings = Settings(attacks=("crop",), max_shift=6, skip_bad=True)
    with pytest.raises(UsageError, match=r"crop \(6 px\) needs a margin of 6 px.*--pad"):
        run(bench.model, images, settings, tmp_path, execution=CPU)
    padded = replace(settings, pad="reflect", max_shift=3)
    result = run(bench.model, images, padded, tmp_path, execution=CPU).record
    assert result is not None
    assert result.data.geometry["pad"] == "reflect"


def test_shards_most_passes_count_their_own_images(tmp_path: Path) -> None:
    settings = Settings(attacks=("crop",), max_shift=1, limit=12, consistency=(), full_grid=True)
    most: list[int] = []
    for execution in (Execution(), Execution(shard=Shard(1, 3)), Execution(shard=Shard(2, 3))):
        seen: list[Progress] = []
        output = tmp_path / str(execution.shard.count)
        run("xcit_pico_6_p8.scenes", "scenes", settings, output, execution=execution,
            callback=seen.append)  # fmt: skip
        most.append(seen[-1].most_passes)
        assert seen[-1].passes == seen[-1].most_passes
    assert most == [12 * 9, 4 * 9, 4 * 9]
