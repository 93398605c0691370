"""`shiftbench train`: train or fine-tune any model with a named recipe."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from torch import Tensor

from aft_models import PRESETS
from aft_models.training.checkpoint import Identity
from aft_models.training.device import PRECISIONS, DeviceConfig
from aft_models.training.export import Source, export
from aft_models.training.finetune import load_backbone
from aft_models.training.logbook import Row
from aft_models.training.loop import train
from aft_models.training.meter import Progress
from aft_models.training.recipe import ModelInput, Recipe, override
from aft_models.training.recipes import get_recipe
from aft_models.weights import state_dict_digest
from shiftbench.data import load_dataset
from shiftbench.errors import UsageError
from shiftbench.logs import open_logs
from shiftbench.models import Preprocessing, build_model, load_model
from shiftbench.models.checkpoint import read_weights, without_prefixes
from shiftbench.models.classifier import Classifier
from shiftbench.models.names import parse_name, split_remedies
from shiftbench.registry import unknown_name
from shiftbench.run.engine import choose_device
from shiftbench.run.processes import Group
from shiftbench.statistics import wilson
from shiftbench.training import BatchBuilder, EpochEvaluator, images_of
from shiftbench_cli import completion, options, render
from shiftbench_cli.processes import SharedCommand, share

LINE_SECONDS = 10.0  # between two lines of progress


@dataclass(frozen=True)
class Request:
    """The options of the command, as click hands them over."""

    model: str
    data: str
    recipe: str
    changes: tuple[str, ...]
    output: Path
    tag: str | None
    pretrained: bool
    checkpoint: Path | None
    train_split: str
    split: str | None
    limit: int | None
    download: bool
    score_every: int
    shift_every: int
    shift_images: int
    workers: int
    device: str
    precision: str
    compiled: bool
    channels_last: bool
    nproc: int
    seed: int
    resume: bool
    logs: tuple[str, ...]
    form: str
    quiet: bool

    def check(self) -> str:
        """Refuses what contradicts itself before anything is loaded; returns the architecture."""
        if self.pretrained and self.checkpoint is not None:
            raise UsageError("--pretrained and --checkpoint both give weights: leave one out")
        if self.tag is not None and not re.fullmatch(r"\w[\w-]*", self.tag):
            raise UsageError(
                f"--tag takes letters, digits, _ and -, as in cifar10, got {self.tag!r}"
            )
        plain, _ = split_remedies(self.model)
        if Path(plain).is_dir():
            raise UsageError(
                f"{plain} is a folder: name the model with -m, and give the folder's weights with "
                "--checkpoint"
            )
        spec = parse_name(plain)
        if spec.source != "bundled":
            return plain
        architecture, _, tag = spec.name.partition(".")
        if architecture not in PRESETS:
            raise unknown_name("model to train", architecture, PRESETS)
        if self.pretrained and not tag:
            raise UsageError(
                f"--pretrained starts from bundled weights, and {self.model!r} names none: add "
                "their tag, as in xcit_pico_6_p4_af.cifar10, or give a file with --checkpoint"
            )
        if tag and not self.pretrained:
            raise UsageError(
                f"{self.model!r} names trained weights: add --pretrained to start from them, or "
                f"train {architecture!r} from scratch"
            )
        return architecture


@dataclass(frozen=True)
class Start:
    """The weights that training starts from."""

    state: Mapping[str, Tensor]  # empty: random ones
    preprocessing: Preprocessing | None = None  # what they were trained on, where it is known


@click.command(cls=SharedCommand, name="train")
@click.option(
    "-m",
    "--model",
    required=True,
    help="Model to train, named as for `run`: timm:resnet50+af, ...",
    shell_complete=completion.models,
)
@click.option(
    "-d",
    "--data",
    required=True,
    metavar="NAME[:PATH]",
    help="Images to train on.",
    shell_complete=completion.datasets,
)
@click.option(
    "--recipe",
    required=True,
    help="See `shiftbench list recipes`.",
    shell_complete=completion.recipes,
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Override a field of the recipe; repeatable.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Run folder.")
@click.option("--tag", help="Names the exported weights, MODEL.TAG. Default: the data set's name.")
@click.option("--pretrained", is_flag=True, help="Fine-tune the model's own weights.")
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), help="Fine-tune weights from a file or folder."
)
@click.option("--train-split", default="train", show_default=True, help="Split to train on.")
@click.option("--split", help="Split to score on. Default: the usual evaluation split.")
@click.option("--limit", type=click.IntRange(min=1), help="Balanced subset of either part.")
@click.option("--download", is_flag=True, help="Download the data set if it is missing.")
@click.option(
    "--score-every", default=1, show_default=True, help="Epochs between accuracies; 0: at end."
)
@click.option(
    "--shift-every", default=10, show_default=True, help="Epochs between shift scores; 0: at end."
)
@click.option("--shift-images", default=500, show_default=True, help="Images for shift scores.")
@click.option(
    "-j",
    "--workers",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Data loading processes.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda[:i] or mps.")
@click.option(
    "--precision",
    type=click.Choice(list(PRECISIONS)),
    default="fp32",
    show_default=True,
    help="Arithmetic of the forward and backward pass.",
)
@click.option("--compile", "compiled", is_flag=True, help="torch.compile the model.")
@click.option("--channels-last", is_flag=True, help="Use the channels-last memory layout.")
@click.option(
    "--nproc", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes."
)
@click.option(
    "--seed", default=0, show_default=True, help="Seed of initial weights, order and augmentation."
)
@click.option(
    "--resume/--fresh", default=True, help="Continue from the last epoch (default), or start over."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format on stdout.",
)
@click.option("-q", "--quiet", is_flag=True, help="Hide progress.")
@options.logs
@options.plugins
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Train or fine-tune any model, with or without remedies, with a named recipe.

    The run folder gets last.pt and best.pt, log.csv, curves.png and, at the end, export/: weights
    with a card that `shiftbench run -m MODEL --checkpoint DIR/export` takes.
    """
    request = Request(**options)
    architecture = request.check()
    recipe = override(get_recipe(request.recipe).for_model(architecture), request.changes)
    return share(
        ctx,
        lambda group: _train(request, recipe, group),
        nproc=request.nproc,
        device=request.device,
    )


