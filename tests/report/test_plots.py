"""Figures: axes, labels and series compared with the results, and their files."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import shiftbench
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sample_records import make_result, make_trio, save_result, spread

from shiftbench.errors import RecordError, UsageError
from shiftbench.figures import Look
from shiftbench.report.plots import curves_figure, heatmap_figure, overview_figure, save_figure
from shiftbench.report.scores import leaderboard, score_cells
from shiftbench.scores import ACCURACY, ScoreName, curve_of


def panels(figure: Figure) -> dict[str, Axes]:
    """Return the visible panels by attack."""
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.get_title(loc="left")]
    titles = [re.split("[:,\n]", axes.get_title(loc="left"))[0] for axes in shown]
    return dict(zip(titles, shown, strict=True))


def series(axes: Axes, model: str) -> list[float]:
    (line,) = [line for line in axes.get_lines() if line.get_gid() == model]
    return [float(y) for y in np.asarray(line.get_ydata())]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_curves_show_every_score_with_its_band(tmp_path: Path) -> None:
    results = make_trio(tmp_path)
    figure = curves_figure(results)
    found = panels(figure)
    assert list(found) == ["crop", "bilinear", "camera", "integer", "half"]
    for attack, axes in found.items():
        (bands,) = axes.collections
        for result, band in zip(results, bands.get_paths(), strict=True):
            curve = curve_of(result.scores, ScoreName("adversarial", attack))
            values = [100 * curve[s].value for s in range(7)]
            assert series(axes, result.model.name) == pytest.approx(values)
            edge = np.asarray(band.vertices)[:, 1]
            assert edge.min() == pytest.approx(100 * min(score.low for score in curve.values()))
            assert edge.max() == pytest.approx(100 * max(score.high for score in curve.values()))
    ticks = [label.get_text() for label in found["bilinear"].get_xticklabels()]
    assert ticks == ["0", "1/6", "1/3", "1/2", "2/3", "5/6", "1"]
    assert found["bilinear"].get_xlabel() == "max shift (px)"
    assert legend(figure) == [result.model.name for result in results]
    assert figure.get_suptitle() == "scenes test, 400 images; bands: 95% intervals"


def test_curves_legend_covers_no_panel(tmp_path: Path) -> None:
    figure = curves_figure(make_trio(tmp_path))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert not any(box.overlaps(axes.get_window_extent()) for axes in panels(figure).values())
    assert figure.bbox.containsx(box.x0)
    assert figure.bbox.containsx(box.x1)


def test_curve_styles_differ_without_color() -> None:
    looks = [Look.number(index) for index in range(140)]
    assert len({(look.dash, look.marker) for look in looks[:20]}) == 20
    assert len(set(looks)) == 140


def test_curves_of_other_images_or_settings_raise_unless_allowed() -> None:
    results = [make_result("a"), make_result("b", data="cifar10", digests=range(100))]
    with pytest.raises(UsageError, match=r"cannot draw a and b together: data is .*--allow-mixed"):
        curves_figure(results)
    labels = legend(curves_figure(results, allow_mixed=True))
    assert labels == ["a on scenes test, 100 images", "b on cifar10 test, 100 images"]
    few = [make_result("a"), make_result("b", attack_limit=20)]
    with pytest.raises(UsageError, match=r"images is 100 \(.*and 20 \("):
        curves_figure(few)
    assert legend(curves_figure(few, allow_mixed=True)) == ["a", "b"]


def test_curves_panel_names_the_number_of_attacked_images() -> None:
    few = make_result("a", attack_limit=24)
    assert panels(curves_figure([few]))["crop"].get_title(loc="left").endswith("\nn = 24")


def test_curves_of_many_models_have_no_bands_and_a_legend_beside() -> None:
    for count, bands in ((8, 1), (9, 0)):
        figure = curves_figure([make_result(f"model {i}") for i in range(count)])
        figure.draw_without_rendering()
        axes = panels(figure)["crop"]
        assert len(axes.collections) == bands
        beside = figure.legends[0].get_window_extent().x0 > axes.get_window_extent().x1
        assert beside == (not bands)


def test_curves_show_given_names() -> None:
    figure = curves_figure([make_result("a"), make_result("b")], names=["XCiT (ours)", "other"])
    assert legend(figure) == ["XCiT (ours)", "other"]


def test_plot_draws_a_figure_per_data_set_with_names(tmp_path: Path) -> None:
    for data in ("scenes", "cifar10"):
        save_result(tmp_path, make_result("a", data=data))
        save_result(tmp_path, make_result("b", data=data))
    ran = shiftbench(
        "plot", tmp_path, "-m", "B (ours)=b", "-m", "a", "-o", tmp_path / "x.svg", code=0
    )
    assert "curves of 2 records of cifar10" in ran.err
    assert {file.name for file in tmp_path.glob("*.svg")} == {"x-scenes.svg", "x-cifar10.svg"}


def test_plot_paper_names_the_networks_that_are_missing(tmp_path: Path) -> None:
    failures = {attack: spread(20, [1]) for attack in ("crop", "bilinear")}
    save_result(tmp_path, make_result("xcit_small_12_p16_af", data="imagenet", failures=failures))
    ran = shiftbench("plot", tmp_path, "--paper", "-o", tmp_path / "figure.png", code=0)
    assert "not measured: CvT-13=hf:microsoft/cvt-13" in ran.err
    assert (tmp_path / "figure.png").is_file()


def test_overview_states_how_many_records_were_left_out() -> None:
    results = [
        make_result("a"),
        make_result("b"),
        make_result("c", failures={"half": spread(100, [])}),
    ]
    (table,) = leaderboard(score_cells(results))
    title = overview_figure(table).axes[0].get_title(loc="left")
    assert title.endswith("; 1 without a comparable crop score left out")


def test_curves_of_missing_attacks_raise() -> None:
    with pytest.raises(UsageError, match="unknown attack in these records 'zoom'"):
        curves_figure([make_result()], attacks=["zoom"])
    with pytest.raises(RecordError, match="no record has an attack"):
        curves_figure([make_result(failures={}, consistent={"half": [1] * 9})])
    unknown = curves_figure([make_result(failures={"spiral": spread(9, [1])}, max_shift=1)])
    assert panels(unknown)["spiral"].get_xlabel() == "max shift (steps)"


def test_heatmap_puts_each_offset_in_its_cell() -> None:
    failures = {"half": spread(50, [5, 3, 4, 0, 0, 6, 1])}
    result = make_result("$a$", failures=failures, full_grid=True)
    image: Any = panels(heatmap_figure(result))["half"].get_images()[0].get_array()
    assert image.shape == (13, 13)
    for offset, score in result.accuracy_by_offset("half").items():
        row, column = round(2 * offset.dy) + 6, round(2 * offset.dx) + 6
        assert image[row, column] == pytest.approx(100 * score.value)
    assert image[6, 6] == image.max()
    with pytest.raises(UsageError, match=r"has no full grid.*--full-grid"):
        heatmap_figure(make_result("b"))
    with pytest.raises(UsageError, match="unknown full grid in this record 'crop'"):
        heatmap_figure(result, attacks=["crop"])


def test_overview_has_a_dot_and_a_readable_name_per_model() -> None:
    names = [f"tv:{family}_b{i}" for family in ("resnet", "vit") for i in range(3)]
    lost = [[5, 2], [5, 2], [9, 4], [5, 3], [6, 2], [20, 9]]  # some are equal
    results = [
        make_result(name, failures={"crop": spread(100, at)})
        for name, at in zip(names, lost, strict=True)
    ]
    figure = overview_figure(leaderboard(score_cells(results))[0])
    (axes,) = figure.axes
    assert axes.get_ylabel() == "correct at every crop shift up to 6 px (%)"
    dots = {line.get_gid(): line for line in axes.lines if line.get_gid()}
    assert set(dots) == set(names)
    assert len({dot.get_color() for dot in dots.values()}) == 2  # families
    for result in results:
        scores = (ACCURACY, ScoreName("adversarial", "crop", 6))
        position = [100 * result.scores[name].value for name in scores]
        np.testing.assert_allclose(np.ravel(dots[result.model.name].get_data()), position)
    figure.draw_without_rendering()
    boxes = [t.get_window_extent() for t in axes.texts if t.get_text() != "no accuracy lost"]
    assert len(boxes) == len(names)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    with pytest.raises(UsageError, match="expected two or more models"):
        overview_figure(leaderboard(score_cells(results[:1]))[0])


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_save_figure_by_ending_is_reproducible(tmp_path: Path, ending: str, magic: bytes) -> None:
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        save_figure(curves_figure([make_result("a")]), file, dpi=50)
    content = files[0].read_bytes()
    assert content.startswith(magic)
    assert content == files[1].read_bytes()
    assert b"/Type3" not in content  # fonts that many venues reject
    assert ending != "pdf" or b"/CIDFontType2" in content  # TrueType
    with pytest.raises(UsageError, match=r"\.png, \.pdf, \.svg"):
        save_figure(curves_figure([make_result("a")]), tmp_path / "a.gif")
