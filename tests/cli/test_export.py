"""`shiftbench export` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import shiftbench

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(3, 12, 5, 2), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    return net, {"input_size": 24, "mean": 0.5, "std": 0.25}
"""
RUN = ("--limit", "8", "-a", "crop", "--max-shift", "1", "--no-consistency", "-q")


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:build+align:2"


def test_export_run_and_verify_agree(model: str, tmp_path: Path) -> None:
    path, runs = tmp_path / "model.onnx", tmp_path / "runs"
    out = shiftbench("export", "-m", model, "-o", path, "--limit", "9", code=0).out
    assert "model.onnx: net.py:build+align:2" in out
    assert "float32 (batch, 3, 56, 56)" in out
    assert "9 images of scenes at batch sizes 1 and 8" in out
    assert "0 classes differ" in out
    words = ["run", *RUN, "-o", runs, "--format", "json"]
    [record] = json.loads(shiftbench(*words, "-m", model, code=0).out)
    plain = model.removesuffix("+align:2")
    ran = shiftbench(*words, "-m", path, "-m", plain, code=0)
    exported, other = json.loads(ran.out)
    assert ran.err == ""
    assert exported["scores"] == record["scores"]
    views = [one["data"]["geometry"][key] for one in (exported, other) for key in ("scale", "view")]
    assert views == [2, 56, 2, 48]
    for pattern, given in (("model.onnx*", model), ("net.py*align*", path)):
        (folder,) = runs.glob(pattern)
        words = ["verify", folder, "-m", given, "-d", "scenes", "--limit", "8"]
        out = shiftbench(*words, code=0).out
        assert "predictions of 8 of 8 images compared" in out
        assert "0 differ" in out


def test_export_json_and_force(model: str, tmp_path: Path) -> None:
    words = ["export", "-m", model, "-o", tmp_path / "m.pt2", "--limit", "2", "--format", "json"]
    content = json.loads(shiftbench(*words, "--include", "uint8", code=0).out)
    assert content["input_shape"] == [56, 56, 3]
    err = shiftbench(*words, code=2).err
    assert "m.pt2 exists. Add --force" in err
    assert json.loads(shiftbench(*words, "--force", code=0).out)["input_shape"] == [3, 56, 56]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "m.tflite"), "expected a file that ends with .onnx or .pt2"),
        (("-o", "m.onnx", "--include", "normalise"), "Did you mean 'normalize'?"),
        (("-o", "m.onnx", "-d", "scene"), "Did you mean 'scenes'?"),
    ],
)
def test_export_mistake_prints_one_line(
    words: tuple[str, ...], message: str, model: str, tmp_path: Path
) -> None:
    file = tmp_path / words[1]
    code, _, err = shiftbench("export", "-m", model, "-o", file, *words[2:])
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not file.exists()
