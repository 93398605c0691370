"""Data set `scenes`: deterministic, balanced, and rendered from any camera position."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from shiftbench.data import RenderedSet, Scenes
from shiftbench.data.scenes import SPLITS
from shiftbench.errors import UsageError
from shiftbench.grid import ORIGIN, Grid, Offset
from shiftbench.scenes import sensor
from shiftbench.scenes.sensor import split_offset
from shiftbench.scenes.world import CLASS_NAMES, Draws, draw_world, wave

SOME = list(range(12))  # one of each class


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes()


def test_scenes_is_an_image_set_with_a_camera(scenes: Scenes) -> None:
    assert isinstance(scenes, RenderedSet)
    assert len(scenes) == len(scenes.keys) == len(scenes.labels) == SPLITS["test"]
    image, label = scenes[5]
    assert (image.mode, image.size, label) == ("RGB", (64, 64), scenes.labels[5])
    assert np.array_equal(np.asarray(image), scenes.render([5], 64)[0].permute(1, 2, 0).numpy())
    with pytest.raises(IndexError):
        scenes[len(scenes)]
    counts = np.bincount(scenes.labels, minlength=len(CLASS_NAMES))
    assert len(set(CLASS_NAMES)) >= 10
    assert counts.max() - counts.min() <= 1


def test_scenes_image_independent_of_batch(scenes: Scenes) -> None:
    together = scenes.render(SOME, 64)
    alone = torch.cat([scenes.render([index], 64) for index in SOME])
    shuffled = scenes.render(SOME[::-1], 64).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, shuffled)


def test_scenes_splits_and_seeds_never_overlap() -> None:
    identities: set[bytes] = set()
    count = 0
    for split, size in SPLITS.items():
        for seed in (0, 1):
            first = Draws(seed, split, range(size)).uniform(0, 1, 2)
            identities |= {row.tobytes() for row in first}
            count += size
    assert len(identities) == count


def test_scenes_longer_split_begins_with_the_shorter_one() -> None:
    short, long = Scenes("val", 10), Scenes("val", 20)
    assert long.keys[:10] == short.keys
    assert torch.equal(long.render([9], 32), short.render([9], 32))
    assert long.digest(9) == short.digest(9)
    assert short.digest(9) != short.digest(8)
    assert short.digest(9) != Scenes("val", 10, seed=1).digest(9)


@pytest.mark.parametrize(("dy", "dx"), [(0, 0), (1, 0), (0, -1), (-6, 6), (5, -3)])
@pytest.mark.parametrize("view", [64, 33])
def test_scenes_integer_offsets_equal_crops(scenes: Scenes, dy: int, dx: int, view: int) -> None:
    canvas = scenes.render(SOME, view, margin=6)
    crop = canvas[:, :, 6 + dy : 6 + dy + view, 6 + dx : 6 + dx + view]
    assert torch.equal(scenes.render(SOME, view, offset=Offset(dy, dx)), crop)


@pytest.mark.parametrize("phase", [1 / 6, -1 / 3, 0.5, 0.123])
def test_scenes_integer_offsets_from_sub_pixel_position_equal_crops(
    scenes: Scenes, phase: float
) -> None:
    canvas = scenes.render(SOME, 64, margin=2, offset=Offset(phase, phase))
    moved = scenes.render(SOME, 64, offset=Offset(phase - 2, phase + 1))
    assert torch.equal(moved, canvas[:, :, 0:64, 3:67])


def test_scenes_views_equal_render_at_every_offset(scenes: Scenes) -> None:
    rows = torch.tensor([2, 0])
    views = scenes.views([3, 7, 11], 32)
    for offset in list(Grid(6, Fraction(1, 6)))[::7]:
        expected = scenes.render([11, 3], 32, offset=offset)
        assert torch.equal(views(offset, rows), expected)
    assert torch.equal(views(Offset(0.5, 0)), scenes.render([3, 7, 11], 32, offset=Offset(0.5, 0)))
    far = Offset(-7.25, 3)  # beyond the prepared offsets
    assert torch.equal(views(far), scenes.render([3, 7, 11], 32, offset=far))


def test_split_offset_phases_are_exact() -> None:
    phases = {split_offset(offset.dy)[1] for offset in Grid(12, Fraction(1, 6))}
    assert phases == {i / 6 for i in range(6)}
    assert split_offset(-1 / 6) == (-1, 5 / 6)
    assert split_offset(-2.0) == (-2, 0.0)


@pytest.mark.parametrize("offset", [ORIGIN, Offset(0.5, -0.25)])
def test_sensor_pixel_equals_mean_over_its_area(offset: Offset, scenes: Scenes) -> None:
    """A pixel is the mean of the finer pixels that tile it, up to quadrature and rounding."""
    coarse = scenes.render(SOME, 64, offset=offset).float()
    finer = scenes.render(SOME, 256, offset=Offset(4 * offset.dy, 4 * offset.dx))
    fine = torch.nn.functional.avg_pool2d(finer.float(), 4)
    error = (coarse - fine).abs()
    assert error.mean() < 0.6  # gray levels (0 to 255)
    assert error.max() < 30  # where an outline crosses a pixel


def test_wave_approximates_a_cosine() -> None:
    t = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    assert (wave(t.clone()) - torch.cos(2 * torch.pi * t)).abs().max() < 0.021


def test_scenes_contrast_exceeds_nyquist_limit_of_stride_two() -> None:
    pixels = Scenes("train").render(range(48), 64).float()
    spectrum = torch.fft.fft2(pixels.mean(1)).abs().square().mean(0)
    frequency = torch.fft.fftfreq(64).abs()
    folded = torch.maximum(frequency[:, None], frequency[None, :]) > 0.25
    assert spectrum[folded].sum() > 0.05 * (spectrum.sum() - spectrum[0, 0])


@pytest.mark.parametrize("outline", ["disc", "square", "star"])
def test_scenes_weaves_of_one_outline_differ_in_fine_structure_only(outline: str) -> None:
    """The same object in two weaves: different pixels, but the same outline and mean color."""
    world = draw_world(0, "test", [3, 3])
    world.label[:] = [CLASS_NAMES.index(f"{weave} {outline}") for weave in ("striped", "checked")]
    striped, checked = sensor.render(world, 64, 0, ORIGIN).float()
    assert (striped - checked).abs().mean() > 1
    assert (striped - checked).mean().abs() < 0.1


def test_scenes_invalid_request_raises() -> None:
    with pytest.raises(UsageError, match="Did you mean 'test'"):
        Scenes("tets")
    with pytest.raises(UsageError, match="at least 1 image"):
        Scenes(size=0)
