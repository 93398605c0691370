"""Image processors of transformers: equal pixels, or an error in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from aft_models.preprocessing import Preprocessing, normalize
from shiftbench.errors import ModelError
from shiftbench.geometry import geometry_for
from shiftbench.models import load_model
from shiftbench.models.transforms import read_preprocessing

transformers = pytest.importorskip("transformers")

# Processors that resize, crop or color in another way with their default settings.
INEXPRESSIBLE = (
    "DonutImageProcessor",
    "MobileViTImageProcessor",
    "PerceiverImageProcessor",
    "PPLCNetImageProcessor",
    "Siglip2ImageProcessor",
    "TextNetImageProcessor",
)


def classifiers() -> list[str]:
    """List the processors of all image classification models."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    )

    processors = set()
    for kind in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind) or {}
        processors |= set(names.values() if isinstance(names, dict) else filter(None, names))
    return sorted(processors)


def natural_image() -> Image.Image:
    """Draw fine and coarse structure, in a size without a half-pixel corner of the crop."""
    generator = np.random.default_rng(3)
    coarse = Image.fromarray(generator.integers(0, 256, (10, 15, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((480, 320), Image.Resampling.BICUBIC), dtype=np.float64)
    noisy = smooth + generator.normal(0, 20, smooth.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def prepared(recipe: Preprocessing, image: Image.Image) -> Tensor:
    canvas = geometry_for(recipe, crop_pct="model").canvas(image)
    return normalize(canvas[None], recipe.mean, recipe.std)


def difference(processor: Any, recipe: Preprocessing | None = None) -> Tensor:
    """Return the difference between a processor and its fields, in levels of 255."""
    recipe = recipe or read_preprocessing(processor, "hf:x")
    image = natural_image()
    theirs = processor(images=image, return_tensors="pt")["pixel_values"].float()
    theirs = theirs.flip(1) if recipe.bgr else theirs
    std = torch.tensor(recipe.std).view(1, 3, 1, 1)
    return (theirs - prepared(recipe, image)).abs() * std * 255


@pytest.mark.parametrize("name", classifiers())
def test_processor_default_settings_equal_pixels_or_raise(name: str) -> None:
    try:
        processor = getattr(transformers, name)()
    except (TypeError, ValueError) as error:
        pytest.skip(f"{name} cannot be built without its own settings: {error}")
    if "ImageGPT" in name:
        pytest.skip("quantizes colors to clusters that only its weights bring along")
    if name.removesuffix("Pil") in INEXPRESSIBLE:
        with pytest.raises(ModelError, match=f"cannot express the {name} of hf:x as"):
            read_preprocessing(processor, "hf:x")
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
def test_processor_settings_equal_pixels(name: str, settings: dict[str, Any], suffix: str) -> None:
    kind = getattr(transformers, name + suffix, None)
    if kind is None:
        pytest.skip(f"this version of transformers has no {name + suffix}")
    processor = kind(**settings)
    assert difference(processor).mean() < 0.5
    blue_first = "MobileViT" in name and settings.get("do_flip_channel_order", True)
    assert read_preprocessing(processor, "hf:x").bgr == blue_first


def test_timm_wrapper_processor_equal_pixels() -> None:
    settings = {
        "input_size": (3, 96, 96),
        "crop_pct": 0.9,
        "crop_mode": "squash",
        "interpolation": "bicubic",
        "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6),
    }
    processor = transformers.TimmWrapperImageProcessor(pretrained_cfg=settings)
    recipe = read_preprocessing(processor, "hf:x")
    assert (recipe.size, recipe.squash, recipe.interpolation) == (96, True, "bicubic")
    assert difference(processor, recipe).max() < 0.01


@pytest.mark.parametrize("crop_pct", [0.95, 0.875, 0.9])
def test_odd_crop_is_accepted_and_rounded(crop_pct: float) -> None:
    """Transformers rounds the corner of an odd crop down; one rule applies to every model."""
    processor = transformers.ConvNextImageProcessorPil(
        size={"shortest_edge": 224}, crop_pct=crop_pct
    )
    recipe = read_preprocessing(processor, "hf:x")
    assert (recipe.size, recipe.resize) == (224, int(224 / crop_pct))
    image = natural_image().resize((320, 320))
    theirs = processor(images=image, return_tensors="pt")["pixel_values"][0].float()
    canvas = geometry_for(recipe, crop_pct="model", margin=1).canvas(image)
    first = 1 if (recipe.resize - 224) % 4 != 3 else 0  # 5.5 pixels: 5 there, 6 here
    view = canvas[:, first : first + 224, first : first + 224]
    ours = normalize(view[None], recipe.mean, recipe.std)[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_difference_notices_every_changed_field() -> None:
    processor = transformers.DeiTImageProcessor()
    recipe = read_preprocessing(processor, "hf:x")
    assert recipe.squash
    for change in ({"squash": False}, {"resize": 224}, {"mean": (0.4, 0.5, 0.5)}):
        assert difference(processor, Preprocessing(**{**vars(recipe), **change})).mean() > 2


def test_hf_model_takes_blue_first(tmp_path: Path) -> None:
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
    settings = {  # as on the hub: without mean, std and normalization
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
    assert (recipe.mean, recipe.std, recipe.size, recipe.bgr) == ((0.0,) * 3, (1.0,) * 3, 64, True)
    assert loaded.class_names == ("cat", "dog", "emu")
    image = natural_image()
    pixels = prepared(recipe, image)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pixels), model(pixels.flip(1)).logits)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    theirs = processor(images=image, return_tensors="pt")["pixel_values"]
    assert (theirs - pixels.flip(1)).abs().mean() < 0.5 / 255
