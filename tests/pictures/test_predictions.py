"""The figure of predictions over a grid of offsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import shiftbench
from PIL import Image

from shiftbench.errors import DataError, UsageError
from shiftbench.models import load_model
from shiftbench.pictures.predictions import open_image, predict_image, predictions_figure
from shiftbench.running.job import Settings

# Class 1 where the left border of the view is bright, which a crop shift of 1 px changes.
LEFT = """
import torch

def build():
    def predict(images):
        bright = images[:, 0, :, 0].mean(1)
        return torch.stack([0.5 - bright, bright - 0.5, torch.full_like(bright, -9.0)], 1)
    return predict, {"input_size": 16, "mean": 0.0, "std": 1.0}
"""
CROP = Settings(attacks=("crop",), max_shift=1)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.zeros((18, 18, 3), np.uint8)  # resized to 18 px: a view of 16 and a margin of 1
    pixels[:, 0] = 255
    Image.fromarray(pixels).save(tmp_path / "edge.png")
    return tmp_path / "edge.png"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(LEFT)
    return f"{tmp_path / 'net.py'}:build"


def test_predict_image_grid_has_the_class_of_each_offset(image: Path, model: str) -> None:
    grid = predict_image(load_model(model), open_image(str(image)), CROP)
    found = {(o.dy, o.dx): c for o, c in zip(grid.grid, grid.classes, strict=True)}
    assert {c for (_, dx), c in found.items() if dx == -1} == {1}
    assert {c for (_, dx), c in found.items() if dx >= 0} == {0}
    assert (grid.expected, grid.labeled, grid.predicted, grid.wrong[1]) == (0, False, 9, 3)


def test_predict_image_rings_beyond_the_margin_are_not_predicted(image: Path, model: str) -> None:
    wide = Settings(attacks=("crop",), max_shift=3)
    grid = predict_image(load_model(model), open_image(str(image)), wide, label="1")
    assert len(grid.classes) == 49
    assert grid.predicted == 9
    assert (grid.expected, grid.labeled, grid.wrong[0]) == (1, True, 6)


def test_predict_image_of_scenes_has_its_label() -> None:
    grid = predict_image(load_model("xcit_pico_6_p8_af.scenes"), open_image("scenes:7"), CROP)
    assert (grid.names[grid.expected], grid.labeled) == ("chevron square", True)


def test_predict_image_label_may_be_a_synonym(image: Path) -> None:
    model = load_model("xcit_pico_6_p8.imagenette")
    photo = open_image(str(image))
    grid = predict_image(model, photo, Settings(attacks=("crop",), max_shift=1), label="tench")
    assert grid.expected == 0
    with pytest.raises(UsageError, match="unknown class 'unicorn'"):
        predict_image(model, photo, CROP, label="unicorn")


def test_predictions_figure_has_a_panel_per_model_and_names_classes(
    image: Path, model: str
) -> None:
    opened = open_image(str(image))
    grid = predict_image(load_model(model), opened, CROP)
    figure = predictions_figure(opened, [grid, grid])
    assert len(figure.axes) == 3
    assert figure.axes[1].get_title().endswith("unchanged at 6 of 9 offsets")
    assert "A: 1 (3)" in figure.axes[1].get_xlabel()
    assert [text.get_text() for text in figure.axes[1].texts] == ["A"] * 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "as without a shift",
        "another class",
    ]


def test_open_image_bad_input_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        open_image(str(tmp_path / "no.png"))
    for text in ("scenes:120", "scenes:x", "scenes:"):
        with pytest.raises(UsageError, match="from 0 to 119"):
            open_image(text)


def test_show_command_writes_the_predictions(image: Path, model: str, tmp_path: Path) -> None:
    target = tmp_path / "grid.png"
    ran = shiftbench("show", image, "-m", model, "--max-shift", 1, "-o", target, code=0)
    assert "the class of the unshifted image at 6 of 9 offsets" in ran.err
    assert target.stat().st_size > 5_000
    shiftbench("show", image, "-m", model, "-a", "all", "-o", target, code=2)
    shiftbench("show", image, "-m", "no_such_model", "-o", target, code=2)
