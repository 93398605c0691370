"""Nearest neighbors against a slow, obvious reference, on small backbones of random weights."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
import torch
from stored_images import save
from torch import Tensor

from shiftbench.data import load_dataset
from shiftbench.errors import ModelError, UsageError
from shiftbench.identity import changed_parts
from shiftbench.models import Classifier, load_model
from shiftbench.models.sources import knn
from shiftbench.preprocessing import geometry_for, normalize

BACKBONE = "timm:test_vit4,pretrained=false,img_size=32"
NAMES = ("ant", "bee", "cat")
REFERENCE = ",reference=folder:{0}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two splits of three classes."""
    places = product(("train", "val"), NAMES, range(4))
    for value, (split, name, i) in enumerate(places):
        save(tmp_path / "animals" / split / name / f"{i}.png", value, size=(48, 40))
    return tmp_path / "animals"


def slow_votes(
    model: Classifier, images: Tensor, data: str, k: int, temperature: float, names: tuple[str, ...]
) -> list[dict[str, float]]:
    """One image, one neighbor at a time; votes by name of class."""
    reference = load_dataset(data, split="train")
    recipe = model.preprocessing
    geometry = geometry_for(recipe)
    known = []
    for index in range(len(reference)):
        image, label = reference[index]
        pixels = normalize(geometry.canvas(image)[None], recipe.mean, recipe.std)
        known.append((model.features(pixels)[0], reference.class_names[label]))
    votes = []
    for image in images:
        seen = model.features(image[None])[0]
        near = sorted(((torch.dot(seen, f).item(), name) for f, name in known), reverse=True)[:k]
        total = dict.fromkeys(names, 0.0)
        for cosine, name in near:
            total[name] += math.exp(cosine / temperature)
        votes.append(total)
    return votes


@pytest.mark.parametrize(("k", "temperature"), [(12, 0.07), (5, 0.07), (12, 1.0)])
def test_logits_are_log_votes(k: int, temperature: float, folder: Path) -> None:
    data = f"folder:{folder}"
    options = f",reference={data},k={k},temperature={temperature}"
    names = ("cat", "ant", "bee")  # as the data number them
    model = load_model(f"knn:{BACKBONE}{options}", class_names=names)
    assert (model.class_names, model.num_classes, model.source) == (names, 3, "knn")
    assert str(folder.parent) not in model.name
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(images)
        slow = slow_votes(model, images, data, k, temperature, names)
    for row, votes in zip(logits, slow, strict=True):
        shares = torch.tensor([votes[name] for name in names])
        torch.testing.assert_close(row.softmax(0), shares / shares.sum(), rtol=1e-4, atol=1e-6)


def test_features_are_computed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"knn:{BACKBONE},reference=folder:{folder},k=3"
    first = load_model(name)
    assert first.class_names == NAMES

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(knn, "canvas_batches", fail)
    again = load_model(name)
    assert (again.digest, again.parts) == (first.digest, first.parts)
    (folder / "train" / "ant" / "0.png").unlink()
    with pytest.raises(ModelError, match="read again"):
        load_model(name)


def test_every_choice_is_part_of_the_identity(folder: Path) -> None:
    name = f"knn:{BACKBONE},reference=folder:{folder}"
    plain = load_model(f"{name},k=3")
    for options, part in (
        (",k=4", "votes"),
        (",k=3,temperature=1", "votes"),
        (",k=3,split=val", "reference"),
        (",k=3,limit=6", "reference"),
    ):
        other = load_model(name + options)
        assert part in changed_parts(plain.parts, other.parts)
        assert other.digest != plain.digest


