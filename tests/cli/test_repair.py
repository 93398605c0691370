"""`shiftbench repair` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import shiftbench

NET = """
from torch import nn

def build():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )
    return net, {"input_size": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:build"


def test_repair_reports_what_each_remedy_changes(model: str) -> None:
    words = ["repair", "-m", model, "-d", "scenes", "--limit", "4", "--format", "json"]
    code, out, err = shiftbench(*words)
    assert code == 0, err
    trials = {entry["remedies"]: entry for entry in json.loads(out)}
    assert trials["circular+aps"]["whole"] < 1e-4 < trials[""]["whole"]
    assert trials["circular+aps"]["reports"][1]["changed"][0]["layer"] == "0"
    assert 4 >= trials[""]["right"][0] >= trials[""]["right"][2] >= 0
    assert trials["align"]["scores"][1]["n"] == 4
    assert trials["align"]["whole"] is None
    assert trials["vote"]["cost"] > 0
    assert trials["af"]["needs_finetuning"]


def test_repair_explain_lists_layers(model: str) -> None:
    words = ["repair", "-m", model, "-r", "blurpool:3", "-r", "vote:99", "--explain"]
    code, out, err = shiftbench(*words)
    assert code == 0
    assert "blurpool:3" in out
    assert "Conv2d" in out
    assert "vote:99: vote takes the side of the grid of shifts, 2 to 15" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "MODEL+aps"], "has remedies already"),
        (["-m", "MODEL+apz"], "Did you mean 'aps'"),
        (["-m", "nowhere.py:build"], "nowhere.py"),
    ],
)
def test_repair_mistake_prints_one_line(words: list[str], message: str, model: str) -> None:
    words = [word.replace("MODEL", model) for word in words]
    code, _, err = shiftbench("repair", *words)
    assert code in (1, 2)
    assert message in err
    assert "Traceback" not in err


def test_run_repaired_model_is_shift_invariant(model: str, tmp_path: Path) -> None:
    words = ["run", "-m", f"{model}+circular+aps", "--limit", "6", "--max-shift", "1"]
    words += ["-a", "integer", "--no-consistency", "-o", str(tmp_path / "runs"), "--format", "json"]
    code, out, err = shiftbench(*words)
    assert code == 0, err
    [record] = json.loads(out)
    assert record["model"]["name"].endswith("+circular+aps")
    scores = record["scores"]
    assert scores["adversarial"]["integer"]["1"] == scores["accuracy"], (
        "invariant to integer shifts"
    )
