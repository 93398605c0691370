"""Sources of batches: pixels in memory, or a data set read by worker processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import posterize
from timm.data.distributed_sampler import RepeatAugSampler
from timm.data.transforms import str_to_pil_interp
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.preprocessing import center_start, normalize, resized_shape
from aft_models.training.augment import Windows, draw_windows, mixed_seed, resized
from aft_models.training.device import Processes
from aft_models.training.recipe import Recipe
from aft_models.workers import end_with_parent

Batch = tuple[Tensor, Tensor]
"""Normalized images (B, 3, H, W) and labels (B,); a recipe with `shift` has several views of each
image, (views, B, 3, H, W)."""


class Images(Protocol):
    """A map-style set of (PIL image, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Image.Image, int]: ...


class Batches:
    """Share of one process of the training data, the same in every run for the same epoch."""

    def __init__(self, images: int, recipe: Recipe, seed: int, processes: Processes | None) -> None:
        """Plan the batches for the number of `images` in all processes together."""
        if not (recipe.image_size and recipe.interpolation and recipe.mean and recipe.std):
            raise AftModelsError(
                f"recipe {recipe.name} has no preprocessing of its own: complete it with "
                "recipe.for_input(Preprocessing.of(model)) first"
            )
        self.recipe, self.seed = recipe, seed
        self.processes = processes or Processes()
        parts = self.processes.count * recipe.accumulate
        if recipe.batch_size % parts:
            raise AftModelsError(
                f"batch_size {recipe.batch_size} does not divide into {self.processes.count} "
                f"processes x {recipe.accumulate} accumulated steps; choose a multiple of {parts}"
            )
        if images < recipe.batch_size:
            raise AftModelsError(
                f"{images} training images do not fill one batch of {recipe.batch_size}; set a "
                f"batch_size of at most {images}"
            )
        self.share = recipe.batch_size // parts  # images per backward pass of one process
        # Updates in an epoch; the remaining images are used in the order of another epoch.
        self.updates = images // recipe.batch_size

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the `updates * accumulate` batches of this process."""
        raise NotImplementedError


@dataclass(frozen=True)
class PixelSet:
    """Data set small enough for the pixels of all images, at one size, in memory."""

    images: Tensor  # uint8 (N, 3, H, W)
    labels: Tensor  # int64 (N,)

    def __post_init__(self) -> None:
        assert self.images.dtype == torch.uint8
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def load(cls, data: Images, size: int, interpolation: str = "bicubic") -> PixelSet:
        """Decode every image once, resized and center-cropped to `size` if it has another size."""
        images = torch.empty(len(data), 3, size, size, dtype=torch.uint8)
        labels = torch.empty(len(data), dtype=torch.int64)
        to_pixels = _ToCanvas(size, interpolation)
        for index in range(len(data)):
            image, label = data[index]
            images[index] = to_pixels(image)
            labels[index] = label
        return cls(images, labels)


@dataclass(frozen=True)
class _ToCanvas:
    """Transform of an image to uint8 (3, size, size): resize of the shorter side, center crop."""

    size: int
    interpolation: str

    def __call__(self, image: Image.Image) -> Tensor:
        image, size = image.convert("RGB"), self.size
        if image.size != (size, size):
            width, height = resized_shape(*image.size, size)
            image = image.resize((width, height), str_to_pil_interp(self.interpolation))
            left, top = center_start(width, size), center_start(height, size)
            image = image.crop((left, top, left + size, top + size))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class MemoryBatches(Batches):
    """Shuffled, augmented batches of a `PixelSet`.

    Every process draws the permutation and the augmentation of the entire update and uses its own
    slice. Therefore batches do not depend on the number of processes and accumulated steps.
    """

    def __init__(
        self, data: PixelSet, recipe: Recipe, *, seed: int = 0, processes: Processes | None = None
    ) -> None:
        super().__init__(len(data), recipe, seed, processes)
        self.data = data

    @override
    def epoch(self, epoch: int) -> Iterator[Batch]:
        recipe, canvas = self.recipe, self.data.images.shape[-1]
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        order = torch.randperm(len(self.data), generator=generator)
        for update in range(self.updates):
            chosen = order[update * recipe.batch_size :][: recipe.batch_size]
            windows = draw_windows(recipe, epoch, len(chosen), canvas, generator)
            for step in range(recipe.accumulate):
                start = (step * self.processes.count + self.processes.rank) * self.share
                mine = slice(start, start + self.share)
                pixels = self.data.images[chosen[mine]]
                images = _cut([part[mine] for part in windows], pixels, recipe, epoch)
                yield images, self.data.labels[chosen[mine]]


def _cut(windows: Sequence[Windows], pixels: Tensor, recipe: Recipe, epoch: int) -> Tensor:
    """Cut normalized windows (B, 3, S, S) from canvases (B, 3, C, C); stack several views."""
    size = recipe.size_at(epoch)
    views = [
        resized(normalize(part.cut(pixels), recipe.mean, recipe.std), size) for part in windows
    ]
    return torch.stack(views) if recipe.shift else views[0]


class LoaderBatches(Batches):
    """Batches decoded and augmented in worker processes, by timm's transforms.

    For a recipe with `shift`, workers decode the canvases and this process cuts the windows.
    """

    def __init__(
        self,
        data: Images,
        recipe: Recipe,
        *,
        seed: int = 0,
        processes: Processes | None = None,
        workers: int = 0,
    ) -> None:
        super().__init__(len(data), recipe, seed, processes)
        self._sampler = RepeatAugSampler(
            data,
            num_replicas=self.processes.count,
            rank=self.processes.rank,
            num_repeats=recipe.repeated_augmentation,
            selected_round=0,
        )
        self._generator = torch.Generator()
        self._loader: DataLoader[tuple[Tensor, int]] = DataLoader(
            Transformed(data, training_transform(recipe)),
            batch_size=self.share,
            sampler=self._sampler,
            num_workers=workers,
            drop_last=True,
            pin_memory=torch.cuda.is_available(),
            generator=self._generator,
            worker_init_fn=_seed_worker,
        )

    @override
    def epoch(self, epoch: int) -> Iterator[Batch]:
        self._sampler.set_epoch(mixed_seed(self.seed, epoch))
        seed = mixed_seed(self.seed, epoch, self.processes.rank)
        self._generator.manual_seed(seed)
        if not self._loader.num_workers:  # the transforms draw in this process
            _seed_transforms(seed)
        places = torch.Generator().manual_seed(seed)
        batches = iter(self._loader)
        for _ in range(self.updates * self.recipe.accumulate):
            images, labels = next(batches)
            if self.recipe.shift:
                count, canvas = len(images), images.shape[-1]
                windows = draw_windows(self.recipe, epoch, count, canvas, places)
                images = _cut(windows, images, self.recipe, epoch)
            yield images, labels


class Transformed(Dataset[tuple[Tensor, int]]):
    """Data set with its images transformed to tensors."""

    def __init__(self, data: Images, transform: Callable[[Image.Image], Tensor]) -> None:
        self.data = data
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.data[index]
        return self.transform(image), label


def training_transform(recipe: Recipe) -> Any:
    """Build a recipe's augmentation by timm, from an image to a tensor."""
    if not recipe.learns:
        return evaluation_transform(recipe)
    if recipe.shift:
        return _ToCanvas(recipe.canvas, recipe.interpolation)
    transform = create_transform(
        recipe.image_size,
        is_training=True,
        scale=recipe.crop_scale,
        hflip=recipe.flip,
        color_jitter=recipe.color_jitter,
        auto_augment=recipe.rand_augment or None,
        interpolation=recipe.interpolation,
        mean=recipe.mean,
        std=recipe.std,
        re_prob=recipe.random_erasing,
        re_mode="pixel",
    )
    for step in transform.transforms:
        for operation in getattr(step, "ops", ()):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = _posterize
    return transform


