"""`shiftbench doctor`: what to paste into a bug report, and whether a suite can be run."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click

from shiftbench.diagnosis import diagnose
from shiftbench_cli import options, render


@click.command(name="doctor")
@options.printed("json")
@click.option(
    "--suite",
    metavar="SUITE",
    help="Check this suite: whether weights and data are at hand and fit, and what it may take.",
    shell_complete=options.complete_suites,
)
@options.suite_data
@options.root
@options.device
@options.plugins
def command(
    kind: str, suite: str | None, data: tuple[str, ...], root: Path | None, device: str
) -> int:
    """Show versions, device, extras, and where weights and data are looked for.

    Paste the output into a bug report. Nothing is downloaded or changed.

    With --suite: load every model and data set of it, before anything is submitted to machines
    that may have no internet. Weights that are not there yet are downloaded now. Exit code 1 if
    anything is missing or does not fit.
    """
    if suite is not None:
        return _check(suite, data, root, device, kind)
    facts = diagnose()
    if kind == "json":
        render.print_json([asdict(fact) for fact in facts])
        return 0
    names = max(len(fact.name) for fact in facts)
    for topic, members in groupby(facts, key=lambda fact: fact.topic):
        for index, fact in enumerate(members):
            click.echo(f"{topic if index == 0 else '':<10}{fact.name:<{names}}  {fact.value}")
    return 0


def _check(name: str, data: tuple[str, ...], root: Path | None, device: str, kind: str) -> int:
    from shiftbench.running.progress import Estimate
    from shiftbench.running.suite import check_suite, read_suite
    from shiftbench_cli.progress import forecast

    checks = []
    for check in check_suite(read_suite(name, root=root, data=data), device=device):
        checks.append(check)
        if kind == "table":
            words = f"{check.images:,} images, {forecast(Estimate(check.passes, check.seconds))}"
            click.echo(f"{check.model} on {check.data}: {check.problem or words}")
    if kind == "json":
        render.print_json([asdict(check) for check in checks])
    else:
        total = Estimate(sum(c.passes for c in checks), sum(c.seconds for c in checks))
        ready = sum(not check.problem for check in checks)
        click.echo(f"{ready} of {len(checks)} runs are ready: {forecast(total)}")
    return 1 if any(check.problem for check in checks) else 0
