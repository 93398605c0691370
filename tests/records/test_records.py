"""Records are whole or not there, read back as written, and never mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sample_records import record_with_samples, spread

from shiftbench.errors import RecordError
from shiftbench.files import file_safe, write_atomic
from shiftbench.records.record import (
    Record,
    read_record,
    read_records,
    record_folder,
    record_from_json,
    write_record,
)
from shiftbench.scores import ScoreName, Scores
from shiftbench.statistics import Score, wilson


def make_record(**changes: Any) -> Record:
    record = record_with_samples(
        "timm:net",
        broken={"crop": spread(4, [1, 0, 1])},
        consistent={"integer": [1, 1, 1, 0]},
        max_shift=2,
        full_grid=True,
    )
    more = {
        ScoreName("agreement", "5"): wilson(1, 2),
        ScoreName("jitter", "logit"): Score(3.2, -1.0, 7.0, 2, "variance"),
    }
    return replace(record, scores=Scores({**record.scores, **more}), **changes)


def test_a_record_is_read_back_as_written(tmp_path: Path) -> None:
    record = make_record()
    record = replace(record, data=replace(record.data, classes=("cat", "dog")))
    folder = record_folder(tmp_path, record.model.name, record.data.name)
    write_record(folder, record)
    [again] = read_records([tmp_path])
    assert again == record
    assert [again.data.class_name(i) for i in range(3)] == ["cat", "dog", "2"]
    assert again.folder == folder
    pd.testing.assert_frame_equal(again.samples(), record.samples())
    assert {path.name for path in folder.iterdir()} == {"record.json", "samples.parquet"}


def test_names_become_folders_of_any_system() -> None:
    assert file_safe("timm:vit,img_size=64") == "timm_vit_img_size=64"
    assert file_safe("hf:microsoft/cvt-13") == "hf_microsoft_cvt-13"
    assert file_safe("../..") not in ("", ".", "..")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 99}, "upgrade shiftbench"),
        ({"schema": "1"}, "no schema number"),
        ({"color": 3}, "unknown fields color"),
        ({"model": {"name": "x"}}, "missing"),
        ({"scores": {"accuracy": {"value": 81.2, "low": 0, "high": 1, "n": 2}}}, "fractions"),
        ({"scores": {"accuracy": 0.5}}, "expected an object"),
        ({"scores": {"accuracy": {"value": 0.5}}}, "expected value, low, high and n"),
        ({"schema": 1}, "has schema 1"),
    ],
)
def test_bad_records_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    content = json.loads(json.dumps(make_record().to_json())) | change
    with pytest.raises(RecordError, match=words) as error:
        record_from_json(content, where="here/record.json")
    assert "here/record.json" in str(error.value)


def test_unreadable_files_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"schema": 1, ')
    with pytest.raises(RecordError, match="cannot read the record"):
        read_record(tmp_path)
    with pytest.raises(RecordError, match="no folder"):
        read_records([tmp_path / "nowhere"])
    folder = tmp_path / "runs"
    write_record(folder, make_record())
    (folder / "samples.parquet").write_bytes(b"half a file")
    with pytest.raises(RecordError, match=r"samples\.parquet"):
        read_record(folder).samples()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "record.json"
    write_atomic(path, b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
