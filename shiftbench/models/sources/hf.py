"""`hf:REPO_OR_DIR`: image classifiers of the transformers library."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from aft_models.preprocessing import ASSUMED, Preprocessing, cropped_from, square
from shiftbench.errors import ModelError
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request, hub_access
from shiftbench.models.transforms import read_preprocessing

# Networks that are built without a download: class of the configuration, and its values.
KNOWN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "microsoft/cvt-13": (
        "CvtConfig",
        {
            "embed_dim": [64, 192, 384],
            "depth": [1, 2, 10],
            "num_heads": [1, 3, 6],
            "num_labels": 1000,
        },
    ),
}


def build(name: ModelName, request: Request) -> Built:
    """Build a classifier of transformers; weights without its head are an error."""
    library = transformers_library(name)
    kind = library.AutoModelForImageClassification
    pretrained, options = request.take_pretrained(name.text)
    if not pretrained and name.name in KNOWN and not Path(name.name).is_dir():
        title, values = KNOWN[name.name]
        network = kind.from_config(getattr(library, title)(**{**values, **options}))
        resize = cropped_from(224, 0.875)
        return Built(network, Preprocessing(224, interpolation="bicubic", resize=resize))
    with nullcontext() if Path(name.name).is_dir() else hub_access():
        if pretrained:
            network = load_pretrained(kind, name, options)
        else:
            config = _load_config(library, name, options)
            if request.size is not None and hasattr(config, "image_size"):
                config.image_size = request.size
            network = kind.from_config(config)
        preprocessing = load_processor(name, network.config)
    labels = getattr(network.config, "id2label", None) or {}
    names = tuple(str(labels[index]) for index in sorted(labels))
    numbered = all(label.startswith("LABEL_") for label in names)
    return Built(network, preprocessing, () if numbered else names)


def _load_config(library: Any, name: ModelName, options: Mapping[str, Any]) -> Any:
    try:
        return library.AutoConfig.from_pretrained(name.name, **options)
    except OSError as error:
        raise ModelError(
            f"cannot read the configuration of {name.text}: there is no folder or repository "
            f"{name.name}, or no connection to it. Name a folder that contains config.json: "
            "hf:FOLDER"
        ) from error


def transformers_library(name: ModelName) -> Any:
    """Import the library."""
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{name.text} needs the transformers library: pip install 'shiftbench[hf]'"
        ) from error
    return transformers


def load_pretrained(kind: Any, name: ModelName, options: Mapping[str, Any]) -> Any:
    """Load a model with all its weights; `kind` is an automatic class of transformers."""
    from transformers.utils import logging as output

    shown, level = output.is_progress_bar_enabled(), output.get_verbosity()
    output.disable_progress_bar()
    output.set_verbosity_error()  # keys that do not fit are reported below
    try:
        model, report = kind.from_pretrained(
            name.name,
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
            f"the weights of {name.text} do not fit its config.json: {', '.join(shapes[:4])}"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{name.text} has no trained weights for {', '.join(missing[:4])}: choose a model that "
            "was trained for this task"
        )
    return model


def load_processor(name: ModelName, config: Any) -> Preprocessing:
    """Read the image processor of a repository or folder, or assume ImageNet's preprocessing."""
    from transformers import AutoImageProcessor
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        ImageProcessingMixin.get_image_processor_dict(name.name)
    except OSError:
        return Preprocessing(square(getattr(config, "image_size", 224)), origin=ASSUMED)
    processor = AutoImageProcessor.from_pretrained(name.name, trust_remote_code=False)
    return read_preprocessing(processor, name.text)


def pooled(output: Any) -> Tensor:
    """Return the features of a tower; since version 5 transformers returns them in an object."""
    return output if isinstance(output, Tensor) else output.pooler_output
