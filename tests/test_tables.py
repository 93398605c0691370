"""Prediction tables: merging, files, and errors."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shiftbench.errors import RecordError
from shiftbench.tables import (
    CLEAN,
    DIGEST,
    LABEL,
    NEAR_TIE,
    PROBABILITY,
    TableFolder,
    Tables,
    merged,
    read_tables,
    to_parquet,
)

IDENTITY: dict[str, Any] = {
    "model": {"weights": "a" * 64, "remedies": "", "code": {}, "logits": [1.0, -2.0]},
    "geometry": {"view": 16, "resize": 18},
    "plugins": {},
}
KEYS = ["a", "b", "c", "d"]


def make(cells: dict[str, list[int]], *, name: str = "crop", origin: str = "") -> Tables:
    tables = Tables(cells, origin=origin)
    width = max(map(len, cells.values()))
    tables.array(name, width)[:] = list(cells.values())
    return tables


def images(keys: list[str] = KEYS) -> Tables:
    tables = Tables(keys)
    tables.array(LABEL, 1)[:, 0] = range(len(keys))
    return tables


def test_array_new_cells_are_unknown() -> None:
    tables = Tables(["a"])
    tables.array("crop", 2)[:] = 5
    tables.add(["b"])
    assert tables.array("crop", 3).tolist() == [[5, 5, -1], [-1, -1, -1]]


def test_read_returns_a_copy_with_the_clean_view_first() -> None:
    tables = images(["a", "b"])
    tables.array(CLEAN, 1)[:, 0] = [3, 4]
    tables.array("crop", 1)[:, 0] = [5, 6]
    cells = tables.read("crop", 2, ["b"])
    assert cells.classes.tolist() == [[4, 6, -1]]
    assert cells.labels.tolist() == [1]
    cells.classes[:] = 0
    assert tables.array("crop").tolist() == [[5], [6]]


def test_write_stores_clean_and_probabilities() -> None:
    tables = images(["a", "b"])
    cells = tables.read("crop", 2, ["b", "a"])
    cells.classes[:] = [[1, 2, 3], [4, 5, 6]]
    cells.probabilities[0, 0] = 0.5
    tables.write("crop", ["b", "a"], cells)
    assert tables.column(CLEAN).tolist() == [4, 1]
    assert tables.array("crop").tolist() == [[5, 6], [2, 3]]
    assert tables.column(CLEAN + PROBABILITY).tolist() == [-1, 0.5]
    assert "crop" + PROBABILITY not in tables.arrays
    assert tables.predictions() == 6


def test_merged_contradicting_cells_name_both_files() -> None:
    first, second = make({"a": [1, 2, 3]}, origin="x"), make({"a": [3, 2, 1]}, origin="y")
    with pytest.raises(RecordError, match=r"x and y disagree on crop of 'a' \(2 such cells"):
        merged([first, make({"b": [1]}, origin="z"), second])


@pytest.mark.parametrize("name", [LABEL, DIGEST])
def test_merged_single_different_label_or_digest_raises(name: str) -> None:
    keys = [str(i) for i in range(500)]
    first, second = Tables(keys, origin="x"), Tables(keys, origin="y")
    first.array(name, 1)[:, 0] = second.array(name, 1)[:, 0] = range(500)
    second.array(name, 1)[7] = 8
    with pytest.raises(RecordError, match=f"{name} of '7'"):
        merged([first, second])


def test_merged_rounding_differences_mark_near_ties() -> None:
    first, second = Tables(["a", "b"]), Tables(["a", "b"])
    first.array("crop", 100)[:] = second.array("crop", 100)[:] = 4
    first.array("crop")[0, 5] = 9
    for parts in ([first, second], [second, first]):
        whole = merged(parts)
        assert whole.array("crop")[0, 5] == 9
        assert whole.column(NEAR_TIE).tolist() == [1, -1]


cells = st.dictionaries(
    st.sampled_from(KEYS), st.lists(st.integers(-1, 0), min_size=3, max_size=3), min_size=1
)


@given(st.lists(cells, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_merged_is_independent_of_order(parts: list[dict[str, list[int]]], random: Any) -> None:
    # A cell has one class: the number of its column.
    tables = [
        make({k: [c if v == 0 else -1 for c, v in enumerate(row)] for k, row in part.items()})
        for part in parts
    ]
    shuffled = random.sample(tables, len(tables))
    whole, other = merged(tables), merged([*shuffled, *tables])
    assert whole.array("crop").tolist() == other.array("crop")[other.rows(whole.keys)].tolist()


def test_parquet_round_trip_and_equal_cells_give_equal_bytes(tmp_path: Path) -> None:
    tables = images()
    tables.array("crop", 3)[:] = [[1, 2, -1]] * 4
    tables.array("unused", 5)
    content = to_parquet(tables, IDENTITY)
    file = tmp_path / "x.parquet"
    file.write_bytes(content)
    back, identity = read_tables(file)
    assert identity == IDENTITY
    assert back.keys == KEYS
    assert set(back.arrays) == {LABEL, "crop"}
    assert to_parquet(back, IDENTITY) == content


def folder_of(path: Path, **changes: Any) -> TableFolder:
    return TableFolder(path / "tables", {**IDENTITY, **changes}, images())


def test_folder_writers_share_cells_and_leave_one_file(tmp_path: Path) -> None:
    first, second = folder_of(tmp_path), folder_of(tmp_path)
    mine, theirs = first.read(), second.read()
    mine.array("crop", 2)[:2] = 1
    theirs.array("crop", 2)[2:] = 3
    first.save(mine.take(["a", "b"]))
    second.save(theirs.take(["c", "d"]))
    assert len(list((tmp_path / "tables").iterdir())) == 2
    whole = first.read()
    assert whole.array("crop").tolist() == [[1, 1]] * 2 + [[3, 3]] * 2
    first.save(whole)
    (file,) = (tmp_path / "tables").iterdir()
    assert file.stem == hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    second.save(second.read())
    assert list((tmp_path / "tables").iterdir()) == [file]


def test_folder_save_keeps_files_it_does_not_contain(tmp_path: Path) -> None:
    store = folder_of(tmp_path)
    store.save(store.read())
    foreign = tmp_path / "tables" / "notes.parquet"
    foreign.write_bytes(b"not a table")
    store = folder_of(tmp_path)
    tables = store.read()
    tables.array("crop", 1)[:] = 2
    store.save(tables)
    assert foreign.read_bytes() == b"not a table"


def test_folder_truncated_file_is_reported_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = folder_of(tmp_path)
    tables = store.read()
    tables.array("crop", 1)[:] = 2
    store.save(tables)
    (file,) = (tmp_path / "tables").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING, "shiftbench"):
        assert "crop" not in folder_of(tmp_path).read().arrays
    assert "predicted again" in caplog.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {**IDENTITY["model"], "weights": "b" * 64}}, "weights changed, logits did not"),
        ({"model": {**IDENTITY["model"], "remedies": "aps"}}, "remedies changed"),
        ({"model": {**IDENTITY["model"], "logits": [1.0, -2.1]}}, "logits changed"),
        ({"geometry": {"view": 16, "resize": 20}}, r"geometry\.resize was 18, is 20"),
        ({"seed": 1}, "seed was None, is 1"),
    ],
)
def test_folder_other_identity_raises_with_both_values(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    store = folder_of(tmp_path)
    store.save(store.read())
    with pytest.raises(RecordError, match=words + r".*--fresh"):
        folder_of(tmp_path, **changes).read()


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {**IDENTITY["model"], "logits": [1.0005, -2.0]}},
        {"plugins": {"other": {"p.py": "abc"}}},
    ],
)
def test_folder_rounding_and_new_plugins_are_accepted(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    store = folder_of(tmp_path)
    store.save(store.read())
    assert folder_of(tmp_path, **changes).read().keys == KEYS


def test_folder_changed_plugin_raises(tmp_path: Path) -> None:
    store = folder_of(tmp_path, plugins={"mirrored": {"p.py": "abc"}})
    store.save(store.read())
    with pytest.raises(RecordError, match=r"plugins\.mirrored\.p\.py was abc, is def"):
        folder_of(tmp_path, plugins={"mirrored": {"p.py": "def"}}).read()


def test_folder_that_cannot_be_written_raises(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("a file in the way")
    with pytest.raises(RecordError, match=r"cannot write .*--output"):
        folder_of(tmp_path).save(images())


def test_folder_full_disk_raises_and_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    store = folder_of(tmp_path)
    monkeypatch.setattr("shiftbench.tables.write_atomic", full)
    with pytest.raises(RecordError, match=r"No space left on device.*--output"):
        store.save(images())
    assert not list((tmp_path / "tables").iterdir())


@pytest.mark.parametrize("days", [-1, 0, 1])
def test_folder_clock_a_day_apart_keeps_files_that_others_write(
    days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folder_of(tmp_path)
    store.folder.mkdir()
    being_written, abandoned = store.folder / ".a.tmp", store.folder / ".b.tmp"
    being_written.touch()
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    ahead = time.time() + days * 86400
    monkeypatch.setattr(time, "time", lambda: ahead)
    store.save(images())
    assert being_written.exists()
    assert not abandoned.exists()


def test_cells_known_and_wrong() -> None:
    tables = images(["a"])
    tables.array(CLEAN, 1)[:] = 0
    tables.array("crop", 2)[:] = [[1, -1]]
    read = tables.read("crop", 2, ["a"])
    np.testing.assert_array_equal(read.known, [[True, True, False]])
    np.testing.assert_array_equal(read.wrong, [[False, True, False]])
