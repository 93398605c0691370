"""`shiftbench run` and `shiftbench list` as a user calls them."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from command_line import shiftbench
from safetensors.torch import load_file, save_file

from shiftbench.data import Scenes
from shiftbench.records.record import read_record, read_records
from shiftbench.scores import ScoreName

SIDE = 24
KNOWN = 40  # images that the model is fitted to
MODEL = """
import os, signal, time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 48, 7, stride=3)
        self.head = nn.Linear(48, classes)
        self.calls = 0

    def features(self, images):
        return self.conv(images).relu().amax((2, 3))

    def forward(self, images):
        self.calls += 1
        time.sleep(float(os.environ.get("SLOW", "0")))
        if os.environ.get("DIES") == os.environ.get("RANK", "none") and self.calls > 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.head(self.features(images))

def make(classes=12):
    return Net(classes), {"input_size": 24, "mean": (0.5,) * 3, "std": (0.25,) * 3}

def broken():
    raise ValueError("the weights are at home")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that knows a little: a head fitted to random features of the images."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "net.py").write_text(MODEL)
    scope: dict[str, object] = {}
    exec(MODEL, scope)
    torch.manual_seed(0)
    net, _ = scope["make"]()  # type: ignore[operator]
    known = Scenes("test", KNOWN)
    with torch.no_grad():
        images = (known.render(range(KNOWN), SIDE).float() / 255 - 0.5) / 0.25
        features = net.features(images)
        targets = torch.nn.functional.one_hot(torch.tensor(known.labels)).float()
        ones = torch.cat([features, torch.ones(KNOWN, 1)], 1)
        gram = ones.T @ ones + 1e-2 * torch.eye(49)
        solution = torch.linalg.solve(gram, ones.T @ targets)  # (49, classes)
        net.head = torch.nn.Linear(48, targets.shape[1])
        net.head.weight.copy_(solution[:-1].T)
        net.head.bias.copy_(solution[-1])
    save_file(net.state_dict(), folder / "net.safetensors")
    return folder


def request(place: Path, output: Path, *more: str) -> list[str]:
    classes = len(Scenes().class_names)
    words = ["run", "-m", f"{place / 'net.py'}:make,classes={classes}"]
    words += ["--checkpoint", str(place / "net.safetensors"), "--limit", "24", "--max-shift", "2"]
    words += ["-a", "crop", "-a", "half", "-a", "camera"]
    return [*words, "-o", str(output), *more]


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> pd.DataFrame:
    output = place / "undisturbed"
    assert shiftbench(*request(place, output, "-q")).code == 0
    rows = samples(output)
    assert rows["crop_broken_radius"].nunique() > 1  # the example can show a difference
    return rows


def samples(output: Path) -> pd.DataFrame:
    [folder] = output.iterdir()
    return read_record(folder).samples()


