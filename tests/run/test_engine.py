"""Every engine answers as PyTorch does; one that does not is found out before it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import shiftbench
from aft_models import onnx as exporter
from aft_models import repair
from shiftbench.data import Scenes, load_dataset
from shiftbench.errors import ModelError, RecordError, UsageError
from shiftbench.models import Model, load_model
from shiftbench.models.sources.onnx import OnnxNetwork
from shiftbench.run import engine as module
from shiftbench.run.distributed import Shard
from shiftbench.run.engine import ENGINES, Engine, TorchForward, choose_engine
from shiftbench.run.graphs import exported, graph_file
from shiftbench.run.job import Settings
from shiftbench.run.runner import Execution, run

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

RECIPE = {"input_size": 24, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
CPU = Execution(device="cpu", batch_size=16)


class Small(nn.Module):
    """A strided convolution and a head: enough to break under shifts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 5, stride=3)
        self.head = nn.Linear(8, 12)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.conv(images).relu().amax((2, 3)))
        return logits


@pytest.fixture
def classifier() -> Model:
    return Model(Small().eval(), RECIPE, name="small")


def engine(classifier: Model, name: str) -> Engine:
    return Engine(classifier, device=torch.device("cpu"), engine=name, batch_size=8)


@pytest.mark.parametrize(
    "name", [pytest.param(e, marks=pytest.mark.slow if e == "compile" else ()) for e in ENGINES]
)
def test_engines_agree_for_batches_of_any_size(name: str, classifier: Model) -> None:
    answer = engine(classifier, name)
    for count in (3, 8, 1, 13):
        images = torch.randn(count, 3, 24, 24)
        with torch.no_grad():
            expected = classifier(images)
        torch.testing.assert_close(answer(images), expected, atol=1e-5, rtol=1e-5)


def rows_of(classifier: Model, engine: str, folder: Path) -> pd.DataFrame:
    settings = Settings(attacks=("half", "crop"), max_shift=2, engine=engine)
    outcome = run(classifier, Scenes("test", 36), settings, folder, execution=CPU)
    assert outcome.record.settings["engine"] == engine
    return outcome.record.samples()


