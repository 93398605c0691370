"""Exported files give the predictions of their model, or are not written."""

from __future__ import annotations

import errno
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import aft_models
import shiftbench
from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing, normalize
from aft_models.remedies import REMEDIES, Remedy, parse_remedies
from aft_models.remedies.inputs import InputRemedy, Undo, build_inputs, same, with_view
from shiftbench import exporting
from shiftbench.data import Scenes
from shiftbench.errors import ModelError, UsageError
from shiftbench.geometry import geometry_for
from shiftbench.models import load_model
from shiftbench.models.exported import stated_view
from shiftbench.running.job import Settings
from shiftbench.running.runner import Execution, run
from shiftbench.running.suite import RunSpec, with_shared_view
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
# Fields of the metadata, and other values of equal effect on the shape of the input.
EDITS: dict[str, dict[str, object]] = {
    "mean": {"mean": [0.1, 0.1, 0.1]},
    "interpolation": {"interpolation": "bicubic"},
    "margin": {"size": 26, "margin": 2},
    "scale": {"size": 54, "scale": 1},
    "digests": {},
}
SETTINGS = Settings(attacks=("crop",), max_shift=1, consistency=(), limit=12)


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:build"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the network, and its ONNX files with and without a remedy."""
    home = tmp_path_factory.mktemp("files")
    (home / "net.py").write_text(NET)
    shiftbench.export(f"{home / 'net.py'}:build", home / "plain.onnx", images=1)
    shiftbench.export(f"{home / 'net.py'}:build+align:3", home / "align.onnx", images=1)
    return home