def assert_same(rows: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(rows, expected, rtol=0, atol=1e-4)


def start(words: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shiftbench_cli", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_parts(process: subprocess.Popen[str], output: Path, more_than: int = 0) -> int:
    """Waits until more parts are saved; returns how many there are."""
    for _ in range(1200):
        found = len(list(output.rglob("parts/*/*.parquet")))
        if found > more_than:
            return found
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("no parts were saved within two minutes")


def test_ctrl_c_then_kill_then_the_same_command_gives_the_same_rows(
    place: Path, undisturbed: pd.DataFrame, tmp_path: Path
) -> None:
    output = tmp_path / "runs"
    words = request(place, output, "-b", "4")
    process = start(words, SLOW="0.5")
    saved = wait_for_parts(process, output)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("interrupted: finished parts are kept")
    saved = len(list(output.rglob("parts/*/*.parquet")))

    process = start(words, SLOW="0.5")
    saved = wait_for_parts(process, output, saved)
    refused = shiftbench(*words)
    assert refused.code == 1
    assert "being written by another process" in refused.err
    process.kill()
    process.communicate()
    assert not list(output.rglob("record.json"))

    assert shiftbench(*words).code == 0
    assert_same(samples(output), undisturbed)
    again = shiftbench(*words)
    assert again.code == 0
    assert f"already complete: {output}" in again.err


def test_two_processes_give_the_rows_of_one(
    place: Path, undisturbed: pd.DataFrame, tmp_path: Path
) -> None:
    process = start(request(place, tmp_path, "--nproc", "2", "--format", "json"))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    [record] = json.loads(out)
    assert record["environment"]["processes"] == 2
    assert_same(samples(tmp_path), undisturbed)


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_and_the_parts_stay(
    place: Path, undisturbed: pd.DataFrame, tmp_path: Path
) -> None:
    words = request(place, tmp_path, "--nproc", "2", "-b", "4")
    process = start(words, DIES="1", SLOW="0.05")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert out == ""
    assert "process 1 of 2 was ended by signal 9" in err
    assert "Traceback" not in err
    process = start(words)
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert_same(samples(tmp_path), undisturbed)


def test_a_failing_model_does_not_stop_the_others(place: Path, tmp_path: Path) -> None:
    net = f"{place / 'net.py'}"
    words = ["-d", "scenes", "--limit", "6", "-a", "crop", "--max-shift", "1", "-o", tmp_path]
    ran = shiftbench(
        *("run", "-m", f"{net}:make", "-m", f"{net}:broken", "-m", f"{net}:make,classes=13"),
        *words,
        *("--format", "csv"),
    )
    assert ran.code == 1
    assert "the weights are at home" in ran.err.splitlines()[-1]
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert {row["model"] for row in rows} == {"net.py:make", "net.py:make,classes=13"}
    curve = [row for row in rows if row["score"] == "adversarial_crop"]
    assert [row["max_shift"] for row in curve] == ["0", "1"] * 2
    for row in rows:
        assert 0 <= float(row["low"]) <= float(row["value"]) <= float(row["high"]) <= 1
        assert int(row["n"]) == 6


def test_json_is_the_records_and_nothing_else(place: Path, undisturbed: pd.DataFrame) -> None:
    output = place / "undisturbed"
    ran = shiftbench(*request(place, output, "--format", "json"))
    [folder] = output.iterdir()
    assert json.loads(ran.out) == [json.loads((folder / "record.json").read_text())]


def test_the_table_shows_every_score_with_its_interval(
    place: Path, undisturbed: pd.DataFrame
) -> None:
    ran = shiftbench(*request(place, place / "undisturbed"))
    assert ran.code == 0
    assert ran.out.startswith("scenes test, 24 images\n")
    [record] = read_records([place / "undisturbed"])
    for name, score in record.scores.items():
        if name.family != "change" and name.radius in (None, 2):
            assert score.interval() in ran.out
    for words in ("top1", "crop", "±2 px", "±1 px", "consistency"):
        assert words in ran.out


SMALL = ("--limit", "6", "-a", "none", "--no-consistency", "-q", "--format", "csv")


def test_models_of_one_command_never_share_a_record(place: Path, tmp_path: Path) -> None:
    for name in ("e1", "e2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text(MODEL.replace("48", "4" if name == "e1" else "8"))
    models = [word for n in ("e1", "e2") for word in ("-m", f"{tmp_path / n / 'net.py'}:make")]
    ran = shiftbench("run", *models, "-m", f"mine={models[1]}", *SMALL, "--fresh", "-o", tmp_path)
    assert ran.code == 0, ran.err
    shown = {row["model"] for row in csv.DictReader(io.StringIO(ran.out))}
    assert shown == {"e1/net.py:make", "e2/net.py:make", "mine"}
    assert len(list(tmp_path.rglob("record.json"))) == 3
    refused = shiftbench("run", "-m", f"a={models[1]}", "-m", f"a={models[3]}", "-o", tmp_path)
    assert refused.code == 2
    assert "two models are called 'a'" in refused.err


def test_what_was_asked_for_is_shown_of_a_record_that_has_more(
    place: Path, undisturbed: pd.DataFrame
) -> None:
    words = request(place, place / "undisturbed", "--limit", "12", "--max-shift", "1")
    ran = shiftbench(*words, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert {row["n"] for row in rows} == {"12"}
    assert {row["max_shift"] for row in rows} == {"", "0", "1"}
    assert "already complete" in ran.err
    table = shiftbench(*words).out
    assert table.startswith("scenes test, 12 images\n")
    assert "±1 px" in table
    assert "±2 px" not in table
    [record] = read_records([place / "undisturbed"])
    assert record.data.images == 24


def test_each_attack_has_its_own_step(place: Path, tmp_path: Path) -> None:
    words = ["--no-consistency", "-q", "--limit", "4", "--max-shift", "1", "--format", "csv"]
    attacks = ["-a", "bilinear:1/4", "-a", "crop"]
    ran = shiftbench("run", "-m", f"{place / 'net.py'}:make", *attacks, *words, "-o", tmp_path)
    assert ran.code == 0, ran.err
    scores = {row["score"] for row in csv.DictReader(io.StringIO(ran.out))}
    assert scores == {"accuracy", "adversarial_bilinear[1/4]", "adversarial_crop"}


def test_a_prefix_of_a_checkpoint_is_stripped(place: Path, tmp_path: Path) -> None:
    state = load_file(place / "net.safetensors")
    file = tmp_path / "wrapped.safetensors"
    save_file({f"student.{key}": value for key, value in state.items()}, file)
    words = ("run", "-m", f"{place / 'net.py'}:make", "--checkpoint", file, *SMALL, "-o", tmp_path)
    assert shiftbench(*words, "--strip-prefix", "student.").code == 0
    assert shiftbench(*words, "--strip-prefix", "teacher.").code != 0


def test_gates_end_a_pipeline_with_their_own_code(place: Path, undisturbed: pd.DataFrame) -> None:
    words = request(place, place / "undisturbed", "-q")
    for passing in (["--fail-under", "top1=0"], ["--fail-over", "change_integer_high=1"]):
        assert shiftbench(*words, *passing, "--fail-under", "adversarial_crop@1=0").code == 0
    for option, text, sentence in (
        ("--fail-under", "adversarial_crop=1.0", r"adversarial_crop@2 is 0\.\d{4}, below 1"),
        ("--fail-under", "top1_low=0.99", r"accuracy \(low end\) is 0\.\d{4}, below 0.99"),
        ("--fail-over", "change_integer=0", r"change_integer is 0\.\d{4}, above 0"),
    ):
        failing = shiftbench(*words, option, text, "--fail-under", "accuracy=0")
        assert failing.code == 3
        assert re.search(f"^failed: net.py.*: {sentence}$", failing.err, re.MULTILINE)
    assert "error" not in failing.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fail-under", "change_integer=0.9"), "a lower change_integer is better: use --fail-ov"),
        (("--fail-over", "top1=0.9"), "a higher top1 is better: use --fail-under top1=0.9"),
        (("--fail-under", "adversarial_crops=0.5"), "Did you mean 'adversarial_crop'"),
        (("--fail-under", "accuracy"), "expected --fail-under SCORE=NUMBER"),
        (("--fail-under", "accuracy=70"), "FRACTION from 0 to 1, got 70"),
        (("--mode", "sampled:2", "--fail-under", "adversarial_crop=0.1"), "is an upper bound"),
        (("--fail-worse", "nowhere"), "nowhere"),
    ],
)
def test_a_gate_that_cannot_judge_is_refused_before_the_work(
    words: tuple[str, ...], message: str, place: Path, tmp_path: Path
) -> None:
    refused = shiftbench(*request(place, tmp_path, *words))
    assert refused.code in (1, 2)
    assert message in refused.err
    assert not list(tmp_path.iterdir())


def test_the_gate_is_of_the_grid_that_was_asked_for(place: Path, undisturbed: pd.DataFrame) -> None:
    """The record reaches further than this run asks, and must not decide it."""
    [record] = read_records([place / "undisturbed"])
    at = {s: record.scores[ScoreName("adversarial", "crop", s)].value for s in (0, 2)}
    assert at[0] > at[2]
    words = request(place, place / "undisturbed", "-q", "--max-shift", "0", "--fail-under")
    assert shiftbench(*words, f"adversarial_crop={at[0]}").code == 0
    failing = shiftbench(*words, f"adversarial_crop={at[0] + 0.01}")
    assert failing.code == 3
    assert "adversarial_crop@0 is" in failing.err


def test_a_run_may_be_held_against_a_record(
    place: Path, undisturbed: pd.DataFrame, tmp_path: Path
) -> None:
    [baseline] = (place / "undisturbed").iterdir()
    words = request(place, place / "undisturbed", "-q", "--fail-worse", str(baseline))
    assert shiftbench(*words).code == 0
    words = [word for word in request(place, tmp_path, "-q") if "net.safetensors" not in word]
    words.remove("--checkpoint")
    worse = shiftbench(*words, "--fail-worse", baseline)
    assert worse.code == 3
    assert re.search(r"accuracy is 0\.\d{4}, significantly worse than 0\.\d{4} of", worse.err)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("-m", "timm:resnet10tt"), 2, "Did you mean 'resnet10t'"),
        (("-m", "nowhere.py:make"), 2, "no Python file"),
        (("-m", "{net}:broken"), 1, "the weights are at home"),
        (("-m", "{net}:make", "--checkpoint", "nowhere.pth"), 1, "no checkpoint at nowhere.pth"),
        (("-m", "{net}:make", "-m", "{net}:broken", "--checkpoint", "w"), 2, "one --model"),
        (("-m", "{net}:make", "-d", "scene"), 2, "Did you mean 'scenes'"),
        (("-m", "{net}:make", "-d", "imagenet:nowhere"), 1, "nowhere"),
        (("-m", "{net}:make", "-a", "crops"), 2, "Did you mean 'crop'"),
        (("-m", "{net}:make", "-d", "folder:{net}"), 1, "there is no folder"),
        (("-m", "{net}:make", "--max-shift", "-1"), 2, "max shift"),
        (("-m", "{net}:make", "--mode", "sampled:none"), 2, "unknown search mode"),
        (("-m", "{net}:make", "--mode", "sampled:3", "--full-grid"), 2, "--full-grid"),
        (("-m", "{net}:make", "--device", "tpu"), 2, "device"),
        (("-m", "{net}:make", "-b", "0"), 2, "expected auto"),
        (("-m", "{net}:make", "--limit", "0"), 2, "limit"),
        (("-m", "{net}:make", "--precision", "fp8"), 2, "fp8"),
        (("-m", "{net}:make,classes=3"), 1, "knows 3 classes"),
        (("-m", "{net}:make", "-o", "{net}/runs"), 1, "cannot write to the output folder"),
        (("--color",), 2, "--color"),
    ],
)
def test_mistakes_are_one_sentence_with_an_exit_code(
    words: tuple[str, ...], code: int, message: str, place: Path, tmp_path: Path
) -> None:
    net = place / "net.py"
    filled = [word.format(net=net, place=place) for word in words]
    defaults = [] if "-o" in filled else ["-o", str(tmp_path)]
    ran = shiftbench("run", "--limit", "4", *defaults, *filled)
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert message in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError("No space left on device")]
)
def test_a_full_disk_names_the_file_and_the_way_on(
    error: OSError, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def full(file: int) -> None:
        written.append(file)
        if len(written) > 2:
            raise error

    monkeypatch.setattr("aft_models.files.os.fsync", full)
    ran = shiftbench(*request(place, tmp_path, "-q"))
    assert ran.code == 1
    assert re.match(f"error: {tmp_path}.*parquet: the disk is full", ran.err)
    assert "finished parts are kept" in ran.err


def test_list_as_table_and_json() -> None:
    ran = shiftbench("list", "models", "xcit*af*", "--format", "json")
    names = [entry["name"] for entry in json.loads(ran.out)]
    assert "xcit_nano_12_p16_af" in names
    assert all("af" in name for name in names)
    attacks = json.loads(shiftbench("list", "attacks", "--format", "json").out)
    assert [entry["name"] for entry in attacks] == [
        "integer",
        "half",
        "crop",
        "bilinear",
        "lanczos",
        "camera",
    ]
    for kind in ("datasets", "attacks", "metrics", "formats", "logs", "recipes", "remedies"):
        table = shiftbench("list", kind)
        assert table.code == 0
        entries = json.loads(shiftbench("list", kind, "--format", "json").out)
        assert all(entry["name"] in table.out for entry in entries)
    nothing = shiftbench("list", "datasets", "*zebra*")
    assert nothing.code == 1
    assert "no datasets match" in nothing.err
