"""A board in one picture: clean accuracy against what is left of it under shifts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shiftbench.report.ranking import Measured
from shiftbench.report.table import DEFAULT_SORT, Table
from shiftbench.scores import ACCURACY
from shiftbench.statistics import Score


@dataclass(frozen=True)
class Dot:
    """One network."""

    model: str
    family: int  # a number: networks of one family have one color
    clean: Score
    shifted: Score  # images right at every shift up to the max shift


@dataclass(frozen=True)
class Overview:
    """The networks of one table."""

    axes: tuple[str, str]  # what the two scores are, in words
    dots: tuple[Dot, ...]  # in the order of the table

    @classmethod
    def of(cls, table: Table) -> Overview | None:
        """The picture of a table; None where fewer than two networks have both scores."""
        columns = {column.name: column for column in table.columns}
        clean, shifted = columns.get(ACCURACY.column), columns.get(DEFAULT_SORT)
        if clean is None or shifted is None or shifted.score is None:
            return None
        scores = {}
        for row in table.rows:
            x, y = row.cell(clean), row.cell(shifted)
            if isinstance(x, Measured) and isinstance(y, Measured) and y.ranked:
                scores[row.record.model.name] = (x.score, y.score)
        families = sorted({family_of(name) for name in scores})
        dots = [Dot(name, families.index(family_of(name)), *both) for name, both in scores.items()]
        left = f"right at every {shifted.score.kind} shift up to {shifted.reach} (%)"
        return cls(("clean accuracy (%)", left), tuple(dots)) if len(dots) > 1 else None


def family_of(model: str) -> str:
    """The family of a network, by its name.

    >>> family_of("timm:tf_efficientnet_lite0"), family_of("tv:mobilenet_v2")
    ('efficientnet', 'mobilenet')
    """
    name = model.rpartition(":")[2].lower().removeprefix("tf_")
    letters = re.match(r"[a-z]+", name)
    # MobileNetV1 and MobileNetV2 are one family, whether a v stands before the number or not.
    return letters.group().removesuffix("v") if letters else name


def short_name(model: str) -> str:
    """A model's name without its source and the size of its input.

    >>> short_name("timm:vit_tiny_patch16_224")
    'vit_tiny_patch16'
    """
    return re.sub(r"_\d{3}$", "", model.rpartition(":")[2])
