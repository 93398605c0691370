"""ONNX files of every form have the logits of the same network in PyTorch."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aft_models.preprocessing import normalize
from shiftbench.errors import ModelError, ShiftbenchError, UsageError
from shiftbench.models import load_model
from shiftbench.models.exported import ExportInfo
from shiftbench.running.predict import Predictor

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

CLASSES = 4
GENERATOR = np.random.default_rng(0)
WEIGHTS = GENERATOR.normal(size=(CLASSES, 3, 5, 5)).astype(np.float32)
BIAS = GENERATOR.normal(size=CLASSES).astype(np.float32)
CARD = {"input_size": 16, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 0.8}


def expected(images: Tensor) -> Tensor:
    """Compute the logits of the network of `write`: a convolution and a mean."""
    maps = torch.nn.functional.conv2d(images, torch.from_numpy(WEIGHTS), torch.from_numpy(BIAS))
    return maps.relu().mean((2, 3))


def write(
    path: Path,
    *,
    batch: int | str = "batch",
    side: int | str = 16,
    channels_last: bool = False,
    kind: str = "float",
    more: str = "",
    channels: int = 3,
    flatten: bool = True,
    external: bool = False,
) -> Path:
    """Write the network in one of the forms that exporters choose."""
    inner = "float" if kind == "uint8" else kind
    sides = f"{side},{side},3" if channels_last else f"{channels},{side},{side}"
    first = "Transpose <perm = [0, 3, 1, 2]>" if channels_last else "Identity"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net ({kind}[{batch},{sides}] images{more}) =>
            ({inner}[{batch},{CLASSES}{"" if flatten else ",1,1"}] logits)
        {{
            first = {"Cast <to = 1>" if kind == "uint8" else first} (images)
            maps = Conv (first, weights, bias)
            active = Relu (maps)
            pooled = GlobalAveragePool (active)
            logits = {"Flatten <axis = 1>" if flatten else "Identity"} (pooled)
        }}""")
    numbers = np.float16 if kind == "float16" else np.float32
    for name, value in (("weights", WEIGHTS[:, :channels]), ("bias", BIAS)):
        tensor = onnx.numpy_helper.from_array(value.astype(numbers), name)
        model.graph.initializer.append(tensor)
    data = {"location": f"{path.name}.data", "size_threshold": 0} if external else {}
    onnx.save_model(model, str(path), save_as_external_data=external, **data)
    return path


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("batch", ["batch", 1, 3, 8])
@pytest.mark.parametrize("channels_last", [False, True])
def test_onnx_any_batch_size_and_layout(
    channels_last: bool, batch: int | str, count: int, tmp_path: Path
) -> None:
    path = write(tmp_path / "net.onnx", batch=batch, channels_last=channels_last)
    loaded = load_model(f"onnx:{path}")
    assert (loaded.name, loaded.source, loaded.num_classes) == ("net.onnx", "onnx", CLASSES)
    assert loaded.preprocessing.input_size == 16
    assert loaded.parameter_count == WEIGHTS.size + BIAS.size
    images = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))
    torch.testing.assert_close(loaded(images), expected(images), rtol=1e-4, atol=1e-5)
    last = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(loaded(last), expected(images), rtol=1e-4, atol=1e-5)


def test_onnx_float16_and_uint8_inputs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = torch.randn(2, 3, 16, 16)
    path = write(tmp_path / "half.onnx", kind="float16")
    answers = load_model(f"{path},mean=0.5,std=0.5")(images)
    torch.testing.assert_close(answers, expected(images), rtol=2e-2, atol=2e-2)
    path = write(tmp_path / "net.onnx", kind="uint8")
    caplog.clear()
    loaded = load_model(f"{path},interpolation=bilinear,crop_pct=0.875")
    assert caplog.text == ""
    loaded = load_model(str(path))
    assert loaded.name == "net.onnx"
    pixels = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    recipe = loaded.preprocessing
    ours = loaded(normalize(pixels, recipe.mean, recipe.std))
    torch.testing.assert_close(ours, expected(pixels.float()), rtol=1e-4, atol=1e-2)
    with pytest.raises(UsageError, match="normalizes them itself: leave mean out"):
        load_model(f"{path},mean=0.5")


