"""`shiftbench audit` as a user calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from command_line import Ran, shiftbench
from PIL import Image

MODEL = """
import torch
from torch import nn

def make(padding_mode="zeros"):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode=padding_mode),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, stride=2, padding=1, padding_mode="circular"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 12),
    )
    return model, {"input_size": 24, "mean": (0.5,) * 3, "std": (0.25,) * 3}

def circular():
    return make("circular")
"""


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return [f"{path}:make", f"{path}:circular"]


def run(*words: object) -> Ran:
    return shiftbench("audit", *words, "--limit", "2")


def test_audit_table_names_causes_and_remedies(models: list[str]) -> None:
    shown = " ".join(run("-m", models[0]).out.split())
    assert re.search(r"border \(1\): padding [^.]+\..*circular", shown)
    assert "non-linearity (1)" in shown
    assert "sub-sampling (1)" in shown
    assert "The logits change by" in shown
    assert "border (1)" not in run("-m", models[1]).out


def test_audit_csv_contains_every_layer_of_every_model(models: list[str], tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    run("-m", models[0], "-m", models[1], "-o", path)
    frame = pd.read_csv(path, keep_default_na=False)
    assert frame.groupby("model").size().tolist() == [7, 7]
    assert frame["name"].tolist()[:7] == ["0", "1", "2", "3", "4", "5", ""]
    assert frame["depth"].tolist()[:7] == [1] * 6 + [0]
    printed = json.loads(run("-m", models[0], "--format", "json").out)
    assert [row["cause"] for row in printed][:3] == ["border", "non-linearity", "sub-sampling"]


def test_audit_draws_several_models(models: list[str], tmp_path: Path) -> None:
    path = tmp_path / "depth.png"
    result = run("-m", models[0], "-m", models[1], "-o", path)
    assert "2 models" in result.err
    with Image.open(path) as image:
        assert image.width > 800


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "{tmp}/layers.xlsx"), ".csv, .png, .pdf, .svg"),
        (("-o", "{tmp}/nowhere/a.png"), "there is no folder"),
        (("-m", "timm:resnet18", "--checkpoint", "x.pth"), "one --model"),
        (("--offset", "1"), "expected two numbers"),
    ],
)
def test_audit_mistake_prints_one_line(
    words: tuple[str, ...], message: str, models: list[str], tmp_path: Path
) -> None:
    ran = run("-m", models[0], *(word.format(tmp=tmp_path) for word in words))
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
