"""Exported models answer as PyTorch does, for any batch; what cannot be exported is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import aft_models
from aft_models import AftModelsError
from aft_models.onnx import OnnxSession, export_onnx

SMALL = {"depth": 1, "class_depth": 1, "num_classes": 5}


def disturbed(model: nn.Module) -> nn.Module:
    """Batch norms as after training: the initial ones hide what is not exported."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    return model.eval()


def assert_exports(model: nn.Module, side: int) -> None:
    """One file, several batch sizes, PyTorch's logits within rounding."""
    session = OnnxSession(export_onnx(model, (3, side, side)), threads=1)
    assert session.input_shape == (3, side, side)
    for batch in (1, 3, 8):
        images = torch.randn(batch, 3, side, side)
        with torch.no_grad():
            expected = model(images)
        got = session(images)
        assert (got - expected).abs().max() <= 3e-6 * expected.abs().max(), batch


@pytest.mark.parametrize("name", ["pico_6_p4_af", "pico_6_p8_af_poly", "nano_12_p16_aps"])
@pytest.mark.parametrize("up", [2, 3])
def test_the_form_for_graphs_equals_the_one_in_buffers(
    name: str, up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = aft_models.create_xcit(f"xcit_{name}", up=up, **SMALL, img_size=(48, 80))
    model = disturbed(model).double()
    images = torch.randn(3, 3, 48, 80, dtype=torch.float64)
    with torch.no_grad():
        expected = model(images)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        got = model(images)
    assert not torch.equal(got, expected)  # they are two forms
    assert (got - expected).abs().max() <= 1e-10 * expected.abs().max()


@pytest.mark.parametrize("variant", ["_aps", "_af"])
def test_small_models_export(variant: str) -> None:
    model = aft_models.create_xcit(f"xcit_pico_6_p4{variant}", img_size=32, **SMALL)
    assert_exports(disturbed(model), 32)


@pytest.mark.slow
@pytest.mark.parametrize("switches", [{"up": 3}, {"attention": "sima"}, {"norm_mean": "channel"}])
def test_switches_export(switches: dict[str, int | str]) -> None:
    model = aft_models.create_xcit("xcit_pico_6_p8_af_poly", img_size=64, **SMALL, **switches)
    assert_exports(disturbed(model), 64)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["", "_aps", "_af"])
@pytest.mark.parametrize(
    ("size", "side"), [("pico_6_p8", 64), ("pico_6_p4", 32), ("nano_12_p16", 224)]
)
def test_bundled_models_export(size: str, side: int, variant: str) -> None:
    model = timm.create_model(f"xcit_{size}{variant}", num_classes=10, img_size=side)
    assert_exports(disturbed(model), side)


class Calls(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.linalg.svdvals(x).flatten(1), "the operator aten._linalg_svd has no ONNX"),
        (lambda x: x.flatten(1) * (1 if x.sum() > 0 else 2), "branches on the values of a tensor"),
        (lambda x: x.flatten(1) + torch.zeros(2, 1), "fixes the batch size"),
    ],
)
def test_what_cannot_be_exported_is_told(
    function: Callable[[Tensor], Tensor], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AftModelsError, match=rf"^cannot export Calls to ONNX: .*{reason}.*$"):
        export_onnx(Calls(function).eval(), (3, 4, 4))
    assert capfd.readouterr() == ("", "")


def test_training_mode_is_told() -> None:
    with pytest.raises(AftModelsError, match="Linear is in training mode"):
        export_onnx(nn.Linear(2, 2), (3, 2, 2))


def written(path: Path, batch: int | str = "batch", inputs: int = 1, rank: int = 2) -> Path:
    """An ONNX file of no framework: the channel means of (batch, 3, 4, 4) as logits."""
    onnx = pytest.importorskip("onnx")
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    shape = [batch, 3] + [1] * (rank - 2)
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["x0"], ["pooled"]),
            helper.make_node("Flatten" if rank == 2 else "Identity", ["pooled"], ["y"]),
        ],
        "means",
        [helper.make_tensor_value_info(f"x{i}", real, [batch, 3, 4, 4]) for i in range(inputs)],
        [helper.make_tensor_value_info("y", real, shape)],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), str(path))
    return path


@pytest.mark.parametrize("batch", ["batch", 4])
def test_files_of_others_run_at_any_batch_size(batch: int | str, tmp_path: Path) -> None:
    session = OnnxSession(written(tmp_path / "m.onnx", batch))
    assert session.batch_size == (None if batch == "batch" else batch)
    for count in (1, 4, 6):
        images = torch.randn(count, 3, 4, 4).to(memory_format=torch.channels_last)
        torch.testing.assert_close(session(images), images.mean((2, 3)))


def test_files_that_are_no_classifiers_are_told(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(AftModelsError, match=r"expected one float32 input .* got x0: .* x1: "):
        OnnxSession(written(path, inputs=2))
    with pytest.raises(AftModelsError, match=r"expected logits \(batch, classes\) .* got \["):
        OnnxSession(written(path, rank=4))
    path.write_bytes(b"nonsense")
    with pytest.raises(AftModelsError, match=r"cannot load '.*m.onnx': .*rotobuf parsing failed"):
        OnnxSession(path)
    with pytest.raises(AftModelsError, match=r"cannot load '.*none.onnx'"):
        OnnxSession(tmp_path / "none.onnx")


def test_cuda_that_is_not_there_is_told(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in runtime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(AftModelsError, match="install onnxruntime-gpu"):
        OnnxSession(written(tmp_path / "m.onnx"), device="cuda")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(AftModelsError, match=r"pip install 'shiftbench\[onnx\]'"):
        OnnxSession(b"")
