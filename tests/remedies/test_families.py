"""Repaired networks of every family: remaining change under shifts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from repair_cases import calibrated
from shifted_models import changes, scene
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.densenet import DenseNet
from timm.models.efficientnet import EfficientNet
from timm.models.regnet import RegNet, RegNetCfg
from timm.models.resnet import Bottleneck, ResNet
from timm.models.vgg import VGG
from torch import Tensor, nn

from aft_models import repair

WHOLE = [(1, 0), (0, 1), (3, 2), (-5, 7), (31, 17)]


def _resnext() -> nn.Module:
    return ResNet(
        Bottleneck, (1, 1, 1, 1), num_classes=10, channels=(8, 16, 32, 64), cardinality=4,
        base_width=16,
    )  # fmt: skip


def _densenet() -> nn.Module:
    return DenseNet(growth_rate=8, block_config=(2, 2, 2, 2), num_classes=10)


def _vgg() -> nn.Module:
    cfg = [8, "M", 16, 16, "M", 32, "M"]  # a map of 7 pixels for an image of 56
    return VGG(cfg, norm_layer=nn.BatchNorm2d, mlp_ratio=0.02, num_classes=10)


def _mobilenet() -> nn.Module:
    blocks = ["ds_r1_k3_s1_c8", "ir_r2_k3_s2_e3_c12", "ir_r1_k3_s2_e3_c16", "ir_r1_k3_s2_e3_c24"]
    stages = decode_arch_def([[block] for block in blocks])
    return EfficientNet(stages, num_classes=10, num_features=64, act_layer=nn.ReLU6)


def _regnet() -> nn.Module:
    return RegNet(RegNetCfg(depth=6, w0=16, wa=20, wm=2, group_size=8), num_classes=10)


def _named(name: str) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=10)


# family: (constructor, side of an image that is a multiple of the total stride)
FAMILIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ResNet": (_named("test_resnet"), 64),
    "ResNeXt": (_resnext, 64),
    "MobileNetV2": (_mobilenet, 64),
    "MobileNetV3": (_named("mobilenetv3_small_050"), 64),
    "EfficientNet": (_named("test_efficientnet"), 64),
    "RegNet": (_regnet, 64),
    "ConvNeXt": (_named("test_convnext"), 64),
    "DenseNet": (_densenet, 64),
    "VGG": (_vgg, 56),
}


def case(family: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, side = FAMILIES[family]
    return build().double(), scene(side, side)


@pytest.mark.parametrize("family", FAMILIES)
def test_aps_families_invariant_to_integer_shifts(family: str) -> None:
    model, x = case(family)
    repaired = calibrated(repair(model, "circular+aps", input_size=x.shape[-1]), x)
    assert max(changes(repaired, x, WHOLE)) < 1e-6
    assert max(changes(calibrated(model, x), x, WHOLE)) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_af_families_nearly_invariant_to_half_pixel_shifts(family: str) -> None:
    torch.manual_seed(0)
    build, side = FAMILIES[family]
    side = side if family == "VGG" else 2 * side  # its head needs a map of 7 pixels
    model, x = build().double(), scene(side, side, count=4)
    halves = [(0.5, 0), (0, 0.5), (0.5, 0.5)]
    before = changes(calibrated(model, x), x, halves)
    torch.manual_seed(0)
    after = changes(calibrated(repair(model, "af", input_size=x.shape[-1]), x), x, halves)
    assert all(20 * b <= a for a, b in zip(before, after, strict=True))
