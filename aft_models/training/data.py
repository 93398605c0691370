"""Where batches come from: pixels held in memory, or a data set read by worker processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
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
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose

from aft_models.errors import AftModelsError
from aft_models.training.augment import Windows, center, resized
from aft_models.training.processes import Processes
from aft_models.training.recipe import Recipe

Batch = tuple[Tensor, Tensor]  # normalized images (B, 3, H, W) and labels (B,)


class Images(Protocol):
    """A map-style set of (PIL image, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Image.Image, int]: ...


class Batches(Protocol):
    """One process's share of the training data, the same again for the same epoch."""

    @property
    def updates(self) -> int:
        """Number of updates in an epoch."""
        ...

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yields `updates * accumulate` batches."""
        ...


@dataclass(frozen=True)
class Normalization:
    """Per-channel mean and standard deviation of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        """uint8 pixels (B, 3, H, W) to what the network sees."""
        mean = torch.tensor(self.mean, device=pixels.device).view(1, 3, 1, 1) * 255
        std = torch.tensor(self.std, device=pixels.device).view(1, 3, 1, 1) * 255
        return (pixels.float() - mean) / std


@dataclass(frozen=True)
class PixelSet:
    """A data set small enough to be held as pixels of one size."""

    images: Tensor  # uint8 (N, 3, H, W)
    labels: Tensor  # int64 (N,)

    def __post_init__(self) -> None:
        assert self.images.dtype == torch.uint8
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def center(self, size: int) -> PixelSet:
        """The middle of every image."""
        return PixelSet(center(self.images, size).contiguous(), self.labels)

    @classmethod
    def load(cls, data: Images, size: int, interpolation: str = "bicubic") -> PixelSet:
        """Decodes every image once, resized and center-cropped to `size` where it has another."""
        images = torch.empty(len(data), 3, size, size, dtype=torch.uint8)
        labels = torch.empty(len(data), dtype=torch.int64)
        for index in range(len(data)):
            image, label = data[index]
            pixels = np.array(_fit(image.convert("RGB"), size, interpolation))
            images[index] = torch.from_numpy(pixels).permute(2, 0, 1)
            labels[index] = label
        return cls(images, labels)


def _fit(image: Image.Image, size: int, interpolation: str) -> Image.Image:
    if image.size == (size, size):
        return image
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    image = image.resize((width, height), str_to_pil_interp(interpolation))
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


