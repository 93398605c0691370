"""`zeroshot:MODEL[,prompt='a photo of a {}']`: CLIP and SigLIP kinds name the classes of the data.

Class names become prompts, prompts become features once, and images are classified by similarity:
the logits are the scaled similarities. MODEL is a repository or folder of transformers, or
`open_clip:NAME,pretrained=TAG`. Several prompts, `prompt=('a photo of a {}','a drawing of a {}')`,
are averaged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aft_models.weights import state_dict_digest
from shiftbench.errors import ModelError, UsageError
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.names import ModelSpec
from shiftbench.models.sources import building
from shiftbench.models.sources.hf import (
    load_pretrained,
    load_processor,
    pooled,
    transformers_library,
)
from shiftbench.models.transforms import learn
from shiftbench.preprocessing import Preprocessing

DEFAULT_PROMPT = "a photo of a {}."
OPEN_CLIP = "open_clip:"
BATCH = 256  # prompts that the text tower sees at once

# Both towers, the encoder of texts (-> (B, D)), and what the images are like.
Towers = tuple[nn.Module, Callable[[list[str]], Tensor], Preprocessing]


class ZeroShot(nn.Module):
    """Images against the features of one text per class."""

    texts: Tensor

    def __init__(self, model: Any, texts: Tensor) -> None:
        """Keeps `texts`, unit vectors (classes, D), beside the model."""
        super().__init__()
        self.model = model
        self.register_buffer("texts", texts, persistent=False)

    def embed_images(self, images: Tensor) -> Tensor:
        """Returns unit vectors, (B, D)."""
        if hasattr(self.model, "get_image_features"):
            features = pooled(self.model.get_image_features(pixel_values=images))
        else:
            features = self.model.encode_image(images)  # open_clip
        return F.normalize(features, dim=-1)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the scaled similarities, (B, classes)."""
        logits: Tensor = self.model.logit_scale.exp() * self.embed_images(images) @ self.texts.T
        bias = getattr(self.model, "logit_bias", None)  # SigLIP has one
        return logits if bias is None else logits + bias


def load(spec: ModelSpec) -> Classifier:
    """Loads both towers and encodes a prompt for each class of the data."""
    spec.require_own_weights()
    options = dict(spec.options)
    prompts = _prompts(options.pop("prompt", DEFAULT_PROMPT))
    words = class_words(spec)
    with building(spec, hub=not Path(spec.name).is_dir()):
        load_towers = _open_clip if spec.name.startswith(OPEN_CLIP) else _transformers
        model, encode_texts, recipe = load_towers(spec, options)
        model.eval()
        return as_classifier(
            ZeroShot(model, encode_classes(encode_texts, words, prompts)),
            recipe,
            name=spec.public_name(),
            source="zeroshot",
            digest=state_dict_digest(model.state_dict()),
            class_names=spec.class_names,
            code={
                "prompts": " | ".join(prompts),
                "classes": hashlib.sha256("\n".join(words).encode()).hexdigest()[:16],
            },
        )


def encode_classes(
    encode: Callable[[list[str]], Tensor], words: Sequence[str], prompts: Sequence[str]
) -> Tensor:
    """Returns the mean direction of the prompts of each class, as unit vectors (classes, D)."""
    texts = [prompt.replace("{}", word) for prompt in prompts for word in words]
    with torch.no_grad():
        parts = [encode(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)]
    features = F.normalize(torch.cat(parts), dim=-1)  # (prompts * classes, D)
    mean = features.view(len(prompts), len(words), -1).mean(0)
    if len({*words}) > 1 and torch.allclose(mean, mean[:1]):
        raise ModelError(
            f"the text tower sees no difference between {words[0]!r} and {words[-1]!r}: put the "
            "tokenizer that belongs to the model beside its weights"
        )
    return F.normalize(mean, dim=-1)


def class_words(spec: ModelSpec) -> list[str]:
    """What a prompt calls each class of the data: wnids in words, of synonyms the first.

    >>> spec = ModelSpec("zeroshot:x", "zeroshot", "x", class_names=("n01440764", "sea_lion"))
    >>> class_words(spec)
    ['tench', 'sea lion']
    """
    names = spec.class_names
    if not names or all(name.isdecimal() for name in names):
        raise UsageError(
            f"{spec.text} names the classes of the data, and they have no names: choose data "
            "with class names, or give them with load_model(..., class_names=...)"
        )
    if any(re.fullmatch(r"n\d{8}", name) for name in names):
        from timm.data import ImageNetInfo

        info = ImageNetInfo("imagenet-1k")
        known = set(info.label_names())
        names = tuple(info.label_name_to_description(n) if n in known else n for n in names)
    return [name.split(",")[0].replace("_", " ").strip() for name in names]


def _prompts(given: Any) -> tuple[str, ...]:
    prompts = (given,) if isinstance(given, str) else given
    if (
        not isinstance(prompts, tuple | list)
        or not prompts
        or not all(isinstance(prompt, str) and "{}" in prompt for prompt in prompts)
    ):
        raise UsageError(
            f"expected a prompt with {{}} in place of the class, such as {DEFAULT_PROMPT!r}, or "
            f"several of them in brackets, got {given!r}"
        )
    return tuple(prompts)


def _transformers(spec: ModelSpec, options: dict[str, Any]) -> Towers:
    library = transformers_library(spec)
    model, _ = load_pretrained(library.AutoModel, spec, options)
    if not hasattr(model, "get_text_features") or not hasattr(model, "get_image_features"):
        raise ModelError(
            f"{spec.text} is a {type(model).__name__}, which has no text tower: choose a model of "
            "the CLIP or SigLIP kind, or use knn: for a backbone"
        )
    tokenizer = library.AutoTokenizer.from_pretrained(spec.name, trust_remote_code=False)
    # SigLIP was trained on texts of one length.
    padding = "max_length" if model.config.model_type.startswith("siglip") else True

    def encode_texts(texts: list[str]) -> Tensor:
        length = getattr(model.config.text_config, "max_position_embeddings", None)
        tokens = tokenizer(
            texts, padding=padding, truncation=True, max_length=length, return_tensors="pt"
        )
        return pooled(model.get_text_features(**tokens))

    return model, encode_texts, load_processor(spec, model.config.vision_config)


def _open_clip(spec: ModelSpec, options: dict[str, Any]) -> Towers:
    try:
        import open_clip
    except ImportError as error:
        raise ModelError(f"{spec.text} needs open_clip: pip install 'shiftbench[clip]'") from error
    name = spec.name.removeprefix(OPEN_CLIP)
    model, _, transform = open_clip.create_model_and_transforms(name, **options)
    tokenizer = open_clip.get_tokenizer(name)
    return model, lambda texts: model.encode_text(tokenizer(texts)), learn(transform, spec.text)
