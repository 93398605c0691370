"""`shiftbench.train` from Python, and initial weights that recipes reject."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from stored_images import save

import shiftbench
from shiftbench.errors import ShiftbenchError, UsageError
from shiftbench.models import load_model
from shiftbench.training import Trained

NET = """
from torch import nn

def build(norm=True, classes=3):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
    )
    return net, {"input_size": 24}
"""
FEW: dict[str, Any] = {"workers": 0, "device": "cpu", "shift_images": 6, "shift_every": 0}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Write a network to a file, and images with and without classes."""
    (tmp_path / "net.py").write_text(NET)
    for folder in ("photos/train/a", "photos/train/b", "photos/train/c", "loose"):
        for index in range(8):
            value = 8 * ord(folder[-1]) + index
            save(tmp_path / folder / f"{index}.png", value, size=(40, 40))
    return tmp_path


def train(place: Path, data: str, recipe: str, *changes: str, **options: Any) -> Trained:
    model = options.pop("model", f"{place / 'net.py'}:build")
    settings = [f"batch_size={8 if recipe == 'shift-consistency' else 12}", *changes]
    return shiftbench.train(
        model, data, recipe, place / recipe, changes=settings, **{**FEW, **options}
    )


@pytest.fixture
def trained(place: Path) -> Path:
    changes = ("epochs=1", "warmup_epochs=0")
    return train(place, f"folder:{place}/photos", "finetune", *changes, split="train").folder


def test_train_function_equals_command(place: Path) -> None:
    lines: list[str] = []
    seen = []
    told: Any = {"progress": seen.append, "notice": lines.append}
    changes = ("epochs=1", "shift=1", "zoom=1,1")
    result = train(
        place, f"folder:{place}/photos", "shift-consistency", *changes, split="train", **told
    )
    assert {"accuracy", "agreement_crop"} <= result.scores.keys()
    assert result.scores["agreement_crop"].n == 6
    for name, score in result.scores.items():
        assert score.value == pytest.approx(result.rows[-1][name])
    assert result.rows[-1]["consistency_loss"] == pytest.approx(seen[-1].consistency_loss)
    assert lines == []
    loaded = load_model(f"{place / 'net.py'}:build", checkpoint=result.folder)
    assert loaded.class_names == ("a", "b", "c")
    assert (place / "shift-consistency" / "log.csv").is_file()


def test_train_with_select_exports_weights_of_the_network(place: Path) -> None:
    net, lines = f"{place / 'net.py'}:build", []
    result = train(
        place,
        f"folder:{place}/photos",
        "shift-consistency",
        *("epochs=1", "shift=1", "zoom=1,1"),
        model=f"{net}+align:2:1+circular",
        split="train",
        notice=lines.append,
    )
    assert "align:2:1 has no trainable weights" in lines[0]
    loaded = load_model(f"{net}+circular+align:2:1", checkpoint=result.folder)
    assert loaded.preprocessing.input_size == 28
    assert loaded(torch.rand(1, 3, 28, 28)).shape == (1, 3)


def test_recalibrate_unlabeled_images_changes_statistics_alone(place: Path, trained: Path) -> None:
    data, options = f"folder:{place}/loose", {"checkpoint": trained, "unlabeled": True}
    result = train(place, data, "recalibrate", "batch_size=8", **options)
    assert "accuracy" not in result.scores
    loaded = load_model(f"{place / 'net.py'}:build", checkpoint=result.folder)
    assert (loaded.num_classes, loaded.class_names) == (3, ("a", "b", "c"))
    start, end = (
        load_file(next(folder.glob("*.safetensors"))) for folder in (trained, result.folder)
    )
    assert torch.equal(start["0.weight"], end["0.weight"])
    assert not torch.equal(start["1.running_mean"], end["1.running_mean"])


def test_recalibrate_keeps_classes_of_the_checkpoint(place: Path, trained: Path) -> None:
    """Folders are matched by name; folders of other classes raise an error."""
    fewer = place / "fewer" / "train"
    for name in "cb":
        shutil.copytree(place / "photos" / "train" / name, fewer / name)
    options: dict[str, Any] = {"checkpoint": trained, "split": "train"}
    result = train(place, f"folder:{place}/fewer", "recalibrate", **options)
    loaded = load_model(f"{place / 'net.py'}:build", checkpoint=result.folder)
    assert loaded.class_names == ("a", "b", "c")
    (fewer / "c").rename(fewer / "zebra")
    with pytest.raises(UsageError, match="'zebra' of fewer is not one class of the model"):
        train(place, f"folder:{place}/fewer", "recalibrate", resume=False, **options)


@pytest.mark.parametrize(
    ("recipe", "changes", "options", "complaint"),
    [
        ("recalibrate", (), {"checkpoint": "wide"}, "weights with the classes of the data"),
        ("recalibrate", (), {}, "needs trained weights of"),
        ("recalibrate", (), {"checkpoint": "plain", "model": "plain"}, "has none: use a recipe"),
        (
            "shift-consistency",
            (),
            {"data": "loose"},
            "or use --unlabeled with the recipe recalibrate",
        ),
        (
            "shift-consistency",
            (),
            {"data": "loose", "unlabeled": True},
            "unlabeled must be false where lr",
        ),
        ("finetune", (), {"data": "loose", "unlabeled": True}, "unlabeled must be false where lr"),
        ("shift-consistency", ("canvas=26",), {}, "canvas must be `shift` 6 px or more larger"),
    ],
)
def test_train_unusable_initial_weights_raise(
    place: Path, recipe: str, changes: tuple[str, ...], options: dict[str, Any], complaint: str
) -> None:
    for name, words in (("wide", "classes=7"), ("plain", "norm=false")):
        model = load_model(f"{place / 'net.py'}:build,{words}")
        torch.save(model.state_dict(), place / f"{name}.pt")
    options = dict(options)
    data = f"folder:{place / options.pop('data', 'photos')}"
    if "checkpoint" in options:
        options["checkpoint"] = place / f"{options['checkpoint']}.pt"
    if options.pop("model", None):
        options["model"] = f"{place / 'net.py'}:build,norm=false"
    split = None if options.get("unlabeled") else "train"
    with pytest.raises((ShiftbenchError, ValueError), match=complaint):
        train(place, data, recipe, *changes, split=split, **options)
    assert not (place / recipe / "export").exists()
