"""From a model's name to a model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.cards import list_weights
from aft_models.checkpoint import Weights, load_state, read_carded, read_weights
from aft_models.classifier import replace_classifier
from aft_models.errors import AftModelsError
from aft_models.preprocessing import ASSUMED, Preprocessing
from aft_models.remedies import RemedySpec, join_remedies
from aft_models.remedies.context import RepairReport
from aft_models.remedies.inputs import build_inputs
from aft_models.remedies.repair import misfit_message, repair_layers, require_layers
from shiftbench.errors import ModelError, UsageError
from shiftbench.identity import Identity, plugin_digests
from shiftbench.models.model import Model, read_logits
from shiftbench.models.names import EXPORTED, ModelName, parse_model
from shiftbench.models.sources import TITLES, Built, Request, clear_errors, get_source
from shiftbench.models.transforms import read_preprocessing

log = logging.getLogger(__name__)


def load_model(
    text: str | ModelName,
    *,
    checkpoint: str | Path | None = None,
    strip_prefix: str | None = None,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
) -> Model:
    """Load a model by its name.

    Args:
        text: `xcit_nano_12_p16_af.TAG` (bundled), a folder exported by training, `timm:NAME`,
            `tv:NAME`, `hf:REPO_OR_DIR`, `zeroshot:REPO_OR_DIR`, `FILE.onnx`, a TorchScript file or
            `FILE.py:FUNCTION`; `,key=value` adds options, remedies may follow
            (`timm:resnet50+circular+aps`), and `NAME=` in front sets the name in records.
        checkpoint: Weights to load instead of the source's own: a file, or a folder that training
            exported, whose card then contains the classes and the preprocessing.
        strip_prefix: Take the keys of the checkpoint that begin with this prefix: `student.`.
        class_names: Classes of the data, by index, for zero-shot models.
        seed: Seed of random weights.

    >>> load_model("xcit_pico_6_p8.scenes").num_classes
    12

    Raises:
        UsageError: The name or an option is unknown, or a remedy does not fit the network.
        ModelError: The weights are not available, or do not fit.
    """
    name = parse_model(text)
    with clear_errors(name.text):
        weights = _find_weights(name, checkpoint)
        card = weights.card if weights else None
        name = _network_name(name, weights)
        request = Request(
            weights is None, options=name.options, class_names=tuple(class_names or ())
        )
        if card is not None:
            options = {**name.options, **card.switches}
            request = replace(
                request, classes=card.num_classes, size=card.input_size, options=options
            )
        built, preprocessing = _build(name, request, seed)
        if weights is not None:
            if not isinstance(built.network, nn.Module):
                raise UsageError(
                    f"expected a PyTorch network for the weights of {weights.origin}, got a "
                    f"{type(built.network).__name__} from {name.public_name()}. Leave "
                    "--checkpoint out"
                )
            load_state(built.network, weights, strip_prefix)
        if card is not None:
            preprocessing = replace(card.preprocessing, bgr=preprocessing.bgr)
            built = replace(built, class_names=card.class_names)
        return _repaired(name, built, preprocessing)


def build_model(
    text: str | ModelName,
    *,
    classes: int | None = None,
    size: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Model:
    """Build a model by its name, remedies included, with random weights, for training.

    The network itself returns its logits alone and takes RGB images.

    Args:
        text: As for `load_model`.
        classes: Outputs of the classifier. Default: the source's own number.
        size: Side of the images in pixels. Default: the source's own.
        seed: Seed of the random weights.
        options: Added to those of the name.

    >>> build_model("timm:resnet10t+circular+aps", classes=5, size=64).num_classes
    5
    """
    name = parse_model(text)
    if name.source == EXPORTED:
        Request(pretrained=False).require_own_weights(name.text)
    request = Request(False, classes, size, {**name.options, **(options or {})})
    with clear_errors(name.text):
        built, preprocessing = _build(name, request, seed)
        network = built.network
        if isinstance(network, nn.Module):
            if preprocessing.bgr:
                network.register_forward_pre_hook(_blue_first)
                preprocessing = replace(preprocessing, bgr=False)
            network.register_forward_hook(_logits_alone)
        return _repaired(name, built, preprocessing)


def _find_weights(name: ModelName, checkpoint: str | Path | None) -> Weights | None:
    """Return the weights that a name or a command refers to; None: the source's own."""
    if checkpoint is not None:
        return read_weights(Path(checkpoint))
    if name.source == EXPORTED:
        return read_weights(Path(name.name))
    options = dict(name.options)
    if name.source != "bundled" or name.name not in list_weights():
        return None
    if options.pop("pretrained", True) is not True:
        return None
    if options:
        raise UsageError(
            f"the card of {name.text} contains the settings of the model. Leave "
            f"{', '.join(options)} out"
        )
    return read_carded(name.name)


