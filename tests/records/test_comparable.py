"""The one rule of comparability: what must agree, what need not, and the words that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from sample_records import make_record, spread

from shiftbench.errors import UsageError
from shiftbench.records.comparable import (
    comparison_key,
    group_records,
    require_comparable,
    why_not,
)
from shiftbench.records.record import Record, read_records
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import compare_paired

CROP = ScoreName("adversarial", "crop", 6)
HALF = ScoreName("consistency", "half")
BROKEN = {"crop": spread(24, [2, 1, 1])}


def record(name: str = "a", **how: Any) -> Record:
    settings = {key: how.pop(key) for key in list(how) if key not in FIELDS}
    agreed = [settings.get("repeats", 1)] * 24
    fields: dict[str, Any] = {"broken": BROKEN, "consistent": {"half": agreed}, **how}
    return make_record(name, settings=settings, **fields)


FIELDS = ("broken", "consistent", "data", "fingerprint", "labels", "max_shift")
# What makes any score incomparable, and a word that the reason must have.
CONDITIONS: Mapping[str, tuple[dict[str, Any], str]] = {
    "data": ({"data": "cifar10"}, "cifar10"),
    "split": ({"split": "train"}, "train"),
    "files": ({"fingerprint": "0" * 64}, "00000000"),
    "labels": ({"labels": [3] * 24}, "images"),
    "images": ({"broken": {"crop": spread(23, [2])}, "consistent": {}}, "23"),
    "crop": ({"crop": "model"}, "model"),
    "pad": ({"pad": "reflect"}, "reflect"),
    "precision": ({"precision": "bf16"}, "bf16"),
    "engine": ({"engine": "compile"}, "compile"),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_other_conditions_forbid_everything_and_are_named(condition: str) -> None:
    how, word = CONDITIONS[condition]
    plain, other = record(), record("b", **how)
    (reason,) = why_not(plain, other)
    assert word in reason
    assert reason in why_not(plain, other, ACCURACY)
    with pytest.raises(UsageError, match=r"a figure needs records made under the same.*a and b"):
        require_comparable([plain, other], what="a figure")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_other_conditions_are_other_groups_with_a_label_that_tells_them_apart(
    condition: str,
) -> None:
    how, word = CONDITIONS[condition]
    groups = group_records([record(), record("b", **how), record("c")])
    assert [[r.model.name for r in g.records] for g in sorted(groups, key=len_of)] == [
        ["b"],
        ["a", "c"],
    ]
    labels = [group.label for group in groups]
    assert len(set(labels)) == 2
    assert any(word in label for label in labels)


def len_of(group: Any) -> int:
    return len(group.records)


def test_unusual_conditions_are_named_even_where_all_records_share_them() -> None:
    usual, padded = record(), record("b", pad="reflect")
    assert group_records([usual])[0].label == "scenes test, 24 images"
    assert group_records([padded])[0].label == "scenes test, 24 images, pad reflect"


def test_a_seed_counts_only_where_a_draw_depends_on_it() -> None:
    a, b = record(seed=0), record("b", seed=5)
    assert why_not(a, b) == why_not(a, b, ACCURACY) == why_not(a, b, CROP) == []
    (reason,) = why_not(a, b, HALF)
    assert reason == "seed is 0 and 5"
    sampled = [record(seed=seed, mode="sampled:4") for seed in (0, 5)]
    assert why_not(*sampled, CROP) == ["seed is 0 and 5"]
    assert why_not(*sampled, CROP, images_only=True) == []


def test_the_seed_of_the_searched_images_counts() -> None:
    """Two seeds choose other images of equal number: their curves are of different images."""
    a, b = (record(name, seed=seed, search_limit=6) for name, seed in (("a", 0), ("b", 2)))
    assert why_not(a, b) == why_not(a, b, ACCURACY) == []
    (reason,) = why_not(a, b, CROP)
    assert reason == "adversarial_crop@6 is of different images (6 and 6)"
    assert why_not(a, b, CROP, images_only=True) == [reason]
    again = record("c", seed=0, search_limit=6)
    assert why_not(a, again, CROP) == []


def test_a_sampled_search_is_not_an_exact_one_but_a_full_grid_is() -> None:
    exact, full, sampled = (record(mode=m) for m in ("exhaustive", "full_grid", "sampled:4"))
    assert why_not(exact, full, CROP) == []
    assert "mode is exact and sampled:4" in why_not(exact, sampled, CROP)


def test_other_draws_are_other_scores() -> None:
    assert why_not(record(), record(repeats=4), HALF) == ["repeats is 1 and 4"]


def test_draws_that_go_further_are_other_scores() -> None:
    """Views of another size are shifted by other amounts."""
    near = record()
    info = near.metrics["consistency_half"]
    far = replace(info, settings={**info.settings, "span": 32})
    other = replace(near, metrics={**near.metrics, "consistency_half": far})
    assert why_not(near, other, HALF) == ["span is 9 and 32"]
    assert why_not(near, other, ACCURACY) == []


def test_a_score_that_one_lacks_is_named() -> None:
    without = record("b", consistent={})
    assert why_not(record(), without, HALF) == ["b has no consistency_half"]


def test_rings_of_fewer_images_are_compared_by_their_own_images() -> None:
    """A grid that grew on some of the images: the inner rings stay comparable, the outer do not."""
    plain = record()
    info = plain.metrics["adversarial_crop"]
    outer = ScoreName("adversarial", "crop", 6)
    partly = replace(info, parts={str(outer): "of others"})
    grown = replace(plain, metrics={**plain.metrics, "adversarial_crop": partly})
    assert why_not(plain, grown, replace(outer, radius=5)) == []
    assert "different images" in why_not(plain, grown, outer)[0]


def test_the_key_of_many_says_what_the_rule_says_of_two() -> None:
    zoo = [record(), record(seed=5), record(search_limit=6), record(search_limit=6, seed=5)]
    zoo += [record(mode=mode, seed=seed) for mode in ("full_grid", "sampled:4") for seed in (0, 1)]
    zoo += [record(repeats=3), *(record(**how) for how, _ in CONDITIONS.values())]
    compared = 0
    for name in (ACCURACY, HALF, CROP):
        having = [r for r in zoo if r.metric_of(name) is not None]
        for a, b in combinations(having, 2):
            same = comparison_key(a, name) == comparison_key(b, name)
            assert same == (not why_not(a, b, name)), why_not(a, b, name)
            compared += same
    assert compared > 10  # the example has both


def test_p_values_and_intervals_agree_for_every_committed_pair() -> None:
    records = read_records([Path(__file__).parents[2] / "results" / "records"])
    outcomes = {id(record): record.outcomes() for record in records}
    compared = 0
    for a, b in combinations(records, 2):
        for name in outcomes[id(a)].keys() & outcomes[id(b)].keys():
            if not why_not(a, b, name):
                first = outcomes[id(a)][name]
                second = outcomes[id(b)][name].loc[first.index]
                paired = compare_paired(first, second, unit=a.scores[name].unit)
                assert paired.is_significant == (paired.low > 0 or paired.high < 0), (a, b, name)
                compared += 1
    assert compared > 100
