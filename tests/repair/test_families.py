"""Repaired networks of every family: what a shift may still change."""

from __future__ import annotations

import pytest
import torch
from repair_cases import FAMILIES, calibrated
from shifted_models import changes, scene
from torch import Tensor, nn

from aft_models import repair

WHOLE = [(1, 0), (0, 1), (3, 2), (-5, 7), (31, 17)]


def case(family: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, side = FAMILIES[family]
    return build().double(), scene(side, side)


@pytest.mark.parametrize("remedy", ["aps", "lps"])
@pytest.mark.parametrize("family", FAMILIES)
def test_polyphase_sampling_ignores_whole_pixels(family: str, remedy: str) -> None:
    model, x = case(family)
    repaired = calibrated(repair(model, "circular", remedy, image=x[:1]), x)
    assert max(changes(repaired, x, WHOLE)) < 1e-6
    assert max(changes(calibrated(model, x), x, WHOLE)) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_alias_free_networks_hardly_see_half_a_pixel(family: str) -> None:
    torch.manual_seed(0)
    build, side = FAMILIES[family]
    side = side if family == "VGG" else 2 * side  # its head wants a map of 7 pixels
    model, x = build().double(), scene(side, side, count=4)
    halves = [(0.5, 0), (0, 0.5), (0.5, 0.5)]
    before = changes(calibrated(model, x), x, halves)
    torch.manual_seed(0)
    after = changes(calibrated(repair(model, "af", image=x[:1]), x), x, halves)
    assert all(20 * b <= a for a, b in zip(before, after, strict=True))
