"""`shiftbench.train`: any model, any data, a named recipe; scores per epoch, an export."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import nn

from aft_models.checkpoint import Weights, load_backbone, read_weights, state_dict_digest
from aft_models.preprocessing import Preprocessing
from aft_models.presets import PRESETS
from aft_models.remedies import join_remedies
from aft_models.remedies.inputs import ShownNetwork
from aft_models.training import loop
from aft_models.training.checkpoint import Identity
from aft_models.training.device import DeviceConfig, Processes
from aft_models.training.export import export
from aft_models.training.progress import Progress, Row
from aft_models.training.recipe import Recipe, override
from aft_models.training.recipes import get_recipe
from shiftbench.data import relabeled
from shiftbench.errors import UsageError
from shiftbench.logs import open_loggers
from shiftbench.models import Model, build_model, load_model, parse_model
from shiftbench.models.names import EXPORTED
from shiftbench.models.sources import clear_errors
from shiftbench.registry import unknown_name
from shiftbench.running.predict import choose_device
from shiftbench.statistics import Score, wilson
from shiftbench.training.data import BatchBuilder, Unlabeled, images_of, load_data
from shiftbench.training.processes import local_rank
from shiftbench.training.scores import EpochEvaluator

__all__ = ["Trained", "train"]


@dataclass(frozen=True)
class Trained:
    """The result of a training."""

    folder: Path  # exported weights and their card, for `load_model(..., checkpoint=folder)`
    rows: Sequence[Row]  # of the log, one per epoch
    scores: Mapping[str, Score]  # of the last epoch, as fractions


def train(
    model: str,
    data: str,
    recipe: str | Recipe,
    output: str | Path,
    *,
    changes: Sequence[str] = (),
    tag: str | None = None,
    pretrained: bool = False,
    checkpoint: str | Path | None = None,
    strip_prefix: str | None = None,
    unlabeled: bool = False,
    train_split: str = "train",
    split: str | None = None,
    limit: int | None = None,
    download: bool = False,
    score_every: int = 1,
    shift_every: int = 10,
    shift_images: int = 500,
    workers: int = 4,
    device: str = "auto",
    precision: str = "fp32",
    compiled: bool = False,
    channels_last: bool = False,
    seed: int = 0,
    resume: bool = True,
    logs: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    notice: Callable[[str], None] | None = None,
    processes: Processes | None = None,
) -> Trained:
    """Train or fine-tune a model, as `shiftbench train` does.

    >>> train("timm:resnet50+af", "folder:PHOTOS", "finetune", "runs/af")  # doctest: +SKIP

    Args:
        model: As for `load_model`, remedies included.
        data: As for `load_dataset`.
        recipe: A name of `shiftbench list recipes`, or a recipe.
        output: Folder for last.pt, best.pt, log.csv, curves.png and, at the end, export/.
        changes: Fields of the recipe to override, as in `["epochs=10"]`.
        tag: Names the exported weights; by default the data set's name.
        pretrained: Start from the model's own weights.
        checkpoint: Start from weights in a file or an exported folder.
        strip_prefix: Part of the checkpoint's keys to remove.
        unlabeled: Read no labels, for the recipe `recalibrate`. Accuracy needs labels: name a
            labeled `split` for it.
        train_split: Split to train on.
        split: Split to score on; by default the usual evaluation split.
        limit: Size of a balanced subset of either split.
        download: Download the data set if it is missing.
        score_every: Epochs between two accuracies; 0 for the last alone.
        shift_every: Epochs between two shift scores; 0 likewise.
        shift_images: Number of images of shift scores.
        workers: Processes that load images.
        device: `auto`, `cpu`, `cuda[:i]` or `mps`.
        precision: `fp32`, `bf16` or `fp16`.
        compiled: Compile the model with `torch.compile`.
        channels_last: Use the channels-last memory layout.
        seed: Seed of initial weights, order and augmentation.
        resume: Continue from the last epoch in `output`, if there is one.
        logs: Further logs besides log.csv: `tensorboard`, `wandb`.
        progress: Called regularly by the main process.
        notice: Called with a line for the user.
        processes: Rank and number of processes.

    Raises:
        UsageError: The request contradicts itself.
    """
    processes = processes or Processes()
    output, main = Path(output), processes.is_main
    model, selects = _without_view(model)
    if selects and main and notice is not None:
        notice(
            f"{selects} has no trainable weights: {model} is trained. Load the weights into "
            f"{model}+{selects} with --checkpoint"
        )
    architecture = _check(model, tag, pretrained, checkpoint)
    if isinstance(recipe, str):
        recipe = get_recipe(recipe)
    recipe = override(recipe.for_model(architecture), changes)
    if unlabeled:
        recipe = replace(recipe, unlabeled=True)
    device_config = DeviceConfig(
        choose_device(device, process=local_rank()), precision, compiled, channels_last
    )
    images, scored = load_data(
        data, train_split, split, limit=limit, seed=seed, download=download, unlabeled=unlabeled
    )
    start = _start(model, pretrained, checkpoint)
    weights = start.weights
    classes = None if unlabeled else len(images.class_names)
    if start.num_classes is not None and (unlabeled or not recipe.learns):
        classes = start.num_classes  # the classifier and its classes do not change
        images, scored = (
            part
            if isinstance(part, Unlabeled)
            else relabeled(part, start.num_classes, start.class_names)
            for part in (images, scored)
        )
    size = recipe.image_size or (start.preprocessing.size if start.preprocessing else None)
    options = {"drop_path_rate": recipe.drop_path} if recipe.drop_path else {}
    built = build_model(model, classes=classes, size=size, seed=seed, options=options)
    recipe = recipe.for_input(start.preprocessing or built.preprocessing)
    new: list[str] = []
    if weights is not None:
        new = load_backbone(
            built.layers, weights, size=recipe.image_size, strip_prefix=strip_prefix
        )
    _require_start(recipe, built.name, start, new)
    if new and main and notice is not None:
        notice(f"new, to be learned: {', '.join(new)}")
    inputs = BatchBuilder(recipe, processes, workers, seed)
    identity = Identity(
        built.name,
        recipe,
        seed,
        built.num_classes,
        data=images_of(images, limit),
        scored={**asdict(images_of(scored, limit)), "shift_images": shift_images},
        start=state_dict_digest(weights.state) if weights else "",
    )
    scores = EpochEvaluator(
        scored,
        inputs,
        device_config,
        every=score_every,
        shift_every=shift_every,
        shift_images=shift_images,
    )
    with open_loggers(tuple(logs) if main else (), output, model, identity.as_dict()) as log:
        outcome = loop.train(
            _trained_module(built),
            inputs.training(images),
            identity=identity,
            folder=output,
            device_config=device_config,
            processes=processes,
            evaluate=scores,
            report=progress if main else None,
            log=log,
            resume=resume,
        )
    folder = output / "export"
    if main:
        export(
            outcome,
            folder,
            identity=identity,
            tag=tag or images.name,
            class_names=start.class_names if unlabeled else images.class_names,
            images=scores.counts,
        )
    row = outcome.rows[-1]
    final = {name: wilson(row[name] * n, n) for name, n in scores.counts.items()}
    return Trained(folder, outcome.rows, final)


def _without_view(model: str) -> tuple[str, str]:
    """Split a model's name into the name without its view remedy, and that remedy."""
    named = parse_model(model)
    views = [spec for spec in named.remedies if spec.remedy.group == "view"]
    rest = [str(spec) for spec in named.remedies if spec.remedy.group != "view"]
    return "+".join([named.text, *rest]) if views else model, join_remedies(views)


