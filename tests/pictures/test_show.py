"""The picture of an image under each kind of shift."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from shiftbench.errors import DataError, UsageError
from shiftbench.grid import Offset
from shiftbench.pictures.show import (
    DEFAULT_OFFSETS,
    load_canvas,
    needed_margin,
    parse_offset,
    shift_all,
    shifts_figure,
)
from shiftbench_cli.show import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "photo.png"
    Image.fromarray(rng.integers(0, 255, (90, 120, 3), dtype=np.uint8)).save(path)
    return path


def test_each_shift_moves_the_view_the_same_way(photo: Path):
    canvas = load_canvas(photo, view=64, margin=4)
    assert canvas.shape == (3, 72, 72)
    view = canvas[:, 4:68, 4:68]
    offsets = {name: Offset(2, -3) for name in DEFAULT_OFFSETS}
    shown = shift_all(canvas, 4, offsets)
    moved = canvas[:, 6:70, 1:65]
    assert torch.equal(shown["crop"], moved)
    torch.testing.assert_close(shown["bilinear"], moved)
    torch.testing.assert_close(shown["integer"], view.roll((-2, 3), (1, 2)))
    torch.testing.assert_close(shown["half"], shown["integer"])


def test_the_figure_has_each_shift_its_difference_and_a_corner(photo: Path):
    margin = needed_margin(DEFAULT_OFFSETS)
    assert margin == 6
    canvas = load_canvas(photo, view=112, margin=margin)
    figure = shifts_figure(canvas, margin, DEFAULT_OFFSETS)
    assert len(figure.axes) == 15
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "original"
    assert titles[2] == "cyclic, sinc\ndy 0.5, dx 0.5"
    assert titles[5].startswith("sinc minus bilinear")
    original, crop = (np.asarray(figure.axes[i].get_images()[0].get_array()) for i in (0, 3))
    assert original.shape == (112, 112, 3)
    difference = np.asarray(figure.axes[8].get_images()[0].get_array())
    np.testing.assert_allclose(difference, (crop - original).mean(-1), atol=1e-12)


def test_the_command_writes_the_picture(photo: Path, tmp_path: Path):
    out = tmp_path / "shifts.png"
    result = run(
        photo,
        "-o",
        out,
        "--size",
        64,
        "--offset",
        "crop=-2,4",
        "--offset",
        "integer=0,9",
        "--offset",
        "bilinear=0.25,0",
    )
    assert result.exit_code == 0, result.output
    with Image.open(out) as picture:
        assert picture.size[0] > picture.size[1]


def test_mistakes_are_one_clear_sentence(photo: Path, tmp_path: Path):
    assert parse_offset("half=0.5,-1") == ("half", Offset(0.5, -1))
    for text in ("half", "half=1", "half=a,b", "zoom=1,1", "half=nan,0"):
        with pytest.raises(UsageError):
            parse_offset(text)
    out = tmp_path / "x.png"
    assert isinstance(run(tmp_path / "no.png", "-o", out).exception, DataError)
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    assert "cannot read image" in str(run(text, "-o", out).exception)
    assert "--size" in str(run(photo, "-o", out, "--offset", "crop=99,0").exception)
    assert "whole pixels" in str(run(photo, "-o", out, "--offset", "crop=0.5,0").exception)
    assert "there is no folder" in str(run(photo, "-o", tmp_path / "no" / "x.png").exception)
