"""`shiftbench audit` as a user calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from shiftbench.errors import UsageError
from shiftbench_cli.audit import command

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


def run(*arguments: object) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(command, [*words, "--images", "2"])


def test_the_table_names_layers_causes_and_remedies(models: list[str]) -> None:
    shown = " ".join(run("-m", models[0]).stdout.split())
    assert re.search(r"border \(1\): padding [^.]+\. Treated by [^.]*circular", shown)
    assert "non-linearity (1)" in shown
    assert "sub-sampling (1)" in shown
    assert "The logits change by" in shown
    assert "border (1)" not in run("-m", models[1]).stdout


def test_a_csv_holds_every_layer_of_every_model(models: list[str], tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    run("-m", models[0], "-m", models[1], "-o", path)
    frame = pd.read_csv(path, keep_default_na=False)
    assert frame.groupby("model").size().tolist() == [7, 7]
    assert frame["name"].tolist()[:7] == ["0", "1", "2", "3", "4", "5", ""]
    assert frame["depth"].tolist()[:7] == [1] * 6 + [0]
    printed = json.loads(run("-m", models[0], "--format", "json").stdout)
    assert [row["cause"] for row in printed][:3] == ["border", "non-linearity", "sub-sampling"]


def test_a_picture_is_drawn_for_any_number_of_models(models: list[str], tmp_path: Path) -> None:
    path = tmp_path / "depth.png"
    result = run("-m", models[0], "-m", models[1], "-o", path)
    assert "2 models" in result.stderr
    with Image.open(path) as image:
        assert image.width > 800


def test_bad_input_is_one_sentence(models: list[str], tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        error = run("-m", models[0], *arguments).exception
        assert isinstance(error, UsageError)
        return str(error)

    assert "ends in .csv, .png, .pdf, .svg" in refused("-o", tmp_path / "layers.xlsx")
    assert "there is no folder" in refused("-o", tmp_path / "nowhere" / "a.png")
    assert "expected one --model for the weights of --checkpoint, got 2" in refused(
        "-m", models[1], "--checkpoint", "x.pth"
    )
    assert "expected two numbers" in run("-m", models[0], "--offset", "1").output
