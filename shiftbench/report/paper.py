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

from shiftbench.errors import DataError
from shiftbench.records.comparable import conditions
from shiftbench.records.record import Record
from shiftbench.registry import Registry
from shiftbench.report.axis import ShiftAxis
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.shifts.attacks import DEFAULT_RADIUS
from shiftbench.statistics import Score

Row = Mapping[str, str]
# What conditions a record may have that answers a published figure; unsplit folders are trusted.
AS_PUBLISHED = {
    "split": ("val", "test", "all"),
    "crop": ("paper",),
    "pad": ("none",),
    "precision": ("fp32",),
    "engine": ("torch",),
}
_SCORES = (
    ACCURACY,
    *(ScoreName("consistency", kind) for kind in ("integer", "half")),
    *(ScoreName("adversarial", attack, DEFAULT_RADIUS) for attack in ("integer", "half")),
)


@dataclass(frozen=True)
class Claim:
    """One published figure, and which record would answer it."""

    table: str
    model: str  # ours that is built like the paper's
    data: str
    score: ScoreName
    published: Decimal | None  # percent, as printed; None where the paper has only a picture
    recipe: str = "xcit-imagenet"
    train_options: tuple[str, ...] = ()  # what the training needs besides its recipe
    variant: str = ""  # tells trainings of one model on one data set apart
    finetuned: bool = False  # the training starts from the model's ImageNet weights
    weights: str = ""  # a model that is not trained but downloaded

    @property
    def entry(self) -> str:
        """The name of the record that answers: the model's, with the variant as its tag."""
        return f"{self.model}.{self.variant}" if self.variant else self.model


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    name: str  # also of its file in results/paper
    place: str  # where the paper has it
    about: str
    claims: Callable[[Sequence[Row]], list[Claim]]


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


TABLES: Registry[PaperTable] = Registry("table of the paper")


def _claims(
    table: str, row: Row, model: str, data: str, **rest: str | bool | tuple[str, ...]
) -> list[Claim]:
    return [
        Claim(table, model, data, score, Decimal(row[score.column]), **rest)  # type: ignore[arg-type]
        for score in _SCORES
        if row.get(score.column)
    ]


def _register(name: str, place: str, about: str) -> Callable[[Callable[[Row], list[Claim]]], None]:
    def add(claims: Callable[[Row], list[Claim]]) -> None:
        TABLES.register(
            name, PaperTable(name, place, about, lambda rows: [c for r in rows for c in claims(r)])
        )

    return add


@_register("imagenet_main", "Table 1", "ImageNet: accuracy, consistency, adversarial accuracy")
def _main(row: Row) -> list[Claim]:
    return _claims("imagenet_main", row, row["model"], "imagenet")


_CHANGES = {
    "baseline": "",
    "cyclic_convolution": "_cyclic",
    "avgpool": "_avgpool",
    "af_layernorm": "_aflayernorm",
    "no_positional_encoding": "_nopos",
    "af_avgpool": "_af_avgpool",
    "af_class_attention": "_af",
}


@_register("imagenet_ablation", "Table 2", "one change at a time to XCiT-Nano")
def _ablation(row: Row) -> list[Claim]:
    model = f"xcit_nano_12_p16{_CHANGES[row['change']]}"
    return _claims("imagenet_ablation", row, model, "imagenet")


@_register("finetune", "appendix", "fine-tuned from ImageNet on smaller sets")
def _finetune(row: Row) -> list[Claim]:
    return _claims(
        "finetune",
        row,
        row["model"],
        row["dataset"],
        recipe="xcit-small-sets",
        variant="finetune",
        finetuned=True,
    )


@_register("scratch", "appendix", "trained from scratch on smaller sets")
def _scratch(row: Row) -> list[Claim]:
    return _claims(
        "scratch",
        row,
        row["model"],
        row["dataset"],
        recipe="xcit-small-sets",
        variant="scratch",
    )


@_register("heads", "appendix", "alias-free class attention against average pooling")
def _heads(row: Row) -> list[Claim]:
    suffix = "_avgpool" if row["head"] == "avgpool" else ""
    return _claims("heads", row, row["model"] + suffix, "imagenet")


