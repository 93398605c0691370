"""`shiftbench train` accepts models of every source, with remedies; `run` accepts its output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from command_line import shiftbench
from PIL import Image
from safetensors.torch import load_file

from aft_models.cards import list_weights, weights_card
from aft_models.remedies.repair import reports
from shiftbench.models import build_model, load_model

CLASSES = ("apple", "beech", "cherry")
SMALL = "mobilenetv3_small_050"
NET = """
from torch import nn

def build(width=8):
    net = nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, 10),
    )
    return net, {"input_size": 24, "mean": (0.4,) * 3, "std": (0.3,) * 3}
"""


@pytest.fixture
def photos(tmp_path: Path) -> str:
    """Write a folder per class, of 40 px images that differ in color."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for index, name in enumerate(CLASSES):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(0, 80, (40, 40, 3), dtype=np.uint8)
                pixels[..., index] += 150
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return f"folder:{tmp_path / 'photos'}"


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:build"


def train(model: str, data: str, folder: Path, *more: str, code: int = 0) -> tuple[str, str]:
    settings = ("epochs=1", "batch_size=12", "warmup_epochs=0", "lr=1e-3")
    few = [word for setting in settings for word in ("--set", setting)]
    required = ["train", "-m", model, "-d", data, "--recipe", "finetune", "-o", str(folder)]
    rest = ["--shift-every", "0", "--shift-limit", "6", "-j", "0", "--device", "cpu", *more]
    return shiftbench(*required, *few, *rest, code=code)[1:]


def run(model: str, export: Path, data: str, records: Path) -> dict:
    words = ["run", "-m", model, "--checkpoint", str(export), "-d", data, "-o", str(records)]
    few = ["--attack", "integer", "--max-shift", "1", "-j", "0", "--device", "cpu", "-q"]
    return json.loads(shiftbench(*words, *few, "--format", "json", code=0).out)


def test_train_repaired_model_from_original_checkpoint_to_record(
    photos: str, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    original = timm.create_model(SMALL, num_classes=20)
    torch.save({"state_dict": original.state_dict()}, tmp_path / "w.pth")
    name, out = f"timm:{SMALL}+blurpool", tmp_path / "run"
    more = ("--checkpoint", str(tmp_path / "w.pth"), "--set", "image_size=32")
    _, err = train(name, photos, out, *more)
    assert "new, to be learned: classifier.bias, classifier.weight" in err

    (stem,) = list_weights(out / "export")
    card = weights_card(stem, out / "export")
    assert (card.architecture, card.input_size, card.num_classes) == (name, 32, 3)
    assert card.class_names == CLASSES
    trained = load_model(name, checkpoint=out / "export")
    assert (trained.name, trained.preprocessing.input_size) == (name, 32)
    assert [r.remedy for r in reports(trained.network)] == ["blurpool"]
    weights = load_file(out / "export" / f"{stem}.safetensors")
    state = trained.network.state_dict()
    assert all(torch.equal(state[key], value) for key, value in weights.items())
    assert weights.keys() == original.state_dict().keys()
    # The run resumed from the checkpoint: a few steps at 1e-3 change the stem only a little.
    start = original.state_dict()["conv_stem.weight"]
    assert (weights["conv_stem.weight"] - start).abs().max() < 0.02

    # The weights fit the original too, and the folder alone names its model.
    assert load_model(f"timm:{SMALL}", checkpoint=out / "export").num_classes == 3
    alone = load_model(str(out / "export"))
    assert (alone.identity.digest, alone.name) == (trained.identity.digest, card.name)

    records = tmp_path / "records"
    run(name, out / "export", photos, records)
    place = [str(path.parent) for path in records.rglob("record.json")]
    again = ("-m", name, "--checkpoint", str(out / "export"), "-d", photos, "--limit", "3")
    text = shiftbench("verify", *place, *again, code=0).out
    assert "of 3 of 12 images compared" in text
    few = ("--checkpoint", str(out / "export"), "-d", photos, "--limit", "2")
    text = shiftbench("audit", "-m", name, *few, "--format", "json", code=0).out
    assert json.loads(text)


def test_train_repeated_command_resumes_and_is_reproducible(
    photos: str, net: str, tmp_path: Path
) -> None:
    results = [
        train(f"{net}+af", photos, tmp_path / folder, "--format", "json")[0]
        for folder in ("one", "one", "two")
    ]
    scores = [json.loads(text)["scores"] for text in results]
    assert scores[0] == scores[1] == scores[2]
    files = [next((tmp_path / f / "export").glob("*.safetensors")) for f in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
    other = ("--seed", "1")
    train(f"{net}+af", photos, tmp_path / "three", *other)
    third = next((tmp_path / "three" / "export").glob("*.safetensors"))
    assert third.read_bytes() != files[0].read_bytes()


def test_train_file_with_remedies_exports_its_name(photos: str, net: str, tmp_path: Path) -> None:
    name = f"{net},width=6+circular+aps"
    train(name, photos, tmp_path / "run")
    export = tmp_path / "run" / "export"
    (stem,) = list_weights(export)
    card = weights_card(stem, export)
    assert card.architecture == "net.py:build,width=6+circular+aps"  # no local path
    assert (card.input_size, card.mean, card.num_classes) == (24, (0.4,) * 3, 3)
    trained = load_model(name, checkpoint=export)
    images = torch.rand(2, 3, 24, 24)
    torch.testing.assert_close(trained(images.roll((3, 1), (2, 3))), trained(images))
    assert run(name, export, photos, tmp_path / "records")


@pytest.mark.parametrize(
    ("model", "start"),
    [
        ("hf:TINY+circular", ("--pretrained",)),
        ("tv:squeezenet1_1", ()),
        ("timm:vit_tiny_patch16_224,depth=1+canonical", ()),
        ("xcit_pico_6_p8.scenes+canonical", ("--pretrained",)),
    ],
)
def test_train_accepts_models_of_every_source(
    model: str, start: tuple[str, ...], photos: str, tmp_path: Path
) -> None:
    if model.startswith("hf:"):
        transformers = pytest.importorskip("transformers")
        config = transformers.ResNetConfig(
            num_labels=7, embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic"
        )
        transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "tiny")
        model = model.replace("TINY", str(tmp_path / "tiny"))
    train(model, photos, tmp_path / "run", "--set", "image_size=32", *start)
    trained = load_model(model.replace(".scenes", ""), checkpoint=tmp_path / "run" / "export")
    assert (trained.num_classes, trained.class_names) == (3, CLASSES)
    assert trained.preprocessing.input_size == 32
    assert trained(torch.rand(1, 3, 32, 32)).shape == (1, 3)


def test_train_shift_consistency_logs_its_loss_and_agreement(photos: str, tmp_path: Path) -> None:
    settings = ("image_size=32", "shift=1", "zoom=1,1", "batch_size=8")
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--recipe", "shift-consistency", "--pretrained"]
    out, err = train("xcit_pico_6_p8.scenes", photos, tmp_path / "run", *words)
    assert "consistency loss 0." in err
    assert "agreement crop: " in out
    assert "accuracy: " in out
    header, _ = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert {"consistency_loss", "agreement_crop"} <= set(header.split(","))


def test_train_random_weights_depend_on_seed() -> None:
    first, again, other = (
        build_model(f"timm:{SMALL}+aps", classes=3, size=32, seed=seed).layers.state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[key], again[key]) for key in first)
    for key in ("conv_stem.weight", "classifier.weight"):
        assert not torch.equal(first[key], other[key])


