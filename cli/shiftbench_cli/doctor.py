"""`shiftbench doctor`: facts for a bug report, and a check of a suite."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from shiftbench.diagnosis import check_run, diagnose
from shiftbench.running.suite import read_suite
from shiftbench_cli import options, render
from shiftbench_cli.options import OPTIONS
from shiftbench_cli.progress import forecast


@options.command("doctor")
@options.printed("json")
@OPTIONS(
    "--suite",
    "SUITE",
    "Check that the weights and data of a suite are available, and estimate its cost.",
    shell_complete=options.complete_suites,
)
@options.data("Path of a dataset of the suite; repeatable.", multiple=True)
@options.suite_root()
@options.device()
@options.plugins()
def command(
    kind: str, suite: str | None, data: tuple[str, ...], suite_root: Path | None, device: str
) -> int:
    """Print versions, devices, extras, and the paths of weights and data.

    Nothing is downloaded or changed. With --suite, every model and dataset of the suite is loaded,
    and missing weights are downloaded; exit code 1 if a run is not ready.
    """
    if suite is None:
        facts = diagnose()
        if kind == "json":
            render.print_json([asdict(fact) for fact in facts])
            return 0
        width = max(len(fact.name) for fact in facts)
        for topic, members in groupby(facts, key=lambda fact: fact.topic):
            for index, fact in enumerate(members):
                label = topic if index == 0 else ""
                render.print_text(f"{label:<10}{fact.name:<{width}}  {fact.value}\n")
        return 0
    checks = []
    for spec in read_suite(suite, root=suite_root, data=data):
        check = check_run(spec, device=device)
        checks.append(check)
        if kind == "table":
            cost = f"{check.images:,} images, {forecast(check.passes, check.seconds)}"
            render.print_text(f"{check.model} on {check.data}: {check.problem or cost}\n")
    ready = [check for check in checks if not check.problem]
    if kind == "json":
        render.print_json([asdict(check) for check in checks])
    else:
        cost = forecast(sum(c.passes for c in ready), sum(c.seconds for c in ready))
        render.print_text(f"{len(ready)} of {len(checks)} runs are ready: {cost}\n")
    return 0 if len(ready) == len(checks) else 1