@_register("polynomial", "appendix", "polynomial activations")
def _polynomial(row: Row) -> list[Claim]:
    kinds = (row["patch_embed_activation"], row["block_activation"])
    suffix = {("gelu", "gelu"): "", ("poly", "poly"): "_poly", ("gelu", "poly"): "_polyblocks"}
    return _claims("polynomial", row, row["model"] + suffix[kinds], "imagenet")


@_register("batch_size", "appendix", "XCiT-Nano by training batch size")
def _batch_size(row: Row) -> list[Claim]:
    # The paper's aps and af models of this table pool their tokens.
    pools = row["model"].endswith(("_aps", "_af"))
    model = row["model"] + ("_avgpool" if pools else "")
    return _claims(
        "batch_size",
        row,
        model,
        "imagenet",
        train_options=("--set", f"batch_size={row['batch_size']}"),
        variant=f"batch-{row['batch_size']}",
    )


def _realistic(_: Sequence[Row]) -> list[Claim]:
    """The crop and bilinear curves, which the paper prints only as a picture."""
    trained = ("xcit_small_12_p16", "xcit_small_12_p16_aps", "xcit_small_12_p16_af")
    downloaded = (
        "hf:microsoft/cvt-13",
        "timm:swin_tiny_patch4_window7_224",
        "timm:vit_base_patch16_224",
    )
    return [
        Claim(
            "realistic_shifts",
            model,
            "imagenet",
            ScoreName("adversarial", attack, DEFAULT_RADIUS),
            None,
            weights=model if model in downloaded else "",
        )
        for model in (*trained, *downloaded)
        for attack in ("crop", "bilinear")
    ]


TABLES.register(
    "realistic_shifts",
    PaperTable(
        "realistic_shifts", "figure", "crop and bilinear shifts, a picture only", _realistic
    ),
)


def read_claims(table: str, folder: Path) -> list[Claim]:
    """Every figure of a table."""
    known = TABLES.get(table)
    path = folder / f"{table}.csv"
    if not path.is_file():
        if known.claims([]):
            return known.claims([])
        raise DataError(
            f"no file {path}: give the folder of published figures with --paper, "
            "results/paper in the source tree"
        )
    with path.open(newline="", encoding="utf-8") as file:
        return known.claims(list(csv.DictReader(file)))


def answer(claims: Sequence[Claim], records: Sequence[Record]) -> list[Answer]:
    """Finds for each claim the newest record of its model and data that measured it as published.

    A record that is there but was measured otherwise does not answer; the remark says why.
    """
    newest_first = sorted(records, key=lambda record: record.created, reverse=True)
    answers = []
    for claim in claims:
        found = [
            record
            for record in newest_first
            if (record.model.name, record.data.name) == (claim.entry, claim.data)
            and _attempts(record, claim.score)
        ]
        reasons = [unlike_published(record, claim.score) for record in found]
        score = next(
            (r.scores[claim.score] for r, why in zip(found, reasons, strict=True) if not why), None
        )
        remark = "; ".join(reasons[0]) if found and score is None else ""
        answers.append(Answer(claim, score, remark))
    return answers


def _attempts(record: Record, name: ScoreName) -> list[ScoreName]:
    """The scores of a record that measure the same thing, on whatever grid."""
    return [
        n for n in record.scores if (n.family, ShiftAxis.of(n).attack) == (name.family, name.kind)
    ]


def unlike_published(record: Record, name: ScoreName) -> list[str]:
    """How a record's score was not measured as the paper measured its own; empty when it was."""
    own = conditions(record)
    reasons = [f"{key} {own[key]}" for key, usual in AS_PUBLISHED.items() if own[key] not in usual]
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
        steps = [] if first.weights else _training(first)
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
    words = (
        "shiftbench train -m",
        claim.model,
        "-d",
        f"{claim.data}:DIR",
        "--recipe",
        claim.recipe,
    )
    place = f"runs/{claim.variant}-{claim.data}" if claim.variant else f"runs/{claim.data}"
    return [*steps, " ".join((*words, *options, "-o", f"{place}/{claim.model}"))]
