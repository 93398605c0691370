"""Processes of `--nproc`, and the signals that end a run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import shiftbench

from shiftbench.records.folder import load_records
from shiftbench.records.result import Result

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

MODEL = """
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
        shard = os.environ.get("SHIFTBENCH_SHARD", "none")
        if self.calls > 4 and os.environ.get("KILLED") == shard:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls > 4 and os.environ.get("FAILS") in (shard, "all"):
            raise ValueError("this model fails")
        return self.head(self.conv(images).relu().amax((2, 3)))

def make():
    return Net(), {"input_size": 16, "mean": 0.5, "std": 0.25}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("model") / "net.py"
    file.write_text(MODEL)
    return f"{file}:make"


def request(model: str, output: Path, *more: str) -> list[str]:
    words = ["run", "-m", model, "-o", str(output), "--limit", "24", "-a", "crop", "-b", "2"]
    return [*words, "--max-shift", "1", "--no-consistency", "--device", "cpu", "-j", "0", *more]


@pytest.fixture(scope="module")
def whole(model: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    output = tmp_path_factory.mktemp("whole")
    shiftbench(*request(model, output, "-q"), code=0)
    (record,) = load_records([output])
    return record


def start(words: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shiftbench_cli", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_tables(output: Path, process: subprocess.Popen[str], *, files: int = 1) -> None:
    deadline = time.monotonic() + 120
    while len(list(output.rglob("*.parquet"))) < files:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(pid) for pid in listed.stdout.split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def assert_completes(model: str, output: Path, whole: Result) -> None:
    shiftbench(*request(model, output, "-q"), code=0)
    (record,) = load_records([output])
    assert record.scores == whole.scores


def test_nproc_equals_one_process(model: str, whole: Result, tmp_path: Path) -> None:
    process = start(request(model, tmp_path, "--nproc", "2"))
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert out.count("net.py:make") == 1
    assert re.search(r"net.py:make: 24/24 images, \d+ passes", err), "one display for both"
    (record,) = load_records([tmp_path])
    assert record.scores == whole.scores
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_nproc_common_error_is_printed_once(model: str, tmp_path: Path) -> None:
    process = start(request(model, tmp_path, "--nproc", "2", "-q"), FAILS="all")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert err.count("this model fails") == 1
    assert out == ""


@pytest.mark.slow
def test_nproc_failed_process_leaves_its_images(model: str, whole: Result, tmp_path: Path) -> None:
    process = start(request(model, tmp_path, "--nproc", "2", "-q"), FAILS="2/2")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert err.count("this model fails") == 1
    assert re.search(r"net.py:make: \d+ images are left", err)
    assert_completes(model, tmp_path, whole)


@pytest.mark.slow
def test_nproc_finishes_the_images_of_a_killed_process(
    model: str, whole: Result, tmp_path: Path
) -> None:
    process = start(request(model, tmp_path, "--nproc", "2"), KILLED="1/2")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "process 1 of 2 was ended by SIGKILL" in err
    (record,) = load_records([tmp_path])
    assert record.scores == whole.scores


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nproc_no_process_outlives_its_parent(
    number: signal.Signals, model: str, whole: Result, tmp_path: Path
) -> None:
    process = start(request(model, tmp_path, "--nproc", "2", "-q"), SLOW="0.2")
    wait_for_tables(tmp_path, process, files=2)
    workers = workers_of(process)
    assert len(workers) == 2
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert "Traceback" not in err
    deadline = time.monotonic() + 30
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert_completes(model, tmp_path, whole)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, marks=pytest.mark.slow),
    ],
)
def test_run_interrupted_saves_its_predictions(
    number: signal.Signals, model: str, whole: Result, tmp_path: Path
) -> None:
    process = start(request(model, tmp_path, "-q", "--full-grid"), SLOW="0.1")
    wait_for_tables(tmp_path, process)
    first = set(tmp_path.rglob("*.parquet"))
    while (before := set(tmp_path.rglob("*.parquet"))) <= first:  # until predictions are saved
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == (
        "interrupted. Predictions are saved: repeat the command to resume"
    )
    assert "Traceback" not in err
    assert not before & set(tmp_path.rglob("*.parquet"))
    assert_completes(model, tmp_path, whole)
