"""Weights that leave training: a new head for new classes, and an export that reloads the same."""

from pathlib import Path

import pytest
import timm
import torch
from training_runs import DATA, RECIPE, scenes

import aft_models
from aft_models.classifier import load_backbone
from aft_models.errors import AftModelsError
from aft_models.training.checkpoint import Identity
from aft_models.training.data import MemoryBatches
from aft_models.training.export import export
from aft_models.training.loop import train
from aft_models.weights import load_weights, weights_card

NAME = "xcit_pico_6_p8"


def build(classes: int, seed: int = 0) -> torch.nn.Module:
    assert NAME in aft_models.PRESETS
    torch.manual_seed(seed)
    model: torch.nn.Module = timm.create_model(NAME, num_classes=classes, img_size=16)
    return model


def test_fine_tuning_swaps_the_head_and_keeps_the_rest() -> None:
    source, target = build(10), build(12, seed=1)
    head = {k: v.clone() for k, v in target.state_dict().items() if k.startswith("head.")}
    assert load_backbone(target, source.state_dict()) == ["head.bias", "head.weight"]
    for key, value in target.state_dict().items():
        expected = head[key] if key in head else source.state_dict()[key]
        assert torch.equal(value, expected), key


def test_the_same_classes_keep_their_head() -> None:
    source, target = build(10), build(10, seed=1)
    assert load_backbone(target, source.state_dict()) == []
    assert torch.equal(target.state_dict()["head.weight"], source.state_dict()["head.weight"])


def test_weights_of_another_model_are_refused_whole() -> None:
    target = build(10)
    before = {k: v.clone() for k, v in target.state_dict().items()}
    weights = build(10, seed=1).state_dict()
    del weights["cls_token"]
    with pytest.raises(AftModelsError, match=r"1 keys are missing.*cls_token"):
        load_backbone(target, weights)
    assert all(torch.equal(before[k], v) for k, v in target.state_dict().items())


def test_an_export_reloads_with_the_same_logits_and_says_how_it_was_made(tmp_path: Path) -> None:
    identity = Identity(NAME, RECIPE, seed=3, classes=12, data=DATA)
    outcome = train(
        build(12),
        MemoryBatches(scenes(16), RECIPE, seed=3),
        identity=identity,
        folder=tmp_path / "run",
        evaluate=lambda model, epoch: {"accuracy": 0.25},
    )
    folder = export(
        outcome,
        tmp_path / "export",
        identity=identity,
        tag="scenes",
        class_names=[str(i) for i in range(12)],
        images={"accuracy": 16},
    )
    images = torch.randn(4, 3, 16, 16)
    reloaded = load_weights(f"{NAME}.scenes", folder)
    with torch.no_grad():
        assert torch.equal(reloaded(images), outcome.model(images))
    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert len(modes) == 1, "who may read the card may read the weights"
    card = weights_card(f"{NAME}.scenes", folder)
    assert card.scores == {"accuracy": 0.25}
    assert card.images == {"accuracy": 16}
    assert card.recipe["name"] == "tiny"
    assert card.recipe["seed"] == 3
    assert card.crop_pct == 16 / 20
    assert (card.mean, card.std, card.input_size) == (RECIPE.mean, RECIPE.std, 16)
