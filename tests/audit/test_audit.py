"""Laws of the layer audit: it blames the layers that break equivariance and no others."""

import ast
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shiftbench.audit
from aft_models.xcit import XCiT, XCiTConfig
from shiftbench.audit.layer_report import (
    UNCALLED,
    UNKNOWN,
    UNREACHED,
    LayerReport,
    breakers,
    eq_t,
    to_frame,
    unjudged,
)
from shiftbench.audit.layers import audit
from shiftbench.errors import DataError, ModelError
from shiftbench.grid import Offset

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
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    return nn.Sequential(*layers, *pool).double().eval()


def test_equivariant_network_has_no_breakers_at_integer_offsets() -> None:
    reports = audit(network(circular(3, 4), nn.GELU()), images(), offsets=INTEGER)
    assert all(report.accumulated < 1e-12 for report in reports)
    assert all(report.own is None or report.own < 1e-12 for report in reports)
    assert reports[-1].name == ""


def test_the_strided_layer_is_blamed_and_what_follows_only_inherits() -> None:
    model = network(circular(3, 4), circular(4, 4, stride=2), circular(4, 4))
    reports = {report.name: report for report in audit(model, images(), offsets=INTEGER)}
    assert breakers(list(reports.values()))[0].name == "1"
    assert reports["0"].accumulated < 1e-12
    assert reports["2"].own is not None
    assert reports["2"].own < 1e-12  # exact alone: its output moves as its input does
    assert reports["2"].accumulated > 1e-2  # but it inherits the error of layer 1


def test_pointwise_nonlinearity_breaks_fractional_shifts_only() -> None:
    model = network(nn.ReLU(), circular(3, 4))
    half = audit(model, images(15, 15), offsets=[Offset(0.5, 0)])
    assert breakers(half)[0].name == "0"
    whole = audit(model, images(15, 15), offsets=[Offset(1, 0)])
    assert all(report.accumulated < 1e-12 for report in whole)


class Tokens(nn.Module):
    """(B, C, h, w) -> (B, 1 + h w, C): a class token in front, as vision transformers have it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.new_ones(len(x), 1, x.shape[1]), x.flatten(2).transpose(1, 2)], 1)


class ChannelsLast(nn.Module):
    """(B, C, h, w) -> (B, h, w, C), as Swin has it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


@pytest.mark.parametrize("layout", [Tokens(), ChannelsLast()])
@pytest.mark.parametrize("size", [(16, 16), (8, 12)])
def test_token_and_channels_last_layouts_are_followed(
    layout: nn.Module, size: tuple[int, int]
) -> None:
    model = nn.Sequential(layout, nn.Linear(3, 4)).double().eval()
    reports = audit(model, images(*size), offsets=INTEGER)
    assert [report.name for report in reports] == ["0", "1", ""]
    assert all(report.own is not None and report.own < 1e-12 for report in reports)
    assert all(report.accumulated < 1e-12 for report in reports)


# --- what a layer is given, and what becomes of its answer ---------------------------------------


def by_name(model: nn.Module, *, offsets: tuple[Offset, ...] = INTEGER) -> dict[str, LayerReport]:
    return {
        report.name: report for report in audit(model.double().eval(), images(), offsets=offsets)
    }


def test_a_layer_that_writes_over_its_input_is_judged_by_what_it_was_given() -> None:
    def own(inplace: bool) -> float | None:
        torch.manual_seed(0)
        model = network(circular(3, 4), nn.ReLU(inplace=inplace), circular(4, 4))
        reports = by_name(model, offsets=(Offset(0.5, 0.25),))
        return reports["1"].own

    assert own(inplace=True) == own(inplace=False)


class Keywords(nn.Module):
    """Calls its layers with tensors in keyword arguments, alone and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.sum = Scale(), Sum()
        self.head = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.sum(x, others=[self.alone(x=x)]).mean((2, 3)))  # type: ignore[no-any-return]


class Scale(nn.Module):
    """Exact."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Sum(nn.Module):
    """Exact as well."""

    def forward(self, x: Tensor, others: list[Tensor]) -> Tensor:
        return torch.stack([x, *others]).sum(0)


def test_tensors_in_keyword_arguments_are_shifted() -> None:
    reports = by_name(Keywords())
    for name in ("alone", "sum"):
        own = reports[name].own
        assert own is not None
        assert own < 1e-12


def test_every_call_of_a_shared_layer_is_judged() -> None:
    act = nn.ReLU()
    reports = by_name(network(act, circular(3, 4), act), offsets=(Offset(0.5, 0),))
    assert {"0", "0 (2)"} <= set(reports)
    assert reports["0"].own != reports["0 (2)"].own


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


def test_the_layers_inside_a_fused_stem_are_seen() -> None:
    reports = by_name(alias_free_xcit())
    for name in ("patch_embed.proj.0.0", "patch_embed.proj.0.1", "patch_embed.proj.1"):
        assert reports[name].own is not None
    assert reports["patch_embed.proj.1"].lattice == (8, 8)


def test_only_the_class_token_that_leaves_the_last_norm_counts() -> None:
    for model in (alias_free_xcit(), small_xcit()):
        norm = by_name(model, offsets=(Offset(0.5, 0.5),))["norm"]
        assert norm.lattice is None
        assert norm.own is not None
        assert norm.own < 1e-12  # each token is normalized by itself


