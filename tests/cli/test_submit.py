"""`--submit slurm`: the job script, and a real SLURM where it can be started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import shiftbench

from shiftbench.records.result import load_record

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="job scripts are for bash")

START = Path(__file__).resolve().parents[3] / "shared" / "slurm" / "start"
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
        if os.environ.get("FAILS") == os.environ.get("SLURM_ARRAY_TASK_ID", "none"):
            raise ValueError("this model fails")
        return self.head(self.conv(images).relu().amax((2, 3)))

def make():
    return Net(), {"input_size": 16, "mean": 0.5, "std": 0.25}
"""
SUITE = """
defaults: {limit: 24, max_shift: 1, attacks: [crop], consistency: []}
runs: [{model: net.py:make}]
"""
RECORD = Path("results/runs/mine/net.py_make--scenes")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "mine.yaml").write_text(SUITE)
    return tmp_path


def submit(*more: str, code: int = 0) -> tuple[str, str]:
    words = ("run", "mine.yaml", "--device", "cpu", "-q", "--submit", "slurm", "--jobs", "4", *more)
    return shiftbench(*words, code=code)[1:]


def test_submit_dry_run_prints_a_valid_script(place: Path) -> None:
    script, _ = submit("--slurm", "partition=gpu,time=60,exclude=n1,n2", "--dry-run")
    for line in ("--array=0-3", "--partition=gpu\n", "--time=60\n", "--exclude=n1,n2\n", "@60\n"):
        assert line in script
    assert "shiftbench_cli run mine.yaml --device cpu -q & pid=$!" in script
    assert not (place / "results").exists()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_submit_writes_the_script_beside_the_records(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = place / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\necho $@ > {place}/words\necho Submitted batch job 42\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}{os.pathsep}{os.environ['PATH']}")
    out, err = submit("--wait")
    script = place / "results" / "runs" / "mine" / "jobs" / "run.sbatch"
    assert (place / "words").read_text().split() == ["--wait", str(script)]
    assert "Submitted batch job 42: 4 tasks" in err
    assert out == ""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--slurm", "gpu"), "expected --slurm KEY=VALUE,..., got 'gpu'"),
        ((), "there is no sbatch on this machine"),
        (("--fail-below", "tpo1=0.5"), "Did you mean 'top1'"),
    ],
)
def test_submit_mistake_raises_before_anything_is_submitted(
    more: tuple[str, ...], message: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(place))
    assert message in submit(*more, code=2)[1]


def run_script(
    place: Path, *, seconds: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the job script of one task, with a time limit and a `scontrol` that takes notes."""
    script, _ = shiftbench(
        *("run", "mine.yaml", "--device", "cpu", "-q", "-b", "2", "--full-grid"),
        *("--submit", "slurm", "--jobs", "1", "--dry-run"),
        code=0,
    )[1:]
    (place / "script").write_text(script)
    tools = place / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {place}/requeued\n')
    (tools / "scontrol").chmod(0o755)
    (place / "results/runs/mine/jobs").mkdir(parents=True, exist_ok=True)
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": "8"}
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["timeout", "--foreground", "-s", "USR1", str(seconds), "bash", "script"],
        env={**os.environ, **task, "PATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(timeout=200)
    return subprocess.CompletedProcess(["script"], process.returncode, out, err)


@pytest.mark.slow
def test_job_script_requeues_after_the_time_limit_until_nothing_is_predicted(place: Path) -> None:
    requeued = place / "requeued"
    run_script(place, seconds=25, SLOW="1")  # loads the model and makes some predictions
    assert requeued.read_text() == "requeue 8\n"
    assert not list(place.rglob("*.rounds"))
    run_script(place, seconds=2)  # no prediction: once more
    assert requeued.read_text() == "requeue 8\n" * 2
    stopped = run_script(place, seconds=2)
    assert requeued.read_text() == "requeue 8\n" * 2
    assert "two rounds without a prediction" in stopped.stdout
    run_script(place, seconds=150)
    assert load_record(place / RECORD).score("accuracy").n == 24


# --- a real SLURM


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not START.is_file() or os.geteuid() != 0:
        pytest.skip("needs root and the script that starts SLURM")
    if not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
        pytest.skip("needs the packages slurmctld, slurmd, slurm-client and munge")
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([START, folder], check=True, capture_output=True, timeout=300)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    yield
    subprocess.run([START, folder, "stop"], check=True, capture_output=True)
    del os.environ["SLURM_CONF"]


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_array_writes_the_record_of_one_run(place: Path) -> None:
    submit("--slurm", "time=10,mem=900", "--wait")
    shiftbench("run", "mine.yaml", "--device", "cpu", "-q", "-o", place / "whole", code=0)
    whole = load_record(place / "whole" / RECORD.name)
    assert load_record(place / RECORD).scores == whole.scores
    logs = "".join(file.read_text() for file in (place / RECORD.parent / "jobs").glob("*.log"))
    assert "shard 1/4 (SLURM_ARRAY_TASK_ID=0)" in logs


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_failed_task_is_failed_and_is_finished_by_another_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "2")
    submit("--slurm", "time=10,mem=900", "--wait", code=1)
    assert not (place / RECORD / "record.json").exists()
    monkeypatch.delenv("FAILS")
    shiftbench("run", "mine.yaml", "--device", "cpu", "-q", code=0)
    assert load_record(place / RECORD).score("accuracy").n == 24


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_unknown_option_shows_the_message_of_sbatch(place: Path) -> None:
    assert "Correct --slurm" in submit("--slurm", "partitoin=gpu", code=2)[1]
