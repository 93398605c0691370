"""Exported files give the predictions of their model, or are not written."""

from __future__ import annotations

import errno
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import aft_models
import shiftbench
from aft_models.errors import AftModelsError
from aft_models.remedies import REMEDIES, Remedy
from aft_models.remedies.inputs import InputRemedy, Undo, same
from shiftbench import exporting
from shiftbench.data import Scenes
from shiftbench.errors import ModelError, UsageError
from shiftbench.geometry import geometry_for
from shiftbench.models import load_model
from shiftbench.running.job import Settings
from shiftbench.running.runner import Execution, run
from shiftbench.running.verify import verify

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(5)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(12, 12),
    )
    return net, {"input_size": 24, "mean": (0.5, 0.4, 0.3), "std": (0.25, 0.3, 0.2),
                 "interpolation": "bilinear", "crop_pct": 0.9}
"""
SETTINGS = Settings(attacks=("crop",), max_shift=1, consistency=(), limit=12)


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:build"


def record_of(model: str, folder: Path) -> Any:
    execution = Execution(device="cpu", batch_size=8)
    written = run(load_model(model), Scenes("test"), SETTINGS, folder, execution=execution).record
    assert written is not None
    return written


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
@pytest.mark.parametrize(
    ("remedies", "include"), [("", "normalize"), ("+vote:3", ""), ("+align:2:1", "uint8")]
)
def test_exported_file_gives_record_without_options(
    remedies: str, include: str, ending: str, net: str, tmp_path: Path
) -> None:
    path = tmp_path / f"model.{ending}"
    result = shiftbench.export(net + remedies, path, include=include, images=9)
    assert result.difference <= 1e-3 * result.largest
    original, loaded = load_model(net + remedies), load_model(str(path))
    for field in ("size", "margin", "scale", "mean", "std", "interpolation", "resize"):
        ours, theirs = (getattr(m.preprocessing, field) for m in (loaded, original))
        assert ours == theirs, field
    assert loaded.parameter_count == original.parameter_count
    record = record_of(net + remedies, tmp_path / "runs")
    again = record_of(str(path), tmp_path / "runs")
    assert again.scores == record.scores
    assert again.data.geometry == record.data.geometry
    checked = verify(record, model=str(path), data="scenes", images=12, device="cpu")
    assert checked.problems == ()
    assert checked.cells > 12


@pytest.mark.parametrize(
    ("remedy", "include"), [("vote:2", "normalize"), ("align:2:1", "uint8"), ("canonical", "")]
)
def test_onnx_file_and_remedy_become_one_graph(
    remedy: str, include: str, net: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "model.onnx", tmp_path / "both.onnx"
    shiftbench.export(net, first, include=include, images=2)
    result = shiftbench.export(f"{first}+{remedy}", second, images=8)
    assert {node.domain for node in onnx.load(str(second)).graph.node} <= {""}
    onnx.checker.check_model(str(second))
    both, original = load_model(str(second)), load_model(f"{net}+{remedy}")
    assert both.exported is not None
    assert both.exported.remedies == remedy
    assert result.input_shape == (3, *(original.preprocessing.input_size,) * 2)
    assert original.identity.digest in both.original_digests, "the record of the original"
    assert load_model(f"{first}+{remedy}").identity.digest in both.original_digests
    assert original.identity.digest in load_model(f"{first}+{remedy}").original_digests
    size = original.preprocessing.input_size
    bytes_ = torch.randint(0, 256, (3, 3, size, size), generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ((0.5, 0.4, 0.3), (0.25, 0.3, 0.2)))
    images = (bytes_ / 255 - mean) / std
    torch.testing.assert_close(both(images), original(images), rtol=0, atol=1e-4)


class Halved(InputRemedy):
    """Average of the inner pixels of an image of twice the resolution."""

    margin, scale = 3, 2

    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        return nn.functional.avg_pool2d(images, 2)[..., 3:-3, 3:-3], same


def test_export_keeps_margin_and_scale_of_plugin(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Remedy("halved", "view", "half the size", ("position",), input=True, function=Halved)
    monkeypatch.setitem(REMEDIES, "halved", entry)
    path = tmp_path / "m.onnx"
    result = shiftbench.export(f"{net}+halved", path, images=2)
    assert (result.view, result.resize) == (2 * (24 + 2 * 3), 2 * 27)
    original, loaded = load_model(f"{net}+halved"), load_model(str(path))
    facts = loaded.preprocessing
    assert (facts.size, facts.margin, facts.scale, facts.input_size) == (24, 3, 2, 60)
    assert geometry_for(facts, pad="reflect") == geometry_for(original.preprocessing, pad="reflect")
    images = torch.randn(3, 3, 60, 60)
    torch.testing.assert_close(loaded(images), original(images), rtol=0, atol=1e-4)


def test_input_remedy_wraps_files_and_callables(net: str, tmp_path: Path) -> None:
    network = load_model(net).network
    images = torch.randn(2, 3, 24, 24)
    expected = load_model(f"{net}+vote:3")(images)

    def call(x: Tensor) -> Tensor:
        logits: Tensor = network(x)
        return logits

    repaired = aft_models.repair(call, "vote:3", input_size=24)
    torch.testing.assert_close(repaired(images), expected)
    script = tmp_path / "net.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the format is deprecated
        torch.jit.trace(network, images).save(str(script))
    facts = "input_size=24,mean=0.5,std=0.25"
    torch.testing.assert_close(load_model(f"{script},{facts}+vote:3")(images), expected)
    with pytest.raises(UsageError, match="does not take TorchScript archives"):
        shiftbench.export(f"{script},{facts}+vote:3", tmp_path / "m.onnx")


def test_export_network_of_notebook(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 12, 5, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    repaired = aft_models.repair(net, "circular+align:2:1", input_size=24)
    facts = {"input_size": 24, "mean": 0.5, "std": 0.25}
    path = tmp_path / "m.onnx"
    shiftbench.export(repaired, path, preprocessing=facts, images=2)
    loaded = load_model(str(path))
    assert loaded.exported is not None
    assert (loaded.exported.remedies, loaded.preprocessing.input_size) == ("circular+align:2:1", 28)
    with pytest.raises(UsageError, match="expected the preprocessing of the network"):
        shiftbench.export(net, tmp_path / "n.onnx")


@pytest.mark.parametrize("edited", ["mean", "interpolation", "digests", "weights of the graph"])
def test_verify_finds_edited_file(edited: str, net: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    shiftbench.export(net, path, images=2)
    model = onnx.load(str(path))
    content = json.loads(model.metadata_props[0].value)
    if edited == "digests":
        content["digests"] = ["0" * 64]
    elif edited == "mean":
        content["preprocessing"]["mean"] = [0.1, 0.1, 0.1]
    elif edited == "interpolation":
        content["preprocessing"]["interpolation"] = "nearest"
    else:
        for tensor in model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.ndim == 4:
                tensor.CopyFrom(onnx.numpy_helper.from_array(-array, tensor.name))
    onnx.helper.set_model_props(model, {"shiftbench": json.dumps(content)})
    onnx.save_model(model, str(path))
    record = record_of(net, tmp_path / "runs")
    assert verify(record, model=str(path), data="scenes", images=12, device="cpu").problems


@pytest.mark.parametrize(
    ("model", "file", "words"),
    [
        ("NET", "m.tflite", r"ends with \.onnx or \.pt2, got 'm\.tflite'"),
        ("NET", "old.onnx", "exists. Add --force"),
        ("NET", "nowhere/m.onnx", "no folder"),
        ("OLD", "m.onnx", "expected remedies after old.onnx"),
        ("OLD+vote:3", "m.pt2", "Choose a name that ends with .onnx"),
        ("OLD+aps", "m.onnx", "an exported file has no layers"),
        ("SELECT+vote:3", "m.onnx", "with vote[+]align:2:1"),
        ("SELECT+align:3:1", "m.onnx", "given twice"),
        ("BARE", "m.onnx", "input size, mean and std unknown"),
    ],
)
def test_export_bad_request_raises(
    model: str, file: str, words: str, net: str, tmp_path: Path
) -> None:
    if "OLD" in model or "old" in file:
        shiftbench.export(net, tmp_path / "old.onnx", images=1)
    if "SELECT" in model:
        shiftbench.export(f"{net}+align:2:1", tmp_path / "select.onnx", images=1)
    bare = NET.partition("    return")[0] + "    return net\n"
    (tmp_path / "bare.py").write_text(bare)
    names = {"NET": net, "OLD": "old.onnx", "SELECT": "select.onnx", "BARE": "bare.py:build"}
    for key, value in names.items():
        model = model.replace(key, value if key == "NET" else f"{tmp_path / value}")
    before = sorted(tmp_path.iterdir())
    with pytest.raises((UsageError, ModelError), match=words):
        shiftbench.export(model, tmp_path / file)
    assert sorted(tmp_path.iterdir()) == before


def test_export_free_size_unknown_raises(net: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    shiftbench.export(net, path, images=1)
    model = onnx.load(str(path))
    del model.metadata_props[:]
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "side"
    onnx.save_model(model, str(path))
    with pytest.raises(UsageError, match="input size unknown"):
        shiftbench.export(f"{path},mean=0.5,std=0.5+vote:2", tmp_path / "v.onnx")
    named = f"{path},mean=0.5,std=0.5,input_size=24+vote:2"
    assert shiftbench.export(named, tmp_path / "v.onnx", images=2).view == 24


def test_export_file_that_differs_is_not_written(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = exporting.export_onnx

    def changed(module: Any, *args: Any, **settings: Any) -> bytes:
        class Larger(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                logits: Tensor = module(x)
                return logits * 1.1

        return other(Larger().eval(), *args, **settings)

    monkeypatch.setattr(exporting, "export_onnx", changed)
    with pytest.raises(ModelError, match=r"m\.onnx was not written: its logits differ"):
        shiftbench.export(net, tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.glob("*m.onnx*")] == []


def test_export_full_disk_leaves_no_file(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as caught:
        shiftbench.export(net, tmp_path / "m.onnx", images=1)
    assert caught.value.filename == str(tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.glob("*m.onnx*")] == []


def test_export_without_extra_names_it(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(AftModelsError, match=r"pip install 'shiftbench\[onnx\]'"):
        shiftbench.export(net, tmp_path / "m.onnx")


class Head(nn.Module):
    """Module of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda x: torch.linalg.svdvals(x).flatten(1),
            r"operator aten\._linalg_svd in the module network\.0 \(Head\) has no ONNX form",
        ),
        (
            lambda x: x.flatten(1) * (1 if x.sum() > 0 else 2),
            r"branches on the values of a tensor in the module network\.0 \(Head\)",
        ),
    ],
)
def test_export_names_operator_and_module(
    function: Callable[[Tensor], Tensor], words: str, tmp_path: Path
) -> None:
    facts = {"input_size": 4, "mean": 0.5, "std": 0.25}
    network = nn.Sequential(Head(function), nn.LazyLinear(5))
    network(torch.zeros(2, 3, 4, 4))
    with pytest.raises(AftModelsError, match=words):
        shiftbench.export(network.eval(), tmp_path / "m.onnx", preprocessing=facts)


