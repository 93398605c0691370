"""A tiny model, a few scenes, and runs over them, for the tests of training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from aft_models.training.checkpoint import Data, Identity
from aft_models.training.data import Batches, MemoryBatches, PixelSet
from aft_models.training.device import Processes
from aft_models.training.loop import Evaluate, Outcome, train
from aft_models.training.recipe import Recipe
from shiftbench.data import Scenes

DATA = Data("scenes", "train", limit=48, images=48)
RECIPE = Recipe(
    name="tiny",
    summary="for tests",
    epochs=3,
    batch_size=16,
    lr=2e-3,
    lr_batch_size=16,
    warmup_epochs=0.5,
    clip_grad=1.0,
    image_size=16,
    mean=(0.5, 0.5, 0.5),
    std=(0.2, 0.2, 0.2),
    pipeline="memory",
    canvas=20,
    ema_decay=0.9,
)
SHIFT_CONSISTENCY = replace(RECIPE, shift=2, consistency=4.0)


def scenes(count: int = 48) -> PixelSet:
    """Load the first scenes, 16 pixels wide and 2 more on each side."""
    data = Scenes("train", count)
    return PixelSet(data.render(range(count), 16, 2), torch.tensor(list(data.labels)))


class TinyNet(nn.Module):
    """Network of a convolution, dropout (so that global randomness matters) and a classifier."""

    def __init__(self, classes: int = 12, *, batch_norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.norm = nn.BatchNorm2d(16) if batch_norm else nn.Identity()
        self.drop = nn.Dropout(0.1 if batch_norm else 0.0)
        self.head = nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        features = self.drop(self.norm(self.stem(images)).relu())
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


def run(
    folder: Path,
    recipe: Recipe = RECIPE,
    *,
    model: nn.Module | None = None,
    batches: Batches | None = None,
    name: str = "tiny",
    evaluate: Evaluate | None = None,
    processes: Processes | None = None,
    resume: bool = True,
) -> Outcome:
    """Train the tiny network on a few scenes."""
    if model is None:
        torch.manual_seed(0)
        model = TinyNet()
    return train(
        model,
        batches or MemoryBatches(scenes(), recipe, processes=processes),
        identity=Identity(name, recipe, seed=0, classes=12, data=DATA),
        folder=folder,
        processes=processes,
        evaluate=evaluate,
        resume=resume,
    )
