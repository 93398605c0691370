"""Cells and tables: comparable groups, columns at one max shift, order and marks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import make_record, make_result, make_trio, spread

from shiftbench.errors import UsageError
from shiftbench.records.result import Result, paired
from shiftbench.report.scores import (
    STANDARD,
    Table,
    best,
    group_labels,
    leaderboard,
    score_cells,
    to_frame,
)
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import SIGNIFICANCE, compare_paired

CROP = ScoreName("adversarial", "crop")


def table_of(results: list[Result], **how: object) -> Table:
    (table,) = leaderboard(score_cells(results), **how)  # type: ignore[arg-type]
    return table


def names(table: Table) -> list[str]:
    return [row.model.name for row in table.rows]


def test_groups_have_equal_images_and_conditions() -> None:
    results = [
        make_result("a"),
        make_result("b", data="copy", split="val"),  # equal images under another name
        make_result("c", pad="reflect"),
        make_result("d", digests=range(100)),
        make_result("e", precision="bf16"),
    ]
    labels = group_labels(results)
    assert labels[0] == labels[1]
    assert len(set(labels)) == 4
    assert labels[2].startswith(
        "scenes test, 100 images, pad reflect, precision fp32, images 100 ("
    )
    assert "precision bf16" in labels[4]
    assert group_labels(results[:2]) == ["scenes test, 100 images"] * 2
    assert group_labels(results[2:3]) == ["scenes test, 100 images, pad reflect"]
    tables = leaderboard(score_cells(results))
    assert sorted(len(table.rows) for table in tables) == [1, 1, 1, 2]


def test_columns_default_to_the_largest_max_shift_of_all_records() -> None:
    results = [
        make_result("wide", failures={"crop": spread(100, [5]), "half": spread(100, [5])}),
        make_result("narrow", failures={"crop": spread(100, [5])}, max_shift=3),
    ]
    table = table_of(results)
    assert table.columns == (ACCURACY, ScoreName("adversarial", "half", 6), CROP.at(3))
    assert all(table.get(row, CROP.at(3)) for row in table.rows)
    assert table.extents() == "half 3 px, crop 3 px"
    assert table_of(results, max_shift=5).get(table.rows[0], CROP.at(5)) is None
    with pytest.raises(UsageError, match="expected a max shift of 0 to 6 steps, got 7"):
        table_of(results, max_shift=7)


def test_rows_are_sorted_ranked_first_then_unlike_then_empty() -> None:
    results = [
        make_result("low", failures={"crop": spread(100, [30])}),
        make_result("high", failures={"crop": spread(100, [10])}),
        make_result("other", failures={"crop": spread(100, [0])}, attack_limit=50),
        make_result("none", failures={}, consistent={"half": [1] * 100}),
    ]
    table = table_of(results)
    assert names(table) == ["high", "low", "other", "none"]
    assert names(table_of(results, reverse=True)) == ["low", "high", "other", "none"]
    assert names(table_of(results, sort="model")) == ["high", "low", "none", "other"]
    assert names(table_of(results, sort="param_count", reverse=True))[0] == "high"
    unlike = table.get(results[2], CROP.at(6))
    assert unlike is not None
    assert unlike.unlike.startswith("images is 50 (")
    assert not unlike.best
    reason = f"†: not ranked, because conditions differ (adversarial crop: {unlike.unlike})."
    assert reason in table.notes()
    with pytest.raises(UsageError, match="Did you mean 'adversarial_crop'"):
        table_of(results, sort="adversarial_crops")


def test_further_columns_follow_the_standard_ones_and_change_is_hidden(tmp_path: Path) -> None:
    cells = score_cells(make_trio(tmp_path))
    (table,) = leaderboard(cells)
    assert [column.curve for column in table.columns][:8] == list(STANDARD)
    assert table.columns[8:] == (ScoreName("adversarial", "camera", 6),)
    assert "change" in {cell.name.family for cell in cells}
    only = table.only(["adversarial_crop", "param_count", "top1"])
    assert only.columns == (CROP.at(6), ACCURACY)
    assert only.facts == ("param_count",)
    with pytest.raises(UsageError, match="unknown column 'top5'"):
        table.only(["top5"])


def test_table_cells_and_curves_contain_every_score(tmp_path: Path) -> None:
    (table,) = leaderboard(score_cells(make_trio(tmp_path)))
    for cell in table.curves:
        assert cell.value == cell.result.scores[cell.name]
        assert cell.comparable
    shown = {(cell.result, cell.name) for cell in table.curves if cell.name in table.columns}
    assert shown == table.cells.keys()


def test_extent_follows_step_and_unit() -> None:
    (cell,) = [
        cell
        for cell in score_cells(
            [make_result(failures={"bilinear": spread(10, [1])}, step="1/4", max_shift=3)]
        )
        if cell.name.radius == 3
    ]
    assert cell.name.kind == "bilinear[1/4]"
    assert cell.extent == "3/4 px"
    unknown = make_result(failures={"spiral": spread(10, [1])}, max_shift=2)
    assert {cell.extent for cell in score_cells([unknown])} >= {"", "2 steps"}


def test_best_equals_paired_tests_corrected_for_all_pairs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    failing = [rng.permutation(spread(300, [30 + 12 * i])).tolist() for i in range(7)]
    results = [make_result(f"m{i}", failures={"crop": one}) for i, one in enumerate(failing)]
    found = best(results, ACCURACY)
    leader = max(results, key=lambda result: result.scores[ACCURACY].value)
    expected = {
        r
        for r in results
        if compare_paired(*paired(leader, r, ACCURACY)).p_value * 21 >= SIGNIFICANCE
    }
    assert found == expected
    assert 1 < len(found) < 7


def test_best_of_equally_good_models_misses_none_in_most_trials() -> None:
    rng, missed, trials = np.random.default_rng(1), 0, 60
    for _ in range(trials):
        results = [
            make_result(f"m{i}", failures={"crop": rng.permutation(spread(100, [30])).tolist()})
            for i in range(8)
        ]
        missed += len(best(results, ACCURACY)) < 8
    assert missed / trials < 0.05


def test_best_of_lower_is_better_is_the_lowest() -> None:
    draws = {"failures": {"crop": spread(100, [5])}, "samples": 1}
    calm, wild = (make_result(n, consistent={"half": [1] * 100}, **draws) for n in "ab")
    table_cells = score_cells([calm, wild])
    assert not any(cell.best for cell in table_cells if cell.name.family == "change")
    assert best([calm, wild], ScoreName("change", "half")) == {calm, wild}


def test_best_without_tables_or_plugin(tmp_path: Path) -> None:
    """Without tables only equal scores are bold; without a plug-in none is."""
    results = [
        make_record(tmp_path, name, failures={"crop": spread(100, [at])})
        for name, at in (("a", 5), ("b", 5), ("c", 7))
    ]
    assert best(results, ACCURACY) == set(results)
    for result in results:
        assert result.folder is not None
        for file in result.folder.glob("tables/*"):
            file.unlink()
    again = [replace(result) for result in results]
    assert best(again, ACCURACY) == set(again[:2])
    gone = [
        replace(r, requests=tuple(replace(q, metric="gone") for q in r.requests)) for r in again
    ]
    assert best(gone, ACCURACY) == set()
    assert names(table_of(gone)) == ["a", "b", "c"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["", "reflect", "bf16", "other"]), min_size=1, max_size=6))
def test_group_labels_are_equal_exactly_for_equal_conditions(kinds: list[str]) -> None:
    how = {
        "": {},
        "reflect": {"pad": "reflect"},
        "bf16": {"precision": "bf16"},
        "other": {"digests": range(100)},
    }
    results = [make_result(f"m{i}", **how[kind]) for i, kind in enumerate(kinds)]  # type: ignore[arg-type]
    labels = group_labels(results)
    for i, first in enumerate(kinds):
        for j, second in enumerate(kinds):
            assert (labels[i] == labels[j]) == (first == second)


def test_frame_has_a_row_per_score_in_fractions(tmp_path: Path) -> None:
    cells = score_cells(make_trio(tmp_path))
    frame = to_frame(cells)
    assert len(frame) == len(cells)
    row = frame[(frame["score"] == "adversarial_crop") & (frame["max_shift"] == 3)].iloc[0]
    assert row["value"] == cells[0].result.scores[CROP.at(3)].value
    assert frame.loc[frame["score"] == "top1", "max_shift"].isna().all()


def test_notes_state_geometry_of_every_model() -> None:
    one, two = make_result("one"), make_result("two")
    text = "rendered, view 64 px, margin 6 px, bicubic"
    assert table_of([one, two]).notes().startswith(f"Images: {text}. ")
    wide = replace(two, data=replace(two.data, geometry={**two.data.geometry, "view": 80}))
    notes = table_of([one, wide, make_result("three")]).notes()
    assert notes.startswith(f"Images: {text}; two: rendered, view 80 px, margin 6 px, bicubic. ")
