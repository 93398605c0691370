"""The bundled weights are those of the committed records, with equal predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from aft_models.cards import BUNDLED, list_weights, weights_card
from shiftbench.data import load_dataset
from shiftbench.models import load_model
from shiftbench.records.folder import find, load_records
from shiftbench.records.result import Result
from shiftbench.running.job import Settings
from shiftbench.running.runner import Execution, run
from shiftbench.scores import ACCURACY

RECORDS = Path(__file__).parents[2] / "results" / "records"
LARGEST = 2 * 1024 * 1024  # bytes: every installation downloads them


def record_of(name: str) -> Result:
    return find(load_records([RECORDS]), name)


@pytest.mark.parametrize("name", list_weights())
def test_bundled_weights_have_a_record_of_their_accuracy(name: str) -> None:
    card, record = weights_card(name), record_of(name)
    assert record.model.digest == load_model(name).identity.digest
    measured = record.scores[ACCURACY]
    assert measured.n <= card.images["accuracy"]
    # Training scores the images in memory, which are resized once to the canvas.
    assert measured.value == pytest.approx(card.scores["accuracy"], abs=0.01)
    assert (BUNDLED / f"{name}.safetensors").stat().st_size <= LARGEST


@pytest.mark.shared_data
@pytest.mark.parametrize("variant", ["", "_aps", "_af"])
def test_bundled_weights_repeat_the_predictions_of_their_record(
    variant: str, shared_data: Path, tmp_path: Path
) -> None:
    name = f"xcit_pico_6_p8{variant}.imagenette"
    data = load_dataset(f"folder:{shared_data / 'imagenette128'}")
    few = Settings(attacks=(), consistency=(), limit=40)
    execution = Execution(device="cpu", batch_size=8)
    result = run(load_model(name), data, few, tmp_path, execution=execution).record
    assert result is not None
    ours, stored = (r.to_frame().set_index("key") for r in (result, record_of(name)))
    stored = stored.loc[ours.index]
    clear = ~stored["near_tie"].to_numpy(bool)
    assert (ours["prediction"] == stored["prediction"])[clear].all()
    assert (ours["prediction"] == ours["label"]).mean() > 0.7
