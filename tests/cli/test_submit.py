"""`--submit`: the command as jobs, on this machine and, as far as its script goes, on SLURM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import shiftbench

from shiftbench.errors import UsageError
from shiftbench.records.record import read_record
from shiftbench.run.suite import read_suite, run_suite
from shiftbench_cli.submit import follow, submit

pytest.importorskip("submitit")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="submitit is for POSIX")

NET = """
import os, time
from torch import nn, manual_seed

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        manual_seed(0)
        self.conv = nn.Conv2d(3, 16, 4, stride=4)
        self.head = nn.Linear(16, 12)

    def forward(self, images):
        time.sleep(float(os.environ.get("SLOW", "0")))
        return self.head(self.conv(images).relu().amax((2, 3)))

def make():
    return Net(), {"input_size": 16, "mean": 0.5, "std": 0.25}
"""
SUITE = """
limit: 24
max_shift: 1
attacks: crop
consistency: []
models: [net.py:make]
"""
PATIENT = """
import sys
from shiftbench.run import folder, runner
from shiftbench_cli.main import main
runner.FIRST_IMAGES, runner.GROWTH, folder.FIRST_SAVE = 2, 1, 1e6
append = folder.FolderStore.append
def say(self, *rows):
    append(self, *rows)
    print("measured", file=sys.stderr, flush=True)
folder.FolderStore.append = say
main(sys.argv[1:])
"""
FOLDER = "net.py_make--scenes"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setattr("shiftbench_cli.submit.POLL", 0.1)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "mine.yaml").write_text(SUITE)
    return tmp_path


def assert_undisturbed(place: Path) -> None:
    *_, whole = run_suite(read_suite("mine.yaml"), place / "whole")
    assert whole.result is not None
    assert whole.result.record is not None
    record = read_record(place / "results" / "runs" / "mine" / FOLDER)
    assert record.samples()["key"].tolist() == whole.result.record.samples()["key"].tolist()
    assert record.scores == whole.result.record.scores


def test_local_jobs_make_the_record(place: Path) -> None:
    words = ["run", "mine.yaml", "--submit", "local", "--jobs", "2", "--wait", "--device", "cpu"]
    code, out, err = shiftbench(*words)
    assert code == 0, err
    assert "2 jobs, " in err
    assert "logs in results/runs/mine/jobs" in err
    assert "net.py:make: adversarial crop 12/12" in err, "the progress of the first job"
    assert "already complete" in err
    assert "net.py:make" in out
    assert_undisturbed(place)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the job in /proc")
def test_a_job_that_is_preempted_is_queued_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW", "1")
    words = ["run", "mine.yaml", "--device", "cpu", "-b", "2"]
    runs = place / "results" / "runs" / "mine"
    (job,) = submit(words, runs / "jobs", system="local", jobs=1, options="time=60")
    deadline = time.monotonic() + 200
    while not list(runs.rglob("parts/*/*.parquet")) and time.monotonic() < deadline:
        assert not job.done(), job.stderr()
        time.sleep(0.1)
    controller = job._process.pid
    (worker,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    monkeypatch.setenv("SLOW", "0")
    os.kill(int(worker), signal.SIGUSR1)
    assert follow([job]) == []
    log = job.stdout() or ""
    assert log.count("Requeued job") == 1
    assert "Exiting after successful completion" in log
    assert_undisturbed(place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_what_was_measured_is_saved_when_a_scheduler_ends_the_process(
    number: signal.Signals, place: Path
) -> None:
    words = ["run", "mine.yaml", "--device", "cpu", "-b", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", PATIENT, *words],
        env={**os.environ, "SLOW": "0.05"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:  # the first images of the last metric were measured
        if line.startswith("measured"):
            break
    parts = place / "results" / "runs" / "mine" / FOLDER / "parts"
    assert not list(parts.glob("*/*.parquet")), "rows wait in memory"
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert err.strip().splitlines()[-1].startswith("interrupted: finished parts are kept")
    assert "Traceback" not in err
    assert list(parts.glob("*/*.parquet"))


def test_jobs_that_fail_are_named_with_their_logs(place: Path) -> None:
    (place / "mine.yaml").write_text(SUITE.replace("net.py:make", "net.py:gone"))
    words = ["run", "mine.yaml", "--submit", "local", "--jobs", "1", "--wait", "--device", "cpu"]
    code, _, err = shiftbench(*words)
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith("error: job ")
    assert "failed with code 1: see " in last


def test_an_array_goes_to_slurm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = place / "bin"
    tools.mkdir()
    for name, text in {"srun": "", "sbatch": f"cp $1 {place}/script; echo job 4242"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    options = "partition=gpu,time=60,gpus=1"
    jobs = submit(["run", "mine.yaml"], place / "jobs", system="slurm", jobs=3, options=options)
    assert [job.job_id for job in jobs] == ["4242_0", "4242_1", "4242_2"]
    script = (place / "script").read_text()
    for line in ("array=0-2", "partition=gpu", "time=60", "gpus-per-node=1", "signal="):
        assert line in script


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("partitoin=gpu", "unknown SLURM option 'partitoin'. Did you mean 'partition'"),
        ("gpu", "expected --slurm key=value,..., got 'gpu'"),
        ("time=1h", "expected a whole number for time in --slurm, got '1h'"),
    ],
)
def test_options_that_slurm_does_not_know(options: str, sentence: str, place: Path) -> None:
    with pytest.raises(UsageError) as raised:
        submit(["run"], place / "jobs", system="local", jobs=1, options=options)
    assert sentence in str(raised.value)


def test_what_is_not_installed_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(UsageError, match=r"no SLURM here .* --submit local"):
        submit(["run"], place / "jobs", system="slurm", jobs=1, options=None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r"pip install 'shiftbench\[cluster\]'"):
        submit(["run"], place / "jobs", system="local", jobs=1, options=None)
