"""The published figures next to ours: what the paper printed, and what a record of ours says.

Published numbers are data (`results/paper/*.csv`), never scores of this project: a claim shows a
number of ours only from a record that measured it, and otherwise the commands that would make one.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from shiftbench.errors import DataError
from shiftbench.records.record import USUAL_CONDITIONS, Record
from shiftbench.registry import unknown_name
from shiftbench.report.axis import ShiftAxis
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.shifts import DEFAULT_RADIUS
from shiftbench.statistics import Score

Row = Mapping[str, str]
SPLITS = ("val", "test", "all")  # that answer a published figure; unsplit folders are trusted
_SCORES = (
    ACCURACY,
    *(ScoreName("consistency", kind) for kind in ("integer", "half")),
    *(ScoreName("adversarial", attack, DEFAULT_RADIUS) for attack in ("integer", "half")),
)


@dataclass(frozen=True)
class Claim:
    """One published figure, and which record would answer it."""

    table: str
    score: ScoreName
    published: Decimal | None  # percent, as printed; None where the paper has only a picture
    model: str  # ours that is built like the paper's
    data: str = "imagenet"
    recipe: str = "xcit-imagenet"  # empty: a model that is not trained but downloaded
    train_options: tuple[str, ...] = ()  # what the training needs besides its recipe
    variant: str = ""  # tells trainings of one model on one data set apart
    finetuned: bool = False  # the training starts from the model's ImageNet weights

    @property
    def entry(self) -> str:
        """The name of the record that answers: the model's, with the variant as its tag."""
        return f"{self.model}.{self.variant}" if self.variant else self.model


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper; its figures are in the file of its name in results/paper."""

    place: str  # where the paper has it
    about: str
    claim: Callable[[Row], dict[str, Any]]  # what a row of the file says of its claims
    scores: Sequence[ScoreName] = _SCORES
    models: Sequence[str] = ()  # of a picture, which has no file


@dataclass(frozen=True)
class Answer:
    """A claim, with what was measured here."""

    claim: Claim
    score: Score | None  # ours; None without a record that measured it as published
    remark: str = ""  # why a record that is there does not answer

    @property
    def difference(self) -> float | None:
        """Ours minus published, in points."""
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
        "crop and bilinear shifts, a picture only",
        lambda row: {**row, "recipe": ""} if row["model"] in _DOWNLOADED else dict(row),
        [ScoreName("adversarial", attack, DEFAULT_RADIUS) for attack in ("crop", "bilinear")],
        [*(f"xcit_small_12_p16{kind}" for kind in ("", "_aps", "_af")), *_DOWNLOADED],
    ),
}


def read_claims(name: str, folder: Path) -> list[Claim]:
    """Every figure of a table."""
    if name not in TABLES:
        raise unknown_name("table of the paper", name, TABLES)
    table, path = TABLES[name], folder / f"{name}.csv"
    if table.models:
        rows = [table.claim({"model": model}) for model in table.models]
        return [Claim(name, score, None, **row) for row in rows for score in table.scores]
    if not path.is_file():
        raise DataError(
            f"no file {path}: give the folder of published figures with --paper, "
            "results/paper in the source tree"
        )
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Claim(name, score, Decimal(row[score.column]), **table.claim(row))
            for row in csv.DictReader(file)
            for score in table.scores
            if row.get(score.column)
        ]


def answer(claims: Sequence[Claim], records: Sequence[Record]) -> list[Answer]:
    """Finds for each claim the newest record of its model and data that measured it as published.

    A record that is there but was measured otherwise does not answer; the remark says why.
    """
    newest_first = sorted(records, key=lambda record: record.created, reverse=True)
    answers = []
    for claim in claims:
        attempts = [
            record
            for record in newest_first
            if (record.model.name, record.data.name) == (claim.entry, claim.data)
            and _attempts(record, claim.score)
        ]
        reasons = [unlike_published(record, claim.score) for record in attempts]
        pairs = zip(attempts, reasons, strict=True)
        score = next((record.scores[claim.score] for record, why in pairs if not why), None)
        remark = "; ".join(reasons[0]) if attempts and score is None else ""
        answers.append(Answer(claim, score, remark))
    return answers


def _attempts(record: Record, name: ScoreName) -> list[ScoreName]:
    """The scores of a record that measure the same thing, on whatever grid."""
    return [
        n for n in record.scores if (n.family, ShiftAxis.of(n).attack) == (name.family, name.kind)
    ]


def unlike_published(record: Record, name: ScoreName) -> list[str]:
    """How a record's score was not measured as the paper measured its own; empty when it was."""
    own = record.conditions
    reasons = [] if record.data.split in SPLITS else [f"split {record.data.split}"]
    reasons += [f"{key} {own[key]}" for key, usual in USUAL_CONDITIONS.items() if own[key] != usual]
    if record.settings.get("limit") is not None:
        reasons.append(f"limit {record.settings['limit']}")
    if name not in record.scores:
        others = sorted({str(n.curve) for n in _attempts(record, name)} - {name.stem})
        radii = record.scores.curve(name)
        reached = [f"{name.stem} up to {max(radii)} steps only"] if radii else []
        return [*reasons, *reached, *(f"{other} only" for other in others if not reached)]
    if record.is_upper_bound(name):
        reasons.append("an upper bound, from a sampled search")
    if record.scores[name].n < record.data.images:
        reasons.append(f"{record.scores[name].n:,} of {record.data.images:,} images")
    return reasons


def commands(claims: Sequence[Claim], *, records: str = "results/runs") -> list[str]:
    """The commands that would make the records these claims lack, one line per record."""
    wanted: dict[tuple[str, str], list[Claim]] = {}
    for claim in claims:
        wanted.setdefault((claim.entry, claim.data), []).append(claim)
    lines = []
    for (entry, data), group in wanted.items():
        first = group[0]
        # Tables of variants have no attack; the others share one record with every attack.
        attacks = " -a none" if first.variant else ""
        name = f" --name {entry}" if first.variant else ""
        run = f"shiftbench run -m {first.model} -d {data}:DIR{attacks}{name} -o {records}"
        steps = _training(first) if first.recipe else []
        if steps:
            run += f" --checkpoint {steps[-1].rpartition(' ')[2]}/export"
        lines.append(" && ".join([*steps, run]))
    return lines


def _training(claim: Claim) -> list[str]:
    """The trainings that a claim needs, one after the other; the output folder comes last."""
    steps, options = [], claim.train_options
    if claim.finetuned:
        start = replace(claim, data="imagenet", recipe=Claim.recipe, variant="", finetuned=False)
        steps = _training(start)
        options = (*options, "--checkpoint", f"{steps[-1].rpartition(' ')[2]}/export")
    command = f"shiftbench train -m {claim.model} -d {claim.data}:DIR --recipe {claim.recipe}"
    place = f"runs/{claim.variant}-{claim.data}" if claim.variant else f"runs/{claim.data}"
    return [*steps, " ".join((command, *options, "-o", f"{place}/{claim.model}"))]
