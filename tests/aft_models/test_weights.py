"""The bundled weights are those that the records measured, and answer as they did there."""

from __future__ import annotations

from pathlib import Path

import pytest

from aft_models.cards import BUNDLED, list_weights, weights_card
from shiftbench.data import load_dataset
from shiftbench.models import load_model
from shiftbench.records.choose import find_record
from shiftbench.records.record import Record, read_records
from shiftbench.run.job import Settings
from shiftbench.run.runner import Execution, run
from shiftbench.scores import ACCURACY

RECORDS = Path(__file__).parents[2] / "results" / "records"
LARGEST = 2 * 1024 * 1024  # bytes: everyone who installs the package downloads them


def record_of(name: str) -> Record:
    return find_record(read_records([RECORDS]), name)


@pytest.mark.parametrize("name", list_weights())
def test_weights_have_a_record_and_the_accuracy_of_their_card(name: str) -> None:
    card, record = weights_card(name), record_of(name)
    assert record.model.digest == load_model(name).identity.digest
    measured = record.scores[ACCURACY]
    assert measured.n == card.images["accuracy"]
    # Training scores the images that it holds in memory, resized once to the canvas.
    assert measured.value == pytest.approx(card.scores["accuracy"], abs=0.005)
    assert (BUNDLED / f"{name}.safetensors").stat().st_size <= LARGEST


@pytest.mark.shared_data
@pytest.mark.parametrize("variant", ["", "_aps", "_af"])
def test_photographs_get_the_stored_answers(
    variant: str, shared_data: Path, tmp_path: Path
) -> None:
    name = f"xcit_pico_6_p8{variant}.imagenette"
    data = load_dataset(f"folder:{shared_data / 'imagenette128'}")
    few = Settings(attacks=(), consistency=(), limit=40)
    execution = Execution(device="cpu", batch_size=8)
    record = run(load_model(name), data, few, tmp_path, execution=execution).record
    answers = record.samples().set_index("key")["prediction"]
    stored = record_of(name).samples().set_index("key").loc[answers.index]
    clear = ~stored["near_tie"].to_numpy(bool)
    assert (answers == stored["prediction"])[clear].all()
    assert (answers == stored["label"]).mean() > 0.7
