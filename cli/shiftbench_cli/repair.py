"""`shiftbench repair`: compare remedies on a model."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from shiftbench.auditing.trials import PROBED, RepairTrial, repair
from shiftbench_cli import options, render
from shiftbench_cli.options import OPTIONS

WITH_LABELS = 100  # images for accuracies; changes and costs need fewer


@options.command("repair")
@options.model("Model without remedies, e.g. timm:resnet50.")
@options.checkpoint()
@options.strip_prefix()
@OPTIONS(
    "-r --remedy chosen",
    "NAME",
    "Remedies to try, e.g. circular+aps; repeatable.  [default: all]",
    multiple=True,
)
@options.data("Images; their accuracy under crops is reported too.")
@options.limit(f"Number of images.  [default: {WITH_LABELS} with --data, else {PROBED}]")
@OPTIONS.flag("--explain", "List the layers that each remedy changes.")
@options.printed("json")
@options.plugins()
def command(
    model: str,
    checkpoint: Path | None,
    strip_prefix: str | None,
    chosen: tuple[str, ...],
    data: str | None,
    limit: int | None,
    explain: bool,
    kind: str,
) -> None:
    """Compare remedies on a model: changes, cost and gain of each.

    Nothing is trained, and the model is not modified. Change: relative change of the centered
    logits under a cyclic shift of 1 px and 1/2 px (empty for align, whose view is wider). Cost: CPU
    time relative to the original. With --data: accuracy, and adversarial accuracy under crop shifts
    of up to 1 px and 2 px, of all remedies at one scale.

    Use a remedy by its name: `shiftbench run -m MODEL+align:8`.
    """
    images = limit or (PROBED if data is None else WITH_LABELS)
    trials = repair(
        model,
        remedies=chosen,
        data=data,
        images=images,
        checkpoint=checkpoint,
        strip_prefix=strip_prefix,
    )
    if kind == "json":
        render.print_json([_row(trial) for trial in trials])
        return
    _print(model, trials)
    for trial in trials if explain else ():
        for report in trial.reports:
            rows = [(c.layer or "(the model)", c.kind, c.what) for c in report.changed]
            rows += [(o.where, "", f"not reached: {o.why}") for o in report.unchanged]
            title = f"{trial.remedies}: {report.remedy}"
            render.print_table(("layer", "kind", "change"), rows, title=title)


def _row(trial: RepairTrial) -> dict[str, object]:
    changes = {n: None if math.isnan(v := getattr(trial, n)) else v for n in ("whole", "half")}
    return {
        **asdict(trial),
        **changes,
        "scores": [asdict(score) for score in trial.scores],
        "needs_finetuning": trial.needs_finetuning,
    }


def _print(model: str, trials: list[RepairTrial]) -> None:
    tried = [trial for trial in trials if not trial.refused]
    columns = ["remedy", "layers\nchanged", "not\nreached", "change\n1 px", "change\n1/2 px"]
    columns += ["cost", "fine-\ntune"]
    columns += ["top-1", "crops\n1 px", "crops\n2 px"][: max(len(t.right) for t in tried)]
    rows = []
    for t in tried:
        row = [
            t.remedies or "(original)",
            f"{t.changed:,}" if t.remedies else "",
            f"{t.unchanged:,}" if t.unchanged else "",
            *("" if math.isnan(change) else f"{change:.1e}" for change in (t.whole, t.half)),
            f"{t.cost:.1f}x",
            "yes" if t.needs_finetuning else "",
            *(f"{score.text()}\n{score.interval()}" for score in t.scores),
        ]
        rows.append(row + [""] * (len(columns) - len(row)))
    title = f"{model}: remedies, {tried[0].images} images"
    render.print_table(columns, rows, title=title, numeric=columns[1:])
    for t in trials:
        if t.refused:
            render.note(f"{t.remedies}: {t.refused}")
