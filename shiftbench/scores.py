"""Names of scores, and mappings from names to scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from shiftbench.registry import unknown_name
from shiftbench.statistics import Score

SCORE_FIELDS = tuple(field.name for field in fields(Score))


class ScoreName(NamedTuple):
    """Name of a score; the points of a curve have a radius.

    >>> str(ScoreName("adversarial", "crop", 3))
    'adversarial_crop@3'
    """

    family: str  # accuracy, consistency, change, adversarial, or the name of a plug-in's metric
    kind: str = ""  # shift type or attack; a step other than the attack's own is added: half[1/4]
    radius: int | None = None  # rings of the grid (steps); None: no curve

    def __str__(self) -> str:
        return self.stem if self.radius is None else f"{self.stem}@{self.radius}"

    @property
    def stem(self) -> str:
        """Name without the radius.

        >>> ScoreName("adversarial", "crop", 3).stem
        'adversarial_crop'
        """
        return f"{self.family}_{self.kind}" if self.kind else self.family

    @property
    def column(self) -> str:
        """Name of the column in tables, where accuracy is `top1`.

        >>> ScoreName("accuracy").column, ScoreName("consistency", "half").column
        ('top1', 'consistency_half')
        """
        return "top1" if self == ACCURACY else self.stem

    @property
    def curve(self) -> ScoreName:
        """The name without its radius.

        >>> ScoreName("adversarial", "crop", 3).curve == ScoreName("adversarial", "crop")
        True
        """
        return self.at(None)

    def at(self, radius: int | None) -> ScoreName:
        """Return the name with another radius.

        >>> str(ScoreName("adversarial", "crop").at(3))
        'adversarial_crop@3'
        """
        return ScoreName(self.family, self.kind, radius)


ACCURACY = ScoreName("accuracy")


def curve_of(scores: Mapping[ScoreName, Score], name: ScoreName) -> dict[int, Score]:
    """Return the points of a curve by radius, ascending; empty if there is no such curve."""
    points = {n.radius: s for n, s in scores.items() if n.radius is not None and _same(n, name)}
    return dict(sorted(points.items()))


def _same(first: ScoreName, second: ScoreName) -> bool:
    return first[:2] == second[:2]


def last_points(scores: Mapping[ScoreName, Score]) -> dict[ScoreName, Score]:
    """Return every score once, curves by the point of the largest radius.

    >>> from shiftbench.statistics import wilson
    >>> curve = {ScoreName("adversarial", "crop", s): wilson(9 - s, 10) for s in range(3)}
    >>> [str(name) for name in last_points({ACCURACY: wilson(9, 10), **curve})]
    ['accuracy', 'adversarial_crop@2']
    """
    last: dict[ScoreName, ScoreName] = {}
    for name in scores:
        known = last.get(name.curve)
        if known is None or (name.radius or 0) >= (known.radius or 0):
            last[name.curve] = name
    return {name: scores[name] for name in last.values()}


def find_score(scores: Mapping[ScoreName, Score], text: str) -> Score:
    """Return a score by its text; a curve without a radius is its last point.

    Raises:
        UsageError: There is no such score.
    """
    by_text = {str(name): score for name, score in scores.items()}
    for name, score in last_points(scores).items():
        by_text |= {name.stem: score, name.column: score}
    if text not in by_text:
        raise unknown_name("score", text, by_text)
    return by_text[text]


def scores_to_json(scores: Mapping[ScoreName, Score]) -> dict[str, Any]:
    """Return scores as nested objects: by family, kind and radius."""
    content: dict[str, Any] = {}
    for name, score in scores.items():
        words = (name.family, name.kind, "" if name.radius is None else str(name.radius))
        if {*words[:2]} & {*SCORE_FIELDS} or "@" in name.stem:
            raise ValueError(
                f"expected a score name without @, {', '.join(SCORE_FIELDS)}, got {name}"
            )
        level = content
        for word in words[: 3 if words[2] else 2 if words[1] else 1]:
            level = level.setdefault(word, {})
        level.update(asdict(score))
    return content


def scores_from_json(content: Any) -> dict[ScoreName, Score]:
    """Read the nested objects that `scores_to_json` wrote.

    Raises:
        ValueError: A part of the content is not a score; the message names it.
    """
    return dict(_leaves(content, ()))


def _leaves(content: Any, path: tuple[str, ...]) -> Iterator[tuple[ScoreName, Score]]:
    where = ".".join(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{where}: expected an object, got {type(content).__name__}")
    own = {key: value for key, value in content.items() if key in SCORE_FIELDS}
    if own:
        family, kind, radius = (*path, "", "", "")[:3]
        if not family or len(path) > 3 or not (radius.isdecimal() or not radius):
            raise ValueError(f"{where}: expected scores by family, kind and max shift")
        yield ScoreName(family, kind, int(radius) if radius else None), _score(own, where)
    for key, inner in content.items():
        if key not in SCORE_FIELDS:
            yield from _leaves(inner, (*path, key))


def _score(content: Mapping[str, Any], where: str) -> Score:
    if content.keys() != set(SCORE_FIELDS):
        raise ValueError(f"{where}: expected value, low, high and n, got {', '.join(content)}")
    if not all(isinstance(number, int | float) for number in content.values()):
        raise ValueError(f"{where}: expected numbers, got {dict(content)}")
    score = Score(**content)
    if not 0 <= score.low <= score.value <= score.high <= 1:
        raise ValueError(f"{where}: expected 0 <= low <= value <= high <= 1, got {dict(content)}")
    return score
