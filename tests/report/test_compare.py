"""Two models on the same images, counted by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from sample_records import spread, trio, write_record

from shiftbench.datasets import Scenes
from shiftbench.errors import RecordError, ShiftbenchError, UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.measure.attacks import ATTACKS
from shiftbench.records.record import Record
from shiftbench.report.compare import compare, survives, to_rows
from shiftbench.report.gallery import Gallery, build_gallery, gallery_figure, write_gallery
from shiftbench_cli.compare import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def pair(root: Path, **second: object) -> tuple[Record, Record]:
    """Ten images: `a` loses image 0 at ring 2 and image 1 unshifted, `b` 1, 2, 3 at ring 1."""
    a = write_record(
        root,
        "a",
        broken={"crop": [2, 0, *[None] * 8]},
        consistent={"half": [True] * 10},
    )
    fields = {
        "broken": {"crop": [None, 1, 1, 1, *[None] * 6]},
        "consistent": {"half": [False] * 3 + [True] * 7},
        **second,
    }
    return a, write_record(root, "b", **fields)  # type: ignore[arg-type]


def test_every_number_of_a_small_comparison(tmp_path: Path):
    metrics = {m.metric: m for m in compare(*pair(tmp_path)).metrics}
    crop = metrics["adversarial_crop"]
    assert (crop.first.value, crop.second.value) == (0.8, 0.7)
    assert crop.paired.difference == pytest.approx(-0.1)
    assert (crop.paired.only_first, crop.paired.only_second) == (2, 1)  # images 2, 3 and image 0
    assert crop.paired.p_value == 1.0  # three discordant images, split 2 to 1
    assert crop.paired.low < -0.1 < crop.paired.high
    accuracy = metrics["accuracy"].paired
    assert (accuracy.only_first, accuracy.only_second) == (0, 1)
    half = metrics["consistency_half"].paired
    assert (half.only_first, half.only_second) == (3, 0)
    assert half.p_value == pytest.approx(0.25)


def test_the_max_shift_chooses_the_ring(tmp_path: Path):
    a, b = pair(tmp_path)
    at = {
        s: {m.metric: m for m in compare(a, b, max_shift=s).metrics}["adversarial_crop"]
        for s in (0, 1, 2)
    }
    assert [at[s].first.value for s in at] == [0.9, 0.9, 0.8]
    assert [at[s].second.value for s in at] == [1.0, 0.7, 0.7]
    with pytest.raises(UsageError, match="max shift of 6, got --max-shift 7"):
        compare(a, b, max_shift=7)


def test_swapping_the_models_turns_the_signs_around(tmp_path: Path):
    a, b = pair(tmp_path)
    for there, back in zip(compare(a, b).metrics, compare(b, a).metrics, strict=True):
        assert there.paired.difference == pytest.approx(-back.paired.difference)
        assert there.paired.low == pytest.approx(-back.paired.high)
        assert there.paired.p_value == back.paired.p_value


def test_scores_are_the_records_own(tmp_path: Path):
    records = trio(tmp_path)
    for metric in compare(records[0], records[2]).metrics:
        family, _, kind = metric.metric.partition("_")
        if family == "accuracy":
            assert metric.second == records[2].scores.accuracy
        elif family == "consistency":
            assert metric.second == records[2].scores.consistency[kind]
        else:
            assert metric.second == records[2].scores.adversarial[kind][6]


def test_an_empty_radius_survives():
    radii = pd.Series([0, 3, None], dtype="Int64")
    assert survives(radii, 2).tolist() == [False, True, True]
    assert survives(pd.Series([0, 3, np.nan]), 3).tolist() == [False, False, True]


def test_only_the_same_images_labels_and_settings_can_be_paired(tmp_path: Path):
    a, _ = pair(tmp_path)
    fewer = write_record(tmp_path / "n", "b", broken={"crop": spread(9, [1])})
    with pytest.raises(RecordError, match=r"different images.*9 in common"):
        compare(a, fewer)
    other = write_record(tmp_path / "l", "b", broken={"crop": spread(10, [1])}, labels=[3] * 10)
    with pytest.raises(RecordError, match="different labels"):
        compare(a, other)
    padded = write_record(
        tmp_path / "p", "b", broken={"crop": spread(10, [1])}, settings={"pad": "reflect"}
    )
    with pytest.raises(UsageError, match="pad=reflect"):
        compare(a, padded)


def test_attacks_are_compared_on_the_images_both_searched(tmp_path: Path):
    a, b = pair(tmp_path)
    for record, searched in ((a, range(0, 4)), (b, range(2, 10))):
        assert record.folder is not None
        rows = record.samples()
        rows["searched"] = rows.index.isin(searched)
        rows.to_parquet(record.folder / "samples.parquet", index=False)
    metrics = {m.metric: m for m in compare(a, b).metrics}
    assert metrics["accuracy"].paired.n == 10
    crop = metrics["adversarial_crop"]  # images 2 and 3: `a` keeps both, `b` neither
    assert (crop.first.value, crop.second.value, crop.paired.n) == (1.0, 0.0, 2)
    assert "n=10, adversarial n=2" in " ".join(run("a", "b", "-r", tmp_path).stdout.split())
    rows["searched"] = rows.index.isin([9])
    rows.to_parquet(b.folder / "samples.parquet", index=False)
    with pytest.raises(RecordError, match="searched different images"):
        compare(a, b)


def test_the_order_of_the_images_does_not_matter(tmp_path: Path):
    a, b = pair(tmp_path)
    assert b.folder is not None
    before = to_rows(compare(a, b))
    b.samples().sample(frac=1, random_state=0).to_parquet(b.folder / "samples.parquet", index=False)
    assert to_rows(compare(a, b)) == before


def test_sampled_searches_are_marked(tmp_path: Path):
    a, b = pair(tmp_path, settings={"mode": "sampled:9"})
    marked = {m.metric: m.upper_bound for m in compare(a, b).metrics}
    assert marked == {"accuracy": False, "consistency_half": False, "adversarial_crop": True}
    text = run("a", "b", "-r", tmp_path).stdout
    assert "≤80.0" in text
    assert "upper bounds" in text


def test_the_command_prints_a_table_json_and_csv(tmp_path: Path):
    a, b = pair(tmp_path)
    table = run("a", "b", "-r", tmp_path).stdout
    assert "-10.0 [" in table
    content = json.loads(run("a", "b", "-r", tmp_path, "--format", "json").stdout)
    assert content["metrics"] == to_rows(compare(a, b))
    assert (content["first"], content["second"], content["max_shift"]) == ("a", "b", 6)
    rows = list(csv.DictReader(io.StringIO(run(a.folder, b.folder, "--format", "csv").stdout)))
    assert float(rows[-1]["difference"]) == pytest.approx(-0.1)


def test_mistakes_are_one_clear_sentence(tmp_path: Path):
    pair(tmp_path)
    pair(tmp_path, data="cifar10")
    write_record(tmp_path, "a", broken={"crop": spread(10, [1])}, data="cifar10")
    assert "unknown model" in str(run("c", "a", "-r", tmp_path).exception)
    assert "choose one with --data" in str(run("a", "b", "-r", tmp_path).exception)
    assert run("a", "b", "-d", "scenes", "-r", tmp_path).exit_code == 0
    assert "unknown data set" in str(run("a", "b", "-d", "mnist", "-r", tmp_path).exception)
    (tmp_path / "b--scenes" / "samples.parquet").unlink()
    assert "cannot read" in str(run("a", "b", "-d", "scenes", "-r", tmp_path).exception)


def gallery_of(tmp_path: Path, attack: str, size: int = 2) -> Gallery:
    first = write_record(tmp_path, "<b>a</b>", broken={attack: [None, 3, None, 0, *[None] * 4]})
    second = write_record(tmp_path, "b", broken={attack: [2, 3, 1, None, *[None] * 4]})
    return build_gallery(compare(first, second), attack=attack, size=size)


@pytest.mark.parametrize("attack", ["integer", "half", "crop", "bilinear", "camera"])
def test_a_gallery_shows_what_the_broken_model_saw(tmp_path: Path, attack: str):
    gallery = gallery_of(tmp_path, attack)
    assert (gallery.only_first, gallery.only_second) == (2, 1)
    assert [e.key for e in gallery.exhibits] == ["test/00002", "test/00000", "test/00003"]
    assert [e.broken for e in gallery.exhibits] == ["b", "b", "<b>a</b>"]
    step = float(ATTACKS.get(attack).step)
    assert [e.offset for e in gallery.exhibits] == [Offset(step, 0), Offset(2 * step, 0), ORIGIN]
    scenes = Scenes("test")
    for exhibit, index in zip(gallery.exhibits, (2, 0, 3), strict=True):
        assert exhibit.label == scenes.class_names[index]
        assert exhibit.answer == scenes.class_names[index + 1] != exhibit.label
        view = scenes.render([index], 64)[0].permute(1, 2, 0).numpy()
        assert np.array_equal(exhibit.original, view)
        moved = scenes.render([index], 64, 0, exhibit.offset)[0].permute(1, 2, 0).numpy()
        inside = (slice(8, -8), slice(8, -8))
        # Away from the border every kind of shift shows nearly what the moved camera sees.
        difference = exhibit.shifted[inside].astype(float) - moved[inside]
        assert np.abs(difference).mean() < (1e-9 if attack in ("camera", "crop", "integer") else 9)


def test_a_gallery_becomes_a_page_or_a_picture(tmp_path: Path):
    gallery = gallery_of(tmp_path, "crop", size=1)
    write_gallery(gallery, tmp_path / "gallery.html")
    text = (tmp_path / "gallery.html").read_text()
    assert "<b>a</b>" not in text
    assert "&lt;b&gt;a&lt;/b&gt; stays right, b does not" in text
    assert text.count("<img") == 2 * len(gallery.exhibits)
    assert "dy 1, dx 0 px" in text
    figure = gallery_figure(gallery)
    shown = [axes.get_images()[0] for sub in figure.subfigs for axes in sub.axes if axes.images]
    assert np.array_equal(np.asarray(shown[0].get_array()), gallery.exhibits[0].original)
    write_gallery(gallery, tmp_path / "gallery.png")
    with Image.open(tmp_path / "gallery.png") as picture:
        assert picture.format == "PNG"


def test_galleries_that_cannot_be(tmp_path: Path):
    a, b = pair(tmp_path)
    comparison = compare(a, b)
    with pytest.raises(UsageError, match="unknown attack in both records"):
        build_gallery(comparison, attack="half")
    with pytest.raises(UsageError, match="records are of scenes"):
        build_gallery(comparison, data="cifar10")
    with pytest.raises(UsageError, match="no image tells a and a apart"):
        gallery_figure(build_gallery(compare(a, a)))
    elsewhere = [
        write_record(tmp_path, name, broken={"crop": spread(10, [1])}, data="folder")
        for name in ("a", "b")
    ]
    with pytest.raises(ShiftbenchError, match="folder:PATH"):
        build_gallery(compare(*elsewhere))
    out = tmp_path / "x.gif"
    assert "ends in .html" in str(run("a", "b", "-r", tmp_path, "--gallery", out).exception)
