"""`shiftbench export`: write the measured model as a file, checked against PyTorch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from shiftbench_cli import options, render
from shiftbench_cli.options import OPTIONS, PATH, Choice
from shiftbench_cli.progress import run_progress


@options.command("export")
@options.model("Model to export, e.g. timm:resnet50+align:8 or model.onnx+align:8.")
@options.checkpoint()
@options.strip_prefix()
@OPTIONS("-o --output", "FILE", "File to write: .onnx or .pt2.", type=PATH, required=True)
@OPTIONS(
    "--include",
    "PART",
    "Preprocessing inside the graph: normalize (input: RGB in 0..1) or uint8 (input: bytes, "
    "NHWC).  [default: none]",
    type=Choice(["normalize", "uint8"]),
)
@options.data("Images to compare with PyTorch.", default="scenes")
@options.limit("Number of images to compare.", default=16)
@OPTIONS(
    "--crop-pct", "RULE", "Resize to state: paper (256/224), model, or a fraction.", default="paper"
)
@OPTIONS.flag("--force", "Replace an existing file.")
@options.printed("json")
@options.plugins()
def command(
    model: str,
    checkpoint: Path | None,
    strip_prefix: str | None,
    output: Path,
    include: str | None,
    data: str,
    limit: int,
    crop_pct: str,
    force: bool,
    kind: str,
) -> None:
    r"""Write a model, remedies included, as one file that takes batches of any size.

    The file is compared with PyTorch before it is written. It contains the preprocessing: `run` and
    `verify` need no further options.

    \b
    shiftbench export -m timm:resnet50+align:8 -o model.onnx
    shiftbench verify results/runs/RECORD -m model.onnx -d folder:/photos
    """
    from shiftbench.exporting import export  # imports torch

    with run_progress(quiet=False, piped=False):
        result = export(
            model,
            output,
            checkpoint=checkpoint,
            strip_prefix=strip_prefix,
            include=include or "",
            data=data,
            images=limit,
            crop_pct=crop_pct,
            force=force,
        )
    if kind == "json":
        render.print_json({**asdict(result), "path": str(result.path)})
    else:
        render.print_text(f"{result}\n")
