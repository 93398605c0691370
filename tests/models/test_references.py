"""Loaded models equal, bit for bit, the same network built directly with its library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import aft_models
from aft_models.cards import WeightsCard, weights_card
from aft_models.checkpoint import load_weights, save_weights, state_dict_digest
from aft_models.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from shiftbench.models import load_model

TINY = "timm:resnet10t,pretrained=false,num_classes=9"

FILE = """
import torch
from torch import nn

def build(width=8):
    layers = [nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))
    return net, {"input_size": 48, "mean": 0.5, "std": 0.25, "crop_pct": 0.8}
"""


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().eval()


def tiny() -> nn.Module:
    return seeded(lambda: timm.create_model("resnet10t", num_classes=9))


def small_file_network() -> nn.Module:
    content: dict[str, Any] = {}
    exec(FILE, content)
    return seeded(lambda: content["build"]()[0])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Python file, checkpoints in several forms, and an exported folder."""
    folder: Path = tmp_path_factory.mktemp("files")
    (folder / "net.py").write_text(FILE)
    state = small_file_network().state_dict()
    state = {key: value + 1 for key, value in state.items()}
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, folder / "module.pth")
    torch.save(
        {f"student.{k}": v for k, v in state.items()} | {"x": torch.ones(1)}, folder / "s.pt"
    )
    torch.save({"model": {f"loss.net.{k}": v for k, v in state.items()}}, folder / "inside.pth")
    torch.save(state, folder / "plain.pth")
    network = seeded(lambda: timm.create_model("resnet10t", num_classes=3))
    card = WeightsCard(
        name="timm:resnet10t.birds",
        architecture="timm:resnet10t",
        tag="birds",
        num_classes=3,
        class_names=("ant", "bee", "cat"),
        input_size=64,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.2, 0.3),
        interpolation="bilinear",
        crop_pct=64 / 73,
        digest="",
    )
    save_weights(network, folder / "export", card)
    return folder


def filled() -> nn.Module:
    network = small_file_network()
    network.load_state_dict({key: value + 1 for key, value in network.state_dict().items()})
    return network


def exported() -> nn.Module:
    return seeded(lambda: timm.create_model("resnet10t", num_classes=3))


# name, options of load_model, the network built directly, remedies, side, mean
CASES: list[tuple[str, dict[str, str], Callable[[], nn.Module], str, int, tuple[float, ...]]] = [
    *(
        (name, {}, lambda name=name: load_weights(name), remedies, size, weights_card(name).mean)
        for name, remedies, size in (
            ("xcit_pico_6_p8.scenes", "", 64),
            ("xcit_pico_6_p8.scenes", "canonical", 64),
            ("xcit_pico_6_p8_af.imagenette", "", 96),
            ("xcit_pico_6_p4_aps.cifar10", "vote:2", 32),
        )
    ),
    *(
        (TINY, {}, tiny, remedies, 176, IMAGENET_MEAN)
        for remedies in ("", "circular+aps", "blurpool:3", "af", "vote:2", "circular+align:4:1")
    ),
    (
        "tv:squeezenet1_1,pretrained=false,num_classes=4",
        {},
        lambda: seeded(lambda: torchvision.models.squeezenet1_1(num_classes=4)),
        "circular+aps",
        224,
        IMAGENET_MEAN,
    ),
    ("FILES/net.py:build", {}, small_file_network, "flc", 48, (0.5,) * 3),
    ("FILES/net.py:build", {"checkpoint": "plain.pth"}, filled, "", 48, (0.5,) * 3),
    ("FILES/net.py:build", {"checkpoint": "module.pth"}, filled, "aps", 48, (0.5,) * 3),
    ("FILES/net.py:build", {"checkpoint": "inside.pth"}, filled, "", 48, (0.5,) * 3),
    (
        "FILES/net.py:build",
        {"checkpoint": "s.pt", "strip_prefix": "student."},
        filled,
        "vote",
        48,
        (0.5,) * 3,
    ),
    ("FILES/export", {}, exported, "", 64, (0.5, 0.4, 0.3)),
    ("FILES/export", {}, exported, "circular+blurpool+align:4:1", 64, (0.5, 0.4, 0.3)),
    ("timm:resnet10t", {"checkpoint": "export"}, exported, "aps", 64, (0.5, 0.4, 0.3)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}+{case[3]}-{len(case[1])}")
def test_load_model_equals_network_built_by_hand(case: Any, files: Path) -> None:
    name, options, build, remedies, size, mean = case
    options = {k: files / v if k == "checkpoint" else v for k, v in options.items()}
    text = name.replace("FILES", str(files)) + (f"+{remedies}" if remedies else "")
    loaded, original = load_model(text, **options), build()
    network = aft_models.repair(original, remedies, input_size=size) if remedies else original
    recipe = loaded.preprocessing
    margin = 4 if "align:4:1" in remedies else 0
    assert (recipe.size, recipe.input_size, recipe.mean) == (size, size + 2 * margin, mean)
    images = torch.randn(3, 3, *[recipe.input_size] * 2, generator=torch.Generator().manual_seed(1))
    probe = torch.randn(2, 3, *[recipe.input_size] * 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(loaded(images), network.eval()(images))
        logits: Tensor = network(probe)[0]
    assert loaded.num_classes == len(logits)
    expected = logits[:: -(-len(logits) // 8)].tolist()
    assert loaded.identity.logits == tuple(float(f"{x:.5g}") for x in expected)
    assert loaded.identity.weights == state_dict_digest(original.state_dict())
    assert loaded.identity.remedies == remedies
    if not loaded.identity.code:
        weights = loaded.identity.weights
        combined = hashlib.sha256(f"{weights}+{remedies}".encode()).hexdigest()
        assert loaded.identity.digest == (combined if remedies else weights)


def test_exported_folder_has_names_and_preprocessing_of_its_card(files: Path) -> None:
    loaded = load_model(f"{files}/export+aps")
    assert (loaded.name, loaded.source) == ("timm:resnet10t.birds+aps", "timm")
    assert loaded.class_names == ("ant", "bee", "cat")
    recipe = loaded.preprocessing
    assert (recipe.resize, recipe.interpolation, recipe.enlarge) == (73, "bilinear", True)
    assert recipe.std != IMAGENET_STD
    assert load_model(f"mine={files}/export").name == "mine"


def test_exported_folder_applies_remedies_of_its_card(tmp_path: Path) -> None:
    network = seeded(lambda: timm.create_model("resnet10t", num_classes=3))
    card = weights_card("xcit_pico_6_p8.scenes")
    facts = {
        **asdict(card),
        "name": "timm:resnet10t+circular.birds",
        "architecture": "timm:resnet10t+circular",
        "tag": "birds",
        "num_classes": 3,
        "class_names": (),
        "digest": "",
        "switches": {},
    }
    save_weights(network, tmp_path, WeightsCard(**facts))
    loaded = load_model(f"{tmp_path}+aps")
    assert loaded.identity.remedies == "circular+aps"
    assert loaded.name == "timm:resnet10t+circular.birds+aps"
    images = torch.randn(2, 3, 64, 64)
    expected = aft_models.repair(network, "circular+aps", input_size=64)
    assert torch.equal(loaded(images), expected.eval()(images))
    stored = json.loads((tmp_path / "timm_resnet10t_circular.birds.json").read_text())
    assert stored["digest"] == loaded.identity.weights