def assert_same_answers(got: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Image by image, except where rounding decides."""
    assert got["key"].tolist() == expected["key"].tolist()
    sure = ~(got["near_tie"] | expected["near_tie"])
    assert sure.mean() > 0.9
    pd.testing.assert_frame_equal(got[sure], expected[sure], rtol=0, atol=1e-4)


def test_a_run_has_the_same_answers_per_image(classifier: Model, tmp_path: Path) -> None:
    expected = rows_of(classifier, "torch", tmp_path / "torch")
    assert expected["crop_broken_radius"].notna().any()  # something broke
    assert_same_answers(rows_of(classifier, "onnx", tmp_path / "onnx"), expected)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["", "_aps", "_af"])
def test_bundled_models_have_the_same_answers(variant: str, tmp_path: Path) -> None:
    classifier = load_model(f"xcit_pico_6_p8{variant}.scenes")
    expected = rows_of(classifier, "torch", tmp_path / "torch")
    assert_same_answers(rows_of(classifier, "onnx", tmp_path / "onnx"), expected)


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("tf_efficientnet_lite0", "tf_efficientnet_lite0.pth"),
        ("vit_tiny_patch16_224", "vit_tiny_patch16_224.safetensors"),
    ],
)
def test_public_networks_have_the_same_answers_on_photographs(
    name: str, weights: str, shared_data: Path, tmp_path: Path
) -> None:
    classifier = load_model(f"timm:{name}", checkpoint=shared_data / "weights" / weights)
    data = load_dataset(f"imagenet:{shared_data / 'imagenet_sample'}")
    by = {}
    for engine in ("torch", "onnx"):
        settings = Settings(attacks=("crop",), max_shift=1, engine=engine, limit=16)
        store = tmp_path / engine
        by[engine] = run(classifier, data, settings, store, execution=CPU).record.samples()
    assert_same_answers(by["onnx"], by["torch"])


def test_the_notebook_takes_an_engine() -> None:
    module = Small().eval()
    images, labels = torch.rand(12, 3, 28, 28), torch.zeros(12, dtype=torch.long)
    by = {
        name: shiftbench.evaluate(module, images, labels, max_shift=2, engine=name).to_frame()
        for name in ("torch", "onnx")
    }
    assert_same_answers(by["onnx"], by["torch"])
    with pytest.raises(UsageError, match=r"engine 'onnx' needs a torch.nn.Module, got function"):
        shiftbench.evaluate(lambda x: x.mean((2, 3)), images, labels, engine="onnx")
    with pytest.raises(UsageError, match=r"unknown engine 'onx'.*onnx"):
        shiftbench.evaluate(module, images, labels, engine="onx")


class Scaled(nn.Module):
    """Another network in place of the exported one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.inner(images)
        return logits * torch.linspace(1, 1.01, logits.shape[1])


def test_a_graph_that_answers_differently_stops_before_anything_is_measured(
    classifier: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = exporter.export_onnx
    monkeypatch.setattr(exporter, "export_onnx", lambda m, s: export(Scaled(m).eval(), s))
    monkeypatch.setenv("SHIFTBENCH_CACHE", str(tmp_path / "cache"))
    answer = engine(classifier, "onnx")
    answer.seconds_per_image()  # blank images prove nothing
    with pytest.raises(ModelError, match=r"small answers differently .* off by .*--engine torch"):
        answer(torch.randn(4, 3, 24, 24))
    with pytest.raises(ModelError, match="answers differently"):
        rows_of(classifier, "onnx", tmp_path / "runs")
    assert not list(tmp_path.rglob("*.parquet"))


# --- exported graphs in the cache


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """An empty cache, and the networks that are exported."""
    seen: list[nn.Module] = []
    export = exporter.export_onnx

    def noted(module: nn.Module, shape: tuple[int, int, int]) -> bytes:
        seen.append(module)
        return export(module, shape)

    monkeypatch.setattr(exporter, "export_onnx", noted)
    monkeypatch.setenv("SHIFTBENCH_CACHE", str(tmp_path / "cache"))
    return seen


def test_a_network_is_exported_once(exports: list[nn.Module], tmp_path: Path) -> None:
    """However often it is needed; other weights or options are other networks."""
    graphs = {exported(Small().eval(), (3, 24, 24)) for _ in range(3)}
    assert (len(exports), len(graphs)) == (1, 1)
    assert not list(tmp_path.rglob("*.tmp"))
    file = graph_file(Small(), (3, 24, 24))
    changed = Small()
    changed.head.weight.data[0, 0] += 1
    strided = Small()
    strided.conv.stride = (2, 2)
    pooled = Small()
    pooled.pool = "avg"
    others = [graph_file(m, (3, 24, 24)) for m in (changed, strided, pooled)]
    assert len({file, graph_file(Small(), (3, 32, 32)), *others}) == 5


def test_graphs_of_remedies_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIFTBENCH_CACHE", str(tmp_path))

    def file(*remedies: str) -> Path:
        model = repair(Small().eval(), "+".join(remedies)) if remedies else Small().eval()
        return graph_file(model, (3, 24, 24))

    chosen = [(), ("vote:3",), ("vote:5",), ("canonical",), ("select:4",), ("select:5",)]
    assert len({file(*remedies) for remedies in chosen}) == len(chosen)
    assert file("select:4") == file("select:4")
    before = file("select:4")
    other = tmp_path / "select.py"
    other.write_text("# another way to choose")
    find = inspect.getfile
    select = type(repair(Small(), "select:4").remedies[0])  # type: ignore[index, union-attr]
    monkeypatch.setattr(inspect, "getfile", lambda o: str(other) if o is select else find(o))
    assert file("select:4") != before, "its code has changed"


EXPORTS_SLOWLY = """
import pathlib, sys, time
from filelock import FileLock
file = pathlib.Path(sys.argv[1])
with FileLock(file.with_suffix(".lock")):
    print("held", flush=True)
    time.sleep(0.5)
    file.write_bytes(b"graph")
"""


def test_a_process_waits_for_the_one_that_exports(exports: list[nn.Module]) -> None:
    file = graph_file(Small().eval(), (3, 24, 24))
    file.parent.mkdir(parents=True)
    command = [sys.executable, "-c", EXPORTS_SLOWLY, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert exported(Small().eval(), (3, 24, 24)) == b"graph"
    assert exports == []


def test_a_graph_of_other_code_is_exported_anew(
    exports: list[nn.Module], classifier: Model
) -> None:
    file = graph_file(classifier, (3, 24, 24))
    stale = exported(Scaled(classifier).eval(), (3, 24, 24))
    file.write_bytes(stale)
    images = torch.randn(4, 3, 24, 24)
    answer = engine(classifier, "onnx")(images)
    with torch.no_grad():
        torch.testing.assert_close(answer, classifier(images), atol=1e-5, rtol=1e-5)
    assert file.read_bytes() != stale


def test_a_cache_that_cannot_be_written_is_none(
    exports: list[nn.Module], classifier: Model, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    engine(classifier, "onnx")(torch.randn(4, 3, 24, 24))
    assert len(exports) == 1


# --- auto


def chosen(classifier: Model, passes: int, device: str = "cpu") -> str:
    return choose_engine(classifier, device=torch.device(device), precision="fp32", passes=passes)


def test_auto_chooses_by_the_passes_ahead(
    exports: list[nn.Module], classifier: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {TorchForward: 0.02, OnnxNetwork: 0.01}
    monkeypatch.setattr(module, "time_forward", lambda forward, *_: seconds[type(forward)])
    assert chosen(classifier, 499) == "torch"  # not worth timing
    assert chosen(classifier, 5000) == "torch"  # 100 s: exporting takes too long
    assert not exports
    assert chosen(classifier, 7000) == "onnx"  # 140 s
    assert chosen(classifier, 500) == "onnx"  # 10 s, and the graph is there
    assert len(exports) == 1
    seconds[OnnxNetwork] = 0.019
    assert chosen(classifier, 7000) == "torch"  # hardly faster
    seconds[OnnxNetwork] = 0.01
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert chosen(classifier, 7000) == "torch"  # not installed


def test_a_record_goes_on_with_its_engine_under_auto(
    exports: list[nn.Module],
    classifier: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def go(engine: str, folder: str, **options: object) -> str:
        settings = Settings(attacks=("crop",), engine=engine, **{"max_shift": 1, **options})
        images = Scenes("test", 12)
        record = run(classifier, images, settings, tmp_path / folder, execution=CPU).record
        return str(record.settings["engine"])

    monkeypatch.setattr("shiftbench.run.runner.choose_engine", lambda *_, **__: "onnx")
    assert go("torch", "a") == "torch"
    assert go("auto", "a", max_shift=2) == "torch"
    assert go("auto", "b") == "onnx"
    monkeypatch.setattr("shiftbench.run.runner.choose_engine", lambda *_, **__: "torch")
    assert go("auto", "b", max_shift=2) == "onnx"
    with pytest.raises(RecordError, match='engine was "onnx", is "torch"'):
        go("torch", "b")


def test_shards_that_choose_at_once_agree(
    classifier: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second shard has chosen before the first one's claim was there to see."""
    settings = Settings(attacks=("crop",), max_shift=1, engine="auto")
    choices = iter(["torch", "onnx"])
    looks = iter([None, None, "torch", "torch"])
    monkeypatch.setattr("shiftbench.run.runner.choose_engine", lambda *_, **__: next(choices))
    monkeypatch.setattr("shiftbench.run.folder.FolderStore.engine", lambda _: next(looks))
    for index in (1, 2):
        execution = Execution(device="cpu", batch_size=16, shard=Shard(index, 2))
        result = run(classifier, Scenes("test", 12), settings, tmp_path, execution=execution)
    assert result.record is not None
    assert result.record.settings["engine"] == "torch"


def test_an_onnx_file_runs_there_already(tmp_path: Path) -> None:
    module = Small().eval()
    (tmp_path / "small.onnx").write_bytes(exporter.export_onnx(module, (3, 24, 24)))
    answer = engine(load_model(f"onnx:{tmp_path / 'small.onnx'}"), "onnx")
    images = torch.randn(3, 3, 24, 24)
    with torch.no_grad():
        torch.testing.assert_close(answer(images), module(images), atol=1e-5, rtol=1e-5)


def test_a_missing_package_names_the_extra(
    classifier: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"pip install 'shiftbench\[onnx\]'"):
        engine(classifier, "onnx")


class Together(nn.Module):
    """Logits relative to the mean of the batch: no score of it means anything."""

    def forward(self, images: Tensor) -> Tensor:
        pooled = images.mean((2, 3))
        return (pooled - pooled.mean(0)).repeat(1, 4)


def test_a_model_whose_logits_depend_on_the_batch_is_refused(tmp_path: Path) -> None:
    recipe = {"input_size": 24, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    classifier = Model(Together(), recipe, name="together")
    settings = Settings(attacks=(), consistency=())
    for batch_size in (8, 1):
        with pytest.raises(ModelError, match="depend on the other images of a batch"):
            run(
                classifier,
                Scenes("test", 12),
                settings,
                tmp_path,
                execution=Execution(device="cpu", batch_size=batch_size),
            )
