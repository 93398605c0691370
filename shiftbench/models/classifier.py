"""What every model source yields, and how any module or callable becomes one."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.classifier import classifier_names
from aft_models.errors import AftModelsError
from aft_models.repair import network_input
from aft_models.weights import state_dict_digest
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.identity import LOGITS
from shiftbench.models.transforms import preprocessing_for
from shiftbench.preprocessing import Preprocessing

log = logging.getLogger(__name__)

SHOWN_LOGITS = 8  # how many logits of the fixed image stand in an identity


@dataclass(frozen=True)
class Classifier:
    """A model ready to be measured: in eval mode, images in, logits out."""

    module: LogitsOnly  # normalized images (B, 3, S, S) -> logits (B, classes)
    preprocessing: Preprocessing
    name: str  # as the user wrote it: "timm:resnet50"
    source: str  # which source loaded it: "bundled", "timm", "torchvision", "huggingface", "python"
    num_classes: int
    parameters: int  # count of trainable and frozen parameters
    digest: str  # sha256 of the weights, and of the code where the user wrote it
    class_names: tuple[str, ...] = ()  # by index; empty where they are not known
    # What the answers depend on, by name ("weights", "function", "options", "net.py"), so that a
    # refusal can say what changed (`shiftbench.identity.changed_parts`).
    parts: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the logits, (B, classes)."""
        logits: Tensor = self.module(images)
        return logits

    @property
    def network(self) -> nn.Module:
        """The network itself, whose layers and parameters have the names that its author gave."""
        network = self.module.model
        if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
            raise UsageError(
                f"remedies, training and features need the layers of a PyTorch network, and "
                f"{self.name} shows none"
            )
        return network

    @property
    def code(self) -> dict[str, str]:
        """What decides the answers besides weights and remedies, where the user wrote it."""
        known = ("weights", "remedies", "preprocessing", LOGITS)
        return {part: text for part, text in self.parts.items() if part not in known}

    def with_code(self, code: Mapping[str, str]) -> Classifier:
        """The same model, whose answers depend on some code too."""
        digest = _digest(self.parts["weights"], {**self.code, **code}, self.parts["remedies"])
        return replace(self, parts={**self.parts, **code}, digest=digest)

    def features(self, images: Tensor) -> Tensor:
        """Returns what the classifier is based on, (B, D): what its last layer sees.

        A model with a method `embed_images` says itself what its features are.

        Raises:
            UsageError: The model shows no last layer.
        """
        if hasattr(self.module.model, "embed_images"):
            return self.module.model.embed_images(images)  # type: ignore[no-any-return, operator]
        seen: list[Tensor] = []
        hook = self._last_layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self.module(images)
        finally:
            hook.remove()
        return seen[-1].mean((2, 3)) if seen[-1].ndim == 4 else seen[-1].flatten(1)

    @cached_property
    def _last_layer(self) -> nn.Module:
        # timm's models name it; any other is run once, where it must return logits alone.
        whole = self.network if hasattr(self.network, "default_cfg") else self.module
        try:
            name, *_ = classifier_names(whole, size=self.preprocessing.input_size)
        except AftModelsError as error:
            raise UsageError(
                f"{self.name} exposes no features ({error}): give it a method embed_images(images) "
                "that returns them as (batch, features)"
            ) from error
        return whole.get_submodule(name)


def logits_of(output: Any) -> Tensor:
    """The logits in a model's output: a tensor, its `.logits`, or the first of a tuple.

    A dict holds them as `logits`, or as its only tensor of two dimensions.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits  # type: ignore[no-any-return]
    if isinstance(output, Mapping):
        if isinstance(output.get("logits"), Tensor):
            return output["logits"]  # type: ignore[no-any-return]
        tensors = {k: v for k, v in output.items() if isinstance(v, Tensor) and v.ndim == 2}
        if len(tensors) == 1:
            return next(iter(tensors.values()))
        if tensors:
            raise ModelError(
                f"expected logits from the model, got a dict with several candidates "
                f"({', '.join(map(str, tensors))}): return them under the key 'logits'"
            )
    elif isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise ModelError(
        f"expected logits, a tensor of shape (batch, classes), from the model; "
        f"it returned a {type(output).__name__}: wrap it in a FILE.py:FUNCTION that unpacks it"
    )


def are_probabilities(outputs: Tensor) -> bool:
    """Whether outputs (B, classes) are a softmax already.

    >>> are_probabilities(torch.tensor([[0.25, 0.75]])), are_probabilities(torch.eye(2) * 2)
    (True, False)
    """
    total = outputs.double().sum(-1)
    return bool((outputs >= 0).all() and torch.allclose(total, torch.ones_like(total), atol=1e-3))


def as_logits(probabilities: Tensor) -> Tensor:
    """Logits up to a constant per image, which softmax and every margin leave out."""
    tiny = torch.finfo(torch.float32).tiny
    return probabilities.float().clamp_min(tiny).log()


class LogitsOnly(nn.Module):
    """A model reduced to its logits."""

    def __init__(self, model: nn.Module | Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.model = model
        self.gives_probabilities = False  # as Keras likes to export networks

    @property
    def network_input(self) -> Callable[[Tensor], Tensor] | None:
        """What the network itself sees of images, where remedies choose it by the content."""
        return network_input(self.model) if isinstance(self.model, nn.Module) else None

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits, (B, classes)."""
        outputs = logits_of(self.model(images))
        return as_logits(outputs) if self.gives_probabilities else outputs