def evaluation_transform(recipe: Recipe) -> Any:
    """Build the transform of an image to the view of the benchmark, as a tensor."""
    return create_transform(
        recipe.image_size,
        interpolation=recipe.interpolation,
        mean=recipe.mean,
        std=recipe.std,
        crop_pct=recipe.crop_pct * (1 - 1e-9),  # timm floors; 96 / (96 / 110) must stay 110
    )


def _posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    """Keep at least one bit: with zero bits Pillow 13 raises an error, before it a black image."""
    return cast(Image.Image, posterize(image, max(1, bits), **options))


def _seed_worker(worker: int) -> None:
    end_with_parent()
    _seed_transforms(torch.initial_seed())


def _seed_transforms(seed: int) -> None:
    """Seed the generators that timm's augmentation reads besides torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that timm reads


@dataclass(frozen=True)
class PixelBatches:
    """Share of one process of a `PixelSet`, center crops in order, for evaluation."""

    data: PixelSet
    recipe: Recipe
    size: int  # images per batch
    processes: Processes

    def __iter__(self) -> Iterator[Batch]:
        recipe, canvas = self.recipe, self.data.images.shape[-1]
        mine = range(self.processes.rank, len(self.data), self.processes.count)
        for start in range(0, len(mine), self.size):
            chosen = list(mine[start : start + self.size])
            windows = Windows.centered(len(chosen), canvas, recipe.image_size)
            pixels = windows.cut(self.data.images[chosen])
            yield normalize(pixels, recipe.mean, recipe.std), self.data.labels[chosen]


def loader_batches(
    data: Images, recipe: Recipe, processes: Processes, *, size: int, workers: int = 0
) -> Iterable[Batch]:
    """Return evaluation batches of a data set that worker processes read."""
    mine = range(processes.rank, len(data), processes.count)
    views = Transformed(data, evaluation_transform(recipe))
    loader: Iterable[Batch] = DataLoader(
        Subset(views, mine), batch_size=size, num_workers=workers, worker_init_fn=end_with_parent
    )
    return loader
