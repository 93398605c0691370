"""`hf:REPO_OR_DIR`: image classifiers of the transformers library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from shiftbench.errors import ModelError
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.names import ModelSpec
from shiftbench.models.sources import building
from shiftbench.models.transforms import learn
from shiftbench.preprocessing import Preprocessing, square


def load(spec: ModelSpec) -> Classifier:
    """Loads a transformers classifier; weights that lack its head are refused."""
    library = transformers_library(spec)
    kind = library.AutoModelForImageClassification
    with building(spec, hub=not Path(spec.name).is_dir()):
        if spec.pretrained:
            model, _ = load_pretrained(kind, spec, spec.options)
        else:
            config = library.AutoConfig.from_pretrained(spec.name, **spec.options)
            if spec.size is not None and hasattr(config, "image_size"):
                config.image_size = spec.size
            model = kind.from_config(config)
        labels = getattr(model.config, "id2label", None) or {}
        names = tuple(str(labels[index]) for index in sorted(labels))
        return as_classifier(
            model,
            spec.sized(load_processor(spec, model.config, model)),
            name=spec.public_name(),
            source="huggingface",
            # None where the classes are only numbered.
            class_names=() if all(name.startswith("LABEL_") for name in names) else names,
        )


def transformers_library(spec: ModelSpec) -> Any:
    """The library, or an error that names the extra."""
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{spec.text} needs the transformers library: pip install 'shiftbench[hf]'"
        ) from error
    return transformers


def load_pretrained(
    kind: Any, spec: ModelSpec, options: Mapping[str, Any], *, optional: str = ""
) -> tuple[Any, bool]:
    """Loads a model with all its weights, and says whether it has the optional ones.

    `kind` is one of transformers' automatic classes; weights whose names begin with `optional` may
    be missing.
    """
    from transformers.utils import logging as output

    shown, level = output.is_progress_bar_enabled(), output.get_verbosity()
    output.disable_progress_bar()  # of weights that are read from the disk
    output.set_verbosity_error()  # what does not fit is said below
    try:
        model, report = kind.from_pretrained(
            spec.name,
            output_loading_info=True,
            weights_only=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    finally:
        output.set_verbosity(level)
        if shown:
            output.enable_progress_bar()
    shapes = [
        f"{key} {tuple(theirs)} instead of {tuple(ours)}"
        for key, theirs, ours in sorted(report["mismatched_keys"])
    ]
    if shapes:
        raise ModelError(
            f"the weights of {spec.text} do not fit its config.json: {', '.join(shapes[:4])}"
        )
    missing = sorted(report["missing_keys"])
    needed = [key for key in missing if not optional or not key.startswith(optional)]
    if needed:
        raise ModelError(
            f"{spec.text} has no trained weights for {', '.join(needed[:4])}: choose a model that "
            "was trained for what it is used for here"
        )
    return model, not missing


def load_processor(spec: ModelSpec, config: Any, model: Any = None) -> Preprocessing:
    """What the image processor of a repository or folder does, or ImageNet's custom."""
    from transformers import AutoImageProcessor
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        ImageProcessingMixin.get_image_processor_dict(spec.name)
    except OSError:
        return Preprocessing(square(getattr(config, "image_size", 224)), origin="assumed")
    processor = AutoImageProcessor.from_pretrained(spec.name, trust_remote_code=False)
    return learn(processor, spec.text, model)


def pooled(output: Any) -> Tensor:
    """The features of a tower; since version 5 transformers returns them in an object."""
    return output if isinstance(output, Tensor) else output.pooler_output
