"""`hf:REPO_OR_DIR`: image classifiers of the transformers library."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shiftbench.errors import ModelError
from shiftbench.models.checkpoint import load_state, read_state_dict
from shiftbench.models.classifier import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Classifier,
    Preprocessing,
    as_classifier,
    square,
)
from shiftbench.models.source import SOURCES, ModelEntry, ModelSpec, building

log = logging.getLogger(__name__)

# PIL's numbers for the filters, which is how preprocessor_config.json writes them.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


class HuggingFaceSource:
    """Image classifiers from the hub or from a local folder."""

    def load(self, spec: ModelSpec) -> Classifier:
        """Loads a transformers classifier; weights that lack its head are refused."""
        try:
            from transformers import AutoConfig, AutoModelForImageClassification
        except ImportError as error:
            raise ModelError(
                f"{spec.text} needs the transformers library: pip install 'shiftbench[hf]'"
            ) from error
        local = Path(spec.name).is_dir()
        name = f"hf:{Path(spec.name).resolve().name}" if local else spec.text
        with building(spec, hub=not local):
            if spec.checkpoint is not None:
                config = AutoConfig.from_pretrained(spec.name, **spec.options)
                model = AutoModelForImageClassification.from_config(config)
                load_state(model, read_state_dict(spec.checkpoint), origin=str(spec.checkpoint))
            else:
                model, report = AutoModelForImageClassification.from_pretrained(
                    spec.name, output_loading_info=True, weights_only=True, **spec.options
                )
                if report["missing_keys"]:
                    missing = ", ".join(sorted(report["missing_keys"])[:4])
                    raise ModelError(
                        f"{spec.text} has no trained weights for {missing}: choose a model that "
                        "was fine-tuned for classification"
                    )
            recipe = _preprocessing(spec, model.config)
            return as_classifier(model, recipe, name=name, source="huggingface")

    def entries(self) -> Iterable[ModelEntry]:
        """Nothing: the hub is not asked."""
        return ()


def _preprocessing(spec: ModelSpec, config: Any) -> Preprocessing:
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        content, _ = ImageProcessingMixin.get_image_processor_dict(spec.name)
    except OSError:
        size = getattr(config, "image_size", 224)
        log.warning(
            "%s has no preprocessor_config.json: taking ImageNet's mean and std at %s pixels",
            spec.text,
            size,
        )
        return Preprocessing(square(size), IMAGENET_MEAN, IMAGENET_STD)
    size, view = _side(content.get("size", 224)), _side(content.get("crop_size"))
    crops = bool(content.get("do_center_crop")) and view is not None
    crop_pct = float(content.get("crop_pct") or (view / size if crops and view and size else 1.0))
    normalises = content.get("do_normalize", True)
    return Preprocessing(
        input_size=(view if crops else size) or 224,
        mean=tuple(content.get("image_mean") or IMAGENET_MEAN) if normalises else (0.0,) * 3,
        std=tuple(content.get("image_std") or IMAGENET_STD) if normalises else (1.0,) * 3,
        interpolation=FILTERS.get(int(content.get("resample", 2)), "bilinear"),
        crop_pct=crop_pct,
    )


def _side(size: int | Mapping[str, int] | None) -> int | None:
    """The side in pixels, from the three ways transformers writes a size."""
    if size is None or isinstance(size, int):
        return size
    if "shortest_edge" in size:
        return int(size["shortest_edge"])
    return square((size["height"], size["width"]))


SOURCES.register("hf", HuggingFaceSource())