def test_attention_between_channels_is_not_an_image() -> None:
    reports = by_name(alias_free_xcit(), offsets=(Offset(4, 8),))  # whole tokens
    attention = reports["blocks.0.attn.attn_drop"]
    assert attention.shape == (2, 8, 8)  # an image's shape
    assert attention.lattice is None
    assert attention.accumulated is not None
    assert attention.accumulated < 1e-12  # no shift of whole tokens changes it


class DeadEnds(nn.Module):
    """One layer leads nowhere, one is never called, and one works on a spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.aside, self.idle = circular(3, 4), circular(3, 4), circular(3, 4)
        self.spectral, self.head = nn.ReLU(), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        y = self.used(x)
        y = y + torch.fft.irfft2(self.spectral(torch.fft.rfft2(y).real).to(torch.complex128))
        return self.head(y.mean((2, 3)))  # type: ignore[no-any-return]


def test_what_could_not_be_judged_is_listed_with_the_reason() -> None:
    reports = audit(DeadEnds().double().eval(), images())
    assert unjudged(reports) == {UNREACHED: ["aside"], UNKNOWN: ["spectral"], UNCALLED: ["idle"]}
    assert {report.name for report in breakers(reports)}.isdisjoint({"aside", "spectral", "idle"})
    assert reports[-1].name == ""


def test_models_are_not_judged_by_the_operators_they_are_built_of() -> None:
    folder = Path(shiftbench.audit.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                operators = ("aft_models.layers", "aft_models.resample")
                assert not (node.module or "").startswith(operators), path.name


# --- causes ---------------------------------------------------------------------------------------


class Flattened(nn.Module):
    """A weight per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 16 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


class Windows(nn.Module):
    """Means over fixed windows: no layer inside, and different between the windows' places."""

    def forward(self, x: Tensor) -> Tensor:
        means = F.avg_pool2d(x, 4)
        return x - means.repeat_interleave(4, 2).repeat_interleave(4, 3)


CASES: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "zero padding": ("border", lambda: network(nn.Conv2d(3, 4, 3, padding=1))),
    "strided": ("sub-sampling", lambda: network(circular(3, 4, stride=2))),
    "strided with a border": (
        "sub-sampling",
        lambda: network(nn.Conv2d(3, 4, 3, stride=2, padding=1)),
    ),
    "patches": ("sub-sampling", lambda: network(nn.Conv2d(3, 4, 4, stride=4))),
    "max pooling": ("sub-sampling", lambda: network(nn.MaxPool2d(2), circular(3, 4))),
    "depth-wise": (
        "border",
        lambda: network(nn.Conv2d(3, 3, 3, padding=1, groups=3), circular(3, 4)),
    ),
    "wide kernel": ("border", lambda: network(nn.Conv2d(3, 4, 5, padding=2))),
    "activation": ("non-linearity", lambda: network(nn.ReLU(), circular(3, 4))),
    "windows": ("position", lambda: network(Windows(), circular(3, 4))),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_named(case: str) -> None:
    cause, make = CASES[case]
    first = audit(make(), images())[0]
    assert first.cause == cause
    assert first.own is not None
    assert first.border is not None
    assert first.interior is not None
    assert math.hypot(first.border, first.interior) == pytest.approx(first.own)
    assert (first.border > first.interior) == (cause == "border")


def test_a_classifier_of_flattened_maps_depends_on_the_position() -> None:
    reports = {r.name: r for r in audit(Flattened().double().eval(), images())}
    assert reports["fc"].cause == "position"


def test_circular_padding_is_the_remedy_of_the_border() -> None:
    report = audit(network(circular(3, 4)), images())[0]
    assert report.own is not None
    assert report.own < 1e-12
    assert report.cause is None


class Functional(nn.Module):
    """Its layers are exact; the code between them is not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = circular(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x))


def test_the_code_between_layers_is_blamed_on_what_contains_it() -> None:
    found = breakers(audit(network(Functional()), images()))
    assert [(report.name, report.cause) for report in found] == [("0", "non-linearity")]


# --- decibels -------------------------------------------------------------------------------------


def test_eq_t_against_its_definition() -> None:
    model = network(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    x, offsets = images(), (Offset(1, 0), Offset(-3, 2))
    report = next(r for r in audit(model, x, offsets=offsets) if r.name == "1")
    with torch.no_grad():
        still = model[:2](x)
        low, high = still.min(), still.max()

        def scaled(y: Tensor) -> Tensor:  # the range of the unshifted output is [-1, 1]
            return 2 * (y - low) / (high - low) - 1

        squared = []
        for offset in offsets:
            move = (-int(offset.dy), -int(offset.dx))
            difference = scaled(model[:2](x.roll(move, (2, 3)))) - scaled(still.roll(move, (2, 3)))
            squared += [float(value) ** 2 for value in difference.flatten()]
    slow = 20 * math.log10(2) - 10 * math.log10(sum(squared) / len(squared))
    assert report.eq_t == pytest.approx(slow)
    assert eq_t(1.0, 0.0) == math.inf


def test_the_table_has_a_row_per_report_and_a_column_per_field() -> None:
    reports = audit(network(circular(3, 4)), images())
    frame = to_frame(reports)
    assert list(frame["name"]) == [report.name for report in reports]
    assert frame.loc[0, ["shape", "lattice"]].tolist() == ["4x16x16", "16x16"]


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="B, C, H, W"):
        audit(network(circular(3, 4)), torch.zeros(0, 3, 8, 8))
    with pytest.raises(ModelError, match="eval mode"):
        audit(network(circular(3, 4)).train(), images())
