"""Two models on the same images, counted by hand."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.axes import Axes
from matplotlib.text import Text
from PIL import Image
from sample_records import spread, trio, write_record

from shiftbench.data import Scenes
from shiftbench.errors import ShiftbenchError, UsageError
from shiftbench.grid import ORIGIN, Offset
from shiftbench.pictures.gallery import Gallery, build_gallery, gallery_figure, write_gallery
from shiftbench.records.record import Record
from shiftbench.report.compare import ScoreComparison, compare, to_rows
from shiftbench.scores import ScoreName, Scores
from shiftbench.shifts import ATTACKS
from shiftbench_cli import render
from shiftbench_cli.compare import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def compared(a: Record, b: Record, **options: int) -> dict[str, ScoreComparison]:
    """The scores of a comparison by name."""
    return {found.name.stem: found for found in compare(a, b, **options).scores}


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
    metrics = compared(*pair(tmp_path))
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
    at = {s: compared(a, b, max_shift=s)["adversarial_crop"] for s in (0, 1, 2)}
    assert [at[s].first.value for s in at] == [0.9, 0.9, 0.8]
    assert [at[s].second.value for s in at] == [1.0, 0.7, 0.7]
    with pytest.raises(UsageError, match="max shift of 6, got --max-shift 7"):
        compare(a, b, max_shift=7)


def test_a_curve_that_does_not_reach_the_max_shift_is_left_out_and_named(tmp_path: Path):
    a, b = (
        write_record(tmp_path, name, broken={"crop": spread(9, [1]), "half": spread(9, [2])})
        for name in "ab"
    )
    near = {name: s for name, s in a.scores.items() if name.kind != "half" or name.radius < 3}
    short = replace(a, scores=Scores(near))
    comparison = compare(short, b, max_shift=5)
    assert [str(s.name) for s in comparison.scores] == ["accuracy", "adversarial_crop@5"]
    assert comparison.left_out == ("adversarial_half reaches a max shift of 2 in both",)


def test_swapping_the_models_turns_the_signs_around(tmp_path: Path):
    a, b = pair(tmp_path)
    for there, back in zip(compare(a, b).scores, compare(b, a).scores, strict=True):
        assert there.paired.difference == pytest.approx(-back.paired.difference)
        assert there.paired.low == pytest.approx(-back.paired.high)
        assert there.paired.p_value == back.paired.p_value


def test_scores_are_the_records_own(tmp_path: Path):
    records = trio(tmp_path)
    found = compare(records[0], records[2]).scores
    assert len(found) == 1 + 2 * 3 + 5
    for score in found:
        assert score.first == records[0].scores[score.name]
        assert score.second == records[2].scores[score.name]


def test_repeats_are_compared_by_the_fraction_of_draws_that_agree(tmp_path: Path):
    """As the record and the leaderboard count them, not by whether all draws of an image agree."""
    draws = {"a": [3, 2, 1, 3] * 15, "b": [2, 2, 2, 2] * 15}
    a, b = (
        write_record(
            tmp_path,
            name,
            broken={"crop": spread(60, [1])},
            consistent={"half": agreed},
            settings={"repeats": 3},
        )
        for name, agreed in draws.items()
    )
    half = compared(a, b)["consistency_half"]
    name = ScoreName("consistency", "half")
    assert (half.first, half.second) == (a.scores[name], b.scores[name])
    assert (half.first.value, half.second.value) == pytest.approx((9 / 12, 2 / 3))
    assert half.paired.difference == pytest.approx(2 / 3 - 9 / 12)
    assert (half.paired.only_first, half.paired.only_second) == (30, 15)


def test_only_the_same_conditions_can_be_compared(tmp_path: Path):
    a, _ = pair(tmp_path)
    other = write_record(
        tmp_path, "b", broken={"crop": spread(10, [1])}, settings={"precision": "bf16"}
    )
    with pytest.raises(UsageError, match=r"cannot be compared: precision is .*: run both alike"):
        compare(a, other)


def test_scores_of_other_draws_or_images_are_left_out_and_named(tmp_path: Path):
    a, b = (
        write_record(
            tmp_path,
            name,
            broken={"crop": spread(20, [1])},
            consistent={"half": [True] * 20},
            settings={"seed": seed, "search_limit": 6},
        )
        for name, seed in (("a", 0), ("b", 2))
    )
    comparison = compare(a, b)
    assert [str(s.name) for s in comparison.scores] == ["accuracy"]
    assert comparison.left_out == (
        "seed is 0 and 2",
        "adversarial_crop@6 is of different images (6 and 6)",
    )
    ran = run("a", "b", "-r", tmp_path)
    assert "left out: adversarial_crop@6 is of different images" in ran.stderr


def test_the_scores_of_an_unknown_metric_are_left_out_and_named(tmp_path: Path):
    a, b = pair(tmp_path)
    strange = {
        name: replace(info, kind="plugged") if name == "consistency_half" else info
        for name, info in a.metrics.items()
    }
    left_out = compare(replace(a, metrics=strange), replace(b, metrics=strange)).left_out
    assert any("consistency_half" in reason and "--plugin" in reason for reason in left_out)


def test_attacks_are_compared_on_the_images_that_were_searched(tmp_path: Path):
    broken = {"a": [2, 0, *[None] * 8], "b": [None, 1, 1, 1, *[None] * 6]}
    records = [
        write_record(tmp_path, name, broken={"crop": radii}, settings={"search_limit": 4})
        for name, radii in broken.items()
    ]
    found = compared(*records)
    assert found["accuracy"].paired.n == 10
    crop = found["adversarial_crop"]  # of images 0 to 3, `a` keeps 2 and 3, `b` keeps 0
    assert (crop.first.value, crop.second.value, crop.paired.n) == (0.5, 0.25, 4)
    assert (crop.paired.only_first, crop.paired.only_second) == (2, 1)
    assert "n=4" in run("a", "b", "-r", tmp_path).stdout


def test_the_order_of_the_images_does_not_matter(tmp_path: Path):
    a, b = pair(tmp_path)
    assert b.folder is not None
    before = to_rows(compare(a, b))
    b.samples().sample(frac=1, random_state=0).to_parquet(b.folder / "samples.parquet", index=False)
    assert to_rows(compare(a, b)) == before


def test_sampled_searches_are_marked(tmp_path: Path):
    a, b = pair(tmp_path, settings={"mode": "sampled:9"})
    assert any("mode is exact and sampled:9" in reason for reason in compare(a, b).left_out)
    again = write_record(
        tmp_path, "c", broken={"crop": spread(10, [2])}, settings={"mode": "sampled:9"}
    )
    marked = {found.name.stem: found.bound for found in compare(b, again).scores}
    assert marked == {"accuracy": False, "adversarial_crop": True}
    text = run("b", "c", "-r", tmp_path).stdout
    assert "≤80.0" in text
    assert "upper bounds" in text


def test_the_command_prints_a_table_json_and_csv(tmp_path: Path):
    a, b = pair(tmp_path)
    table = run("a", "b", "-r", tmp_path).stdout
    assert "-10.0" in table
    assert "2 / 1" in table
    content = json.loads(run("a", "b", "-r", tmp_path, "--format", "json").stdout)
    assert content["metrics"] == to_rows(compare(a, b))
    assert (content["first"], content["second"], content["data"]) == ("a", "b", "scenes")
    assert content["left_out"] == []
    rows = list(csv.DictReader(io.StringIO(run(a.folder, b.folder, "--format", "csv").stdout)))
    assert float(rows[-1]["difference"]) == pytest.approx(-0.1)


def test_the_table_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(render, "PIPED_WIDTH", 80)
    records = trio(tmp_path)
    names = [record.model.name for record in records]
    text = run(names[0], names[2], "-r", tmp_path).stdout
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for found in compare(records[0], records[2]).scores:
        assert found.first.interval() in text
        assert found.second.interval() in text


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
    assert [(side.count, side.broken) for side in gallery.sides] == [(2, "b"), (1, "<b>a</b>")]
    exhibits = [exhibit for side in gallery.sides for exhibit in side.exhibits]
    assert [e.key for e in exhibits] == ["test/00002", "test/00000", "test/00003"]
    step = float(ATTACKS.get(attack).step)
    assert [e.offset for e in exhibits] == [Offset(step, 0), Offset(2 * step, 0), ORIGIN]
    scenes = Scenes("test")
    for exhibit, index in zip(exhibits, (2, 0, 3), strict=True):
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
    assert text.count("<img") == 4
    assert "dy 1, dx 0 px" in text
    figure = gallery_figure(gallery)
    shown = [axes.get_images()[0] for sub in figure.subfigs for axes in sub.axes if axes.images]
    assert np.array_equal(np.asarray(shown[0].get_array()), gallery.sides[0].exhibits[0].original)
    write_gallery(gallery, tmp_path / "gallery.png")
    with Image.open(tmp_path / "gallery.png") as picture:
        assert picture.format == "PNG"


def test_titles_of_a_picture_are_no_wider_than_its_tiles(tmp_path: Path):
    gallery = gallery_of(tmp_path, "crop", size=1)
    wordy = "walking stick, walkingstick, stick insect"
    words = {"label": wordy, "predictions": (wordy, "a"), "answer": wordy}
    first, second = (
        replace(side, exhibits=tuple(replace(e, **words) for e in side.exhibits))
        for side in gallery.sides
    )
    figure = gallery_figure(replace(gallery, sides=(first, second)))
    figure.draw_without_rendering()
    panels = [axes for axes in figure.findobj(Axes) if axes.images]
    assert len(panels) == 4
    for axes in panels:
        title = axes.get_title(loc="left")
        assert "walking stick" in title
        (text,) = (t for t in axes.findobj(Text) if t.get_text() == title)
        assert text.get_window_extent().width <= axes.get_window_extent().width


def test_a_gallery_of_a_folder_of_images(tmp_path: Path):
    """`folder:PATH` says where the images are; the data set has the folder's own name."""
    birds = tmp_path / "birds"
    for index in range(8):
        (birds / "val" / str(index)).mkdir(parents=True)
        Image.new("RGB", (80, 80), (index * 30, 0, 0)).save(birds / "val" / str(index) / "x.png")
    shared = {"data": "birds", "settings": {"split": "val"}, "labels": list(range(8))}
    for name, radii in (("a", [None, 3, *[None] * 6]), ("b", [2, 3, *[None] * 6])):
        record = write_record(tmp_path / "runs", name, broken={"crop": radii}, **shared)
        write_record(tmp_path / "runs", name, broken={"crop": radii})  # on scenes too
        assert record.folder is not None
        rows = record.samples().assign(key=[f"{i}/x.png" for i in range(8)])
        rows.to_parquet(record.folder / "samples.parquet", index=False)
    out = tmp_path / "gallery.html"
    shown = ("-r", tmp_path / "runs", "-d", f"folder:{birds}", "--gallery", out)
    ran = run("a", "b", *shown)
    assert ran.exit_code == 0, ran.exception
    assert "gallery.html: 1 image" in ran.stderr


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
