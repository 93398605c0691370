"""Loading models by name: every source, remedies, errors in one line."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import shiftbench.data
import shiftbench.models.sources
from aft_models import repair
from aft_models.preprocessing import Preprocessing
from aft_models.remedies import REMEDIES
from shiftbench.errors import ModelError, ShiftbenchError, UsageError
from shiftbench.geometry import geometry_for
from shiftbench.models import SOURCES, Model, build_model, default_models, list_models, load_model

TINY = "timm:resnet10t,pretrained=false,num_classes=4"
RECIPE = Preprocessing(16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


class Flat(nn.Module):
    """Smallest classifier."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(3, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.mean((2, 3)))
        return logits


def test_load_model_random_weights_depend_on_seed_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = load_model(TINY), load_model(TINY), load_model(TINY, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.identity == again.identity
    assert first.identity.changed(other.identity) == ["weights", "logits"]


def test_load_model_timm_has_preprocessing_and_options() -> None:
    loaded = load_model(TINY)
    assert (loaded.source, loaded.name, loaded.num_classes) == ("timm", TINY, 4)
    assert loaded.preprocessing.input_size == 176
    assert not loaded.training
    model = timm.create_model("resnet10t", num_classes=4)
    assert loaded.parameter_count == sum(p.numel() for p in model.parameters())
    assert loaded(torch.randn(2, 3, 64, 64)).shape == (2, 4)
    small = load_model("timm:vit_tiny_patch16_224,pretrained=false,img_size=32,num_classes=5")
    assert (small.preprocessing.input_size, small.num_classes) == (32, 5)
    squash = SimpleNamespace(pretrained_cfg={"input_size": (3, 96, 96), "crop_mode": "squash"})
    assert Preprocessing.of(squash).squash


def test_sources_contain_every_file_of_their_folder() -> None:
    for file in Path(shiftbench.models.sources.__path__[0]).glob("*.py"):
        assert file.stem in SOURCES or file.stem == "__init__"
    for file in Path(shiftbench.data.__path__[0]).glob("*.py"):
        assert f"shiftbench.data.{file.stem}" in sys.modules or file.stem == "__init__"


def test_bundled_weights_have_class_names_and_enlarged_images() -> None:
    loaded = load_model("xcit_pico_6_p4.cifar10")
    assert loaded.class_names[3] == "cat"
    recipe = loaded.preprocessing
    assert (recipe.resize, recipe.enlarge) == (37, True)
    assert geometry_for(recipe, finished=True).resize == geometry_for(recipe).resize == 37
    assert geometry_for(Preprocessing(32, resize=37), finished=True).resize == 32
    assert load_model(TINY).class_names == ()


def test_load_model_remedies_change_name_and_digest_but_not_weights() -> None:
    plain, repaired = load_model(TINY), load_model(f"{TINY}+circular+aps")
    assert repaired.name == f"{TINY}+circular+aps"
    assert repaired.identity.digest != plain.identity.digest
    assert repaired.identity.weights == plain.identity.weights
    assert repaired.parameter_count == plain.parameter_count
    ours, theirs = plain.state_dict(), repaired.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    image = torch.rand(1, 3, 64, 64)
    for dy, dx in ((1, 0), (3, 5)):
        moved = repaired(image.roll((dy, dx), (-2, -1)))
        torch.testing.assert_close(moved, repaired(image), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(plain(image.roll(1, -1)), plain(image), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "size"), [("googlenet", 224), ("inception_v3", 299)])
def test_checkpoint_of_tensorflow_models_transforms_input(
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


def test_torchvision_preprocessing_follows_weights_tag(tmp_path: Path) -> None:
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
            assert recipe.origin == origin
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
        lambda x: x.detach().numpy(),
    ],
)
def test_model_reads_logits_from_any_output(answer: Any) -> None:
    model = Flat()
    loaded = Model(lambda images: answer(model(images)), RECIPE, name="wrapped")
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(loaded(images), model(images))
    assert (loaded.num_classes, loaded.source) == (3, "python")


