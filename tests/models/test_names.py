"""Names of models: taken apart, given in place, told apart by folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from shiftbench.errors import UsageError
from shiftbench.models import name_models
from shiftbench.models.names import parse_name, parse_options, require_one_model, split_remedies


@pytest.mark.parametrize(
    ("text", "name", "spec"),
    [
        ("mine=timm:resnet10t", "mine", "timm:resnet10t"),
        ("a b = m.py:build,x=1", "a b", "m.py:build,x=1"),
        ("timm:resnet10t,pretrained=false", None, "timm:resnet10t,pretrained=false"),
        ("xcit_pico_6_p8,pretrained=false", None, "xcit_pico_6_p8,pretrained=false"),
        ("a/b=c/m.py:build", None, "a/b=c/m.py:build"),
    ],
)
def test_a_name_in_place(text: str, name: str | None, spec: str) -> None:
    (model,) = name_models([text])
    assert (model.name, model.text) == (name, spec)


def test_models_of_the_same_file_name_are_told_apart(tmp_path: Path) -> None:
    places = ["a/x/model.py", "b/x/model.py", "a/y/model.py", "a/other.py"]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("")
    first, second, third, other = (f"{tmp_path}/{place}:build" for place in places)
    names = [model.name for model in name_models([first, second, third, other, first])]
    assert names == ["a/x/model.py:build", "b/x/model.py:build", "y/model.py:build", None]
    names = [model.name for model in name_models([f"{first}+circular", first])]
    assert names == [None, None]
    names = [model.name for model in name_models([f"{first},a=1", f"{second},a=1"])]
    assert names == ["a/x/model.py:build,a=1", "b/x/model.py:build,a=1"]
    with pytest.raises(UsageError, match=r"two models are called 'm'.*first=FILE\.py:build"):
        name_models([f"m={first}", f"m={second}"])


def test_names_that_share_the_folder_of_a_record() -> None:
    with pytest.raises(UsageError, match="two models are called"):
        name_models(["a b=timm:resnet10t", "a_b=timm:resnet18"])


def test_exported_folders_of_the_same_card_are_told_apart(tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / run / "export").mkdir(parents=True)
        (tmp_path / run / "export" / "net.birds.safetensors").write_bytes(b"")
    folders = [f"{tmp_path}/{run}/export" for run in ("one", "two")]
    assert [model.name for model in name_models(folders)] == ["one/export", "two/export"]
    assert [model.name for model in name_models(folders[:1])] == [None]


@pytest.mark.parametrize(
    ("text", "name", "remedies"),
    [
        ("timm:resnet50", "timm:resnet50", ""),
        ("timm:resnet50+aps+circular", "timm:resnet50", "circular+aps"),
        ("a/net.py:build+vote:3", "a/net.py:build", "vote"),
        ("a+b/net.py:build", "a+b/net.py:build", ""),
        ("xcit_pico_6_p8.scenes+canonical", "xcit_pico_6_p8.scenes", "canonical"),
    ],
)
def test_remedies_follow_a_name(text: str, name: str, remedies: str) -> None:
    assert split_remedies(text) == (name, remedies)


def test_a_checkpoint_serves_one_model_and_its_remedies() -> None:
    require_one_model(["timm:a", "timm:a+circular", "timm:a+circular+aps"])
    with pytest.raises(UsageError, match="of one --model, and 2 were given"):
        require_one_model(["timm:a", "timm:b+circular"])


def test_options_are_literals_or_words() -> None:
    text = "net,a=1,b=0.5,c=true,d=none,e=word,f=(1, 2),g='x, {}',h=folder:/a/b"
    name, options = parse_options(text)
    assert name == "net"
    assert options == {
        **{"a": 1, "b": 0.5, "c": True, "d": None, "e": "word", "f": (1, 2)},
        "g": "x, {}",
        "h": "folder:/a/b",
    }


def test_onnx_files_and_weights_are_understood() -> None:
    spec = parse_name("models/net.onnx,input_size=96")
    assert (spec.source, spec.name, spec.text) == (
        "onnx",
        "models/net.onnx",
        "onnx:models/net.onnx,input_size=96",
    )
    with pytest.raises(UsageError, match=r"name the network with --model, and give --checkpoint"):
        parse_name("runs/best.ckpt")
