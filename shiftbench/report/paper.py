"""The published figures next to ours: what the paper printed, and what a record of ours says.

Published numbers are data (`results/paper/*.csv`), never scores of this project: a claim shows a
number of ours only from a record that measured it, and otherwise the commands that would make one.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from shiftbench.errors import DataError
from shiftbench.files import file_safe
from shiftbench.measure.attacks import DEFAULT_RADIUS
from shiftbench.records.record import Record
from shiftbench.registry import Registry
from shiftbench.statistics import Score

Row = Mapping[str, str]
_METRICS = (
    *("top1", "consistency_integer", "consistency_half"),
    *("adversarial_integer", "adversarial_half"),
)


@dataclass(frozen=True)
class Claim:
    """One published figure, and which record would answer it."""

    table: str
    model: str  # ours that is built like the paper's
    data: str
    metric: str  # `top1`, `consistency_half`, `adversarial_crop`
    published: Decimal | None  # percent, as printed; None where the paper has only a picture
    recipe: str = "xcit-imagenet"
    train_options: tuple[str, ...] = ()  # what the training needs besides its recipe
    variant: str = ""  # tells records of one model and data apart: the folder they are in
    weights: str = ""  # a model that is not trained but downloaded


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
    record: Record | None
    score: Score | None  # ours; None without a record that has it

    @property
    def difference(self) -> float | None:
        """Ours minus published, in points."""
        if self.score is None or self.claim.published is None:
            return None
        return 100 * self.score.value - float(self.claim.published)


TABLES: Registry[PaperTable] = Registry("table of the paper")


def _claims(
    table: str, row: Row, model: str, data: str, **rest: str | tuple[str, ...]
) -> list[Claim]:
    return [
        Claim(table, model, data, metric, Decimal(row[metric]), **rest)  # type: ignore[arg-type]
        for metric in _METRICS
        if row.get(metric)
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
    start = ("--checkpoint", f"runs/imagenet/{row['model']}")
    return _claims(
        "finetune",
        row,
        row["model"],
        row["dataset"],
        recipe="xcit-small-sets",
        train_options=start,
        variant="finetune",
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
        variant=f"batch_size-{row['batch_size']}",
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
            f"adversarial_{attack}",
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


def score_of(record: Record, metric: str) -> Score | None:
    """The score of a record that a published metric speaks of."""
    family, _, kind = metric.partition("_")
    if metric == "top1":
        return record.scores.accuracy
    if family == "consistency":
        return record.scores.consistency.get(kind)
    return record.scores.adversarial.get(kind, {}).get(DEFAULT_RADIUS)


def _variant(record: Record, variants: set[str]) -> str:
    """Which training a record stands for: the name of the folder of records it lies in."""
    parent = record.folder.parent.name if record.folder is not None else ""
    return parent if parent in variants else ""


def answer(claims: Sequence[Claim], records: Sequence[Record]) -> list[Answer]:
    """Finds for each claim the newest record of its model, data and training that has its score."""
    variants = {claim.variant for claim in claims} | {"finetune", "scratch"}
    newest_first = sorted(records, key=lambda record: record.created, reverse=True)
    answers = []
    for claim in claims:
        matches = [
            (record, score)
            for record in newest_first
            if record.model.name == claim.model
            and record.data.name == claim.data
            and _variant(record, variants) == claim.variant
            and (score := score_of(record, claim.metric)) is not None
        ]
        record, score = matches[0] if matches else (None, None)
        answers.append(Answer(claim, record, score))
    return answers


def commands(claims: Sequence[Claim], *, records: str = "results/runs") -> list[str]:
    """The commands that would make the records these claims lack, one line per record."""
    wanted: dict[tuple[str, str, str], list[Claim]] = {}
    for claim in claims:
        wanted.setdefault((claim.model, claim.data, claim.variant), []).append(claim)
    lines = []
    for (model, data, variant), group in wanted.items():
        first = group[0]
        # All attacks in one record, which then answers every table: two runs of one model and data
        # with different settings would refuse to share a folder. The variants' tables have no
        # attack: there the grid is the unshifted image alone.
        attacks = " -a integer --max-shift 0" if variant else ""
        output = f"{records}/{variant}" if variant else records
        run = f"shiftbench run -m {model} -d {data}:DIR{attacks} -o {output}"
        if not first.weights:
            trained = f"runs/{f'{variant}-{data}' if variant else data}/{file_safe(model)}"
            options = " ".join(("", *first.train_options))
            train = (
                f"shiftbench train -m {model} -d {data}:DIR --recipe {first.recipe}{options} "
                f"-o {trained}"
            )
            run = f"{train} && {run} --checkpoint {trained}"
        lines.append(run)
    return lines
