"""Equivariance of models: change of the logits under shifts of the image.

Random weights, batch norms in evaluation mode with statistics of the image itself, float64.
"""

from __future__ import annotations

import pytest
import torch
from shifted_models import changes, scene
from torch import Tensor, nn

from aft_models import create_xcit
from aft_models.layers import fractional_shift

SHIFTS = [(1, 0), (0, 3), (5, 7), (0.5, 0), (0.5, 0.5)]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def calibrated(name: str, x: Tensor, **switches: object) -> nn.Module:
    """Build a random model in float64 whose batch norms have the statistics of ``x``."""
    model = create_xcit(name, num_classes=10, img_size=x.shape[-2:], **switches).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # statistics of exactly these batches
    with torch.no_grad():
        # A fresh polynomial or GELU network is nearly linear: scale the weights.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
        model.train()(x)
    return model.eval()


EVERY_PIXEL = [(1, 0), (0, 1), (3, 2), (-5, 7), (2, 2), (13, -1)]


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize("variant", ["aps", "aps_avgpool"])
def test_aps_models_invariant_to_integer_shifts(variant: str, size: tuple[int, int]) -> None:
    x = scene(*size)
    model = calibrated(f"xcit_pico_6_p4_{variant}", x)
    assert max(changes(model, x, EVERY_PIXEL)) < 1e-12
    assert min(changes(model, x, [(0.5, 0.5)])) > 1e-4


def test_aps_predictions_invariant_in_single_precision() -> None:
    x = scene(32, 32, count=16)
    model = calibrated("xcit_pico_6_p8_aps", x).float()
    still = model(x.float()).argmax(1)
    for shift in EVERY_PIXEL:
        assert torch.equal(model(fractional_shift(x.float(), *shift)).argmax(1), still)


@pytest.mark.parametrize("variant", ["af", "aftext", "af_avgpool"])
def test_alias_free_models_nearly_invariant_to_shifts(variant: str) -> None:
    x = scene(64, 48)
    model = calibrated(f"xcit_pico_6_p8_{variant}", x)
    residue = max(changes(model, x, SHIFTS))
    assert residue < 2e-2  # on a grid of 8 x 6 tokens; a larger image has a smaller residue
    assert max(changes(model, x, [(8, 0), (-16, 24)])) < 1e-12
    baseline = calibrated("xcit_pico_6_p8", x)
    assert min(changes(baseline, x, SHIFTS[:3])) > 5 * residue


def test_alias_free_residue_decreases_with_up_factor() -> None:
    x = scene(64, 64, count=1)
    left = [max(changes(calibrated("xcit_pico_6_p8_af", x, up=up), x, SHIFTS)) for up in (2, 3, 4)]
    assert left[1] < left[0] / 3
    assert left[2] < left[1] / 3


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_polynomial_models_invariant_to_every_shift(size: tuple[int, int]) -> None:
    x = scene(*size)
    model = calibrated("xcit_pico_6_p8_af_poly", x)
    offsets = [*SHIFTS, (0.27, -1.81), (3.1, 0.01)]
    assert max(changes(model, x, offsets)) < 1e-9


@pytest.mark.parametrize(
    ("size", "switches"),
    [((32, 32), {"attention": "linear"}), ((32, 32), {"attention": "sima"}), ((20, 28), {})],
)
def test_other_attentions_and_odd_grids_are_invariant(
    size: tuple[int, int], switches: dict[str, str]
) -> None:
    x = scene(*size)
    model = calibrated("xcit_pico_6_p4_af", x, **switches)
    assert max(changes(model, x, [(4, 0), (-8, 12)])) < 1e-12
    assert max(changes(model, x, SHIFTS)) < 1e-2


def test_nano_models_invariant_at_full_size() -> None:
    x = scene(224, 224, count=1)
    model = calibrated("xcit_nano_12_p16_af", x)
    assert max(changes(model, x, [(1, 0), (0.5, 0.5)])) < 1e-2
    assert max(changes(model, x, [(16, 32)])) < 1e-12


@pytest.mark.slow
def test_nano_models_residue_at_full_size_for_every_up_factor() -> None:
    x = scene(224, 224, count=1)
    left = [
        max(changes(calibrated("xcit_nano_12_p16_af", x, up=up), x, SHIFTS)) for up in (2, 3, 4)
    ]
    assert left[0] < 1e-2
    assert left[1] < left[0] / 4
    assert left[2] < left[1] / 4
    baseline = calibrated("xcit_nano_12_p16", x)
    assert max(changes(baseline, x, SHIFTS)) > 10 * left[0]
