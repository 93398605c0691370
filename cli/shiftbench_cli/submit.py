"""`--submit slurm`: the command as a SLURM job array that continues after its time limit."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shiftbench.errors import UsageError
from shiftbench.files import write_text
from shiftbench.running.shards import COUNT_VARIABLE
from shiftbench_cli import render

ROUNDS = "SHIFTBENCH_ROUNDS"  # file with a line per round since the last prediction
OWN_VALUES = ("--submit", "--jobs", "--slurm")  # options that the job script leaves out
OWN_FLAGS = ("--wait", "--dry-run")
# SIGUSR1 arrives a minute before the time limit. Bash runs a trap while it waits, hence two waits:
# the second one returns the exit code of the command. SIGTERM is a cancellation: no requeue.
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=shiftbench --array=0-{last}
#SBATCH --output={folder}/%A_%a.log --open-mode=append
#SBATCH --requeue --signal=B:USR1@60
{options}
export {count}={jobs} {rounds}={folder}/${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID.rounds
cd {here}
echo round >> ${rounds}  # the command removes the file after a prediction
{command} & pid=$!
trap 'limit=1; kill -USR1 $pid' USR1
trap 'kill -TERM $pid' TERM
wait $pid; wait $pid; code=$?
if [ "$limit" ] && [ $code -gt 128 ]; then  # continue after the time limit
  if [ "$(cat ${rounds} 2>/dev/null | wc -l)" -lt 2 ]; then scontrol requeue $SLURM_JOB_ID
  else echo "error: two rounds without a prediction. Raise the time limit: --slurm time=..."; fi
fi
exit $code
"""


def submit_slurm(
    words: Sequence[str], output: Path, *, jobs: int, slurm: str, wait: bool, dry_run: bool
) -> int:
    """Write a job script beside the records and submit it.

    Args:
        words: Arguments of `shiftbench run`.
        output: Folder of records; the script and the logs are in `jobs` below it.
        jobs: Number of tasks, one shard each.
        slurm: `KEY=VALUE,...`, options of sbatch.
        wait: Wait until all tasks have ended.
        dry_run: Print the script instead.

    Returns:
        The exit code of sbatch; with `wait`, the largest exit code of a task.
    """
    folder = (output / "jobs").absolute()
    text = job_script(words, folder, jobs=jobs, slurm=slurm)
    if dry_run:
        render.print_text(text)
        return 0
    if shutil.which("sbatch") is None:
        raise UsageError(
            "cannot submit: there is no sbatch on this machine. Submit from a login node of the "
            "cluster, or print the script with --dry-run"
        )
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "run.sbatch"
    write_text(script, text)
    command = ["sbatch", *(["--wait"] if wait else []), str(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0 or wait:
        render.note(f"{done.stdout.strip()}: {jobs} tasks, script and logs in {folder}")
    if done.returncode and not done.stdout:
        raise UsageError(f"sbatch rejected {script}, see above. Correct --slurm")
    return done.returncode


def job_script(words: Sequence[str], folder: Path, *, jobs: int, slurm: str) -> str:
    """Return the script of a job array."""
    command = [sys.executable, "-m", "shiftbench_cli", "run", *_without_own(words)]
    return SCRIPT.format(
        jobs=jobs,
        last=jobs - 1,
        folder=shlex.quote(str(folder)),
        options="\n".join(f"#SBATCH --{key}={value}" for key, value in _options(slurm)),
        count=COUNT_VARIABLE,
        rounds=ROUNDS,
        here=shlex.quote(str(Path.cwd())),
        command=shlex.join(command),
    )


def _options(text: str) -> list[tuple[str, str]]:
    """Read `partition=gpu,time=60`; a part without `=` continues the value before it."""
    options: list[tuple[str, str]] = []
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals and options:
            options[-1] = (options[-1][0], f"{options[-1][1]},{part}")
        elif not equals or not key.strip() or "\n" in part:
            raise UsageError(f"expected --slurm KEY=VALUE,..., got {part!r}")
        else:
            options.append((key.strip(), value.strip()))
    return options


def _without_own(words: Sequence[str]) -> list[str]:
    """Leave out the options of the submission itself."""
    left, rest = [], iter(words)
    for word in rest:
        if word in OWN_VALUES:
            next(rest, None)
        elif word not in OWN_FLAGS and word.partition("=")[0] not in OWN_VALUES:
            left.append(word)
    return left


def count_rounds_anew() -> None:
    """Record for the job script that this round made a prediction."""
    if name := os.environ.get(ROUNDS):
        Path(name).unlink(missing_ok=True)
