"""`shiftbench verify`."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.errors import UsageError
from shiftbench.records.choose import load_records
from shiftbench_cli import options


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, metavar="RECORD...", type=click.Path(path_type=Path)
)
@click.option(
    "-m",
    "--model",
    metavar="[NAME=]MODEL",
    help="Re-measure some images with this model.",
    shell_complete=options.names_of("models"),
)
@options.checkpoint
@options.strip_prefix
@options.data("The images of the record.")
@options.images(20)
@click.option("--seed", type=int, help="Which images to re-measure. Default: random, and printed.")
@options.device
@click.option("--save", is_flag=True, help="Save the outcome next to the record.")
@options.plugins
def command(
    folders: tuple[Path, ...],
    model: str | None,
    data: str | None,
    save: bool,
    checkpoint: Path | None,
    strip_prefix: str | None,
    images: int,
    seed: int | None,
    device: str,
) -> int:
    """Check records against their own samples and, with --model and --data, against the model.

    Every score is computed again from the table of images. With a model, a few random images are
    re-measured and compared one by one, near ties aside. Exit code 1 if anything differs.
    """
    from shiftbench.running.remeasure import verify

    records = load_records(folders)
    if model is not None and len(records) != 1:
        raise UsageError(f"--model is of one record, and {len(records)} were given")
    failed = False
    for record in records:
        result = verify(
            record,
            model=model,
            data=data,
            checkpoint=checkpoint,
            strip_prefix=strip_prefix,
            images=images,
            seed=seed,
            device=device,
            save=save,
        )
        failed |= bool(result.problems)
        click.echo(f"{record.folder}: {result}")
        for problem in result.problems:
            click.echo(f"  {problem}")
    return 1 if failed else 0
