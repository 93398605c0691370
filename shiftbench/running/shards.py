"""Shards: N processes share the images of a run and know nothing of each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shiftbench.errors import UsageError

T = TypeVar("T")

SHARD_VARIABLE = "SHIFTBENCH_SHARD"  # i/N, for schedulers that are not listed below


@dataclass(frozen=True)
class Shard:
    """One of N shares of the images; process i predicts every N-th image."""

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


# Scheduler -> variables of a job of an array: its number, the count, the first and last number.
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
    """Return the shard that a job array implies, and the variable it was read from.

    >>> shard_of_environment({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8",
    ...                       "SLURM_ARRAY_TASK_MIN": "0"})
    (Shard(index=4, count=8), 'SLURM_ARRAY_TASK_ID')

    Raises:
        UsageError: The number of jobs is unknown, or their numbers have gaps.
    """
    if text := environment.get(SHARD_VARIABLE):
        return Shard.parse(text), SHARD_VARIABLE
    for scheduler, (number, count, first, last) in _ARRAYS.items():
        index = environment.get(number, "")
        if not index.isdecimal() or (scheduler == "LSF" and index == "0"):  # 0: not an array
            continue
        start = int(environment.get(first, "1"))
        total = environment.get(count, environment.get(last, ""))
        if not total.isdecimal():
            raise UsageError(
                f"{number} is {index}, but {scheduler} does not state the number of jobs. Pass "
                f"--shard i/N, or set {count}"
            )
        end = environment.get(last, "")
        if end.isdecimal() and int(end) - start + 1 != int(total):
            raise UsageError(
                f"the {total} jobs of the array are numbered {start} to {end}, with gaps. Number "
                "them one by one, or pass --shard i/N"
            )
        return Shard(int(index) - start + 1, int(total)), number
    return None
