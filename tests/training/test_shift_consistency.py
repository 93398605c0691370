"""Recipe `shift-consistency`: a loss for the difference between two windows of an image."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_runs import SHIFT_CONSISTENCY, TinyNet, run, scenes

from aft_models.training.augment import Windows
from aft_models.training.data import LoaderBatches, MemoryBatches
from aft_models.training.recipe import Recipe
from aft_models.training.shift_consistency import shift_consistency_loss
from shiftbench.data import Scenes


def test_shift_consistency_loss_equals_slow_reference() -> None:
    torch.manual_seed(1)
    model = TinyNet(batch_norm=False).double()
    views = torch.randn(2, 4, 3, 16, 16).double()
    labels = torch.tensor([0, 3, 5, 11])
    expected, expected_term = _slow_loss(SHIFT_CONSISTENCY, model, views, labels)
    slow = torch.autograd.grad(expected, list(model.parameters()))
    loss, term = shift_consistency_loss(SHIFT_CONSISTENCY, model, views, labels)
    fast = torch.autograd.grad(loss, list(model.parameters()))
    assert float(term.detach()) == pytest.approx(expected_term, rel=1e-10)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def _slow_loss(
    recipe: Recipe, model: nn.Module, views: Tensor, labels: Tensor
) -> tuple[Tensor, float]:
    """Compute the loss one image and one class at a time."""
    losses, terms = [], []
    for image, label in enumerate(labels.tolist()):
        p, q = (_probabilities(model, view) for view in views[:, image])
        term = (_kl(p, q) + _kl(q, p)) / 2
        smooth = torch.full((12,), recipe.label_smoothing / 12, dtype=torch.float64)
        smooth[label] += 1 - recipe.label_smoothing
        losses.append(recipe.consistency * term - (smooth * (p.log() + q.log()) / 2).sum())
        terms.append(float(term.detach()))
    return torch.stack(losses).mean(), sum(terms) / len(terms)


def _probabilities(model: nn.Module, view: Tensor) -> Tensor:
    logits: Tensor = model(view[None])[0]
    return logits.softmax(0)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return torch.stack([p[c] * (p[c] / q[c]).log() for c in range(len(p))]).sum()


def test_shifted_windows_stay_within_max_shift_and_canvas() -> None:
    generator = torch.Generator().manual_seed(0)
    first = Windows.draw(2000, 24, 16, flip=0.5, generator=generator)
    second = first.shifted(3, 24, generator)
    moves = torch.cat([second.top - first.top, second.left - first.left])
    assert moves.unique().tolist() == list(range(-3, 4))
    assert 0 <= int(second.top.min()) <= int(second.top.max()) <= 8
    assert torch.equal(first.mirrored, second.mirrored)
    grid = first.around_center(3, 3, 24)
    places = [(int(w.top[0]), int(w.left[0])) for w in grid]
    assert places == [(y, x) for y in (1, 4, 7) for x in (1, 4, 7)]


def test_both_pipelines_cut_two_windows_of_the_same_image() -> None:
    recipe = dataclasses.replace(SHIFT_CONSISTENCY, flip=0.0, batch_size=8)
    pixels = scenes(16)
    loader = dataclasses.replace(recipe, pipeline="loader")
    for batches in (MemoryBatches(pixels, recipe), LoaderBatches(Scenes("train", 16), loader)):
        images, _ = next(batches.epoch(0))
        assert images.shape == (2, 8, 3, 16, 16)
    same = dataclasses.replace(recipe, batch_size=16)
    images, labels = next(MemoryBatches(pixels, same).epoch(0))
    canvases = (pixels.images.float() / 255 - 0.5) / 0.2
    slices = canvases.unfold(2, 16, 1).unfold(3, 16, 1)  # (16, 3, 5, 5, 16, 16)
    for row in range(16):
        origins = []
        for view in images[:, row]:
            distances = (slices - view[None, :, None, None]).abs().amax((1, 4, 5))  # (16, 5, 5)
            origins.append(int(distances.flatten(1).amin(1).argmin()))
        assert origins[0] == origins[1]
        assert int(pixels.labels[origins[0]]) == int(labels[row])


def test_consistency_term_decreases_with_its_weight(tmp_path: Path) -> None:
    def term_after(consistency: float) -> float:
        recipe = dataclasses.replace(
            SHIFT_CONSISTENCY, consistency=consistency, epochs=25, lr=1e-2, ema_decay=0.0
        )
        return run(tmp_path / str(consistency), recipe).rows[-1]["consistency_loss"]

    assert term_after(30.0) < term_after(0.0)
