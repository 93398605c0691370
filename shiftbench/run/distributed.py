"""A run that is shared: by processes under torchrun or `--nproc`, or by shards, jobs of an array.

Processes exchange small values through the key-value store of the group, and each of them shows
there that it is alive. One that dies is noticed by the others within a minute. Shards run the same
command with the same output on a shared file system. Which images a shard measures follows from its
number alone, so any of them may be killed, repeated or started later.
"""

from __future__ import annotations

import base64
import logging
import os
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from aft_models.training.device import Processes
from shiftbench.errors import ShiftbenchError, UsageError

T = TypeVar("T")

JOIN_TIMEOUT = timedelta(seconds=60)  # for all processes to appear
HEARTBEAT = 5.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without one after which a process is taken for dead
POLL = 0.05  # seconds between two looks at the store
COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # of the gradients of training
LAUNCHER = "SHIFTBENCH_LAUNCHER"  # process id of `launch`, for the processes that it starts


@dataclass(frozen=True)
class Group(Processes):
    """The processes of a run, and how they exchange results."""

    local_rank: int = 0  # on this machine: which GPU is ours
    store: Store | None = None  # shared by all of them; None: a single process
    _rounds: list[int] = field(default_factory=lambda: [0])  # exchanges so far
    _signs: dict[int, tuple[bytes, float]] = field(default_factory=dict)  # of life: last, and when

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The items that are this process's own: none is padded, none is given twice."""
        return items[self.rank :: self.count]

    def gather(self, value: T) -> list[T]:
        """What each process has, in the order of ranks.

        Raises:
            LostProcessError: A process has died.
        """
        if self.store is None:
            return [value]
        self._rounds[0] += 1
        names = [f"{self._rounds[0]}/{rank}" for rank in range(self.count)]
        with _reached():
            self.store.set(names[self.rank], base64.b64encode(pickle.dumps(value)).decode())
            while not self.store.check(names):
                self.check_alive()
                time.sleep(POLL)
            return [pickle.loads(base64.b64decode(self.store.get(name))) for name in names]

    def check_alive(self) -> None:
        """Notes the others' signs of life, and raises when one has shown none for a while."""
        assert self.store is not None
        for rank in range(self.count):
            with _reached():
                latest = self.store.get(f"alive/{rank}")
            now = time.monotonic()  # clocks of two machines may differ: this one decides
            sign, seen = self._signs.get(rank, (b"", now))
            if latest != sign:
                self._signs[rank] = latest, now
            elif now - seen > SILENCE and rank != self.rank:
                raise _lost(f"process {rank}")

    def publish(self, name: str, text: str) -> None:
        """Shows a text to the others under a name, which only the latest text has."""
        assert self.store is not None
        with _reached():
            self.store.set(f"{name}/{self.rank}", text)

    def published(self, name: str) -> list[str]:
        """What the other processes show under a name, as far as they do."""
        store = self.store
        assert store is not None
        others = [f"{name}/{rank}" for rank in range(self.count) if rank != self.rank]
        with _reached():
            return [store.get(other).decode() for other in others if store.check([other])]

    def wait(self) -> None:
        """Returns when every process has come here."""
        self.gather(None)

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Fails in every process when the block fails in one, so that none waits for the others."""
        error: ShiftbenchError | None = None
        try:
            yield
        except ShiftbenchError as raised:
            error = raised
        failed = [other for other in self.gather(error) if other is not None]
        if failed:
            raise error or failed[0]


SINGLE_PROCESS = Group()


class LostProcessError(ShiftbenchError):
    """A process of the group has died: each of the others says so, for no other may be left."""


def _lost(who: str) -> LostProcessError:
    return LostProcessError(
        f"{who} of the run has died or cannot be reached: finished parts are kept; run the same "
        "command to continue"
    )


@contextmanager
def _reached() -> Iterator[None]:
    """Says in a sentence that the process in which the store lived has died."""
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        raise _lost("the first process") from error


def _show_life(store: Store, rank: int, stop: threading.Event) -> None:
    """Changes a value now and then until it is told to stop."""
    with suppress(RuntimeError, ConnectionError):  # the store is gone: `gather` says so
        while not stop.wait(HEARTBEAT):
            store.set(f"alive/{rank}", uuid.uuid4().hex)


def in_torchrun() -> bool:
    """Whether torchrun, or our own launcher, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Joins the group that torchrun made; a single process when there is none."""
    end_with_launcher()
    if not in_torchrun() or os.environ["WORLD_SIZE"] == "1":
        yield SINGLE_PROCESS
        return
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    cuda = (device == "auto" or "cuda" in device) and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank)
    store = _join(rank, count)
    # The gradients of training travel over the process group, small objects through the store.
    backend = "cpu:gloo,cuda:nccl" if cuda and dist.is_nccl_available() else "gloo"
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=rank,
        world_size=count,
        timeout=COLLECTIVE_TIMEOUT,
    )
    stop = threading.Event()
    ours = PrefixStore("shiftbench", store)
    ours.set(f"alive/{rank}", "joined")
    life = threading.Thread(target=_show_life, args=(ours, rank, stop), daemon=True)
    life.start()
    try:
        yield Group(rank, count, local_rank, ours)
    finally:
        stop.set()
        life.join()
        dist.destroy_process_group()


def _join(rank: int, count: int) -> Store:
    """Connects to the key-value store of the group, which every process must do in time."""
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            count,
            is_master=rank == 0 and not hosted,
            timeout=JOIN_TIMEOUT,
            wait_for_workers=False,
        )
        run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        shared = PrefixStore(f"{run}/{attempt}", store)
        shared.set(f"joined/{rank}", "1")
        shared.wait([f"joined/{other}" for other in range(count)], JOIN_TIMEOUT)
    except RuntimeError as error:
        seconds = JOIN_TIMEOUT.total_seconds()
        raise ShiftbenchError(
            f"not all of the {count} processes of the run appeared within {seconds:.0f} s: check "
            "that each was started, and that it reaches "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        ) from error
    return shared


def is_launched() -> bool:
    """Whether `launch` started this process, and so speaks for it when it is interrupted."""
    return LAUNCHER in os.environ


def end_with_launcher() -> None:
    """Ends this process when the one that `launch`ed it ends, however that happens."""
    launcher = int(os.environ.get(LAUNCHER, "0"))
    if not launcher or not hasattr(os, "getppid") or sys.platform == "win32":
        return

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1.0)
        os._exit(1)  # nobody is left to read a message

    threading.Thread(target=watch, daemon=True).start()


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
    os.environ[LAUNCHER] = str(os.getpid())
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


@dataclass(frozen=True)
class Shard:
    """One of several equal shares of a run, by jobs that know nothing of each other."""

    index: int  # counted from 1
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise UsageError(
                f"expected a shard i/N with i from 1 to N, got {self}: the first of {self.count} "
                f"is 1/{self.count}"
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Reads `i/N`.

        >>> Shard.parse("2/8")
        Shard(index=2, count=8)
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(count)):
            raise UsageError(f"expected a shard i/N such as 2/8, got {text!r}")
        return cls(int(index), int(count))

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The items of this shard.

        >>> Shard(2, 3).share("abcdefg")
        'be'
        """
        return items[self.index - 1 :: self.count]


