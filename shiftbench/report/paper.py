"""Published numbers of the paper next to the scores of records.

Published numbers are data (`results/paper/*.csv`), never scores of this project. A claim without a
record that measured it has the commands that make such a record.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from shiftbench.errors import DataError
from shiftbench.records.result import USUAL_CONDITIONS, Result
from shiftbench.registry import unknown_name
from shiftbench.scores import ACCURACY, ScoreName, curve_of
from shiftbench.shifts import DEFAULT_RADIUS
from shiftbench.statistics import Score

Row = Mapping[str, str]
SPLITS = ("val", "test", "all")  # that published numbers may be of
IMAGES = {"imagenet": 50_000, "cifar10": 10_000, "cifar100": 10_000, "stanford_cars": 8_041}
_SCORES = (
    ACCURACY,
    *(ScoreName("consistency", kind) for kind in ("integer", "half")),
    *(ScoreName("adversarial", attack, DEFAULT_RADIUS) for attack in ("integer", "half")),
)


@dataclass(frozen=True)
class Claim:
    """One published number, and the model and data of the record to compare it with."""

    table: str
    score: ScoreName
    published: Decimal | None  # percent, as printed; None: the paper has only a plot
    model: str  # bundled model with the paper's architecture
    data: str = "imagenet"
    recipe: str = "xcit-imagenet"  # empty: the weights are downloaded
    train_options: tuple[str, ...] = ()  # of the training besides its recipe
    variant: str = ""  # distinguishes trainings of one model on one data set
    finetuned: bool = False  # the training starts from the model's ImageNet weights

    @property
    def entry(self) -> str:
        """Name of the model in the record: with the variant as its tag."""
        return f"{self.model}.{self.variant}" if self.variant else self.model


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper; its numbers are in the file of the same name in results/paper."""

    place: str  # in the paper
    about: str
    claim: Callable[[Row], dict[str, Any]]  # fields of the claims of a row
    scores: Sequence[ScoreName] = _SCORES
    models: Sequence[str] = ()  # of a plot, which has no file


@dataclass(frozen=True)
class Answer:
    """A claim and the score of a record."""

    claim: Claim
    score: Score | None  # None: no record measured it like the paper
    remark: str = ""  # differences of an existing record from the paper

    @property
    def difference(self) -> float | None:
        """Score minus published number, in points."""
        if self.score is None or self.claim.published is None:
            return None
        return 100 * self.score.value - float(self.claim.published)


_CHANGES = {
    "baseline": "",
    "cyclic_convolution": "_cyclic",
    "avgpool": "_avgpool",
    "af_layernorm": "_aflayernorm",
    "no_positional_encoding": "_nopos",
    "af_avgpool": "_af_avgpool",
    "af_class_attention": "_af",
}
_ACTIVATIONS = {("gelu", "gelu"): "", ("poly", "poly"): "_poly", ("gelu", "poly"): "_polyblocks"}
_DOWNLOADED = (
    "hf:microsoft/cvt-13",
    "timm:swin_tiny_patch4_window7_224",
    "timm:vit_base_patch16_224",
)


def _small_set(row: Row, variant: str) -> dict[str, Any]:
    small = {"data": row["dataset"], "recipe": "xcit-small-sets", "variant": variant}
    return {"model": row["model"], **small, "finetuned": variant == "finetune"}


def _batch_size(row: Row) -> dict[str, Any]:
    # The paper's aps and af models of this table pool their tokens.
    pooled = "_avgpool" if row["model"].endswith(("_aps", "_af")) else ""
    size = row["batch_size"]
    options = ("--set", f"batch_size={size}")
    return {
        "model": row["model"] + pooled,
        "variant": f"batch-{size}",
        "train_options": options,
    }


TABLES: Mapping[str, PaperTable] = {
    "imagenet_main": PaperTable(
        "Table 1",
        "ImageNet: accuracy, consistency, adversarial accuracy",
        lambda row: {"model": row["model"]},
    ),
    "imagenet_ablation": PaperTable(
        "Table 2",
        "one change at a time to XCiT-Nano",
        lambda row: {"model": f"xcit_nano_12_p16{_CHANGES[row['change']]}"},
    ),
    "finetune": PaperTable(
        "appendix",
        "fine-tuned from ImageNet on smaller sets",
        lambda row: _small_set(row, "finetune"),
    ),
    "scratch": PaperTable(
        "appendix",
        "trained from scratch on smaller sets",
        lambda row: _small_set(row, "scratch"),
    ),
    "heads": PaperTable(
        "appendix",
        "alias-free class attention against average pooling",
        lambda row: {"model": row["model"] + ("_avgpool" if row["head"] == "avgpool" else "")},
    ),
    "polynomial": PaperTable(
        "appendix",
        "polynomial activations",
        lambda row: {
            "model": row["model"]
            + _ACTIVATIONS[row["patch_embed_activation"], row["block_activation"]]
        },
    ),
    "batch_size": PaperTable("appendix", "XCiT-Nano by training batch size", _batch_size),
    "realistic_shifts": PaperTable(
        "figure",
        "crop and bilinear shifts, a plot only",
        lambda row: {**row, "recipe": ""} if row["model"] in _DOWNLOADED else dict(row),
        [ScoreName("adversarial", attack, DEFAULT_RADIUS) for attack in ("crop", "bilinear")],
        [*(f"xcit_small_12_p16{kind}" for kind in ("", "_aps", "_af")), *_DOWNLOADED],
    ),
}


