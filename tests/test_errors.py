"""Messages of errors: one line, without the numbers of the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from shiftbench.data import load_dataset
from shiftbench.errors import DataError, RecordError, first_line, reason
from shiftbench.records.folder import load_record


def test_reason_of_system_error_has_no_number_or_path() -> None:
    error = PermissionError(13, "Permission denied", "/data/x")
    assert reason(error) == first_line(error) == "permission denied"
    assert reason(ValueError("expected 3")) == "expected 3"
    assert first_line(ValueError("expected 3\nline 2")) == "ValueError: expected 3"


def test_missing_files_are_reported_without_errno(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images.csv: no such file or directory") as caught:
        load_dataset(f"csv:{tmp_path / 'images.csv'}")
    assert "Errno" not in str(caught.value)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"map.json: no such file or directory"):
        load_dataset(f"folder:{tmp_path}", class_map=tmp_path / "map.json")
    with pytest.raises(RecordError) as record:
        load_record(tmp_path / "nowhere")
    assert "Errno" not in str(record.value)
