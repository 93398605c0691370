"""`shiftbench reproduce`: compare records with published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from shiftbench.files import format_of, write_text
from shiftbench.records.folder import RUNS, load_records
from shiftbench.report.formats import latex_escape, markdown_escape
from shiftbench.report.hyperparameters import hyperparameters
from shiftbench.report.paper import (
    TABLES,
    Match,
    commands,
    comparison_rows,
    left_out,
    match_claims,
    read_cards,
    read_claims,
    read_published,
    rows_of,
)
from shiftbench.training.runtime import measure_runtimes
from shiftbench_cli import options, render
from shiftbench_cli.options import COUNT, OPTIONS, PATH

IN_SUITE = ("imagenet_main", "realistic_shifts")  # tables that the suite `paper` covers
ENDINGS = {".tex": "tex", ".csv": "csv", ".md": "md"}
HEADS = {"top1": "top1", "consistency": "cons.", "adversarial": "adv."}
LEGEND = (
    "Each number: published, measured; then the difference with its 95% interval. -: no record."
)


@options.command("reproduce")
@click.argument("table", required=False, metavar="[TABLE]")
@options.records
@OPTIONS(
    "--weights",
    "DIR",
    "Directory of trainings, whose cards contain the recipes.",
    type=PATH,
    multiple=True,
    default=("runs",),
)
@options.device()
@OPTIONS("-b --batch-size", "N", "Images per step of train_runtime.", type=COUNT, default=8)
@OPTIONS.flag("--amp", "Use mixed precision for train_runtime.")
@OPTIONS("-o --output", "FILE", "Also write the table: .tex, .csv or .md.", type=PATH)
@options.printed("json", "csv")
@options.plugins()
def command(
    table: str | None,
    folders: tuple[Path, ...],
    weights: tuple[Path, ...],
    device: str,
    batch_size: int,
    amp: bool,
    output: Path | None,
    kind: str,
) -> None:
    """Compare your records with the paper's numbers.

    A record counts if its data, number of images, geometry, grid and, for weights that
    `shiftbench train` exported, its recipe are those of the paper. Others are listed with the
    reason. With a TABLE, the commands for the missing rows are printed.

    TABLE is imagenet_main, imagenet_ablation, finetune, scratch, heads, polynomial, batch_size or
    realistic_shifts; by default all of these. `train_runtime` times training steps on this machine,
    and `hyperparameters` compares the recipes.
    """
    if table in ("train_runtime", "hyperparameters"):
        rows = (
            _hyperparameters() if table == "hyperparameters" else _runtimes(device, batch_size, amp)
        )
        if output is not None:
            write_text(output, _plain(rows, format_of(output, ENDINGS)))
        if kind != "table":
            render.print_rows(rows, kind)
        else:
            render.print_table(list(rows[0]), [list(row.values()) for row in rows])
        return
    form = None if output is None else format_of(output, ENDINGS)
    # No records yet is no error here: commands are printed for all numbers.
    records = load_records(folders or [RUNS]) if folders or any(RUNS.rglob("record.json")) else []
    cards = read_cards(weights)
    matches = {
        name: match_claims(read_claims(name), records, cards)
        for name in ([table] if table else TABLES)
    }
    if output is not None and form is not None:
        write_text(output, _file_text(matches, form))
        render.note(f"{output}: {', '.join(matches)}")
    if kind != "table":
        render.print_rows([_row(one) for group in matches.values() for one in group], kind)
        return
    for name, group in matches.items():
        _print_table(name, group, with_commands=table is not None)


def _hyperparameters() -> list[dict[str, str]]:
    return [
        {
            "parameter": one.name,
            "published": one.published,
            "ours": one.ours,
            "same": "yes" if one.same else "no",
        }
        for one in hyperparameters()
    ]


def _runtimes(device: str, batch_size: int, amp: bool) -> list[dict[str, str]]:
    """Time the models of the paper's table; ratios are those of the first model."""
    published = {row["model"]: float(row["train_hours"]) for row in read_published("train_runtime")}
    found = measure_runtimes(list(published), device=device, batch_size=batch_size, amp=amp)
    first = found[0]
    return [
        {
            "model": one.model,
            "published hours": f"{published[one.model]:g}",
            "published ratio": f"{published[one.model] / published[first.model]:.2f}",
            "train ratio": f"{one.train / first.train:.2f}",
            "train ms/image": f"{1000 * one.train:.1f}",
            "forward ratio": f"{one.forward / first.forward:.2f}",
            "forward ms/image": f"{1000 * one.forward:.1f}",
        }
        for one in found
    ]


def _plain(rows: Sequence[Mapping[str, str]], form: str) -> str:
    """Return rows of the same keys as CSV, Markdown or LaTeX."""
    if form == "csv":
        return render.csv_text(rows)
    head, body = list(rows[0]), [list(row.values()) for row in rows]
    return _latex_table(head, body) if form == "tex" else _markdown_table(head, body)


