"""Published figures next to ours: printed as published, never as ours."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sample_records import spread, write_record

from shiftbench.errors import DataError, UsageError
from shiftbench.records.record import read_records
from shiftbench.report.paper import TABLES, answer, commands, read_claims
from shiftbench_cli.main import COMMANDS
from shiftbench_cli.reproduce import command

PAPER = Path(__file__).resolve().parents[2] / "results" / "paper"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.mark.parametrize("table", TABLES)
def test_every_printed_figure_becomes_a_claim(table: str):
    claims = read_claims(table, PAPER)
    assert claims
    file = PAPER / f"{table}.csv"
    if not file.exists():
        assert all(claim.published is None for claim in claims)
        return
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    scores = {"top1", "consistency_integer", "consistency_half"}
    scores |= {"adversarial_integer", "adversarial_half"}
    printed = [row[name] for row in rows for name in row if name in scores]
    assert [str(claim.published) for claim in claims] == printed


@pytest.mark.parametrize("table", TABLES)
def test_every_model_of_the_paper_can_be_built(table: str):
    presets = pytest.importorskip("aft_models.presets").PRESETS
    for claim in read_claims(table, PAPER):
        assert claim.weights or claim.model in presets


def test_without_records_there_is_no_number_of_ours(tmp_path: Path):
    rows = json.loads(run("-r", tmp_path, "--paper", PAPER, "--format", "json").stdout)
    assert all(row["ours_percent"] is None and row["difference"] is None for row in rows)
    assert all(row["command"].startswith("shiftbench ") for row in rows)


def test_a_record_of_the_same_model_and_data_answers_its_claims(tmp_path: Path):
    write_record(
        tmp_path,
        "xcit_nano_12_p16_af",
        broken={"integer": spread(200, [60, 2])},
        consistent={"half": [True] * 197 + [False] * 3},
        data="imagenet",
    )
    write_record(tmp_path, "xcit_nano_12_p16", broken={"crop": spread(20, [1])}, data="cifar10")
    answers = answer(read_claims("imagenet_main", PAPER), read_records([tmp_path]))
    found = {(a.claim.model, a.claim.metric): a for a in answers if a.score is not None}
    model = "xcit_nano_12_p16_af"
    metrics = ["top1", "consistency_half", "adversarial_integer"]
    assert list(found) == [(model, metric) for metric in metrics]
    assert found[model, "top1"].difference == pytest.approx(70.0 - 70.5)
    assert found[model, "adversarial_integer"].difference == pytest.approx(69.0 - 69.9)
    text = run("imagenet_main", "-r", tmp_path, "--paper", PAPER).stdout
    assert "69.0 [" in text
    assert "-0.9" in text


def test_a_smaller_grid_does_not_answer_the_papers(tmp_path: Path):
    write_record(
        tmp_path,
        "xcit_nano_12_p16",
        broken={"integer": spread(20, [1])},
        data="imagenet",
        max_shift=3,
    )
    answers = answer(read_claims("imagenet_main", PAPER), read_records([tmp_path]))
    assert {a.claim.metric for a in answers if a.score is not None} == {"top1"}


def test_trainings_of_one_model_are_told_apart_by_their_folder(tmp_path: Path):
    for name, broken in (("scratch", 4), ("finetune", 2)):
        write_record(
            tmp_path / name,
            "xcit_nano_12_p16",
            broken={"integer": spread(100, [broken])},
            data="cifar10",
        )
    records = read_records([tmp_path])
    for name, ours in (("scratch", 0.96), ("finetune", 0.98)):
        answers = answer(read_claims(name, PAPER), records)
        (only,) = [a for a in answers if a.score is not None]
        assert only.score is not None
        assert only.score.value == pytest.approx(ours)
    main = answer(read_claims("imagenet_main", PAPER), records)
    assert all(a.score is None for a in main)


def test_commands_make_each_record_once_and_parse():
    claims = [claim for table in TABLES for claim in read_claims(table, PAPER)]
    lines = commands(claims)
    outputs = []
    for line in lines:
        parts = [shlex.split(part) for part in line.split(" && ")]
        assert all(part[0] == "shiftbench" and part[1] in COMMANDS for part in parts)
        run_words = parts[-1]
        where = [run_words[run_words.index(option) + 1] for option in ("-m", "-d", "-o")]
        outputs.append(tuple(where))
        if len(parts) == 2:
            made = parts[0][parts[0].index("-o") + 1]
            assert run_words[run_words.index("--checkpoint") + 1] == made
    assert len(set(outputs)) == len(outputs)


def test_mistakes_are_one_clear_sentence(tmp_path: Path):
    unknown = run("imagenet_mian", "--paper", PAPER)
    assert isinstance(unknown.exception, UsageError)
    assert "Did you mean 'imagenet_main'" in str(unknown.exception)
    missing = run("heads", "--paper", tmp_path)
    assert isinstance(missing.exception, DataError)
    assert "--paper" in str(missing.exception)
    assert "no folder" in str(run("heads", "-r", tmp_path / "no").exception)
    table = list(
        csv.DictReader(io.StringIO(run("heads", "--paper", PAPER, "--format", "csv").stdout))
    )
    assert table[0]["published_percent"] == "70.35"
