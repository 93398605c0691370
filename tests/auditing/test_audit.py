"""Properties of the layer audit: errors are attributed to the layers that cause them."""

import ast
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shiftbench
from aft_models.xcit import XCiT, XCiTConfig
from shiftbench.auditing.layers import DEFAULT_OFFSETS, audit
from shiftbench.auditing.report import UNCALLED, UNKNOWN, UNREACHED, LayerReport, eq_t
from shiftbench.errors import DataError, ModelError, UsageError
from shiftbench.grid import Offset
from shiftbench.models import Model

INTEGER = (Offset(1, 0), Offset(-2, 3))


def circular(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, padding_mode="circular")


def images(height: int = 16, width: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, height, width, generator=generator, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _same_weights_every_time() -> None:
    torch.manual_seed(0)


def network(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


def by_name(
    model: nn.Module, *, offsets: Sequence[Offset] = INTEGER, size: tuple[int, int] = (16, 16)
) -> dict[str, LayerReport]:
    layers = audit(model.double().eval(), images(*size), offsets=offsets).layers
    return {layer.name: layer for layer in layers}


def assert_exact(layer: LayerReport) -> None:
    assert layer.own is not None
    assert layer.own < 1e-12


def test_audit_attributes_error_to_the_strided_layer() -> None:
    model = network(circular(3, 4), circular(4, 4, stride=2), circular(4, 4)).double().eval()
    report = audit(model, images(), offsets=INTEGER)
    layers = {layer.name: layer for layer in report.layers}
    assert report.breakers()[0].name == "1"
    assert layers["0"].accumulated < 1e-12
    assert_exact(layers["2"])  # alone: its output shifts like its input
    assert layers["2"].accumulated > 1e-2  # the error of layer 1 propagates


def test_audit_pointwise_layer_has_error_at_fractional_shifts_only() -> None:
    model = network(nn.ReLU(), circular(3, 4))
    half = by_name(model, offsets=[Offset(0.5, 0)], size=(15, 15))
    assert half["0"].cause == "non-linearity"
    whole = by_name(model, offsets=INTEGER, size=(15, 15))
    assert all(layer.accumulated < 1e-12 for layer in whole.values())
    assert all(layer.own is None or layer.own < 1e-12 for layer in whole.values())


# --- inputs and outputs of layers -----------------------------------------------------------------


def test_audit_in_place_layer_is_measured_on_its_original_input() -> None:
    def own(inplace: bool) -> float | None:
        torch.manual_seed(0)
        model = network(circular(3, 4), nn.ReLU(inplace=inplace), circular(4, 4))
        return by_name(model, offsets=(Offset(0.5, 0.25),))["1"].own

    assert own(inplace=True) == own(inplace=False)


class Keywords(nn.Module):
    """Module that calls exact layers with tensors in keyword arguments, alone and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.sum = Scale(), Sum()
        self.head = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.sum(x, others=[self.alone(x=x)]).mean((2, 3)))  # type: ignore[no-any-return]


class Scale(nn.Module):
    """Exact layer."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Sum(nn.Module):
    """Exact layer."""

    def forward(self, x: Tensor, others: list[Tensor]) -> Tensor:
        return torch.stack([x, *others]).sum(0)


def test_audit_shifts_tensors_in_keyword_arguments() -> None:
    layers = by_name(Keywords())
    assert_exact(layers["alone"])
    assert_exact(layers["sum"])


def test_audit_measures_every_call_of_a_shared_layer() -> None:
    act = nn.ReLU()
    layers = by_name(network(act, circular(3, 4), act), offsets=(Offset(0.5, 0),))
    assert {"0", "0 (2)"} <= set(layers)
    assert layers["0"].own != layers["0 (2)"].own


def small_xcit(**switches: str | bool) -> XCiT:
    cfg = XCiTConfig(dim=16, depth=1, num_heads=2, patch_size=4, **switches)  # type: ignore[arg-type]
    return XCiT(cfg, img_size=16, num_classes=5)


def alias_free_xcit() -> XCiT:
    return small_xcit(
        padding="circular",
        downsample="af",
        embed_activation="af_gelu",
        block_activation="af_gelu",
        norm="af",
        positional=False,
        head="af_class_attention",
    )


def test_audit_measures_layers_inside_a_fused_stem() -> None:
    layers = by_name(alias_free_xcit())
    for name in ("patch_embed.proj.0.0", "patch_embed.proj.0.1", "patch_embed.proj.1"):
        assert layers[name].own is not None
    assert layers["patch_embed.proj.1"].lattice == (8, 8)


def test_audit_last_norm_counts_class_token_only() -> None:
    for model in (alias_free_xcit(), small_xcit()):
        norm = by_name(model, offsets=(Offset(0.5, 0.5),))["norm"]
        assert norm.lattice is None
        assert_exact(norm)  # each token is normalized by itself


def test_audit_channel_attention_has_no_position() -> None:
    layers = by_name(alias_free_xcit(), offsets=(Offset(4, 8),))  # integer shifts of tokens
    attention = layers["blocks.0.attn.attn_drop"]
    assert attention.shape == (2, 8, 8)  # an image's shape
    assert attention.lattice is None
    assert attention.accumulated is not None
    assert attention.accumulated < 1e-12  # invariant to integer shifts of tokens


class DeadEnds(nn.Module):
    """Module with an unused layer, a layer that is never called, and a layer of a spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.aside, self.idle = circular(3, 4), circular(3, 4), circular(3, 4)
        self.spectral, self.head = nn.ReLU(), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        y = self.used(x)
        y = y + torch.fft.irfft2(self.spectral(torch.fft.rfft2(y).real).to(torch.complex128))
        return self.head(y.mean((2, 3)))  # type: ignore[no-any-return]


def test_audit_lists_unmeasured_layers_by_reason() -> None:
    report = audit(DeadEnds().double().eval(), images())
    assert report.unmeasured() == {UNREACHED: ["aside"], UNKNOWN: ["spectral"], UNCALLED: ["idle"]}
    assert {layer.name for layer in report.breakers()}.isdisjoint({"aside", "spectral", "idle"})
    assert report.whole.name == ""
    assert f"Not measured, {UNCALLED}: idle." in report.summary()


def test_audit_measures_layers_before_zero_initialized_weights() -> None:
    """Residual blocks often start with a last norm, or a head, of zeros."""
    model = timm.create_model("resnet10t", num_classes=5)
    nn.init.zeros_(model.fc.weight)
    assert not model.layer1[0].bn2.weight.any()
    report = audit(model.eval(), images(32, 32).float())
    assert UNREACHED not in report.unmeasured()
    assert "layer1.0.conv1" in {layer.name for layer in report.breakers()}
    assert not model.layer1[0].bn2.weight.any()  # the model does not change


NORMALIZE = "aft_models.preprocessing"  # shifts no pixels


def test_audit_does_not_import_the_operators_of_models() -> None:
    folder = Path(shiftbench.__file__).parent / "auditing"
    for name in ("calls", "lattice", "layers", "tracer"):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert not module.startswith("aft_models") or module == NORMALIZE, name


# --- causes ---------------------------------------------------------------------------------------


class Flattened(nn.Module):
    """Layer with a weight per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


class Windows(nn.Module):
    """Means over fixed windows: no layer inside, and different between windows."""

    def forward(self, x: Tensor) -> Tensor:
        means = F.avg_pool2d(x, 4)
        return x - means.repeat_interleave(4, 2).repeat_interleave(4, 3)


CASES: dict[str, tuple[str | None, Callable[[], nn.Module]]] = {
    "circular padding": (None, lambda: circular(3, 4)),
    "zero padding": ("border", lambda: nn.Conv2d(3, 4, 3, padding=1)),
    "strided": ("sub-sampling", lambda: circular(3, 4, stride=2)),
    "strided with a border": ("sub-sampling", lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1)),
    "patches": ("sub-sampling", lambda: nn.Conv2d(3, 4, 4, stride=4)),
    "max pooling": ("sub-sampling", lambda: nn.MaxPool2d(2)),
    "depth-wise": ("border", lambda: nn.Conv2d(3, 3, 3, padding=1, groups=3)),
    "wide kernel": ("border", lambda: nn.Conv2d(3, 4, 5, padding=2)),
    "activation": ("non-linearity", nn.ReLU),
    "windows": ("position", Windows),
}


@pytest.mark.parametrize("case", CASES)
def test_audit_finds_cause_of_layer_error(case: str) -> None:
    cause, make = CASES[case]
    layer = make()
    more = [] if isinstance(layer, nn.Conv2d) and layer.out_channels == 4 else [circular(3, 4)]
    first = by_name(network(layer, *more), offsets=DEFAULT_OFFSETS)["0"]
    assert first.cause == cause
    if cause is None:
        assert_exact(first)
        return
    assert first.own is not None
    assert first.border is not None
    assert first.interior is not None
    assert math.hypot(first.border, first.interior) == pytest.approx(first.own)
    assert (first.border > first.interior) == (cause == "border")


def test_audit_classifier_of_flattened_maps_has_cause_position() -> None:
    assert by_name(Flattened(), offsets=DEFAULT_OFFSETS)["fc"].cause == "position"


class Functional(nn.Module):
    """Module with exact layers and inexact code between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = circular(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x))


def test_audit_attributes_functional_code_to_its_container() -> None:
    breakers = audit(network(Functional()).double().eval(), images()).breakers()
    assert [(layer.name, layer.cause) for layer in breakers] == [("0", "non-linearity")]


# --- decibels, tables, names ----------------------------------------------------------------------


def test_eq_t_equals_its_definition() -> None:
    model = network(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).double().eval()
    x, offsets = images(), (Offset(1, 0), Offset(-3, 2))
    layer = by_name(model, offsets=offsets)["1"]
    with torch.no_grad():
        still = model[:2](x)
        low, high = still.min(), still.max()

        def scaled(y: Tensor) -> Tensor:  # the range of the clean output is [-1, 1]
            return 2 * (y - low) / (high - low) - 1

        squared = []
        for offset in offsets:
            move = (-int(offset.dy), -int(offset.dx))
            difference = scaled(model[:2](x.roll(move, (2, 3)))) - scaled(still.roll(move, (2, 3)))
            squared += [float(value) ** 2 for value in difference.flatten()]
    slow = 20 * math.log10(2) - 10 * math.log10(sum(squared) / len(squared))
    assert layer.eq_t == pytest.approx(slow)
    assert eq_t(1.0, 0.0) == math.inf


def test_audit_invalid_input_raises() -> None:
    model = network(circular(3, 4))
    with pytest.raises(ModelError, match="eval mode"):
        audit(model, images())
    with pytest.raises(DataError, match="B, C, H, W"):
        audit(model.eval(), torch.zeros(0, 3, 8, 8))
    with pytest.raises(UsageError, match="normalized batch"):
        audit(model, "scenes")


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_audit_network_without_layers_raises(tmp_path: Path) -> None:
    def flat(images: Tensor) -> Tensor:
        return images.flatten(1)[:, :4]

    recipe = {"input_size": 16, "mean": 0.5, "std": 0.5}
    images = torch.rand(2, 3, 16, 16)
    with pytest.raises(UsageError, match="cannot audit x: ONNX files have no layers to audit"):
        audit(Model(flat, recipe, name="x", source="onnx"), images)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    torch.jit.save(torch.jit.trace(network, images), tmp_path / "net.pt")  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match=r"net.pt.*: a TorchScript archive has no layers to audit"):
        audit(f"{tmp_path / 'net.pt'},input_size=16,mean=0.5,std=0.5", images)