def _print_table(name: str, matches: Sequence[Match], *, with_commands: bool) -> None:
    columns = list(dict.fromkeys(one.claim.score.column for one in matches))
    rows = rows_of(matches)
    several = len({row.data for row in rows}) > 1
    lines = [
        [
            f"{row.model}\n{row.data}" if several else row.model,
            *(_cell(row.matches.get(column)) for column in columns),
        ]
        for row in rows
    ]
    heads = [_head(column) for column in columns]
    about = f"{TABLES[name].about} ({TABLES[name].place})"
    render.print_table(
        ["model", *heads], lines, title=f"{name}: {about}", caption=LEGEND, numeric=heads
    )
    if any(one.unknown_recipe for one in matches):
        render.print_text("†: weights without a card, so the recipe is not known.\n")
    if others := left_out(matches):
        render.print_text("Not counted:\n" + "".join(f"  {line}\n" for line in others))
    missing = [one.claim for one in matches if one.score is None]
    if missing and with_commands:
        text = "".join(f"  {line}\n" for line in commands(missing))
        if name in IN_SUITE:
            text += "or, with the weights in place: shiftbench run paper -d imagenet:DIR\n"
        render.print_text(f"Not measured yet. Run:\n{text}")
    elif missing:
        count = len({(claim.entry, claim.data) for claim in missing})
        render.print_text(
            f"{count} of {len(rows)} rows are not measured: `shiftbench reproduce {name}` prints "
            "the commands.\n"
        )
    render.print_text("\n")


def _head(column: str) -> str:
    family, _, kind = column.partition("_")
    return f"{HEADS[family]}\n{kind}".strip()


def _cell(one: Match | None) -> str:
    if one is None:
        return ""
    published = "figure" if one.claim.published is None else str(one.claim.published)
    if one.score is None:
        return f"{published}     -"
    mark = "†" if one.unknown_recipe else ""
    numbers = f"{published}  {100 * one.score.value:.1f}{mark}"
    if one.claim.published is None:
        return numbers
    low, high = (100 * end - float(one.claim.published) for end in (one.score.low, one.score.high))
    return f"{numbers}\n{one.difference:+.1f} [{low:+.1f}, {high:+.1f}]"


def _line(one: Match | None) -> str:
    """Return a cell on one line: `70.4 / 70.1, -0.3 [-0.7, +0.1]`."""
    numbers, _, difference = _cell(one).partition("\n")
    return ", ".join(filter(None, (" / ".join(numbers.split()), difference)))


def _file_text(matches: Mapping[str, Sequence[Match]], form: str) -> str:
    """Return all tables as CSV, Markdown or LaTeX."""
    if form == "csv":
        rows = [
            {"table": name, **row}
            for name, group in matches.items()
            for row in comparison_rows(group)
        ]
        every = dict.fromkeys(column for row in rows for column in row)
        return render.csv_text([{c: row.get(c, "") for c in every} for row in rows])
    parts = []
    for name, group in matches.items():
        columns = list(dict.fromkeys(one.claim.score.column for one in group))
        head = ["model", "data", *columns]
        body = [
            [
                row.model,
                row.data,
                *(_line(row.matches.get(column)) for column in columns),
            ]
            for row in rows_of(group)
        ]
        parts.append(_latex(name, head, body) if form == "tex" else _markdown(name, head, body))
    return "\n".join(parts)


def _markdown(name: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    about = f"**{name}**: {TABLES[name].about} ({TABLES[name].place}). {LEGEND}"
    return f"{about}\n\n{_markdown_table(head, body)}"


def _markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([markdown_escape(c) for c in row] for row in body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latex(name: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    about = latex_escape(f"{TABLES[name].about} ({TABLES[name].place}). {LEGEND}")
    return f"% {about}\n{_latex_table(head, body)}"


def _latex_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [" & ".join(map(latex_escape, row)) + r" \\" for row in (head, *body)]
    rows = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
    columns = "l" + "r" * (len(head) - 1)
    return f"\\begin{{tabular}}{{{columns}}}\n{rows}\n\\end{{tabular}}\n"


def _row(match: Match) -> dict[str, object]:
    claim, score = match.claim, match.score
    return {
        "table": claim.table,
        "model": claim.entry,
        "data": claim.data,
        "metric": claim.score.column,
        "published_percent": None if claim.published is None else float(claim.published),
        "measured_percent": None if score is None else round(100 * score.value, 2),
        "measured_low": None if score is None else round(100 * score.low, 2),
        "measured_high": None if score is None else round(100 * score.high, 2),
        "n": None if score is None else score.n,
        "remark": match.remark,
        "difference": None if match.difference is None else round(match.difference, 2),
        "command": None if score is not None else commands([claim])[0],
    }
