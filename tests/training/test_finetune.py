"""The recipe `finetune`: any model, from any weights, to an export that reloads."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from training_runs import DATA, RECIPE, TinyNet, run, scenes

from aft_models import AftModelsError
from aft_models.cards import list_weights, weights_card
from aft_models.checkpoint import load_backbone, load_weights
from aft_models.classifier import replace_classifier
from aft_models.preprocessing import Preprocessing, normalize
from aft_models.training.augment import Windows
from aft_models.training.checkpoint import Identity
from aft_models.training.data import (
    Batches,
    LoaderBatches,
    MemoryBatches,
    PixelSet,
    evaluation_transform,
)
from aft_models.training.export import export
from aft_models.training.loop import Outcome, train
from aft_models.training.recipe import override
from aft_models.training.recipes import get_recipe
from shiftbench.data import Scenes
from shiftbench.geometry import geometry_for

SMALL = "mobilenetv3_small_050"


def pretrained(classes: int = 20) -> nn.Module:
    """Return a network with random weights in place of trained ones."""
    torch.manual_seed(1)
    model: nn.Module = timm.create_model(SMALL, num_classes=classes)
    return model


def test_recipe_for_input_completes_preprocessing_of_the_model() -> None:
    model = pretrained()
    model.default_cfg.update(input_size=(3, 96, 96), mean=(0.1, 0.2, 0.3), interpolation="bilinear")
    own = Preprocessing.of(model)
    recipe = get_recipe("finetune").for_input(own)
    assert (recipe.image_size, recipe.mean) == (96, (0.1, 0.2, 0.3))
    assert recipe.interpolation == "bilinear"
    said = override(get_recipe("finetune"), ["image_size=64", "mean=0.5,0.5,0.5"]).for_input(own)
    assert (said.image_size, said.mean, said.std) == (64, (0.5, 0.5, 0.5), own.std)
    assert get_recipe("cpu-cifar10").for_input(own) == get_recipe("cpu-cifar10")
    assert Preprocessing.of(nn.Linear(1, 1)) == Preprocessing(224)


def test_recipe_without_preprocessing_raises() -> None:
    with pytest.raises(
        AftModelsError, match=r"finetune has no preprocessing of its own: complete it"
    ):
        LoaderBatches(Scenes("train", 96), get_recipe("finetune"))


def finetune(folder: Path, name: str, model: nn.Module, *, seed: int = 0) -> tuple[Outcome, Path]:
    """Train for two epochs on a few scenes, and export."""
    recipe = override(get_recipe("finetune"), ["image_size=32", "epochs=2", "batch_size=12"])
    recipe = recipe.for_input(Preprocessing.of(model))
    identity = Identity(name, recipe, seed, 12, data=DATA)
    batches = LoaderBatches(Scenes("train", 24), recipe, seed=seed)
    scores = {"accuracy": 0.25}
    place = folder / "run"
    outcome = train(model, batches, identity=identity, folder=place, evaluate=lambda *_: scores)
    known = {"class_names": [str(i) for i in range(12)], "images": {"accuracy": 16}}
    return outcome, export(outcome, folder / "export", identity=identity, tag="birds", **known)


@pytest.mark.parametrize("name", [f"timm:{SMALL}+af", "nets/my.py:build,width=2+circular+aps"])
def test_finetuned_model_is_exported_and_reloaded(tmp_path: Path, name: str) -> None:
    weights = pretrained().state_dict()
    model = timm.create_model(SMALL, num_classes=1000)
    assert replace_classifier(model, 12, size=32)
    assert load_backbone(model, weights) == ["classifier.bias", "classifier.weight"]
    outcome, folder = finetune(tmp_path, name, model, seed=3)

    (stem,) = list_weights(folder)
    assert {path.name for path in folder.iterdir()} == {f"{stem}.json", f"{stem}.safetensors"}
    assert not set(stem) & set(":/\\,<>|?* ")
    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert len(modes) == 1, "who may read the card may read the weights"
    card = weights_card(stem, folder)
    assert (card.scores, card.images) == ({"accuracy": 0.25}, {"accuracy": 16})
    assert (card.recipe["name"], card.recipe["seed"]) == ("finetune", 3)
    assert card.crop_pct == 32 / 37
    assert (card.architecture, card.tag) == (name, "birds")
    assert weights_card(card.name, folder) == card
    assert (card.input_size, card.num_classes) == (32, 12)

    again = load_weights(card.name, folder, model=timm.create_model(SMALL, num_classes=1000))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(images), outcome.model(images))
    with pytest.raises(AftModelsError, match=r"timm does not contain it\. Build the model"):
        load_weights(card.name, folder)
    with pytest.raises(AftModelsError, match="does not fit the model"):
        load_weights(card.name, folder, model=TinyNet())


def test_finetune_norm_momentum_follows_the_new_statistics(tmp_path: Path) -> None:
    """A slow average would still be that of the weights before the remedy."""
    recipe = override(get_recipe("finetune"), ["image_size=16", "epochs=10", "lr=1e-9"])
    recipe = override(recipe, ["batch_size=24", "pipeline=memory", "canvas=20"])

    def distance(momentum: str) -> float:
        model = TinyNet()
        model.norm = nn.BatchNorm2d(16, momentum=0.01)
        model.norm.running_mean += 10  # of another network
        changed = override(recipe, [f"norm_momentum={momentum}"]).for_input(Preprocessing(224))
        run(tmp_path / momentum, changed, model=model)
        images = normalize(
            Windows.centered(48, 20, 16).cut(scenes().images), changed.mean, changed.std
        )
        true = model.stem(images).mean((0, 2, 3)).detach()
        return float((model.norm.running_mean - true).abs().mean())

    assert distance("0.1") < 1.5
    assert distance("0") > 7  # the momentum of the model


@pytest.mark.parametrize("pipeline", ["loader", "memory"])
def test_recalibrate_statistics_equal_mean_over_batches(tmp_path: Path, pipeline: str) -> None:
    """A slow reference: the mean and variance of every batch, averaged, without dropout."""
    changes = ["image_size=16", "batch_size=12", f"pipeline={pipeline}", "canvas=20"]
    recipe = override(get_recipe("recalibrate"), changes).for_input(Preprocessing(16))
    torch.manual_seed(0)
    model = Dropping()
    model.norm.running_mean += 10  # of the network before a remedy
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = Scenes("train", 24)
    batches: Batches = (
        LoaderBatches(data, recipe)
        if pipeline == "loader"
        else MemoryBatches(PixelSet.load(data, 20, recipe.interpolation), recipe)
    )
    run(tmp_path, recipe, model=model, batches=batches)
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert changed == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}

    views = torch.stack([evaluation_transform(recipe)(image) for image, _ in data])
    shown = [images for images, _ in batches.epoch(0)]
    assert len(shown) == 2
    if pipeline == "loader":  # each image once, in the benchmark's view
        assert sorted(views.flatten(1).sum(1).tolist()) == pytest.approx(
            sorted(torch.cat(shown).flatten(1).sum(1).tolist())
        )
    maps = [model.stem(images).detach() for images in shown]
    means = torch.stack([part.mean((0, 2, 3)) for part in maps]).mean(0)
    variances = torch.stack([part.var((0, 2, 3)) for part in maps]).mean(0)
    torch.testing.assert_close(model.norm.running_mean, means)
    torch.testing.assert_close(model.norm.running_var, variances)


@pytest.mark.parametrize(("size", "resize"), [(96, 110), (224, 256), (32, 37), (113, 129)])
def test_evaluation_transform_equals_benchmark_view(size: int, resize: int) -> None:
    """Every model's view is cut from an image of round(S * 256 / 224) pixels."""
    recipe = get_recipe("finetune").for_input(Preprocessing(size))
    geometry = geometry_for(Preprocessing(size))
    assert recipe.resize == geometry.resize == resize
    image = Image.linear_gradient("L").resize((300, 280)).convert("RGB")
    seen = evaluation_transform(recipe)(image)
    expected = normalize(geometry.canvas(image)[None], recipe.mean, recipe.std)[0]
    torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("xcit_pico_6_p4_af", "xcit_pico_6_p4_af"),
        ("xcit_pico_6_p4_af.cifar10", "xcit_pico_6_p4_af"),
        ("xcit_pico_6_p4.cifar10+circular+aps", "xcit_pico_6_p4+circular+aps"),
        ("timm:vit_tiny_patch16_224.augreg_in1k+af", "timm:vit_tiny_patch16_224.augreg_in1k+af"),
        ("nets/my.py:build", "nets/my.py:build"),
    ],
)
def test_identity_architecture_strips_tags_of_presets_only(name: str, architecture: str) -> None:
    assert Identity(name, RECIPE, 0, 12, data=DATA).architecture == architecture


class Dropping(TinyNet):
    """Network with dropout before the batch norm, which would change the statistics."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        features = self.norm(self.drop(self.stem(images)))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


class Shared(TinyNet):
    """Network with two names of one layer, like networks with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.stem


class Twofold(TinyNet):
    """Network that returns two tensors in training."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, twice in training."""
        logits = super().forward(images)
        return (logits, logits) if self.training else logits  # type: ignore[return-value]


def test_export_keeps_shared_layers(tmp_path: Path) -> None:
    outcome = Outcome(Shared().eval(), [{"epoch": 1, "loss": 1.0}], None)
    identity = Identity("mine", RECIPE, 0, 12, data=DATA)
    folder = export(outcome, tmp_path, identity=identity, tag="x")
    again = load_weights("mine.x", folder, model=Shared())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(again(images), outcome.model(images))


def test_train_model_with_auxiliary_outputs_raises(tmp_path: Path) -> None:
    with pytest.raises(AftModelsError, match="expected logits from the model, got tuple"):
        run(tmp_path, model=Twofold())
