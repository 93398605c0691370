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
from shiftbench.files import file_safe, write_atomic
from shiftbench.records.record import (
    DataInfo,
    MetricInfo,
    ModelInfo,
    OffsetScore,
    Record,
    ResultStore,
    read_record,
    read_records,
    record_from_json,
)
from shiftbench.run.resume import (
    Parts,
    exclusive,
    identity_of,
    prepare_folder,
    refuse_mixing,
)
from shiftbench.scores import ACCURACY, ScoreName, Scores
from shiftbench.statistics import Score, wilson

SAMPLES = pd.DataFrame({"key": ["a", "b"], "label": [0, 1], "prediction": [0, 0]})
GEOMETRY = {"view": 32, "resize": 37, "margin": 2, "interpolation": "bicubic"}


def make_record(**changes: Any) -> Record:
    score = wilson(1, 2)
    record = Record(
        model=ModelInfo("timm:net", "timm", "abc", 10, 32, (0.5,), (0.25,), "bicubic"),
        data=DataInfo("scenes", "test", 2, "def", GEOMETRY),
        settings={"seed": 0, "precision": "fp32", "engine": "torch"},
        metrics={"accuracy": MetricInfo("accuracy", {}, ("accuracy",), 2, "123")},
        scores=Scores(
            {
                ACCURACY: score,
                ScoreName("consistency", "integer"): score,
                ScoreName("agreement", "5"): score,
                ScoreName("jitter", "logit"): Score(3.2, -1.0, 7.0, 2, "variance"),
                **{ScoreName("adversarial", "crop", s): score for s in range(2)},
                ScoreName("adversarial", "crop", 2): wilson(0, 2),
            }
        ),
        maps={"adversarial_crop": (OffsetScore(0.0, 0.0, 0.5, 0.1, 0.9, 2),)},
        environment={"torch": "2"},
        seconds=1.5,
        forward_passes=20,
        created="2025-01-01T00:00:00+00:00",
    )
    return replace(record, **changes)


def test_a_record_is_read_back_as_written(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "runs")
    record = make_record(data=DataInfo("a", "test", 2, "def", GEOMETRY, classes=("cat", "dog")))
    folder = store.write(record, SAMPLES)
    [found] = store.read_all()
    assert found == record
    assert [found.data.class_name(i) for i in range(3)] == ["cat", "dog", "2"]
    assert found.folder == folder
    pd.testing.assert_frame_equal(found.samples(), SAMPLES, check_dtype=False)
    assert {path.name for path in folder.iterdir()} == {"record.json", "samples.parquet"}


def test_names_become_folders_of_any_system() -> None:
    assert file_safe("timm:vit,img_size=64") == "timm_vit_img_size=64"
    assert file_safe("hf:microsoft/cvt-13") == "hf_microsoft_cvt-13"
    assert file_safe("../..") not in ("", ".", "..")


def test_flat_names_cover_every_score() -> None:
    names = make_record().scores.texts()
    assert list(names) == [
        "accuracy",
        "consistency_integer",
        "agreement_5",
        "jitter_logit",
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
        ({"color": 3}, "unknown fields color"),
        ({"model": {"name": "x"}}, "missing"),
        ({"scores": {"accuracy": {"value": 81.2, "low": 0, "high": 1, "n": 2}}}, "fractions"),
        ({"scores": {"accuracy": 0.5}}, "expected an object"),
        ({"scores": {"accuracy": {"value": 0.5}}}, "expected value, low, high and n"),
        ({"schema": 1, "scores": {}}, "not a whole record of schema 1"),
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
        {"data": replace(record.data, geometry={**GEOMETRY, "resize": 40})},
    ):
        with pytest.raises(RecordError, match="--fresh"):
            parts.open(identity(**changes))
    wider = replace(record.data, images=1, geometry={**GEOMETRY, "margin": 9})
    parts.open(identity(data=wider))  # more or fewer images, and another margin, are no other work
    parts.clear()
    parts.open(identity(settings={"seed": 1}))


def test_the_refusal_names_what_changed(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"settings\.seed was 0, is 1"):
        refuse_mixing(
            tmp_path,
            "a record",
            identity(),
            identity(settings={**make_record().settings, "seed": 1}),
        )


def rows(x: dict[str, int]) -> pd.DataFrame:
    frame = pd.DataFrame({"x": list(x.values())}, index=pd.Index(list(x), name="key"))
    return frame.assign(passes=2, seconds=0.5)