def _network_name(name: ModelName, weights: Weights | None) -> ModelName:
    """Return the name of the network that the weights are of."""
    if weights is None or (weights.card is None and name.source != EXPORTED):
        return name
    if weights.card is None:
        raise ModelError(
            f"expected the weights of one model with their card in {name.name}. Name the folder "
            "that training exported"
        )
    if name.source == EXPORTED:  # the card names the network, and the remedies of its training
        remedies = list(map(str, name.remedies))
        label = name.label or "+".join([weights.card.name, *remedies])
        return replace(parse_model("+".join([weights.card.architecture, *remedies])), label=label)
    ours, theirs = name.architecture, parse_model(weights.card.architecture).architecture
    if ours != theirs:
        raise ModelError(
            f"expected weights of {ours}, got weights of {theirs} in {weights.origin}. Name the "
            f"network with --model {theirs}"
        )
    return name


def _build(name: ModelName, request: Request, seed: int) -> tuple[Built, Preprocessing]:
    """Let the source build the network; replace its classifier if another is requested."""
    source = get_source(name.source)
    with _seeded(seed):
        built = source.build(name, request)
    built = replace(built, code={**built.code, **plugin_digests(source)})
    preprocessing = read_preprocessing(built.preprocessing, name.public_name())
    preprocessing = preprocessing.at_size(request.size)
    if request.classes is not None and isinstance(built.network, nn.Module):
        # Not left to timm, whose initial logits of a few classes are ten times as large.
        handle = built.network.register_forward_hook(_logits_alone)
        with _seeded(seed):
            replace_classifier(built.network, request.classes, size=preprocessing.size)
        handle.remove()
        built = replace(built, class_names=())  # those of the weights that follow, or none
    if preprocessing.origin == ASSUMED:
        log.warning(
            "%s names no mean and std: ImageNet's are assumed. Name them with `return model, "
            '{"input_size": %d, "mean": ..., "std": ...}` (FILE.py), ,mean=0.5,std=0.5 (onnx:), or '
            "preprocessor_config.json (hf:)",
            name.public_name(),
            preprocessing.size,
        )
    return built, preprocessing


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Fix the seed of random weights; the caller's random state does not change.

    Every process of a run and every resumed run must have the same network.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _repaired(name: ModelName, built: Built, preprocessing: Preprocessing) -> Model:
    """Apply the remedies and run the model once."""
    if built.exported is not None and name.remedies:
        built.exported.joined(name.remedies, name.public_name())
    layers = [spec for spec in name.remedies if not spec.remedy.input]
    written: tuple[RepairReport, ...] = ()
    image = torch.zeros(1, 3, preprocessing.size, preprocessing.size)
    if layers:
        try:
            require_layers(built.network, layers)
            assert isinstance(built.network, nn.Module)
            written, _ = repair_layers(built.network, layers, image)
        except AftModelsError as error:
            raise UsageError(f"{name}: {error}") from error
    try:
        return Model(
            built.network,
            preprocessing,
            name=str(name),
            source=TITLES.get(name.source, name.source),
            remedies=build_inputs(name.remedies, preprocessing),
            class_names=built.class_names,
            identity=Identity(built.weights, join_remedies(name.remedies), built.code),
            parameters=built.parameters,
            exported=built.exported,
            score_threshold=built.score_threshold,
        )
    except ModelError as error:
        raise _explained(error, name, built.network, layers, written, image) from error


def _explained(
    error: ModelError,
    name: ModelName,
    network: object,
    layers: Sequence[RemedySpec],
    written: Sequence[RepairReport],
    image: Tensor,
) -> Exception:
    """Return the error of a model that does not run, with the obstacles of its remedies."""
    if not any(report.unchanged for report in written):
        return error
    assert isinstance(network, nn.Module)
    return UsageError(f"{name}: {misfit_message(network, layers, written, image, str(error))}")


def _logits_alone(_: nn.Module, __: Any, output: Any) -> Tensor:
    """Return the logits alone: a forward hook."""
    return read_logits(output)


def _blue_first(_: nn.Module, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Reverse the channels: a forward pre-hook."""
    first, *rest = images
    return first.flip(1), *rest
