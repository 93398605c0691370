"""Shards of the images, and the shard that each scheduler implies."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftbench.errors import UsageError
from shiftbench.running.shards import NO_IMAGES, Shard, shard_of_environment

SLURM = {"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "3"}
STEPPED = {
    "SLURM_ARRAY_TASK_COUNT": "4",
    "SLURM_ARRAY_TASK_MIN": "10",
    "SLURM_ARRAY_TASK_MAX": "16",
    "SLURM_ARRAY_TASK_STEP": "2",
}
# The variables that all tasks of a scheduler have, the variable of a task, and its values in order.
SCHEDULERS = {
    "own": ({}, "SHIFTBENCH_SHARD", ("1/4", "2/4", "3/4", "4/4")),
    "torchrun": ({"WORLD_SIZE": "4"}, "RANK", "0123"),
    "SLURM array": (SLURM, "SLURM_ARRAY_TASK_ID", "0123"),
    "SLURM array with offset and step": (STEPPED, "SLURM_ARRAY_TASK_ID", ("10", "12", "14", "16")),
    "srun": ({"SLURM_STEP_NUM_TASKS": "4"}, "SLURM_PROCID", "0123"),
    "PBS": ({"SHIFTBENCH_SHARDS": "4"}, "PBS_ARRAY_INDEX", "0123"),
    "Torque": ({"SHIFTBENCH_SHARDS": "4"}, "PBS_ARRAYID", "0123"),
    "SGE": (
        {"SGE_TASK_FIRST": "2", "SGE_TASK_LAST": "8", "SGE_TASK_STEPSIZE": "2"},
        "SGE_TASK_ID",
        "2468",
    ),
    "LSF": ({"LSB_JOBINDEX_END": "4", "LSB_JOBINDEX_STEP": "1"}, "LSB_JOBINDEX", "1234"),
    "AWS Batch": ({"AWS_BATCH_JOB_ARRAY_SIZE": "4"}, "AWS_BATCH_JOB_ARRAY_INDEX", "0123"),
    "Google Batch": ({"BATCH_TASK_COUNT": "4"}, "BATCH_TASK_INDEX", "0123"),
    "Kubernetes": ({"SHIFTBENCH_SHARDS": "4"}, "JOB_COMPLETION_INDEX", "0123"),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_shard_of_environment_numbers_the_tasks_of_a_scheduler(name: str) -> None:
    common, variable, values = SCHEDULERS[name]
    shards = [shard_of_environment({**common, variable: value}) for value in values]
    assert shards == [(Shard(i, 4), f"{variable}={values[i - 1]}") for i in range(1, 5)]


@pytest.mark.parametrize("first", [0, 1, 7])
def test_stated_count_gives_every_shard_once_whatever_the_first_number(first: int) -> None:
    numbers = range(first, first + 5)
    found = [
        shard_of_environment({"SLURM_ARRAY_TASK_ID": str(n), "SHIFTBENCH_SHARDS": "5"})
        for n in numbers
    ]
    assert sorted(shard.index for shard, _ in filter(None, found)) == [1, 2, 3, 4, 5]


def test_slurm_array_with_gaps_is_read_by_position() -> None:
    gaps = {"SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "7"}
    found = shard_of_environment({**gaps, "SLURM_ARRAY_TASK_ID": "5"})
    assert found is not None
    assert found[0] == Shard(5, 7)
    assert "3 tasks: repeat the command" in found[1]


def test_one_resubmitted_task_predicts_everything_that_is_missing() -> None:
    one = {"SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_MAX": "3"}
    assert shard_of_environment({**one, "SLURM_ARRAY_TASK_ID": "3"})[0] == Shard(1, 1)


def test_srun_divides_the_share_of_an_array_task() -> None:
    tasks = [
        shard_of_environment(
            {**SLURM, "SLURM_ARRAY_TASK_ID": str(i), "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": p}
        )
        for i in range(4)
        for p in "01"
    ]
    shards = [shard for shard, _ in filter(None, tasks)]
    assert sorted(item for s in shards for item in s.share(range(50))) == list(range(50))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # a batch script, which runs once
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SGE_TASK_ID": "undefined"},
        {"LSB_JOBINDEX": "0"},
    ],
)
def test_shard_of_environment_without_array_is_none(environment: dict[str, str]) -> None:
    assert shard_of_environment(environment) is None


def test_two_schedulers_take_the_nearest_and_name_the_other() -> None:
    shard, source = shard_of_environment(
        {"RANK": "1", "WORLD_SIZE": "2", "JOB_COMPLETION_INDEX": "3"}
    ) or (None, "")
    assert shard == Shard(2, 2)
    assert source == "RANK=1, ignored JOB_COMPLETION_INDEX"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JOB_COMPLETION_INDEX": "3"}, "number of tasks is unknown. Set SHIFTBENCH_SHARDS=N"),
        ({"PBS_ARRAY_INDEX": "3"}, "PBS_ARRAY_INDEX=3"),
        ({"RANK": "1"}, "number of tasks is unknown"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "expected an integer in RANK, got 'x'"),
        ({"BATCH_TASK_INDEX": "5", "BATCH_TASK_COUNT": "4"}, "expected a shard i/N"),
        ({"BATCH_TASK_INDEX": "0", "SHIFTBENCH_SHARDS": "0"}, "expected a shard i/N"),
        ({"SHIFTBENCH_SHARD": "5/4"}, "expected a shard i/N with i from 1 to N, got 5/4"),
        ({"SHIFTBENCH_SHARD": "half"}, "expected a shard i/N such as 2/8, got 'half'"),
    ],
)
def test_shard_of_environment_invalid_raises_usage_error(
    environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        shard_of_environment(environment)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 60))
def test_split_shards_contain_the_images_of_the_shard(count: int, parts: int, images: int) -> None:
    for index in range(1, count + 1):
        shard = Shard(index, count)
        divided = [item for part in shard.split(parts) for item in part.share(range(images))]
        assert sorted(divided) == list(shard.share(range(images)))
    assert not NO_IMAGES.share(range(images))
