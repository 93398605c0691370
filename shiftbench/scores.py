"""Names of scores: one kind of name that every table, page, file and threshold iterates over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from shiftbench.registry import unknown_name
from shiftbench.statistics import Score

SCORE_FIELDS = tuple(field.name for field in fields(Score))  # what a score is in a record


@dataclass(frozen=True, order=True)
class ScoreName:
    """What a score is of.

    >>> str(ScoreName("adversarial", "crop", 3))
    'adversarial_crop@3'
    """

    family: str  # accuracy, consistency, change, adversarial, or a plugged-in metric's own
    kind: str = ""  # which shift or attack; a step other than its own is named: half[1/4]
    radius: int | None = None  # rings of the grid, where the score is a point of a curve

    def __post_init__(self) -> None:
        for word in (self.family, self.kind):
            if word in SCORE_FIELDS or "@" in word:
                raise ValueError(
                    f"a score cannot be called {word!r}: @ and {', '.join(SCORE_FIELDS)} mean "
                    "something else in records"
                )

    def __str__(self) -> str:
        at = "" if self.radius is None else f"@{self.radius}"
        return f"{self.stem}{at}"

    @property
    def stem(self) -> str:
        """The name of the whole curve, or of the score where there is none.

        >>> ScoreName("adversarial", "crop", 3).stem
        'adversarial_crop'
        """
        return f"{self.family}_{self.kind}" if self.kind else self.family

    @property
    def curve(self) -> ScoreName:
        """The same without its radius.

        >>> ScoreName("adversarial", "crop", 3).curve == ScoreName("adversarial", "crop")
        True
        """
        return self if self.radius is None else ScoreName(self.family, self.kind)

    @property
    def column(self) -> str:
        """How tables call it; accuracy is known as top-1.

        >>> ScoreName("accuracy").column, ScoreName("consistency", "half").column
        ('top1', 'consistency_half')
        """
        return "top1" if self == ACCURACY else self.stem


ACCURACY = ScoreName("accuracy")


class Scores(dict[ScoreName, Score]):
    """Every score of a record, by name; it is not changed once it is made.

    >>> from shiftbench.statistics import wilson
    >>> scores = Scores({ScoreName("adversarial", "crop", s): wilson(9 - s, 10) for s in range(3)})
    >>> scores.find("adversarial_crop") == scores.find("adversarial_crop@2")
    True
    """

    def curve(self, name: ScoreName) -> dict[int, Score]:
        """The scores of a curve by radius, from the smallest up; empty where there is none."""
        return self._curves.get(name.curve, {})

    @cached_property
    def _curves(self) -> dict[ScoreName, dict[int, Score]]:
        curves: dict[ScoreName, dict[int, Score]] = {}
        for name, score in self.items():
            if name.radius is not None:
                curves.setdefault(name.curve, {})[name.radius] = score
        return {name: dict(sorted(curve.items())) for name, curve in curves.items()}

    def curves(self) -> list[ScoreName]:
        """The names that have a radius, without it, in order."""
        return [stem for stem in self.stems() if stem in self._curves]

    def stems(self) -> list[ScoreName]:
        """Every name without its radius, in order: a column of a table each."""
        return list(dict.fromkeys(name.curve for name in self))

    def at(self, name: ScoreName, radius: int | None = None) -> Score | None:
        """A score by stem: that of the radius where there is a curve, by default of the largest."""
        curve = self.curve(name)
        if not curve:
            return self.get(name.curve)
        return curve.get(max(curve) if radius is None else radius)

    def find(self, text: str) -> Score:
        """A score by its text; a curve's own name is its last point. Unknown: a UsageError."""
        names = self.texts()
        if text not in names:
            raise unknown_name("score", text, names)
        return names[text]

    def texts(self) -> dict[str, Score]:
        """Every score by its text, the last point of each curve by the curve's own name too."""
        by_text: dict[str, Score] = {}
        for stem in self.stems():
            curve = self.curve(stem)
            by_text[str(stem)] = curve[max(curve)] if curve else self[stem]
            by_text |= {f"{stem}@{radius}": score for radius, score in curve.items()}
        return by_text

    def to_json(self) -> dict[str, Any]:
        """Nested objects, family, kind, radius; one may be a score and hold others as well."""
        content: dict[str, Any] = {}
        for name, score in self.items():
            place = content.setdefault(name.family, {})
            if name.kind or name.radius is not None:
                place = place.setdefault(name.kind, {})
            if name.radius is not None:
                place = place.setdefault(str(name.radius), {})
            place.update(vars(score))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Scores:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: Something is not a score; the message names it.
        """
        return cls(_leaves(content, ()))


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
    score = Score(**content)
    numbers = (score.value, score.low, score.high)
    if not all(isinstance(x, int | float) for x in (*numbers, score.n)):
        raise ValueError(f"{where}: expected numbers, got {content}")
    if not all(0 <= x <= 1 for x in numbers):
        raise ValueError(f"{where}: expected fractions in [0, 1], got {numbers}")
    return score
