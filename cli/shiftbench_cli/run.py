"""`shiftbench run`: evaluate models under attacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from aft_models.errors import AftModelsError
from shiftbench.data import load_dataset
from shiftbench.errors import ShiftbenchError, UsageError
from shiftbench.models import default_models, load_model, parse_models
from shiftbench.models.names import require_one_model
from shiftbench.records.log import log_record
from shiftbench.records.record import read_record, record_folder
from shiftbench.run.distributed import Group
from shiftbench.run.engine import ENGINES, PRECISIONS
from shiftbench.run.job import Settings
from shiftbench.run.runner import Execution, run
from shiftbench.run.shards import Shard
from shiftbench_cli import completion, options, report
from shiftbench_cli.gates import EXIT_CODE, parse_gates, worse_than
from shiftbench_cli.processes import SharedCommand, share
from shiftbench_cli.progress import run_progress


def _batch_size(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """None stands for `auto`."""
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"expected auto or a whole number of 1 or more, got {value!r}")
    return int(value)


@click.command(cls=SharedCommand, name="run")
@options.models(named=True)
@options.checkpoint
@options.strip_prefix
@click.option("--name", help="Name to show in records and tables; same as -m NAME=MODEL.")
@options.data
@click.option("--split", help="Part of the data set. Default: the usual evaluation split.")
@click.option(
    "-a",
    "--attack",
    "attacks",
    multiple=True,
    default=("all",),
    metavar="NAME[:STEP]",
    help="Attack to run, all (default) or none; bilinear:1/4 has steps of 1/4 px; repeatable.",
    shell_complete=completion.attacks,
)
@click.option("--max-shift", default=6, show_default=True, help="Radius of the grid, in steps.")
@click.option("--step", help="Pixels per step, such as 1/4. Default: each attack's own.")
@click.option(
    "--consistency/--no-consistency", default=True, help="Random-shift consistency. Default: on."
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="Extra metric to measure; repeatable.",
    shell_complete=completion.metrics,
)
@click.option("--repeats", default=1, show_default=True, help="Random shifts per image.")
@click.option(
    "--mode", default="exhaustive", show_default=True, help="exhaustive or sampled:K offsets."
)
@click.option("--full-grid", is_flag=True, help="Measure every offset of every image.")
@click.option("--limit", type=click.IntRange(min=1), help="Use a fixed, class-balanced subset.")
@click.option(
    "--search-limit", type=click.IntRange(min=1), help="Search the grids on a subset only."
)
@click.option(
    "--class-map", type=click.Path(path_type=Path), help="JSON or CSV: class name to index."
)
@click.option("--download", is_flag=True, help="Download the data set if it is missing.")
@click.option("--skip-bad", is_flag=True, help="Skip unreadable images and count them.")
@click.option("--verify-data", is_flag=True, help="Read every file to check the fingerprint.")
@click.option(
    "-b",
    "--batch-size",
    metavar="N|auto",
    default="auto",
    callback=_batch_size,
    help="Images per forward pass; auto (default) is the largest number that fits.",
)
@click.option("-j", "--workers", type=click.IntRange(min=0), help="Data loading processes.")
@options.device
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
    help="Arithmetic of the forward pass.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="torch",
    show_default=True,
    help="Backend of the forward pass; onnx is ONNX Runtime.",
)
@click.option(
    "--nproc", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes."
)
@options.shard
@click.option("--crop-pct", default="paper", show_default=True, help="paper, model or a fraction.")
@click.option(
    "--pad",
    type=click.Choice(["none", "reflect", "zeros"]),
    default="none",
    show_default=True,
    help="How to pad images that are too small for the shifts.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of random shifts and of --limit.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("results/runs"),
    show_default=True,
    help="Where records go.",
)
@click.option(
    "--resume/--fresh", default=True, help="Reuse finished work (default), or start over."
)
@click.option(
    "--fail-under",
    multiple=True,
    metavar="SCORE=NUMBER",
    help="Exit with code 3 if a score such as top1, or the end of its interval, top1_low, is lower "
    "than this fraction; repeatable.",
)
@click.option(
    "--fail-over",
    multiple=True,
    metavar="SCORE=NUMBER",
    help="The same for scores of which less is better, such as change_integer; repeatable.",
)
@click.option(
    "--fail-worse",
    type=click.Path(path_type=Path),
    metavar="RECORD",
    help="Exit with code 3 if a score is significantly worse than this record's.",
)
@options.logs
@options.printed
@options.board
@options.plugins
@click.option("-q", "--quiet", is_flag=True, help="Hide progress.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    models: tuple[str, ...],
    checkpoint: Path | None,
    strip_prefix: str | None,
    name: str | None,
    data: str,
    split: str | None,
    class_map: Path | None,
    download: bool,
    verify_data: bool,
    consistency: bool,
    full_grid: bool,
    batch_size: int | None,
    workers: int | None,
    device: str,
    nproc: int,
    shard: Shard | None,
    output: Path,
    resume: bool,
    fail_under: tuple[str, ...],
    fail_over: tuple[str, ...],
    fail_worse: Path | None,
    logs: tuple[str, ...],
    kind: str,
    board: bool,
    quiet: bool,
    **choices: Any,
) -> int:
    """Evaluate models under attacks.

    With no options: the bundled models on the embedded data set `scenes`, every attack. Without
    --model: the bundled models that were trained on --data.

    A model of your own is FILE.py:FUNCTION. The function returns the model, or the model and what
    it expects of images: {"input_size": 96, "mean": 0.5, "std": 0.5}, or its transform.
    """
    if checkpoint is not None:
        require_one_model(models)
    if name is not None and len(models) != 1:
        raise UsageError(f"--name is for one --model, and {len(models)} were given")
    if full_grid and choices["mode"] != "exhaustive":
        raise UsageError(f"--full-grid visits every offset: leave --mode {choices['mode']} out")
    if full_grid:
        choices["mode"] = "full_grid"
    if not consistency:
        choices["consistency"] = ()
    settings = Settings(**choices)  # every other option is a field of it

    def work(group: Group) -> int:
        with group.raise_on_all_ranks():
            dataset = load_dataset(
                data, split=split, download=download, class_map=class_map, verify=verify_data
            )
            gates = parse_gates(fail_under, fail_over, settings.for_data(dataset))
            baseline = None if fail_worse is None else read_record(fail_worse)
            specs = parse_models(models or default_models(dataset.name))
        execution = Execution(device, batch_size, workers, group, shard)
        records, problems = [], []
        with run_progress(quiet=quiet, speak=group.is_main) as progress:
            for model in specs:
                try:
                    with group.raise_on_all_ranks():
                        classifier = load_model(
                            model,
                            checkpoint=checkpoint,
                            strip_prefix=strip_prefix,
                            class_names=dataset.class_names,
                        )
                        classifier = replace(classifier, name=name or classifier.name)
                    result = run(
                        classifier,
                        dataset,
                        settings,
                        output,
                        execution=execution,
                        fresh=not resume,
                        callback=progress.model(classifier.name),
                    )
                except (ShiftbenchError, AftModelsError) as error:
                    if len(specs) == 1:
                        raise
                    problems.append(f"{model} failed: {error}")
                    progress.remark(f"{model} failed: see the error at the end")
                    continue
                if result.record is None or result.requested is None:
                    progress.remark(f"{classifier.name}: {result.left} images left to other shards")
                    continue
                records.append(result.requested)
                if result.reused:
                    progress.remark(f"{classifier.name}: already complete: {result.record.folder}")
                if group.is_main and logs:
                    folder = record_folder(output, classifier.name, dataset.name)
                    log_record(result.record, logs, output / "logs" / folder.name)
        complaints = [words for gate in gates for words in map(gate.complaint, records) if words]
        if baseline is not None:
            complaints += [words for record in records for words in worse_than(baseline, record)]
        if group.is_main:
            report.write(records, kind, board=board)
            for problem in problems:
                click.echo(f"error: {problem}", err=True)
            for complaint in complaints:
                click.echo(f"failed: {complaint}", err=True)
        return 1 if problems else EXIT_CODE if complaints else 0

    return share(ctx, work, nproc=nproc, device=device)
