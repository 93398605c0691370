"""Text formats: equal numbers, escaped names, README markers, per-image files."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
import yaml
from sample_records import HOSTILE, make_record, make_result, make_trio, spread

from shiftbench.errors import UsageError
from shiftbench.files import write_text
from shiftbench.records.compare import compare
from shiftbench.records.folder import load_record
from shiftbench.report.formats import (
    FORMATS,
    differences_to_latex,
    to_csv,
    to_images_csv,
    to_latex,
    to_markdown,
    to_model_card,
    update_between_markers,
)
from shiftbench.report.scores import STANDARD, Table, leaderboard, score_cells
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench_cli.render import csv_text


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (table,) = leaderboard(score_cells(make_trio(tmp_path)))
    return table


def test_csv_has_every_score_in_percent(table: Table) -> None:
    rows = rows_of(to_csv([table]))
    assert list(rows[0])[:6] == ["model", "data", "images", "param_count", "img_size", "top1"]
    for row, result in zip(rows, table.rows, strict=True):
        assert row["model"] == result.model.name
        for column in table.columns:
            score = result.scores[column]
            for end, value in (("", score.value), ("_low", score.low), ("_high", score.high)):
                assert row[column.column + end] == f"{100 * value:.2f}"
    assert rows[0]["max_shift"] == table.extents()
    assert rows[0]["scores_in"] == "percent"
    assert "seconds" not in rows[0]


def test_csv_of_several_tables_has_the_same_columns_and_empty_cells(tmp_path: Path) -> None:
    results = [
        make_result("a", failures={}, consistent={"half": [1] * 100}),
        make_result("b", failures={"lanczos": spread(50, [5])}, data="other", pad="zeros"),
    ]
    second, first = rows_of(to_csv(leaderboard(score_cells(results))))  # by name of the data
    assert [second[name] for name in ("consistency_half", "adversarial_crop")] == ["", ""]
    assert first["adversarial_lanczos"] == ""
    assert second["adversarial_lanczos"] == "90.00"
    assert "pad zeros" in second["conditions"]
    assert {name.column for name in STANDARD} <= first.keys()


def test_chosen_columns_are_the_only_ones(table: Table) -> None:
    only = table.only(["param_count", "adversarial_crop"])
    (row, *_) = rows_of(to_csv([only], intervals=False))
    assert list(row) == [
        *("model", "param_count", "adversarial_crop"),
        *("conditions", "geometry", "scores_in", "max_shift"),
    ]
    head = to_markdown([only]).splitlines()[2]
    assert head == "| model | params | adversarial crop |"


def test_markdown_latex_and_csv_have_the_same_numbers(table: Table) -> None:
    cells = [
        f"{100 * result.scores[column].value:.1f}"
        for result in table.rows
        for column in table.columns
    ]
    markdown = [line for line in to_markdown([table]).splitlines() if line.startswith("| xcit")]
    bodies = [re.sub(r"<br><sub>.*?</sub>|\*\*", "", line) for line in markdown]
    found = [word.strip() for line in bodies for word in line.strip("| ").split("|")[4:]]
    assert found == cells
    latex = [line for line in to_latex([table]).splitlines() if line.startswith("xcit")]
    found = [
        re.sub(r"\\textbf\{(.*)\}", r"\1", word.removesuffix(r"\\").strip())
        for line in latex
        for word in line.split("&")[4:]
    ]
    assert found == cells
    assert "[" not in latex[0]
    assert "[" in to_latex([table], intervals=True)
    bold = {cell.value.text() for cell in table.cells.values() if cell.best}
    assert set(re.findall(r"\*\*([\d.]+)\*\*", to_markdown([table]))) == bold


def test_marks_for_other_settings_and_fewer_images() -> None:
    few = make_result("few", attack_limit=20)
    results = [make_result("a"), make_result("b"), few]
    (table,) = leaderboard(score_cells(results))
    line = next(li for li in to_markdown([table]).splitlines() if li.startswith("| few"))
    assert re.search(r"\| [\d.]+ †<br><sub>\[.*\] n=20</sub> \|", line)
    assert r"$^\dagger$ {\scriptsize n=20}" in to_latex([table])
    assert "adversarial crop: images is 20 (" in to_markdown([table]).replace("\\", "")


def test_model_card_is_valid_metadata(table: Table) -> None:
    (entry, *_) = yaml.safe_load(to_model_card([table]))["model-index"]
    (result,) = entry["results"]
    assert result["task"]["type"] == "image-classification"
    assert result["dataset"]["args"]["images"] == 400
    metrics = {metric["type"]: metric for metric in result["metrics"]}
    scores = next(row for row in table.rows if row.model.name == entry["name"]).scores
    assert metrics["accuracy"]["value"] == pytest.approx(scores[ACCURACY].value, rel=1e-3)
    crop = metrics["adversarial_crop"]
    assert crop["args"] == {
        **{"attack": "crop", "radius": 6, "step": "1", "full_grid": False},
    }
    assert "every shift up to 6 px (95% interval" in crop["name"]
    assert crop["value"] == pytest.approx(
        scores[ScoreName("adversarial", "crop", 6)].value, rel=1e-3
    )


def _plain_csv(text: str, name: str) -> None:
    rows = rows_of(text)
    assert {row["model"].removeprefix("'") for row in rows} == {name, "vit"}
    assert all(row["model"][0] not in "=+-@" for row in rows)


def _plain_markdown(text: str, name: str) -> None:
    lines = text.splitlines()
    (line,) = [li for li in lines if li.startswith("| ") and li.count("100") and "vit" not in li]
    assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", lines[2]))
    cell = line.split(" | ")[0]
    assert not re.search(r"(?<!\\)[\[\]`*#]|<", cell)


def _plain_latex(text: str, name: str) -> None:
    row = next(line for line in text.splitlines() if line.endswith(r"\\") and " 100 &" in line)
    cell = row.split(" & 100 &")[0]
    left = re.sub(r"\\text(backslash|ascii[a-z]+|less|greater|bar)\{\}", "", cell)
    assert not re.search(r"(?<!\\)[&%$#_{}~^<>]|\\[a-zA-Z]", left)


def _plain_page(text: str, name: str) -> None:
    assert text.count("</script>") == 2
    assert "<img" not in text


def _plain_card(text: str, name: str) -> None:
    assert {entry["name"] for entry in yaml.safe_load(text)["model-index"]} == {name, "vit"}


CHECKS = {
    ".csv": _plain_csv,
    ".md": _plain_markdown,
    ".tex": _plain_latex,
    ".html": _plain_page,
    ".yaml": _plain_card,
}


@pytest.mark.parametrize("ending", CHECKS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_model_name_stays_text(ending: str, kind: str) -> None:
    name = HOSTILE[kind]
    cells = score_cells([make_result(name), make_result("vit")])
    CHECKS[ending](FORMATS[ending](leaderboard(cells, sort="images")), name)


def test_every_ending_has_a_format_with_a_check() -> None:
    checked = {FORMATS[ending] for ending in CHECKS}
    assert set(FORMATS.values()) == checked


def test_images_csv_has_a_row_per_record_and_image(tmp_path: Path) -> None:
    records = [
        make_record(tmp_path, HOSTILE["formula"], failures={"crop": [0, 2, None]}),
        make_record(tmp_path, "b", failures={"half": [None, 1, None]}),
    ]
    first, *rest = rows_of(to_images_csv(records))
    assert len(rest) == 5
    assert first["model"].startswith("'=")
    assert (first["key"], first["prediction"], first["label"]) == ("test/00000", "1", "0")
    assert rest[0]["crop_failure_radius"] == "2"
    assert rest[0]["half_failure_radius"] == ""
    assert (rest[3]["half_dy"], rest[3]["half_dx"]) == ("-0.5", "-0.5")


def test_update_between_markers_replaces_only_the_table(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    write_text(path, "a\n<!-- leaderboard:start -->\nold\n<!-- leaderboard:end -->\nb\n")
    assert update_between_markers(path, "new\n\n")
    text = "a\n<!-- leaderboard:start -->\nnew\n<!-- leaderboard:end -->\nb\n"
    assert path.read_text() == text
    assert not update_between_markers(path, "new")
    with pytest.raises(UsageError, match=r"has no markers. Add the lines <!-- zoo:start -->"):
        update_between_markers(path, "new", name="zoo")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x"])
def test_csv_formula_in_any_column_is_quoted(name: str, tmp_path: Path) -> None:
    result = make_result(name, data=name, split=name)
    (row,) = rows_of(to_csv(leaderboard(score_cells([result]))))
    assert (row["model"], row["data"]) == (f"'{name}", f"'{name}")
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values())
    (first, *_) = rows_of(csv_text([{"key": name, "difference": -0.5}]))
    assert first == {"key": f"'{name}", "difference": "-0.5"}


def test_csv_states_geometry(table: Table) -> None:
    texts = {row["geometry"] for row in rows_of(to_csv([table]))}
    assert texts == {"rendered, view 64 px, margin 6 px, bicubic"}


def test_differences_to_latex_has_a_row_per_model_and_escapes_names() -> None:
    folder = Path(__file__).parents[2] / "results" / "records"
    names = ("xcit_pico_6_p8", "xcit_pico_6_p8_af", "xcit_pico_6_p8_aps")
    baseline, *models = (load_record(folder / f"{name}.scenes--scenes") for name in names)
    differences, _ = compare(baseline, models, max_shift=3)
    text = differences_to_latex(baseline, differences)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 4  # head, baseline, two models
    assert len({row.count("&") for row in rows}) == 1
    assert r"xcit\_pico\_6\_p8\_af.scenes" in rows[2]
    assert "+6.7*" in rows[2]
