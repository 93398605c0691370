"""Properties of positions: a rearrangement moves them, and a shape alone never makes a map."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shiftbench.auditing.lattice import CYCLIC, Layout
from shiftbench.auditing.tracer import Tracer
from shiftbench.grid import Offset

BATCH, CHANNELS, SIZE = 2, 3, 8
OFFSETS = (Offset(1, 0), Offset(-2, 3), Offset(0.5, 0.25))


def images(width: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, CHANNELS, SIZE, width, generator=generator, dtype=torch.float64)


def shifted(x: Tensor, offset: Offset) -> Tensor:
    return CYCLIC.views(x, 0)(offset)


@torch.inference_mode()
def follow(function: Callable[[Tensor], Tensor], width: int = SIZE) -> tuple[Tensor, Layout | None]:
    x = images(width)
    tracer = Tracer(x)
    with tracer:
        y = function(x)
    return y, Layout.of(tracer.get(y), BATCH, (SIZE, width))


def with_class_token(x: Tensor) -> Tensor:
    return torch.cat([x.new_ones(len(x), 1, x.shape[1]), x.flatten(2).mT], 1)


def windows(x: Tensor) -> Tensor:
    x = x.roll((2, 1), (2, 3)).unfold(2, 4, 4).unfold(3, 4, 4)  # (B, C, 2, 2, 4, 4)
    return x.permute(0, 2, 3, 4, 5, 1).reshape(-1, 16, CHANNELS)


def space_to_depth(x: Tensor) -> Tensor:
    rows = [x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    return torch.cat(rows, 1)


REARRANGEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "map": lambda x: x.clone(),
    "channels last": lambda x: x.permute(0, 2, 3, 1),
    "tokens": lambda x: x.flatten(2).mT.contiguous(),
    "tokens first": lambda x: x.flatten(2).permute(2, 0, 1),
    "class token": with_class_token,
    "shifted windows": windows,
    "heads": lambda x: x.flatten(2).mT.reshape(BATCH, -1, CHANNELS, 1).permute(0, 2, 1, 3),
    "space to depth": space_to_depth,
    "pixel unshuffle": lambda x: nn.functional.pixel_unshuffle(x, 2),
    "flat": lambda x: x.flatten(1),
    "padded": lambda x: nn.functional.pad(x, (1, 0, 2, 1)),
    "stacked": lambda x: torch.stack([x, 2 * x], 1),
    "doubled channels": lambda x: torch.cat([x, -x], 1),
}


@pytest.mark.parametrize("name", REARRANGEMENTS)
@pytest.mark.parametrize("width", [SIZE, 12])
def test_tracer_rearranged_image_shifts_like_the_image(name: str, width: int) -> None:
    rearrange = REARRANGEMENTS[name]
    y, layout = follow(rearrange, width)
    assert layout is not None
    assert layout.size == (SIZE, width)
    for offset in OFFSETS:
        moved = rearrange(shifted(images(width), offset))
        torch.testing.assert_close(layout.shift(y, offset), moved)


def test_tracer_strided_slice_is_on_a_coarser_grid() -> None:
    y, layout = follow(lambda x: x[:, :, 1::2, ::2])
    assert layout is not None
    assert layout.size == (4, 4)
    torch.testing.assert_close(layout.shift(y, Offset(2, -4)), y.roll((-1, 2), (2, 3)))


def test_tracer_sum_over_a_cell_keeps_the_cell() -> None:
    weight = torch.randn(4 * CHANNELS, 5, dtype=torch.float64)
    y, layout = follow(lambda x: space_to_depth(x).permute(0, 2, 3, 1) @ weight)
    assert layout is not None
    assert layout.size == (4, 4)
    torch.testing.assert_close(layout.shift(y, Offset(2, 0)), y.roll(-1, 1))


def covariance(x: Tensor) -> Tensor:
    tokens = torch.cat([x, x, x.flip(1)[:, :2]], 1).flatten(2)  # (B, 8, N)
    return (tokens @ tokens.mT)[:, None].expand(-1, 3, -1, -1)  # (B, 3, 8, 8): an image's shape


@pytest.mark.parametrize(
    "function", [covariance, lambda x: x.mean((2, 3)), lambda x: x.flatten(2).mT.mean(1)]
)
def test_tracer_sum_over_the_image_has_no_position(function: Callable[[Tensor], Tensor]) -> None:
    _, layout = follow(function)
    assert layout is not None
    assert layout.lattices == ()


def test_tracer_token_mixing_has_no_position() -> None:
    weight = torch.randn(SIZE**2, SIZE**2, dtype=torch.float64)
    _, layout = follow(lambda x: x.flatten(2) @ weight)  # as large as the tokens, and none of them
    assert layout is not None
    assert layout.lattices == ()


def attention_matrix(x: Tensor) -> Tensor:
    tokens = x.flatten(2).mT
    return (tokens @ tokens.mT).softmax(-1)


def test_tracer_attention_matrix_shifts_along_rows_and_columns() -> None:
    y, layout = follow(attention_matrix)
    assert layout is not None
    assert len(layout.lattices) == 2
    offset = Offset(1, -3)
    expected = attention_matrix(shifted(images(), offset))
    torch.testing.assert_close(layout.shift(y, offset), expected)


def test_tracer_attended_tokens_keep_their_positions() -> None:
    def attend(x: Tensor) -> Tensor:
        return attention_matrix(x) @ x.flatten(2).mT

    y, layout = follow(attend)
    assert layout is not None
    assert layout.size == (SIZE, SIZE)
    torch.testing.assert_close(
        layout.shift(y, Offset(2, 1)), attend(shifted(images(), Offset(2, 1)))
    )


def test_tracer_unknown_operator_has_unknown_position() -> None:
    assert follow(lambda x: torch.fft.rfft2(x).abs())[1] is None
    assert follow(lambda x: x.flatten(2)[:, :, :20])[1] is None  # a fraction of every image
    # Added to a map, it has the positions of the map.
    _, layout = follow(lambda x: x + torch.fft.irfft2(torch.fft.rfft2(x)))
    assert layout is not None
    assert layout.size == (SIZE, SIZE)
