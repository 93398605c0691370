"""Properties of every registered shift type, and each type against its definition."""

from fractions import Fraction
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aft_models.resample import fractional_shift
from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.shifts import ATTACKS, SHIFTS, Attack, parse_attack
from shiftbench.shifts.cyclic import MAX_PHASES, shift_axis

MARGIN = 4
SIXTH = Fraction(1, 6)
SIZES = [7, 14, 15, 30, 31, 224, 226]

sizes = st.sampled_from(SIZES[:-2])
reals = st.floats(-3, 3)
wholes = st.integers(-3, 3).map(float)
quick = settings(deadline=None, max_examples=30)
ALL_ATTACKS = [ATTACKS.get(name) for name in ATTACKS]
every_attack = pytest.mark.parametrize("attack", ALL_ATTACKS, ids=lambda attack: attack.name)
moved_pixels = dict.fromkeys(attack.shift for attack in ALL_ATTACKS if attack.unit == "px")
every_kind = pytest.mark.parametrize(
    "kind", [kind for kind in moved_pixels if not SHIFTS.get(kind).digitizes]
)


def scene(height: int, width: int, *, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(height * 1000 + width)
    return torch.randn(batch, 2, height, width, generator=generator, dtype=dtype)


def shifted(kind: str, canvas: Tensor, offset: Offset, margin: int = MARGIN) -> Tensor:
    return SHIFTS.get(kind).views(canvas, margin)(offset)


def center(canvas: Tensor, margin: int = MARGIN) -> Tensor:
    height, width = canvas.shape[-2:]
    return canvas[..., margin : height - margin, margin : width - margin]


# --- attacks ------------------------------------------------------------------------------------


@every_attack
def test_attack_offsets_are_supported_by_its_shift(attack: Attack) -> None:
    assert attack.summary
    assert SHIFTS.get(attack.shift).margin(attack.grid()) >= 0
    assert attack.grid(2).step == attack.step
    assert parse_attack(attack.name) == attack


def test_parse_attack_step_replaces_the_default() -> None:
    attack = parse_attack("bilinear:1/4")
    assert (attack.name, attack.shift, attack.step) == ("bilinear", "bilinear", Fraction(1, 4))
    assert parse_attack("half:0.25").grid(2).reach == Fraction(1, 2)
    for text, words in {"bilinear:x": "such as 1, 0.5 or 1/6", "crop:0": "step of a grid"}.items():
        with pytest.raises(UsageError, match=words):
            parse_attack(text)


def test_protocol_tables_equal_registries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docs = Path(__file__).parents[2] / "docs"
    monkeypatch.syspath_prepend(docs)
    for make in import_module("make_attacks").TABLES.values():
        assert make() in (docs / "reference" / "protocol.md").read_text("utf-8"), (
            "run docs/make_attacks.py"
        )


# --- every shift type ---------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("height", SIZES)
def test_shift_zero_offset_is_identity(kind: str, height: int) -> None:
    canvas = scene(height + 2 * MARGIN, 19)
    assert torch.equal(shifted(kind, canvas, ORIGIN), center(canvas))


@every_kind
@given(dy=wholes, dx=wholes, height=sizes, width=sizes)
@quick
def test_shift_positive_offset_reads_below_and_right(
    kind: str, dy: float, dx: float, height: int, width: int
) -> None:
    """The equation shifted[y, x] = image[y + dy, x + dx] applies where both are in the view."""
    canvas = scene(height + 2 * MARGIN, width + 2 * MARGIN)
    view, moved = center(canvas), shifted(kind, canvas, Offset(dy, dx))
    rows = range(max(0, -int(dy)), min(height, height - int(dy)))
    columns = range(max(0, -int(dx)), min(width, width - int(dx)))
    inside = moved[..., rows.start : rows.stop, columns.start : columns.stop]
    y, x = int(dy), int(dx)
    expected = view[..., rows.start + y : rows.stop + y, columns.start + x : columns.stop + x]
    torch.testing.assert_close(inside, expected, rtol=0, atol=1e-12)


@every_kind
@pytest.mark.parametrize("offset", [Offset(0, 0), Offset(-2, 1), Offset(3, 3)])
def test_shift_is_linear_per_image_and_keeps_dtype(kind: str, offset: Offset) -> None:
    canvas, rows = scene(20, 23, batch=5), torch.tensor([3, 0, 3])
    views = SHIFTS.get(kind).views(canvas, MARGIN)
    moved = views(offset)
    assert torch.equal(views(offset, rows), moved[rows])
    torch.testing.assert_close(shifted(kind, 3 * canvas - 0.5, offset), 3 * moved - 0.5)
    for dtype in (torch.float32, torch.float64):
        typed = shifted(kind, canvas.to(dtype), offset)
        assert typed.dtype == dtype
        torch.testing.assert_close(typed.double(), moved, rtol=0, atol=1e-5)


@every_kind
def test_shift_gradients_can_be_computed_repeatedly(kind: str) -> None:
    canvas = scene(10, 11).requires_grad_()
    views = SHIFTS.get(kind).views(canvas, 2)
    for offset in (Offset(1, -2), Offset(1, -2)):
        assert torch.autograd.gradcheck(lambda x, o=offset: SHIFTS.get(kind).views(x, 2)(o), canvas)
        views(offset).sum().backward()  # type: ignore[no-untyped-call]


@every_kind
def test_shift_independent_of_wider_margin(kind: str) -> None:
    grid, shift = Grid(3), SHIFTS.get(kind)
    needed = shift.margin(grid)
    wide = scene(9 + 2 * needed + 4, 8 + 2 * needed + 4)
    for offset in grid:
        narrow = shifted(kind, center(wide, 2), offset, needed)
        assert torch.equal(narrow, shifted(kind, wide, offset, needed + 2))


@every_kind
@pytest.mark.parametrize(
    ("canvas", "words"),
    [
        (torch.zeros(2, 3, 8), r"floating-point images \(B, C, H, W\)"),
        (torch.zeros(1, 3, 9, 9).byte(), r"floating-point images \(B, C, H, W\)"),
        (torch.zeros(1, 3, 8, 9), "leaves no view in a canvas of 8x9"),
    ],
)
def test_shift_canvas_without_view_raises(kind: str, canvas: Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SHIFTS.get(kind).views(canvas, MARGIN)


@pytest.mark.parametrize(
    ("kind", "grid", "needed", "beyond"),
    [
        ("crop", Grid(3), 3, Offset(0, -3)),
        ("bilinear", Grid(0, SIXTH), 0, Offset(0.5, 0)),
        ("bilinear", Grid(7, SIXTH), 2, Offset(0, -2)),
        ("lanczos", Grid(6, SIXTH), 6, Offset(0.5, 0)),
        ("lanczos", Grid(3), 3, Offset(3, 0)),  # integer offsets read nothing in between
    ],
)
def test_shift_offset_beyond_margin_raises(
    kind: str, grid: Grid, needed: int, beyond: Offset
) -> None:
    assert SHIFTS.get(kind).margin(grid) == needed
    lacking = max(0, needed - 1)
    with pytest.raises(UsageError, match=f"around the view, got {lacking}"):
        shifted(kind, scene(20, 20), beyond, lacking)


# --- cyclic -------------------------------------------------------------------------------------


def dft_shift(image: Tensor, dy: float, dx: float) -> Tensor:
    """Compute the definition bin by bin, with the full complex DFT of each axis."""
    result = image.numpy().astype(complex)
    for axis, offset in ((-2, dy), (-1, dx)):
        n = image.shape[axis]
        factors = np.zeros(n, dtype=complex)
        for k in range(-((n - 1) // 2), (n - 1) // 2 + 1):
            factors[k % n] = np.exp(2j * np.pi * k * offset / n)
        if n % 2 == 0:
            factors[n // 2] = np.cos(np.pi * offset)
        shape = [1] * image.ndim
        shape[axis] = n
        result = np.fft.ifft(np.fft.fft(result, axis=axis) * factors.reshape(shape), axis=axis)
    assert np.abs(result.imag).max() < 1e-12, "real in, real out"
    return torch.from_numpy(result.real.copy())


@given(dy=reals, dx=reals, height=st.sampled_from(SIZES), width=sizes)
@quick
def test_cyclic_equals_its_definition(dy: float, dx: float, height: int, width: int) -> None:
    image = scene(height, width)
    moved = shifted("cyclic", image, Offset(dy, dx), 0)
    torch.testing.assert_close(moved, dft_shift(image, dy, dx), rtol=0, atol=1e-10)


@pytest.mark.parametrize("height", SIZES)
@pytest.mark.parametrize("width", [14, 31])
def test_cyclic_integer_shift_equals_roll(height: int, width: int) -> None:
    image = scene(height, width)
    views = SHIFTS.get("cyclic").views(image, 0)
    for dy, dx in ((1, 0), (-6, 6), (0, -3), (height, -width), (40, -33)):
        expected = image.roll((-dy, -dx), (-2, -1))
        assert torch.equal(views(Offset(dy, dx)), expected)
        by_spectrum = shift_axis(shift_axis(image, dy, -2), dx, -1)
        torch.testing.assert_close(by_spectrum, expected, rtol=0, atol=1e-11)


def without_nyquist(image: Tensor) -> Tensor:
    """Remove the bins that an even size shares between +n/2 and -n/2."""
    for dim in (-2, -1):
        n = image.shape[dim]
        if n % 2 == 0:
            sign = torch.ones(n, dtype=image.dtype)
            sign[1::2] = -1
            sign = sign[:, None] if dim == -2 else sign
            image = image - sign * (sign * image).mean(dim, keepdim=True)
    return image


@given(a=reals, b=reals, c=reals, d=reals, height=sizes, width=sizes)
@quick
def test_cyclic_offsets_add_up_without_nyquist_energy(
    a: float, b: float, c: float, d: float, height: int, width: int
) -> None:
    image = without_nyquist(scene(height, width))
    twice = shifted("cyclic", shifted("cyclic", image, Offset(a, b), 0), Offset(c, d), 0)
    once = shifted("cyclic", image, Offset(a + c, b + d), 0)
    torch.testing.assert_close(twice, once, rtol=0, atol=1e-10)


@given(dy=reals, dx=reals, height=sizes, width=sizes)
@quick
def test_cyclic_equals_fractional_shift_of_aft_models(
    dy: float, dx: float, height: int, width: int
) -> None:
    image = scene(height, width)
    moved = shifted("cyclic", image, Offset(dy, dx), 0)
    torch.testing.assert_close(moved, fractional_shift(image, dy, dx), rtol=0, atol=1e-10)


@pytest.fixture
def transformed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of images of each forward transform."""
    counts: list[int] = []
    rfft = torch.fft.rfft

    def counted(signal: Tensor, *, dim: int) -> Tensor:
        counts.append(len(signal))
        spectrum: Tensor = rfft(signal, dim=dim)
        return spectrum

    monkeypatch.setattr(torch.fft, "rfft", counted)
    return counts


def test_cyclic_stores_few_phases_for_many_fractions(
    transformed: list[int],
) -> None:
    image = scene(9, 10, batch=3)
    views = SHIFTS.get("cyclic").views(image, 0)
    rows = torch.tensor([2, 0])
    for offset in Grid(6, Fraction(1, 6)):
        expected = dft_shift(image[rows], offset.dy, offset.dx)
        torch.testing.assert_close(views(offset, rows), expected, rtol=0, atol=1e-11)
    whole_batches = transformed.count(3)  # of stored phases, one or two axes each
    assert MAX_PHASES <= whole_batches <= 2 * MAX_PHASES


def test_cyclic_half_pixel_grid_transforms_batch_three_times(transformed: list[int]) -> None:
    views = SHIFTS.get("cyclic").views(scene(9, 10), 0)
    for offset in Grid(6):
        views(offset)
    assert transformed == [], "integer shifts need no spectrum"
    for offset in Grid(6, Fraction(1, 2)):
        views(offset)
    assert len(transformed) == 4, "(1/2, 0) and (0, 1/2) take one axis each, (1/2, 1/2) two"


# --- crop ---------------------------------------------------------------------------------------


@given(dy=wholes, dx=wholes, height=sizes, width=sizes)
@quick
def test_crop_equals_slice_without_copy(dy: float, dx: float, height: int, width: int) -> None:
    canvas = scene(height + 2 * MARGIN, width + 2 * MARGIN)
    moved = shifted("crop", canvas, Offset(dy, dx))
    top, left = MARGIN + int(dy), MARGIN + int(dx)
    assert torch.equal(moved, canvas[..., top : top + height, left : left + width])
    assert moved.untyped_storage().data_ptr() == canvas.untyped_storage().data_ptr()


def test_crop_fractional_offset_raises() -> None:
    with pytest.raises(UsageError, match=r"got 1/2 px at scale 1. Use --scale 2"):
        SHIFTS.get("crop").require(Grid(2, Fraction(1, 2)), 1)
    SHIFTS.get("crop").require(Grid(2, Fraction(1, 2)), 2)
    with pytest.raises(UsageError, match=r"needs an integer offset, got \(0.5, 0\)"):
        shifted("crop", scene(12, 12), Offset(0.5, 0))


# --- bilinear -----------------------------------------------------------------------------------


@given(dy=reals, dx=reals, height=sizes, width=sizes)
@quick
def test_bilinear_equals_grid_sample(dy: float, dx: float, height: int, width: int) -> None:
    canvas = scene(height + 2 * MARGIN, width + 2 * MARGIN)
    y = torch.arange(height, dtype=torch.float64) + MARGIN + dy
    x = torch.arange(width, dtype=torch.float64) + MARGIN + dx
    y = 2 * y / (canvas.shape[-2] - 1) - 1  # align_corners: -1 and 1 are centers of pixels
    x = 2 * x / (canvas.shape[-1] - 1) - 1
    where = torch.stack((x.expand(height, width), y[:, None].expand(height, width)), -1)
    expected = F.grid_sample(
        canvas, where.expand(2, -1, -1, -1), mode="bilinear", align_corners=True
    )
    moved = shifted("bilinear", canvas, Offset(dy, dx))
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-10)


# --- lanczos ------------------------------------------------------------------------------------


def lanczos_definition(line: Tensor, place: float) -> Tensor:
    """Weight every pixel of a line (..., n) by the windowed sinc of its distance to `place`."""
    distance = torch.arange(line.shape[-1], dtype=torch.float64) - place
    weights = torch.sinc(distance) * torch.sinc(distance / 6) * (distance.abs() < 6)
    return (line * weights).sum(-1) / weights.sum()


@given(dy=reals, dx=reals)
@quick
def test_lanczos_equals_its_definition(dy: float, dx: float) -> None:
    margin, height, width = 8, 5, 7
    canvas = scene(height + 2 * margin, width + 2 * margin)
    moved = shifted("lanczos", canvas, Offset(dy, dx), margin)
    rows = [lanczos_definition(canvas.mT, margin + y + dy) for y in range(height)]
    lines = torch.stack(rows, -2)  # (B, C, height, columns of the canvas)
    expected = [lanczos_definition(lines, margin + x + dx) for x in range(width)]
    torch.testing.assert_close(moved, torch.stack(expected, -1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("cycles", [0.1, 0.25, 0.4])
def test_lanczos_keeps_detail_that_bilinear_blurs(cycles: float) -> None:
    place = torch.arange(60, dtype=torch.float64)

    def wave(x: Tensor) -> Tensor:
        return torch.cos(2 * torch.pi * cycles * x + 0.3).expand(1, 1, 60, -1)

    def error(kind: str) -> float:
        true = center(wave(place + 0.5), 8)
        return float((shifted(kind, wave(place), Offset(0, 0.5), 8) - true).abs().max())

    assert error("lanczos") < 0.03
    assert error("bilinear") > 0.045
