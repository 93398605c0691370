"""Records: written and read back, derived from their tables, selected by name, joined by image."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import make_record, make_result, make_trio, save_result, spread

from shiftbench.errors import RecordError, UsageError
from shiftbench.files import file_safe, write_atomic
from shiftbench.metrics import METRICS
from shiftbench.records.folder import (
    RUNS,
    find,
    load_record,
    load_records,
    result_from_json,
    select,
    write_record,
)
from shiftbench.records.result import paired
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import mean_score
from shiftbench.tables import table_files

COMMITTED = Path(__file__).parents[2] / "results" / "records"
CROP = ScoreName("adversarial", "crop", 6)


def test_record_read_back_equals_written(tmp_path: Path) -> None:
    result = make_result(consistent={"crop": [1] * 90 + [0] * 10}, max_shift=2)
    result = replace(result, data=replace(result.data, classes=("cat", "dog")))
    again = save_result(tmp_path, result)
    assert again.to_json() == result.to_json()
    assert [again.data.class_name(index) for index in range(3)] == ["cat", "dog", "2"]
    pd.testing.assert_frame_equal(again.to_frame(), result.to_frame())
    assert again.outcomes().keys() == again.scores.keys()


def test_record_scores_equal_means_of_outcomes(tmp_path: Path) -> None:
    results = make_trio(tmp_path, samples=1)
    if COMMITTED.is_dir():
        results += load_records([COMMITTED])[::8]
    for result in results:
        again = {name: mean_score(values) for name, values in result.outcomes().items()}
        assert again == dict(result.scores), result.model.name


def test_record_outcomes_do_not_retain_tables(tmp_path: Path) -> None:
    result = make_record(tmp_path)
    result.outcomes()
    assert "tables" not in vars(result)


def test_record_frame_contains_first_misclassified_offset() -> None:
    frame = make_result(failures={"crop": spread(4, [1, 0, 1])}, max_shift=2).to_frame()
    assert frame["crop_failure_radius"].tolist() == [0, 2, pd.NA, pd.NA]
    assert frame[["crop_dy", "crop_dx"]].iloc[1].tolist() == [-2.0, -2.0]
    assert frame["crop_class"].tolist() == [1, 2, pd.NA, pd.NA]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 99}, "Upgrade shiftbench"),
        ({"schema": 2}, "Run the evaluation again"),
        ({"schema": "1"}, "no schema number"),
        ({"color": 3}, "unknown fields color"),
        ({"model": {"name": "x"}}, "missing"),
        ({"scores": {"accuracy": {"value": 81.2, "low": 0, "high": 1, "n": 2}}}, "expected 0 <="),
        ({"scores": {"accuracy": 0.5}}, "expected an object"),
    ],
)
def test_record_with_bad_content_raises(change: dict[str, Any], words: str) -> None:
    content = json.loads(json.dumps(make_result().to_json())) | change
    with pytest.raises(RecordError, match=words) as error:
        result_from_json(content, where="here/record.json")
    assert "here/record.json" in str(error.value)


def test_load_records_damaged_or_missing_raises(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no folder"):
        load_records([tmp_path / "nowhere"])
    with pytest.raises(RecordError, match=r"no records in .* Make some with `shiftbench run`"):
        load_records([tmp_path])
    record = make_record(tmp_path)
    assert record.folder is not None
    broken = tmp_path / "broken" / "record.json"
    broken.parent.mkdir()
    broken.write_text('{"schema": 3, ')
    with pytest.raises(RecordError, match="cannot read the record"):
        load_records([tmp_path])
    errors: list[RecordError] = []
    assert len(load_records([tmp_path], on_unreadable=errors.append)) == len(errors) == 1
    [table] = table_files(record.folder / "tables")
    table.write_bytes(b"half a file")
    with pytest.raises(RecordError, match=r"cannot read .*\.parquet"):
        _ = load_record(record.folder).tables
    table.unlink()
    with pytest.raises(RecordError, match="contains no tables"):
        load_record(record.folder).outcomes()


def test_outcomes_of_missing_cells_raise(tmp_path: Path) -> None:
    result = make_result()
    result.tables.array("adversarial_crop")[-1] = -1
    with pytest.raises(RecordError, match="lack predictions"):
        result.outcomes()


def test_load_records_of_suite_reads_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").touch()
    make_record(RUNS / "demo")
    assert len(load_records([Path("demo.yaml")])) == len(load_records([Path("demo")])) == 1


def test_write_record_equal_content_preserves_file(tmp_path: Path) -> None:
    first = make_record(tmp_path)
    assert first.folder is not None
    write_record(first.folder, replace(make_result(), created="2027-01-01"))
    assert load_record(first.folder).created == first.created
    write_record(first.folder, make_result(max_shift=1))
    assert load_record(first.folder).scores != first.scores


def test_select_and_find_by_name(tmp_path: Path) -> None:
    results = [make_result(name, data=data) for name in ("vit", "vit_af") for data in ("a", "b")]
    assert select(results) == results
    assert select(results, models=["vit_af", "vit*"], data="a") == [results[2], results[0]]
    with pytest.raises(UsageError, match="Did you mean 'vit_af'"):
        select(results, models=["vit_ff"])
    with pytest.raises(UsageError, match="unknown data set in these records 'c'"):
        select(results, data="c")
    assert find(results, "vit", data="b") is results[1]
    with pytest.raises(
        UsageError, match=r"expected one record of vit, got 2 .* Choose with --data"
    ):
        find(results, "vit")
    record = make_record(tmp_path)
    assert find([], str(record.folder)).model == record.model


def test_result_of_missing_plugin_has_scores_without_outcomes(tmp_path: Path) -> None:
    [request, *rest] = make_result().requests
    gone = replace(make_result(), requests=(replace(request, metric="gone"), *rest))
    again = save_result(tmp_path, gone)
    assert ACCURACY in again.scores
    assert ACCURACY not in again.outcomes()
    assert "gone" not in METRICS


def test_paired_equal_files_are_joined_by_occurrence() -> None:
    twice = {"digests": [7, 7, 7, 8], "labels": [1, 1, 2, 1]}
    first = make_result("a", failures={"crop": [None, 0, None, None]}, **twice)
    second = make_result("b", failures={"crop": [None, 0, 0, None]}, **twice)
    a, b = paired(first, second, CROP)
    assert (a.tolist(), b.tolist()) == ([1, 0, 1, 1], [1, 0, 0, 1])
    one = make_result("c", failures={"crop": [0, None]}, digests=[8, 7], labels=[1, 1])
    a, b = paired(first, one, CROP)
    assert (a.tolist(), b.tolist()) == ([1, 1], [1, 0])


@given(st.permutations(range(12)), st.integers(1, 12))
def test_paired_has_the_order_of_the_first_result(order: list[int], count: int) -> None:
    radii = [None if i % 3 else i % 2 for i in range(12)]
    first = make_result("a", failures={"crop": radii}, digests=range(12), labels=[0] * 12)
    part = order[:count]
    second = make_result(
        "b", failures={"crop": [radii[i] for i in part]}, digests=part, labels=[0] * count
    )
    a, b = paired(first, second, CROP)
    assert a.tolist() == b.tolist() == [float(radii[i] is None) for i in sorted(part)]


def test_file_names_are_safe_and_writes_atomic(tmp_path: Path, monkeypatch: Any) -> None:
    assert file_safe("timm:vit,img_size=64") == "timm_vit_img_size=64"
    assert file_safe("../..") not in ("", ".", "..")
    path = tmp_path / "record.json"
    write_atomic(path, b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_accuracy_by_offset_of_full_grid_is_a_map() -> None:
    result = make_result(failures={"crop": spread(10, [1, 2])}, max_shift=1, full_grid=True)
    cells = result.accuracy_by_offset("crop")
    assert [round(score.value, 1) for score in cells.values()] == [0.9] + [0.7] * 8
    with pytest.raises(UsageError, match="unknown attack in this record 'half'"):
        result.accuracy_by_offset("half")
    assert np.mean([score.value for score in cells.values()]) < 0.9
