"""Names of models: taken apart, given in place, told apart by folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from shiftbench.errors import UsageError
from shiftbench.files import file_safe
from shiftbench.models import parse_model, parse_models
from shiftbench.models.names import require_one_model


@pytest.mark.parametrize(
    ("text", "label", "plain"),
    [
        ("mine=timm:resnet10t", "mine", "timm:resnet10t"),
        ("a b = m.py:build,x=1", "a b", "m.py:build,x=1"),
        ("mine=xcit_pico_6_p8.scenes", "mine", "xcit_pico_6_p8.scenes"),
        ("tv:a=tv:a,weights=V1", "tv:a", "tv:a,weights=V1"),
        ("hf:me/net v2=hf:me/net", "hf:me/net v2", "hf:me/net"),
        ("tv:a=m.py:build", "tv:a", "m.py:build"),
        ("timm:resnet10t,pretrained=false", None, "timm:resnet10t,pretrained=false"),
        ("timm:mobilenetv1_100,pad_type=same", None, "timm:mobilenetv1_100,pad_type=same"),
        ("xcit_pico_6_p8,pretrained=false", None, "xcit_pico_6_p8,pretrained=false"),
        ("a/b=c/m.py:build", None, "a/b=c/m.py:build"),
        ("onnx:lr=0.1/net.onnx", None, "onnx:lr=0.1/net.onnx"),
    ],
)
def test_a_name_in_place(text: str, label: str | None, plain: str) -> None:
    spec = parse_model(text)
    assert (spec.label, spec.text) == (label, plain)


def test_models_of_the_same_file_name_are_told_apart(tmp_path: Path) -> None:
    places = ["a/x/model.py", "b/x/model.py", "a/y/model.py", "a/other.py"]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("")

    def labels(*texts: str) -> list[str | None]:
        return [spec.label for spec in parse_models(texts)]

    first, second, third, other = (f"{tmp_path}/{place}:build" for place in places)
    assert labels(first, second, third, other, first) == [
        *("a/x/model.py:build", "b/x/model.py:build", "y/model.py:build"),
        None,
    ]
    assert labels(f"{first}+circular", first) == [None, None]
    assert labels(f"{first},a=1", f"{second},a=1") == [
        "a/x/model.py:build,a=1",
        "b/x/model.py:build,a=1",
    ]
    with pytest.raises(UsageError, match=r"two models are called 'm'.*first=FILE\.py:build"):
        labels(f"m={first}", f"m={second}")
    with pytest.raises(UsageError, match="two models are called"):  # they would share a folder
        labels("a b=timm:resnet10t", "a_b=timm:resnet18")


def test_exported_folders_of_the_same_card_are_told_apart(tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / run / "export").mkdir(parents=True)
        (tmp_path / run / "export" / "net.birds.safetensors").write_bytes(b"")
    folders = [f"{tmp_path}/{run}/export" for run in ("one", "two")]
    both = parse_models([folders[0], f"{folders[1]}+circular", folders[1]])
    assert [str(spec) for spec in both] == ["one/export", "net.birds+circular", "two/export"]
    assert [str(spec) for spec in parse_models(folders[:1])] == ["net.birds"]


@pytest.mark.parametrize(
    ("text", "plain", "remedies"),
    [
        ("timm:resnet50", "timm:resnet50", ""),
        ("timm:resnet50+aps+circular", "timm:resnet50", "circular+aps"),
        ("a/net.py:build+vote:3", "a/net.py:build", "vote"),
        ("a+b/net.py:build", "a+b/net.py:build", ""),
        ("xcit_pico_6_p8.scenes+canonical", "xcit_pico_6_p8.scenes", "canonical"),
    ],
)
def test_remedies_follow_a_name(text: str, plain: str, remedies: str) -> None:
    spec = parse_model(text)
    assert (spec.text, spec.remedies) == (plain, remedies)


def test_a_checkpoint_serves_one_model_and_its_remedies() -> None:
    require_one_model(["timm:a", "x=timm:a+circular", "timm:a+circular+aps"])
    with pytest.raises(UsageError, match="of one --model, and 2 were given"):
        require_one_model(["timm:a", "timm:b+circular"])


def test_options_are_literals_or_words() -> None:
    spec = parse_model("net,a=1,b=0.5,c=true,d=none,e=word,f=(1, 2),g='x, {}',h=folder:/a/b")
    assert spec.name == "net"
    assert spec.options == {
        **{"a": 1, "b": 0.5, "c": True, "d": None, "e": "word", "f": (1, 2)},
        "g": "x, {}",
        "h": "folder:/a/b",
    }


def test_names_may_be_longer_than_those_of_files() -> None:
    prompts = tuple(f"a photo of a {{}}, number {i}" for i in range(80))
    spec = parse_model(f"zeroshot:clip,prompt={prompts!r}")
    assert spec.options["prompt"] == prompts
    assert spec.public_name() == spec.text
    other = file_safe(spec.text.replace("79", "78"))
    assert len(file_safe(spec.text)) == len(other) == 120
    assert file_safe(spec.text) != other


def test_onnx_files_and_weights_are_understood() -> None:
    for text in ("models/net.onnx,input_size=96", "onnx:models/net.onnx,input_size=96"):
        spec = parse_model(text)
        assert (spec.source, spec.name) == ("onnx", "models/net.onnx")
        assert spec.text == "onnx:models/net.onnx,input_size=96"
    with pytest.raises(UsageError, match=r"name the network with --model, and give --checkpoint"):
        parse_model("runs/best.ckpt")
