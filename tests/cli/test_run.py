"""`shiftbench run` and `shiftbench list` as a user calls them."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import shiftbench
from safetensors.torch import load_file, save_file

from shiftbench.data import Scenes
from shiftbench.records.folder import load_records
from shiftbench.records.result import Result
from shiftbench.scores import ScoreName

SIDE, KNOWN, CLASSES = 24, 40, 12  # the model is fitted to the first KNOWN images
MODEL = """
import os
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 48, 7, stride=3)
        self.head = nn.Linear(48, classes)

    def features(self, images):
        return self.conv(images).relu().amax((2, 3))

    def forward(self, images):
        if "PRINTS" in os.environ:
            print("a model that prints")
            os.write(1, b"also from C\\n")
        return self.head(self.features(images))

def make(classes=12):
    return Net(classes), {"input_size": 24, "mean": (0.5,) * 3, "std": (0.25,) * 3}

def broken():
    raise ValueError("the weights are at home")
"""
GEOMETRY = "rendered, view 24 px, margin 2 px, bicubic"
SMALL = ("--limit", "4", "-a", "crop", "--max-shift", "1", "--no-consistency", "-q")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model whose head is fitted to random features of some images."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "net.py").write_text(MODEL)
    scope: dict[str, object] = {}
    exec(MODEL, scope)
    torch.manual_seed(0)
    net, _ = scope["make"]()  # type: ignore[operator]
    known = Scenes("test", KNOWN)
    with torch.no_grad():
        images = (known.render(range(KNOWN), SIDE).float() / 255 - 0.5) / 0.25
        ones = torch.cat([net.features(images), torch.ones(KNOWN, 1)], 1)
        targets = torch.nn.functional.one_hot(torch.tensor(known.labels), CLASSES).float()
        gram = ones.T @ ones + 1e-2 * torch.eye(49)
        solution = torch.linalg.solve(gram, ones.T @ targets)  # (49, classes)
        net.head.weight.copy_(solution[:-1].T)
        net.head.bias.copy_(solution[-1])
    save_file(net.state_dict(), folder / "net.safetensors")
    return folder


def request(place: Path, output: Path, *more: str) -> list[str]:
    words = ["run", "-m", f"{place / 'net.py'}:make", "--device", "cpu"]
    words += ["--checkpoint", str(place / "net.safetensors"), "--limit", "24", "--max-shift", "2"]
    return [*words, "-a", "crop", "-a", "half", "-o", str(output), *more]


@pytest.fixture(scope="module")
def done(place: Path) -> Result:
    shiftbench(*request(place, place / "done", "-q"), code=0)
    (record,) = load_records([place / "done"])
    return record


def curve(record: Result, attack: str) -> list[float]:
    names = [ScoreName("adversarial", attack, radius) for radius in range(3)]
    return [record.scores[name].value for name in names]


def test_run_repeated_predicts_nothing_and_prints_the_same_scores(
    place: Path, done: Result
) -> None:
    assert curve(done, "crop")[0] > curve(done, "crop")[2]  # the example can show a difference
    files = {file: file.stat().st_mtime_ns for file in (place / "done").rglob("*.*")}
    first = shiftbench(*request(place, place / "done", "-q", "--format", "csv"), code=0)
    again = shiftbench(*request(place, place / "done", "--format", "csv"), code=0)
    assert first.out == again.out
    assert "complete, in" in again.err
    assert files == {file: file.stat().st_mtime_ns for file in (place / "done").rglob("*.*")}


def test_run_shards_and_a_last_run_equal_one_run(place: Path, done: Result, tmp_path: Path) -> None:
    for shard in ("2/3", "1/3"):
        ran = shiftbench(*request(place, tmp_path, "-q", "--shard", shard), code=0)
        assert "images are left to other processes" in ran.err
    shiftbench(*request(place, tmp_path, "-q"), code=0)
    (record,) = load_records([tmp_path])
    for attack in ("crop", "half"):
        assert curve(record, attack) == curve(done, attack)


def test_run_under_a_scheduler_prints_its_shard_first(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "32")
    ran = shiftbench(*request(place, tmp_path), code=0)
    assert ran.err.splitlines()[0] == "shard 3/32 (SLURM_ARRAY_TASK_ID=2)"
    monkeypatch.delenv("SLURM_ARRAY_TASK_COUNT")
    assert "Set SHIFTBENCH_SHARDS=N" in shiftbench(*request(place, tmp_path), code=2).err


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_run_stdout_is_parseable_whatever_a_model_prints(
    kind: str, place: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "shiftbench_cli", *request(place, tmp_path, "--format", kind)]
    environment = {**os.environ, "PRINTS": "1"}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert "a model that prints" in ran.stderr
    assert "also from C" in ran.stderr
    if kind == "json":
        (record,) = json.loads(ran.stdout)
        assert record["scores"]["adversarial"]["crop"]["2"]["n"] == 24
        assert record["geometry"] == GEOMETRY
    else:
        rows = list(csv.DictReader(io.StringIO(ran.stdout)))
        assert {row["max_shift"] for row in rows} == {"", "0", "1", "2"}
        assert {row["geometry"] for row in rows} == {GEOMETRY}


def test_run_prints_the_requested_scores_of_a_larger_record(place: Path, done: Result) -> None:
    words = request(place, place / "done", "-q", "--format", "csv", "--max-shift", "1")
    words[words.index("half")] = "crop"
    rows = list(csv.DictReader(io.StringIO(shiftbench(*words, code=0).out)))
    assert {row["max_shift"] for row in rows} == {"", "0", "1"}
    assert not [row for row in rows if row["score"] == "adversarial_half"]


def test_run_suite_typed_default_wins_over_the_suite(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"defaults: {{limit: 6, max_shift: 1, attacks: [crop], consistency: []}}\n"
        f"runs: [{{model: {place / 'net.py'}:make}}, {{model: nowhere.py:make}}]\n"
    )
    ran = shiftbench(
        "run", tmp_path / "mine.yaml", "-o", tmp_path / "runs", "--format", "csv", code=1
    )
    assert "1 nowhere.py:make" not in ran.out
    assert "error: nowhere.py:make failed: " in ran.err
    words = ("run", tmp_path / "mine.yaml", "-m", "*net.py:make", "-o", tmp_path / "runs", "-q")
    typed = shiftbench(*words, "--max-shift", "6", "--limit", "2", "--format", "csv", code=0)
    assert {row["max_shift"] for row in csv.DictReader(io.StringIO(typed.out))} >= {"6"}
    refused = shiftbench(*words, "--checkpoint", "w.pth", code=2)
    assert "--checkpoint is of one run" in refused.err


def test_run_fresh_discards_the_record(place: Path, tmp_path: Path) -> None:
    words = ("run", "-m", f"{place / 'net.py'}:make", "-o", tmp_path)
    shiftbench(*words, *SMALL, code=0)
    shiftbench(*words, *SMALL, "--fresh", "-a", "half", code=0)
    (record,) = load_records([tmp_path])
    assert {name.kind for name in record.scores if name.family == "adversarial"} == {"crop", "half"}
    assert (
        "cannot combine --fresh with --shard"
        in shiftbench(*words, *SMALL, "--fresh", "--shard", "1/2", code=2).err
    )


def test_run_strip_prefix_of_a_checkpoint(place: Path, tmp_path: Path) -> None:
    state = load_file(place / "net.safetensors")
    file = tmp_path / "wrapped.safetensors"
    save_file({f"student.{key}": value for key, value in state.items()}, file)
    words = ("run", "-m", f"{place / 'net.py'}:make", "--checkpoint", file, *SMALL, "-o", tmp_path)
    assert shiftbench(*words, "--strip-prefix", "student.").code == 0
    assert shiftbench(*words, "--strip-prefix", "teacher.").code != 0


def test_run_missed_threshold_exits_with_3(place: Path, done: Result) -> None:
    words = request(place, place / "done", "-q")
    passing = ["--fail-below", "top1=0", "--fail-above", "change_integer_high=1"]
    shiftbench(*words, *passing, "--fail-below", "adversarial_crop@1=0", code=0)
    for option, text, message in (
        ("--fail-below", "adversarial_crop=1.0", r"adversarial_crop@2 is 0\.\d{4}, below 1"),
        ("--fail-below", "top1_low=0.99", r"accuracy \(low end\) is 0\.\d{4}, below 0.99"),
        ("--fail-above", "change_integer=0", r"change_integer is 0\.\d{4}, above 0"),
    ):
        failing = shiftbench(*words, option, text, "--fail-below", "accuracy=0", code=3)
        assert re.search(f"^failed: net.py.*: {message}$", failing.err, re.MULTILINE)


def test_run_threshold_is_of_the_requested_grid(place: Path, done: Result) -> None:
    at = curve(done, "crop")
    words = request(place, place / "done", "-q", "--max-shift", "0", "--fail-below")
    shiftbench(*words, f"adversarial_crop={at[0]}", code=0)
    failing = shiftbench(*words, f"adversarial_crop={at[0] + 0.01}", code=3)
    assert "adversarial_crop@0 is" in failing.err


def test_run_fail_if_worse_compares_with_a_record(
    place: Path, done: Result, tmp_path: Path
) -> None:
    baseline = str(done.folder)
    shiftbench(*request(place, place / "done", "-q", "--fail-if-worse", baseline), code=0)
    words = [word for word in request(place, tmp_path, "-q") if "net.safetensors" not in word]
    words.remove("--checkpoint")
    worse = shiftbench(*words, "--fail-if-worse", baseline, code=3)
    assert re.search(r"accuracy is 0\.\d{4}, significantly worse than 0\.\d{4}", worse.err)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("-m", "timm:resnet10tt"), 2, "Did you mean 'resnet10t'"),
        (("-m", "nowhere.py:make"), 2, "nowhere.py"),
        (("-m", "{net}:broken"), 1, "the weights are at home"),
        (("-m", "{net}:make", "--checkpoint", "nowhere.pth"), 1, "nowhere.pth"),
        (("-m", "{net}:make", "-m", "{net}:broken", "--checkpoint", "w"), 2, "one --model"),
        (("-m", "{net}:make", "-d", "scene"), 2, "Did you mean 'scenes'"),
        (("-m", "{net}:make", "-d", "imagenet:nowhere"), 1, "nowhere"),
        (("-m", "{net}:make", "-a", "crops"), 2, "Did you mean 'crop'"),
        (("-m", "{net}:make", "--max-shift", "-1"), 2, "--max-shift"),
        (("-m", "{net}:make", "--device", "tpu"), 2, "device"),
        (("-m", "{net}:make", "-b", "0"), 2, "expected auto"),
        (("-m", "{net}:make", "--limit", "0"), 2, "--limit"),
        (("-m", "{net}:make", "--shard", "5/4"), 2, "expected a shard i/N"),
        (("-m", "{net}:make", "--precision", "fp8"), 2, "fp8"),
        (("-m", "{net}:make", "--pad", "reflct"), 2, "Did you mean 'reflect'"),
        (("-m", "{net}:make", "-o", "{net}/runs"), 1, "{net}/runs"),
        (("-m", "{net}:make", "--fail-below", "change_integer=0.9"), 2, "Use --fail-above"),
        (("-m", "{net}:make", "--fail-below", "adversarial_crops=1"), 2, "Did you mean"),
        (("-m", "{net}:make", "--fail-below", "accuracy=70"), 2, "from 0 to 1, got 70"),
        (("-m", "{net}:make", "--fail-if-worse", "nowhere"), 1, "nowhere"),
        (("-m", "{net}:make", "--max-shfit", "3"), 2, "Did you mean '--max-shift'"),
        (("papr",), 2, "Did you mean 'paper'"),
    ],
)
def test_run_mistake_prints_one_line_and_an_exit_code(
    words: tuple[str, ...], code: int, message: str, place: Path, tmp_path: Path
) -> None:
    filled = [word.format(net=place / "net.py") for word in words]
    output = [] if "-o" in filled else ["-o", str(tmp_path)]
    ran = shiftbench("run", "--limit", "4", *output, *filled, code=code)
    assert ran.out == ""
    assert message.format(net=place / "net.py") in ran.err
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_run_folder_full_or_read_only_names_the_file(
    number: int, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(file: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fails)
    ran = shiftbench(*request(place, tmp_path, "-q"), code=1)
    assert ran.err.startswith(f"error: cannot write {tmp_path}")
    assert os.strerror(number) in ran.err


def test_run_attacks_may_be_separated_by_commas(place: Path, tmp_path: Path) -> None:
    ran = shiftbench(*request(place, tmp_path, "-q", "-a", "half,integer"), code=0)
    assert "half" in ran.out
    assert "integer" in ran.out


@pytest.mark.parametrize("name", ["sinc", "cyclic"])
def test_run_cyclic_shift_type_names_its_attacks(name: str, place: Path, tmp_path: Path) -> None:
    ran = shiftbench(*request(place, tmp_path, "-a", name), code=2)
    assert "Use --attack integer,half" in ran.err


@pytest.mark.parametrize("text", ["3/2", "0/2", "1/0", "2", "a/b", "-1/2"])
def test_run_invalid_shard_is_wrong_usage(text: str, place: Path, tmp_path: Path) -> None:
    ran = shiftbench(*request(place, tmp_path, f"--shard={text}"), code=2)
    assert ran.err.startswith("error: expected a shard i/N")
    assert not list(tmp_path.iterdir())


def test_list_prints_a_table_or_json() -> None:
    ran = shiftbench("list", "models", "xcit*af*", "--format", "json")
    names = [entry["name"] for entry in json.loads(ran.out)]
    assert "xcit_nano_12_p16_af" in names
    assert all("af" in name for name in names)
    for kind in ("datasets", "attacks", "metrics", "recipes", "remedies", "suites"):
        table = shiftbench("list", kind, code=0)
        entries = json.loads(shiftbench("list", kind, "--format", "json").out)
        assert all(entry["name"] in table.out for entry in entries)
    assert "no datasets match" in shiftbench("list", "datasets", "*zebra*", code=1).err
    assert "Did you mean 'models'?" in shiftbench("list", "modles", code=2).err
