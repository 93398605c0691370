"""`knn:BACKBONE,reference=DATA[,k=20]`: nearest neighbors of the features of any backbone.

BACKBONE is a name such as `timm:vit_small_patch14_dinov2` or `hf:facebook/dinov2-small`; DATA one
such as `imagenet:/data`, whose training split is the reference. An image is classified by its k
nearest neighbors by cosine, each of which votes with weight exp(cosine / temperature), as in the
evaluation of DINO (Caron et al. 2021); the logits are the log votes. Further options: `split`,
`limit` (of the reference), `temperature`, `checkpoint` (weights of the backbone from a file), and
those of the backbone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F

from shiftbench.data import ImageSet, RenderedSet, canvas_batches, load_dataset
from shiftbench.errors import UsageError
from shiftbench.files import cache_folder, write_atomic
from shiftbench.models.classifier import Classifier, as_classifier
from shiftbench.models.loading import load_model, repaired
from shiftbench.models.names import ModelSpec, parse_model
from shiftbench.models.sources import building
from shiftbench.models.sources.hf import (
    load_pretrained,
    load_processor,
    pooled,
    transformers_library,
)
from shiftbench.preprocessing import geometry_for, normalize

BATCH = 64  # reference images that the backbone sees at once


@dataclass(frozen=True)
class KnnOptions:
    """How neighbors vote, and which images they are."""

    reference: str  # a data set, as `--data` takes it
    split: str | None = "train"  # of the reference
    limit: int | None = None  # a class-balanced part of the reference
    k: int = 20  # neighbors that vote
    temperature: float = 0.07  # of their weights
    checkpoint: str | None = None  # weights of the backbone, instead of its source's own

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise UsageError(f"expected k, the neighbors of knn:, as 1 or more, got {self.k!r}")
        if not isinstance(self.temperature, int | float) or not self.temperature > 0:
            raise UsageError(f"expected the temperature of knn: above 0, got {self.temperature!r}")


class NearestNeighbors(nn.Module):
    """Votes of the nearest reference images."""

    features: Tensor
    labels: Tensor

    def __init__(
        self, backbone: Classifier, features: Tensor, labels: Tensor, classes: int, how: KnnOptions
    ) -> None:
        """Keeps `features`, unit vectors (N, D), and `labels` (N,) beside the backbone."""
        super().__init__()
        self.backbone = backbone.module
        self._embed = backbone.features
        self._classes, self._k, self._temperature = classes, how.k, how.temperature
        self.register_buffer("features", features, persistent=False)
        self.register_buffer("labels", labels, persistent=False)

    def embed_images(self, images: Tensor) -> Tensor:
        """Returns unit vectors, (B, D)."""
        return F.normalize(self._embed(images).float(), dim=-1)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the log votes, (B, classes), up to a constant per image."""
        cosines, nearest = (self.embed_images(images) @ self.features.T).topk(self._k)  # (B, k)
        weights = ((cosines - cosines[:, :1]) / self._temperature).exp()  # the nearest has weight 1
        votes = weights.new_zeros(len(images), self._classes)
        votes = votes.scatter_add(1, self.labels[nearest], weights)
        return votes.clamp_min(torch.finfo(votes.dtype).tiny).log()


def load(spec: ModelSpec) -> Classifier:
    """Loads the backbone, and the features of the reference from the cache or from its images."""
    if not spec.pretrained:
        raise UsageError(
            f"{spec.text} has nothing to train; weights of its backbone are an option: leave "
            "--checkpoint out, and add ,checkpoint=FILE to the name"
        )
    own = {key: value for key, value in spec.options.items() if key in KnnOptions.__annotations__}
    if "reference" not in own:
        raise UsageError(
            f"{spec.text} needs labeled images to compare with: add ,reference=DATA, as in "
            "knn:timm:vit_small_patch14_dinov2,reference=imagenet:/data"
        )
    how = KnnOptions(**own)
    others = [f",{key}={value!r}" for key, value in spec.options.items() if key not in own]
    backbone = _backbone("".join([spec.name, *others]), how.checkpoint, spec.remedies)
    reference = load_dataset(how.reference, split=how.split, limit=how.limit)
    if how.k > len(reference):
        raise UsageError(f"k={how.k} neighbors need as many reference images, got {len(reference)}")
    classes = spec.class_names or tuple(reference.class_names)
    labels = _labels(reference, classes, how.reference)
    with building(spec):
        features = reference_features(backbone, reference)
        return as_classifier(
            NearestNeighbors(backbone, features, labels, len(classes), how),
            backbone.preprocessing,
            name="+".join(filter(None, (spec.public_name(), spec.remedies))),
            source="knn",
            digest=backbone.digest,
            class_names=classes,
            code={
                "votes": f"k={how.k},temperature={how.temperature:g}",
                "reference": _sha256(reference.fingerprint(), *reference.keys),
                "classes": _sha256(*classes),
            },
            remedies=spec.remedies,  # the backbone's, by which the reference was seen too
        )


