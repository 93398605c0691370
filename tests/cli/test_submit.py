"""`--submit slurm`: the job script, and a real SLURM if it can be started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import shiftbench

from shiftbench.records.folder import load_record
from shiftbench.tables import read_tables, table_files

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="job scripts are for bash")

START = Path(__file__).resolve().parents[3] / "shared" / "slurm" / "start"
NET = """
import os, signal, time
from torch import nn, manual_seed

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        manual_seed(0)
        self.conv = nn.Conv2d(3, 16, 4, stride=4)
        self.head = nn.Linear(16, 12)
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        time.sleep(float(os.environ.get("SLOW", "0")))
        task = os.environ.get("SLURM_ARRAY_TASK_ID", "none")
        if self.calls > 9 and os.environ.get("KILLED") == task:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("FAILS") == task:
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
    """Run the job script of one task, with a time limit and a `scontrol` that logs its calls."""
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
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a SLURM of four nodes; return the folder of its state."""
    if not START.is_file() or os.geteuid() != 0:
        pytest.skip("needs root and the script that starts SLURM")
    if not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
        pytest.skip("needs the packages slurmctld, slurmd, slurm-client and munge")
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([START, folder], check=True, capture_output=True, timeout=300)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    yield folder
    tool("scancel", "--user=root")
    subprocess.run([START, folder, "stop"], check=True, capture_output=True)
    del os.environ["SLURM_CONF"]


def tool(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def start_tasks(*more: str) -> str:
    """Submit the suite, and return the number of the job."""
    found = re.search(r"batch job (\d+)", submit("--slurm", "time=10", "-b", "2", *more)[1])
    assert found is not None
    return found[1]


def wait_until(condition: Callable[[], object], *, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, tool("scontrol", "show", "jobs")
        time.sleep(0.5)


def wait_for_end(*jobs: str) -> None:
    wait_until(lambda: not any(job in tool("squeue", "-h", "-o", "%F") for job in jobs))


def field(name: str, task: str) -> str:
    """Return a value of `scontrol show job`."""
    found = re.search(rf"\b{name}=(\S+)", tool("scontrol", "show", "job", task))
    assert found is not None
    return found[1]


def known_cells(place: Path) -> int:
    store = place / RECORD / "tables"
    parts = [read_tables(file)[0] for file in table_files(store)]
    return sum(int((table >= 0).sum()) for part in parts for table in part.arrays.values())


def resubmit(task: int) -> None:
    """Submit one task of the last job script again, and wait for it."""
    script = place_of_jobs() / "run.sbatch"
    tool("sbatch", "--wait", f"--array={task}", str(script))


def place_of_jobs() -> Path:
    return Path.cwd() / RECORD.parent / "jobs"


def assert_record_of_one_run(place: Path) -> None:
    words = ("run", "mine.yaml", "--device", "cpu", "-q", "--full-grid", "-o", place / "whole")
    shiftbench(*words, code=0)
    whole, found = load_record(place / "whole" / RECORD.name), load_record(place / RECORD)
    assert found.scores == whole.scores
    assert found.to_frame().equals(whole.to_frame())


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_array_writes_the_record_of_one_run(place: Path) -> None:
    submit("--slurm", "time=10,mem=900", "--full-grid", "--wait")
    assert_record_of_one_run(place)
    logs = "".join(file.read_text() for file in place_of_jobs().glob("*.log"))
    assert "shard 1/4 (SLURM_ARRAY_TASK_ID=0)" in logs


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_cancelled_task_saves_and_is_completed_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW", "0.5")
    job = start_tasks("--full-grid")
    log = place_of_jobs() / f"{job}_2.log"
    wait_until(lambda: log.exists() and "shard 3/4" in log.read_text())
    wait_until(lambda: len(table_files(place / RECORD / "tables")) == 4)
    tool("scancel", f"{job}_2")
    wait_for_end(job)
    assert field("JobState", f"{job}_2") == "CANCELLED"
    assert field("Restarts", f"{job}_2") == "0"
    assert [field("JobState", f"{job}_{task}") for task in (0, 1, 3)] == ["COMPLETED"] * 3
    assert not (place / RECORD / "record.json").exists()
    before = known_cells(place)
    resubmit(2)
    assert known_cells(place) > before
    assert_record_of_one_run(place)


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_killed_task_is_failed_and_is_completed_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLED", "1")
    job = start_tasks("--full-grid")
    wait_for_end(job)
    assert field("JobState", f"{job}_1") == "FAILED"
    assert field("ExitCode", f"{job}_1") == "137:0"
    monkeypatch.delenv("KILLED")
    resubmit(1)
    assert_record_of_one_run(place)


@pytest.mark.slow
def test_slurm_lost_node_is_replaced_by_another(
    slurm: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW", "0.5")
    job = start_tasks("--full-grid")
    wait_until(lambda: len(table_files(place / RECORD / "tables")) == 4)
    node = field("NodeList", f"{job}_1")
    kill_node(slurm, node)
    wait_until(lambda: field("Restarts", f"{job}_1") == "1")
    subprocess.run(["slurmd", "-N", node], check=True)
    wait_for_end(job)
    assert field("JobState", f"{job}_1") == "COMPLETED"
    assert_record_of_one_run(place)


def kill_node(slurm: Path, node: str) -> None:
    """Kill the daemon of a node, and the processes of its jobs with those that watch them."""
    os.kill(int((slurm / f"slurmd-{node}.pid").read_text()), signal.SIGKILL)
    own = (f"SLURM_CONF={slurm}/slurm.conf\0".encode(), f"SLURMD_NODENAME={node}\0".encode())
    watchers, processes = set[int](), set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (process / "environ").read_bytes()
            if all(variable in environment for variable in own):
                processes.add(int(process.name))
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if (Path("/proc") / str(parent) / "comm").read_text().startswith("slurmstepd"):
                    watchers.add(parent)
    for pid in (*watchers, *processes):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_suite_submitted_twice_at_once_gives_one_record(place: Path) -> None:
    jobs = [start_tasks("--full-grid") for _ in range(2)]
    wait_for_end(*jobs)
    states = {field("JobState", f"{job}_{task}") for job in jobs for task in range(4)}
    assert states == {"COMPLETED"}
    assert_record_of_one_run(place)


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_failing_model_is_failed_and_other_records_are_complete(place: Path) -> None:
    (place / "bad.py").write_text("def make():\n    raise ValueError('this model fails')\n")
    (place / "mine.yaml").write_text(SUITE.replace("runs: [", "runs: [{model: bad.py:make}, "))
    job = start_tasks("--full-grid")
    wait_for_end(job)
    assert {field("JobState", f"{job}_{task}") for task in range(4)} == {"FAILED"}
    assert "bad.py:make failed" in (place_of_jobs() / f"{job}_0.log").read_text()
    assert load_record(place / RECORD).score("accuracy").n == 24


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_slurm_failed_task_is_finished_by_another_command(
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