def test_model_output_without_logits_raises() -> None:
    with pytest.raises(ModelError, match="got a str"):
        Model(lambda images: "cat", RECIPE, name="words")
    with pytest.raises(ModelError, match="fails on images of 16 x 16"):
        Model(nn.Linear(7, 2), RECIPE, name="linear")


def test_identity_digest_depends_on_weights_alone() -> None:
    torch.manual_seed(0)
    model = Flat()
    before = Model(model, RECIPE, name="a").identity.digest
    assert Model(model, RECIPE, name="b").identity.digest == before
    with torch.no_grad():
        model.head.bias += 1e-3
    assert Model(model, RECIPE, name="a").identity.digest != before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:resnet10tt,pretrained=false", "Did you mean 'resnet10t'"),
        ("timm:resnet10t,pretrained=perhaps", "pretrained as true or false, got"),
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
def test_load_model_invalid_name_raises_usage_error(name: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        load_model(name)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_list_models_needs_no_torch_once_remembered() -> None:
    names = [entry.name for entry in list_models()]  # caches the names of each library
    assert len(names) == len(set(names)) > 1000
    assert {"xcit_nano_12_p16_af", "timm:swin_tiny_patch4_window7_224", "tv:swin_t"} < set(names)
    code = (
        "import sys, shiftbench.data, shiftbench.shifts; "
        "from shiftbench.models import default_models, list_models; "
        "assert len(list_models()) > 1000; default_models('scenes'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("data", "size"), [("scenes", "p8"), ("cifar10", "p4")])
def test_default_models_are_those_of_the_data(data: str, size: str) -> None:
    trio = {f"xcit_pico_6_{size}{variant}.{data}" for variant in ("", "_aps", "_af")}
    assert set(default_models(data)) == trio
    with pytest.raises(UsageError, match="no bundled model was trained on imagenet"):
        default_models("imagenet")


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_every_source_unknown_model_raises_in_one_line(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftbench.models.sources._has_address", lambda url: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nonexistent")
    name = {
        "bundled": "nothing",
        "python": "nowhere.py:nothing",
    }.get(source, f"{source}:nobody/nothing")
    words = "check the network" if source in ("hf", "zeroshot") else "nothing"
    with pytest.raises(ShiftbenchError, match=words) as error:
        load_model(name, class_names=("cat", "dog"))
    assert "\n" not in str(error.value)


def test_torchvision_offline_raises_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib.error import URLError

    def refuse(*_: Any, **__: Any) -> None:
        raise URLError("no route")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    with pytest.raises(ModelError, match="cannot download the weights of tv:squeezenet1_1"):
        load_model("tv:squeezenet1_1")


@pytest.mark.parametrize(
    ("remedies", "passes"), [("", 1), ("+vote", 1), ("+align:4:1", 1), ("+aps", 2)]
)
def test_load_model_runs_the_network_once_or_twice(
    remedies: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass is the probe; layer remedies list the layers in another one."""
    count = 0

    def counted(self: nn.Module, *_: Any) -> None:
        nonlocal count
        count += 1

    create = timm.create_model

    def create_counted(*args: Any, **options: Any) -> nn.Module:
        model: nn.Module = create(*args, **options)
        model.register_forward_pre_hook(counted)
        return model

    monkeypatch.setattr("timm.create_model", create_counted)
    load_model(f"{TINY}{remedies}")
    assert count == passes


def test_model_probe_takes_two_fixed_images_and_spreads_logits() -> None:
    seen: list[Tensor] = []
    torch.manual_seed(0)
    network = Flat(100)

    def forward(images: Tensor) -> Tensor:
        seen.append(images)
        return network(images)

    model = Model(forward, RECIPE, name="net")
    expected = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert len(seen) == 1
    assert torch.equal(seen[0], expected)
    with torch.no_grad():
        logits = network(expected)[0, ::13].tolist()
    assert model.identity.logits == tuple(float(f"{x:.5g}") for x in logits)
    assert not any(p.is_inference() for p in network.parameters())


def test_model_ignoring_the_batch_raises() -> None:
    with pytest.raises(ModelError, match=r"expected logits of shape \(2, classes\) for 2 images"):
        Model(lambda images: torch.randn(1, 4), RECIPE, name="one")


def test_model_class_names_of_another_count_raise() -> None:
    with pytest.raises(ModelError, match="a name for each of the 3 classes of net, got 2"):
        Model(Flat(), RECIPE, name="net", class_names=("a", "b"))


def test_vote_on_probabilities_averages_them() -> None:
    torch.manual_seed(0)
    logits = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)).eval()
    logits(torch.zeros(1, 3, 16, 16))
    vote = REMEDIES["vote"].load()(3)
    models = [
        Model(network, RECIPE, name="net", remedies=(vote,))
        for network in (logits, nn.Sequential(logits, nn.Softmax(1)))
    ]
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(models[0](images), models[1](images))


def test_repair_of_a_loaded_model_keeps_its_remedies() -> None:
    selected = load_model(f"{TINY}+align:4:1")
    images = torch.randn(2, 3, 184, 184)
    expected = load_model(f"{TINY}+aps+align:4:1")(images)
    assert torch.equal(repair(selected, "aps", input_size=184)(images), expected)


def test_model_blue_first_flips_channels() -> None:
    torch.manual_seed(0)
    network, images = Flat(), torch.randn(2, 3, 16, 16)
    model = Model(network, replace(RECIPE, bgr=True), name="net")
    assert torch.equal(model(images), network(images.flip(1)))


def test_preprocessing_margin_and_scale_give_input_size() -> None:
    preprocessing = Preprocessing(96, margin=8, scale=2)
    assert preprocessing.input_size == 2 * (96 + 2 * 8)
    geometry = geometry_for(preprocessing, pad="reflect")
    assert (geometry.view, geometry.inner, geometry.resize) == (224, 192, 2 * 110)


def test_script_file_equals_its_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, images = Flat(4).eval(), torch.randn(3, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(network, images), str(tmp_path / "net.pt"))
    loaded = load_model(f"{tmp_path / 'net.pt'},input_size=32,mean=0.5,std=0.5")
    assert (loaded.name, loaded.source) == ("net.pt", "script")
    assert torch.equal(loaded(images), network(images))
    with pytest.raises(UsageError, match="unknown option of a TorchScript model 'size'"):
        load_model(f"{tmp_path / 'net.pt'},size=32")
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(UsageError, match="contains weights but no network"):
        load_model(str(tmp_path / "weights.pt"))


def test_remedies_of_a_network_that_no_longer_runs_name_obstacles(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(PADDED)
    with pytest.raises(UsageError, match=r"circular does not fit Padded.*changes pad in the model"):
        load_model(f"{tmp_path / 'net.py'}:build+circular")
    with pytest.raises(UsageError, match="needs the layers of a PyTorch network"):
        load_model(f"{tmp_path / 'net.py'}:function+circular")
    torch.save({"weight": torch.ones(3)}, tmp_path / "w.pth")
    with pytest.raises(UsageError, match=r"expected a PyTorch network .* got a function from net"):
        load_model(f"{tmp_path / 'net.py'}:function", checkpoint=tmp_path / "w.pth")


PADDED = """
from torch import nn
import torch.nn.functional as F

class Padded(nn.Sequential):
    def forward(self, x):
        maps = self[0](F.pad(x, (0, 1, 0, 1))) + self[1](x)
        return maps.mean((2, 3))

def build():
    return Padded(nn.Conv2d(3, 4, 2), nn.Conv2d(3, 4, 3, padding=1)), {"input_size": 16}

def function():
    return lambda x: x.mean((2, 3)), {"input_size": 16}
"""


def test_build_model_returns_logits_alone_and_follows_seed() -> None:
    first, again, other = (
        build_model("timm:resnet10t+circular", classes=3, size=32, seed=seed).layers
        for seed in (0, 0, 1)
    )
    assert first(torch.rand(1, 3, 32, 32)).shape == (1, 3)
    states = [network.state_dict() for network in (first, again, other)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for key in ("conv1.0.weight", "fc.weight"):
        assert not torch.equal(states[0][key], states[2][key])
