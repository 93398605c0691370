"""Batches: windows of real pixels, independent of the number of processes."""

import dataclasses

import pytest
import torch
from PIL import Image
from training_runs import RECIPE, SHIFT_CONSISTENCY, scenes

from aft_models.errors import AftModelsError
from aft_models.preprocessing import normalize
from aft_models.training.augment import Windows, resized
from aft_models.training.data import (
    LoaderBatches,
    MemoryBatches,
    PixelBatches,
    PixelSet,
    training_transform,
)
from aft_models.training.device import Processes
from aft_models.training.recipe import Recipe


def test_windows_cut_slices_and_flipped_slices() -> None:
    images = torch.arange(2 * 3 * 6 * 6).reshape(2, 3, 6, 6)
    windows = Windows(torch.tensor([0, 2]), torch.tensor([1, 0]), torch.tensor([False, True]), 4)
    cut = windows.cut(images)
    assert torch.equal(cut[0], images[0, :, 0:4, 1:5])
    assert torch.equal(cut[1], images[1, :, 2:6, 0:4].flip(2))


def test_windows_are_drawn_from_all_positions_of_the_canvas() -> None:
    generator = torch.Generator().manual_seed(0)
    windows = Windows.draw(500, 10, 8, flip=0.5, generator=generator)
    assert windows.top.unique().tolist() == windows.left.unique().tolist() == [0, 1, 2]
    assert 0.4 < windows.mirrored.double().mean() < 0.6
    still = Windows.draw(20, 8, 8, flip=0.0, generator=generator)
    images = torch.rand(20, 3, 8, 8)
    assert torch.equal(still.cut(images), images)


def test_centered_windows_equal_the_benchmark_view() -> None:
    images = torch.arange(37 * 37).reshape(1, 1, 37, 37)
    view = Windows.centered(1, 37, 32).cut(images)
    assert torch.equal(view, images[..., 2:34, 2:34])


def test_resized_same_size_is_identity_and_constants_are_kept() -> None:
    images = torch.rand(2, 3, 8, 8)
    assert resized(images, 8) is images
    torch.testing.assert_close(resized(torch.ones(1, 3, 8, 8), 5), torch.ones(1, 3, 5, 5))


@pytest.mark.parametrize("usual", [RECIPE, SHIFT_CONSISTENCY], ids=["one view", "two views"])
@pytest.mark.parametrize(("count", "accumulate"), [(1, 4), (2, 1), (2, 2)])
def test_batches_of_all_processes_form_the_update(
    count: int, accumulate: int, usual: Recipe
) -> None:
    data = scenes(32)
    whole = list(MemoryBatches(data, usual).epoch(1))
    recipe = dataclasses.replace(usual, accumulate=accumulate)
    shares = [
        list(MemoryBatches(data, recipe, processes=Processes(rank, count)).epoch(1))
        for rank in range(count)
    ]
    steps = [shares[rank][step] for step in range(accumulate) for rank in range(count)]
    assert torch.equal(torch.cat([images for images, _ in steps], dim=-4), whole[0][0])
    assert torch.equal(torch.cat([labels for _, labels in steps]), whole[0][1])


def test_epoch_is_reproducible_and_differs_from_the_next() -> None:
    batches = MemoryBatches(scenes(32), RECIPE)
    first, again, second = (next(batches.epoch(epoch))[0] for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_windows_are_not_zoomed_in_final_epochs() -> None:
    recipe = dataclasses.replace(
        RECIPE, epochs=4, zoom=(0.5, 1.25), sizes=(8,), settle=0.5, flip=0.0, batch_size=1
    )
    data = scenes(16)
    batches = MemoryBatches(data, recipe)
    assert {recipe.windows_at(epoch) for epoch in (0, 1)} == {(8, 20)}
    assert {images.shape[-1] for images, _ in batches.epoch(1)} == {8}
    canvases = normalize(data.images, recipe.mean, recipe.std)  # (16, 3, 20, 20)
    slices = canvases.unfold(2, 16, 1).unfold(3, 16, 1)  # (16, 3, 5, 5, 16, 16)
    for images, _ in batches.epoch(2):  # pixels of the set, not resized
        same = (slices == images[:, :, None, None]).all(5).all(4).all(1)
        assert same.any()


def test_batches_invalid_batch_size_raises() -> None:
    with pytest.raises(AftModelsError, match="8 training images do not fill one batch of 16"):
        MemoryBatches(scenes(8), RECIPE)
    with pytest.raises(AftModelsError, match="16 does not divide into 3 processes"):
        MemoryBatches(scenes(32), RECIPE, processes=Processes(0, 3))


class Pictures:
    """Images of one color each, with their brightness as label."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (20, 30), (10 * index,) * 3), index


def test_pixel_set_resizes_shorter_side_and_crops_center() -> None:
    pixels = PixelSet.load(Pictures(), 10)
    assert pixels.images.shape == (24, 3, 10, 10)
    assert torch.equal(pixels.images[:, 0, 0, 0], 10 * pixels.labels.to(torch.uint8))


def test_loader_batches_repeat_augmentation_and_are_reproducible() -> None:
    recipe = dataclasses.replace(
        RECIPE,
        pipeline="loader",
        batch_size=12,
        rand_augment="rand-m9-mstd0.5-inc1",
        random_erasing=0.25,
        repeated_augmentation=3,
    )
    batches = LoaderBatches(Pictures(), recipe, seed=5)
    epoch = list(batches.epoch(0))
    assert [images.shape for images, _ in epoch] == [(12, 3, 16, 16)] * 2
    labels = torch.cat([labels for _, labels in epoch])
    assert labels.unique(return_counts=True)[1].tolist() == [3] * 8
    again = torch.cat([labels for _, labels in batches.epoch(0)])
    assert torch.equal(labels, again)
    other = LoaderBatches(Pictures(), recipe, seed=6)
    assert not torch.equal(torch.cat([labels for _, labels in other.epoch(0)]), labels)


@pytest.mark.parametrize("rand_augment", ["rand-m10-inc1", "rand-m0"])
def test_posterize_keeps_at_least_one_bit(rand_augment: str) -> None:
    recipe = dataclasses.replace(RECIPE, rand_augment=rand_augment)
    transform = training_transform(recipe)
    operations = [op for step in transform.transforms for op in getattr(step, "ops", ())]
    (operation,) = (op for op in operations if op.name.startswith("Posterize"))
    operation.prob = 1.0
    shades = operation(Image.linear_gradient("L"))
    assert sorted(count for count, _ in shades.getcolors()) == [128 * 256, 128 * 256]


def test_evaluation_batches_contain_every_image_once() -> None:
    data = PixelSet.load(Pictures(), 16)
    shares = [PixelBatches(data, RECIPE, 5, Processes(rank, 3)) for rank in range(3)]
    seen = torch.cat([labels for share in shares for _, labels in share])
    assert sorted(seen.tolist()) == list(range(24))