def record_of(model: str, folder: Path) -> Any:
    execution = Execution(device="cpu", batch_size=8)
    written = run(load_model(model), Scenes("test"), SETTINGS, folder, execution=execution).record
    assert written is not None
    return written


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
@pytest.mark.parametrize(
    ("remedies", "include", "view"),
    [("", "normalize", (0, 1)), ("+vote:3", "", (0, 1)), ("+align:3", "uint8", (3, 2))],
)
def test_exported_file_gives_record_without_options(
    remedies: str, include: str, view: tuple[int, int], ending: str, net: str, tmp_path: Path
) -> None:
    path = tmp_path / f"model.{ending}"
    result = shiftbench.export(net + remedies, path, include=include, images=9)
    assert result.difference <= 1e-3 * result.largest
    margin, scale = view
    assert stated_view(path) == view
    assert result.view == scale * (24 + 2 * margin)
    original, loaded = load_model(net + remedies), load_model(str(path))
    for field in ("size", "margin", "scale", "mean", "std", "interpolation", "resize"):
        ours, theirs = (getattr(m.preprocessing, field) for m in (loaded, original))
        assert ours == theirs, field
    assert loaded.parameter_count == original.parameter_count
    record = record_of(net + remedies, tmp_path / "runs")
    again = record_of(str(path), tmp_path / "runs")
    assert again.scores == record.scores
    assert again.data.geometry == record.data.geometry
    assert again.data.geometry.get("scale", 1) == scale
    for claimed, model in ((record, str(path)), (again, net + remedies)):
        checked = verify(claimed, model=model, data="scenes", images=12, device="cpu")
        assert checked.problems == ()
        assert checked.cells > 12


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_exported_align_takes_batches_of_any_size(ending: str, net: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{ending}"
    shiftbench.export(f"{net}+align:8", path, images=2)
    original, loaded = load_model(f"{net}+align:8"), load_model(str(path))
    canvas = Scenes("test", 24).render(range(24), 80)
    images = normalize(canvas, original.preprocessing.mean, original.preprocessing.std)
    expected = original(images)
    for size in (1, 5, 24):
        found = torch.cat([loaded(part) for part in torch.split(images, size)])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_run_of_exported_align_and_plain_model_shares_view(files: Path) -> None:
    runs = [RunSpec(model=f"{files / 'net.py'}:build"), RunSpec(model=str(files / "align.onnx"))]
    assert [(spec.remedy_margin, spec.scale) for spec in with_shared_view(runs)] == [(3, 2)] * 2


def test_verify_rejects_record_of_another_exported_model(files: Path, tmp_path: Path) -> None:
    net = f"{files / 'net.py'}:build"
    record = record_of(str(files / "align.onnx"), tmp_path)
    for model, words in (
        (f"{net}+align:4", "model digest"),
        (net, "geometry"),
        (str(files / "plain.onnx"), "was exported from"),
    ):
        problems = verify(record, model=model, data="scenes", images=4, device="cpu").problems
        assert any(words in problem for problem in problems), model


@pytest.mark.parametrize(
    ("remedy", "include"), [("vote:5", "uint8"), ("align:6", "normalize"), ("canonical", "")]
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


@pytest.mark.parametrize("remedy", ["vote:3", "align:8"])
def test_input_remedy_wraps_files_and_callables(remedy: str, net: str, tmp_path: Path) -> None:
    network = load_model(net).network
    facts = Preprocessing(24, (0.5,) * 3, (0.25,) * 3, "bilinear")
    (around,) = build_inputs(parse_remedies(remedy), facts)
    side = with_view(facts, [around]).input_size
    images = torch.randn(2, 3, side, side)
    shown, undo = around.show(images)
    expected = undo(network(shown))

    def call(x: Tensor) -> Tensor:
        logits: Tensor = network(x)
        return logits

    repaired = aft_models.repair(call, remedy, preprocessing=facts, input_size=24)
    torch.testing.assert_close(repaired(images), expected)
    script = tmp_path / "net.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the format is deprecated
        torch.jit.trace(network, images[..., :24, :24]).save(str(script))
    stated = "input_size=24,mean=0.5,std=0.25,interpolation=bilinear"
    torch.testing.assert_close(load_model(f"{script},{stated}+{remedy}")(images), expected)
    with pytest.raises(UsageError, match="does not take TorchScript archives"):
        shiftbench.export(f"{script},{stated}+{remedy}", tmp_path / "m.onnx")


def test_repair_callable_with_align_takes_wider_finer_view() -> None:
    repaired = aft_models.repair(lambda x: x.mean((2, 3)), "align:8", input_size=224)
    assert repaired(torch.rand(2, 3, 480, 480)).shape == (2, 3)
    with pytest.raises(AftModelsError, match="expected images of 480 x 480 px"):
        repaired(torch.rand(2, 3, 224, 224))


def test_export_network_of_notebook(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 12, 5, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    repaired = aft_models.repair(net, "circular+align:2", input_size=24)
    facts = {"input_size": 24, "mean": 0.5, "std": 0.25}
    path = tmp_path / "m.onnx"
    shiftbench.export(repaired, path, preprocessing=facts, images=2)
    loaded = load_model(str(path))
    assert loaded.exported is not None
    assert (loaded.exported.remedies, loaded.preprocessing.input_size) == ("circular+align:2", 56)
    with pytest.raises(UsageError, match="expected the preprocessing of the network"):
        shiftbench.export(net, tmp_path / "n.onnx")


@pytest.mark.parametrize("edited", [*EDITS, "weights of the graph"])
def test_verify_finds_edited_file(edited: str, files: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    shutil.copy(files / "align.onnx", path)
    model = onnx.load(str(path))
    content = json.loads(model.metadata_props[0].value)
    if edited == "digests":
        content["digests"] = ["0" * 64]
    elif edited in EDITS:
        content["preprocessing"] |= EDITS[edited]
    else:
        for tensor in model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.ndim == 4:
                tensor.CopyFrom(onnx.numpy_helper.from_array(-array, tensor.name))
    onnx.helper.set_model_props(model, {"shiftbench": json.dumps(content)})
    onnx.save_model(model, str(path))
    record = record_of(f"{files / 'net.py'}:build+align:3", tmp_path / "runs")
    problems = verify(record, model=str(path), data="scenes", images=12, device="cpu").problems
    assert problems
    # Weights are in no field of the metadata: predictions find them.
    assert ("predicted" in problems[0]) == (edited == "weights of the graph")


@pytest.mark.parametrize(
    ("model", "file", "words"),
    [
        ("net.py:build", "m.tflite", r"ends with \.onnx or \.pt2, got 'm\.tflite'"),
        ("net.py:build", "old.onnx", "exists. Add --force"),
        ("net.py:build", "nowhere/m.onnx", "no folder"),
        ("plain.onnx", "m.onnx", "expected remedies after plain.onnx"),
        ("plain.onnx+vote:3", "m.pt2", "Choose a name that ends with .onnx"),
        ("plain.onnx+aps", "m.onnx", "an exported file has no layers"),
        ("align.onnx+vote:3", "m.onnx", "with vote[+]align:3"),
        ("align.onnx+align:4", "m.onnx", "given twice"),
        ("bare.py:build", "m.onnx", "input size, mean and std unknown"),
    ],
)
def test_export_bad_request_raises(
    model: str, file: str, words: str, files: Path, tmp_path: Path
) -> None:
    (files / "bare.py").write_text(NET.partition("    return")[0] + "    return net\n")
    (tmp_path / "old.onnx").touch()
    with pytest.raises((UsageError, ModelError), match=words):
        shiftbench.export(f"{files / model}", tmp_path / file)
    assert [path.name for path in tmp_path.iterdir()] == ["old.onnx"]
    assert not (tmp_path / "old.onnx").stat().st_size


def test_export_free_size_unknown_raises(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = onnx.load(str(files / "plain.onnx"))
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


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_export_without_extra_names_it(
    package: str, net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    words = r"^(m\.onnx|onnxscript) .*pip install 'shiftbench\[onnx\]'"
    with pytest.raises((AftModelsError, ModelError), match=words):
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


SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
# Side of the images in pixels: small where the network allows, as operators do not depend on it.
NETWORKS = {
    "timm:resnet18": 96,
    "tv:mobilenet_v2": 96,
    "timm:tf_efficientnet_lite0": 96,
    "timm:vit_tiny_patch16_224": 224,
    "xcit_pico_6_p8.imagenette": 96,
    "xcit_pico_6_p8_aps.imagenette": 96,
    "xcit_pico_6_p8_af.imagenette": 96,
}


def trained(name: str) -> nn.Module:
    """Return a network with trained weights if these are at hand, else with random ones."""
    source, _, architecture = name.partition(":")
    if not architecture:
        return load_model(name).network
    for file in (SHARED_DATA / "weights").glob(f"{architecture}.*"):
        return load_model(name, checkpoint=file).network
    torch.manual_seed(0)
    create = timm.create_model if source == "timm" else torchvision.models.get_model
    return create(architecture).eval()


def outcome(name: str, remedy: str, path: Path) -> str:
    """Repair and export a network; return the error, or an empty text."""
    side = NETWORKS[name]
    real = SHARED_DATA / "imagenet_sample"
    data = f"imagenet:{real}" if real.is_dir() else "scenes"
    facts = Preprocessing(side, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear")
    network = trained(name)
    try:
        if remedy:
            network = aft_models.repair(network, remedy, preprocessing=facts, input_size=side)
        result = shiftbench.export(network, path, preprocessing=facts, data=data, images=50)
    except AftModelsError as error:
        return str(error)
    return "" if result.images == 50 and path.exists() else "not compared"


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("remedy", ["", *REMEDIES])
def test_every_remedy_exports_or_is_rejected_by_name(
    remedy: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    error = outcome(name, remedy, path)
    if error:
        assert remedy
        assert remedy in error
        assert not path.exists()
        pytest.skip(error)