def test_onnx_preprocessing_from_card_and_options(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", side="side")
    recipe = load_model(f"onnx:{path}").preprocessing
    assert (recipe.input_size, recipe.origin) == (224, "assumed")
    recipe = load_model(f"onnx:{path},mean=0.5,std=0.25").preprocessing
    assert (recipe.std, recipe.origin) == ((0.25,) * 3, "given")
    names = ["ant", "bee", "cat", "dog"]
    (tmp_path / "net.json").write_text(json.dumps({**CARD, "class_names": names, "more": 1}))
    loaded = load_model(f"onnx:{path}")
    recipe = loaded.preprocessing
    assert (recipe.input_size, recipe.mean, recipe.std) == (16, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (recipe.resize, recipe.enlarge) == (20, True)
    assert loaded.class_names == tuple(names)
    other = load_model(f"onnx:{path},input_size=24,std=(1,1,1),interpolation=bilinear")
    assert other.preprocessing.input_size == 24
    assert other.preprocessing.mean == (0.1, 0.2, 0.3)
    assert other.preprocessing.std == (1.0, 1.0, 1.0)
    assert other.preprocessing.interpolation == "bilinear"


@pytest.mark.parametrize("external", [False, True])
def test_onnx_digest_covers_external_data(external: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", external=external)
    before = load_model(f"onnx:{path}").identity.digest
    if external:
        data = tmp_path / "net.onnx.data"
        content = bytearray(data.read_bytes())
        content[0] ^= 1
        data.write_bytes(content)
        assert load_model(f"onnx:{path}").identity.digest != before
    else:
        assert before == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("form", "options", "card", "kind", "words"),
    [
        (
            {"more": ", float[1] size"},
            "",
            None,
            ModelError,
            "expected one input, images, in net.onnx, got 2",
        ),
        ({"flatten": False}, "", None, ModelError, "expected logits, (batch, classes)"),
        ({"channels": 1}, "", None, ModelError, "got tensor(float) of shape (batch, 1, 16, 16)"),
        ({"side": 16}, ",input_size=24", None, UsageError, "expected images of 16 pixels for"),
        ({"side": 16}, "", {"input_size": 24}, UsageError, "expected images of 16 pixels for"),
        ({}, ",input_sise=3", None, UsageError, "Did you mean 'input_size'"),
        ({}, ",mean=gray", None, ModelError, "one number or three, got 'gray'"),
        ({}, ",mean=(1,2)", None, ModelError, "one number or three, got (1, 2)"),
        ({}, "", [1], ModelError, "expected a JSON object in the card"),
        (
            {},
            "",
            {"class_names": ["a"]},
            ModelError,
            "a name for each of the 4 classes of net.onnx, got 1",
        ),
        ({"side": 3}, "", None, ModelError, "fails on images of 3 x 3"),
    ],
)
def test_onnx_unsuitable_file_or_option_raises(
    form: dict[str, Any], options: str, card: Any, kind: type, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "net.onnx", **form)
    if card is not None:
        (tmp_path / "net.json").write_text(json.dumps(card))
    with pytest.raises(kind) as caught:
        load_model(f"onnx:{path}{options}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_onnx_damaged_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(UsageError, match="no ONNX file"):
        load_model(f"onnx:{path}")
    for content in (b"", b"not a model at all", write(path).read_bytes()[:200]):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"cannot run net\.onnx in ONNX Runtime"):
            load_model(f"onnx:{path}")
    write(path)
    (tmp_path / "net.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read the card"):
        load_model(f"onnx:{path}")
    torch.save({"w": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(UsageError, match="Leave --checkpoint out"):
        load_model(f"onnx:{path}", checkpoint=tmp_path / "w.pth")


def test_onnx_without_runtime_names_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "net.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ShiftbenchError, match=r"pip install 'shiftbench\[onnx\]'"):
        load_model(f"onnx:{path}")


def test_onnx_metadata_equals_options(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "net.onnx", side="side")
    plain = load_model(f"{path},input_size=16,mean=0.4,std=0.3,interpolation=bilinear")
    info = ExportInfo("net", plain.preprocessing, class_names=("ant", "bee", "cat", "dog"))
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"shiftbench": info.to_json()})
    onnx.save_model(model, str(path))
    caplog.clear()
    stored = load_model(str(path))
    assert caplog.text == ""
    assert stored.class_names == ("ant", "bee", "cat", "dog")
    for field in ("size", "mean", "std", "interpolation"):
        assert getattr(stored.preprocessing, field) == getattr(plain.preprocessing, field)
    assert stored.identity.logits == plain.identity.logits
    for text in ("{}", "[]", "no JSON"):
        onnx.helper.set_model_props(model, {"shiftbench": text})
        onnx.save_model(model, str(path))
        with pytest.raises(ModelError, match="cannot read the metadata 'shiftbench'"):
            load_model(str(path))


@pytest.mark.parametrize(
    ("side", "options", "words"),
    [
        (16, "", "no interpolation and no resize: assuming bicubic and 256/224 of the input size"),
        ("side", ",crop_pct=0.9", "no input size and no interpolation: assuming 224 px and"),
        (16, ",crop_pct=0.9,interpolation=bilinear", ""),
    ],
)
def test_onnx_assumptions_are_printed_in_one_line(
    side: int | str, options: str, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "net.onnx", side=side)
    load_model(f"{path},mean=0.5,std=0.5{options}")
    assert len(caplog.records) == (1 if words else 0)
    assert words in caplog.text


def write_outputs(path: Path, *names: str) -> Path:
    """Write a network with an output of 4 classes and one of 6 numbers."""
    outputs = ", ".join(f"float[batch,{size}] {n}" for n, size in zip(names, (6, 4), strict=True))
    first, second = names
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[batch,3,16,16] images) => ({outputs})
        {{
            pooled = GlobalAveragePool (images)
            flat = Flatten <axis = 1> (pooled)
            {first} = Concat <axis = 1> (flat, flat)
            {second} = MatMul (flat, weights)
        }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS[:, :, 0, 0].T, "weights"))
    onnx.save_model(model, str(path))
    return path


