"""Recipes: what the registry holds, and what an override may change."""

import dataclasses

import pytest

from aft_models.errors import AftModelsError
from aft_models.training.recipe import RECIPES, Recipe, get_recipe, override


def test_the_papers_recipe_scales_its_rate_with_the_batch_of_each_family() -> None:
    recipe = get_recipe("xcit-imagenet")
    baseline = recipe.for_model("xcit_nano_12_p16")
    assert (baseline.batch_size, baseline.scaled(baseline.lr)) == (1024, 1e-3)
    for name in ("xcit_nano_12_p16_af", "xcit_nano_12_p16_aps", "xcit_nano_12_p16_af_avgpool"):
        adjusted = recipe.for_model(name)
        assert (adjusted.batch_size, adjusted.scaled(adjusted.lr)) == (512, 5e-4)
    assert recipe.for_model("xcit_nano_12_p16").drop_path == 0.0
    assert recipe.for_model("xcit_small_12_p16_af").drop_path == 0.05


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_field_can_be_set_to_its_own_value(recipe: Recipe) -> None:
    texts = [f"{name}={_text(value)}" for name, value in recipe.settings().items()]
    assert override(recipe, [text for text in texts if not text.endswith("=()")]) == recipe


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "()"
    return str(value)


def test_an_override_changes_one_field_alone() -> None:
    recipe = get_recipe("cpu-cifar10")
    changed = override(recipe, ["epochs=10"])
    assert changed.epochs == 10
    assert dataclasses.replace(changed, epochs=recipe.epochs) == recipe


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("epoch=3", "Did you mean 'epochs'"),
        ("name=other", "no field 'name'"),
        ("epochs", "expected FIELD=VALUE"),
        ("epochs=many", "epochs takes a whole number, got 'many'"),
        ("epochs=1.5", "epochs takes a whole number"),
        ("lr=True", "lr takes a number"),
        ("betas=0.9", "betas takes two numbers"),
        ("sizes=16,big", "sizes takes whole numbers"),
        ("epochs=0", "epochs must be at least 1, got 0"),
        ("pipeline=disk", "pipeline must be one of memory, loader"),
        ("accumulate=3", "accumulate must be a divisor"),
        ("flip=2", "flip must be a probability"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(AftModelsError, match=complaint):
        override(get_recipe("cpu-cifar10"), [text])


def test_an_unknown_recipe_names_a_close_one() -> None:
    with pytest.raises(AftModelsError, match="Did you mean 'cpu-scenes'"):
        get_recipe("cpu-scene")


def test_sizes_share_the_epochs_equally() -> None:
    recipe = override(get_recipe("cpu-cifar10"), ["epochs=6", "sizes=16,24,32"])
    assert [recipe.size_at(epoch) for epoch in range(6)] == [16, 16, 24, 24, 32, 32]
    assert override(recipe, ["sizes=()"]).size_at(0) == recipe.image_size
