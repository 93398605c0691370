"""Weights from files: wrappers, prefixes, all or nothing, without running their code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from aft_models.checkpoint import load_backbone, read_state_dict, read_weights
from aft_models.errors import AftModelsError
from shiftbench.errors import ModelError, UsageError
from shiftbench.models import build_model, load_model

FLAT = """
from torch import nn

class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, images):
        return self.head(images.mean((2, 3)))

def build():
    return Flat(), {"input_size": 16, "mean": 0.5, "std": 0.5}
"""
WEIGHTS = {"head.weight": torch.randn(3, 3), "head.bias": torch.randn(3)}


@pytest.fixture
def name(tmp_path: Path) -> str:
    (tmp_path / "flat.py").write_text(FLAT)
    return f"{tmp_path / 'flat.py'}:build"


def under(prefix: str, scale: float = 1.0) -> dict[str, Tensor]:
    return {f"{prefix}{key}": value * scale for key, value in WEIGHTS.items()}


def check(name: str, path: Path, strip_prefix: str | None = None) -> None:
    model = load_model(name, checkpoint=path, strip_prefix=strip_prefix)
    images = torch.randn(2, 3, 16, 16)
    expected = nn.functional.linear(images.mean((2, 3)), *WEIGHTS.values())
    with torch.no_grad():
        torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        (WEIGHTS, ".safetensors"),
        (WEIGHTS, ".pth"),
        ({"state_dict": WEIGHTS, "epoch": 3}, ".pth"),
        ({"model": WEIGHTS, "optimizer": {"lr": 0.1}}, ".pt"),
        ({"model": under("", 0), "model_ema": WEIGHTS}, ".pth"),
        ({"state_dict": under("module.")}, ".pth"),
        (under("module._orig_mod."), ".safetensors"),
        ({**under("net.backbone."), "loss.weight": torch.ones(3)}, ".pth"),
        (
            {
                "state_dict": {**under("model."), "criterion.weight": torch.ones(3)},
                "pytorch-lightning_version": "2.4.0",
                "hyper_parameters": argparse.Namespace(root=Path("/data"), lr=0.1),
            },
            ".ckpt",
        ),
    ],
)
def test_run_and_train_read_the_same_files(
    content: Any, suffix: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / f"weights{suffix}"
    save_file(content, path) if suffix == ".safetensors" else torch.save(content, path)
    check(name, path)
    for classes, new in ((3, []), (7, ["head.bias", "head.weight"])):
        network = build_model(name, classes=classes).layers
        assert load_backbone(network, read_weights(path), size=16) == new
        assert torch.equal(network.state_dict()["head.weight"], WEIGHTS["head.weight"]) != bool(new)


def test_checkpoint_of_old_torch_version_loads(name: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=False)
    check(name, path)
    torch.save({"model": WEIGHTS, "x": Code()}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ModelError, match="its code is not run"):
        load_model(name, checkpoint=path)


def test_strip_prefix_chooses_one_of_several_networks(name: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({**under("student."), **under("teacher.", 2)}, path)
    check(name, path, "student.")
    with pytest.raises(ModelError, match=r"choose one with --strip-prefix \(student\., teacher\."):
        load_model(name, checkpoint=path)
    with pytest.raises(ModelError, match=r"begins with 'pupil\.': they are student\.head\.bias"):
        load_model(name, checkpoint=path, strip_prefix="pupil.")


def test_checkpoint_misfit_lists_keys_and_loads_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"head.weight": torch.zeros(4, 3), "extra": torch.zeros(1)}, path)
    with pytest.raises(ModelError) as error:
        load_model(name, checkpoint=path)
    assert (
        "does not fit the model: 1 missing (head.bias), 1 unexpected (extra), 1 of another shape "
        "(head.weight (4, 3) instead of (3, 3)); nothing was loaded"
    ) in str(error.value)


def test_checkpoint_with_pretrained_option_raises(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "w.pth")
    with pytest.raises(UsageError, match="is given other weights: leave pretrained=true out"):
        load_model("timm:resnet10t,pretrained=true", checkpoint=tmp_path / "w.pth")


class Code:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return print, ("ran",)


@pytest.mark.parametrize("content", [Code(), {"weights": [1, 2]}, {}, {"x": Code()}])
def test_file_without_state_dict_raises_and_runs_no_code(
    content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.pth"
    torch.save(content, path)
    with pytest.raises(AftModelsError, match=r"w\.pth"):
        read_state_dict(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_damaged_or_missing_file_raises(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"not weights at all")
    with pytest.raises(AftModelsError, match=name):
        read_state_dict(tmp_path / name)
    with pytest.raises(AftModelsError, match="no checkpoint at"):
        read_state_dict(tmp_path / "nowhere.pth")
