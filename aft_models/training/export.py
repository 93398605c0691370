"""Export of a finished run to weights with a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aft_models.cards import WeightsCard
from aft_models.checkpoint import save_weights
from aft_models.training.checkpoint import Identity
from aft_models.training.loop import Outcome
from aft_models.training.progress import UNSCORED


def export(
    outcome: Outcome,
    folder: Path,
    *,
    identity: Identity,
    tag: str,
    class_names: Sequence[str] = (),
    images: Mapping[str, int] | None = None,
) -> Path:
    """Write the weights of a run and their card.

    Args:
        outcome: The finished run.
        folder: Folder to write to.
        identity: Model, recipe and data of the run.
        tag: Suffix of the name: "cifar10" in "xcit_pico_6_p4_af.cifar10".
        class_names: In the order of the outputs.
        images: Number of images of each score of the last epoch.

    Returns:
        The folder.
    """
    recipe, data = identity.recipe, identity.data
    card = WeightsCard(
        name=f"{identity.architecture}.{tag}",
        architecture=identity.architecture,
        tag=tag,
        num_classes=identity.classes,
        class_names=tuple(class_names),
        input_size=recipe.image_size,
        mean=recipe.mean,
        std=recipe.std,
        interpolation=recipe.interpolation,
        crop_pct=recipe.crop_pct,
        digest="",  # save_weights fills it in
        recipe={"name": recipe.name, "seed": identity.seed, **recipe.settings()},
        data=f"{data.name} {data.split}, {data.images} images",
        epochs=recipe.epochs,
        scores={name: v for name, v in outcome.rows[-1].items() if name not in UNSCORED},
        images=dict(images or {}),
    )
    save_weights(outcome.model, folder, card)
    return folder
