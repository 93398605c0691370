"""`shiftbench verify`: recompute a record's scores."""

from __future__ import annotations

from pathlib import Path

import click

from shiftbench.errors import UsageError
from shiftbench.records.folder import load_records
from shiftbench_cli import options, render
from shiftbench_cli.options import OPTIONS, PATH


@options.command("verify")
@click.argument("folders", nargs=-1, required=True, metavar="RECORD...", type=PATH)
@options.model("Predict some images again with this model.", required=False)
@options.checkpoint()
@options.strip_prefix()
@options.data("The images of the record.")
@options.limit("Images to predict again.", default=20)
@OPTIONS("--seed", "N", "Seed of their choice.  [default: random, printed]", type=int)
@options.device()
@OPTIONS.flag("--save", "Store the verification beside the record.")
@options.plugins()
def command(
    folders: tuple[Path, ...],
    model: str | None,
    checkpoint: Path | None,
    strip_prefix: str | None,
    data: str | None,
    limit: int,
    seed: int | None,
    device: str,
    save: bool,
) -> int:
    r"""Recompute the scores of records from their tables.

    With --model and --data, also predict random cells again and compare them, near ties aside.
    MODEL may be an exported file of the record's model. Exit code 1 if anything differs.

    \b
    shiftbench verify results/runs/RECORD -m timm:resnet50+align:8 -d folder:/photos
    shiftbench verify results/runs/RECORD -m model.onnx -d folder:/photos
    """
    from shiftbench.running.verify import verify  # imports torch

    records = load_records(folders)
    if model is not None and len(records) != 1:
        raise UsageError(f"expected one RECORD with --model, got {len(records)}")
    failed = False
    for record in records:
        result = verify(
            record,
            model=model,
            data=data,
            checkpoint=checkpoint,
            strip_prefix=strip_prefix,
            images=limit,
            seed=seed,
            device=device,
            save=save,
        )
        failed |= bool(result.problems)
        lines = [f"{record.folder}: {result}", *(f"  {problem}" for problem in result.problems)]
        render.print_text("\n".join(lines) + "\n")
    return 1 if failed else 0
