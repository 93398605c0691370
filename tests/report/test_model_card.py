"""The block for model cards: what the Hub's own parser reads is what the records say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from sample_records import make_record, spread, write_record

from shiftbench.report.formats.model_card import to_model_card
from shiftbench.report.table import build_tables
from shiftbench_cli.main import main

BROKEN = {"crop": spread(40, [4, 2, 1]), "half": spread(40, [4, 0, 3])}
CONSISTENT = {"integer": [1] * 36 + [0] * 4}


def test_the_hubs_parser_reads_every_score(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    record = write_record(tmp_path / "runs", "vit", broken=BROKEN, consistent=CONSISTENT)
    card_file = tmp_path / "model-card.yaml"
    with pytest.raises(SystemExit) as ended:
        main(["leaderboard", str(tmp_path / "runs"), "-o", str(card_file)])
    assert ended.value.code == 0
    card = hub.ModelCard(f"---\nlicense: mit\n{card_file.read_text()}---\n# A model\n")
    assert card.data.model_name == "vit"
    results_by_type = {result.metric_type: result for result in card.data.eval_results}
    wanted = {str(stem): record.scores.at(stem) for stem in record.scores.stems()}
    wanted = {name: score for name, score in wanted.items() if not name.startswith("change")}
    assert results_by_type.keys() == wanted.keys()
    for name, score in wanted.items():
        assert score is not None
        assert results_by_type[name].metric_value == pytest.approx(score.value, rel=1e-3)
        assert f"n = {score.n:,}" in results_by_type[name].metric_name
        assert results_by_type[name].task_type == "image-classification"
        assert (results_by_type[name].dataset_type, results_by_type[name].dataset_split) == (
            "scenes",
            "test",
        )
    assert "every shift up to 3 px" in results_by_type["adversarial_half"].metric_name
    assert results_by_type["adversarial_half"].metric_args["step"] == "1/2"


def test_each_model_is_an_entry_and_bounds_say_so() -> None:
    sampled = {"mode": "sampled:9"}
    records = [
        make_record("a", broken=BROKEN),
        make_record("a", broken=BROKEN, data="cifar10"),
        make_record("b: [odd] #name", broken=BROKEN, settings=sampled),
    ]
    text = to_model_card(build_tables(records, max_shift=1))
    entries = {entry["name"]: entry["results"] for entry in yaml.safe_load(text)["model-index"]}
    assert {name: len(results) for name, results in entries.items()} == {
        "a": 2,
        "b: [odd] #name": 1,
    }
    assert "*" not in text  # no anchors
    crop = {
        name: next(m for m in results[0]["metrics"] if m["type"] == "adversarial_crop")
        for name, results in entries.items()
    }
    assert crop["a"]["value"] == 34 / 40
    assert crop["a"]["args"]["radius"] == 1
    assert "upper bound" in crop["b: [odd] #name"]["name"]
    assert "upper bound" not in crop["a"]["name"]
