"""`shiftbench compare`."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.files import GALLERY_ENDINGS, format_of
from shiftbench.records.choose import RUNS, find_record, records_of
from shiftbench.records.record import Record, read_records
from shiftbench.report.compare import compare, to_rows
from shiftbench_cli import options, render


def _records(folders: tuple[Path, ...], names: tuple[str, str], data: str | None) -> list[Record]:
    places = [records_of(folder) for folder in folders] or [RUNS]
    # A folder given by name needs no place to be looked for in.
    by_name = [name for name in names if not Path(name).is_dir()]
    known = read_records(places) if by_name else []
    name = data and _data_name(data, {record.data.name for record in known})
    return [find_record(known, model, data=name) for model in names]


def _data_name(data: str, known: set[str]) -> str:
    """The data set of `NAME[:PATH]`: both `folder:/data/birds` and its `val` are birds."""
    name, _, path = data.partition(":")
    own = [place.name for place in (Path(path).resolve(), Path(path).resolve().parent) if path]
    return next((candidate for candidate in (name, *own) if candidate in known), name)


@click.command()
@click.argument("first")
@click.argument("second")
@options.records
@options.data("Which data set, if a model has several records; the gallery reads images at PATH.")
@click.option("--max-shift", type=click.IntRange(min=0), help="Radius of the adversarial metrics.")
@options.printed("json", "csv")
@options.plugins
@click.option(
    "--gallery",
    type=click.Path(path_type=Path),
    help="Picture (.html or .png) of the images that one survives and the other does not.",
)
@click.option("-a", "--attack", help="Attack of the gallery. Default: the first both have.")
@click.option(
    "--gallery-size",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Images on each side of the gallery.",
)
def command(
    first: str,
    second: str,
    folders: tuple[Path, ...],
    data: str | None,
    max_shift: int | None,
    kind: str,
    gallery: Path | None,
    attack: str | None,
    gallery_size: int,
) -> None:
    """Compare two models on the same images.

    FIRST and SECOND are names of models that have records, or folders of records. Differences are
    second minus first, image by image, with a 95% interval and a p-value.
    """
    if gallery is not None:
        format_of(gallery, GALLERY_ENDINGS)
    a, b = _records(folders, (first, second), data)
    comparison = compare(a, b, max_shift=max_shift)
    if kind == "table":
        render.print_comparison(comparison)
    elif kind == "json":
        about = {"first": a.model.name, "second": b.model.name, "data": a.data.name}
        rows = to_rows(comparison)
        render.print_json({**about, "metrics": rows, "left_out": comparison.left_out})
    else:
        render.print_csv(to_rows(comparison))
    if gallery is not None:
        from shiftbench.pictures.gallery import build_gallery, write_gallery  # torch takes seconds

        made = build_gallery(comparison, attack=attack, data=data, size=gallery_size)
        write_gallery(made, gallery)
        count = sum(len(side.exhibits) for side in made.sides)
        click.echo(f"{gallery}: {count} image{'' if count == 1 else 's'}", err=True)
