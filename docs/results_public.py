"""Tables of public networks on ImageNet images."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from records_tables import at, committed, count, difference, extent, shown, table
from results_align import aligned_pairs, remedy_of
from results_metrics import correlation_cell

from shiftbench.records.folder import select
from shiftbench.records.result import Result
from shiftbench.report.plots import short_name
from shiftbench.report.scores import fact_text
from shiftbench.scores import ACCURACY, ScoreName

PAPER = Path(__file__).parents[1] / "shiftbench" / "published"
CROP = at("crop", 6)
POINTS = (("crop", 1), ("crop", 3), ("crop", 6), ("bilinear", 6), ("integer", 3), ("half", 3))
CONSISTENCY = ScoreName("consistency", "crop")
EXAMPLE = "vit_tiny"  # network of the first claim of the README
FEWEST_NETWORKS = 5  # for a rank correlation


def networks() -> list[Result]:
    """Return the original networks on ImageNet at scale 1, by adversarial accuracy."""
    results = [
        r
        for r in select(committed(), data="imagenet")
        if CROP in r.scores and "+" not in r.model.name
    ]
    return sorted(results, key=lambda result: -result.scores[CROP].value)


def zoo() -> str:
    """Tabulate public networks with their public weights."""
    columns = {
        "accuracy": ACCURACY,
        "consistency crop": CONSISTENCY,
        **{extent(*point): at(*point) for point in POINTS},
    }
    scores = [result.scores for result in networks()]
    header = [f"{title}{count(scores, name)}" for title, name in columns.items()]
    rows = [
        [short_name(r.model.name), *(shown(r.scores.get(name)) for name in columns.values())]
        for r in networks()
    ]
    return table(["", *header], rows)


def front() -> str:
    """Tabulate the public networks for the README, with and without `align`."""
    pairs = aligned_pairs()
    header = ["model", "params", "top-1", "adversarial accuracy, crop 3 px"]
    header += [f"the same with `{remedy_of(pairs[0][1])}`", "difference"] if pairs else []
    rows = []
    for first, second in pairs or [(network, None) for network in networks()]:
        row = [f"`{first.model.name}`", fact_text(first, "param_count")]
        row += [shown(first.scores[name]) for name in (ACCURACY, at("crop", 3))]
        if second is not None:
            row += [shown(second.scores[at("crop", 3)]), difference(first, second, at("crop", 3))]
        rows.append(row)
    n, used = networks()[0].data.images, 2 if pairs else 1
    exported = any(result.model.source == "onnx" for pair in pairs for result in pair)
    return (
        f"{table(header, rows)}\n\nImageNet val, {n} images, scale {used}"
        f"{', exported networks in ONNX Runtime' * exported}. Percent, with 95% intervals. "
        "Adversarial accuracy: correct at every one of the 49 crop offsets up to 3 px."
    )


def opening() -> str:
    """Write the first claim of the README and the output that it follows from."""
    found = [pair for pair in aligned_pairs() if EXAMPLE in pair[0].model.name]
    rows = list(found[0]) if found else [r for r in networks() if EXAMPLE in r.model.name]
    first = rows[0]
    clean, worst = (first.scores[name].text() for name in (ACCURACY, at("crop", 3)))
    text = [
        f"ViT-Tiny classifies {clean}% of {first.data.images} ImageNet validation images "
        f"correctly, but only {worst}% at *every* crop offset up to 3 px."
    ]
    if found:
        raised = rows[1].scores[at("crop", 3)].text()
        text.append(f"With `+{remedy_of(rows[1])}`, no training and one forward pass: {raised}%.")
    names = " ".join(f"-m {row.model.name}" for row in rows)
    command = f"$ shiftbench run {names} -d imagenet:/data -a crop --max-shift 3"
    return "\n".join([" ".join(text), "", "```console", command, *_printed(rows), "```"])


def _printed(results: Sequence[Result]) -> list[str]:
    """Return the lines of scores that the command line prints of results."""
    words = [
        sys.executable,
        "-m",
        "shiftbench_cli",
        "leaderboard",
        *(str(r.folder) for r in results),
    ]
    words += ["--max-shift", "3", "--columns", "top1,adversarial_crop"]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [line.rstrip() for line in ran.stdout.splitlines()]
    end = next(number for number, line in enumerate(lines) if line.startswith("Images:"))
    return [line for line in lines[1:end] if not line.startswith("─")]


def published() -> str:
    """Tabulate published and measured numbers of the same weights.

    Crop consistency was published of torchvision's own weights: `tv:NAME` alone has it.
    """
    consistency = {
        f"tv:{row['model']}": row[CONSISTENCY.column]
        for row in _rows("antialiased_cnns.csv")
        if row["variant"] == "baseline"
    }
    measured = {result.model.name: result for result in select(committed(), data="imagenet")}
    rows = []
    for row in _rows("public_networks.csv"):
        result = measured.get(row["model"])
        if result is None:
            continue
        top1 = result.scores[ACCURACY]
        remark = row["remark"]
        if not (remark or top1.low <= float(row["top1"]) / 100 <= top1.high):
            raise ValueError(f"expected a remark on the published top1 of {row['model']}")
        rows.append(
            [
                row["model"],
                f"{row['top1']} ({row['published_by']})",
                shown(top1),
                consistency.get(row["model"], ""),
                shown(result.scores.get(CONSISTENCY)),
                "; ".join(filter(None, (row["weights"], row["license"], remark))),
            ]
        )
    heads = ["model", "top1 published", "top1 here", "crop consistency published"]
    return table([*heads, "crop consistency here", "weights and license"], rows)


def _rows(name: str) -> list[dict[str, str]]:
    with (PAPER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicts() -> str:
    """Tabulate how accuracy and consistency predict adversarial accuracy, networks as units."""
    results = networks()
    if len(results) < FEWEST_NETWORKS:
        return f"{len(results)} networks are too few for a rank correlation."
    scores: Mapping[str, Callable[[Result], float]] = {
        "adversarial accuracy": lambda r: r.scores[CROP].value,
        "retained accuracy": lambda r: r.scores[CROP].value / r.scores[at("crop", 0)].value,
    }
    rows = []
    for title, name in {"accuracy": ACCURACY, "consistency crop": CONSISTENCY}.items():
        x = np.array([r.scores[name].value if name in r.scores else np.nan for r in results])
        y = [np.array([score(r) for r in results]) for score in scores.values()]
        rows.append([title, *(correlation_cell(x, values) for values in y)])
    return table(["", *(f"{name}, crop 6 px" for name in scores)], rows)
