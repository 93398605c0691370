"""Accuracy during training, each process on its own share of the images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from timm.data import create_transform
from torch import nn
from torch.utils.data import DataLoader, Subset

from aft_models.preprocessing import CROP_PCT
from aft_models.training.data import Batch, Images, Normalization, PixelSet, Transformed
from aft_models.training.device import DeviceConfig
from aft_models.training.processes import Processes
from aft_models.training.recipe import Recipe


class PixelBatches:
    """This process's share of a `PixelSet`, unaugmented, in order."""

    def __init__(
        self, data: PixelSet, normalization: Normalization, size: int, processes: Processes
    ) -> None:
        self.data = data
        self.normalization = normalization
        self.size = size
        self.processes = processes

    def __iter__(self) -> Iterator[Batch]:
        mine = range(self.processes.rank, len(self.data), self.processes.count)
        for start in range(0, len(mine), self.size):
            chosen = list(mine[start : start + self.size])
            yield self.normalization(self.data.images[chosen]), self.data.labels[chosen]


def loader_batches(
    data: Images, recipe: Recipe, processes: Processes, *, size: int, workers: int = 0
) -> Iterable[Batch]:
    """This process's share of a data set, resized and center-cropped in worker processes."""
    transform = create_transform(
        recipe.image_size,
        interpolation=recipe.interpolation,
        mean=recipe.mean,
        std=recipe.std,
        crop_pct=CROP_PCT,
    )
    mine = range(processes.rank, len(data), processes.count)
    loader: Iterable[Batch] = DataLoader(
        Subset(Transformed(data, transform), mine), batch_size=size, num_workers=workers
    )
    return loader


@torch.no_grad()
def accuracy(
    model: nn.Module, batches: Iterable[Batch], machine: DeviceConfig, processes: Processes
) -> float:
    """The fraction of all processes' images that the model gets right."""
    counts = torch.zeros(2, dtype=torch.float64, device=machine.device)  # right, seen
    for batch in batches:
        images, labels = machine.move(*batch)
        with machine.autocast():
            right = model(images).argmax(1) == labels
        counts += torch.stack([right.sum(), torch.tensor(len(labels), device=machine.device)])
    right_all, seen_all = processes.total(counts).tolist()
    return float(right_all / seen_all)
