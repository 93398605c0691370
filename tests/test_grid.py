"""Grids: offsets, rings and order."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.shifts import ATTACKS

radii = st.integers(0, 8)
steps = st.fractions(Fraction(1, 12), 3, max_denominator=12)


@given(radii, steps)
def test_grid_contains_every_offset_once_from_inside_out(radius: int, step: Fraction) -> None:
    grid, span = Grid(radius, step), range(-radius, radius + 1)
    assert len(grid) == len(list(grid)) == (2 * radius + 1) ** 2
    assert set(grid) == {Offset(float(i * step), float(j * step)) for i in span for j in span}
    assert grid.offsets[0] == ORIGIN
    assert list(grid.rings) == sorted(grid.rings)
    for offset, ring in zip(grid.offsets, grid.rings, strict=True):
        assert ring == grid.ring(offset)
        assert ring * step == pytest.approx(max(abs(offset.dy), abs(offset.dx)))


@given(radii, radii, steps, st.sampled_from([1, 2]))
def test_grid_smaller_radius_is_prefix_of_larger(a: int, b: int, step: Fraction, axes: int) -> None:
    small, large = (Grid(radius, step, axes) for radius in sorted((a, b)))
    assert list(small) == list(large)[: len(small)]
    assert large.up_to(small.radius) == small


@given(radii, steps)
def test_grid_of_one_axis_is_a_line_of_the_square(radius: int, step: Fraction) -> None:
    line, grid = Grid(radius, step, axes=1), Grid(radius, step)
    assert list(line) == [offset for offset in grid if offset.dx == 0]
    assert [line.ring(offset) for offset in line] == [grid.ring(offset) for offset in line]
    assert (len(line), line.reach) == (len(line.offsets), grid.reach)
    assert line != grid


def test_grid_float_step_equals_its_fraction() -> None:
    assert Grid(6, 1 / 6) == Grid(6, Fraction(1, 6))  # type: ignore[arg-type]
    assert Grid(6, Fraction(1, 6)).reach == 1


@pytest.mark.parametrize(
    ("name", "reach", "integer"),
    [("integer", 6, True), ("half", 3, False), ("crop", 6, True), ("bilinear", 1, False)],
)
def test_grid_sizes_equal_those_of_the_paper(name: str, reach: int, integer: bool) -> None:
    grid = ATTACKS.get(name).grid()
    assert len(grid) == 169
    assert grid.reach == reach
    assert grid.is_integer is integer


@pytest.mark.parametrize(
    ("radius", "step", "words"),
    [
        *((radius, 1.0, "integer number of steps") for radius in (-1, 2.5)),
        *((1, step, "step of a grid") for step in (0.0, -1.0, math.nan, math.inf, 1e-9)),
    ],
)
def test_grid_invalid_radius_or_step_raises(radius: float, step: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Grid(radius, step)  # type: ignore[arg-type]
