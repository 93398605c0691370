"""The leaderboard's numbers, in every format, against records made by hand."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sample_records import make_record, spread, trio, write_record

from shiftbench.errors import RecordError, UsageError
from shiftbench.records.choose import load_records, name_grids
from shiftbench.records.record import read_records
from shiftbench.report.table import build_table, to_csv
from shiftbench.report.typeset import (
    END_MARKER,
    START_MARKER,
    latex_escape,
    to_latex,
    to_markdown,
    update_between_markers,
)
from shiftbench_cli.leaderboard import command

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = (
    "model,data,images,param_count,img_size,top1,top1_low,top1_high,consistency_integer,"
    "consistency_half,consistency_crop,adversarial_integer,adversarial_half,adversarial_crop,"
    "adversarial_bilinear,seconds,forward_passes,date"
)


def parse(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_csv_has_the_contracts_columns_and_the_records_numbers():
    record = make_record(
        "timm:a",
        broken={"crop": spread(8, [1, 1, 0, 0, 0, 0, 1])},
        consistent={"half": [True] * 7 + [False]},
    )
    text = to_csv(build_table([record]))
    assert text.splitlines()[0] == CONTRACT
    (row,) = parse(text)
    assert row["model"] == "timm:a"
    assert (row["images"], row["img_size"], row["param_count"]) == ("8", "64", "1000000")
    assert row["top1"] == "87.50"  # 7 of 8 right unshifted
    assert row["adversarial_crop"] == "62.50"  # 5 of 8 survive all six rings
    assert row["consistency_half"] == "87.50"
    assert row["date"] == "2026-01-02"
    assert row["adversarial_integer"] == row["consistency_crop"] == ""
    low, high = (
        f"{100 * x:.2f}" for x in (record.scores.accuracy.low, record.scores.accuracy.high)
    )
    assert (row["top1_low"], row["top1_high"]) == (low, high)


def test_further_attacks_and_the_search_mode_come_last_and_only_when_needed():
    camera = make_record("b", broken={"camera": spread(10, [1])}, settings={"mode": "sampled:4"})
    header = to_csv(build_table([camera])).splitlines()[0]
    assert header == f"{CONTRACT},adversarial_camera,mode"
    full = make_record("c", broken={"crop": spread(10, [1])}, settings={"mode": "full_grid"})
    assert to_csv(build_table([full])).splitlines()[0] == CONTRACT


def test_rows_are_sorted_by_a_column_with_empty_cells_last():
    records = [
        make_record("weak", broken={"crop": spread(10, [4])}, parameters=5),
        make_record("none", broken={"integer": spread(10, [0])}, parameters=7),
        make_record("strong", broken={"crop": spread(10, [1])}, parameters=6),
    ]

    def order(**options: object) -> list[str]:
        return [row.record.model.name for row in build_table(records, **options).rows]  # type: ignore[arg-type]

    assert order(sort="adversarial_crop") == ["strong", "weak", "none"]
    assert order(sort="adversarial_crop", reverse=True) == ["weak", "strong", "none"]
    assert order(sort="param_count") == ["weak", "strong", "none"]
    assert order(sort="model") == ["none", "strong", "weak"]
    with pytest.raises(UsageError, match="Did you mean 'adversarial_crop'"):
        build_table(records, sort="adversarial_crops")


def test_one_column_never_mixes_grids():
    wide = make_record("wide", broken={"crop": spread(10, [1, 1, 1, 1])})
    narrow = make_record("narrow", broken={"crop": spread(10, [1])}, max_shift=2)
    cells = {
        r.record.model.name: r.cells["adversarial_crop"] for r in build_table([wide, narrow]).rows
    }
    assert cells["narrow"] is None
    assert build_table([narrow]).radius == {"crop": 2}
    assert build_table([wide, narrow], max_shift=2).rows[1].cells["adversarial_crop"] is not None
    fine = name_grids(
        make_record("fine", broken={"integer": spread(9, [1])}, settings={"step": "1/4"})
    )
    assert list(fine.scores.adversarial) == ["integer@1/4"]
    same = make_record("same", broken={"half": spread(9, [1])}, settings={"step": "0.5"})
    assert list(name_grids(same).scores.adversarial) == ["half"]


def test_markdown_shows_intervals_marks_the_best_and_splits_data_sets(tmp_path: Path):
    trio(tmp_path, data="scenes")
    trio(tmp_path, data="cifar10")
    text = to_markdown(build_table(load_records([tmp_path])))
    assert text.index("**cifar10**") < text.index("**scenes**")
    scenes = text.split("**scenes**")[1]
    best = next(line for line in scenes.splitlines() if r"p4\_af.scenes" in line)
    assert "**90.5**<br><sub>[87.2, 93.0]</sub>" in best
    assert scenes.count("**91.0**") == 1
    table = [line for line in scenes.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "integer 6 px, half 3 px, crop 6 px, bilinear 1 px, camera 1 px" in scenes


def test_upper_bounds_are_marked_and_never_best():
    exact = make_record("exact", broken={"crop": spread(10, [1, 2])})
    loose = make_record("loose", broken={"crop": spread(10, [1])}, settings={"mode": "sampled:4"})
    assert build_table([exact, loose]).best("adversarial_crop") is None  # nothing to compare with
    table = build_table([exact, make_record("worse", broken={"crop": spread(10, [5])}), loose])
    assert table.best("adversarial_crop") == 70.0
    markdown = to_markdown(table)
    assert "≤ 90.0" in markdown
    assert "upper bound" in markdown
    assert "**≤" not in markdown
    assert r"$\le$\,90.0" in to_latex(table)
    assert parse(to_csv(table))[0]["mode"] == "sampled:4"


def test_a_score_of_other_images_than_the_row_says_its_own_n():
    record = make_record("a", broken={"crop": spread(10, [1])}, consistent={"half": [True] * 30})
    assert "n=30" in to_markdown(build_table([record]))
    assert "$n$=30" in to_latex(build_table([record]))


def test_latex_is_balanced_escaped_and_has_the_best_in_bold(tmp_path: Path):
    trio(tmp_path)
    hostile = r"50%_a&b\$#{x}~^"
    write_record(tmp_path, hostile, broken={"crop": spread(400, [60])})
    text = to_latex(build_table(load_records([tmp_path])), intervals=True)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert latex_escape(hostile) in text
    unescaped = re.sub(r"\\[&%$#_{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    columns = {line.replace(r"\&", "").count("&") for line in body if line}
    assert columns == {text.split(r"\begin{tabular}{")[1].split("}")[0].count("r")}
    assert r"\textbf{90.5} {\scriptsize [87.2, 93.0]}" in text


def test_markdown_cannot_be_broken_by_a_name():
    text = to_markdown(build_table([make_record("<img src=x>|`a`\n*b*")]))
    row = next(line for line in text.splitlines() if "img" in line)
    assert "<img" not in text
    assert row.count("|") - row.count(r"\|") == text.splitlines()[2].count("|")


def test_update_replaces_only_what_stands_between_the_markers(tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text(f"# a\n\n{START_MARKER}\nold\n{END_MARKER}\n\nend\n")
    trio(tmp_path / "runs")
    assert run(tmp_path / "runs", "--update", readme).exit_code == 0
    text = readme.read_text()
    assert text.startswith("# a\n")
    assert text.endswith(f"{END_MARKER}\n\nend\n")
    assert "old" not in text
    table = to_markdown(build_table(load_records([tmp_path / "runs"])))
    assert table.strip() in text
    assert not update_between_markers(readme, table)
    readme.write_text("nothing")
    with pytest.raises(UsageError, match="leaderboard:start"):
        update_between_markers(readme, table)


def test_the_readme_shows_the_records_of_this_repository():
    readme, runs = ROOT / "README.md", ROOT / "results" / "records"
    text = readme.read_text(encoding="utf-8")
    shown = text.split(START_MARKER)[1].split(END_MARKER)[0].strip()
    table = to_markdown(build_table(load_records([runs]))).strip()
    assert shown == table, "run `shiftbench leaderboard results/records --update README.md`"


@pytest.mark.parametrize("ending", ["csv", "md", "tex", "html"])
def test_the_ending_chooses_the_format(tmp_path: Path, ending: str):
    write_record(tmp_path / "runs", "a", broken={"crop": spread(10, [1])})
    out = tmp_path / f"board.{ending}"
    result = run(tmp_path / "runs", "-o", out)
    assert result.exit_code == 0, result.output
    starts = {"csv": "model,data", "md": "**scenes**", "tex": "% needs", "html": "<!doctype html>"}
    assert out.read_text().startswith(starts[ending])
    assert result.stdout == ""


def test_stdout_gets_the_table_or_the_format_asked_for(tmp_path: Path):
    write_record(tmp_path, "[bold]a", broken={"crop": spread(10, [1])})
    table = run(tmp_path).stdout
    assert "[bold]a" in table  # a name is never markup
    assert "90.0" in table
    assert parse(run(tmp_path, "--format", "csv").stdout)[0]["adversarial_crop"] == "90.00"


def test_mistakes_are_one_clear_sentence(tmp_path: Path):
    def error(*arguments: object) -> str:
        return str(run(*arguments).exception)

    assert "make records with `shiftbench run" in error(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no records in" in error(tmp_path / "empty")
    runs = tmp_path / "runs"
    record = write_record(runs, "a", broken={"crop": spread(10, [1])})
    assert "there is no folder" in error(runs, "-o", tmp_path / "no" / "x.csv")
    assert "cannot tell the format" in error(runs, "-o", tmp_path / "x.xlsx")
    assert "unknown column to sort by 'crop'" in error(runs, "--sort", "crop")
    assert "unknown data set" in error(runs, "-d", "scene")
    assert "unknown model" in error(runs, "-m", "b")
    assert record.folder is not None
    (record.folder / "record.json").write_text('{"schema": 99}')
    with pytest.raises(RecordError, match="newer than"):
        read_records([runs])
    (record.folder / "record.json").write_text("{")
    assert "cannot read the record" in error(runs)