def _trained_module(model: Model) -> nn.Module:
    """Return the module that is trained: the network, with input remedies if there are any."""
    if not model.remedies:
        return model.layers
    return ShownNetwork(model.layers, model.remedies, size=model.network_size)


def _check(model: str, tag: str | None, pretrained: bool, checkpoint: str | Path | None) -> str:
    """Check the request before anything is loaded, and return the architecture."""
    if pretrained and checkpoint is not None:
        raise UsageError("--pretrained and --checkpoint both give weights: leave one out")
    if tag is not None and not re.fullmatch(r"\w[\w-]*", tag):
        raise UsageError(f"--tag takes letters, digits, _ and -, as in cifar10, got {tag!r}")
    spec = parse_model(model)
    if spec.source == EXPORTED:
        raise UsageError(
            f"expected a model, got the folder {spec.text}: name the model with -m, and the folder "
            "with --checkpoint"
        )
    if spec.source != "bundled":
        return spec.text
    architecture, _, weights = spec.name.partition(".")
    if architecture not in PRESETS:
        raise unknown_name("model to train", architecture, PRESETS)
    if pretrained and not weights:
        raise UsageError(
            f"--pretrained starts from bundled weights, and {model!r} names none: add "
            "their tag, as in xcit_pico_6_p4_af.cifar10, or give a file with --checkpoint"
        )
    if weights and not pretrained:
        raise UsageError(
            f"{model!r} names trained weights: add --pretrained to start from them, or "
            f"train {architecture!r} from scratch"
        )
    return architecture


@dataclass(frozen=True)
class _Start:
    """The weights that training starts from, and the facts about them."""

    weights: Weights | None = None  # None: random ones
    preprocessing: Preprocessing | None = None
    num_classes: int | None = None
    class_names: Sequence[str] = ()


def _start(model: str, pretrained: bool, checkpoint: str | Path | None) -> _Start:
    """Read the weights that training starts from."""
    if checkpoint is not None:
        with clear_errors(str(checkpoint)):
            weights = read_weights(Path(checkpoint))
        card = weights.card
        if card is None:
            return _Start(weights)
        return _Start(weights, card.preprocessing, card.num_classes, card.class_names)
    if not pretrained:
        return _Start()
    own = load_model(replace(parse_model(model), remedies=()))
    weights = Weights(own.layers.state_dict(), own.name)
    return _Start(weights, own.preprocessing, own.num_classes, own.class_names)


def _require_start(recipe: Recipe, name: str, start: _Start, new: Sequence[str]) -> None:
    """Raise UsageError for a start that the recipe cannot use: random weights would remain."""
    if recipe.learns:
        return
    what = f"recipe {recipe.name} trains no weights and needs"
    if start.weights is None:
        raise UsageError(f"{what} trained weights of {name}: add --pretrained or --checkpoint")
    if new:
        raise UsageError(
            f"{what} weights with the classes of the data, and these leave {', '.join(new[:2])} of "
            f"{name} random: fine-tune first, and start from that export"
        )
