"""`--submit slurm|local`: the command as an array of jobs, through submitit.

Each job measures one shard of everything. So all of them cost about the same whatever the models
cost, nobody has to know beforehand, and the first model is finished first.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from shiftbench.errors import UsageError
from shiftbench.registry import unknown_name
from shiftbench_cli.main import cli, explain

SYSTEMS = ("no", "slurm", "local")
POLL = 1.0  # seconds between two looks at the jobs
WEEK = 7 * 24 * 60  # minutes: the time limit of local jobs
TIMEOUTS = 1000  # that a job may have before it is not queued again
NUMBERS = {"time": "timeout_min", "gpus": "gpus_per_node"}  # what submitit calls otherwise


@dataclass(frozen=True)
class ShardJob:
    """One job of the array: the command for one shard."""

    words: tuple[str, ...]

    def __call__(self) -> int:
        """Runs the command; returns its exit code."""
        # submitit queues a job again on its own signal, and ignores SIGTERM: this one then saves
        # what it has, and whoever sent it decides whether the job is started again.
        signal.signal(signal.SIGUSR1, signal.getsignal(signal.SIGUSR2))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            return int(cli.main(list(self.words), "shiftbench", standalone_mode=False) or 0)
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except Exception as error:
            message, code = explain(error)
            click.echo(f"error: {message}", err=True)
            return code

    def checkpoint(self) -> Any:
        """The same again: what was measured is kept, and not measured anew."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    command: Sequence[str], folder: Path, *, system: str, jobs: int, options: str | None
) -> list[Any]:
    """Submits a command as `jobs` shards, with logs in `folder`; returns the jobs."""
    try:
        import submitit
    except ImportError as error:
        raise UsageError("--submit needs submitit: pip install 'shiftbench[cluster]'") from error
    try:
        executor = submitit.AutoExecutor(folder, system, slurm_max_num_timeout=TIMEOUTS)
    except RuntimeError as error:
        raise UsageError(
            "there is no SLURM here (no srun): submit from a machine of the cluster, or use "
            "--submit local"
        ) from error
    given = _parameters(options, submitit.SlurmExecutor)
    usual = {"timeout_min": WEEK} if system == "local" else {}
    executor.update_parameters(**{"name": "shiftbench", **usual, **given})
    with executor.batch():
        return [
            executor.submit(ShardJob((*command, "--submit", "no", "--shard", f"{i}/{jobs}")))
            for i in range(1, jobs + 1)
        ]


def _parameters(options: str | None, slurm: Any) -> dict[str, str | int]:
    """`partition=gpu,time=60` as submitit calls them."""
    known = {*slurm._valid_parameters(), *NUMBERS} - {"job_name", "map_count"}
    parameters: dict[str, str | int] = {}
    for pair in filter(None, (options or "").split(",")):
        key, equals, value = (word.strip() for word in pair.partition("="))
        if not equals or not value:
            raise UsageError(f"expected --slurm key=value,..., got {pair!r}")
        if key not in known:
            raise unknown_name("SLURM option", key, known)
        if key in NUMBERS and not value.isdecimal():
            raise UsageError(f"expected a whole number for {key} in --slurm, got {value!r}")
        parameters[NUMBERS.get(key, f"slurm_{key}")] = int(value) if value.isdecimal() else value
    return parameters


def follow(jobs: Sequence[Any]) -> list[str]:
    """Repeats the progress of the first job, which is that of all, until the last one ends.

    Returns:
        What went wrong, a sentence per job.
    """
    shown = 0
    while True:
        ended = all(job.done() for job in jobs)
        text = jobs[0].stderr() or ""
        whole = text if ended else text[: text.rfind("\n") + 1]
        click.echo(whole[shown:], err=True, nl=False)
        shown = len(whole)
        if ended:
            break
        time.sleep(POLL)
    problems = []
    for job in jobs:
        error = job.exception()
        code = None if error else job.result()
        if code != 0:
            what = "was ended" if error else f"failed with code {code}"
            problems.append(f"job {job.job_id} {what}: see {job.paths.stderr}")
    return problems
