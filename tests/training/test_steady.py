"""Recipe `steady`: two windows of each photograph, and a term that holds their answers together."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_runs import OPTIONS, STEADY, TinyNet, run, scenes

from aft_models.training.augment import Windows
from aft_models.training.data import LoaderBatches, MemoryBatches
from aft_models.training.recipe import Recipe
from aft_models.training.steady import SteadyLoss
from shiftbench.data import Scenes


@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_gradient_equal_a_slow_reference(name: str) -> None:
    recipe = OPTIONS[name]
    torch.manual_seed(1)
    model = TinyNet(batch_norm=False).double()
    teacher = TinyNet(batch_norm=False).double().eval() if recipe.teacher else None
    views = torch.randn(1 + recipe.worst_of + recipe.teacher**2, 4, 3, 16, 16).double()
    labels = torch.tensor([0, 3, 5, 11])
    expected, expected_term = _slow_loss(recipe, model, teacher, views, labels)
    slow = torch.autograd.grad(expected, list(model.parameters()))
    loss, term = SteadyLoss(recipe, model, teacher)(model, views, labels)
    fast = torch.autograd.grad(loss, list(model.parameters()))
    assert float(term.detach()) == pytest.approx(expected_term, rel=1e-10)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def _slow_loss(
    recipe: Recipe, model: nn.Module, teacher: nn.Module | None, views: Tensor, labels: Tensor
) -> tuple[Tensor, float]:
    """One photograph and one class at a time."""
    losses, terms = [], []
    for image, label in enumerate(labels.tolist()):
        first, *candidates = views[: 1 + recipe.worst_of, image]
        answers = [_probabilities(model, view) for view in candidates]
        badness = [-q[label].log() for q in answers]
        target = None
        if teacher is not None:
            taught = [_probabilities(teacher, v) for v in views[1 + recipe.worst_of :, image]]
            target = (sum(taught) / len(taught)).detach()
            if recipe.unlabeled:
                badness = [_kl(target, q) for q in answers]
        p, q = _probabilities(model, first), answers[int(torch.stack(badness).argmax())]
        if target is None:
            term = (_kl(p, q) + _kl(q, p)) / 2
        else:
            term = (_kl(target, p) + _kl(target, q)) / 2
        loss = recipe.consistency * term
        if not recipe.unlabeled:
            smooth = torch.full((12,), recipe.label_smoothing / 12, dtype=torch.float64)
            smooth[label] += 1 - recipe.label_smoothing
            loss = loss - (smooth * (p.log() + q.log()) / 2).sum()
        losses.append(loss)
        terms.append(float(term.detach()))
    return torch.stack(losses).mean(), sum(terms) / len(terms)


def _probabilities(model: nn.Module, view: Tensor) -> Tensor:
    logits: Tensor = model(view[None])[0]
    return logits.softmax(0)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return torch.stack([p[c] * (p[c] / q[c]).log() for c in range(len(p))]).sum()


def test_the_second_window_lies_within_reach_and_on_the_canvas() -> None:
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


def test_both_pipelines_show_windows_of_the_same_photograph() -> None:
    recipe = dataclasses.replace(STEADY, teacher=2, worst_of=2, flip=0.0, batch_size=8)
    pixels = scenes(16)
    loader = dataclasses.replace(recipe, pipeline="loader")
    for batches in (MemoryBatches(pixels, recipe), LoaderBatches(Scenes("train", 16), loader)):
        images, _ = next(batches.epoch(0))
        assert images.shape == (1 + 2 + 4, 8, 3, 16, 16)
    same = dataclasses.replace(recipe, batch_size=16, worst_of=1, teacher=0)
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


def test_the_term_brings_predictions_together(tmp_path: Path) -> None:
    def term_after(consistency: float) -> float:
        recipe = dataclasses.replace(
            STEADY, consistency=consistency, epochs=25, lr=1e-2, ema_decay=0.0
        )
        return run(tmp_path / str(consistency), recipe).rows[-1]["consistency_loss"]

    assert term_after(30.0) < term_after(0.0)
