"""`FILE.py:FUNCTION`: any callable, with a mapping or a transform."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_images import picture
from timm.data import create_transform
from torchvision import transforms as T
from torchvision.transforms import v2

from aft_models.preprocessing import IMAGENET_MEAN, IMAGENET_STD, normalize
from shiftbench.errors import ModelError, ShiftbenchError
from shiftbench.geometry import geometry_for
from shiftbench.models import load_model
from shiftbench.models.transforms import read_preprocessing

FILE = """
import torch
from torch import nn
from torchvision import transforms as T

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 5))

TRANSFORM = T.Compose([T.Resize(40, T.InterpolationMode.BICUBIC), T.CenterCrop(32), T.ToTensor(),
                       T.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])])

def plain(): return net()
def nearest(): return net(), {"input_size": (3, 32, 32), "interpolation": "nearest"}
def classes(count): return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, count))
def failing(): raise ValueError("no weights here")
def number(): return 3
def not_a_classifier(): return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2))
def small(): return nn.Sequential(nn.Flatten(), nn.Linear(3 * 96 * 96, 5))
def sized(): return small(), {"input_size": 96}
def scalar(): return net(), {"input_size": 32, "mean": 0.5, "std": 0.25}
def wrong_mean(): return net(), {"mean": (1, 2)}
def no_std(): return net(), {"mean": 0.5, "std": 0}
def words(): return net(), "imagenet"
def compose(): return net(), TRANSFORM
def function(): return lambda images: net()(images), TRANSFORM
def nested(): return net(), T.Compose([TRANSFORM])
def plain_function(): return net(), lambda image: TRANSFORM(image)
def wide(): return net(), {"input_size": (32, 48)}
def wide_crop(): return net(), T.Compose([T.Resize((36, 60)), T.CenterCrop((32, 48)), T.ToTensor()])
def gray(): return net(), T.Compose([T.Grayscale(3), TRANSFORM])
def softmax(): return nn.Sequential(net(), nn.Softmax(1)), {"input_size": 32, "mean": 0, "std": 1}
def two(): return lambda x: {"embedding": x.mean((2, 3)), "scores": net()(x)}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("function", ["compose", "function", "nested"])
def test_python_transform_becomes_preprocessing(function: str, file: Path) -> None:
    model = load_model(f"{file}:{function}")
    recipe = model.preprocessing
    assert (recipe.size, recipe.interpolation, recipe.resize) == (32, "bicubic", 40)
    assert (recipe.mean, recipe.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


TRANSFORMS = [
    T.Compose([T.Resize((48, 48)), T.CenterCrop(32), T.ToTensor()]),
    T.Compose([T.Resize(32), T.CenterCrop(32), T.PILToTensor(), T.ConvertImageDtype(torch.float)]),
    T.Compose([T.CenterCrop(32), T.ToTensor()]),
    v2.Compose(
        [v2.ToImage(), v2.Resize(37), v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True)]
    ),
    create_transform((3, 32, 32), crop_pct=0.9, interpolation="lanczos", mean=(0.5,) * 3),
]


@pytest.mark.parametrize("transform", TRANSFORMS[:2] + TRANSFORMS[3:])
@pytest.mark.parametrize("size", [(61, 47), (47, 62), (100, 33)])
def test_transforms_of_libraries_give_equal_pixels(transform, size: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    recipe = read_preprocessing(transform, "net")
    canvas = geometry_for(recipe, crop_pct="model").canvas(picture(0, size))
    ours = normalize(canvas[None], recipe.mean, recipe.std)[0]
    theirs = transform(picture(0, size))
    assert ((ours - theirs).abs().mean() * recipe.std[0]) < 0.6 / 255


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("small", r"images of 224 x 224 .*return model, \{\"input_size\": 96\}"),
        ("wrong_mean", r"expected mean as one number or three, got \(1, 2\)"),
        ("no_std", "expected std of each channel above 0"),
        ("wide", r"expected square images, got \(32, 48\) pixels.*resize them inside it"),
        ("wide_crop", r"cannot express the Compose of net\.py:wide_crop .*got \(36, 60\) pixels"),
        ("words", "a mapping such as .* or as a transform from a PIL image to a tensor, got a str"),
        ("gray", "expected Resize, CenterCrop and Normalize, got Grayscale"),
        ("plain_function", "expected Resize, CenterCrop and Normalize, got function"),
        ("failing", "no weights here"),
        ("number", "expected a model from net.py:number .* got a int"),
        ("not_a_classifier", "is not a classifier: expected logits of shape"),
        ("plane", "unknown function of net.py 'plane'. Did you mean 'plain'"),
        ("two", r"several candidates \(embedding, scores\)\. Return them under the key 'logits'"),
    ],
)
def test_python_file_mistake_raises_in_one_line(function: str, words: str, file: Path) -> None:
    with pytest.raises(ShiftbenchError, match=words) as caught:
        load_model(f"{file}:{function}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (TRANSFORMS[2], "its pixels differ by"),
        (T.Compose([T.Resize((32, 32)), T.ToTensor(), T.RandomVerticalFlip()]), "RandomVertical"),
        (T.Compose([T.Resize(32), T.CenterCrop(32)]), "expected an image of shape"),
        (T.Compose([T.ToTensor()]), "to a fixed size, got none"),
        (T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor(), T.Normalize([9.0], [0.0])]), ""),
    ],
)
def test_transforms_that_cannot_be_expressed_raise(
    transform: Callable[..., Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=f"cannot express the Compose of net .*{reason}"):
        read_preprocessing(transform, "net")


def test_timm_transform_has_exact_mean_and_std() -> None:
    """Timm keeps them as float32 tensors: 0.229 must not become 0.22900000214."""
    read = read_preprocessing(create_transform((3, 32, 32)), "net")
    assert (read.mean, read.std) == (IMAGENET_MEAN, IMAGENET_STD)


def test_python_function_takes_options(file: Path) -> None:
    model = load_model(f"{file}:classes,count=9")
    assert (model.name, model.num_classes) == ("net.py:classes,count=9", 9)
    recipe = load_model(f"{file}:nearest").preprocessing
    assert (recipe.input_size, recipe.interpolation) == (32, "nearest")
    assert load_model(f"{file}:sized").preprocessing.input_size == 96
    recipe = load_model(f"{file}:scalar").preprocessing
    assert (recipe.mean, recipe.std, recipe.origin) == ((0.5,) * 3, (0.25,) * 3, "given")


def test_python_assumed_mean_is_warned_of_once(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert load_model(f"{file}:plain").preprocessing.origin == "assumed"
    assert "net.py:plain names no mean and std: ImageNet's are assumed" in caplog.text
    caplog.clear()
    load_model(f"{file}:scalar")
    assert caplog.text == ""


def test_python_probabilities_become_logits(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load_model(f"{file}:softmax")
    assert "returns probabilities" in caplog.text
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        plain = load_model(f"{file}:scalar")(images)
        torch.testing.assert_close(model(images), plain.log_softmax(1))
