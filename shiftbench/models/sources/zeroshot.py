"""`zeroshot:MODEL[,prompt='a photo of a {}']`: CLIP and SigLIP models, for the classes of the data.

Class names become prompts, prompts become features once, and images are classified by similarity:
the logits are the scaled similarities. MODEL is a repository or folder of transformers, or
`open_clip:NAME,pretrained=TAG`. Several prompts, `prompt=('a photo of a {}','a drawing of a {}')`,
are averaged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aft_models.checkpoint import state_dict_digest
from aft_models.preprocessing import Preprocessing
from shiftbench.errors import ModelError, UsageError
from shiftbench.models.names import ModelName
from shiftbench.models.sources import Built, Request, hub_access
from shiftbench.models.sources.hf import (
    load_pretrained,
    load_processor,
    pooled,
    transformers_library,
)
from shiftbench.models.transforms import read_preprocessing

DEFAULT_PROMPT = "a photo of a {}."
OPEN_CLIP = "open_clip:"
BATCH = 256  # prompts per forward pass of the text tower

# Both towers, the encoder of texts (-> (B, D)), and the preprocessing of images.
Towers = tuple[nn.Module, Callable[[list[str]], Tensor], Preprocessing]


class ZeroShot(nn.Module):
    """Similarity of images to the features of one text per class."""

    texts: Tensor

    def __init__(self, model: Any, texts: Tensor) -> None:
        """Store `texts`, unit vectors (classes, D), beside the model."""
        super().__init__()
        self.model = model
        self.register_buffer("texts", texts, persistent=False)

    def embed_images(self, images: Tensor) -> Tensor:
        """Return unit vectors (B, D)."""
        if hasattr(self.model, "get_image_features"):
            features = pooled(self.model.get_image_features(pixel_values=images))
        else:
            features = self.model.encode_image(images)  # open_clip
        return F.normalize(features, dim=-1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scaled similarities (B, classes)."""
        logits: Tensor = self.model.logit_scale.exp() * self.embed_images(images) @ self.texts.T
        bias = getattr(self.model, "logit_bias", None)  # SigLIP has one
        return logits if bias is None else logits + bias


def build(name: ModelName, request: Request) -> Built:
    """Load both towers and encode a prompt for each class of the data."""
    request.require_own_weights(name.text)
    options = dict(request.options)
    prompts = _prompts(options.pop("prompt", DEFAULT_PROMPT))
    words = class_words(name.text, request.class_names)
    load_towers = _open_clip if name.name.startswith(OPEN_CLIP) else _transformers
    with nullcontext() if Path(name.name).is_dir() else hub_access():
        model, encode_texts, preprocessing = load_towers(name, options)
    model.eval()
    return Built(
        ZeroShot(model, encode_classes(encode_texts, words, prompts)),
        preprocessing,
        request.class_names,
        code={
            "prompts": " | ".join(prompts),
            "classes": hashlib.sha256("\n".join(words).encode()).hexdigest()[:16],
        },
        weights=state_dict_digest(model.state_dict()),
    )


def encode_classes(
    encode: Callable[[list[str]], Tensor], words: Sequence[str], prompts: Sequence[str]
) -> Tensor:
    """Return the mean direction of the prompts of each class, as unit vectors (classes, D)."""
    texts = [prompt.replace("{}", word) for prompt in prompts for word in words]
    with torch.no_grad():
        parts = [encode(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)]
    features = F.normalize(torch.cat(parts), dim=-1)  # (prompts * classes, D)
    mean = features.view(len(prompts), len(words), -1).mean(0)
    if len({*words}) > 1 and torch.allclose(mean, mean[:1]):
        raise ModelError(
            f"the text tower has equal features for {words[0]!r} and {words[-1]!r}: put the "
            "tokenizer that belongs to the model beside its weights"
        )
    return F.normalize(mean, dim=-1)


def class_words(text: str, names: Sequence[str]) -> list[str]:
    """Return the word for each class in a prompt: wnids as text, the first of synonyms.

    >>> class_words("zeroshot:x", ("n01440764", "sea_lion"))
    ['tench', 'sea lion']
    """
    if not names or all(name.isdecimal() for name in names):
        raise UsageError(
            f"{text} needs names of the classes, and the data has none: choose data with class "
            "names, or give them with load_model(..., class_names=...)"
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


def _transformers(name: ModelName, options: dict[str, Any]) -> Towers:
    library = transformers_library(name)
    model = load_pretrained(library.AutoModel, name, options)
    if not hasattr(model, "get_text_features") or not hasattr(model, "get_image_features"):
        raise ModelError(
            f"expected a model with a text tower for {name.text}, got a {type(model).__name__}: "
            "choose a CLIP or SigLIP model"
        )
    tokenizer = library.AutoTokenizer.from_pretrained(name.name, trust_remote_code=False)
    # SigLIP was trained on texts of one length.
    padding = "max_length" if model.config.model_type.startswith("siglip") else True

    def encode_texts(texts: list[str]) -> Tensor:
        length = getattr(model.config.text_config, "max_position_embeddings", None)
        tokens = tokenizer(
            texts, padding=padding, truncation=True, max_length=length, return_tensors="pt"
        )
        return pooled(model.get_text_features(**tokens))

    return model, encode_texts, load_processor(name, model.config.vision_config)


def _open_clip(name: ModelName, options: dict[str, Any]) -> Towers:
    try:
        import open_clip
    except ImportError as error:
        raise ModelError(f"{name.text} needs open_clip: pip install 'shiftbench[clip]'") from error
    architecture = name.name.removeprefix(OPEN_CLIP)
    model, _, transform = open_clip.create_model_and_transforms(architecture, **options)
    tokenizer = open_clip.get_tokenizer(architecture)
    preprocessing = read_preprocessing(transform, name.text)
    return model, lambda texts: model.encode_text(tokenizer(texts)), preprocessing
