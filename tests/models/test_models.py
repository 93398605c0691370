"""Every model source yields one kind of classifier; every mistake is one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import aft_models
import shiftbench.data
import shiftbench.models.sources
from shiftbench.errors import ModelError, ShiftbenchError, UsageError
from shiftbench.models import (
    SOURCES,
    as_classifier,
    default_models,
    list_models,
    load_model,
)
from shiftbench.models.sources.timm import timm_preprocessing
from shiftbench.preprocessing import Preprocessing, geometry_for

TINY = "timm:resnet10t,pretrained=false,num_classes=4"
RECIPE = Preprocessing(16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


class Flat(nn.Module):
    """The smallest classifier."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(3, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.mean((2, 3)))
        return logits


def test_timm_models_have_their_preprocessing_options_and_fixed_random_weights() -> None:
    before = torch.random.get_rng_state()
    loaded = load_model(TINY)
    assert loaded.digest == load_model(TINY).digest
    assert torch.equal(before, torch.random.get_rng_state())
    assert (loaded.source, loaded.name, loaded.num_classes) == ("timm", TINY, 4)
    assert loaded.preprocessing.input_size == 176
    assert not loaded.module.training
    model = timm.create_model("resnet10t", num_classes=4)
    assert loaded.parameters == sum(p.numel() for p in model.parameters())
    assert loaded(torch.randn(2, 3, 64, 64)).shape == (2, 4)
    small = load_model("timm:vit_tiny_patch16_224,pretrained=false,img_size=32,num_classes=5")
    assert (small.preprocessing.input_size, small.num_classes) == (32, 5)
    squash = SimpleNamespace(pretrained_cfg={"input_size": (3, 96, 96), "crop_mode": "squash"})
    assert timm_preprocessing(squash).crop_mode == "squash"  # type: ignore[arg-type]


def test_a_new_file_is_found_without_an_edit_elsewhere() -> None:
    for file in Path(shiftbench.models.sources.__path__[0]).glob("*.py"):
        assert file.stem in SOURCES or file.stem == "__init__"
    for file in Path(shiftbench.data.__path__[0]).glob("*.py"):
        assert f"shiftbench.data.{file.stem}" in sys.modules or file.stem == "__init__"


def test_class_names_come_with_the_weights() -> None:
    loaded = load_model("xcit_pico_6_p4.cifar10")
    assert loaded.class_names[3] == "cat"
    assert loaded.preprocessing.canvas == 37
    assert load_model(TINY).class_names == ()


def test_a_repaired_model_has_its_own_name_and_digest_and_the_same_weights() -> None:
    plain, repaired = load_model(TINY), load_model(f"{TINY}+circular+aps")
    assert repaired.name == f"{TINY}+circular+aps"
    assert repaired.digest != plain.digest
    assert repaired.parameters == plain.parameters
    ours, theirs = plain.module.state_dict(), repaired.module.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    image = torch.rand(1, 3, 64, 64)
    for dy, dx in ((1, 0), (3, 5)):
        moved = repaired(image.roll((dy, dx), (-2, -1)))
        torch.testing.assert_close(moved, repaired(image), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(plain(image.roll(1, -1)), plain(image), rtol=1e-3, atol=1e-4)


def test_learned_remedies_need_their_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="learned parameters that no weights fill"):
        load_model(f"{TINY}+lps")
    network = load_model(TINY).network
    trained = aft_models.repair(network, "lps", image=torch.zeros(1, 3, 64, 64))
    state = {key: value.clone().add_(1) for key, value in trained.state_dict().items()}
    torch.save(state, tmp_path / "lps.pth")
    loaded = load_model("timm:resnet10t,num_classes=4+lps", checkpoint=tmp_path / "lps.pth")
    kept = loaded.network.state_dict()
    assert all(torch.equal(kept[key], value) for key, value in state.items())


@pytest.mark.parametrize(("name", "size"), [("googlenet", 224), ("inception_v3", 299)])
def test_checkpoints_of_models_that_normalize_once_more(
    name: str, size: int, tmp_path: Path
) -> None:
    published = torchvision.models.get_model(
        name, transform_input=True, init_weights=False, num_classes=5
    ).eval()
    torch.save(published.state_dict(), tmp_path / "w.pth")
    images = torch.randn(1, 3, size, size)
    with torch.no_grad():
        expected = published(images)
        loaded = load_model(f"tv:{name},num_classes=5", checkpoint=tmp_path / "w.pth")
        assert torch.equal(loaded(images), expected)
        plain = f"tv:{name},num_classes=5,transform_input=false"
        other = load_model(plain, checkpoint=tmp_path / "w.pth")
        assert not torch.equal(other(images), expected)