def as_classifier(
    model: nn.Module | Callable[[Tensor], Any],
    preprocessing: Preprocessing | Mapping[str, Any] | Callable[..., Any],
    *,
    name: str,
    source: str = "python",
    digest: str | None = None,
    class_names: Sequence[str] = (),
    code: Mapping[str, str] | None = None,
    remedies: str = "",
    parameters: int | None = None,
) -> Classifier:
    """Makes a classifier of any module or callable; tries it once on two fixed images.

    Args:
        model: Takes normalized images (B, 3, S, S); returns logits or probabilities, or a tuple, a
            dict or an object that holds them.
        preprocessing: What its weights expect, or the transform that they were evaluated with.
        name: How records call it.
        source: Where it came from.
        digest: Names the weights. By default the digest of the module's state; a plain callable
            shows no weights, so give one when its answers can change under the same name.
        class_names: By index, where they are known: folders of images are then matched by name.
        code: What decides the answers besides the weights, by name, where the user wrote it.
        remedies: Those that the model was repaired with: "circular+aps".
        parameters: Their count, where the module does not show them.
    """
    recipe = preprocessing_for(model, preprocessing, name)
    module = LogitsOnly(model).eval()
    outputs = _try_out(module, recipe, name)
    if are_probabilities(outputs):
        log.warning("%s returns probabilities: their logarithms are taken as logits", name)
        module.gives_probabilities = True
        outputs = as_logits(outputs)
    state = model.state_dict() if isinstance(model, nn.Module) else {}
    weights = digest or state_dict_digest(state)
    # Spread over the classes; rounded, since it is only compared up to rounding.
    some = outputs[0, :: -(-outputs.shape[1] // SHOWN_LOGITS)].tolist()
    return Classifier(
        module=module,
        preprocessing=recipe,
        name=name,
        source=source,
        num_classes=outputs.shape[1],
        parameters=parameters or sum(p.numel() for p in module.parameters()),
        digest=_digest(weights, code or {}, remedies),
        class_names=tuple(class_names),
        parts={
            "weights": weights,
            **(code or {}),
            "remedies": remedies,
            **({"preprocessing": recipe.origin} if recipe.origin else {}),
            LOGITS: " ".join(f"{value:.5g}" for value in some),
        },
    )


def _try_out(module: nn.Module, recipe: Preprocessing, name: str) -> Tensor:
    """The outputs for two fixed images: a model that cannot run fails here, by name."""
    size = recipe.input_size
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, len(recipe.mean), size, size, generator=generator)
    first = next(module.parameters(), None)
    if first is not None:
        images = images.to(first.device, first.dtype)
    try:
        with torch.no_grad():  # not inference_mode: what it caches could not be trained
            outputs: Tensor = module(images)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name} fails on images of {size} x {size} pixels ({first_line(error)}): if it is "
            'made for another size, name that, as in FILE.py with `return model, {"input_size": '
            "96}`, or after the name with ,input_size=96 (onnx:) or ,img_size=96 (timm:)"
        ) from error
    if outputs.ndim != 2 or outputs.shape[0] != 2 or outputs.shape[1] < 2:
        raise ModelError(
            f"{name} is not a classifier: expected logits of shape (2, classes) for 2 images, "
            f"got {tuple(outputs.shape)}"
        )
    return outputs.float().cpu()


def _digest(weights: str, code: Mapping[str, str], remedies: str) -> str:
    """Names a model: its weights, and what else decides its answers."""
    whole = weights
    if code:  # a change of the code is a new model, as one of the weights is
        text = json.dumps(dict(code), sort_keys=True)
        whole = hashlib.sha256(f"{text}{whole}".encode()).hexdigest()
    return hashlib.sha256(f"{whole}+{remedies}".encode()).hexdigest() if remedies else whole
