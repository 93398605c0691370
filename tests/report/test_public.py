"""The public models of the package, and a user's model among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import pytest
from PIL import Image
from sample_records import make_record

from shiftbench.data.base import ImageSet
from shiftbench.errors import DataError
from shiftbench.records.folder import load_records, select
from shiftbench.records.verify import contradictions
from shiftbench.report.public import ARCHIVE, SUFFIX, narrowed, public_results, write_public
from shiftbench.report.scores import leaderboard, score_cells

RECORDS = Path(__file__).parents[2] / "results" / "records"


@dataclass(frozen=True, eq=False)
class Named(ImageSet):
    """Image set that consists of names only."""

    def image(self, index: int) -> Image.Image:
        raise NotImplementedError

    def has_size(self, side: int) -> bool:
        return False


def named(keys: list[str]) -> Named:
    return Named("imagenet", "val", keys, [0] * len(keys), ["a"])


def test_public_results_are_consistent_records_of_500_images() -> None:
    results = public_results()
    assert len(results) == 7
    for result in results:
        assert (result.data.name, result.data.images) == ("imagenet", 500)
        assert contradictions(result) == []


def test_public_archive_equals_the_committed_records(tmp_path: Path) -> None:
    """After a change of the records: python -m shiftbench.report.public results/records."""
    write_public(select(load_records([RECORDS]), data="imagenet"), tmp_path / ARCHIVE)
    content = resources.files("shiftbench.report").joinpath(ARCHIVE).read_bytes()
    assert content == (tmp_path / ARCHIVE).read_bytes()
    assert len(content) < 450_000


def test_own_model_is_ranked_among_the_public_ones() -> None:
    public = public_results()
    best = max(public, key=lambda result: result.score("accuracy"))
    own = replace(best, model=replace(best.model, name="mine"))
    (table,) = leaderboard(score_cells([own, *public]), sort="top1")
    names = [row.model.name for row in table.rows]
    assert len(names) == 8
    assert names.index("mine") < 2
    assert sum(name.endswith(SUFFIX) for name in names) == 7


def test_narrowed_takes_the_images_of_the_public_models_by_file_name() -> None:
    keys = public_results()[0].tables.keys
    moved = [f"other/folders/{Path(key).stem}.jpg" for key in reversed(keys)]
    whole = named([*moved, "n01/ILSVRC2012_val_99999999.JPEG", "n01/photo.png"])
    part = narrowed(whole)
    assert sorted(part.keys) == sorted(moved)
    assert narrowed(part) is part
    with pytest.raises(DataError, match=r"has 499 of their 500 .* imagenet:PATH"):
        narrowed(named(moved[1:]))


def test_write_public_is_reproducible(tmp_path: Path) -> None:
    record = make_record(tmp_path, data="imagenet")
    for name in "ab":
        write_public([record], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
