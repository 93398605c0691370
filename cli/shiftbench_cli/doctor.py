"""`shiftbench doctor`: what to paste into a bug report."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby

import click

from shiftbench.diagnosis import diagnose
from shiftbench_cli import options, render


@click.command(name="doctor")
@options.printed("json")
def command(kind: str) -> None:
    """Show versions, device, extras, and where weights and data are looked for.

    Paste the output into a bug report. Nothing is downloaded or changed.
    """
    facts = diagnose()
    if kind == "json":
        render.print_json([asdict(fact) for fact in facts])
        return
    names = max(len(fact.name) for fact in facts)
    for topic, members in groupby(facts, key=lambda fact: fact.topic):
        for index, fact in enumerate(members):
            click.echo(f"{topic if index == 0 else '':<10}{fact.name:<{names}}  {fact.value}")
