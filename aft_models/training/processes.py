"""The processes that train together; alone where torch.distributed has no group."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, distributed, nn


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is; every sum is over all of them."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> Processes:
        """The group that torchrun's environment made, when `init_process_group` has joined it."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls()

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
        """Gives every process the buffers of the first, which are those that it writes to files.

        Parameters are the same everywhere; on CPUs the batch norm of each process has counted the
        statistics of its own images since the last forward pass began.
        """
        if self.count > 1:
            for buffer in module.buffers():
                distributed.broadcast(buffer, 0)

    def wait(self) -> None:
        """Returns when every process has come here."""
        if self.count > 1:
            distributed.barrier()
