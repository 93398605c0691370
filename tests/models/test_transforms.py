"""Every image processor of transformers gives our pixels, or is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from shiftbench.errors import ModelError
from shiftbench.models import load_model
from shiftbench.models.transforms import learn
from shiftbench.preprocessing import Preprocessing, geometry_for, normalize

transformers = pytest.importorskip("transformers")

UNUSUAL = {  # processor -> why its images cannot be ours, with its default settings
    "DonutImageProcessor": "no square of fixed size",
    "MobileViTImageProcessor": "adds a border",
    "PerceiverImageProcessor": "in a way of its own",
    "Siglip2ImageProcessor": "yields no images",
    "TextNetImageProcessor": "no square of fixed size",
}


def classifiers() -> list[str]:
    """The processors of every image classification model."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    )

    processors = set()
    for kind in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind) or {}
        processors |= set(names.values() if isinstance(names, dict) else filter(None, names))
    return sorted(processors)


def photograph() -> Image.Image:
    """Fine and coarse structure; a size at which the rounding of the crop's corner is settled."""
    generator = np.random.default_rng(3)
    coarse = Image.fromarray(generator.integers(0, 256, (10, 15, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((480, 320), Image.Resampling.BICUBIC), dtype=np.float64)
    noisy = smooth + generator.normal(0, 20, smooth.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def prepared(recipe: Preprocessing, image: Image.Image) -> Tensor:
    canvas = geometry_for(recipe, crop_pct="model").canvas(image)
    return normalize(canvas[None], recipe.mean, recipe.std)


def difference(processor: Any, recipe: Preprocessing | None = None) -> Tensor:
    """Between their pixels and what the model sees of ours, in levels of 255."""
    model = nn.Identity()
    recipe = recipe or learn(processor, "hf:x", model)
    image = photograph()
    theirs = processor(images=image, return_tensors="pt")["pixel_values"].float()
    std: Tensor = model(torch.tensor(recipe.std).view(1, 3, 1, 1))
    return (theirs - model(prepared(recipe, image))).abs() * std * 255


@pytest.mark.parametrize("name", classifiers())
def test_every_processor_is_reproduced_or_refused(name: str) -> None:
    try:
        processor = getattr(transformers, name)()
    except (TypeError, ValueError) as error:
        pytest.skip(f"{name} cannot be built without its own settings: {error}")
    if "ImageGPT" in name:
        pytest.skip("quantizes colors to clusters that only its weights bring along")
    problem = UNUSUAL.get(name.removesuffix("Pil"))
    if problem is not None:
        with pytest.raises(ModelError, match=f"hf:x cannot be measured.*{name} .*{problem}"):
            learn(processor, "hf:x")
        return
    far = difference(processor)
    assert far.mean() < 0.5  # PIL and torch round a resize differently
    if name.endswith("Pil"):
        assert far.max() < 0.01


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("MobileViTImageProcessor", {"size": {"shortest_edge": 288}, "crop_size": 256}),
    ("MobileViTImageProcessor", {"size": 288, "crop_size": 256, "do_flip_channel_order": False}),
    ("EfficientNetImageProcessor", {"include_top": False}),
    ("EfficientNetImageProcessor", {"rescale_factor": 1 / 127.5, "rescale_offset": True}),
    ("EfficientNetImageProcessor", {"do_center_crop": True, "image_std": [0.47853944] * 3}),
    ("EfficientNetImageProcessor", {"do_normalize": False, "include_top": False}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "crop_pct": 0.9}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 64}, "resample": 2}),
    ("ViTImageProcessor", {"do_normalize": False}),
    ("ViTImageProcessor", {"do_normalize": False, "do_rescale": False}),
    ("ViTImageProcessor", {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}),
    ("BitImageProcessor", {"size": {"shortest_edge": 256}}),
    ("PoolFormerImageProcessor", {"crop_pct": 0.8}),
    ("LevitImageProcessor", {"size": {"shortest_edge": 160}, "crop_size": 160}),
]


@pytest.mark.parametrize("suffix", ["", "Pil"])
@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=str)
def test_settings_are_honored(name: str, settings: dict[str, Any], suffix: str) -> None:
    kind = getattr(transformers, name + suffix, None)
    if kind is None:
        pytest.skip(f"this version of transformers has no {name + suffix}")
    processor = kind(**settings)
    assert difference(processor).mean() < 0.5
    if "MobileViT" in name and settings.get("do_flip_channel_order", True):
        with pytest.raises(ModelError, match="reorders channels: do that in the model"):
            learn(processor, "hf:x")


def test_transforms_of_timm_behind_transformers() -> None:
    settings = {
        "input_size": (3, 96, 96),
        "crop_pct": 0.9,
        "crop_mode": "squash",
        "interpolation": "bicubic",
        "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6),
    }
    processor = transformers.TimmWrapperImageProcessor(pretrained_cfg=settings)
    recipe = learn(processor, "hf:x")
    assert (recipe.input_size, recipe.crop_mode, recipe.interpolation) == (96, "squash", "bicubic")
    assert difference(processor, recipe).max() < 0.01


@pytest.mark.parametrize("crop_pct", [0.95, 0.875, 0.9])
def test_an_odd_crop_begins_where_the_processor_begins_it(crop_pct: float) -> None:
    processor = transformers.ConvNextImageProcessorPil(
        size={"shortest_edge": 224}, crop_pct=crop_pct
    )
    recipe = learn(processor, "hf:x")
    assert recipe.crop_corner == "floor"
    for width in range(480, 484):  # 5.5 pixels on a side: 5 in transformers, 6 in torchvision
        image = photograph().resize((width, 320))
        theirs = processor(images=image, return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(prepared(recipe, image), theirs.float(), rtol=0, atol=1e-4)
    assert geometry_for(recipe).crop_corner == "round"  # one rule for every model


def test_a_changed_word_about_the_processor_would_be_seen() -> None:
    processor = transformers.DeiTImageProcessor()
    recipe = learn(processor, "hf:x")
    assert recipe.crop_mode == "squash"
    for change in ({"crop_mode": "center"}, {"crop_pct": 1.0}, {"mean": (0.4, 0.5, 0.5)}):
        assert difference(processor, Preprocessing(**{**vars(recipe), **change})).mean() > 2


def test_a_model_that_wants_blue_first_gets_it(tmp_path: Path) -> None:
    config = transformers.MobileViTConfig(
        image_size=64,
        hidden_sizes=[8, 8, 8],
        neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 8],
        num_attention_heads=1,
        id2label={0: "cat", 1: "dog", 2: "emu"},
    )
    torch.manual_seed(0)
    model = transformers.MobileViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    settings = {  # as on the hub: no word of mean, std or normalizing
        "feature_extractor_type": "MobileViTFeatureExtractor",
        "size": {"shortest_edge": 72},
        "crop_size": 64,
        "do_flip_channel_order": True,
        "resample": 2,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    loaded = load_model(f"hf:{tmp_path}")
    assert (loaded.name, loaded.source) == (f"hf:{tmp_path.name}", "huggingface")  # no local path
    recipe = loaded.preprocessing
    assert (recipe.mean, recipe.std, recipe.input_size) == ((0.0,) * 3, (1.0,) * 3, 64)
    assert loaded.class_names == ("cat", "dog", "emu")
    image = photograph()
    pixels = prepared(recipe, image)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pixels), model(pixels.flip(1)).logits)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    theirs = processor(images=image, return_tensors="pt")["pixel_values"]
    assert (theirs - pixels.flip(1)).abs().mean() < 0.5 / 255
