"""What a run computes on: devices and processes change speed and rounding, not the recipe."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from aft_models.errors import AftModelsError

CPU = torch.device("cpu")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is; every sum is over all of them."""

    rank: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """Adds a tensor up over the processes, in place."""
        if self.count > 1:
            distributed.all_reduce(value)
        return value

    def share_buffers(self, module: nn.Module) -> None:
        """Gives every process the buffers of the main process, which are those it writes to files.

        Parameters are the same everywhere; on CPUs the batch norm of each process has counted the
        statistics of its own images since the last forward pass began.
        """
        if self.count > 1:
            for buffer in module.buffers():
                distributed.broadcast(buffer, 0)

    def gather(self, value: Any) -> list[Any]:
        """What each process has, in the order of ranks."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            distributed.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Returns when every process has come here."""
        if self.count > 1:
            distributed.barrier()


@dataclass(frozen=True)
class DeviceConfig:
    """Device, number format and layout."""

    device: torch.device = CPU
    precision: str = "fp32"  # of the forward pass; bf16 and fp16 need CUDA
    compile: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise AftModelsError(
                f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}"
            )
        if self.precision != "fp32" and self.device.type != "cuda":
            raise AftModelsError(
                f"precision {self.precision} needs a CUDA device, got {self.device}; use fp32"
            )

    def place(self, model: nn.Module, processes: Processes) -> nn.Module:
        """Moves a model here; batch norm then sees the images of every process."""
        model = model.to(self.device)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)
        if processes.count > 1 and self.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return model

    def wrap(self, model: nn.Module, processes: Processes) -> nn.Module:
        """What the loop calls instead of the model: compiled, and exchanging gradients."""
        wrapped: Any = model
        if processes.count > 1:
            on_cuda = self.device.type == "cuda"
            wrapped = DistributedDataParallel(
                wrapped, device_ids=[self.device] if on_cuda else None
            )
        if self.compile:
            wrapped = torch.compile(wrapped)
        module: nn.Module = wrapped
        return module

    def autocast(self) -> AbstractContextManager[Any]:
        """The number format of the forward pass."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, PRECISIONS[self.precision])

    def move(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Brings a batch here; images are (B, C, H, W), or (views, B, C, H, W)."""
        images = images.to(self.device, non_blocking=True)
        if self.channels_last and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, labels.to(self.device, non_blocking=True)