class MemoryBatches:
    """Shuffled, augmented batches of a `PixelSet`.

    Every process draws the permutation and the augmentation of the whole update and takes its
    own slice, so that the number of processes and of accumulated steps changes nothing.
    """

    def __init__(
        self,
        data: PixelSet,
        recipe: Recipe,
        normalization: Normalization,
        *,
        seed: int = 0,
        processes: Processes | None = None,
    ) -> None:
        self.data = data
        self.recipe = recipe
        self.normalization = normalization
        self.seed = seed
        self.processes = processes or Processes()
        self._share = share_of_batch(recipe, self.processes)
        self.updates = count_updates(len(data), recipe.batch_size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yields this process's batches of one epoch."""
        recipe = self.recipe
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        order = torch.randperm(len(self.data), generator=generator)
        for update in range(self.updates):
            chosen = order[update * recipe.batch_size :][: recipe.batch_size]
            windows = Windows.draw(
                len(chosen),
                self.data.images.shape[-1],
                self._window(epoch, generator),
                flip=recipe.flip,
                generator=generator,
            )
            for step in range(recipe.accumulate):
                start = (step * self.processes.count + self.processes.rank) * self._share
                mine = slice(start, start + self._share)
                pixels = windows[mine].cut(self.data.images[chosen[mine]])
                images = resized(self.normalization(pixels), recipe.size_at(epoch))
                yield images, self.data.labels[chosen[mine]]

    def _window(self, epoch: int, generator: torch.Generator) -> int:
        """Side of the windows of one update: those of one size are cut and resized together."""
        smallest, largest = self.recipe.windows_at(epoch)
        if smallest == largest:
            return smallest
        return int(torch.randint(smallest, largest + 1, (), generator=generator))


class LoaderBatches:
    """Batches decoded and augmented by timm's transforms in worker processes."""

    def __init__(
        self,
        data: Images,
        recipe: Recipe,
        normalization: Normalization,
        *,
        seed: int = 0,
        processes: Processes | None = None,
        workers: int = 0,
    ) -> None:
        processes = processes or Processes()
        self.recipe = recipe
        self.seed = seed
        self.processes = processes
        share = share_of_batch(recipe, processes)
        transform = training_transform(recipe, normalization)
        self.updates = count_updates(len(data), recipe.batch_size)
        self._sampler = RepeatAugSampler(
            data,
            num_replicas=processes.count,
            rank=processes.rank,
            num_repeats=recipe.repeated_augmentation,
            selected_round=0,
        )
        self._generator = torch.Generator()
        self._loader: DataLoader[tuple[Tensor, int]] = DataLoader(
            Transformed(data, transform),
            batch_size=share,
            sampler=self._sampler,
            num_workers=workers,
            drop_last=True,
            pin_memory=torch.cuda.is_available(),
            generator=self._generator,
            worker_init_fn=_seed_worker,
        )

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yields this process's batches of one epoch."""
        self._sampler.set_epoch(mixed_seed(self.seed, epoch))
        seed = mixed_seed(self.seed, epoch, self.processes.rank)
        self._generator.manual_seed(seed)
        if not self._loader.num_workers:  # the transforms draw in this process
            _seed_transforms(seed)
        batches = iter(self._loader)
        for _ in range(self.updates * self.recipe.accumulate):
            yield cast(Batch, tuple(next(batches)))


class Transformed(Dataset[tuple[Tensor, int]]):
    """A data set with its images made into tensors."""

    def __init__(self, data: Images, transform: Callable[[Image.Image], Tensor]) -> None:
        self.data = data
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.data[index]
        return self.transform(image), label


def training_transform(recipe: Recipe, normalization: Normalization) -> Compose:
    """A recipe's augmentation by timm, from an image to a tensor."""
    transform = create_transform(
        recipe.image_size,
        is_training=True,
        scale=recipe.crop_scale,
        hflip=recipe.flip,
        color_jitter=recipe.color_jitter,
        auto_augment=recipe.rand_augment or None,
        interpolation=recipe.interpolation,
        mean=normalization.mean,
        std=normalization.std,
        re_prob=recipe.random_erasing,
        re_mode="pixel",
    )
    for step in transform.transforms:
        for operation in getattr(step, "ops", ()):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = _posterize
    return cast(Compose, transform)


def _posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    """Keeps a bit where timm asks for none: once a black image, for Pillow 13 an error."""
    return cast(Image.Image, posterize(image, max(1, bits), **options))


def _seed_worker(worker: int) -> None:
    _seed_transforms(torch.initial_seed())


def _seed_transforms(seed: int) -> None:
    """Seeds what timm's augmentation reads besides torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what timm reads


def share_of_batch(recipe: Recipe, processes: Processes) -> int:
    """Images per backward pass of one process."""
    if not (recipe.image_size and recipe.interpolation and recipe.mean and recipe.std):
        raise AftModelsError(
            f"recipe {recipe.name} leaves the images to the model: fill it with "
            "recipe.for_input(ModelInput.of(model)) first"
        )
    parts = processes.count * recipe.accumulate
    if recipe.batch_size % parts:
        raise AftModelsError(
            f"batch_size {recipe.batch_size} does not divide into {processes.count} processes x "
            f"{recipe.accumulate} accumulated steps; choose a multiple of {parts}"
        )
    return recipe.batch_size // parts


def count_updates(images: int, batch_size: int) -> int:
    """Whole updates in an epoch; the images left over wait for another epoch's order."""
    if images < batch_size:
        raise AftModelsError(
            f"{images} training images do not fill one batch of {batch_size}; set a batch_size "
            f"of at most {images}"
        )
    return images // batch_size


def mixed_seed(*parts: int) -> int:
    """One seed from several numbers, far apart for neighbors (numpy's SeedSequence)."""
    return (
        int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]) >> 1
    )  # torch seeds are signed
