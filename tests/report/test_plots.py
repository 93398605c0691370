"""Figures: their axes, labels and series against the records, and the files they become."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from sample_records import make_record, spread, trio, write_record

from shiftbench.errors import UsageError
from shiftbench.figures import Look
from shiftbench.report.plots import (
    curves_figure,
    heatmap_figure,
    overview_figure,
    save_figure,
)
from shiftbench.report.table import build_tables
from shiftbench.scores import ACCURACY, ScoreName, Scores
from shiftbench_cli.plot import command


def panels(figure: Figure) -> dict[str, Axes]:
    """The visible panels by attack."""
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.get_title(loc="left")]
    return {axes.get_title(loc="left").split(":")[0].split(",")[0]: axes for axes in shown}


def series(axes: Axes, model: str) -> list[float]:
    """What is drawn for a model."""
    (line,) = [line for line in axes.get_lines() if line.get_gid() == model]
    return [float(y) for y in np.asarray(line.get_ydata())]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_curves_show_every_score_with_its_band(tmp_path: Path):
    records = trio(tmp_path)
    figure = curves_figure(records)
    found = panels(figure)
    assert list(found) == ["crop", "bilinear", "camera", "integer", "half"]
    for attack, axes in found.items():
        assert axes.get_xlabel() == "max shift (px)"
        (bands,) = axes.collections
        for record, band in zip(records, bands.get_paths(), strict=True):
            curve = record.scores.curve(ScoreName("adversarial", attack))
            values = [100 * curve[s].value for s in range(7)]
            assert series(axes, record.model.name) == pytest.approx(values)
            edge = np.asarray(band.vertices)[:, 1]
            assert edge.min() == pytest.approx(100 * min(score.low for score in curve.values()))
            assert edge.max() == pytest.approx(100 * max(score.high for score in curve.values()))
    ticks = [label.get_text() for label in found["bilinear"].get_xticklabels()]
    assert ticks == ["0", "1/6", "1/3", "1/2", "2/3", "5/6", "1"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [record.model.name for record in records]


def test_the_legend_covers_no_panel(tmp_path: Path):
    figure = curves_figure(trio(tmp_path))
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_window_extent()) for axes in panels(figure).values())
    assert figure.bbox.containsx(legend.x0)
    assert figure.bbox.containsx(legend.x1)


def test_curves_differ_without_color():
    looks = [Look.number(index) for index in range(20)]
    assert len({(look.dash, look.marker) for look in looks}) == 20
    assert len({Look.number(index) for index in range(140)}) == 140


def test_sampled_searches_are_marked_in_the_legend():
    record = make_record("a", settings={"mode": "sampled:5"})
    (text,) = curves_figure([record]).legends[0].get_texts()
    assert text.get_text() == "a (≤, sampled)"
    both = curves_figure([make_record("b"), record]).legends[0].get_texts()
    assert [text.get_text() for text in both] == ["b", "a (≤, sampled)"]


def test_different_images_in_one_figure_are_refused_unless_allowed():
    records = [make_record("a"), make_record("b", data="cifar10")]
    with pytest.raises(UsageError, match="--allow-mixed"):
        curves_figure(records)
    with pytest.raises(UsageError, match=r"images is 100 \(ffffffff/.*and 100 \(00000000/"):
        curves_figure([make_record("a"), make_record("a", fingerprint="0" * 64)])
    labels = [t.get_text() for t in curves_figure(records, allow_mixed=True).legends[0].get_texts()]
    assert labels == ["a on scenes test, 100 images", "b on cifar10 test, 100 images"]


@pytest.mark.parametrize("mode", ["exhaustive", "sampled:5"])
def test_curves_of_other_searched_images_are_refused(mode: str):
    """The seeds of --search-limit choose other images; nor does a mark make a bound of others."""
    records = [
        make_record(name, settings={"search_limit": 24, "seed": seed, "mode": how})
        for name, seed, how in (("a", 0, "exhaustive"), ("b", 5, mode), ("c", 0, mode))
    ]
    with pytest.raises(UsageError, match=r"different images \(24 and 24\).*--allow-mixed"):
        curves_figure(records[:2])
    assert curves_figure([records[0], records[2]]).legends
    assert curves_figure(records, allow_mixed=True).legends


def test_the_title_says_how_many_images_the_curves_are_of():
    broken = {attack: spread(100, [5]) for attack in ("half", "crop")}
    few = make_record("a", broken=broken, settings={"search_limit": 24})
    assert curves_figure([few]).get_suptitle().startswith("scenes test, 100 images, 24 searched;")
    for most in (48, 100):
        more = {n: replace(s, n=most) if n.kind == "crop" else s for n, s in few.scores.items()}
        both = replace(few, scores=Scores(more))
        assert f"100 images, 24 to {most} searched;" in curves_figure([both]).get_suptitle()


def test_a_heat_map_puts_each_offset_in_its_place():
    record = make_record("$a$", broken={"half": spread(50, [5, 3, 4, 0, 0, 6, 1])}, full_grid=True)
    figure = heatmap_figure(record)
    image: Any = panels(figure)["half"].get_images()[0].get_array()
    assert image.shape == (13, 13)
    for offset, score in record.maps["adversarial_half"].items():
        row, column = round(2 * offset.dy) + 6, round(2 * offset.dx) + 6
        assert image[row, column] == pytest.approx(100 * score.value)
    assert image[6, 6] == image.max()
    with pytest.raises(UsageError, match="--full-grid"):
        heatmap_figure(make_record("b"))
    with pytest.raises(UsageError, match="unknown full grid"):
        heatmap_figure(record, attacks=["crop"])


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_the_ending_chooses_the_format_and_files_repeat(tmp_path: Path, ending: str, magic: bytes):
    records = [make_record("a", full_grid=True)]
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        save_figure(curves_figure(records), file, dpi=50)
    content = files[0].read_bytes()
    assert content.startswith(magic)
    assert content == files[1].read_bytes()
    assert b"/Type3" not in content  # fonts that many venues refuse
    assert ending != "pdf" or b"/CIDFontType2" in content  # TrueType


def test_the_overview_has_a_dot_and_a_readable_name_per_network():
    """Networks of equal scores too: their names stand below each other."""
    names = [f"tv:{family}_b{i}" for family in ("resnet", "vit") for i in range(3)]
    lost = [[5, 2], [5, 2], [9, 4], [5, 3], [6, 2], [20, 9]]
    records = [
        make_record(name, broken={"crop": spread(100, at)})
        for name, at in zip(names, lost, strict=True)
    ]
    figure = overview_figure(build_tables(records)[0])
    (axes,) = figure.axes
    assert axes.get_ylabel() == "right at every crop shift up to 6 px (%)"
    dots = {line.get_gid(): line for line in axes.lines if line.get_gid()}
    assert set(dots) == set(names)
    assert len({dot.get_color() for dot in dots.values()}) == 2  # families
    for record in records:
        scores = (ACCURACY, ScoreName("adversarial", "crop", 6))
        place = [100 * record.scores[name].value for name in scores]
        np.testing.assert_allclose(np.ravel(dots[record.model.name].get_data()), place)
    figure.draw_without_rendering()
    boxes = [t.get_window_extent() for t in axes.texts if t.get_text() != "nothing lost"]
    assert len(boxes) == len(names)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    with pytest.raises(UsageError, match="an overview needs two or more networks"):
        overview_figure(build_tables(records[:1])[0])


def test_the_command_draws_what_is_chosen(tmp_path: Path):
    trio(tmp_path / "runs", full_grid=True)
    trio(tmp_path / "runs", data="cifar10")
    out = tmp_path / "curves.png"
    assert "--allow-mixed" in str(run(tmp_path / "runs", "-o", out).exception)
    result = run(tmp_path / "runs", "-d", "scenes", "-a", "crop", "-o", out, "--dpi", 50)
    assert result.exit_code == 0, result.output
    with Image.open(out) as picture:
        assert picture.size[0] == 320
    heat = ("--kind", "heatmap", "-o", tmp_path / "heat.png", "--dpi", 50)
    assert "shows one record, got 6" in str(run(tmp_path / "runs", *heat).exception)
    assert run(tmp_path / "runs", "-m", "xcit_pico_6_p4_af.scenes", *heat).exit_code == 0
    assert "unknown attack" in str(run(tmp_path / "runs", "-d", "scenes", "-a", "zoom").exception)


def test_bad_outputs_are_refused_before_anything_is_read(tmp_path: Path):
    write_record(tmp_path / "runs", "a", broken={"crop": spread(10, [1])})
    missing = run(tmp_path / "runs", "-o", tmp_path / "no" / "a.png")
    assert isinstance(missing.exception, UsageError)
    assert "there is no folder" in str(missing.exception)
    assert ".png, .pdf, .svg" in str(run("nowhere", "-o", tmp_path / "a.gif").exception)