def read_claims(name: str, folder: Path) -> list[Claim]:
    """Read every number of a table of the paper.

    Raises:
        UsageError: There is no such table.
        DataError: There is no such file.
    """
    if name not in TABLES:
        raise unknown_name("table of the paper", name, TABLES)
    table, path = TABLES[name], folder / f"{name}.csv"
    if table.models:
        rows = [table.claim({"model": model}) for model in table.models]
        return [Claim(name, score, None, **row) for row in rows for score in table.scores]
    if not path.is_file():
        raise DataError(
            f"there is no file {path}. Give the folder of published numbers with --paper "
            "(results/paper in the source tree)"
        )
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Claim(name, score, Decimal(row[score.column]), **table.claim(row))
            for row in csv.DictReader(file)
            for score in table.scores
            if row.get(score.column)
        ]


def answer(claims: Sequence[Claim], results: Sequence[Result]) -> list[Answer]:
    """Find for each claim the newest record that measured its score like the paper."""
    newest_first = sorted(results, key=lambda result: result.created, reverse=True)
    answers = []
    for claim in claims:
        tried = [
            (result, unlike_published(result, claim.score))
            for result in newest_first
            if (result.model.name, result.data.name) == (claim.entry, claim.data)
            and _attempts(result, claim.score)
        ]
        score = next((result.scores[claim.score] for result, why in tried if not why), None)
        remark = "; ".join(tried[0][1]) if tried and score is None else ""
        answers.append(Answer(claim, score, remark))
    return answers


def _attempts(result: Result, name: ScoreName) -> set[str]:
    """List the scores of a result under the same shift, on any grid."""
    found = set()
    for own in result.scores:
        request = result.request_of(own)
        attack = own.kind if request is None else request.settings.get("attack", own.kind)
        if (own.family, attack) == (name.family, name.kind):
            found.add(own.stem)
    return found


def unlike_published(result: Result, name: ScoreName) -> list[str]:
    """List how a score was not measured like that of the paper; empty if it was."""
    own = {key: result.conditions[key] for key in USUAL_CONDITIONS}
    reasons = [] if result.data.split in SPLITS else [f"split {result.data.split}"]
    reasons += [f"{key} {value}" for key, value in own.items() if value != USUAL_CONDITIONS[key]]
    if name not in result.scores:
        curve, others = curve_of(result.scores, name), _attempts(result, name) - {name.stem}
        if curve:
            return [*reasons, f"{name.stem} up to {max(curve)} steps only"]
        return [*reasons, *(f"{other} only" for other in sorted(others))]
    n, every = result.scores[name].n, IMAGES.get(result.data.name, result.data.images)
    if n < every:
        reasons.append(f"{n:,} of {every:,} images")
    return reasons


def commands(claims: Sequence[Claim], *, records: str = "results/runs") -> list[str]:
    """Return the commands that make the records of claims, one line per record."""
    wanted: dict[tuple[str, str], list[Claim]] = {}
    for claim in claims:
        wanted.setdefault((claim.entry, claim.data), []).append(claim)
    lines = []
    for (entry, data), group in wanted.items():
        first = group[0]
        # Tables of variants have no attack. The others share one record with every attack.
        attacks = " -a none" if first.variant else ""
        name = f" --name {entry}" if first.variant else ""
        run = f"shiftbench run -m {first.model} -d {data}:DIR{attacks}{name} -o {records}"
        steps = _training(first) if first.recipe else []
        if steps:
            run += f" --checkpoint {steps[-1].rpartition(' ')[2]}/export"
        lines.append(" && ".join([*steps, run]))
    return lines


def _training(claim: Claim) -> list[str]:
    """Return the training commands of a claim in order; each ends with its output folder."""
    steps, options = [], claim.train_options
    if claim.finetuned:
        start = replace(claim, data="imagenet", recipe=Claim.recipe, variant="", finetuned=False)
        steps = _training(start)
        options = (*options, "--checkpoint", f"{steps[-1].rpartition(' ')[2]}/export")
    command = f"shiftbench train -m {claim.model} -d {claim.data}:DIR --recipe {claim.recipe}"
    place = f"runs/{claim.variant}-{claim.data}" if claim.variant else f"runs/{claim.data}"
    return [*steps, " ".join((command, *options, "-o", f"{place}/{claim.model}"))]
