"""Figures in the prose of the documents equal those of the tables and records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from shiftbench.records.compare import compare
from shiftbench.records.folder import load_records
from shiftbench.records.result import Result
from shiftbench.report.formats import markers
from shiftbench.scores import ScoreName
from shiftbench.statistics import PairedComparison

ROOT = Path(__file__).parents[1]
FINDINGS = (ROOT / "docs" / "findings.md").read_text("utf-8")
REPAIR = (ROOT / "docs" / "repair.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
CROP = ScoreName("adversarial", "crop")


def flat(text: str) -> str:
    """Join the lines of a text."""
    return " ".join(text.split())


def interval(test: PairedComparison) -> str:
    points = (100 * number for number in (test.difference, test.low, test.high))
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*points)


@pytest.fixture(scope="module")
def selected() -> dict[str, tuple[PairedComparison, PairedComparison]]:
    """Return the net effects of select:12 on clean images and under crops up to 3 px, by model."""
    records = {r.model.name: r for r in load_records([ROOT / "results" / "records"])}
    pairs = [
        (plain, records[f"{name}+select:12"])
        for name, plain in records.items()
        if f"{name}+select:12" in records
    ]
    return {
        plain.model.name: (effect(plain, wide, 0), effect(plain, wide, 3)) for plain, wide in pairs
    }


def effect(plain: Result, wide: Result, radius: int) -> PairedComparison:
    (one,) = (
        difference.test
        for difference in compare(plain, [wide], max_shift=radius)[0]
        if difference.name == CROP.at(radius)
    )
    return one


def test_prose_net_effect_of_select_equals_records(
    selected: dict[str, tuple[PairedComparison, PairedComparison]],
) -> None:
    gains = [100 * crops.difference for _, crops in selected.values()]
    text = f"{min(gains):.1f} to {max(gains):.1f} points"
    for document in (FINDINGS, README):
        assert text in flat(document)
    assert f"+{min(gains):.1f} to +{max(gains):.1f} points" in flat(REPAIR)
    assert all(crops.low > 0 for _, crops in selected.values())


def test_prose_clean_cost_of_select_equals_records(
    selected: dict[str, tuple[PairedComparison, PairedComparison]],
) -> None:
    costs = {name: clean for name, (clean, _) in selected.items()}
    worst = min(costs, key=lambda name: costs[name].difference)
    assert "squeezenet" in worst
    cost = interval(costs.pop(worst)).replace("+-", "-")
    for document in (FINDINGS, README):
        assert cost in flat(document)
    (lite,) = (clean for name, clean in costs.items() if "lite0" in name)
    assert f"{100 * lite.difference:+.1f} for EfficientNet-Lite0" in flat(FINDINGS)
    assert not any(clean.low > 0 or clean.high < 0 for clean in costs.values())


def test_prose_rank_correlation_equals_printed_columns() -> None:
    rows = re.findall(r"^\| \w+ \| `[\w.]+` \| ([\d.]+) \| ([\d.]+)% \|$", FINDINGS, re.MULTILINE)
    assert len(rows) == 7
    found = spearmanr(*zip(*((float(a), float(b)) for a, b in rows), strict=True))
    assert f"is {found.statistic:.2f} (p = {found.pvalue:.3f})" in flat(FINDINGS)


def test_prose_interval_of_aps_equals_table() -> None:
    first, last = markers("repaired-paired")
    lines = FINDINGS[FINDINGS.index(first) : FINDINGS.index(last)].splitlines()
    (head,) = (line for line in lines if line.startswith("| points |"))
    (row,) = (line for line in lines if line.startswith("| `aps` |"))
    column = [cell.strip() for cell in head.split("|")].index("integer 1 px, n=500")
    cell = row.split("|")[column].strip()
    assert f"({cell} points for integer shifts up to 1 px" in flat(FINDINGS)


@pytest.mark.parametrize(
    "words", ["crop moved by one pixel", "instead of 9.4 to 13.8", "7.1 points instead"]
)
def test_prose_states_worst_cases_and_net_effects(words: str) -> None:
    for document in (FINDINGS, REPAIR, README):
        assert words not in flat(document)


def test_prose_names_images_seen_in_pretraining() -> None:
    for document in (FINDINGS, REPAIR):
        assert "3,791 of the 3,925 validation files of Imagenette" in flat(document)
