"""Names of scores, and the mapping that every table, page and file iterates over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftbench.errors import UsageError
from shiftbench.scores import ACCURACY, SCORE_FIELDS, ScoreName, Scores
from shiftbench.statistics import Score, mean_score, wilson

words = st.text(min_size=1, max_size=6).filter(lambda w: w not in SCORE_FIELDS and "@" not in w)
awkward = st.sampled_from(["flip", "5", "half[1/4]", "5:roll", "a.b", "0", "unit-free"])
names = st.builds(
    ScoreName,
    family=words | awkward,
    kind=st.just("") | words | awkward,
    radius=st.none() | st.integers(0, 40),
)
fractions = st.builds(wilson, st.integers(0, 9), st.integers(9, 99))
others = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12).map(
    lambda values: mean_score(values, unit="logits")
)


@given(st.dictionaries(names, fractions | others, max_size=12))
def test_every_mapping_survives_a_file(entries: dict[ScoreName, Score]) -> None:
    """Whatever the names: a score beside kinds of its family, numbers as kinds, any unit."""
    scores = Scores(entries)
    text = json.dumps(scores.to_json(), allow_nan=False)
    assert dict(Scores.from_json(json.loads(text))) == entries


def test_a_file_has_the_places_that_the_contract_names() -> None:
    score = wilson(9, 10)
    content = Scores(
        {
            ACCURACY: score,
            ScoreName("consistency", "half"): score,
            ScoreName("adversarial", "crop", 3): score,
        }
    ).to_json()
    leaf = {"value": 0.9, "low": score.low, "high": score.high, "n": 10}
    assert content == {
        "accuracy": leaf,
        "consistency": {"half": leaf},
        "adversarial": {"crop": {"3": leaf}},
    }


LEAF: dict[str, Any] = {"value": 0.5, "low": 0.1, "high": 0.9, "n": 10}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"accuracy": 0.5}, "accuracy: expected an object, got float"),
        ({"accuracy": {"value": 0.5}}, "accuracy: expected value, low, high and n, got value"),
        ({"accuracy": {**LEAF, "low": "0.1"}}, "accuracy: expected numbers"),
        ({"accuracy": {**LEAF, "value": 50.0}}, r"accuracy: scores are fractions in \[0, 1\]"),
        ({"a": {"b": {"c": LEAF}}}, "a.b.c: expected scores by family, kind and max shift"),
        ({"a": {"b": {"1": {"2": LEAF}}}}, "a.b.1.2: expected scores by family"),
        (LEAF, "expected scores by family"),
    ],
)
def test_what_is_no_score_is_named(content: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scores.from_json(content)


@pytest.mark.parametrize("word", ["value", "n", "crop@3"])
def test_names_that_a_file_could_not_hold_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=f"cannot be called '{word}'"):
        ScoreName("adversarial", word)


def test_scores_are_found_by_text_curve_and_radius() -> None:
    curve = {ScoreName("adversarial", "crop", s): wilson(9 - s, 10) for s in (2, 0, 1)}
    scores = Scores({ACCURACY: wilson(9, 10), **curve})
    crop = ScoreName("adversarial", "crop")
    assert list(scores.curve(crop)) == [0, 1, 2]  # whatever the order in the file
    assert scores.stems() == [ACCURACY, crop]
    assert scores.curves() == [crop]
    assert scores.at(crop) == scores.at(crop, 2) == scores.find("adversarial_crop")
    assert scores.at(crop, 3) is None
    assert scores.at(ACCURACY) == scores.find("accuracy") == wilson(9, 10)
    assert list(scores.texts()) == [
        "accuracy",
        "adversarial_crop",
        *(f"adversarial_crop@{s}" for s in range(3)),
    ]
    with pytest.raises(UsageError, match="Did you mean 'adversarial_crop@1'"):
        scores.find("adversarial_crops@1")
