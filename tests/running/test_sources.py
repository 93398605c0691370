"""Sources of a run: image sizes, class names, and changed images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from aft_models.cards import list_weights
from shiftbench.data import load_dataset
from shiftbench.errors import DataError, UsageError
from shiftbench.models import Model, load_model
from shiftbench.records.folder import load_record
from shiftbench.running.job import Settings, make_job
from shiftbench.running.runner import Execution, load_ahead, run

CPU = Execution(device="cpu", batch_size=16)
QUICK = Settings(attacks=("integer",), max_shift=1, consistency=())
RECORDS = Path(__file__).parents[2] / "results" / "records"


class Redness(nn.Module):
    """Network that predicts class 0 for red images and 1 for others."""

    def forward(self, images: Tensor) -> Tensor:
        red, _, blue = images.mean((2, 3)).unbind(1)
        return torch.stack([red, blue], 1)


def red_or_blue(*class_names: str, side: int = 32) -> Model:
    recipe = {"input_size": side, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    return Model(Redness(), recipe, name="redness", class_names=class_names)


def paint(folder: Path, **colors: str) -> Path:
    for name, color in colors.items():
        for i in range(3):
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), color).save(folder / name / f"{i}.bmp")
    return folder


def test_folder_names_are_matched_with_class_names(tmp_path: Path) -> None:
    folder = paint(tmp_path / "paint", blue="blue", red="red")
    data = load_dataset(f"folder:{folder}")

    def accuracy(model: Model, place: str) -> float:
        result = run(model, data, QUICK, tmp_path / place, execution=CPU).record
        assert result is not None
        frame = result.to_frame()
        return float((frame["prediction"] == frame["label"]).mean())

    assert accuracy(red_or_blue("red", "blue"), "named") == 1
    assert accuracy(red_or_blue(), "unnamed") == 0  # alphabetical: blue is class 0
    with pytest.raises(UsageError, match="'blue' of paint is not one class of the model"):
        run(red_or_blue("rouge", "bleu"), data, QUICK, tmp_path, execution=CPU)
    three = load_dataset(f"folder:{paint(folder, green='green')}")
    with pytest.raises(UsageError, match=r"predicts 2 classes and paint has 3 \(blue"):
        run(red_or_blue(), three, QUICK, tmp_path, execution=CPU)


def test_replaced_images_raise(tmp_path: Path) -> None:
    folder = paint(tmp_path / "paint", blue="blue", red="red")
    model, store, data = red_or_blue("red", "blue"), tmp_path / "runs", f"folder:{folder}"
    assert not run(model, load_dataset(data), QUICK, store, execution=CPU).complete
    assert run(model, load_dataset(data), QUICK, store, execution=CPU).complete
    paint(folder, red="gray")  # files of the same names and sizes
    more = replace(QUICK, consistency=("integer",))
    with pytest.raises(DataError, match=r"red/.*not the image that was predicted before"):
        run(model, load_dataset(data), more, store, execution=CPU)


def test_added_images_are_predicted_alone(tmp_path: Path) -> None:
    folder = paint(tmp_path / "paint", blue="blue", red="red")
    model, store = red_or_blue("red", "blue"), tmp_path / "runs"
    run(model, load_dataset(f"folder:{folder}"), QUICK, store, execution=CPU)
    Image.new("RGB", (32, 32), "red").save(folder / "red" / "9.bmp")
    result = run(model, load_dataset(f"folder:{folder}"), QUICK, store, execution=CPU).record
    assert result is not None
    assert result.data.images == 7


def test_images_of_the_view_size_are_not_resized(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for i in range(4):
        folder = tmp_path / "small" / str(i % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    data = load_dataset(f"folder:{tmp_path / 'small'}")
    plan = make_job(red_or_blue(), data, QUICK)
    assert plan.geometry.resize == 32
    batch = next(load_ahead(plan, data.keys[:1], 1, plan.images()))
    assert np.array_equal(batch.canvas[0].permute(1, 2, 0).numpy(), np.asarray(data[0][0]))
    with pytest.raises(UsageError, match=r"not resized, leave 0 .*. Use --pad"):
        make_job(red_or_blue(), data, Settings(attacks=("crop",)))
    assert make_job(red_or_blue(side=24), data, QUICK).geometry.resize == 27


@pytest.mark.parametrize("folder", sorted(RECORDS.iterdir()), ids=lambda folder: folder.name)
def test_committed_record_has_the_current_geometry(folder: Path, tmp_path: Path) -> None:
    record = load_record(folder)
    if record.model.name.partition("+")[0] not in list_weights():
        pytest.skip(f"the weights of {record.model.name} are not in this repository")
    if record.data.name == "scenes":
        data = load_dataset("scenes")
    else:
        data = load_dataset(f"folder:{paint(tmp_path / 'like-cifar', **{'0': 'red'})}")
    cut = record.data.geometry
    radius = max(name.radius for name in record.scores if name.radius is not None)
    settings = Settings(crop_pct=cut["crop"], pad=cut["pad"], max_shift=radius)
    geometry = make_job(load_model(record.model.name), data, settings).geometry.to_json()
    assert geometry == cut
