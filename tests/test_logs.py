"""Loggers receive the numbers of a run, and nothing is written without one."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sample_records import make_result, spread

from shiftbench.errors import UsageError
from shiftbench.logs import LOGGERS, log_result, open_loggers, require_loggers
from shiftbench.records.result import Result
from shiftbench.scores import ScoreName, curve_of

CROP = ScoreName("adversarial", "crop")


class Wandb(ModuleType):
    """Replacement of wandb that records its calls."""

    class Error(Exception):
        """Error of wandb."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
        self.begun: list[dict[str, Any]] = []
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.ended = 0
        self.fails = False

    def init(self, **given: Any) -> Wandb:
        if self.fails:
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


@pytest.fixture
def result() -> Result:
    return make_result("vit", failures={"crop": spread(20, [2, 3, 1])}, max_shift=3)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read event files with TensorBoard's own reader."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_log_result_wandb_has_points_at_their_max_shift(
    wandb: Wandb, result: Result, tmp_path: Path
) -> None:
    log_result(result, ["wandb", "wandb"], tmp_path / "logs")
    assert [step for step, _ in wandb.lines] == [0, 1, 2, 3]
    for step, values in wandb.lines:
        assert values["adversarial_crop"] == result.scores[CROP.at(step)].value
    assert wandb.lines[0][1]["accuracy"] == result.score("accuracy").value
    (begun,) = wandb.begun
    assert (begun["name"], begun["project"]) == ("vit", "shiftbench")
    assert begun["dir"] == tmp_path / "logs"
    assert begun["config"]["model"]["digest"] == result.model.digest
    assert wandb.ended == 1


@pytest.mark.filterwarnings("default")  # of the packages of TensorBoard
def test_log_result_tensorboard_replaces_events_of_an_earlier_run(
    result: Result, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    for _ in range(2):
        log_result(result, ["tensorboard"], tmp_path)
    logged = scalars(tmp_path)
    curve = curve_of(result.scores, CROP)
    assert [step for step, _ in logged["adversarial_crop"]] == list(curve)
    values = [value for _, value in logged["adversarial_crop"]]
    assert values == pytest.approx([score.value for score in curve.values()])
    assert logged["accuracy"] == [(0, pytest.approx(result.score("accuracy").value))]


@pytest.mark.filterwarnings("default")
def test_open_loggers_wandb_offline_writes_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with open_loggers(["wandb"], tmp_path, "vit", {"seed": 0}) as write:
        write(0, {"accuracy": 0.5})
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (stored,) = run.glob("*.wandb")
    assert b"accuracy" in stored.read_bytes()


def test_open_loggers_without_names_writes_nothing(tmp_path: Path) -> None:
    with open_loggers([], tmp_path / "none", "vit", {}) as write:
        write(0, {"accuracy": 0.5})
    assert not (tmp_path / "none").exists()


def test_open_loggers_closes_after_an_error(wandb: Wandb, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_loggers(["wandb"], tmp_path, "vit", {}):
        raise KeyboardInterrupt
    assert wandb.ended == 1


def test_require_loggers_unknown_or_missing_raises(
    wandb: Wandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_loggers(["wandb"])
    with pytest.raises(UsageError, match=r"unknown logger 'wnadb'. Did you mean 'wandb'"):
        require_loggers(["wnadb"])
    wandb.fails = True
    with (
        pytest.raises(
            UsageError, match=r"cannot start wandb: no key configured. Run `wandb login`"
        ),
        open_loggers(["wandb"], tmp_path, "vit", {}),
    ):
        pass
    monkeypatch.setattr("shiftbench.logs.find_spec", lambda _: None)
    for name in LOGGERS:
        words = rf"{name} is not installed. Run `pip install 'shiftbench\[{name}\]'`"
        with pytest.raises(UsageError, match=words):
            require_loggers([name])
