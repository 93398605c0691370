"""A user's records among those of the board."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_records import spread, write_record

from shiftbench.records.choose import load_records
from shiftbench.records.record import Record
from shiftbench.report.board import BOARD_FILE, board_tables, read_board, write_board
from shiftbench_cli.leaderboard import command
from shiftbench_cli.scoreboard import print_run

ROOT = Path(__file__).resolve().parents[2]


def test_the_package_has_the_board_of_this_repository(tmp_path: Path) -> None:
    write_board(load_records([ROOT / "results" / "records"]), tmp_path / BOARD_FILE)
    shipped = ROOT / "shiftbench" / "report" / BOARD_FILE
    assert members(shipped) == members(tmp_path / BOARD_FILE), "run `make leaderboard`"
    assert shipped.stat().st_size < 1_000_000


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_board_has_scores_and_images() -> None:
    board = read_board()
    assert len(board) > 1
    for record in board:
        assert record.data.name == "imagenet"
        assert len(record.samples(["key"])) == record.data.images


def imagenet(folder: Path, name: str, lost: int, **how: str) -> Record:
    broken = {"crop": spread(100, [lost])}
    return write_record(folder, name, broken=broken, data="imagenet", settings=how)


def test_the_same_photographs_are_ranked_together_whatever_the_engine(tmp_path: Path) -> None:
    board = [imagenet(tmp_path, name, k, engine="onnx") for name, k in (("a", 10), ("b", 30))]
    mine = imagenet(tmp_path, "mine", 20)
    (table,) = board_tables([mine], board)
    assert [row.record.model.name for row in table.rows] == ["a (board)", "mine", "b (board)"]
    best = {row.record.model.name for row in table.rows if any(p.best for p in row.points.values())}
    assert best == {"a (board)"}  # by the images: the records lose the same ones first


def test_other_photographs_have_a_table_of_their_own_that_says_why(tmp_path: Path) -> None:
    board = [imagenet(tmp_path, name, 10) for name in "ab"]
    mine = imagenet(tmp_path, "mine", 20)
    other = replace(mine, data=replace(mine.data, images=90, fingerprint="0" * 64))
    first, second = board_tables([other], board)
    assert [row.record.model.name for row in first.rows] == ["mine"]
    assert "Not ranked with the board: images is 90" in first.notes()
    assert len(second.rows) == 2
    assert "Not ranked" not in second.notes()


def test_the_commands_show_the_board(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = imagenet(tmp_path, "mine", 20)
    result = CliRunner().invoke(command, [str(tmp_path), "--board", "--format", "markdown"])
    assert result.exit_code == 0, result.output
    print_run([mine], "table", board=True)  # what `run --board` ends with
    for text in (result.stdout, capsys.readouterr().out):
        words = " ".join(text.replace("\\", "").split())
        assert "mine" in words
        assert "(board)" in words
        assert "Not ranked with the board: split is test and val, images is 100" in words
