"""`hf:REPO_OR_DIR`: image classifiers of the transformers library."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from aft_models.weights import state_dict_digest
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
from shiftbench.models.hf_processor import Learned, learn
from shiftbench.models.source import SOURCES, ModelEntry, ModelSpec, building

log = logging.getLogger(__name__)


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
            learned = _preprocessing(spec, model.config)
            return as_classifier(
                _Reordered(model, learned.channels).eval() if learned.is_reordered else model,
                learned.preprocessing,
                name=name,
                source="huggingface",
                digest=state_dict_digest(model.state_dict()),
                class_names=_class_names(model.config),
            )

    def entries(self) -> Iterable[ModelEntry]:
        """Nothing: the hub is not asked."""
        return ()


class _Reordered(nn.Module):
    """A model for images whose channels come in another order than red, green, blue."""

    def __init__(self, model: nn.Module, channels: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.channels = list(channels)

    def forward(self, images: Tensor) -> Any:
        return self.model(images[:, self.channels])


def _preprocessing(spec: ModelSpec, config: Any) -> Learned:
    from transformers import AutoImageProcessor
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        ImageProcessingMixin.get_image_processor_dict(spec.name)
    except OSError:
        size = getattr(config, "image_size", 224)
        log.warning(
            "%s has no preprocessor_config.json: taking ImageNet's mean and std at %s pixels",
            spec.text,
            size,
        )
        return Learned(Preprocessing(square(size), IMAGENET_MEAN, IMAGENET_STD))
    processor = AutoImageProcessor.from_pretrained(spec.name, trust_remote_code=False)
    return learn(processor, spec.text)


def _class_names(config: Any) -> tuple[str, ...]:
    """The classes by index; none where they are only numbered."""
    labels = getattr(config, "id2label", None) or {}
    names = tuple(str(labels[index]) for index in sorted(labels))
    return () if all(name.startswith("LABEL_") for name in names) else names


SOURCES.register("hf", HuggingFaceSource())
