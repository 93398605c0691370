"""The tables of the findings and the board of the README are those of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from shiftbench.report.formats.markdown import markers

DOCS = Path(__file__).parents[1] / "docs"


def test_every_table_is_made_from_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="needs the extra `dev`")
    monkeypatch.syspath_prepend(DOCS)
    import make_findings

    for page, tables in make_findings.PAGES.items():
        text = page.read_text("utf-8")
        for name, make in tables.items():
            first, last = markers(name)
            shown = text[text.index(first) + len(first) : text.index(last)]
            assert shown.strip() == make(), "run `make leaderboard`"
