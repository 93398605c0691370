"""Figures in the text of the documents equal those of the tables and records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from shiftbench.records.compare import compare
from shiftbench.records.folder import load_records
from shiftbench.scores import ScoreName

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = sorted((DOCS / "results").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
CROP = ScoreName("adversarial", "crop")
NUMBER = r"[-+]?\d+\.\d+"
INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")
# Measured by a script or a run that is not among the records.
MEASURED_ELSEWHERE = {
    "3.8 [3.2, 4.4]",  # benchmarks/phases.py
    "91.7 [90.8, 92.5]",  # recipe recalibrate
    "14.4 [13.4, 15.6]",
    "80.8 [79.6, 82.0]",
    "34.0 [32.5, 35.5]",
    "81.4 [80.2, 82.6]",
}


def flat(text: str) -> str:
    """Join the lines of a text."""
    return " ".join(text.split())


def unsigned(text: str) -> str:
    """Remove signs: a drop of 5.8 is a difference of -5.8, with its ends exchanged."""
    value, low, high = (number.lstrip("+-") for number in INTERVAL.fullmatch(text).groups())  # type: ignore[union-attr]
    low, high = (low, high) if float(low) <= float(high) else (high, low)
    return f"{value} [{low}, {high}]"


def lines_of(page: Path, *, tables: bool) -> str:
    lines = page.read_text("utf-8").splitlines()
    return flat("\n".join(line for line in lines if line.startswith("|") == tables))


@pytest.fixture(scope="module")
def tabulated() -> set[str]:
    """Return every interval in a table of a results page, without signs."""
    texts = (lines_of(page, tables=True) for page in RESULTS)
    return {unsigned(found.group()) for text in texts for found in INTERVAL.finditer(text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_interval_is_in_a_table(page: Path, tabulated: set[str]) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    prose = flat("\n".join(line for line in text.splitlines() if not line.startswith("|")))
    known = tabulated | {unsigned(text) for text in MEASURED_ELSEWHERE} | paired_of_records()
    found = {match.group() for match in INTERVAL.finditer(prose)}
    assert not {text for text in found if unsigned(text) not in known}


def paired_of_records() -> set[str]:
    """Return the differences that pages state without a table."""
    records = {r.model.name: r for r in load_records([ROOT / "results" / "records"])}
    imagenet = "timm:vit_tiny_patch16_224", "timm:tf_efficientnet_lite0"
    cifar = [f"xcit_pico_6_p4{end}.cifar10" for end in ("", "_aps", "_af")]
    points = [(*imagenet, CROP.at(0)), (*imagenet, CROP.at(6))]
    for attack in ("crop", "bilinear"):
        name = ScoreName("adversarial", attack, 6)
        points += [(other, cifar[2], name) for other in cifar[:2]]
    texts = set()
    for first, second, name in points:
        differences, _ = compare(records[first], [records[second]], max_shift=name.radius)
        (test,) = (one.test for one in differences if one.name == name)
        numbers = (100 * n for n in (test.difference, test.low, test.high))
        texts.add(unsigned("{:+.1f} [{:+.1f}, {:+.1f}]".format(*numbers)))
    return texts


def test_prose_rank_correlation_equals_printed_columns() -> None:
    text = (DOCS / "results" / "imagenet.md").read_text("utf-8")
    rows = re.findall(r"^\| \w+ \| `[\w.]+` \| ([\d.]+) \| ([\d.]+)% \|$", text, re.MULTILINE)
    assert len(rows) == 7
    found = spearmanr(*zip(*((float(a), float(b)) for a, b in rows), strict=True))
    assert f"is {found.statistic:.2f} (p = {found.pvalue:.3f})" in flat(text)


def test_prose_lost_images_equal_records() -> None:
    """The fractions that public networks lose under crops follow from the records."""
    records = load_records([ROOT / "results" / "records"])
    networks = [r for r in records if r.data.name == "imagenet" and "+" not in r.model.name]
    networks = [r for r in networks if r.data.geometry.get("scale", 1) == 1]
    text = flat((DOCS / "results" / "imagenet.md").read_text("utf-8"))
    for radius in (1, 6):
        lost = []
        for network in networks:
            clean, worst = (network.scores[CROP.at(s)].value for s in (0, radius))
            lost.append(100 * (1 - worst / clean))
        assert f"{min(lost):.1f} to {max(lost):.1f}%" in text


def test_prose_names_images_seen_in_pretraining() -> None:
    text = flat((DOCS / "results" / "repair.md").read_text("utf-8"))
    assert "3,791 of the 3,925 validation files of Imagenette" in text
