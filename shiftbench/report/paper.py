"""Published numbers of the paper next to the scores of records.

Published numbers are data (`shiftbench/published/*.csv`), never scores of this project. A record
counts only if it was measured and trained under the paper's conditions.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from aft_models.cards import WeightsCard, list_weights, weights_card
from aft_models.errors import AftModelsError
from aft_models.training.recipe import override
from aft_models.training.recipes import get_recipe
from shiftbench.records.result import USUAL_CONDITIONS, Result
from shiftbench.registry import unknown_name
from shiftbench.scores import ACCURACY, ScoreName, curve_of
from shiftbench.shifts import DEFAULT_RADIUS
from shiftbench.statistics import Score

Row = Mapping[str, str]
Cards = Mapping[str, WeightsCard]  # by digest of the weights
PUBLISHED = Path(__file__).resolve().parents[1] / "published"
PROCESSES = 8  # GPUs of the paper
SIDE = 224  # pixels of every image of the paper
SPLITS = ("val", "test", "all")  # data sets of published numbers
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
    """A table of the paper; its numbers are in the file of the same name of PUBLISHED."""

    place: str  # in the paper
    about: str
    claim: Callable[[Row], dict[str, Any]]  # fields of the claims of a row
    scores: Sequence[ScoreName] = _SCORES
    models: Sequence[str] = ()  # of a plot, which has no file


@dataclass(frozen=True)
class Match:
    """A claim and the score of a record."""

    claim: Claim
    score: Score | None  # None: no record measured it like the paper
    remark: str = ""  # differences of an existing record from the paper
    unknown_recipe: bool = False  # the weights have no card, such as those of the authors

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


def read_claims(name: str) -> list[Claim]:
    """Read every number of a table of the paper.

    Raises:
        UsageError: There is no such table.
    """
    if name not in TABLES:
        raise unknown_name("table of the paper", name, TABLES)
    table = TABLES[name]
    if table.models:
        rows = [table.claim({"model": model}) for model in table.models]
        return [Claim(name, score, None, **row) for row in rows for score in table.scores]
    return [
        Claim(name, score, Decimal(row[score.column]), **table.claim(row))
        for row in read_published(name)
        for score in table.scores
        if row.get(score.column)
    ]


def read_published(name: str) -> list[dict[str, str]]:
    """Read the rows of a file of published numbers."""
    with (PUBLISHED / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_cards(folders: Iterable[Path]) -> dict[str, WeightsCard]:
    """Read the cards of all weights that training exported below some folders.

    Returns:
        Cards by the digest of their weights.
    """
    cards: dict[str, WeightsCard] = {}
    for place in {file.parent for folder in folders for file in folder.rglob("*.safetensors")}:
        with suppress(AftModelsError):  # not a card of this package
            found = [weights_card(name, place) for name in list_weights(place)]
            cards |= {card.digest: card for card in found}
    return cards


def match_claims(
    claims: Sequence[Claim], results: Sequence[Result], cards: Cards | None = None
) -> list[Match]:
    """Find for each claim the newest record that was trained and measured like the paper.

    Args:
        claims: Published numbers.
        results: Records.
        cards: Cards of trained weights, which contain the recipes.
    """
    newest_first = sorted(results, key=lambda result: result.created, reverse=True)
    matches = []
    for claim in claims:
        tried = [
            (result, unlike_published(result, claim.score) + unlike_recipe(result, claim, cards))
            for result in newest_first
            if (result.model.name, result.data.name) == (claim.entry, claim.data)
            and _attempts(result, claim.score)
        ]
        found = next((result for result, why in tried if not why), None)
        if found is not None:
            unknown = bool(claim.recipe) and card_of(found, cards) is None
            matches.append(Match(claim, found.scores[claim.score], unknown_recipe=unknown))
        else:
            matches.append(Match(claim, None, "; ".join(tried[0][1]) if tried else ""))
    return matches


def card_of(result: Result, cards: Cards | None) -> WeightsCard | None:
    """Return the card of the weights that a record was measured with."""
    return (cards or {}).get(str(result.model.identity.get("weights")))


def unlike_recipe(result: Result, claim: Claim, cards: Cards | None) -> list[str]:
    """List how the weights of a record were not trained like those of the paper.

    Weights without a card may be those of the authors, unless the training is the claim itself.
    """
    if not claim.recipe:
        return []
    card = card_of(result, cards)
    if card is None:
        return ["recipe unknown: no card of its weights was found"] if claim.variant else []
    recipe = get_recipe(claim.recipe).for_model(claim.model)
    changes = claim.train_options[1::2]  # after each --set
    wanted = override(recipe, changes).settings()
    return [
        f"{name} {card.recipe[name]} instead of {value}"
        for name, value in wanted.items()
        if name not in ("accumulate", "pipeline") and card.recipe.get(name, value) != value
    ]


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
    side = result.data.geometry["view"]
    reasons += [] if side == SIDE else [f"images of {side} px"]
    if name not in result.scores:
        curve, others = curve_of(result.scores, name), _attempts(result, name) - {name.stem}
        if curve:
            return [*reasons, f"{name.stem} up to {max(curve)} step{'s' * (max(curve) != 1)} only"]
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
        kinds = {c.score.kind: None for c in group if c.score.family == "adversarial"}
        words = f"-m {first.model} -d {data}:DIR -a {','.join(kinds) or 'none'}"
        if all(claim.score.family != "consistency" for claim in group):
            words += " --no-consistency"
        words += f" --name {entry}" if first.variant else ""
        run = f"shiftbench run {words} --nproc {PROCESSES} -o {records}"
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
    command += f" --nproc {PROCESSES}"
    return [*steps, " ".join((command, *options, "-o", f"{place}/{claim.model}"))]


@dataclass(frozen=True)
class ComparedRow:
    """A row of a table of the paper: one model, published and measured."""

    model: str
    data: str
    matches: Mapping[str, Match]  # by column


def rows_of(matches: Sequence[Match]) -> list[ComparedRow]:
    """Arrange matches as in the paper: one row per model and data set."""
    rows: dict[tuple[str, str], dict[str, Match]] = {}
    for one in matches:
        key = one.claim.entry, one.claim.data
        rows.setdefault(key, {})[one.claim.score.column] = one
    return [ComparedRow(*key, found) for key, found in rows.items()]


def left_out(matches: Sequence[Match]) -> list[str]:
    """Describe the records that do not count, a line per model and data set."""
    lines = []
    for row in rows_of(matches):
        reasons = dict.fromkeys(one.remark for one in row.matches.values() if one.remark)
        if reasons:
            lines.append(f"{row.model} on {row.data}: {'; '.join(reasons)}")
    return lines


def comparison_rows(matches: Sequence[Match]) -> list[dict[str, str]]:
    """Return the rows of a file: each number published, measured, and their difference.

    The interval of the difference is that of the measured score.
    """
    columns = list(dict.fromkeys(one.claim.score.column for one in matches))
    rows = []
    for row in rows_of(matches):
        cells = {"model": row.model, "data": row.data}
        for column in columns:
            one = row.matches.get(column)
            for end, text in zip(ENDS, _numbers(one), strict=True):
                cells[f"{column}_{end}"] = text
        rows.append(cells)
    return rows


ENDS = ("published", "ours", "difference", "low", "high")


def _numbers(one: Match | None) -> list[str]:
    """Return the texts of ENDS, empty where there is no number."""
    if one is None:
        return [""] * len(ENDS)
    published = one.claim.published
    texts = ["" if published is None else str(published)]
    if one.score is None:
        return texts + [""] * (len(ENDS) - 1)
    texts.append(f"{100 * one.score.value:.2f}")
    if published is None:
        return [*texts, "", "", ""]
    ends = (one.score.value, one.score.low, one.score.high)
    return texts + [f"{100 * end - float(published):+.2f}" for end in ends]
