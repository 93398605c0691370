"""Devices and processes of a run. They change speed and rounding, not the recipe."""

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
    """Rank and number of processes; every sum is over all of them."""

    rank: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """True if this process writes files and reports progress."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """Sum a tensor over the processes, in place."""
        if self.count > 1:
            distributed.all_reduce(value)
        return value

    def share_buffers(self, module: nn.Module) -> None:
        """Copy the buffers of the main process, which writes them to files, to every process.

        Parameters are equal in all processes. On CPUs the batch norm of each process has the
        statistics of its own images since the start of the last forward pass.
        """
        if self.count > 1:
            for buffer in module.buffers():
                distributed.broadcast(buffer, 0)

    def gather(self, value: Any) -> list[Any]:
        """Gather the value of each process, in the order of ranks."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            distributed.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait until every process has called this function."""
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
        """Move a model to the device; batch norm then uses the images of every process."""
        model = model.to(self.device)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)
        if processes.count > 1 and self.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return model

    def wrap(self, model: nn.Module, processes: Processes) -> nn.Module:
        """Wrap a model for the loop: compiled, and exchanging gradients between processes."""
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
        """Return the context of the number format of the forward pass."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, PRECISIONS[self.precision])

    def move(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Move a batch to the device; images are (B, C, H, W), or (views, B, C, H, W)."""
        images = images.to(self.device, non_blocking=True)
        if self.channels_last and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, labels.to(self.device, non_blocking=True)