@pytest.mark.parametrize(
    ("model", "more", "complaint"),
    [
        (f"timm:{SMALL}+blurpol", (), "unknown remedy 'blurpol'. Did you mean 'blurpool'?"),
        (f"timm:{SMALL}+aps+af", (), "contradict each other"),
        ("timm:mobilenetv3_smal_050", (), "unknown timm model"),
        (f"timm:{SMALL}", ("--checkpoint", "WRONG"), "does not fit the model: 237 missing ("),
        (f"timm:{SMALL}", ("--checkpoint", "NOWHERE"), "no checkpoint at"),
        (f"timm:{SMALL},pretrained=true", (), "leave pretrained=true out"),
        ("onnx:net.onnx", (), "onnx:net.onnx contains its weights: it cannot be trained"),
        ("nets.py:build", (), "no Python file 'nets.py'"),
        (".", (), "expected a model, got the folder .: name the model with -m"),
    ],
)
def test_train_invalid_request_prints_one_line(
    photos: str, tmp_path: Path, model: str, more: tuple[str, ...], complaint: str
) -> None:
    wrong = timm.create_model("resnet10t", num_classes=3)
    torch.save(wrong.state_dict(), tmp_path / "wrong.pth")
    places = {"WRONG": str(tmp_path / "wrong.pth"), "NOWHERE": str(tmp_path / "nowhere.pth")}
    words = [places.get(word, word) for word in more]
    code = 1 if complaint.startswith("no checkpoint") else 2
    _, err = train(model, photos, tmp_path / "o", *words, code=code)
    assert complaint in err
    assert len(err.strip().splitlines()) == 1


def test_train_weights_of_other_model_or_classes_raise(photos: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(f"timm:{SMALL}", photos, out, "--set", "image_size=32")
    words = ["--checkpoint", str(out / "export"), "-o", str(tmp_path / "r"), "-d"]
    err = shiftbench("run", "-m", "timm:resnet10t", *words, photos, code=1).err
    assert f"expected weights of timm:resnet10t, got weights of timm:{SMALL} in" in err
    err = shiftbench("run", "-m", f"timm:{SMALL}", *words, "scenes").err
    assert "3" in err
    assert "classes" in err
    assert len(err.strip().splitlines()) == 1
