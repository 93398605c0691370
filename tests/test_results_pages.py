"""Tables of the README and of the results pages follow from the committed records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shiftbench.report.formats import markers
from shiftbench.tables import PROBABILITY, read_tables

DOCS = Path(__file__).parents[1] / "docs"


def test_generated_tables_equal_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    import make_results

    for page, tables in make_results.PAGES.items():
        text = page.read_text("utf-8")
        for name, make in tables.items():
            first, last = markers(name)
            written = text[text.index(first) + len(first) : text.index(last)]
            assert written.strip() == make(), f"{name}: run `make leaderboard`"


def test_records_of_detectors_contain_no_boxes() -> None:
    files = sorted((DOCS.parent / "results" / "detection").rglob("*.parquet"))
    assert files
    for file in files:
        tables, _ = read_tables(file)
        numbers = {n for n, a in tables.arrays.items() if np.issubdtype(a.dtype, np.floating)}
        assert all(name.endswith(PROBABILITY) for name in numbers), file


def test_arrows_figure_has_a_row_per_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    import results_align
    import results_public

    networks = results_public.networks()
    axes = results_align.arrows(networks).axes[0]
    assert len(axes.get_yticklabels()) == len(networks) == 7
