"""Exported models have the logits of PyTorch for any batch size."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import timm
import torch
from shifted_models import disturbed
from torch import Tensor, nn

import aft_models
from aft_models import AftModelsError
from aft_models.onnx import export_onnx
from shiftbench.models.sources.onnx import OnnxNetwork

SMALL = {"depth": 1, "class_depth": 1, "num_classes": 5}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def assert_exports(model: nn.Module, side: int) -> None:
    """Compare one file with PyTorch at several batch sizes, up to rounding."""
    session = OnnxNetwork(export_onnx(model, (3, side, side)), name="exported")
    assert session.size == side
    assert session.batch is None
    # A seed for which no two polyphase components of `aps` have norms equal up to rounding.
    generator = torch.Generator().manual_seed(1)
    for batch in (1, 3, 8):
        images = torch.randn(batch, 3, side, side, generator=generator)
        with torch.no_grad():
            expected = model(images)
        got = session(images)
        assert (got - expected).abs().max() <= 3e-6 * expected.abs().max(), batch


@pytest.mark.parametrize("name", ["pico_6_p4_af", "pico_6_p8_af_poly", "nano_12_p16_aps"])
@pytest.mark.parametrize("up", [2, 3])
def test_activation_graph_form_equals_buffer_form(
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
def test_export_small_models_have_equal_logits(variant: str) -> None:
    model = aft_models.create_xcit(f"xcit_pico_6_p4{variant}", img_size=32, **SMALL)
    assert_exports(disturbed(model), 32)


@pytest.mark.slow
@pytest.mark.parametrize("switches", [{"up": 3}, {"attention": "sima"}, {"norm_mean": "channel"}])
def test_export_every_switch_has_equal_logits(switches: dict[str, int | str]) -> None:
    model = aft_models.create_xcit("xcit_pico_6_p8_af_poly", img_size=64, **SMALL, **switches)
    assert_exports(disturbed(model), 64)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["", "_aps", "_af"])
@pytest.mark.parametrize(
    ("size", "side"), [("pico_6_p8", 64), ("pico_6_p4", 32), ("nano_12_p16", 224)]
)
def test_export_bundled_models_have_equal_logits(size: str, side: int, variant: str) -> None:
    model = timm.create_model(f"xcit_{size}{variant}", num_classes=10, img_size=side)
    assert_exports(disturbed(model), side)


class Calls(nn.Module):
    """Module of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda x: torch.linalg.svdvals(x).flatten(1),
            r"the operator aten\._linalg_svd .*has no ONNX",
        ),
        (lambda x: x.flatten(1) * (1 if x.sum() > 0 else 2), "branches on the values of a tensor"),
        (lambda x: x.flatten(1) + torch.zeros(2, 1), "fixes the batch size"),
    ],
)
def test_export_unsupported_operator_raises(
    function: Callable[[Tensor], Tensor], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AftModelsError, match=rf"^cannot export Calls to ONNX: .*{reason}.*$"):
        export_onnx(Calls(function).eval(), (3, 4, 4))
    assert capfd.readouterr() == ("", "")


def test_export_training_mode_raises() -> None:
    with pytest.raises(AftModelsError, match="Linear is in training mode"):
        export_onnx(nn.Linear(2, 2), (3, 2, 2))


def test_export_missing_package_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(AftModelsError, match=r"pip install 'shiftbench\[onnx\]'"):
        export_onnx(nn.Linear(2, 2).eval(), (3, 2, 2))
