"""`shiftbench train`: train or fine-tune a model with a named recipe."""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta
from typing import Any

import click

from aft_models.errors import AftModelsError
from aft_models.training.progress import Progress
from shiftbench.errors import ShiftbenchError
from shiftbench.training import Trained, train
from shiftbench.training.processes import in_torchrun, is_launched, joined, launch
from shiftbench_cli import options, render
from shiftbench_cli.main import INTERRUPTED, explain
from shiftbench_cli.options import COUNT, PATH, Choice, Group
from shiftbench_cli.processes import interruptible

# Warnings of torch about workers and memory layout, which no user can fix.
RAW_WARNINGS = ("This DataLoader will create", "Grad strides do not match", ".*find_unused_param.*")
LINE_SECONDS = 10.0  # between two lines of progress
MODEL, DATA, TRAINING, EVALUATION, EXECUTION, OUTPUT = map(
    Group, ("Model", "Data", "Training", "Evaluation", "Execution", "Output")
)


@options.command("train")
@MODEL(
    "-m --model",
    "MODEL",
    "Model to train, e.g. timm:resnet50+blurpool.",
    required=True,
    shell_complete=options.complete_models,
)
@MODEL.flag("--pretrained", "Fine-tune the pretrained weights of the model.")
@MODEL("--checkpoint", "PATH", "Fine-tune weights from a file or folder.", type=PATH)
@options.strip_prefix(MODEL)
@options.data("Dataset to train on.", group=DATA, required=True)
@DATA("--train-split", "NAME", "Split to train on.", default="train")
@DATA("--eval-split split", "NAME", "Split to evaluate on.  [default: the usual test split]")
@options.limit("Use a class-balanced subset of N images of each split.", group=DATA)
@DATA.flag("--unlabeled", "The images have no classes.", rare=True)
@DATA.flag("--download", "Download a missing dataset.", rare=True)
@TRAINING(
    "--recipe",
    "NAME",
    "See `shiftbench list recipes`.",
    required=True,
    shell_complete=options.names_of("recipes"),
)
@TRAINING(
    "--set changes", "FIELD=VALUE", "Change a field of the recipe; repeatable.", multiple=True
)
@TRAINING("--seed", "N", "Seed of initial weights, order and augmentation.", default=0)
@TRAINING(
    "--precision",
    "NAME",
    "fp32, or bf16 and fp16 with CUDA.",
    type=Choice(["fp32", "bf16", "fp16"]),
    default="fp32",
)
@EVALUATION("--eval-every score_every", "N", "Epochs between accuracies; 0: at the end.", default=1)
@EVALUATION("--shift-every", "N", "Epochs between shift scores; 0: at the end.", default=10)
@EVALUATION("--shift-limit shift_images", "N", "Images of shift scores.", type=COUNT, default=500)
@options.device(EXECUTION)
@EXECUTION("-j --workers", "N", "Data-loading processes.", type=click.IntRange(0), default=4)
@EXECUTION("--nproc", "N", "Processes (one GPU each) that share a batch.", type=COUNT, default=1)
@EXECUTION.flag("--compile compiled", "Compile the model with torch.compile.", rare=True)
@EXECUTION.flag("--channels-last", "Use the channels-last memory layout.", rare=True)
@OUTPUT("-o --output", "DIR", "Directory of the training.", type=PATH, required=True)
@OUTPUT("--tag", "NAME", "Name of the weights, MODEL.TAG.  [default: the dataset]")
@OUTPUT.flag("--fresh", "Start over instead of resuming.")
@options.printed("json", group=OUTPUT)
@options.quiet(OUTPUT)
@options.loggers(OUTPUT)
@options.plugins(OUTPUT)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    nproc: int,
    device: str,
    fresh: bool,
    kind: str,
    quiet: bool,
    loggers: tuple[str, ...],
    **fields: Any,
) -> int:
    r"""Train or fine-tune a model, with or without remedies. Repeat a command to resume.

    DIR receives last.pt and best.pt, log.csv, curves.png and, at the end, export/: weights that
    `shiftbench run -m MODEL --checkpoint DIR/export` loads.

    \b
    shiftbench train -m timm:resnet50 --pretrained -d folder:/photos --recipe finetune -o runs/mine
    """
    if nproc > 1 and not in_torchrun():
        return launch(nproc, ["shiftbench_cli", "train", *ctx.meta["words"]])
    began = time.monotonic()
    for message in RAW_WARNINGS:
        warnings.filterwarnings("ignore", message)
    with interruptible(), joined(device) as processes:
        try:
            trained = train(
                **fields,
                device=device,
                resume=not fresh,
                logs=loggers,
                progress=None if quiet else _Lines(),
                notice=None if quiet else render.note,
                processes=processes,
            )
        except (ShiftbenchError, AftModelsError) as error:
            if processes.is_main:
                raise
            return explain(error)[1]  # the main process prints the same error
        except KeyboardInterrupt:
            if processes.is_main and not is_launched():
                raise
            sys.exit(INTERRUPTED)  # the launcher prints it
        if processes.is_main:
            _print_result(trained, kind)
            if not quiet:
                seconds = timedelta(seconds=round(time.monotonic() - began))
                render.note(f"total time: {seconds}")
    return 0


class _Lines:
    """Lines of progress on stderr."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < LINE_SECONDS and progress.update != progress.updates:
            return
        self._last = now
        left = timedelta(seconds=round(progress.seconds_left))
        term = progress.consistency_loss
        render.note(
            f"epoch {progress.epoch + 1}/{progress.epochs}  update {progress.update}/"
            f"{progress.updates}  loss {progress.loss:.3f}  "
            + ("" if term is None else f"consistency loss {term:.4f}  ")
            + f"{progress.images_per_second:.0f} img/s  {left} left"
        )


def _print_result(trained: Trained, kind: str) -> None:
    if kind == "json":
        scores = {name: vars(score) for name, score in trained.scores.items()}
        epochs = trained.rows[-1]["epoch"]
        render.print_json({"export": str(trained.folder), "epochs": epochs, "scores": scores})
        return
    for name, score in trained.scores.items():
        render.print_text(f"{name.replace('_', ' ')}: {render.shown(score)}, n={score.n:,}\n")
    render.print_text(f"weights: {trained.folder}\n")