def test_torchvision_weights_are_named(tmp_path: Path) -> None:
    torch.save(torchvision.models.mobilenet_v2().state_dict(), tmp_path / "w.pth")
    for options, origin, resize in (
        ("", "IMAGENET1K_V2", 232),
        (",weights=IMAGENET1K_V1", "IMAGENET1K_V1", 256),
    ):
        name = f"tv:mobilenet_v2{options}"
        for model in (
            load_model(name, checkpoint=tmp_path / "w.pth"),
            load_model(f"{name},pretrained=false"),
        ):
            recipe = model.preprocessing
            assert recipe.origin == model.parts["preprocessing"] == origin
            assert geometry_for(recipe, crop_pct="model").resize == resize
            assert geometry_for(recipe).resize == 256
            assert recipe.interpolation == "bilinear"


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: (x, x * 2),
        lambda x: [x],
        lambda x: {"embedding": 2 * x, "logits": x, "aux": None},
        lambda x: {"maps": x[..., None, None], "out": x},
        lambda x: SimpleNamespace(logits=x),
    ],
)
def test_outputs_are_unwrapped_to_logits(answer: Any) -> None:
    model = Flat()
    loaded = as_classifier(lambda images: answer(model(images)), RECIPE, name="wrapped")
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(loaded(images), model(images))
    assert (loaded.num_classes, loaded.source) == (3, "python")


def test_answers_that_are_no_logits() -> None:
    with pytest.raises(ModelError, match="returned a str"):
        as_classifier(lambda images: "cat", RECIPE, name="words")
    with pytest.raises(ModelError, match="fails on images of 16 x 16"):
        as_classifier(nn.Linear(7, 2), RECIPE, name="linear")


def test_digest_follows_the_weights() -> None:
    torch.manual_seed(0)
    model = Flat()
    before = as_classifier(model, RECIPE, name="a").digest
    assert as_classifier(model, RECIPE, name="b").digest == before
    with torch.no_grad():
        model.head.bias += 1e-3
    assert as_classifier(model, RECIPE, name="a").digest != before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:resnet10tt,pretrained=false", "Did you mean 'resnet10t'"),
        ("timm:resnet10t,pretrained=perhaps", "must be true or false"),
        ("timm:resnet10t,pretrained=false,color=3", "color"),
        ("timm:resnet10t,pretrained", "expected key=value"),
        ("timm:test_vit4,pretrained=true", "no pretrained weights"),
        ("tv:resnet19", "Did you mean 'resnet18'"),
        ("tv:resnet18,weights=BEST", "IMAGENET1K_V1"),
        ("zoo:resnet18", "unknown model source 'zoo'"),
        ("nowhere.py:make", "no Python file"),
        ("nowhere.py", "FILE.py:FUNCTION"),
        ("nowhere.onnx", "no ONNX file"),
        ("xcit_nano_12_p16_aff", "Did you mean"),
        ("xcit_nano_12_p16_af", "pretrained=false"),
        (" ", "cannot be empty"),
        (f"{TINY}+blurpol", "unknown remedy 'blurpol'. Did you mean 'blurpool'"),
        (f"{TINY}+aps+af", "contradict each other"),
        (f"{TINY}+blurpool:99", "2 to 7"),
        ("timm:vit_tiny_patch16_224,pretrained=false,depth=1+circular", "nothing to change"),
    ],
)
def test_mistaken_names_are_usage_errors(name: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        load_model(name)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_listing_does_not_wait_for_torch() -> None:
    names = [entry.name for entry in list_models()]  # remembers what each library has
    assert len(names) == len(set(names)) > 1000
    assert {"xcit_nano_12_p16_af", "timm:swin_tiny_patch4_window7_224", "tv:swin_t"} < set(names)
    code = (
        "import sys, shiftbench.data, shiftbench.shifts; "
        "from shiftbench.models import default_models, list_models; "
        "assert len(list_models()) > 1000; default_models('scenes'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (TINY, "fc"),
        ("tv:resnet18,pretrained=false,num_classes=4", "fc"),
        ("xcit_pico_6_p8_af,pretrained=false", "head"),
    ],
)
def test_features_are_what_the_last_layer_sees(name: str, head: str) -> None:
    model = load_model(name)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = model.features(images)
        torch.testing.assert_close(model.network.get_submodule(head)(features), model(images))


def test_models_without_features() -> None:
    images = torch.randn(2, 3, 16, 16)
    with pytest.raises(UsageError, match=r"features need the layers .*, and plain shows none"):
        as_classifier(Flat().forward, RECIPE, name="plain").features(images)
    odd = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    with pytest.raises(UsageError, match="odd exposes no features"):
        as_classifier(odd, RECIPE, name="odd").features(images)


@pytest.mark.parametrize(("data", "size"), [("scenes", "p8"), ("cifar10", "p4")])
def test_a_data_set_has_its_own_trio_by_default(data: str, size: str) -> None:
    trio = {f"xcit_pico_6_{size}{variant}.{data}" for variant in ("", "_aps", "_af")}
    assert set(default_models(data)) == trio
    with pytest.raises(UsageError, match="no bundled model was trained on imagenet"):
        default_models("imagenet")


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_what_a_source_does_not_have_is_one_sentence(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftbench.models.sources._has_address", lambda url: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nonexistent")
    name = {
        "bundled": "nothing",
        "python": "nowhere.py:nothing",
        "knn": "knn:hf:nobody/nothing,reference=scenes",
    }.get(source, f"{source}:nobody/nothing")
    words = "check the network" if source in ("hf", "zeroshot", "knn") else "nothing"
    with pytest.raises(ShiftbenchError, match=words) as error:
        load_model(name, class_names=("cat", "dog"))
    assert "\n" not in str(error.value)


def test_offline_torchvision_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib.error import URLError

    def refuse(*_: Any, **__: Any) -> None:
        raise URLError("no route")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    with pytest.raises(ModelError, match="cannot download the weights of tv:squeezenet1_1"):
        load_model("tv:squeezenet1_1")
