"""`shiftbench repair`: which remedies apply to a model, what each changes, and what it costs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from shiftbench.audit.trials import RepairTrial, repair
from shiftbench_cli import options, render


@click.command("repair")
@options.model
@options.checkpoint
@click.option(
    "-r",
    "--remedy",
    "chosen",
    multiple=True,
    help="Remedies to try, such as circular+aps; repeatable. Default: all.",
)
@options.data("Images to use; accuracy is measured too.")
@options.images(8)
@click.option("--explain", is_flag=True, help="List the layers that each remedy changes.")
@options.printed("json")
@options.plugins
def command(
    model: str,
    checkpoint: Path | None,
    chosen: tuple[str, ...],
    data: str | None,
    images: int,
    explain: bool,
    kind: str,
) -> None:
    """Show which remedies apply to a model, what each changes, and what it costs.

    Change: how much the centered logits move, relative to their size, under a cyclic shift by one
    pixel and by half a pixel on both axes, for the first eight images. Cost: CPU time of a forward
    pass relative to the original. With --data, top-1 is the share of right answers, and "crops" of
    answers that stay right at every crop moved by up to 1 and up to 2 pixels, as a camera moves.

    No remedy is trained here. Use one by its name: `shiftbench run -m MODEL+select`.
    """
    trials = repair(model, remedies=chosen, data=data, images=images, checkpoint=checkpoint)
    if kind == "json":
        render.print_json(
            [
                {
                    **asdict(trial),
                    "scores": [asdict(score) for score in trial.scores],
                    "needs_finetuning": trial.needs_finetuning,
                }
                for trial in trials
            ]
        )
        return
    _print(model, trials)
    if explain:
        _explain(trials)


def _print(model: str, trials: list[RepairTrial]) -> None:
    measured = [t for t in trials if not t.refused]
    columns = ["remedy", "layers\nchanged", "not\nreached", "change\n1 px", "change\n1/2 px"]
    columns += ["cost", "fine-\ntune"]
    columns += ["top-1", "crops\n1 px", "crops\n2 px"][: max(len(t.right) for t in measured)]
    rows = []
    for t in measured:
        row = [
            t.remedies or "(as it is)",
            f"{t.changed:,}" if t.remedies else "",
            f"{t.unchanged:,}" if t.unchanged else "",
            f"{t.whole:.1e}",
            f"{t.half:.1e}",
            f"{t.cost:.1f}x",
            "yes" if t.needs_finetuning else "",
            *map(render.shown, t.scores),
        ]
        rows.append(row + [""] * (len(columns) - len(row)))
    title = f"{model}: remedies, {measured[0].images} images, nothing trained"
    render.print_table(columns, rows, title=title, numeric=columns[1:])
    for t in trials:
        if t.refused:
            render.note(f"{t.remedies}: {t.refused}")


def _explain(trials: list[RepairTrial]) -> None:
    for trial in trials:
        for report in trial.reports:
            rows = [(c.layer or "(the model)", c.kind, c.what) for c in report.changed]
            rows += [(o.where, "", f"not reached: {o.why}") for o in report.unchanged]
            title = f"{trial.remedies}: {report.remedy}"
            render.print_table(("layer", "kind", "what"), rows, title=title)
