"""`shiftbench train`: train or fine-tune any model with a named recipe."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from aft_models.training.progress import Progress
from shiftbench.run.distributed import Group
from shiftbench.training import Trained, train
from shiftbench_cli import options, render

LINE_SECONDS = 10.0  # between two lines of progress


@click.command(cls=options.SharedCommand, name="train")
@options.model
@options.data("Images to train on.", required=True)
@click.option(
    "--recipe",
    required=True,
    help="See `shiftbench list recipes`.",
    shell_complete=options.names_of("recipes"),
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
@click.option(
    "--unlabeled",
    is_flag=True,
    help="Images without classes, for the recipe recalibrate.",
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
    help="Processes that load images.",
)
@options.device
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "fp16"]),
    default="fp32",
    show_default=True,
    help="Number format of the forward pass; bf16 and fp16 need CUDA.",
)
@click.option("--compile", "compiled", is_flag=True, help="torch.compile the model.")
@click.option("--channels-last", is_flag=True, help="Use the channels-last memory layout.")
@options.nproc
@click.option(
    "--seed", default=0, show_default=True, help="Of initial weights, order and augmentation."
)
@click.option(
    "--resume/--fresh", default=True, help="Continue from the last epoch (default), or start over."
)
@options.printed("json")
@options.quiet
@options.logs
@options.plugins
@click.pass_context
def command(
    ctx: click.Context, /, *, nproc: int, kind: str, quiet: bool, device: str, **choices: Any
) -> int:
    """Train or fine-tune any model, with or without remedies, with a named recipe.

    The run folder gets last.pt and best.pt, log.csv, curves.png and, at the end, export/: weights
    with a card that `shiftbench run -m MODEL --checkpoint DIR/export` takes.
    """

    def work(processes: Group) -> int:
        trained = train(
            **choices,
            device=device,
            progress=None if quiet else _Lines(),
            notice=None if quiet else lambda line: click.echo(line, err=True),
            processes=processes,
        )
        if processes.is_main:
            _print_result(trained, kind)
        return 0

    return options.share(ctx, work, nproc=nproc, device=device)


class _Lines:
    """A line of progress on stderr now and then."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < LINE_SECONDS and progress.update != progress.updates:
            return
        self._last = now
        left = timedelta(seconds=round(progress.seconds_left))
        term = progress.consistency_loss
        click.echo(
            f"epoch {progress.epoch + 1}/{progress.epochs}  update {progress.update}/"
            f"{progress.updates}  loss {progress.loss:.3f}  "
            + ("" if term is None else f"consistency loss {term:.4f}  ")
            + f"{progress.images_per_second:.0f} img/s  {left} left",
            err=True,
        )


def _print_result(trained: Trained, kind: str) -> None:
    if kind == "json":
        scores = {name: vars(score) for name, score in trained.scores.items()}
        epochs = trained.rows[-1]["epoch"]
        click.echo(json.dumps({"export": str(trained.folder), "epochs": epochs, "scores": scores}))
        return
    for name, score in trained.scores.items():
        click.echo(f"{name.replace('_', ' ')}: {render.shown(score)}, n={score.n:,}")
    click.echo(f"weights: {trained.folder}")
