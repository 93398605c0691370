"""`shiftbench run`: evaluate models under attacks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shiftbench.data import ImageSet, load_dataset
from shiftbench.errors import UsageError
from shiftbench.models import default_models, parse_models
from shiftbench.models.names import require_one_model
from shiftbench.records.choose import RUNS
from shiftbench.records.record import Record, log_record, read_record, record_folder
from shiftbench.running.distributed import Group, Shard
from shiftbench.running.engine import AUTO, ENGINES, PRECISIONS
from shiftbench.running.job import Settings
from shiftbench.running.runner import Execution
from shiftbench.running.suite import Measurement, read_suite, run_suite
from shiftbench_cli import options, scoreboard
from shiftbench_cli.gates import EXIT_CODE, parse_gates, worse_than
from shiftbench_cli.progress import run_progress
from shiftbench_cli.submit import SYSTEMS, follow, submit


def _batch_size(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """None stands for `auto`."""
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"expected auto or a whole number of 1 or more, got {value!r}")
    return int(value)


@click.command(cls=options.SharedCommand, name="run")
@click.argument("suite", required=False, shell_complete=options.complete_suites)
@options.models(named=True)
@options.checkpoint
@options.strip_prefix
@click.option("--name", help="Name to show in records and tables; same as -m NAME=MODEL.")
@options.suite_data
@options.root
@click.option("--split", help="Part of the data set. Default: the usual evaluation split.")
@click.option(
    "-a",
    "--attack",
    "attacks",
    multiple=True,
    default=("all",),
    metavar="NAME[:STEP]",
    help="Attack to run, all (default) or none; bilinear:1/4 has steps of 1/4 px; repeatable.",
    shell_complete=options.names_of("attacks", "all", "none"),
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
    shell_complete=options.names_of("metrics"),
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
    type=click.Choice([AUTO, *ENGINES]),
    default=AUTO,
    show_default=True,
    help="Backend of the forward pass; onnx is ONNX Runtime, auto takes it on a CPU where it pays.",
)
@options.nproc
@options.shard
@click.option(
    "--submit",
    "system",
    type=click.Choice(SYSTEMS),
    default="no",
    help="Submit the command as an array of jobs to SLURM, or as processes of this machine.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=8, show_default=True, help="Jobs to submit."
)
@click.option(
    "--slurm", metavar="KEY=VALUE,...", help="Of the jobs, such as partition=gpu,time=60,gpus=1."
)
@click.option("--wait", is_flag=True, help="Follow submitted jobs to their end.")
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
    help="Where records go. Default: results/runs; of a suite, the folder of its name below.",
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
@options.printed("json", "csv")
@options.board
@options.plugins
@options.quiet
@click.pass_context
def command(
    ctx: click.Context,
    /,
    suite: str | None,
    root: Path | None,
    models: tuple[str, ...],
    checkpoint: Path | None,
    strip_prefix: str | None,
    name: str | None,
    data: tuple[str, ...],
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
    system: str,
    jobs: int,
    slurm: str | None,
    wait: bool,
    output: Path | None,
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

    SUITE is a whole benchmark: a YAML file with models, data and settings, or paper or board, which
    come with shiftbench. Options that are given hold for all of it; --model chooses some of its
    models, --data says where its data sets are.

    With no options: the bundled models on the embedded data set `scenes`, every attack. Without
    --model: the bundled models that were trained on --data.

    A model of your own is FILE.py:FUNCTION. The function returns the model, or the model and what
    it expects of images: {"input_size": 96, "mean": 0.5, "std": 0.5}, or its transform.
    """
    about: dict[str, Any] = {"checkpoint": checkpoint, "strip_prefix": strip_prefix}
    about |= {"split": split, "class_map": class_map}
    if suite is None and len(data) > 1:
        raise UsageError(f"expected one --data without a suite, got {len(data)}")
    for option, value in {"name": name, **about}.items() if suite is not None else ():
        if value is not None:
            raise UsageError(f"--{option.replace('_', '-')} is of one model: write it into {suite}")
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
    place = output or (RUNS if suite is None else RUNS / Path(suite).stem)

    @cache
    def opened(data: str, split: str | None, class_map: Path | None) -> ImageSet:
        return load_dataset(
            data, split=split, download=download, class_map=class_map, verify=verify_data
        )

    def plan() -> list[Measurement]:
        """What is to be measured; options that were given hold for every run of a suite."""
        if suite is not None:
            given = {k: v for k, v in choices.items() if _is_given(ctx, k, full_grid=full_grid)}
            runs = read_suite(suite, root=root, data=data, models=models)
            return [replace(one, settings=replace(one.settings, **given)) for one in runs]
        spec = data[0] if data else "scenes"
        dataset = opened(spec, split, class_map)
        used = settings.for_data(dataset)
        specs = parse_models(models or default_models(dataset.name))
        specs = [replace(one, label=name or one.label) for one in specs]
        return [Measurement(one, used, spec, **about) for one in specs]

    def work(group: Group) -> int:
        with group.raise_on_all_ranks():
            runs = plan()
            gates = []
            if fail_under or fail_over:
                gates = parse_gates(fail_under, fail_over, [one.settings for one in runs])
            baseline = None if fail_worse is None else read_record(fail_worse)
        records: dict[str, Record] = {}  # by model and data
        problems: dict[str, list[str]] = {}  # sentence -> the models that failed so
        with run_progress(quiet=quiet, speak=group.is_main) as progress:
            for outcome in run_suite(
                runs,
                place,
                load_data=lambda one: opened(one.data, one.split, one.class_map),
                execution=Execution(device, batch_size, workers, group, shard),
                fresh=not resume,
                callback=progress.model,
            ):
                shown, result = outcome.name, outcome.result
                if outcome.error is not None and suite is None and len(runs) == 1:
                    raise outcome.error
                if result is None:
                    problems.setdefault(str(outcome.error), []).append(shown)
                    progress.remark(f"{shown} failed: see the error at the end")
                elif result.record is None or result.requested is None:
                    progress.remark(f"{shown}: {result.left} images left to other shards")
                else:
                    record = result.record
                    folder = record_folder(place, record.model.name, record.data.name)
                    records[folder.name] = result.requested if suite is None else record
                    if result.reused:
                        progress.remark(f"{shown}: already complete: {record.folder}")
                    if group.is_main and logs:
                        log_record(record, logs, place / "logs" / folder.name)
        finished = list(records.values())
        complaints = [words for gate in gates for words in map(gate.complaint, finished) if words]
        if baseline is not None:
            complaints += [words for record in finished for words in worse_than(baseline, record)]
        if group.is_main:
            scoreboard.print_run(finished, kind, board=board)
            for sentence, names in problems.items():
                click.echo(f"error: {', '.join(dict.fromkeys(names))} failed: {sentence}", err=True)
            for complaint in complaints:
                click.echo(f"failed: {complaint}", err=True)
        return 1 if problems else EXIT_CODE if complaints else 0

    if system != "no":
        plan()  # mistakes are told now, not by every job
        logs_folder = place / "jobs"
        words = ["run", *ctx.meta["words"]]
        sent = submit(words, logs_folder, system=system, jobs=jobs, options=slurm)
        click.echo(f"{jobs} jobs, {sent[0].job_id} the first: logs in {logs_folder}", err=True)
        if not wait:
            return 0
        failed = follow(sent)
        for sentence in failed:
            click.echo(f"error: {sentence}", err=True)
        if failed:
            return 1
    return options.share(ctx, work, nproc=nproc, device=device)


def _is_given(ctx: click.Context, option: str, *, full_grid: bool) -> bool:
    """Whether an option stands on the command line, --full-grid for the mode."""
    return ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE or (
        full_grid and option == "mode"
    )
