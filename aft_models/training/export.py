"""From a finished run to weights with a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aft_models.preprocessing import CROP_PCT
from aft_models.training.checkpoint import Identity
from aft_models.training.loop import Outcome
from aft_models.training.recipe import Recipe
from aft_models.weights import WeightsCard, save_weights

UNSCORED = frozenset({"epoch", "loss", "lr", "images_per_second", "seconds"})


@dataclass(frozen=True)
class Source:
    """What a model was trained on."""

    tag: str  # names the weights: "cifar10" in "xcit_pico_6_p4_af.cifar10"
    words: str  # data set, split and number of images
    class_names: Sequence[str] = ()


def export(
    outcome: Outcome,
    folder: Path,
    *,
    identity: Identity,
    source: Source,
    images: Mapping[str, int] | None = None,
) -> Path:
    """Writes the weights of a run and their card; returns the folder that holds them.

    Args:
        outcome: What training returned.
        folder: Made if missing.
        identity: Of the run: model, recipe and seed go into the card.
        source: What the model was trained on.
        images: How many images each score of the last epoch is of.
    """
    recipe = identity.recipe
    card = WeightsCard(
        name=f"{identity.architecture}.{source.tag}",
        architecture=identity.architecture,
        tag=source.tag,
        num_classes=identity.classes,
        class_names=tuple(source.class_names),
        input_size=recipe.image_size,
        mean=recipe.mean,
        std=recipe.std,
        interpolation=recipe.interpolation,
        crop_pct=crop_pct(recipe),
        digest="",  # save_weights fills it in
        recipe={"name": recipe.name, "seed": identity.seed, **recipe.settings()},
        data=source.words,
        epochs=recipe.epochs,
        scores={name: v for name, v in outcome.rows[-1].items() if name not in UNSCORED},
        images=dict(images or {}),
    )
    save_weights(outcome.model, folder, card)
    return folder


def crop_pct(recipe: Recipe) -> float:
    """The part of a resized image that evaluation during training looked at."""
    if recipe.pipeline == "loader":
        return CROP_PCT
    return recipe.image_size / (recipe.canvas or recipe.image_size)
