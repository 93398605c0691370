"""What `shiftbench train` hands to the training loop: images, and scores as training goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aft_models.training.checkpoint import Data
from aft_models.training.data import (
    Batch,
    Batches,
    LoaderBatches,
    MemoryBatches,
    Normalization,
    PixelSet,
)
from aft_models.training.device import DeviceConfig
from aft_models.training.evaluate import PixelBatches, accuracy, loader_batches
from aft_models.training.processes import Processes
from aft_models.training.recipe import Recipe
from shiftbench.data import ImageSet, RenderedSet, balanced, subset
from shiftbench.errors import UsageError
from shiftbench.metrics.random_views import CONSISTENCIES, consistency
from shiftbench.shifts import SHIFTS

SHIFT_KINDS = ("integer", "half")  # cyclic consistencies: they need no pixels around the view
EVALUATION_BATCH = 256  # images; batch norm is fixed here, so that it changes no number


def images_of(data: ImageSet, limit: int | None) -> Data:
    """Which images a data set holds, for a run to recognize them by."""
    return Data(data.name, data.split, limit, len(data), data.fingerprint())


def load_pixels(data: ImageSet, recipe: Recipe) -> PixelSet:
    """Every image as pixels; a data set with a camera renders what lies around the view."""
    canvas = recipe.canvas or recipe.image_size
    if not isinstance(data, RenderedSet):
        return PixelSet.load(data, canvas, recipe.interpolation)
    margin, odd = divmod(canvas - recipe.image_size, 2)
    if odd:
        raise UsageError(
            f"{data.name} shows the same margin on every side of the view, so canvas must be "
            f"image_size plus an even number: got {canvas} for {recipe.image_size}"
        )
    indices = range(len(data))
    parts = [
        data.render(indices[start : start + EVALUATION_BATCH], recipe.image_size, margin)
        for start in range(0, len(data), EVALUATION_BATCH)
    ]
    return PixelSet(torch.cat(parts), torch.tensor(list(data.labels)))


@dataclass(frozen=True)
class BatchBuilder:
    """How images become batches."""

    recipe: Recipe
    processes: Processes
    workers: int
    seed: int

    def training(self, data: ImageSet) -> Batches:
        """Shuffled and augmented."""
        norm = Normalization(self.recipe.mean, self.recipe.std)
        if self.recipe.pipeline == "memory":
            pixels = load_pixels(data, self.recipe)
            return MemoryBatches(
                pixels, self.recipe, norm, seed=self.seed, processes=self.processes
            )
        return LoaderBatches(
            data,
            self.recipe,
            norm,
            seed=self.seed,
            processes=self.processes,
            workers=self.workers,
        )

    def evaluation(self, data: ImageSet, processes: Processes) -> Iterable[Batch]:
        """In order, as the model will see images when it is used."""
        if self.recipe.pipeline == "memory":
            norm = Normalization(self.recipe.mean, self.recipe.std)
            pixels = load_pixels(data, self.recipe).center(self.recipe.image_size)
            return PixelBatches(pixels, norm, EVALUATION_BATCH, processes)
        return loader_batches(
            data, self.recipe, processes, size=EVALUATION_BATCH, workers=self.workers
        )


class EpochEvaluator:
    """Accuracy and agreement under random shifts, each after every k-th epoch and the last."""

    def __init__(
        self,
        data: ImageSet,
        inputs: BatchBuilder,
        machine: DeviceConfig,
        *,
        every: int,
        shift_every: int,
        shift_images: int,
    ) -> None:
        """Reads the images once where the recipe holds them in memory.

        Args:
            data: What the model is scored on.
            inputs: How images become batches.
            machine: What the model runs on.
            every: Epochs between two measurements of accuracy; 0 for none but the last.
            shift_every: Epochs between two measurements of consistency; 0 likewise.
            shift_images: How many images consistency takes, balanced over the classes.
        """
        self._machine = machine
        self._processes = inputs.processes
        self._epochs = inputs.recipe.epochs
        self._every, self._shift_every = every, shift_every
        self._batches = inputs.evaluation(data, inputs.processes)
        chosen = subset(data, balanced(data.keys, data.labels, shift_images, seed=0))
        self._keys = chosen.keys
        self.counts = {  # score -> how many images it is of
            "accuracy": len(data),
            **{f"consistency_{name}": len(chosen) for name in SHIFT_KINDS},
        }
        self._few = inputs.evaluation(chosen, Processes())

    def __call__(self, model: nn.Module, epoch: int) -> Mapping[str, float]:
        """The columns of the log for a finished epoch."""
        scores = {}
        if self._due(epoch, self._every):
            scores["accuracy"] = accuracy(model, self._batches, self._machine, self._processes)
        if self._due(epoch, self._shift_every):
            scores |= self._consistencies(model)
        return scores

    def _due(self, epoch: int, every: int) -> bool:
        return epoch == self._epochs or (every > 0 and epoch % every == 0)

    def _consistencies(self, model: nn.Module) -> dict[str, float]:
        """Every process measures the same few images, and so has the same answer."""

        def predict(images: Tensor) -> Tensor:
            with self._machine.autocast():
                logits: Tensor = model(images.to(self._machine.device))
            return logits

        images = torch.cat([images for images, _ in self._few])
        views = SHIFTS.get("cyclic").views(images, 0)
        scores = {}
        for name in SHIFT_KINDS:
            kind = CONSISTENCIES.get(name)
            span = kind.span(images.shape[-1], images.shape[-1])
            measured = consistency(
                predict, views, self._keys, kind, span=span, batch_size=EVALUATION_BATCH
            )
            scores[f"consistency_{name}"] = measured.score.value
        return scores