def test_onnx_chooses_output_with_logits(tmp_path: Path) -> None:
    facts = "input_size=16,mean=0.5,std=0.5"
    named = write_outputs(tmp_path / "named.onnx", "embedding", "logits")
    assert load_model(f"{named},{facts}").num_classes == CLASSES
    path = write_outputs(tmp_path / "net.onnx", "first", "second")
    with pytest.raises(ModelError, match=r"got first \(batch, 6\); second \(batch, 4\).*output="):
        load_model(f"{path},{facts}")
    by_option = load_model(f"{path},{facts},output=second")
    assert (by_option.num_classes, by_option.identity.code) == (CLASSES, {"output": "second"})
    names = ("ant", "bee", "cat", "dog")
    assert load_model(f"{path},{facts}", class_names=names).num_classes == CLASSES
    with pytest.raises(ModelError, match="one output with logits of 3 classes"):
        load_model(f"{path},{facts}", class_names=names[:3])
    with pytest.raises(UsageError, match="Choose one of: first, second"):
        load_model(f"{path},{facts},output=third")
    (tmp_path / "net.json").write_text(json.dumps({"class_names": names}))
    assert load_model(f"{path},{facts}").class_names == names


@pytest.mark.parametrize("batch", ["batch", 8])
def test_onnx_logits_that_depend_on_batch_raise(batch: int | str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[{batch},3,16,16] images) => (float[{batch},3] logits)
        <int64[1] first = {{0}}>
        {{
            mean = ReduceMean <axes = [0], keepdims = 1> (images)
            centered = Sub (images, mean)
            pooled = GlobalMaxPool (centered)
            logits = Flatten <axis = 1> (pooled)
        }}""")
    onnx.save_model(model, str(tmp_path / "net.onnx"))
    loaded = load_model(f"{tmp_path / 'net.onnx'},mean=0.5,std=0.5")
    predictor = Predictor(loaded, torch.device("cpu"), loaded.name)
    with pytest.raises(ModelError, match=r"logits of net\.onnx.* depend on the other images"):
        predictor(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
