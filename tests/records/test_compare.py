"""Paired comparisons: joined by image, under equal conditions, with reasons for omissions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_records import make_result, make_trio, spread

from shiftbench.errors import UsageError
from shiftbench.records.compare import compare, unequal
from shiftbench.records.result import Result
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import compare_paired, mean_score

CROP = ScoreName("adversarial", "crop", 6)


def test_compare_equals_paired_test_of_outcomes(tmp_path: Path) -> None:
    baseline, *others = make_trio(tmp_path)
    differences, left_out = compare(baseline, others)
    assert left_out == []
    assert {one.model for one in differences} == set(others)
    assert {one.name for one in differences if one.name.radius is not None} >= {CROP}
    for one in differences:
        a, b = (r.outcomes()[one.name].to_numpy() for r in (baseline, one.model))
        assert one.test == compare_paired(a, b)
        assert (one.baseline, one.value) == (mean_score(a), mean_score(b))


def test_compare_different_images_uses_common_ones() -> None:
    radii = spread(40, [8, 4])
    many = make_result("many", failures={"crop": radii}, labels=[0] * 40, data="imagenet")
    few = make_result(
        "few", failures={"crop": radii[5:15]}, labels=[0] * 10, digests=range(1005, 1015)
    )
    differences, _ = compare(many, [few])
    assert {one.test.n for one in differences} == {10}
    assert all(one.test.difference == 0 for one in differences)


def test_compare_without_common_image_raises() -> None:
    other = make_result("b", digests=range(100))
    with pytest.raises(UsageError, match="cannot compare anything with a: b: accuracy: no common"):
        compare(make_result("a"), [other])


@pytest.mark.parametrize("name", ["crop", "pad", "precision"])
def test_compare_other_conditions_raises(name: str) -> None:
    conditions: dict[str, Any] = {name: "other"}
    with pytest.raises(UsageError, match=f"cannot compare a and b: {name} is .* and other. Run"):
        compare(make_result("a"), [make_result("b", **conditions)])


def test_compare_other_settings_leaves_score_out_with_reason() -> None:
    draws = {"consistent": {"half": [1] * 100}}
    first, second = make_result("a", **draws), make_result("b", **draws, samples=2, seed=3)
    differences, left_out = compare(first, [second])
    assert {one.name.family for one in differences} == {"accuracy", "adversarial"}
    assert "b: consistency_half: samples is 1 and 2; seed is 0 and 3" in left_out
    accuracy, *rest = second.requests
    gone = replace(second, requests=(replace(accuracy, metric="gone"), *rest))
    _, left_out = compare(first, [gone])
    assert "b: accuracy: its metric is not registered. Load its plug-in with --plugin" in left_out


def test_compare_max_shift_is_the_largest_of_both() -> None:
    wide, narrow = make_result("a"), make_result("b", max_shift=2)
    assert compare(wide, [narrow])[0][-1].name.radius == 2
    assert compare(wide, [narrow], max_shift=1)[0][-1].name.radius == 1
    assert [one.name for one in compare(wide, [narrow], max_shift=5)[0]] == [ACCURACY]


def test_difference_is_worse_by_direction_and_significance() -> None:
    good, bad = (
        make_result(name, failures={"crop": spread(100, [failing])}, consistent={"half": agreed})
        for name, failing, agreed in (("good", 5, [1] * 100), ("bad", 40, [0] * 100))
    )
    worse = {one.name.family: one.is_worse for one in compare(good, [bad])[0]}
    assert worse == {"accuracy": True, "adversarial": True, "consistency": True, "change": False}
    assert not any(one.is_worse for one in compare(bad, [good])[0])
    assert {one.gain > 0 for one in compare(bad, [good])[0] if one.name.kind == "crop"} == {True}


def test_unequal_names_every_difference_once() -> None:
    assert unequal({"a": "1"}, {"a": "1"}) == ""
    assert unequal({"a": "1", "b": "2"}, {"a": "3", "c": "4"}) == (
        "a is 1 and 3; b is 2 and none; c is none and 4"
    )
    assert unequal({"a": "1"}, {"a": "2"}, skip=["a"]) == ""


def test_compare_sums_do_not_depend_on_the_order_of_the_join() -> None:
    rng = np.random.default_rng(0)
    order = rng.permutation(200)
    agreed = rng.integers(0, 8, 200)
    results = [
        make_result(
            name, failures={}, consistent={"half": agreed[own]}, samples=7,
            digests=own, labels=[0] * 200,
        )
        for name, own in (("a", np.arange(200)), ("b", order))
    ]  # fmt: skip
    first, second = results
    values = [one.value for one in compare(first, [second])[0]]
    assert values == [one.baseline for one in compare(first, [second])[0]]
    assert values == list(first.scores.values())


def with_geometry(name: str, **changes: Any) -> Result:
    result = make_result(name)
    cut = {**result.data.geometry, "rendered": False, **changes}
    filter_ = cut["interpolation"]
    return replace(
        result,
        model=replace(result.model, interpolation=filter_),
        data=replace(result.data, geometry=cut),
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interpolation": "bilinear"}, "interpolation is bicubic and bilinear"),
        ({"scale": 2}, "scale is 1 and 2"),
        ({"resize": 64}, "input scale is 73/64 px and 64/64 px"),
        ({"resize": 146}, "input scale is 73/64 px and 146/64 px"),
        ({"view": 64, "resize": 73, "squash": True}, "squash is no and yes"),
    ],
)
def test_compare_other_input_of_network_raises_with_both(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=f"cannot compare a and b: {words}. Run"):
        compare(with_geometry("a"), [with_geometry("b", **changes)])


@pytest.mark.parametrize(
    "changes",
    [{}, {"view": 96, "resize": 110}, {"view": 80, "inner": 64}, {"view": 32, "resize": 37}],
)
def test_compare_rounded_resize_and_wider_view_are_comparable(changes: dict[str, Any]) -> None:
    differences, _ = compare(with_geometry("a"), [with_geometry("b", **changes)])
    assert differences