ARCHITECTURES = {
    "resnet18": 224,
    "mobilenetv2_100": 224,
    "tf_efficientnet_lite0": 224,
    "vit_tiny_patch16_224": 224,
    "xcit_pico_6_p8": 64,
    "xcit_pico_6_p8_aps": 64,
    "xcit_pico_6_p8_af": 64,
}


def outcome(architecture: str, remedy: str, path: Path) -> str:
    """Repair and export an architecture; return the error, or an empty text."""
    torch.manual_seed(0)
    side = ARCHITECTURES[architecture]
    sized = {"img_size": side} if "xcit" in architecture else {}
    network = timm.create_model(architecture, num_classes=12, **sized).eval()
    facts = {"input_size": side, "mean": 0.5, "std": 0.25}
    try:
        repaired = aft_models.repair(network, remedy, input_size=side) if remedy else network
        result = shiftbench.export(repaired, path, preprocessing=facts, images=50)
    except AftModelsError as error:
        return str(error)
    return "" if result.images == 50 and path.exists() else "not compared"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("remedy", ["", *REMEDIES])
def test_every_remedy_exports_or_is_rejected_by_name(
    remedy: str, architecture: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    error = outcome(architecture, remedy, path)
    if error:
        assert remedy
        assert remedy in error
        assert not path.exists()
        pytest.skip(error)
