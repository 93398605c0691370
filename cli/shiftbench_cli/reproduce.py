"""`shiftbench reproduce`: compare records with published numbers."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.records.result import RUNS, load_records
from shiftbench.report.paper import TABLES, Answer, answer, commands, read_claims
from shiftbench_cli import options, render

IN_SUITE = ("imagenet_main", "realistic_shifts")  # tables that the suite `paper` covers


@options.command("reproduce")
@click.argument("table", required=False, metavar="[TABLE]")
@options.records
@options.paper
@options.printed("json", "csv")
@options.plugins()
def command(table: str | None, folders: tuple[Path, ...], paper: Path | None, kind: str) -> None:
    """Compare your records with the paper's numbers.

    Without a record of the same model and data, the commands that would make it are printed.
    `shiftbench run paper -d imagenet:DIR` evaluates all networks of Table 1 and Figure 2.

    TABLE is imagenet_main, imagenet_ablation, finetune, scratch, heads, polynomial, batch_size or
    realistic_shifts; by default all of them.
    """
    place = options.paper_folder(paper)
    # No records yet is no error here: commands are printed for all numbers.
    records = load_records(folders or [RUNS]) if folders or any(RUNS.rglob("record.json")) else []
    answers = {
        name: answer(read_claims(name, place), records) for name in ([table] if table else TABLES)
    }
    if kind != "table":
        render.print_rows([_row(one) for group in answers.values() for one in group], kind)
        return
    for name, group in answers.items():
        title = f"{name}: {TABLES[name].about} ({TABLES[name].place})"
        missing = commands([one.claim for one in group if one.score is None])
        render.print_claims(title, group, missing)
    if any(one.score is None for name in IN_SUITE for one in answers.get(name, ())):
        render.note("All of Table 1 and Figure 2: shiftbench run paper -d imagenet:DIR")


def _row(answered: Answer) -> dict[str, object]:
    claim, score = answered.claim, answered.score
    return {
        "table": claim.table,
        "model": claim.model,
        "data": claim.data,
        "metric": claim.score.column,
        "published_percent": None if claim.published is None else float(claim.published),
        "measured_percent": None if score is None else round(100 * score.value, 2),
        "measured_low": None if score is None else round(100 * score.low, 2),
        "measured_high": None if score is None else round(100 * score.high, 2),
        "n": None if score is None else score.n,
        "remark": answered.remark,
        "difference": None if answered.difference is None else round(answered.difference, 2),
        "command": None if score is not None else commands([claim])[0],
    }
