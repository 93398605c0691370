"""What a store takes for missing, for its own, and for work of another run."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import nn

from shiftbench.data.scenes import Scenes
from shiftbench.errors import RecordError
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.models import Model
from shiftbench.run.folder import FolderStore, exclusive, make_folder
from shiftbench.run.job import Job, Settings, make_job
from shiftbench.run.store import widest

RECIPE = {"input_size": 16, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
SETTINGS = Settings(attacks=("crop",), max_shift=1, consistency=())


@pytest.fixture(scope="module")
def job() -> Job:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 12))
    return make_job(Model(network, RECIPE, name="net"), Scenes("test", 6), SETTINGS)


def rows(job: Job, radii: dict[int, tuple[int, int | None]], **more: Any) -> pd.DataFrame:
    """Rows of a search: image -> how far it was searched, and the ring that broke it."""
    keys = [job.dataset.keys[image] for image in radii]
    reach = pd.array([r for r, _ in radii.values()], dtype="Int64")
    broken = pd.array([b for _, b in radii.values()], dtype="Int64")
    return pd.DataFrame(
        {
            "crop_reach": reach,
            "crop_broken_radius": broken,
            "crop_dy": broken.astype("Float64"),
            "crop_dx": broken.astype("Float64"),
            "crop_prediction": broken,
            "near_tie": False,
            "passes": 2,
            "seconds": 0.5,
            **more,
        },
        index=pd.Index(keys, name="key"),
    )


def crop(job: Job, radius: int = 1) -> Adversarial:
    metric = next(m for m in job.metrics if isinstance(m, Adversarial))
    return replace(metric, grid=replace(metric.grid, radius=radius))


def test_identity_survives_a_file_and_sees_every_change(job: Job, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.prepare(job)
    store.append(crop(job), rows(job, {0: (1, None)}))
    store.flush()
    FolderStore(tmp_path).prepare(job)  # the same work again
    wider = {**job.data.geometry, "margin": 9}
    more = replace(job, data=replace(job.data, images=1, geometry=wider))
    FolderStore(tmp_path).prepare(more)  # another number of images or margin is the same work
    for other, words in (
        (replace(job, settings={**job.settings, "seed": 1}), r"settings\.seed was 0, is 1"),
        (replace(job, model=replace(job.model, digest="other")), r"model\.digest"),
        (replace(job, data=replace(job.data, fingerprint="other")), r"data\.fingerprint"),
        (replace(job, data=replace(job.data, labels="other")), r"data\.labels"),
        (
            replace(job, data=replace(job.data, geometry={**job.data.geometry, "resize": 40})),
            r"data\.geometry\.resize",
        ),
    ):
        with pytest.raises(RecordError, match=f"unfinished parts.*{words}.*--fresh"):
            FolderStore(tmp_path).prepare(other)
    FolderStore(tmp_path).prepare(replace(job, settings={**job.settings, "seed": 1}), fresh=True)


def test_damaged_parts_are_left_out_and_all_work_is_counted(job: Job, tmp_path: Path) -> None:
    metric, store = crop(job, 2), FolderStore(tmp_path)
    store.prepare(job)
    for radii in ({0: (1, None), 1: (2, None)}, {0: (2, 2), 2: (1, 1)}):
        store.append(metric, rows(job, radii))
        store.flush()
    (tmp_path / "parts" / "adversarial_crop" / "9-c.parquet").write_bytes(b"half")
    again = FolderStore(tmp_path)
    again.read(job)
    added = again.added(metric)
    assert added["crop_reach"].tolist() == [2, 2, 1] or set(added["crop_reach"]) == {1, 2}
    assert added.loc[job.dataset.keys[0], "crop_broken_radius"] == 2
    assert added.loc[job.dataset.keys[0], "passes"] == 4, "all that was done is counted"
    assert again.missing(replace(job, metrics=(metric,)))["adversarial_crop"] == [
        job.dataset.keys[i] for i in (3, 4, 5)
    ]


def test_the_widest_row_counts_and_near_ties_add_up(job: Job) -> None:
    wide, late = rows(job, {0: (3, None)}, near_tie=True), rows(job, {0: (1, None)})
    both = widest(crop(job), [wide, late])
    assert both["crop_reach"].tolist() == [3]
    assert both["near_tie"].tolist() == [True]
    assert both["passes"].tolist() == [4]


def test_rows_are_reduced_to_what_was_asked(job: Job) -> None:
    metric = crop(job, 2)
    there = rows(job, {0: (3, None), 1: (3, 3), 2: (1, 1), 3: (1, None), 4: (3, 2)})
    exact = metric.as_asked(there)
    assert list(exact.index) == [job.dataset.keys[i] for i in (0, 1, 2, 4)]
    assert exact["crop_reach"].tolist() == [2, 2, 2, 2]
    assert exact["crop_broken_radius"].fillna(-1).tolist() == [-1, -1, 1, 2]
    assert exact["crop_dy"].isna().tolist() == [True, True, False, False]


def _hold(folder: Path, ready: Any, release: Any) -> None:
    with exclusive(folder):
        ready.set()
        release.wait(300)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, release))
    process.start()
    assert ready.wait(300)  # it imports torch first
    with pytest.raises(RecordError, match="being written by another process"), exclusive(tmp_path):
        pass
    process.kill()  # no chance to clean up
    process.join()
    with exclusive(tmp_path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_an_output_that_cannot_be_written_fails_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write to the output folder"):
        make_folder(tmp_path / "file" / "below", images=1)
    monkeypatch.setattr("shiftbench.run.folder.SPARE_BYTES", 2**60)
    with pytest.raises(RecordError, match="MB free"):
        make_folder(tmp_path / "full", images=1)
