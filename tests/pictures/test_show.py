"""The figure of an image under each shift type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from shiftbench.errors import DataError, UsageError
from shiftbench.grid import Offset
from shiftbench.pictures.show import (
    DEFAULT_OFFSETS,
    default_offsets,
    parse_offset,
    show_image,
)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "photo.png"
    Image.fromarray(rng.integers(0, 255, (90, 120, 3), dtype=np.uint8)).save(path)
    return path


def pixels(figure: Figure, row: int, column: int) -> NDArray[np.float64]:
    return np.asarray(figure.axes[5 * row + column].get_images()[0].get_array())


def test_show_every_shift_type_has_the_same_direction(photo: Path) -> None:
    figure = show_image(photo, offsets=dict.fromkeys(DEFAULT_OFFSETS, Offset(2, -3)), view=64)
    original, integer, half, crop, bilinear = (pixels(figure, 0, i) for i in range(5))
    np.testing.assert_allclose(integer, np.roll(original, (-2, 3), (0, 1)))
    np.testing.assert_allclose(half, integer, atol=1e-12)
    np.testing.assert_array_equal(crop[:-2, 3:], original[2:, :-3])
    np.testing.assert_allclose(bilinear, crop)


def test_show_has_each_shift_its_difference_with_colors_and_a_window(photo: Path) -> None:
    figure = show_image(photo, offsets=default_offsets(112), view=112)
    assert len(figure.axes) == 15 + 5  # a color bar per difference
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "original"
    assert titles[2] == "cyclic, sinc\ndy 16.5, dx 16.5"
    assert titles[5].startswith("sinc minus bilinear")
    original, crop = pixels(figure, 0, 0), pixels(figure, 0, 3)
    assert original.shape == (112, 112, 3)
    np.testing.assert_allclose(pixels(figure, 1, 3), (crop - original).mean(-1), atol=1e-12)


def test_show_enlarges_the_window_with_most_detail(tmp_path: Path) -> None:
    pixels = np.full((128, 128, 3), 128, np.uint8)
    pixels[70:90:2, 30:50] = 255  # stripes
    Image.fromarray(pixels).save(tmp_path / "flat.png")
    figure = show_image(tmp_path / "flat.png", offsets=default_offsets(112), view=112)
    window = np.asarray(figure.axes[10].get_images()[0].get_array())
    assert window.std() > 0.1


def test_show_bad_input_raises(photo: Path, tmp_path: Path) -> None:
    assert parse_offset("half=0.5,-1") == ("half", Offset(0.5, -1))
    for text in ("half", "half=1", "half=a,b", "zoom=1,1", "half=nan,0"):
        with pytest.raises(UsageError):
            parse_offset(text)
    with pytest.raises(DataError):
        show_image(tmp_path / "no.png", offsets=DEFAULT_OFFSETS)
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    with pytest.raises(DataError, match="cannot read image"):
        show_image(text, offsets=DEFAULT_OFFSETS)
    with pytest.raises(UsageError, match=r"expected offsets up to 16 px .* got 99 px"):
        show_image(photo, offsets={"crop": Offset(99, 0)})
    with pytest.raises(UsageError, match="integer offset"):
        show_image(photo, offsets={"crop": Offset(0.5, 0)})