# Scheduler -> the variables that a job of an array finds: its number, how many there are, the
# first number, and the last one where the count is not given.
_ARRAYS = {
    "SLURM": (
        "SLURM_ARRAY_TASK_ID",
        "SLURM_ARRAY_TASK_COUNT",
        "SLURM_ARRAY_TASK_MIN",
        "SLURM_ARRAY_TASK_MAX",
    ),
    "PBS": ("PBS_ARRAY_INDEX", "PBS_ARRAY_COUNT", "PBS_ARRAY_MIN", ""),
    "Torque": ("PBS_ARRAYID", "PBS_ARRAY_COUNT", "PBS_ARRAY_MIN", ""),
    "LSF": ("LSB_JOBINDEX", "LSB_JOBINDEX_COUNT", "", "LSB_JOBINDEX_END"),
}


def shard_of_environment(environment: Mapping[str, str] = os.environ) -> tuple[Shard, str] | None:
    """The shard that a job array implies, and the variable that says so; None outside of one.

    >>> shard_of_environment({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8",
    ...                       "SLURM_ARRAY_TASK_MIN": "0"})
    (Shard(index=4, count=8), 'SLURM_ARRAY_TASK_ID')

    Raises:
        UsageError: The scheduler does not say how many jobs the array has, or their numbers have
            gaps.
    """
    for scheduler, (number, count, first, last) in _ARRAYS.items():
        index = environment.get(number, "")
        if not index.isdecimal() or (scheduler == "LSF" and index == "0"):  # 0: not an array
            continue
        start = int(environment.get(first, "1"))
        total = environment.get(count, environment.get(last, ""))
        if not total.isdecimal():
            raise UsageError(
                f"{number} is {index}, and {scheduler} does not say of how many jobs: give "
                f"--shard i/N, or set {count}"
            )
        end = environment.get(last, "")
        if end.isdecimal() and int(end) - start + 1 != int(total):
            raise UsageError(
                f"the {total} jobs of the array are numbered {start} to {end}, with gaps: number "
                "them one by one, or give --shard i/N"
            )
        return Shard(int(index) - start + 1, int(total)), number
    return None