def test_the_latest_rows_count_and_damaged_parts_are_left_out(tmp_path: Path) -> None:
    parts = Parts.of(tmp_path)
    assert parts.read("crop") is None
    parts.save("crop", rows({"e": 1, "f": 2}), writer="a")
    parts.save("crop", rows({"b": 3, "f": 4}), writer="b")
    (tmp_path / "parts" / "crop" / "9-c.parquet").write_bytes(b"half")
    found = parts.read("crop")
    assert found is not None
    assert found["x"].to_dict() == {"e": 1, "b": 3, "f": 4}
    assert found["passes"].to_dict() == {"e": 2, "b": 2, "f": 4}, "all that was done is counted"


def _hold(folder: Path, ready: Any, release: Any) -> None:
    with exclusive(folder):
        ready.set()
        release.wait(300)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, release))
    process.start()
    assert ready.wait(300)  # it imports torch first
    with pytest.raises(RecordError, match="being written by another process"), exclusive(tmp_path):
        pass
    process.kill()  # no chance to clean up
    process.join()
    with exclusive(tmp_path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_an_output_that_cannot_be_written_fails_before_the_work(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write to the output folder"):
        prepare_folder(tmp_path / "file" / "below", images=1)
    monkeypatch.setattr("shiftbench.run.resume.SPARE_BYTES", 2**60)
    with pytest.raises(RecordError, match="MB free"):
        prepare_folder(tmp_path / "full", images=1)


# --- schema 1

OLD = {
    "schema": 1,
    "model": {
        **{"name": "net", "source": "timm", "digest": "abc", "parameters": 10, "input_size": 32},
        **{"mean": [0.5], "std": [0.25], "interpolation": "bicubic"},
    },
    "data": {
        **{"name": "cifar10", "split": "test", "images": 4, "fingerprint": "def", "skipped": 0},
        "geometry": {**GEOMETRY, "pad": "none", "crop": "paper", "rendered": False},
    },
    "settings": {
        **{"attacks": ["integer"], "max_shift": 2, "step": "1/4", "mode": "sampled:3"},
        **{"upper_bound": True, "repeats": 2, "limit": None, "search_limit": 2, "seed": 5},
        **{"precision": "fp32", "compile": True, "crop_pct": "paper", "pad": "none"},
        **{"skip_bad": False, "spans": {"half": 15}, "images": "digest"},
    },
    "scores": {
        "accuracy": vars(wilson(3, 4)) | {},
        "consistency": {"half": vars(wilson(5, 8)) | {}},
        "mean_change": {"half": 0.1},
        "adversarial": {"integer": {str(s): vars(wilson(1, 2)) | {} for s in range(3)}},
        "offsets": {},
    },
    **{"environment": {}, "seconds": 1.0, "forward_passes": 9, "created": "2025-01-01"},
}
for _score in (OLD["scores"]["accuracy"], OLD["scores"]["consistency"]["half"]):  # type: ignore[index]
    _score.pop("unit")
for _score in OLD["scores"]["adversarial"]["integer"].values():  # type: ignore[index]
    _score.pop("unit")


def test_records_of_schema_1_are_read_as_if_written_today(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(OLD))
    old = pd.DataFrame(
        {
            "key": list("abcd"),
            "label": [0, 1, 2, 3],
            "prediction": [0, 1, 2, 0],
            "margin": [1.0, 1.0, 1.0, -1.0],
            "near_tie": [False] * 4,
            "consistent_half": [True, False, True, False],
            "agreed_half": [2, 1, 2, 0],
            "change_half": [0.1, 0.2, 0.0, 0.4],
            "searched": [True, True, False, False],
            "integer_broken_radius": pd.array([1, None, None, None], dtype="Int64"),
            "integer_dy": pd.array([0.25, None, None, None], dtype="Float64"),
            "integer_dx": pd.array([0.0, None, None, None], dtype="Float64"),
            "integer_prediction": pd.array([3, None, None, None], dtype="Int64"),
        }
    )
    old.to_parquet(tmp_path / "samples.parquet")
    record = read_record(tmp_path)
    assert record.settings["engine"] == "compile"
    assert record.is_upper_bound(ScoreName("adversarial", "integer[1/4]"))
    assert record.scores.find("adversarial_integer[1/4]@2").n == 2
    samples = record.samples()
    assert samples["integer[1/4]_reach"].tolist()[:2] == [2, 2]
    assert samples["integer[1/4]_reach"].isna().tolist() == [False, False, True, True]
    assert "searched" not in samples
    outcomes = record.outcomes()
    assert outcomes[ScoreName("consistency", "half")].tolist() == [1.0, 0.5, 1.0, 0.0]
    assert outcomes[ScoreName("adversarial", "integer[1/4]", 2)].to_dict() == {"a": 0.0, "b": 1.0}
    assert record.to_json()["schema"] == 2
