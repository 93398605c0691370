"""Records are whole or not there, read back as written, and never mixed."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from shiftbench.errors import RecordError
from shiftbench.records.record import (
    DataInfo,
    ModelInfo,
    OffsetScore,
    Record,
    ResultStore,
    Scores,
    file_safe,
    read_record,
    read_records,
    record_from_json,
    write_atomic,
)
from shiftbench.run.resume import (
    IMAGE,
    Parts,
    exclusive,
    identity_of,
    prepare_folder,
    refuse_mixing,
)
from shiftbench.statistics import wilson

SAMPLES = pd.DataFrame({"key": ["a", "b"], "label": [0, 1], "prediction": [0, 0]})


def make_record(**changes: Any) -> Record:
    score = wilson(1, 2)
    record = Record(
        model=ModelInfo("timm:net", "timm", "abc", 10, 32, (0.5,), (0.25,), "bicubic"),
        data=DataInfo("scenes", "test", 2, "def", {"resize": 37, "view": 32}),
        settings={"attacks": ["crop"], "max_shift": 2, "seed": 0},
        scores=Scores(
            accuracy=score,
            consistency={"integer": score},
            mean_change={"integer": 0.1},
            adversarial={"crop": {0: score, 1: score, 2: wilson(0, 2)}},
            offsets={"crop": (OffsetScore(0.0, 0.0, 0.5, 0.1, 0.9, 2),)},
        ),
        environment={"torch": "2"},
        seconds=1.5,
        forward_passes=20,
        created="2025-01-01T00:00:00+00:00",
    )
    return replace(record, **changes)


def test_a_record_is_read_back_as_written(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "runs")
    folder = store.write(make_record(), SAMPLES)
    [found] = store.read_all()
    assert found == make_record()
    assert found.folder == folder
    pd.testing.assert_frame_equal(found.samples(), SAMPLES, check_dtype=False)
    assert {path.name for path in folder.iterdir()} == {"record.json", "samples.parquet"}


def test_names_become_folders_of_any_system() -> None:
    assert file_safe("timm:vit,img_size=64") == "timm_vit_img_size=64"
    assert file_safe("hf:microsoft/cvt-13") == "hf_microsoft_cvt-13"
    assert file_safe("../..") not in ("", ".", "..")


def test_flat_names_cover_every_score() -> None:
    names = make_record().scores.named()
    assert list(names) == [
        "accuracy",
        "consistency_integer",
        "adversarial_crop",
        "adversarial_crop@0",
        "adversarial_crop@1",
        "adversarial_crop@2",
    ]
    assert names["adversarial_crop"].value == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 99}, "upgrade shiftbench"),
        ({"schema": "1"}, "no schema number"),
        ({"colour": 3}, "unknown fields colour"),
        ({"model": {"name": "x"}}, "missing"),
        ({"scores": {"accuracy": {"value": 81.2, "low": 0, "high": 1, "n": 2}}}, "fractions"),
        ({"scores": {"accuracy": 0.5}}, "expected an object"),
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
    folder = ResultStore(tmp_path / "runs").write(make_record(), SAMPLES)
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


def identity(**changes: Any) -> dict[str, Any]:
    record = make_record(**changes)
    return identity_of(record.model, record.data, record.settings)


def test_identity_survives_a_file_and_sees_every_change(tmp_path: Path) -> None:
    parts = Parts.of(tmp_path)
    parts.open(identity())
    parts.open(identity())  # the same work again
    record = make_record()
    for changes in (
        {"settings": {**record.settings, "seed": 1}},
        {"model": replace(record.model, digest="other")},
        {"data": replace(record.data, fingerprint="other")},
        {"data": replace(record.data, geometry={"resize": 40, "view": 32})},
    ):
        with pytest.raises(RecordError, match="--fresh"):
            parts.open(identity(**changes))
    parts.clear()
    parts.open(identity(settings={"seed": 1}))


def test_the_refusal_names_what_changed(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"settings\.seed was 0, is 1"):
        refuse_mixing(
            tmp_path,
            "a record",
            identity(),
            identity(settings={"attacks": ["crop"], "max_shift": 2, "seed": 1}),
        )


def test_parts_are_joined_by_image_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    parts = Parts.of(tmp_path)
    assert parts.read("crop") is None
    parts.save("crop", pd.DataFrame({IMAGE: [5, 6], "x": [1, 2]}), writer="a")
    parts.save("crop", pd.DataFrame({IMAGE: [1, 6], "x": [3, 2]}), writer="b")
    (tmp_path / "parts" / "crop" / "9-1-c.parquet").write_bytes(b"half")
    rows = parts.read("crop")
    assert rows is not None
    assert rows[IMAGE].tolist() == [1, 5, 6]
    assert rows["x"].tolist() == [3, 1, 2]


def _hold(folder: Path, ready: Any, release: Any) -> None:
    with exclusive(folder):
        ready.set()
        release.wait(30)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, release))
    process.start()
    assert ready.wait(60)
    with pytest.raises(RecordError, match=f"process {process.pid} on"), exclusive(tmp_path):
        pass
    process.kill()  # no chance to clean up
    process.join()
    with exclusive(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_fails_before_the_work(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write to the output folder"):
        prepare_folder(tmp_path / "file" / "below", images=1)
    monkeypatch.setattr("shiftbench.run.resume.SPARE_BYTES", 2**60)
    with pytest.raises(RecordError, match="MB free"):
        prepare_folder(tmp_path / "full", images=1)
