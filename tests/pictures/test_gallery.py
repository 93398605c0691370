"""The gallery: images that only one of two models classifies correctly at every offset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_records import make_result, spread

from shiftbench.data import Scenes
from shiftbench.errors import DataError, UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.pictures.gallery import build_gallery, gallery_figure
from shiftbench.records.result import Result
from shiftbench.report.plots import save_figure

CLASSES = tuple("abcdefghij")


def pair(attack: str = "crop") -> tuple[Result, Result]:
    """Return results of which each fails on other images of `scenes`; both fail on image 0."""
    first = make_result("$a$", failures={attack: [0, 1, 2, None, None, None]})
    second = make_result("b", failures={attack: [0, None, None, 0, 2, None]})
    named = (replace(r, data=replace(r.data, classes=CLASSES)) for r in (first, second))
    one, other = named
    return one, other


@pytest.mark.parametrize("attack", ["crop", "integer", "bilinear", "camera"])
def test_gallery_shows_images_that_only_one_model_fails_on(attack: str) -> None:
    right, left = build_gallery(*pair(attack))
    assert (right.robust, right.failing, right.count) == ("$a$", "b", 2)
    assert [exhibit.key for exhibit in right.exhibits] == ["test/00004", "test/00003"]
    assert [exhibit.key for exhibit in left.exhibits] == ["test/00001", "test/00002"]
    shifted, unshifted = right.exhibits
    assert (shifted.label, shifted.clean, shifted.predicted) == ("e", "e", "f")
    assert unshifted.offset == ORIGIN
    assert (unshifted.clean, unshifted.predicted) == ("e", "e")  # of label d
    np.testing.assert_array_equal(unshifted.original, unshifted.shifted)
    assert not np.array_equal(shifted.original, shifted.shifted)


def test_gallery_images_are_those_that_the_model_saw() -> None:
    (exhibit, *_) = build_gallery(*pair())[0].exhibits
    assert exhibit.offset == Offset(-2, -2)
    clean = Scenes("test").render([4], 64)[0].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(exhibit.original, clean)
    np.testing.assert_array_equal(exhibit.shifted[2:, 2:], exhibit.original[:-2, :-2])


def test_gallery_figure_has_two_tiles_per_image(tmp_path: Path) -> None:
    figure = gallery_figure(build_gallery(*pair(), size=1))
    shown = [axes for axes in figure.axes if axes.get_images()]
    assert [axes.get_title(loc="left") for axes in shown] == [
        *("e", "f\ndy -2, dx -2"),
        *("b", "c\ndy -1, dx -1"),
    ]
    save_figure(figure, tmp_path / "gallery.png", dpi=50)
    with pytest.raises(UsageError, match="fail on the same images"):
        gallery_figure(build_gallery(pair()[0], pair()[0]))


def test_gallery_bad_input_raises() -> None:
    first, second = pair()
    with pytest.raises(UsageError, match="unknown attack in both records 'half'"):
        build_gallery(first, second, attack="half")
    with pytest.raises(UsageError, match="expected an attack in both records, got none"):
        build_gallery(first, make_result("b", failures={"half": spread(6, [1])}))
    with pytest.raises(UsageError, match="expected --data scenes, the data of the records"):
        build_gallery(first, second, data="cifar10")
    far = spread(200, [0] * 6 + [1])[::-1]  # the last image, which the data set does not have
    a, b = (make_result(n, failures={"crop": r}) for n, r in (("a", far), ("b", [None] * 200)))
    with pytest.raises(DataError, match="cannot find the image 'test/00199'"):
        build_gallery(a, b)
