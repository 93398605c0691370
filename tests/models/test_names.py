"""Names of models: parts, labels, and distinct names by folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aft_models.remedies import join_remedies
from shiftbench.errors import UsageError
from shiftbench.files import file_safe
from shiftbench.models import parse_model, parse_models
from shiftbench.models.names import EXPORTED, require_one_model


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
def test_parse_model_label_precedes_equals_sign(text: str, label: str | None, plain: str) -> None:
    spec = parse_model(text)
    assert (spec.label, spec.text) == (label, plain)


def test_parse_models_equal_file_names_get_folders(tmp_path: Path) -> None:
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


def test_parse_models_equal_cards_get_folders(tmp_path: Path) -> None:
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
        ("m=timm:resnet50,a=(1,2)+align:12:1+af:3", "timm:resnet50,a=(1,2)", "af:3+align:12:1"),
        ("xcit_pico_6_p8.scenes+canonical", "xcit_pico_6_p8.scenes", "canonical"),
    ],
)
def test_parse_model_remedies_follow_name(text: str, plain: str, remedies: str) -> None:
    spec = parse_model(text)
    assert (spec.text, join_remedies(spec.remedies)) == (plain, remedies)


def test_require_one_model_allows_remedies() -> None:
    require_one_model(["timm:a", "x=timm:a+circular", "timm:a+circular+aps"])
    with pytest.raises(
        UsageError, match="expected one --model for the weights of --checkpoint, got 2"
    ):
        require_one_model(["timm:a", "timm:b+circular"])


def test_parse_model_options_are_literals_or_words() -> None:
    spec = parse_model("net,a=1,b=0.5,c=true,d=none,e=word,f=(1, 2),g='x, {}',h=folder:/a/b")
    assert spec.name == "net"
    assert spec.options == {
        **{"a": 1, "b": 0.5, "c": True, "d": None, "e": "word", "f": (1, 2)},
        "g": "x, {}",
        "h": "folder:/a/b",
    }


def test_parse_model_name_longer_than_file_names() -> None:
    prompts = tuple(f"a photo of a {{}}, number {i}" for i in range(80))
    spec = parse_model(f"zeroshot:clip,prompt={prompts!r}")
    assert spec.options["prompt"] == prompts
    assert spec.public_name() == spec.text
    other = file_safe(spec.text.replace("79", "78"))
    assert len(file_safe(spec.text)) == len(other) == 120
    assert file_safe(spec.text) != other


def test_parse_model_file_endings() -> None:
    for text in ("models/net.onnx,input_size=96", "onnx:models/net.onnx,input_size=96"):
        spec = parse_model(text)
        assert (spec.source, spec.name, spec.text) == ("onnx", "models/net.onnx", text)
    with pytest.raises(UsageError, match=r"Name the network with --model, and give --checkpoint"):
        parse_model("runs/best.ckpt")


def test_parse_model_existing_path_is_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "a=b+circular,c=1"
    folder.mkdir()
    name = parse_model(str(folder))
    assert (name.source, name.name, name.label, name.remedies) == (EXPORTED, str(folder), None, ())


def test_parse_model_and_unknown_names_need_no_torch() -> None:
    code = """
import sys
from shiftbench.errors import UsageError
from shiftbench.models import parse_model
parse_model("mine=timm:resnet50,drop_path_rate=0.1+circular+align:12:1")
for text in ("zoo:resnet50", "timm:resnet50+circlar"):
    try:
        parse_model(text)
    except UsageError as error:
        assert "unknown" in str(error)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_onnx_files_are_named_by_their_file_unless_options_distinguish_them(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")
    assert str(parse_model(f"{path},mean=0.5,std=0.5+vote:2")) == "net.onnx+vote:2"
    one, other = parse_models([f"{path},mean=0.5,std=0.5", f"{path},mean=0.0,std=1.0"])
    assert str(one) != str(other)
    assert str(one).endswith("net.onnx,mean=0.5,std=0.5")
