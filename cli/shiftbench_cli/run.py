"""`shiftbench run`: evaluate models under image shifts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aft_models.errors import AftModelsError
from shiftbench.errors import ShiftbenchError, UsageError
from shiftbench.models.names import parse_models, require_one_model
from shiftbench.running import PRECISIONS
from shiftbench.running.shards import NO_IMAGES, Shard, shard_of_environment
from shiftbench_cli import options
from shiftbench_cli.main import MISSED, explain
from shiftbench_cli.options import COUNT, PATH, Choice, Group
from shiftbench_cli.processes import end_with_parent, interruptible, is_worker, leave, run_shards

if TYPE_CHECKING:  # imported in functions: help and wrong names need no torch
    from shiftbench.records.result import Result
    from shiftbench.report.thresholds import Limit
    from shiftbench.running.runner import Execution
    from shiftbench.running.suite import RunSpec
    from shiftbench_cli.progress import RunProgress

OF_ONE_RUN = ("name", "checkpoint", "strip_prefix", "split", "class_map")


def _batch_size(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Read a number, or None for `auto`."""
    if value != "auto" and (not value.isdecimal() or int(value) < 1):
        raise click.BadParameter(f"expected auto or an integer of 1 or more, got {value!r}")
    return None if value == "auto" else int(value)


