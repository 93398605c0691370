"""The tables of the findings and of the README follow from the committed records."""

from __future__ import annotations

from pathlib import Path

import pytest

from shiftbench.report.formats import markers

DOCS = Path(__file__).parents[1] / "docs"


def test_findings_tables_equal_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    import make_findings

    for page, tables in make_findings.PAGES.items():
        text = page.read_text("utf-8")
        for name, make in tables.items():
            first, last = markers(name)
            shown = text[text.index(first) + len(first) : text.index(last)]
            assert shown.strip() == make(), f"{name}: run `make leaderboard`"
