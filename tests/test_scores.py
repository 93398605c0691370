"""Names of scores, and their form in record.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftbench.errors import UsageError
from shiftbench.scores import (
    ACCURACY,
    SCORE_FIELDS,
    ScoreName,
    curve_of,
    find_score,
    last_points,
    scores_from_json,
    scores_to_json,
)
from shiftbench.statistics import wilson

CROP = ScoreName("adversarial", "crop")
words = st.text(min_size=1).filter(lambda word: word not in SCORE_FIELDS and "@" not in word)
score_names = st.builds(ScoreName, words, st.just("") | words, st.none() | st.integers(0, 99))


@given(st.lists(score_names, unique=True))
def test_scores_json_round_trip(given_names: list[ScoreName]) -> None:
    scores = {name: wilson(index, 100) for index, name in enumerate(given_names)}
    content = json.loads(json.dumps(scores_to_json(scores)))
    assert scores_from_json(content) == scores


def test_scores_json_is_nested_by_family_kind_and_radius() -> None:
    score = wilson(9, 10)
    content = scores_to_json({ACCURACY: score, CROP.at(3): score, ScoreName("flip", "crop"): score})
    assert content["accuracy"] == vars(score)
    assert content["adversarial"]["crop"]["3"] == vars(score)
    assert content["flip"]["crop"]["n"] == 10


@pytest.mark.parametrize("name", [ScoreName("value"), ScoreName("a", "low"), ScoreName("a@1")])
def test_scores_json_ambiguous_name_raises(name: ScoreName) -> None:
    with pytest.raises(ValueError, match="expected a score name without @"):
        scores_to_json({name: wilson(1, 2)})


GOOD = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected an object, got list"),
        ({"a": 3}, "a: expected an object, got int"),
        (GOOD, "expected scores by family"),
        ({"a": {"b": {"c": GOOD}}}, "a.b.c: expected scores by family, kind and max shift"),
        ({"a": {"b": {"1": {"2": GOOD}}}}, "expected scores by family"),
        ({"a": {"value": 1}}, "a: expected value, low, high and n, got value"),
        ({"a": {**GOOD, "value": "0.5"}}, "a: expected numbers"),
        ({"a": {**GOOD, "value": 0.7}}, "a: expected 0 <= low <= value <= high <= 1"),
        ({"a": {**GOOD, "high": 1.5}}, "a: expected 0 <= low <= value <= high <= 1"),
    ],
)
def test_scores_json_bad_content_raises(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scores_from_json(content)


def test_scores_are_found_by_text() -> None:
    curve = {CROP.at(s): wilson(9 - s, 10) for s in (2, 0, 1)}
    scores = {ACCURACY: wilson(9, 10), **curve}
    assert list(curve_of(scores, CROP)) == [0, 1, 2]
    assert curve_of(scores, ACCURACY) == {}
    assert list(last_points(scores)) == [ACCURACY, CROP.at(2)]
    assert find_score(scores, "adversarial_crop") == find_score(scores, "adversarial_crop@2")
    assert find_score(scores, "top1") == find_score(scores, "accuracy") == wilson(9, 10)
    with pytest.raises(UsageError, match=r"unknown score 'adversarial_crops@1'.*Did you mean"):
        find_score(scores, "adversarial_crops@1")
