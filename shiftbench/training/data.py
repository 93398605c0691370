"""Data of a training: labeled images or images without classes, as batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from aft_models.training.checkpoint import Data
from aft_models.training.data import (
    Batch,
    Batches,
    LoaderBatches,
    MemoryBatches,
    PixelBatches,
    PixelSet,
    loader_batches,
)
from aft_models.training.device import Processes
from aft_models.training.recipe import Recipe
from shiftbench.data import ImageSet, RenderedSet, balanced, load_dataset, relabeled
from shiftbench.data.base import ALL
from shiftbench.data.folder import FileSet, file_set, split_folder
from shiftbench.data.images import ENDINGS
from shiftbench.errors import DataError, UsageError

EVALUATION_BATCH = 256  # images per batch; batch norm is fixed, so the size does not affect scores


class Unlabeled(FileSet):
    """Images without classes: all images below a folder."""


def load_data(
    data: str,
    train_split: str,
    split: str | None,
    *,
    limit: int | None,
    seed: int,
    download: bool,
    unlabeled: bool,
) -> tuple[ImageSet, ImageSet]:
    """Load the images to train on and the images to score on.

    Returns:
        The training images and the evaluation images.
    """
    source, _, path = data.partition(":")

    def load(part: str | None) -> ImageSet:
        return load_dataset(data, split=part, limit=limit, seed=seed, download=download)

    if not unlabeled:
        try:
            images, scored = load(train_split), load(split)
            # A split that lacks a class would number the others differently.
            return images, relabeled(scored, len(images.class_names), images.class_names)
        except DataError as error:
            root = Path(path).expanduser()
            loose = (entry for part in (root, root / train_split) for entry in part.glob("*.*"))
            if source == "folder" and any(e.name.lower().endswith(ENDINGS) for e in loose):
                raise DataError(
                    f"{root} contains images without class folders: sort them into one folder "
                    "per class, or use --unlabeled with the recipe recalibrate"
                ) from error
            raise
    if source != "folder":
        raise UsageError(f"--unlabeled takes folder:PATH with images anywhere below, got {data!r}")
    try:
        place = split_folder(Path(path).expanduser(), train_split, source=source)
    except DataError:  # no such split: the folder itself
        place = split_folder(Path(path).expanduser(), ALL, source=source)
    files = file_set(place, {".": 0}, [""])
    chosen = balanced(files.keys, files.labels, limit or len(files), seed)
    keys, names = ([column[index] for index in chosen] for column in (files.keys, files.names))
    photographs = Unlabeled(files.name, files.split, keys, [0] * len(keys), [""], files.root, names)
    return photographs, photographs if split is None else load(split)


def images_of(data: ImageSet, limit: int | None) -> Data:
    """Return the identity of a data set: its name, keys and labels."""
    listing = "\n".join(f"{k} {y}" for k, y in zip(data.keys, data.labels, strict=True))
    return Data(
        data.name, data.split, limit, len(data), hashlib.sha256(listing.encode()).hexdigest()
    )


def load_pixels(data: ImageSet, recipe: Recipe) -> PixelSet:
    """Load all images as pixels; a data set with a camera renders a margin around the view."""
    canvas = recipe.canvas or recipe.image_size
    if not isinstance(data, RenderedSet):
        return PixelSet.load(data, canvas, recipe.interpolation)
    margin, odd = divmod(canvas - recipe.image_size, 2)
    if odd:
        raise UsageError(
            f"{data.name} has equal margins on all sides of the view, so canvas must be "
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
    """Builder of batches from images."""

    recipe: Recipe
    processes: Processes
    workers: int
    seed: int

    def training(self, data: ImageSet) -> Batches:
        """Return shuffled and augmented batches."""
        recipe, processes = self.recipe, self.processes
        if recipe.pipeline == "memory":
            pixels = load_pixels(data, recipe)
            return MemoryBatches(pixels, recipe, seed=self.seed, processes=processes)
        return LoaderBatches(
            data, recipe, seed=self.seed, processes=processes, workers=self.workers
        )

    def evaluation(self, data: ImageSet, processes: Processes) -> Iterable[Batch]:
        """Return batches in order, with the preprocessing of the model."""
        if self.recipe.pipeline == "memory":
            pixels = load_pixels(data, self.recipe)
            return PixelBatches(pixels, self.recipe, EVALUATION_BATCH, processes)
        return loader_batches(
            data, self.recipe, processes, size=EVALUATION_BATCH, workers=self.workers
        )