def reference_features(backbone: Classifier, reference: ImageSet) -> Tensor:
    """The features of a data set as unit vectors, (N, D), computed once and then remembered."""
    recipe = backbone.preprocessing
    geometry = geometry_for(
        recipe,
        finished=reference.has_size(recipe.input_size),
        rendered=isinstance(reference, RenderedSet),
    )
    key = _sha256(
        backbone.digest,
        reference.fingerprint(),
        *reference.keys,
        str((recipe.mean, recipe.std, geometry)),
    )
    memory = cache_folder() / "features" / f"{key}.safetensors"
    if memory.is_file():
        known: Tensor = load_file(memory)["features"]
        return known
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone.module.to(device)
    parts = []
    with torch.no_grad():
        for batch in canvas_batches(reference, geometry, batch_size=BATCH):
            images = normalize(batch.canvas.to(device), recipe.mean, recipe.std)
            parts.append(F.normalize(backbone.features(images).float(), dim=-1).cpu())
    backbone.module.to("cpu")
    features = torch.cat(parts)
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(memory, save({"features": features}))
    return features


def _labels(reference: ImageSet, classes: tuple[str, ...], name: str) -> Tensor:
    """The labels of the reference, as the data number their classes."""
    theirs, labels = tuple(reference.class_names), torch.tensor(list(reference.labels))
    if theirs == classes:  # not by name: two classes of ImageNet are called crane
        return labels
    strangers = sorted({*theirs} ^ {*classes})
    if strangers or len({*classes}) < len(classes):
        words = f"{', '.join(strangers[:3])} in one of them only" if strangers else "in number"
        raise UsageError(
            f"the reference {name} has other classes than the data ({words}): choose a split of "
            "the same data as reference"
        )
    return torch.tensor([classes.index(name) for name in theirs])[labels]


class _TransformersBackbone(nn.Module):
    """The features of a model of transformers: what its pooler yields, or its class token."""

    def __init__(self, model: Any, *, pools: bool) -> None:
        super().__init__()
        self.model = model
        self._pools = pools

    def embed_images(self, images: Tensor) -> Tensor:
        """Returns features, (B, D)."""
        if hasattr(self.model, "get_image_features"):
            return pooled(self.model.get_image_features(pixel_values=images))
        output = self.model(pixel_values=images)
        if self._pools and getattr(output, "pooler_output", None) is not None:
            return pooled(output).flatten(1)
        states: Tensor = output.last_hidden_state  # (B, tokens, D) or (B, D, H, W)
        return states[:, 0] if states.ndim == 3 else states.mean((2, 3))

    forward = embed_images


def _backbone(name: str, checkpoint: str | None, remedies: str) -> Classifier:
    """A model that exposes features; one of transformers need not be a classifier."""
    spec = parse_model(name)
    if spec.source != "hf":
        whole = f"{name}+{remedies}" if remedies else name
        return load_model(whole, checkpoint=checkpoint)
    if checkpoint is not None:
        raise UsageError(f"{name} is a repository or folder with its weights: leave checkpoint out")
    library = transformers_library(spec)
    with building(spec, hub=not Path(spec.name).is_dir()):
        model, pools = load_pretrained(library.AutoModel, spec, spec.options, optional="pooler.")
        recipe = load_processor(spec, model.config)
        network = _TransformersBackbone(model, pools=pools)
        plain = as_classifier(network, recipe, name=spec.text, source="knn")
    return repaired(plain, remedies)


def _sha256(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]