def _attacks(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Split `crop,half`; name the attacks of a shift type that is no attack itself."""
    names = tuple(name.strip() for value in values for name in value.split(",") if name.strip())
    for name in {"sinc", "cyclic"} & {*names}:
        raise UsageError(
            f"unknown attack {name!r}: cyclic shifts are the attacks integer (1 px) and half "
            "(1/2 px). Use --attack integer,half"
        )
    return names


def _shard(ctx: click.Context, param: click.Parameter, text: str | None) -> Shard:
    """Read the shard of the option, else that of a scheduler."""
    if text is not None or ctx.resilient_parsing:
        return Shard.parse(text or "1/1")
    shard, source = shard_of_environment() or (Shard(), "")
    if source and not is_worker():
        click.echo(f"shard {shard} ({source})", err=True)
    return shard


MODEL, DATA, EVALUATION, EXECUTION = map(Group, ("Model", "Data", "Evaluation", "Execution"))
OUTPUT, CHECKS = map(Group, ("Output", "CI checks (exit code 3)"))


@options.command("run")
@click.argument("suite", required=False, shell_complete=options.complete_suites)
@options.models("Model to evaluate, e.g. timm:resnet50+align:8; repeatable.", group=MODEL)
@options.checkpoint(MODEL)
@options.strip_prefix(MODEL)
@MODEL("--name", "NAME", "Name of the model in records; same as -m NAME=MODEL.", rare=True)
@options.data(
    "Dataset, e.g. imagenet:/data or folder:/photos.  [default: scenes]", group=DATA, multiple=True
)
@DATA("--split", "NAME", "Dataset split.  [default: the usual test split]")
@options.limit("Evaluate a fixed, class-balanced subset of N images.", group=DATA)
@DATA("--class-map", "FILE", "JSON or CSV: class name to model output index.", type=PATH)
@DATA("--crop-pct", "RULE", "Resize: paper (256/224), model, or a fraction.", default="paper")
@DATA(
    "--pad",
    "MODE",
    "If an image is too small to shift: none, reflect, zeros.",
    type=Choice(["none", "reflect", "zeros"]),
    default="none",
)
@DATA(
    "--scale",
    "N",
    "Camera px per network px.  [default: 2 with align or camera on files, else 1]",
    type=COUNT,
)
@DATA.flag("--download", "Download a missing dataset.", rare=True)
@DATA.flag("--skip-bad", "Leave out unreadable images.", rare=True)
@options.suite_root(DATA)
@EVALUATION(
    "-a --attack attacks",
    "NAME[:STEP]",
    "crop, camera, bilinear, integer, half, all or none; repeatable.  [default: all]",
    multiple=True,
    default=("all",),
    callback=_attacks,
    shell_complete=options.names_of("attacks", "all", "none"),
)
@EVALUATION(
    "--max-shift",
    "STEPS",
    "Grid radius.  [default: 6 = crop 6 px, half 3 px, bilinear 1 px; camera 3 = 1 px]",
    type=click.IntRange(0),
)
@EVALUATION(
    "--metric metrics",
    "NAME",
    "Additional metric, see `shiftbench list metrics`; repeatable.",
    multiple=True,
    shell_complete=options.names_of("metrics"),
)
@EVALUATION(
    "--score-threshold",
    "SCORE",
    "Score from which a detection counts.  [default: the model's own]",
    rare=True,
    type=float,
)
@EVALUATION.flag("--ap", "Also print AP of a detector at every offset.", rare=True)
@EVALUATION.flag("--no-consistency", "Skip the random-shift consistency metrics.")
@EVALUATION.flag("--full-grid", "Do not stop at an image's first error (for heat maps).")
@EVALUATION("--step", "PIXELS", "Distance of offsets, e.g. 1/4.  [default: per attack]", rare=True)
@EVALUATION("--attack-limit", "N", "Attack only N of the images.", rare=True, type=COUNT)
@EVALUATION(
    "--consistency-samples", "N", "Random shifts per image.", rare=True, type=COUNT, default=1
)
@EVALUATION("--seed", "N", "Seed of random shifts and of subsets.", rare=True, default=0)
@EVALUATION(
    "--precision", "|".join(PRECISIONS), "Arithmetic of the model.", rare=True, default="fp32"
)
@options.device(EXECUTION)
@EXECUTION(
    "-b --batch-size",
    "N|auto",
    "Images per forward pass; does not affect scores.",
    default="auto",
    callback=_batch_size,
)
@EXECUTION("-j --workers", "N", "Data-loading processes.", type=click.IntRange(0))
@options.nproc(EXECUTION)
@EXECUTION(
    "--shard",
    "i/N",
    "Predict this share of the images.  [default: that of a job array]",
    rare=True,
    callback=_shard,
)
@EXECUTION(
    "--submit", "slurm", "Submit the command as a job array.", rare=True, type=Choice(["slurm"])
)
@EXECUTION("--jobs", "N", "Tasks of the job array.", rare=True, type=COUNT, default=8)
@EXECUTION(
    "--slurm",
    "KEY=VALUE,...",
    "Options of sbatch, e.g. partition=gpu,time=60,gpus=1.",
    rare=True,
    default="",
)
@EXECUTION.flag("--wait", "Wait until the job array has ended.", rare=True)
@EXECUTION.flag("--dry-run", "Print the job script; submit nothing.", rare=True)
@OUTPUT("-o --output", "DIR", "Directory for records.  [default: results/runs]", type=PATH)
@OUTPUT.flag("--fresh", "Discard existing records instead of resuming.")
@OUTPUT.flag("--leaderboard", "Rank the results among the public models.")
@options.printed("json", "csv", group=OUTPUT)
@options.quiet(OUTPUT)
@options.loggers(OUTPUT)
@options.plugins(OUTPUT)
@CHECKS(
    "--fail-below",
    "SCORE=X",
    "Fail if SCORE < X, e.g. adversarial_crop=0.7; repeatable.",
    multiple=True,
)
@CHECKS(
    "--fail-above",
    "SCORE=X",
    "Fail if SCORE > X, e.g. change_integer=0.05; repeatable.",
    multiple=True,
)
@CHECKS(
    "--fail-if-worse",
    "RECORD",
    "Fail if a score is significantly worse than in RECORD.",
    type=PATH,
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    suite: str | None,
    suite_root: Path | None,
    models: tuple[str, ...],
    data: tuple[str, ...],
    no_consistency: bool,
    ap: bool,
    device: str,
    batch_size: int | None,
    workers: int | None,
    nproc: int,
    shard: Shard,
    submit: str | None,
    jobs: int,
    slurm: str,
    wait: bool,
    dry_run: bool,
    output: Path | None,
    fresh: bool,
    leaderboard: bool,
    kind: str,
    quiet: bool,
    loggers: tuple[str, ...],
    fail_below: tuple[str, ...],
    fail_above: tuple[str, ...],
    fail_if_worse: Path | None,
    **fields: Any,
) -> int:
    r"""Evaluate models under image shifts and print one row of scores per model.

    SUITE is a YAML file of runs; options that are typed win over it. Repeat a command to resume.

    \b
    shiftbench run -m timm:resnet50 -d imagenet:/data -a crop --max-shift 3
    shiftbench run -m net.py:build -m net.py:build+align:8 -d folder:/photos -a crop
    """
    if suite is None:
        parse_models(models)  # a wrong name is an error before torch is imported
    from shiftbench.logs import log_result
    from shiftbench.records.folder import RUNS, load_record, record_folder
    from shiftbench.report.public import public_results
    from shiftbench.report.scores import DEFAULT_SORT, score_cells
    from shiftbench.report.scores import leaderboard as build_tables
    from shiftbench.report.thresholds import missed, worse
    from shiftbench.running.predict import choose_device
    from shiftbench.running.runner import Execution
    from shiftbench.running.suite import read_suite
    from shiftbench_cli import render
    from shiftbench_cli.progress import run_progress
    from shiftbench_cli.submit import count_rounds_anew, submit_slurm

    given = options.typed(ctx, fields)
    if no_consistency:
        given["consistency"] = fields["consistency"] = ()
    if suite is None:
        specs = _specs(models, data, fields)
    else:
        for key in given.keys() & {*OF_ONE_RUN}:
            raise UsageError(f"--{key.replace('_', '-')} is of one run. Write it into {suite}")
        specs = read_suite(suite, root=suite_root, data=data, models=models)
        specs = [spec.changed(**given) for spec in specs]
    limits = _limits(specs, fail_below, fail_above)
    baseline = None if fail_if_worse is None else load_record(fail_if_worse)
    folder = output or (RUNS if suite is None else RUNS / Path(suite).stem)
    if submit is not None:
        words = ctx.meta["words"]
        return submit_slurm(words, folder, jobs=jobs, slurm=slurm, wait=wait, dry_run=dry_run)
    choose_device(device)  # an error before anything is loaded
    execution = Execution(device, batch_size, workers, shard, average_precision=ap)
    printed, code = set[str](), 0
    end_with_parent()
    with interruptible(), run_progress(quiet=quiet, piped=is_worker()) as progress:
        if nproc > 1 and not is_worker():
            if fresh:
                _discard(specs, folder)
            words = [word for word in ctx.meta["words"] if word != "--fresh"]
            codes, printed = run_shards(words, shard.split(nproc), progress)
            code, fresh = max(0, *codes), False
            if code:  # the same error would occur in this process
                execution = replace(execution, shard=NO_IMAGES)
        try:
            results, errors = _evaluate(
                specs, folder, execution, progress, fresh=fresh, narrow=leaderboard
            )
        except (ShiftbenchError, AftModelsError) as error:
            if f"error: {explain(error)[0]}" in printed:
                return code
            raise
        finally:
            if progress.predicted:
                count_rounds_anew()
    for line in errors:
        if line not in printed:
            render.note(line)
    if is_worker():
        leave(1 if errors else 0)
    for result in results if loggers else ():
        name = record_folder(folder, result.model.name, result.data.name).name
        log_result(result, loggers, folder / "logs" / name)
    rivals = public_results() if leaderboard and kind == "table" else []
    sort = DEFAULT_SORT if leaderboard else "model"
    render.print_results(results, kind, build_tables(score_cells([*results, *rivals]), sort=sort))
    problems = missed(score_cells(results), limits)
    problems += [] if baseline is None else worse(baseline, results)
    for problem in problems:
        render.note(f"failed: {problem}")
    return code or (1 if errors else MISSED if problems else 0)


def _specs(models: Sequence[str], data: Sequence[str], fields: dict[str, Any]) -> list[RunSpec]:
    """Return the runs that options describe."""
    from shiftbench.models import default_models
    from shiftbench.running.suite import RunSpec

    if len(data) > 1:
        raise UsageError(f"expected one --data without a suite, got {len(data)}")
    source = data[0] if data else "scenes"
    if fields["checkpoint"] is not None:
        require_one_model(models)
    if fields["name"] is not None and len(models) != 1:
        raise UsageError(f"expected one --model with --name, got {len(models)}")
    texts = list(dict.fromkeys(models or default_models(source.partition(":")[0])))
    names = {text: model.label for text, model in zip(texts, parse_models(texts), strict=True)}
    fields = {**fields, "data": source}
    return [
        RunSpec(model=text, **{**fields, "name": fields["name"] or name})
        for text, name in names.items()
    ]


def _limits(specs: Sequence[RunSpec], below: Sequence[str], above: Sequence[str]) -> list[Limit]:
    """Read limits before a model is loaded."""
    from shiftbench.report.thresholds import Limit, planned_scores

    if not below and not above:
        return []
    # Scores of attacks that the data lacks are included.
    scores = planned_scores([spec.with_attacks(camera=True) for spec in specs])
    limits = [Limit.parse(text, above=False, scores=scores) for text in below]
    return limits + [Limit.parse(text, above=True, scores=scores) for text in above]


def _discard(specs: Sequence[RunSpec], folder: Path) -> None:
    from shiftbench.records.folder import record_folder

    for spec in specs:
        shutil.rmtree(record_folder(folder, spec.shown, spec.load_data().name), ignore_errors=True)


def _evaluate(
    specs: Sequence[RunSpec],
    folder: Path,
    execution: Execution,
    progress: RunProgress,
    *,
    fresh: bool,
    narrow: bool,
) -> tuple[list[Result], list[str]]:
    """Run everything; return results with the requested scores, and errors."""
    from shiftbench.report.public import narrowed
    from shiftbench.running.suite import run_all

    results: list[Result] = []
    failed: dict[str, list[str]] = {}  # error -> models
    prepare = narrowed if narrow else lambda dataset: dataset
    for outcome in run_all(
        specs, folder, execution=execution, fresh=fresh, prepare=prepare, callback=progress.run
    ):
        name, done = outcome.spec.shown, outcome.result
        if outcome.error is not None:
            if len(specs) == 1:
                raise outcome.error
            failed.setdefault(explain(outcome.error)[0], []).append(name)
        elif done is not None and done.requested is not None:
            results.append(done.requested)
            if done.complete and execution.shard.count == 1:
                progress.note(f"{name}: complete, in {done.requested.folder}")
        elif done is not None and not is_worker():
            progress.note(f"{name}: {done.left} images are left to other processes")
    return results, [f"error: {', '.join(who)} failed: {text}" for text, who in failed.items()]
