"""Laws of the layer audit: it blames the layers that break equivariance and no others."""

import pytest
import torch
from torch import Tensor, nn

from shiftbench.errors import DataError, ModelError
from shiftbench.grid import Offset
from shiftbench.measure.audit import audit
from shiftbench.measure.layer_report import breakers

INTEGER = (Offset(1, 0), Offset(-2, 3))


def circular(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, padding_mode="circular")


def images(height: int = 16, width: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, height, width, generator=generator, dtype=torch.float64)


def network(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
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


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="B, C, H, W"):
        audit(network(circular(3, 4)), torch.zeros(0, 3, 8, 8))
    with pytest.raises(ModelError, match="eval mode"):
        audit(network(circular(3, 4)).train(), images())
