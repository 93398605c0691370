"""Several processes on one run: torch.distributed, or none of it when there is one process."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from aft_models.training.device import Processes
from shiftbench.errors import ShiftbenchError

T = TypeVar("T")

# Ranks wait for the slowest one at the end; one that died is torchrun's to notice, not a timeout's.
BARRIER_TIMEOUT = timedelta(days=7)
LAUNCHED = "SHIFTBENCH_LAUNCHED"  # set for the processes that `launch` starts


@dataclass(frozen=True)
class Group(Processes):
    """The processes of a run, and how they exchange results."""

    local_rank: int = 0  # on this machine: which GPU is ours

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The items that are this process's own: none is padded, none is given twice."""
        return items[self.rank :: self.count]

    def gather(self, value: T) -> list[T]:
        """What each process has, in the order of ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Fails in every process when the block fails in one, so that none waits for the others."""
        error: ShiftbenchError | None = None
        try:
            yield
        except ShiftbenchError as raised:
            error = raised
        failed = [found for found in self.gather(error) if found is not None]
        if failed:
            raise error or failed[0]


SINGLE_PROCESS = Group()


def in_torchrun() -> bool:
    """Whether torchrun, or our own launcher, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Joins the group that torchrun made; alone when there is none.

    Args:
        device: Where the work goes, as on the command line; `auto` takes GPUs if there are any.
    """
    if not in_torchrun() or os.environ["WORLD_SIZE"] == "1":
        yield SINGLE_PROCESS
        return
    cuda = (device == "auto" or "cuda" in device) and torch.cuda.is_available()
    # Small objects travel over gloo on the CPU whatever the model runs on.
    backend = "cpu:gloo,cuda:nccl" if cuda and dist.is_nccl_available() else "gloo"
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(backend, timeout=BARRIER_TIMEOUT)
    try:
        yield Group(dist.get_rank(), dist.get_world_size(), local_rank)
    finally:
        dist.destroy_process_group()


def is_launched() -> bool:
    """Whether `launch` started this process, and so speaks for it when it is interrupted."""
    return LAUNCHED in os.environ


def launch(processes: int, command: Sequence[str]) -> int:
    """Runs `python -m <command>` as several processes of this machine, and waits for them.

    Returns:
        0, or the exit code of the process that failed first, which has said why itself.

    Raises:
        ShiftbenchError: A process was killed, and could not say so.
    """
    # The launcher's own log repeats as tracebacks what a failing process has said in a sentence.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
    )
    os.environ[LAUNCHED] = "1"
    # Processes that each use all cores would only get in each other's way.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    try:
        elastic_launch(config, sys.executable)("-m", *command)
    except SignalException as error:
        raise KeyboardInterrupt from error
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return int(failure.exitcode)
        raise ShiftbenchError(
            f"process {rank} of {processes} was ended by signal {-failure.exitcode}: finished "
            "parts are kept; run the same command to continue"
        ) from error
    return 0
