"""Small members of the families that the laws of repair are held to."""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.densenet import DenseNet
from timm.models.efficientnet import EfficientNet
from timm.models.regnet import RegNet, RegNetCfg
from timm.models.resnet import Bottleneck, ResNet
from timm.models.vgg import VGG
from torch import Tensor, nn


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


# family: (how to make one, side of an image that its total stride divides)
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


def calibrated(model: nn.Module, x: Tensor) -> nn.Module:
    """In float64, with batch norms that know the statistics of ``x`` and no branch switched off."""
    model = model.double()
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gamma"):  # layer scale begins near zero
                parameter.uniform_(0.5, 1)
            elif "mlp.fc" in name and parameter.ndim > 1:  # and a narrow GELU is nearly linear
                nn.init.kaiming_normal_(parameter)
        for norm in norms:  # and so does the last norm of many a residual branch
            norm.weight.uniform_(0.5, 1)
            norm.momentum = None  # statistics of exactly the batches seen
            norm.reset_running_stats()
        model.train()(x)
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()
