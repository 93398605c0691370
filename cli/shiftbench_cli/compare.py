"""`shiftbench compare`: test models against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from shiftbench.errors import UsageError
from shiftbench.files import format_of, write_text
from shiftbench.records.compare import Difference, compare
from shiftbench.records.folder import RUNS, find, load_records
from shiftbench.records.result import Result
from shiftbench.statistics import holm
from shiftbench_cli import options, render
from shiftbench_cli.options import COUNT, OPTIONS, PATH


@options.command("compare")
@click.argument("baseline")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@options.records
@options.data("Dataset, if a model has several records; the gallery reads images at PATH.")
@OPTIONS("--max-shift", "STEPS", "Radius of the adversarial metrics.", type=click.IntRange(0))
@options.printed("json", "csv")
@OPTIONS("-o --output", "FILE.tex", "Write the differences as a LaTeX table.", type=PATH)
@OPTIONS(
    "--gallery",
    "FILE.png",
    "Picture of images that one model misclassifies under shifts and the other does not.",
    type=PATH,
)
@OPTIONS("-a --attack", "NAME", "Attack of the gallery.  [default: the first common one]")
@OPTIONS("--gallery-limit", "N", "Images of each model in the gallery.", type=COUNT, default=8)
@options.plugins()
def command(
    baseline: str,
    models: tuple[str, ...],
    folders: tuple[Path, ...],
    data: str | None,
    max_shift: int | None,
    kind: str,
    output: Path | None,
    gallery: Path | None,
    attack: str | None,
    gallery_limit: int,
) -> None:
    r"""Test models against a baseline on their common images.

    BASELINE and MODEL are names of models with records, or folders of records. Differences are
    model minus baseline, image by image, with 95% intervals and p-values.

    \b
    shiftbench compare xcit_pico_6_p8.scenes xcit_pico_6_p8_af.scenes -r results/records
    """
    if output is not None:
        format_of(output, {".tex": "tex"})
    if gallery is not None:
        format_of(gallery, {".png": "png"})
        if len(models) > 1:
            raise UsageError(f"expected one MODEL for a gallery, got {len(models)}")
    first, *others = _records(folders, (baseline, *models), data)
    differences, left_out = compare(first, others, max_shift=max_shift)
    if kind == "table":
        render.print_comparison(first, differences)
    else:
        render.print_rows(_rows(first, differences), kind)
    for reason in left_out:
        render.note(f"left out: {reason}")
    if output is not None:
        from shiftbench.report.formats import differences_to_latex

        write_text(output, differences_to_latex(first, differences))
        render.note(f"{output}: {len(models)} models against {first.model.name}")
    if gallery is not None:
        from shiftbench.pictures.gallery import build_gallery, gallery_figure  # imports torch
        from shiftbench.report.plots import save_figure

        sides = build_gallery(first, others[0], attack=attack, data=data, size=gallery_limit)
        save_figure(gallery_figure(sides), gallery)
        render.note(f"{gallery}: {sum(len(side.exhibits) for side in sides)} images")


def _records(folders: Sequence[Path], names: Sequence[str], data: str | None) -> list[Result]:
    # A folder of a record needs no other records.
    known = [] if all(Path(name).is_dir() for name in names) else load_records(folders or [RUNS])
    name = data and _data_name(data, {record.data.name for record in known})
    return [find(known, model, data=name) for model in names]


def _data_name(data: str, known: set[str]) -> str:
    """Return the data set of `NAME[:PATH]`: `folder:/data/birds` and its `val` are birds."""
    name, _, path = data.partition(":")
    folder = Path(path).resolve()
    return next((n for n in (name, folder.name, folder.parent.name) if n in known), name)


def _rows(baseline: Result, differences: Sequence[Difference]) -> list[dict[str, object]]:
    """Return a row per model and score, in fractions; `p_holm` is corrected for the models."""
    by_score: dict[str, list[Difference]] = {}
    for one in differences:
        by_score.setdefault(str(one.name.curve), []).append(one)
    adjusted = {
        id(one): p
        for group in by_score.values()
        for one, p in zip(group, holm([one.test.p_value for one in group]), strict=True)
    }
    return [
        {
            "baseline": baseline.model.name,
            "model": one.model.model.name,
            "data": baseline.data.name,
            "score": one.name.stem,
            "max_shift": "" if one.name.radius is None else one.name.radius,
            "baseline_value": one.baseline.value,
            "value": one.value.value,
            "difference": one.test.difference,
            "low": one.test.low,
            "high": one.test.high,
            "p": one.test.p_value,
            "p_holm": adjusted[id(one)],
            "only_baseline": one.test.only_first,
            "only_model": one.test.only_second,
            "n": one.test.n,
        }
        for one in differences
    ]
