"""Shards: N processes share the images of a run, without any communication."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shiftbench.errors import UsageError

T = TypeVar("T")

SHARD_VARIABLE = "SHIFTBENCH_SHARD"  # i/N: the shard of this process, for any other scheduler
COUNT_VARIABLE = "SHIFTBENCH_SHARDS"  # N, where the scheduler states only the number of the task


@dataclass(frozen=True)
class Shard:
    """One of N shares of the images; shard i contains every N-th image."""

    index: int = 1  # counted from 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise UsageError(
                f"expected a shard i/N with i from 1 to N, got {self}. The first of {self.count} "
                f"is 1/{max(self.count, 1)}"
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `i/N`.

        >>> Shard.parse("2/8")
        Shard(index=2, count=8)
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(count)):
            raise UsageError(f"expected a shard i/N such as 2/8, got {text!r}")
        return cls(int(index), int(count))

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items of this shard.

        >>> Shard(2, 3).share("abcdefg")
        'be'
        """
        return items[self.index - 1 :: self.count]

    def split(self, count: int) -> list[Shard]:
        """Divide the images of this shard among `count` shards.

        >>> Shard(2, 3).split(2)
        [Shard(index=2, count=6), Shard(index=5, count=6)]
        """
        return [Shard(self.index + self.count * i, self.count * count) for i in range(count)]


WHOLE = Shard()


NO_IMAGES = Shard(sys.maxsize, sys.maxsize)  # no data set is that large: reads, predicts nothing


@dataclass(frozen=True)
class Scheduler:
    """Environment variables that number the tasks of a scheduler.

    Tasks are counted by `count`, or numbered from `first` to `last` in steps of `step`.
    """

    number: str  # of this task
    count: str = ""
    first: str | int = 0  # a variable, or the value where the scheduler has no variable
    last: str = ""
    step: str = ""
    absent: str = ""  # value of `number` outside of a job array


# Nearest to the process first: torchrun may run inside a job, and a job inside a container.
SCHEDULERS = {
    "torchrun": Scheduler("RANK", "WORLD_SIZE"),
    "SLURM": Scheduler(
        "SLURM_ARRAY_TASK_ID",
        "SLURM_ARRAY_TASK_COUNT",
        "SLURM_ARRAY_TASK_MIN",
        "SLURM_ARRAY_TASK_MAX",
        "SLURM_ARRAY_TASK_STEP",
    ),
    "PBS": Scheduler("PBS_ARRAY_INDEX"),
    "Torque": Scheduler("PBS_ARRAYID"),
    "SGE": Scheduler(
        "SGE_TASK_ID",
        first="SGE_TASK_FIRST",
        last="SGE_TASK_LAST",
        step="SGE_TASK_STEPSIZE",
        absent="undefined",
    ),
    "LSF": Scheduler(
        "LSB_JOBINDEX", first=1, last="LSB_JOBINDEX_END", step="LSB_JOBINDEX_STEP", absent="0"
    ),
    "AWS Batch": Scheduler("AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"),
    "Google Batch": Scheduler("BATCH_TASK_INDEX", "BATCH_TASK_COUNT"),
    "Kubernetes": Scheduler("JOB_COMPLETION_INDEX"),
}
# Set by `srun` for the processes of a step; a batch script has the first one without the second.
STEP_NUMBER, STEP_COUNT = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"


def shard_of_environment(environment: Mapping[str, str] = os.environ) -> tuple[Shard, str] | None:
    """Return the shard that a scheduler implies, and the variables it was read from.

    >>> array = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "32"}
    >>> shard_of_environment(array)
    (Shard(index=3, count=32), 'SLURM_ARRAY_TASK_ID=2')

    Raises:
        UsageError: A variable is malformed, or the number of tasks is unknown.
    """
    if text := environment.get(SHARD_VARIABLE):
        return Shard.parse(text), f"{SHARD_VARIABLE}={text}"
    present = [
        scheduler
        for scheduler in SCHEDULERS.values()
        if environment.get(scheduler.number, scheduler.absent) != scheduler.absent
    ]
    chosen = present[:1]
    tasks = _integer(environment, STEP_COUNT, default=1)
    in_step = tasks > 1 and SCHEDULERS["torchrun"] not in chosen
    if in_step:  # a step may divide the share of a task of a SLURM array, and of no other scheduler
        chosen = [scheduler for scheduler in present if scheduler is SCHEDULERS["SLURM"]]
    shard, read = Shard(), list[str]()
    for scheduler in chosen:
        shard, note = _shard(scheduler, environment)
        read.append(f"{scheduler.number}={environment[scheduler.number]}{note}")
    if in_step:
        shard = shard.split(tasks)[_integer(environment, STEP_NUMBER)]
        read.append(f"{STEP_NUMBER}={environment[STEP_NUMBER]}")
    ignored = [f"ignored {other.number}" for other in present if other not in chosen]
    return (shard, ", ".join(read + ignored)) if read else None


def _shard(scheduler: Scheduler, environment: Mapping[str, str]) -> tuple[Shard, str]:
    """Return the shard of a task, and a note if the numbers of the tasks have gaps."""
    number = _integer(environment, scheduler.number)
    if COUNT_VARIABLE in environment:
        count = _integer(environment, COUNT_VARIABLE)
        # N consecutive numbers are N different shards, whether they start at 0 or at 1.
        return Shard(number % max(count, 1) + 1, count), ""
    first = scheduler.first
    first = first if isinstance(first, int) else _integer(environment, first, default=0)
    step = _integer(environment, scheduler.step, default=1) or 1
    if scheduler.last in environment:
        last = _integer(environment, scheduler.last)
        count = (last - first) // step + 1
        stated = _integer(environment, scheduler.count, default=count)
        if stated != count:
            note = f" of {first} to {last}, {stated} tasks: repeat the command for the other shards"
            return Shard(number - first + 1, last - first + 1), note
    elif scheduler.count in environment:
        count = _integer(environment, scheduler.count)
    else:
        raise UsageError(
            f"cannot choose the images of {scheduler.number}={number}: the number of tasks is "
            f"unknown. Set {COUNT_VARIABLE}=N, or pass --shard i/N"
        )
    return Shard((number - first) // step + 1, count), ""


def _integer(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Read a variable that is an integer."""
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise UsageError(
            f"expected an integer in {name}, got {text!r}. Pass --shard i/N, or unset {name}"
        )
    return int(text)
