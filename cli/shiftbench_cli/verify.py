"""`shiftbench verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from shiftbench.errors import UsageError
from shiftbench.records.choose import load_records
from shiftbench.records.record import Record
from shiftbench.records.verify import contradictions, save_verification
from shiftbench_cli import completion, options


@dataclass(frozen=True)
class Request:
    """The options of the command, as click hands them over."""

    folders: tuple[Path, ...]
    model: str | None
    checkpoint: Path | None
    data: str | None
    images: int
    seed: int
    device: str
    save: bool

    def check(self, records: list[Record]) -> None:
        """Refuses options that contradict each other."""
        if (self.model is None) != (self.data is None):
            raise UsageError("to measure images again, give both --model and --data")
        if self.model is not None and len(records) != 1:
            raise UsageError(f"--model is of one record, and {len(records)} were given")
        if self.save and self.model is None:
            raise UsageError("--save notes a new measurement: give --model and --data")


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, metavar="RECORD...", type=click.Path(path_type=Path)
)
@click.option(
    "-m",
    "--model",
    help="Re-measure some images with this model.",
    shell_complete=completion.models,
)
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Weights for --model.")
@click.option(
    "-d",
    "--data",
    metavar="NAME[:PATH]",
    help="The images of the record.",
    shell_complete=completion.datasets,
)
@click.option(
    "--images",
    default=20,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many images to re-measure.",
)
@click.option(
    "--seed", default=0, show_default=True, help="Seed that picks the images to re-measure."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda[:i] or mps.")
@click.option("--save", is_flag=True, help="Save the outcome next to the record.")
@options.plugins
def command(**given: Any) -> int:
    """Check records against their own samples and, with --model and --data, against the model.

    Every score is computed again from the table of images. With a model, a few random images are
    measured again and compared answer by answer, near ties aside. Exit code 1 if anything differs.
    """
    request = Request(**given)
    records = load_records(request.folders)
    request.check(records)
    failed = False
    for record in records:
        problems = contradictions(record)
        words = "every score follows from its samples"
        if request.model is not None and not problems:
            problems, count = _measure_again(record, request)
            words += f"; {count} images measured again, all alike"
            if request.save and not problems:
                save_verification(record, count)
        failed |= bool(problems)
        verdict = f"{len(problems)} problem{'s' * (len(problems) > 1)}" if problems else words
        click.echo(f"{record.folder}: {verdict}")
        for problem in problems:
            click.echo(f"  {problem}")
    return 1 if failed else 0


def _measure_again(record: Record, request: Request) -> tuple[list[str], int]:
    """What differs, and how many images were measured."""
    from shiftbench.data import load_dataset  # torch takes seconds
    from shiftbench.models import load_model
    from shiftbench.run.remeasure import remeasure
    from shiftbench.run.runner import Execution

    assert request.model is not None
    assert request.data is not None
    dataset = load_dataset(request.data, split=record.data.split)
    names = dataset.class_names
    return remeasure(
        record,
        load_model(request.model, checkpoint=request.checkpoint, class_names=names),
        dataset,
        images=request.images,
        seed=request.seed,
        execution=Execution(device=request.device),
    )
