"""`hf:REPO_OR_DIR`: image classifiers of the transformers library."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from shiftbench.errors import ModelError
from shiftbench.models.blueprint import Blueprint
from shiftbench.models.classifier import Classifier, square
from shiftbench.models.hf_processor import Learned, learn
from shiftbench.models.source import SOURCES, ModelEntry, ModelSpec, building
from shiftbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

log = logging.getLogger(__name__)


class HuggingFaceSource:
    """Image classifiers from the hub or from a local folder."""

    def load(self, spec: ModelSpec) -> Classifier:
        """Loads a transformers classifier; weights that lack its head are refused."""
        library = _transformers(spec)
        with building(spec, hub=not Path(spec.name).is_dir()):
            model, report = library.AutoModelForImageClassification.from_pretrained(
                spec.name, output_loading_info=True, weights_only=True, **spec.options
            )
            if report["missing_keys"]:
                missing = ", ".join(sorted(report["missing_keys"])[:4])
                raise ModelError(
                    f"{spec.text} has no trained weights for {missing}: choose a model that "
                    "was fine-tuned for classification"
                )
            return _blueprint(spec, model).classifier()

    def build(self, spec: ModelSpec) -> Blueprint:
        """Builds a classifier from its configuration alone."""
        library = _transformers(spec)
        with building(spec, hub=not Path(spec.name).is_dir()):
            config = library.AutoConfig.from_pretrained(spec.name, **spec.options)
            if spec.size is not None and hasattr(config, "image_size"):
                config.image_size = spec.size
            return _blueprint(spec, library.AutoModelForImageClassification.from_config(config))

    def entries(self) -> Iterable[ModelEntry]:
        """Nothing: the hub is not asked."""
        return ()


def _transformers(spec: ModelSpec) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{spec.text} needs the transformers library: pip install 'shiftbench[hf]'"
        ) from error
    return transformers


def _blueprint(spec: ModelSpec, model: Any) -> Blueprint:
    learned = _preprocessing(spec, model.config)
    if learned.is_reordered:
        model.register_forward_pre_hook(_Reordered(tuple(learned.channels)))
    local = Path(spec.name).is_dir()
    architecture = f"hf:{Path(spec.name).resolve().name if local else spec.name}"
    return Blueprint(
        model,
        learned.preprocessing,
        name=architecture if local else spec.text,
        architecture=architecture,
        source="huggingface",
        class_names=_class_names(model.config),
    )


@dataclass(frozen=True)
class _Reordered:
    """For a model whose images have their channels in another order than red, green, blue."""

    channels: tuple[int, ...]

    def __call__(self, _: nn.Module, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first, *rest = images
        return first[:, list(self.channels)], *rest


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
