"""`shiftbench reproduce`."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.records.record import read_records
from shiftbench.report.paper import TABLES, Answer, answer, commands, read_claims
from shiftbench_cli import options, render

IN_SUITE = ("imagenet_main", "realistic_shifts")  # tables that the suite `paper` answers


def _flat(answered: Answer) -> dict[str, str | float | int | None]:
    claim, score = answered.claim, answered.score
    return {
        "table": claim.table,
        "model": claim.model,
        "data": claim.data,
        "metric": claim.score.column,
        "published_percent": None if claim.published is None else float(claim.published),
        "ours_percent": None if score is None else round(100 * score.value, 2),
        "ours_low": None if score is None else round(100 * score.low, 2),
        "ours_high": None if score is None else round(100 * score.high, 2),
        "n": None if score is None else score.n,
        "remark": answered.remark,
        "difference": None if answered.difference is None else round(answered.difference, 2),
        "command": None if score is not None else commands([claim])[0],
    }


@click.command()
@click.argument("table", required=False, metavar="[TABLE]")
@options.records
@options.paper
@options.printed("json", "csv")
@options.plugins
def command(table: str | None, folders: tuple[Path, ...], paper: Path | None, kind: str) -> None:
    """Put the paper's figures next to ours.

    Ours come from records of the same model and data; where there is none, the commands that would
    make it are printed. Without TABLE, every table. `shiftbench run paper -d imagenet:DIR` measures
    all networks of Table 1 and Figure 2.

    TABLE is imagenet_main, imagenet_ablation, finetune, scratch, heads, polynomial, batch_size or
    realistic_shifts.
    """
    place = options.paper_folder(paper)
    given = folders or (Path("results/runs"),)
    # Having no records of our own yet is no mistake here: all answers are commands then.
    records = read_records(folders or [f for f in given if f.is_dir()])
    names = [table] if table else list(TABLES)
    answers = {name: answer(read_claims(name, place), records) for name in names}
    if kind == "table":
        for name, of_table in answers.items():
            render.print_claims(name, of_table)
        if any(one.score is None for name in IN_SUITE for one in answers.get(name, ())):
            render.note(
                "All of Table 1 and Figure 2 in one go: shiftbench run paper -d imagenet:DIR"
            )
        return
    rows = [_flat(one) for of_table in answers.values() for one in of_table]
    (render.print_json if kind == "json" else render.print_csv)(rows)
