"""The tables of the findings are those of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from shiftbench.report.formats.markdown import markers

DOCS = Path(__file__).parents[1] / "docs"


def test_every_table_is_made_from_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="needs the extra `dev`")
    monkeypatch.syspath_prepend(DOCS)
    import make_findings

    page = (DOCS / "findings.md").read_text("utf-8")
    for name, make in make_findings.TABLES.items():
        first, last = markers(name)
        shown = page[page.index(first) + len(first) : page.index(last)]
        assert shown.strip() == make(), "run `make leaderboard`"
