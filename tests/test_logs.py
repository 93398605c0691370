"""Numbers in other people's tools: what was asked for is written there, and nothing else."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sample_records import make_record, spread

from shiftbench.errors import UsageError
from shiftbench.logs import LOGS, open_logs
from shiftbench.records.record import log_record, read_records
from shiftbench.scores import ScoreName
from shiftbench_cli.main import main

RUN = ("run", "-m", "xcit_pico_6_p8.scenes", "--limit", "4", "-a", "integer", "--max-shift", "1")
TRAIN = ("train", "-m", "xcit_pico_6_p8", "-d", "scenes", "--recipe", "cpu-scenes")
TRAIN += ("--limit", "12", "--shift-images", "6")
TINY = ("image_size=16", "canvas=20", "sizes=()", "batch_size=6", "warmup_epochs=0")


class Wandb(ModuleType):
    """Stands in for wandb: keeps what it is told."""

    class Error(Exception):
        """As wandb's own."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.ended = 0
        self.refuses = False

    def init(self, **given: Any) -> Wandb:
        if self.refuses:
            raise Wandb.Error("no key configured")
        self.begun.append(given)
        return self

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.lines.append((step, values))

    def finish(self) -> None:
        self.ended += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wandb]:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def call(*words: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--device", "cpu", "-q"])
    assert ended.value.code == code


def train(folder: Path, epochs: int, *more: str) -> None:
    changes = [word for change in (*TINY, f"epochs={epochs}") for word in ("--set", change)]
    call(*TRAIN, "-o", folder, *changes, *more)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Reads event files back with TensorBoard's own reader."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_points_of_a_curve_lie_at_their_max_shift(wandb: Wandb, tmp_path: Path) -> None:
    record = make_record("vit", broken={"crop": spread(20, [2, 3, 1])}, max_shift=3)
    log_record(record, ["wandb"], tmp_path / "logs")
    assert [step for step, _ in wandb.lines] == [0, 1, 2, 3]
    for step, values in wandb.lines:
        assert (
            values.pop("adversarial_crop")
            == record.scores[ScoreName("adversarial", "crop", step)].value
        )
    everything_else = {n.stem: s.value for n, s in record.scores.items() if n.radius is None}
    assert wandb.lines[0][1] == everything_else
    assert all(not values for _, values in wandb.lines[1:])
    (begun,) = wandb.begun
    assert (begun["name"], begun["project"]) == ("vit", "shiftbench")
    assert begun["config"]["model"]["digest"] == record.model.digest
    assert wandb.ended == 1


def test_a_run_sends_its_scores_once_for_each_model(wandb: Wandb, tmp_path: Path) -> None:
    call(*RUN, "-o", tmp_path, "--log", "wandb", "--log", "wandb")
    (record,) = read_records([tmp_path])
    assert len(wandb.begun) == wandb.ended == 1
    assert wandb.lines[0][1]["accuracy"] == record.scores.find("accuracy").value
    assert Path(wandb.begun[0]["dir"]).parent == tmp_path / "logs"


def test_a_training_sends_every_epoch(wandb: Wandb, tmp_path: Path) -> None:
    train(tmp_path, 2, "--log", "wandb")
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [step for step, _ in wandb.lines] == [1, 2]
    for row, (_, values) in zip(rows, wandb.lines, strict=True):
        assert values == pytest.approx(
            {name: float(text) for name, text in row.items() if name != "epoch" and text}, rel=1e-4
        )
    assert wandb.begun[0]["config"]["recipe.epochs"] == 2


@pytest.mark.filterwarnings("default")  # of the packages that TensorBoard brings
def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    record = make_record("vit", broken={"crop": spread(20, [2, 3, 1])}, max_shift=3)
    for _ in range(2):  # measured again: the older events are dropped
        log_record(record, ["tensorboard"], tmp_path)
    logged = scalars(tmp_path)
    curve = record.scores.curve(ScoreName("adversarial", "crop"))
    assert [step for step, _ in logged["adversarial_crop"]] == list(curve)
    assert [value for _, value in logged["adversarial_crop"]] == pytest.approx(
        [score.value for score in curve.values()]
    )
    assert logged["accuracy"] == [(0, pytest.approx(record.scores.find("accuracy").value))]


@pytest.mark.filterwarnings("default")
def test_tensorboard_has_no_epoch_twice_after_a_new_start(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tmp_path, 1, "--log", "tensorboard")
    train(tmp_path, 2, "--log", "tensorboard", "--fresh")
    assert [step for step, _ in scalars(tmp_path)["loss"]] == [1, 2]


@pytest.mark.filterwarnings("default")
def test_wandb_itself_keeps_an_offline_run_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with open_logs(["wandb"], tmp_path, "vit", {"seed": 0}) as write:
        write(0, {"accuracy": 0.5})
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (kept,) = run.glob("*.wandb")
    assert b"accuracy" in kept.read_bytes()


def test_nothing_is_written_unless_asked(wandb: Wandb, tmp_path: Path) -> None:
    call(*RUN, "-o", tmp_path)
    assert not wandb.begun
    assert not (tmp_path / "logs").exists()
    with open_logs([], tmp_path / "none", "vit", {}) as write:
        write(0, {"accuracy": 0.5})
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", sorted(LOGS))
@pytest.mark.parametrize("command", [(*RUN, "-o"), (*TRAIN, "-o")])
def test_a_package_that_is_not_installed_is_one_sentence_before_any_work(
    name: str,
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, LOGS.get(name).package, None)
    call(*command, tmp_path / "runs", "--log", name, code=2)
    error = capsys.readouterr().err
    assert error == (
        f"error: --log {name} needs the package {name}: pip install 'shiftbench[{name}]'\n"
    )
    assert not (tmp_path / "runs").exists()


def test_unknown_and_refused_logs_are_one_sentence(
    wandb: Wandb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(*RUN, "-o", tmp_path, "--log", "wnadb", code=2)
    assert "unknown log 'wnadb'. Did you mean 'wandb'" in capsys.readouterr().err
    wandb.refuses = True
    with (
        pytest.raises(UsageError, match="no key configured; `wandb login`, or set WANDB_MODE"),
        open_logs(["wandb"], tmp_path, "vit", {}),
    ):
        pass
