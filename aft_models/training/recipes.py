"""Named recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aft_models.errors import AftModelsError, unknown
from aft_models.presets import XCiTConfig
from aft_models.training.recipe import Recipe


def _adjust(config: XCiTConfig) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if config.downsample in ("aps", "af"):  # ablations keep the baseline's
        changes["batch_size"] = 512
    if config.dim == 384:  # small
        changes["drop_path"] = 0.05
    return changes


_PAPER: Mapping[str, Any] = {
    "batch_size": 1024,
    "lr": 1e-3,
    "lr_batch_size": 1024,
    "rand_augment": "rand-m9-mstd0.5-inc1",
    "color_jitter": 0.4,
    "random_erasing": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
    "repeated_augmentation": 3,
    "decay_temperatures": True,  # as the authors' optimizer does
    "adjust": _adjust,
}
# Preprocessing of the model.
_AS_THE_MODEL: Mapping[str, Any] = {"image_size": 0, "interpolation": "", "mean": (), "std": ()}
_CPU: Mapping[str, Any] = {
    "optimizer": "nmuon",  # Muon with Nesterov momentum: CIFAR-10 after one epoch 64%, AdamW 59%
    "clip_grad": 1.0,
    "pipeline": "memory",
}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="xcit-imagenet",
            summary="the paper's: ImageNet from scratch, 400 epochs at 224 px, on several GPUs",
            epochs=400,
            **_PAPER,
        ),
        Recipe(
            name="xcit-small-sets",
            summary="the paper's: CIFAR-10, CIFAR-100, Stanford Cars, 1000 epochs at 224 px",
            epochs=1000,
            **_PAPER,
        ),
        Recipe(
            name="finetune",
            summary="any model from trained weights, at its own input size: few epochs at a low lr",
            epochs=5,
            batch_size=64,
            lr=3e-4,  # EfficientNet-Lite0 to Imagenette, 60 updates: 81%; at 1e-4 64%
            lr_batch_size=64,
            warmup_epochs=0.5,
            min_lr=1e-6,
            clip_grad=1.0,
            norm_momentum=0.1,  # timm's tf_ models have 0.01: too slow for a few epochs
            **_AS_THE_MODEL,
            crop_scale=(0.5, 1.0),
        ),
        Recipe(
            name="recalibrate",
            summary="batch-norm statistics of a repaired model, from some 3,000 images; no labels",
            epochs=1,
            batch_size=64,
            lr=0.0,
            lr_batch_size=64,
            warmup_epochs=0.0,
            min_lr=0.0,
            **_AS_THE_MODEL,
        ),
        Recipe(
            name="shift-consistency",
            summary="any trained model: consistent predictions for two windows of an image",
            epochs=2,
            batch_size=64,
            lr=3e-4,
            lr_batch_size=64,
            warmup_epochs=0.1,
            min_lr=1e-6,
            clip_grad=1.0,
            norm_momentum=0.1,
            **_AS_THE_MODEL,
            zoom=(0.92, 1.08),  # resized windows shift by fractions of a pixel
            settle=0.5,  # the last epoch shifts by integer pixels
            shift=6,
            consistency=8.0,
        ),
        Recipe(
            name="cpu-cifar10",
            summary="the bundled .cifar10 weights: pico models at 32 px, an hour or two per core",
            epochs=16,
            batch_size=128,
            lr=6e-3,
            lr_batch_size=128,
            warmup_epochs=0.25,
            min_lr=6e-6,
            image_size=32,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            sizes=(16, 16, 20, 20, 24, 24, 28, 32),
            **_CPU,
            canvas=37,  # the benchmark's own resize: round(32 * 256 / 224)
        ),
        Recipe(
            name="cpu-imagenette",
            summary="the bundled .imagenette weights: pico models at 96 px, an hour on a CPU core",
            epochs=20,
            batch_size=64,
            lr=5e-3,
            lr_batch_size=64,
            warmup_epochs=0.5,
            min_lr=5e-6,
            image_size=96,
            sizes=(48, 48, 64, 64, 80, 80),
            **_CPU,
            canvas=110,  # the benchmark's own resize: round(96 * 256 / 224)
            zoom=(0.6, 1.145),  # windows of 58 to 110 px
            settle=0.2,  # resized windows are softer than the views that are measured
        ),
        Recipe(
            name="cpu-scenes",
            summary="the bundled .scenes weights: pico models at 64 px, on two CPU cores",
            epochs=3,
            batch_size=64,
            lr=4e-3,
            lr_batch_size=64,
            warmup_epochs=0.25,
            min_lr=4e-6,
            image_size=64,
            mean=(0.5, 0.5, 0.5),
            std=(0.18, 0.18, 0.18),
            **_CPU,
            canvas=72,
        ),
    )
}


def get_recipe(name: str) -> Recipe:
    """Return a recipe by name."""
    if name not in RECIPES:
        raise AftModelsError(unknown("recipe", name, RECIPES))
    return RECIPES[name]