def _train(request: Request, recipe: Recipe, processes: Group) -> int:
    machine = DeviceConfig(
        choose_device(request.device, local_rank=processes.local_rank),
        request.precision,
        request.compiled,
        request.channels_last,
    )
    data, scored = (
        load_dataset(
            request.data,
            split=split,
            limit=request.limit,
            seed=request.seed,
            download=request.download,
        )
        for split in (request.train_split, request.split)
    )
    start = _start(request)
    built = _build(request, recipe, len(data.class_names), start)
    recipe = recipe.for_input(_model_input(start.preprocessing or built.preprocessing))
    if start.state:
        fitting = without_prefixes(start.state, built.network.state_dict())
        new = load_backbone(built.network, fitting, size=recipe.image_size)
        if new and processes.is_main and not request.quiet:
            click.echo(f"new, to be learnt: {', '.join(new)}", err=True)
    inputs = BatchBuilder(recipe, processes, request.workers, request.seed)
    identity = Identity(
        built.name,
        recipe,
        request.seed,
        len(data.class_names),
        data=images_of(data, request.limit),
        scored={
            **asdict(images_of(scored, request.limit)),
            "shift_images": request.shift_images,
        },
        start=state_dict_digest(start.state) if start.state else "",
    )
    scores = EpochEvaluator(
        scored,
        inputs,
        machine,
        every=request.score_every,
        shift_every=request.shift_every,
        shift_images=request.shift_images,
    )
    logs = request.logs if processes.is_main else ()
    with open_logs(logs, request.output, request.model, identity.as_dict()) as log:
        outcome = train(
            built.network,
            inputs.training(data),
            identity=identity,
            folder=request.output,
            machine=machine,
            processes=processes,
            evaluate=scores,
            report=_Lines(quiet=request.quiet or not processes.is_main),
            log=log,
            resume=request.resume,
        )
    if processes.is_main:
        folder = export(
            outcome,
            request.output / "export",
            identity=identity,
            source=Source(
                request.tag or data.name,
                f"{data.name} {data.split}, {len(data)} images",
                data.class_names,
            ),
            images=scores.counts,
        )
        _print_result(outcome.rows[-1], scores.counts, folder, request.form)
    return 0


def _start(request: Request) -> Start:
    if request.checkpoint is not None:
        weights = read_weights(request.checkpoint)
        return Start(weights.state, weights.preprocessing)
    if request.pretrained:
        found = load_model(split_remedies(request.model)[0])
        return Start(found.network.state_dict(), found.preprocessing)
    return Start({})


def _build(request: Request, recipe: Recipe, classes: int, start: Start) -> Classifier:
    """The model with the same random weights in every process."""
    size = recipe.image_size or (start.preprocessing.input_size if start.preprocessing else None)
    options = {"drop_path_rate": recipe.drop_path} if recipe.drop_path else {}
    return build_model(
        request.model, classes=classes, size=size, seed=request.seed, options=options
    )


def _model_input(recipe: Preprocessing) -> ModelInput:
    return ModelInput(recipe.input_size, recipe.interpolation, recipe.mean, recipe.std)


class _Lines:
    """A line of progress on stderr now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._quiet or (now - self._last < LINE_SECONDS and progress.update != progress.updates):
            return
        self._last = now
        left = timedelta(seconds=round(progress.seconds_left))
        click.echo(
            f"epoch {progress.epoch + 1}/{progress.epochs}  update {progress.update}/"
            f"{progress.updates}  loss {progress.loss:.3f}  "
            f"{progress.images_per_second:.0f} img/s  {left} left",
            err=True,
        )


def _print_result(row: Row, counts: Mapping[str, int], folder: Path, form: str) -> None:
    scores = {name: wilson(round(row[name] * n), n) for name, n in counts.items()}
    if form == "json":
        found = {name: vars(score) for name, score in scores.items()}
        click.echo(json.dumps({"export": str(folder), "epochs": row["epoch"], "scores": found}))
        return
    for name, score in scores.items():
        click.echo(f"{name.replace('_', ' ')}: {render.shown(score)}, n={score.n:,}")
    click.echo(f"weights: {folder}")
