"""The picture of an image under each kind of shift."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from shiftbench.errors import DataError, UsageError
from shiftbench.grid import Offset
from shiftbench.pictures.show import DEFAULT_OFFSETS, parse_offset, show_image
from shiftbench_cli.show import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "photo.png"
    Image.fromarray(rng.integers(0, 255, (90, 120, 3), dtype=np.uint8)).save(path)
    return path


def pixels(figure: Figure, row: int, column: int) -> NDArray[np.float64]:
    return np.asarray(figure.axes[5 * row + column].get_images()[0].get_array())


def test_each_shift_moves_the_view_the_same_way(photo: Path):
    figure = show_image(photo, offsets=dict.fromkeys(DEFAULT_OFFSETS, Offset(2, -3)), view=64)
    original, integer, half, crop, bilinear = (pixels(figure, 0, i) for i in range(5))
    np.testing.assert_allclose(integer, np.roll(original, (-2, 3), (0, 1)))
    np.testing.assert_allclose(half, integer, atol=1e-12)
    np.testing.assert_array_equal(crop[:-2, 3:], original[2:, :-3])
    np.testing.assert_allclose(bilinear, crop)


def test_the_figure_has_each_shift_its_difference_and_a_corner(photo: Path):
    figure = show_image(photo, offsets=DEFAULT_OFFSETS, view=112)
    assert len(figure.axes) == 15
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "original"
    assert titles[2] == "cyclic, sinc\ndy 0.5, dx 0.5"
    assert titles[5].startswith("sinc minus bilinear")
    original, crop = pixels(figure, 0, 0), pixels(figure, 0, 3)
    assert original.shape == (112, 112, 3)
    np.testing.assert_allclose(pixels(figure, 1, 3), (crop - original).mean(-1), atol=1e-12)


def test_the_command_writes_the_picture(photo: Path, tmp_path: Path):
    out = tmp_path / "shifts.png"
    offsets = ("--offset", "crop=-2,4", "--offset", "integer=0,9", "--offset", "bilinear=0.25,0")
    result = run(photo, "-o", out, "--size", 64, *offsets)
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
