"""Replacement of the last layer of any classifier."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from aft_models import AftModelsError, create_xcit
from aft_models.checkpoint import load_backbone
from aft_models.classifier import classifier_names, replace_classifier


class Wrapped(nn.Module):
    """Model inside another one, without the name of its classifier."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        return self.inner(images.roll(1, -1))  # type: ignore[no-any-return]


class HeadFirst(nn.Module):
    """Model whose classifier is the first module by name, and the last to run."""

    def __init__(self) -> None:
        super().__init__()
        self.a_head = nn.Linear(6, 10)
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Dropout(), nn.ReLU())
        self.unused = nn.Linear(10, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        return self.a_head(self.body(images).mean((2, 3)))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "xcit": (lambda: create_xcit("xcit_pico_6_p8_af", depth=1, num_classes=10), ("head",)),
    "timm convolutional": (
        lambda: timm.create_model("mobilenetv3_small_050", num_classes=10),
        ("classifier",),
    ),
    "timm nested": (lambda: timm.create_model("convnext_atto", num_classes=10), ("head.fc",)),
    "timm distilled": (
        lambda: timm.create_model(
            "deit_tiny_distilled_patch16_224", img_size=32, depth=1, num_classes=10
        ),
        ("head", "head_dist"),
    ),
    "timm wrapped": (
        lambda: Wrapped(timm.create_model("mobilenetv3_small_050", num_classes=10)),
        ("inner.classifier",),
    ),
    "torchvision": (lambda: torchvision.models.resnet18(num_classes=10), ("fc",)),
    "torchvision nested": (
        lambda: torchvision.models.mobilenet_v3_small(num_classes=10),
        ("classifier.3",),
    ),
    "torchvision with a convolution": (
        lambda: torchvision.models.squeezenet1_1(num_classes=10),
        ("classifier.1",),
    ),
    "plain": (HeadFirst, ("a_head",)),
}


@pytest.mark.parametrize(("build", "names"), MODELS.values(), ids=MODELS)
def test_replace_classifier_changes_last_layer_only(
    build: Callable[[], nn.Module], names: tuple[str, ...]
) -> None:
    model = build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    assert classifier_names(model, size=32) == names
    assert not replace_classifier(model, 10, size=32)
    assert replace_classifier(model, 7, size=32)
    assert {name: module.training for name, module in model.named_modules()} == modes
    heads = tuple(f"{name}." for name in names)
    for key, value in model.state_dict().items():
        assert key.startswith(heads) or torch.equal(value, before[key]), key
    assert model.state_dict().keys() == before.keys()
    assert model.eval()(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert getattr(model, "num_classes", 7) == 7


def test_load_backbone_skips_classifier_of_other_classes() -> None:
    source, target, same = (create_xcit("xcit_pico_6_p8", num_classes=n) for n in (10, 12, 10))
    weights, before = source.state_dict(), target.state_dict()
    head = {key: value.clone() for key, value in before.items() if key.startswith("head.")}
    assert load_backbone(target, weights) == ["head.bias", "head.weight"]
    for key, value in target.state_dict().items():
        assert torch.equal(value, head[key] if key in head else weights[key]), key
    assert load_backbone(same, weights) == []
    assert torch.equal(same.state_dict()["head.weight"], weights["head.weight"])
    changed = {key: value + 1 for key, value in weights.items()}
    del changed["cls_token"]
    with pytest.raises(AftModelsError, match=r"the model: 1 missing \(cls_token\)"):
        load_backbone(same, changed)
    assert all(torch.equal(weights[k], v) for k, v in same.state_dict().items()), "whole or not"


def test_replace_classifier_keeps_double_precision() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 10, bias=False)).double()
    assert replace_classifier(model, 3, size=4)
    assert model[1].weight.dtype == torch.float64
    assert model[1].bias is None


def test_replace_classifier_timm_model_without_linear_layer() -> None:
    model = timm.create_model("mobilenetv3_small_050", num_classes=10)
    model.classifier = nn.Sequential(nn.Dropout(), model.classifier)
    assert not replace_classifier(model, 10)
    assert replace_classifier(model, 7)
    assert model.eval()(torch.rand(1, 3, 32, 32)).shape == (1, 7)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (nn.Sequential(nn.Flatten()), "Sequential has no linear layer with its 48 outputs"),
        (nn.Conv2d(3, 5, 1), r"expected logits \(batch, classes\) from Conv2d, got \(1, 5, 4, 4\)"),
    ],
)
def test_replace_classifier_without_linear_layer_raises(model: nn.Module, complaint: str) -> None:
    with pytest.raises(AftModelsError, match=complaint):
        replace_classifier(model, 3, size=4)