def test_a_repaired_backbone_has_a_repaired_reference(folder: Path) -> None:
    name = f"knn:timm:resnet10t,pretrained=false,reference=folder:{folder},k=3"
    repaired = load_model(f"{name}+circular+aps")
    assert repaired.name.endswith("k=3+circular+aps")
    assert repaired.digest != load_model(name).digest
    network = repaired.network
    image, _ = load_dataset(f"folder:{folder}", split="train")[0]
    recipe = repaired.preprocessing
    pixels = normalize(geometry_for(recipe).canvas(image)[None], recipe.mean, recipe.std)
    with torch.no_grad():
        ours = repaired.features(pixels)[0]
        torch.testing.assert_close(ours, network.get_buffer("features")[0], rtol=1e-3, atol=1e-4)
        moved = repaired.features(pixels.roll(1, -1))[0]
    torch.testing.assert_close(moved, ours, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["Dinov2", "ViT", "ResNet", "CLIP"])
def test_backbones_of_transformers(kind: str, folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    vision = {**small, "image_size": 32, "patch_size": 8}
    settings = {
        "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "CLIP": {"vision_config": vision, "text_config": small},
    }.get(kind, vision)
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("pooler.dense")}
    place = tmp_path / kind.lower()
    model.save_pretrained(place, state_dict=state)
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessor(size=size).save_pretrained(place)
    loaded = load_model(f"knn:hf:{place},reference=folder:{folder},k=3")
    assert loaded.name == f"knn:hf:{kind.lower()},reference=folder:animals,k=3"
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        if kind == "CLIP":
            output = model.get_image_features(pixel_values=images)
            expected = output if isinstance(output, Tensor) else output.pooler_output
        elif kind == "ResNet":
            expected = model(images).last_hidden_state.mean((2, 3))
        else:
            expected = model(images).last_hidden_state[:, 0]
        expected = expected / expected.norm(dim=1, keepdim=True)
        torch.testing.assert_close(loaded.features(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "names", "words"),
    [
        ("", NAMES, "needs labeled images to compare with: add ,reference=DATA"),
        (f"{REFERENCE},k=13", NAMES, "k=13 neighbors need as many reference images, got 12"),
        (f"{REFERENCE},k=0", NAMES, "expected k, the neighbors of knn:, as 1 or more, got 0"),
        (f"{REFERENCE},k=3,temperature=0", NAMES, "temperature of knn: above 0, got 0"),
        (f"{REFERENCE},k=3", ("ant", "bee", "dog"), "other classes than the data (cat, dog"),
    ],
)
def test_mistakes_are_one_sentence(
    options: str, names: tuple[str, ...], words: str, folder: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(f"knn:{BACKBONE}{options.format(folder)}", class_names=names)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_a_backbone_come_from_a_file(folder: Path, tmp_path: Path) -> None:
    plain = load_model(BACKBONE)
    torch.save({k: v + 0.1 for k, v in plain.network.state_dict().items()}, tmp_path / "w.pth")
    options = f"checkpoint={tmp_path / 'w.pth'},reference=folder:{folder},k=3"
    model = load_model(f"knn:timm:test_vit4,img_size=32,{options}")
    assert "checkpoint=w.pth,reference=folder:animals" in model.name
    other = load_model("timm:test_vit4,img_size=32", checkpoint=tmp_path / "w.pth")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = torch.nn.functional.normalize(other.features(images))
        torch.testing.assert_close(model.features(images), expected)
    with pytest.raises(UsageError, match=r"leave --checkpoint out, and add ,checkpoint=FILE"):
        load_model(f"knn:{BACKBONE},reference=folder:{folder}", checkpoint=tmp_path / "w.pth")


def test_two_classes_of_one_name_stay_two(tmp_path: Path) -> None:
    for wnid in ("n02012849", "n03126707"):  # crane, the bird, and crane, the machine
        save(tmp_path / "train" / wnid / "x.png")
    names = load_dataset(f"imagenet:{tmp_path}", split="train").class_names
    model = load_model(f"knn:{BACKBONE},reference=imagenet:{tmp_path},k=1", class_names=names)
    assert model.network.get_buffer("labels").tolist() == [134, 517]
