"""Recipes: contents of the registry, and valid overrides."""

import re

import pytest
import torch

from aft_models import PRESETS, create_xcit
from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing
from aft_models.training.loop import make_optimizer, make_scheduler
from aft_models.training.recipe import Recipe, override
from aft_models.training.recipes import RECIPES, get_recipe

VARIANTS_AT_512 = {"aps", "aps_avgpool", "af", "aftext", "af_avgpool", "af_poly", "af_polyblocks"}


@pytest.mark.parametrize("recipe", [RECIPES["xcit-imagenet"], RECIPES["xcit-small-sets"]])
@pytest.mark.parametrize("name", PRESETS)
def test_paper_recipes_adjust_to_the_architecture(name: str, recipe: Recipe) -> None:
    """The appendix: 5e-4 at 512 for AF and APS, 1e-3 at 1024 else; 1e-5 at the end for all."""
    variant = re.sub(r"xcit_[a-z]+_\d+_p\d+_?", "", name)
    adjusted = recipe.for_model(name)
    expected = (512, 5e-4) if variant in VARIANTS_AT_512 else (1024, 1e-3)
    assert (adjusted.batch_size, adjusted.peak_lr) == expected
    assert adjusted.drop_path == (0.05 if "small" in name else 0.0)
    rates = _rates(adjusted, updates=1)
    assert rates[0] == adjusted.warmup_lr == 1e-6
    assert max(rates) == pytest.approx(adjusted.peak_lr, rel=1e-3)
    assert rates[-1] == 1e-5


def _rates(recipe: Recipe, updates: int) -> list[float]:
    """Return the learning rate before each update, and the final one."""
    optimizer = make_optimizer(torch.nn.Linear(1, 1), recipe)
    scheduler = make_scheduler(optimizer, recipe, updates)
    rates = []
    for update in range(recipe.epochs * updates + 1):
        scheduler.step_update(update)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_optimizer_weight_decay_of_temperatures_follows_recipe(recipe: Recipe) -> None:
    model = create_xcit("xcit_pico_6_p4_af", depth=1, num_classes=2)
    decayed = {
        id(parameter)
        for group in make_optimizer(model, recipe).param_groups
        if group["weight_decay"]
        for parameter in group["params"]
    }
    names = {name for name, parameter in model.named_parameters() if id(parameter) in decayed}
    assert "blocks.0.attn.qkv.weight" in names
    assert not names & {"cls_token", "head.bias", "blocks.0.gamma1"}
    temperatures = {name for name, _ in model.named_parameters() if name.endswith("temperature")}
    assert len(temperatures) == 3
    assert names & temperatures == (temperatures if recipe.name.startswith("xcit-") else set())


def test_recipe_adjustments_apply_to_presets_only() -> None:
    recipe = get_recipe("xcit-imagenet")
    assert recipe.for_model("timm:resnet50+af") is recipe


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_override_accepts_the_value_of_every_field(recipe: Recipe) -> None:
    texts = [f"{name}={_text(value)}" for name, value in recipe.settings().items()]
    assert override(recipe, [text for text in texts if not text.endswith("=()")]) == recipe


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "()"
    return str(value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("epoch=3", "Did you mean 'epochs'"),
        ("name=other", "unknown field of a recipe 'name'"),
        ("epochs", "expected FIELD=VALUE"),
        ("epochs=many", "epochs takes an integer, got 'many'"),
        ("epochs=1.5", "epochs takes an integer"),
        ("lr=True", "lr takes a number"),
        ("betas=0.9", "betas takes two numbers"),
        ("sizes=16,big", "sizes takes integers"),
        ("epochs=0", "epochs must be at least 1, got 0"),
        ("pipeline=disk", "pipeline must be one of memory, loader"),
        ("accumulate=3", "accumulate must be a divisor"),
        ("flip=2", "flip must be a probability"),
        ("settle=2", "settle must be 0, or for windows cut from a canvas a fraction"),
        ("interpolation=cubic", "interpolation must be one of nearest, bilinear, bicubic"),
        ("mean=0.5,0.5", r"mean must be three numbers, or \(\), got \(0.5, 0.5\)"),
        ("decay_temperatures=1", "decay_temperatures takes true or false, got '1'"),
        (
            "shift-consistency canvas=100",
            "canvas must be `shift` 6 px or more larger than the windows",
        ),
        ("shift-consistency shift=20", "canvas must be `shift` 20 px or more larger"),
        ("shift-consistency shift=0", "consistency must be 0 where shift is 0"),
        ("shift-consistency unlabeled=true", "unlabeled must be false where lr is above 0"),
        ("shift-consistency mixup=0.5", "mixup must be off with `shift`"),
        ("shift-consistency lr=0", "lr must be above 0 with `shift`"),
        ("cpu-scene epochs=1", "Did you mean 'cpu-scenes'"),
    ],
)
def test_override_invalid_assignment_raises(text: str, complaint: str) -> None:
    *name, changes = text.split(" ", 1)
    with pytest.raises(AftModelsError, match=complaint):
        override(get_recipe(*name or ["cpu-cifar10"]), changes.split()).for_input(Preprocessing(96))


def test_recipe_sizes_have_equal_numbers_of_epochs() -> None:
    recipe = override(get_recipe("cpu-cifar10"), ["epochs=6", "sizes=16,24,32"])
    assert [recipe.size_at(epoch) for epoch in range(6)] == [16, 16, 24, 24, 32, 32]
    assert override(recipe, ["sizes=()"]).size_at(0) == recipe.image_size
