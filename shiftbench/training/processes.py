"""Processes that share a training, under torchrun or `--nproc`."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from aft_models.training.device import Processes
from shiftbench.errors import ShiftbenchError

LAUNCHER = "SHIFTBENCH_LAUNCHER"  # process id of `launch`, for the processes that it starts


def in_torchrun() -> bool:
    """Return True if torchrun, or `launch`, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def local_rank() -> int:
    """Return the number of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Join the process group that torchrun announces; a single process without it."""
    _end_with_launcher()
    if not in_torchrun() or os.environ["WORLD_SIZE"] == "1":
        yield Processes()
        return
    cuda = (device == "auto" or "cuda" in device) and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank())
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda and dist.is_nccl_available() else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def is_launched() -> bool:
    """Return True if `launch` started this process."""
    return LAUNCHER in os.environ


def _end_with_launcher() -> None:
    """End this process when the process that launched it ends, even by SIGKILL."""
    launcher = int(os.environ.get(LAUNCHER, "0"))
    if not launcher or sys.platform == "win32":
        return

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def launch(processes: int, command: Sequence[str]) -> int:
    """Run `python -m <command>` as several processes of this machine, and wait for them.

    Returns:
        0, or the exit code of the process that failed first, which printed its own error.

    Raises:
        ShiftbenchError: A process was killed by a signal.
    """
    # The launcher's log would repeat the error of a process as a traceback.
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
    os.environ[LAUNCHER] = str(os.getpid())
    # Processes that each use all cores would slow each other down.
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
            f"process {rank} of {processes} was ended by signal {-failure.exitcode}. Repeat the "
            "command to continue from the last epoch"
        ) from error
    return 0
