"""`shiftbench leaderboard`: turn records into tables."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.errors import UsageError
from shiftbench.files import format_of, write_text
from shiftbench.records.folder import RUNS, load_records, select
from shiftbench.report.formats import (
    FORMATS,
    to_images_csv,
    to_latex,
    to_markdown,
    update_between_markers,
)
from shiftbench.report.public import public_results
from shiftbench.report.scores import DEFAULT_SORT, leaderboard, score_cells
from shiftbench_cli import options, render
from shiftbench_cli.options import OPTIONS, PATH, Choice

NAMES = {
    "csv": ".csv",
    "markdown": ".md",
    "latex": ".tex",
    "html": ".html",
    "model-card": ".yaml",
}
WITH_INTERVALS = {".md": to_markdown, ".tex": to_latex}  # formats that can leave them out


@options.command("leaderboard")
@click.argument("folders", nargs=-1, metavar="[DIR]...", type=PATH)
@OPTIONS("-o --output", "FILE", f"File to write: {', '.join(NAMES.values())}.", type=PATH)
@OPTIONS(
    "--format kind",
    "FORMAT",
    f"table, {', '.join(NAMES)}.  [default: by the ending of --output]",
    type=Choice(["table", *NAMES]),
)
@OPTIONS("--sort", "COLUMN", "Column to sort by.", default=DEFAULT_SORT)
@OPTIONS.flag("--reverse", "Reverse the order.")
@OPTIONS("--max-shift", "STEPS", "Radius of the adversarial columns.", type=click.IntRange(0))
@OPTIONS("--columns", "NAME,...", "Columns besides the model.  [default: all]")
@options.only_data
@options.only_models
@OPTIONS("--intervals/--no-intervals", None, "95% intervals in Markdown and LaTeX.", default=None)
@OPTIONS.flag("--per-image", "Write a row per record and image (.csv).")
@OPTIONS(
    "--update",
    "FILE.md",
    "Replace the table between the leaderboard markers of this file.",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@OPTIONS.flag("--leaderboard public", "Rank the records among the public models.")
@options.plugins()
def command(
    folders: tuple[Path, ...],
    output: Path | None,
    kind: str | None,
    sort: str,
    reverse: bool,
    max_shift: int | None,
    columns: str | None,
    data: str | None,
    models: tuple[str, ...],
    intervals: bool | None,
    per_image: bool,
    update: Path | None,
    public: bool,
) -> None:
    r"""Turn the records below each DIR (default results/runs) into a table per data set.

    \b
    shiftbench leaderboard                            # on the terminal
    shiftbench leaderboard results/records -o leaderboard.html --sort top1
    """
    ending = _ending(kind, output, per_image=per_image)
    records = load_records(folders or [RUNS], on_unreadable=render.left_out)
    records = select(records, models=models, data=data)
    if per_image:
        _write(to_images_csv(records), output, len(records))
        return
    cells = score_cells([*records, *(public_results() if public else ())])
    tables = leaderboard(cells, sort=sort, reverse=reverse, max_shift=max_shift)
    if columns is not None:
        names = [name.strip() for name in columns.split(",")]
        tables = [table.only(names) for table in tables]
    if update is not None:
        changed = update_between_markers(
            update, to_markdown(tables, intervals=intervals is not False)
        )
        render.note(f"{update}: {'updated' if changed else 'up to date'}")
        if output is None:
            return
    if not ending:
        render.print_leaderboard(tables)
    elif intervals is not None and ending in WITH_INTERVALS:
        _write(WITH_INTERVALS[ending](tables, intervals=intervals), output, len(records))
    else:
        _write(FORMATS[ending](tables), output, len(records))


def _ending(kind: str | None, output: Path | None, *, per_image: bool) -> str:
    """Return the ending of a format; empty for a table on the terminal."""
    if per_image and kind not in (None, "csv"):
        raise UsageError(f"expected --format csv with --per-image, got {kind}")
    if output is not None:
        ending = format_of(output, {e: e for e in FORMATS} if not per_image else {".csv": ".csv"})
        if kind == "table":
            raise UsageError(f"cannot write a terminal table to {output}. Leave --format out")
        return NAMES[kind] if kind else ending
    return NAMES.get(kind or "table", "")


def _write(text: str, output: Path | None, count: int) -> None:
    if output is None:
        render.print_text(text)
    else:
        write_text(output, text)
        render.note(f"{output}: {count} record{'s' * (count != 1)}")
