"""Tables of several seeds and of full grids equal what follows from the predictions."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    import results_seeds

    return results_seeds


@pytest.fixture
def repeated(seeds: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module with three seeds that are the same record."""
    import records_tables

    results = {
        row: [records_tables.record(name, seeds.IMAGENETTE)] * 3
        for row, name in seeds.NETWORKS.items()
    }
    monkeypatch.setattr(seeds, "trained", lambda: results)
    return seeds


def test_seeds_without_records_are_unmeasured(
    seeds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "RESULTS", tmp_path)
    assert seeds.seeds() == seeds.UNMEASURED
    assert seeds.seeds_paired() == seeds.seeds_summary() == ""


def test_seeds_of_equal_records_have_their_mean(repeated: ModuleType) -> None:
    _, _, *rows = repeated.seeds().splitlines()
    assert len(rows) >= 6
    for row in rows:
        *_, first, second, third, mean = row.strip("| ").split(" | ")
        assert first == second == third == mean


def test_seeds_paired_mean_of_equal_records_equals_each_seed(repeated: ModuleType) -> None:
    _, _, *rows = repeated.seeds_paired().splitlines()
    for row in rows:
        *_, third, mean = row.strip("| ").split(" | ")
        (one, low, high), (two, *ends) = (
            map(float, re.findall(r"[-+]\d+\.\d", cell)) for cell in (third, mean)
        )
        assert one == two
        assert [low, high] == pytest.approx(ends, abs=0.6)  # images are the only spread


def test_bootstrap_includes_the_spread_of_seeds(seeds: ModuleType) -> None:
    generator = np.random.default_rng(1)
    images = generator.choice([-1.0, 0.0, 1.0], size=400, p=[0.1, 0.7, 0.2])
    same = np.stack([images] * 3)
    apart = same + np.array([[-0.2], [0.0], [0.2]])
    widths = [high - low for low, high in (seeds.bootstrap(m) for m in (same, apart))]
    exact = 2 * 1.96 * images.std() / np.sqrt(len(images))
    assert widths[0] == pytest.approx(exact, rel=0.1)
    assert widths[1] > 1.5 * widths[0]


def test_align_average_equals_score_of_record(seeds: ModuleType) -> None:
    import results_align

    from shiftbench.scores import ScoreName

    for pair in results_align.aligned_pairs("scenes"):
        for result in pair:
            means = results_align.columns(result).mean()
            for attack, title in (("crop", "crop 3 px"), ("camera", "camera 1 px")):
                score = result.scores[ScoreName("average", attack)].value
                assert means[f"average {title}"] == pytest.approx(score)
                assert means[f"every {title}"] <= means[f"average {title}"]
