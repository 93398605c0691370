"""`shiftbench run`: evaluate models under attacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from aft_models.errors import AftModelsError
from shiftbench.data import RenderedSet, load_dataset
from shiftbench.errors import ShiftbenchError, UsageError
from shiftbench.metrics import plan_metric
from shiftbench.models import default_models, load_model
from shiftbench.models.names import require_one_model
from shiftbench.records.log import log_record
from shiftbench.records.record import Record, read_record, record_folder
from shiftbench.run.distributed import Group
from shiftbench.run.engine import ENGINES, PRECISIONS
from shiftbench.run.job import Settings, attack_names
from shiftbench.run.runner import Execution, run
from shiftbench_cli import completion, options, report
from shiftbench_cli.gates import EXIT_CODE, parse_gates, worse_than
from shiftbench_cli.processes import SharedCommand, share
from shiftbench_cli.progress import run_progress

LARGE = 224  # pixels: names of scores do not depend on the size of the view


def _batch_size(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """None stands for `auto`."""
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"expected auto or a whole number of 1 or more, got {value!r}")
    return int(value)


@dataclass(frozen=True)
class Request:
    """The options of the command, as click hands them over."""

    models: tuple[str, ...]
    checkpoint: Path | None
    name: str | None
    data: str
    split: str | None
    attacks: tuple[str, ...]
    max_shift: int
    step: str | None
    consistency: bool
    metrics: tuple[str, ...]
    repeats: int
    mode: str
    full_grid: bool
    limit: int | None
    search_limit: int | None
    class_map: Path | None
    download: bool
    skip_bad: bool
    verify_data: bool
    batch_size: int | None
    workers: int | None
    device: str
    precision: str
    engine: str
    compiled: bool
    nproc: int
    crop_pct: str
    pad: str
    seed: int
    output: Path
    resume: bool
    fail_under: tuple[str, ...]
    fail_over: tuple[str, ...]
    fail_worse: Path | None
    logs: tuple[str, ...]
    kind: str
    quiet: bool

    def check(self) -> None:
        """Refuses options that contradict each other, before anything is loaded."""
        if self.checkpoint is not None:
            require_one_model(self.models)
        if self.name is not None and len(self.models) != 1:
            raise UsageError(
                f"--name is for the record of one --model, and {len(self.models)} were given"
            )
        if self.compiled and self.engine not in ("torch", "compile"):
            raise UsageError(f"--compile means --engine compile: leave --engine {self.engine} out")
        if self.full_grid and self.mode != "exhaustive":
            raise UsageError(f"--full-grid visits every offset: leave --mode {self.mode} out")

    def settings(self, *, camera: bool) -> Settings:
        """What can change a number."""
        return Settings(
            attacks=attack_names(self.attacks, camera=camera),
            max_shift=self.max_shift,
            step=self.step,
            mode="full_grid" if self.full_grid else self.mode,
            consistency=Settings.consistency if self.consistency else (),
            repeats=self.repeats,
            metrics=self.metrics,
            limit=self.limit,
            search_limit=self.search_limit,
            seed=self.seed,
            precision=self.precision,
            engine="compile" if self.compiled else self.engine,
            crop_pct=self.crop_pct,
            pad=self.pad,
            skip_bad=self.skip_bad,
        )


@click.command(cls=SharedCommand, name="run")
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    help="Model to evaluate; repeatable. Default: the bundled ones.",
    shell_complete=completion.models,
)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), help="Weights for one model and its remedies."
)
@click.option("--name", help="Name to show in records and tables. Default: the model's.")
@click.option(
    "-d",
    "--data",
    default="scenes",
    show_default=True,
    metavar="NAME[:PATH]",
    help="Images to evaluate on.",
    shell_complete=completion.datasets,
)
@click.option("--split", help="Part of the data set. Default: the usual evaluation split.")
@click.option(
    "-a",
    "--attack",
    "attacks",
    multiple=True,
    help="Attack to run, all (default) or none; repeatable.",
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
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda[:i] or mps.")
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
@click.option("--compile", "compiled", is_flag=True, help="Same as --engine compile.")
@click.option(
    "--nproc", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes."
)
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
@options.plugins
@click.option("-q", "--quiet", is_flag=True, help="Hide progress.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Evaluate models under attacks.

    With no options: the bundled models on the embedded data set `scenes`, every attack. Without
    --model: the bundled models that were trained on --data.
    """
    request = Request(**given)
    request.check()
    return share(
        ctx,
        lambda group: _evaluate(request, group),
        nproc=request.nproc,
        device=request.device,
    )


def _evaluate(request: Request, group: Group) -> int:
    """Runs every model; one that fails is reported at the end and does not stop the others."""
    with group.raise_on_all_ranks():
        dataset = load_dataset(
            request.data,
            split=request.split,
            download=request.download,
            class_map=request.class_map,
            verify=request.verify_data,
        )
        settings = request.settings(camera=isinstance(dataset, RenderedSet))
        texts = settings.metric_texts()
        metrics = [plan_metric(text, settings, view=LARGE, resize=2 * LARGE) for text in texts]
        gates = parse_gates(request.fail_under, request.fail_over, metrics)
        baseline = None if request.fail_worse is None else read_record(request.fail_worse)
        names = request.models or default_models(dataset.name)
    execution = Execution(request.device, request.batch_size, request.workers, group)
    records: list[Record] = []
    problems: list[str] = []
    with run_progress(quiet=request.quiet, speak=group.is_main) as progress:
        for name in names:
            try:
                with group.raise_on_all_ranks():
                    classifier = load_model(name, checkpoint=request.checkpoint)
                    classifier = replace(classifier, name=request.name or classifier.name)
                outcome = run(
                    classifier,
                    dataset,
                    settings,
                    request.output,
                    execution=execution,
                    fresh=not request.resume,
                    callback=progress.model(classifier.name),
                )
                records.append(outcome.record)
                if group.is_main and request.logs:
                    name = record_folder(request.output, classifier.name, dataset.name).name
                    log_record(outcome.record, request.logs, request.output / "logs" / name)
            except (ShiftbenchError, AftModelsError) as error:
                if len(names) == 1:
                    raise
                problems.append(f"{name} failed: {error}")
                progress.remark(f"{name} failed: see the error at the end")
                continue
            if outcome.reused:
                progress.remark(f"{classifier.name}: measured before, see {outcome.record.folder}")
    if group.is_main:
        report.write(records, request.kind)
    complaints = [words for gate in gates for words in map(gate.complaint, records) if words]
    if baseline is not None:
        for record in records:
            complaints += worse_than(baseline, record)
    if group.is_main:
        for problem in problems:
            click.echo(f"error: {problem}", err=True)
        for complaint in complaints:
            click.echo(f"failed: {complaint}", err=True)
    return 1 if problems else EXIT_CODE if complaints else 0
