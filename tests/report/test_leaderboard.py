"""The leaderboard's numbers, in every format, against records made by hand."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sample_records import make_record, spread, trio, write_record

from shiftbench.errors import RecordError, UsageError
from shiftbench.records.choose import filter_by_model, load_records
from shiftbench.records.record import MetricInfo, Record, read_records
from shiftbench.report.formats.comma_separated import to_csv
from shiftbench.report.formats.latex import latex_escape, to_latex
from shiftbench.report.formats.markdown import (
    END_MARKER,
    START_MARKER,
    to_markdown,
    update_between_markers,
)
from shiftbench.report.ranking import Measured
from shiftbench.report.table import Table, build_tables
from shiftbench.scores import ACCURACY, ScoreName, Scores
from shiftbench.statistics import compare_paired, mean_score
from shiftbench_cli.leaderboard import command

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = (
    "model,data,images,param_count,img_size,top1,consistency_integer,consistency_half,"
    "consistency_crop,adversarial_integer,adversarial_half,adversarial_crop,adversarial_bilinear,"
    "seconds,forward_passes,date"
)
ABOUT = "scores_in,max_shift"


def parse(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def only(records: Sequence[Record], **options: Any) -> Table:
    (table,) = build_tables(records, **options)
    return table


def cells(table: Table, column: str) -> dict[str, Measured]:
    """The cells of a column that hold a score, by model, in the order of the rows."""
    shown = next(one for one in table.columns if one.name == column)
    by_model = {row.record.model.name: row.cell(shown) for row in table.rows}
    return {name: cell for name, cell in by_model.items() if isinstance(cell, Measured)}


def bold(table: Table, column: str) -> set[str]:
    return {name for name, cell in cells(table, column).items() if cell.best}


def test_csv_has_the_contracts_columns_and_the_records_numbers():
    record = make_record(
        "timm:a",
        broken={"crop": spread(8, [1, 1, 0, 0, 0, 0, 1])},
        consistent={"half": [True] * 7 + [False]},
    )
    text = to_csv(build_tables([record]))
    assert to_csv(build_tables([record]), intervals=False).startswith(f"{CONTRACT},{ABOUT}\n")
    (row,) = parse(text)
    assert row["model"] == "timm:a"
    assert (row["images"], row["img_size"], row["param_count"]) == ("8", "64", "1000000")
    assert row["top1"] == "87.50"  # 7 of 8 right on the clean image
    assert row["adversarial_crop"] == "62.50"  # 5 of 8 survive all six rings
    assert row["consistency_half"] == "87.50"
    assert row["date"] == "2026-01-02"
    assert row["adversarial_integer"] == row["consistency_crop"] == ""
    assert (row["scores_in"], row["max_shift"]) == ("percent", "crop 6 px")
    for name in (ACCURACY, ScoreName("consistency", "half"), ScoreName("adversarial", "crop", 6)):
        score = record.scores[name]
        expected = [f"{100 * x:.2f}" for x in (score.value, score.low, score.high)]
        assert [row[f"{name.column}{end}"] for end in ("", "_low", "_high")] == expected


def test_further_attacks_and_the_search_mode_come_last_and_only_when_needed():
    camera = make_record("b", broken={"camera": spread(10, [1])}, settings={"mode": "sampled:4"})
    header = to_csv(build_tables([camera]), intervals=False).splitlines()[0]
    assert header == f"{CONTRACT},adversarial_camera,mode,{ABOUT}"
    full = make_record("c", broken={"crop": spread(10, [1])}, settings={"mode": "full_grid"})
    header = to_csv(build_tables([full]), intervals=False).splitlines()[0]
    assert header == f"{CONTRACT},{ABOUT}"


def test_rows_are_sorted_by_a_column_with_empty_cells_last():
    records = [
        make_record("weak", broken={"crop": spread(10, [4])}, parameters=5),
        make_record("none", broken={"integer": spread(10, [0])}, parameters=7),
        make_record("strong", broken={"crop": spread(10, [1])}, parameters=6),
    ]

    def order(**options: object) -> list[str]:
        return [row.record.model.name for row in only(records, **options).rows]

    assert order(sort="adversarial_crop") == ["strong", "weak", "none"]
    assert order(sort="adversarial_crop", reverse=True) == ["weak", "strong", "none"]
    assert order(sort="param_count") == ["weak", "strong", "none"]
    assert order(sort="model") == ["none", "strong", "weak"]
    with pytest.raises(UsageError, match="Did you mean 'adversarial_crop'"):
        build_tables(records, sort="adversarial_crops")


def test_one_column_never_mixes_grids():
    wide = make_record("wide", broken={"crop": spread(10, [1, 1, 1, 1])})
    narrow = make_record("narrow", broken={"crop": spread(10, [1])}, max_shift=2)
    assert set(cells(only([wide, narrow]), "adversarial_crop")) == {"wide"}
    (column,) = [c for c in only([narrow]).columns if c.name == "adversarial_crop"]
    assert column.reach == "2 px"
    notes = only([wide, narrow]).notes()
    assert "1 of 2 models were not searched up to 6 px; --max-shift 2 shows all." in notes
    at_2 = cells(only([wide, narrow], max_shift=2), "adversarial_crop")
    assert {name: cell.score.value for name, cell in at_2.items()} == {"narrow": 0.9, "wide": 0.7}
    with pytest.raises(UsageError, match="reach a max shift of 6, got 7"):
        build_tables([wide, narrow], max_shift=7)
    fine = make_record("fine", broken={"integer": spread(9, [1])}, settings={"step": "1/4"})
    same = make_record("same", broken={"half": spread(9, [1])}, settings={"step": "0.5"})
    table = only([fine, same])
    assert set(cells(table, "adversarial_integer[1/4]")) == {"fine"}
    assert set(cells(table, "adversarial_half")) == {"same"}
    tables = build_tables([wide, replace(narrow, data=replace(narrow.data, name="cifar10"))])
    assert [len(cells(table, "adversarial_crop")) for table in tables] == [1, 1]
    assert [row["max_shift"] for row in parse(to_csv(tables))] == ["crop 2 px", "crop 6 px"]


def test_other_conditions_are_another_table_and_never_win():
    plain = make_record("plain", broken={"crop": spread(10, [2])})
    settings = {"precision": "bf16"}
    other = make_record("other", broken={"crop": spread(10, [])}, settings=settings)
    tables = build_tables([other, plain])
    assert [len(table.rows) for table in tables] == [1, 1]
    assert not any(bold(table, "adversarial_crop") for table in tables)
    for text in (to_markdown(tables), to_latex(tables)):
        assert "precision bf16" in text
        assert "textbf" not in text
        assert "**100.0**" not in text
    assert ["bf16" in row["conditions"] for row in parse(to_csv(tables))].count(True) == 1


def test_curves_of_other_searched_images_are_not_ranked(tmp_path: Path):
    """Seeds of --search-limit: as many images, but others."""
    for name, seed, lost in (("a", 0, 3), ("b", 0, 2), ("lucky", 2, 0)):
        write_record(
            tmp_path,
            name,
            broken={"crop": spread(30, [lost])},
            settings={"search_limit": 6, "seed": seed},
        )
    table = only(read_records([tmp_path]))
    by_model = cells(table, "adversarial_crop")
    assert list(by_model) == ["b", "a", "lucky"]  # 4 of 6, 3 of 6, and 6 of 6 others
    assert [cell.ranked for cell in by_model.values()] == [True, True, False]
    assert not by_model["lucky"].best
    assert "100.0 †" in to_markdown([table])
    assert "not measured like the others" in to_markdown([table])
    assert cells(table, "top1")["lucky"].ranked  # on the clean image, all have the same images


def test_markdown_shows_intervals_marks_the_best_and_splits_data_sets(tmp_path: Path):
    trio(tmp_path, data="scenes")
    trio(tmp_path, data="cifar10")
    text = to_markdown(build_tables(load_records([tmp_path])))
    assert text.index("**cifar10 test, 400 images**") < text.index("**scenes test, 400 images**")
    scenes = text.split("**scenes test")[1]
    best = next(line for line in scenes.splitlines() if r"p4\_af.scenes" in line)
    assert "**90.5**<br><sub>[87.2, 93.0]</sub>" in best
    table = [line for line in scenes.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "integer 6 px, half 3 px, crop 6 px, bilinear 1 px, camera 1 px" in scenes


def test_upper_bounds_are_marked_never_best_and_sorted_after_exact_scores():
    exact = make_record("exact", broken={"crop": spread(100, [10, 20])})
    loose = make_record("loose", broken={"crop": spread(100, [10])}, settings={"mode": "sampled:4"})
    assert not bold(only([exact, loose]), "adversarial_crop")  # nothing to compare with
    worse = make_record("worse", broken={"crop": spread(100, [50])})
    for reverse, order in ((False, ["exact", "worse"]), (True, ["worse", "exact"])):
        table = only([loose, exact, worse], reverse=reverse)
        assert list(cells(table, "adversarial_crop")) == [*order, "loose"]
    assert bold(table, "adversarial_crop") == {"exact"}
    markdown = to_markdown([table])
    assert "≤ 90.0" in markdown
    assert "upper bound" in markdown
    assert "**≤" not in markdown
    assert r"$\le$\,90.0" in to_latex([table])
    assert {row["model"]: row["mode"] for row in parse(to_csv([table]))}["loose"] == "sampled:4"


def test_bold_is_the_best_and_whatever_a_paired_test_cannot_tell_from_it(tmp_path: Path):
    """100 against 99.9 percent is chance on a thousand images; 98 percent is not."""
    lost = {"best": [], "chance": [1], "clear": [20]}
    records = [
        write_record(tmp_path, name, broken={"crop": spread(1000, at)}) for name, at in lost.items()
    ]
    table = only(records)
    assert bold(table, "adversarial_crop") == bold(table, "top1") == {"best", "chance"}
    markdown, latex = to_markdown([table]), to_latex([table])
    for text, marks in ((markdown, "**{}**"), (latex, r"\textbf{{{}}}")):
        assert text.count(marks.format("100.0")) == text.count(marks.format("99.9")) == 2
        assert marks.format("98.0") not in text
    assert "Bold: best, or not significantly different from it (paired test, 5%)." in markdown
    starred = run(tmp_path).stdout  # a file has no bold
    assert "99.9*" in starred
    assert "98.0*" not in starred


def test_bold_follows_the_images_and_not_the_intervals(tmp_path: Path):
    """Intervals that overlap widely, and yet every image that differs speaks for one model."""
    for name, at in (("a", [30]), ("b", [38])):
        write_record(tmp_path, name, broken={"crop": spread(100, at)})
    mistakes = [(i + 30) % 100 for i in range(100)]  # as many as b, on other images
    broken = [0 if i < 38 else None for i in mistakes]
    write_record(tmp_path, "elsewhere", broken={"crop": broken})
    records = {record.model.name: record for record in read_records([tmp_path])}
    table = only(list(records.values()))
    scores = {name: cell.score for name, cell in cells(table, "adversarial_crop").items()}
    assert scores["b"] == scores["elsewhere"]
    assert scores["b"].high > scores["a"].low
    name = ScoreName("adversarial", "crop", 6)
    outcomes = {n: r.outcomes()[name] for n, r in records.items()}
    assert compare_paired(outcomes["a"], outcomes["b"]).is_significant
    assert not compare_paired(outcomes["a"], outcomes["elsewhere"]).is_significant
    assert bold(table, "adversarial_crop") == {"a", "elsewhere"}


def test_without_the_images_only_equal_scores_are_tied():
    records = [make_record(n, broken={"crop": spread(50, [k])}) for n, k in (("a", 0), ("b", 1))]
    assert bold(only(records), "adversarial_crop") == {"a"}


def with_jitter(name: str, values: Sequence[float], kind: str, unit: str) -> Record:
    """A record that also has a score of which less is better."""
    record = make_record(name, broken={"crop": spread(len(values), [1])})
    base = record.metrics["accuracy"]
    info = MetricInfo("jitter", {}, (f"jitter_{kind}",), base.images, base.digest)
    return replace(
        record,
        metrics={**record.metrics, "jitter": info},
        scores=Scores({**record.scores, ScoreName("jitter", kind): mean_score(values, unit=unit)}),
    )


def jittery(kind: str, unit: str) -> list[Record]:
    values = {"shaky": [2.0, 3.0, 4.0], "steady": [0.1, 0.2, 0.3]}
    return [with_jitter(name, some, kind, unit) for name, some in values.items()]


def test_where_less_is_better_the_lowest_wins_and_comes_first():
    table = only(jittery("probability", "variance"), sort="jitter_probability")
    assert list(cells(table, "jitter_probability")) == ["steady", "shaky"]
    assert bold(table, "jitter_probability") == {"steady"}
    markdown = to_markdown([table])
    assert "jitter probability ↓" in markdown
    assert "lower is better" in markdown
    assert r"probability $\downarrow$" in to_latex([table])
    rows = parse(to_csv([table]))
    assert [row["jitter_probability"] for row in rows] == ["0.2", "3"]
    assert rows[0]["jitter_probability_low"] == ""  # three images have no interval
    assert rows[0]["scores_in"] == "percent; jitter_probability in variance"


def test_scores_counted_in_logits_are_shown_and_have_no_best():
    """The same network with its logits times 0.1 would win."""
    table = only(jittery("logit", "squared logits"))
    assert len(cells(table, "jitter_logit")) == 2
    assert bold(table, "jitter_logit") == set()
    assert "jitter logit ↓: not ranked, a network may scale its logits." in table.notes()


def test_consistency_over_other_spans_is_not_ranked():
    """A view of twice the size draws shifts of twice the size."""

    def consistent(name: str, agreed: int, span: int) -> Record:
        record = make_record(name, consistent={"integer": [True] * agreed + [False] * 9})
        kind = "consistency_integer"
        info = record.metrics[kind]
        other = replace(info, settings={**info.settings, "span": span})
        return replace(record, metrics={**record.metrics, kind: other})

    records = [consistent("a", 91, 15), consistent("b", 91, 15), consistent("near", 91, 7)]
    ranked = {name: c.ranked for name, c in cells(only(records), "consistency_integer").items()}
    assert ranked == {"a": True, "b": True, "near": False}
    assert "91.0 †" in to_markdown([only(records)])


def test_a_score_of_other_images_than_the_row_says_its_own_n(tmp_path: Path):
    record = make_record(broken={"crop": spread(30, [1])}, settings={"search_limit": 10})
    assert "n=10" in to_markdown(build_tables([record]))
    assert "$n$=10" in to_latex(build_tables([record]))


def test_latex_is_balanced_escaped_and_has_the_best_in_bold(tmp_path: Path):
    trio(tmp_path)
    hostile = r"50%_a&b\$#{x}~^"
    write_record(tmp_path, hostile, broken={"crop": spread(400, [60])})
    text = to_latex(build_tables(load_records([tmp_path])), intervals=True)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert latex_escape(hostile) in text
    unescaped = re.sub(r"\\[&%$#_{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    columns = {line.replace(r"\&", "").count("&") for line in body if line}
    assert columns == {text.split(r"\begin{tabular}{")[1].split("}")[0].count("r")}
    assert r"\textbf{90.5} {\scriptsize [87.2, 93.0]}" in text


def test_markdown_cannot_be_broken_by_a_name():
    text = to_markdown(build_tables([make_record("<img src=x>|`a`\n*b*")]))
    row = next(line for line in text.splitlines() if "img" in line)
    assert "<img" not in text
    assert row.count("|") - row.count(r"\|") == text.splitlines()[2].count("|")


def test_update_replaces_only_what_stands_between_the_markers(tmp_path: Path):
    readme = tmp_path / "README.md"
    readme.write_text(f"# a\n\n{START_MARKER}\nstale\n{END_MARKER}\n\nend\n")
    trio(tmp_path / "runs")
    assert run(tmp_path / "runs", "--update", readme).exit_code == 0
    text = readme.read_text()
    assert text.startswith("# a\n")
    assert text.endswith(f"{END_MARKER}\n\nend\n")
    assert "stale" not in text
    table = to_markdown(build_tables(load_records([tmp_path / "runs"])))
    assert table.strip() in text
    assert not update_between_markers(readme, table)
    readme.write_text("nothing")
    with pytest.raises(UsageError, match="leaderboard:start"):
        update_between_markers(readme, table)


def test_the_board_is_made_from_the_records_of_this_repository():
    records = load_records([ROOT / "results" / "records"])
    tables = build_tables(records)
    chosen = build_tables(filter_by_model(records, ["xcit*.imagenette", "*.scenes"]))
    front = [table.only(["top1", "adversarial_crop", "adversarial_half"]) for table in chosen]
    for place, expected in (("README.md", front), ("results/README.md", tables)):
        text = (ROOT / place).read_text(encoding="utf-8")
        shown = text.split(START_MARKER)[1].split(END_MARKER)[0].strip()
        assert shown == to_markdown(expected).strip(), "run `make leaderboard`"
    kept = (ROOT / "results" / "leaderboard.csv").read_text(encoding="utf-8")
    assert kept == to_csv(tables), "run `make leaderboard`"


def test_columns_are_chosen_and_the_model_is_always_there(tmp_path: Path):
    trio(tmp_path / "runs")
    chosen = ["--columns", "adversarial_crop, top1"]
    lines = run(tmp_path / "runs", *chosen, "--format", "markdown").stdout.splitlines()
    assert lines[2] == "| model | adversarial crop | top1 |"
    latex = run(tmp_path / "runs", *chosen, "--format", "latex").stdout
    assert r"\begin{tabular}{lrr}" in latex
    table = run(tmp_path / "runs", *chosen, "--format", "csv").stdout
    assert table.split(",")[:5:4] == ["model", "top1"]  # with the ends of each interval
    wrong = run(tmp_path / "runs", "--columns", "crop").exception
    assert "unknown column 'crop'" in str(wrong)
    page = run(tmp_path / "runs", *chosen, "--format", "html").exception
    assert "leave --columns out" in str(page)


@pytest.mark.parametrize("ending", ["csv", "md", "tex", "html"])
def test_the_ending_chooses_the_format(tmp_path: Path, ending: str):
    write_record(tmp_path / "runs", "a", broken={"crop": spread(10, [1])})
    out = tmp_path / f"board.{ending}"
    result = run(tmp_path / "runs", "-o", out)
    assert result.exit_code == 0, result.output
    starts = {
        "csv": "model,data",
        "md": "**scenes test, 10 images**",
        "tex": "% needs",
        "html": "<!doctype html>",
    }
    assert out.read_text().startswith(starts[ending])
    assert result.stdout == ""


def test_stdout_gets_the_table_or_the_format_asked_for(tmp_path: Path):
    write_record(tmp_path, "[bold]a", broken={"crop": spread(10, [1])})
    table = run(tmp_path).stdout
    assert "[bold]a" in table  # a name is never markup
    assert "90.0" in table
    assert parse(run(tmp_path, "--format", "csv").stdout)[0]["adversarial_crop"] == "90.00"


def test_the_command_obeys_the_order_and_the_max_shift(tmp_path: Path):
    for name, at in (("good", [0, 0, 0, 6]), ("bad", [0, 2, 0, 0])):
        write_record(tmp_path, name, broken={"crop": spread(10, at)})

    def shown(*options: object) -> list[tuple[str, str]]:
        rows = parse(run(tmp_path, "--format", "csv", *options).stdout)
        return [(row["model"], row["adversarial_crop"]) for row in rows]

    assert shown() == [("bad", "80.00"), ("good", "40.00")]
    assert shown("--max-shift", 2) == [("good", "100.00"), ("bad", "80.00")]
    assert shown("--max-shift", 2, "--reverse") == [("bad", "80.00"), ("good", "100.00")]
    assert shown("--sort", "model", "--reverse") == [("good", "40.00"), ("bad", "80.00")]


def test_models_are_chosen_by_name_and_by_pattern(tmp_path: Path):
    for name in ("net", "net+aps", "other", "a[b]"):
        write_record(tmp_path, name, broken={"crop": spread(10, [1])})

    def models(*names: str) -> list[str]:
        options = [word for name in names for word in ("-m", name)]
        rows = parse(run(tmp_path, *options, "--format", "csv").stdout)
        return sorted(row["model"] for row in rows)

    assert models("net") == ["net"]
    assert models("net*", "net") == ["net", "net+aps"]
    assert models("a[b]", "oth?r") == ["a[b]", "other"]


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
    assert "unknown model" in error(runs, "-m", "b*")
    assert record.folder is not None
    (record.folder / "record.json").write_text('{"schema": 99}')
    with pytest.raises(RecordError, match="upgrade shiftbench"):
        load_records([runs])
    assert "no records in" in error(runs)


@pytest.mark.parametrize("content", ["{", '{"schema": 99}', '{"schema": 2}', "[]"])
def test_one_bad_record_is_named_and_left_out(tmp_path: Path, content: str):
    for name in ("good", "bad"):
        record = write_record(tmp_path, name, broken={"crop": spread(10, [1])})
        assert record.folder is not None
    (record.folder / "record.json").write_text(content)
    result = run(tmp_path, "--format", "csv")
    assert result.exit_code == 0
    assert [row["model"] for row in parse(result.stdout)] == ["good"]
    assert "left out:" in result.stderr
    assert str(record.folder) in " ".join(result.stderr.split())


def test_the_page_sets_the_papers_apart_wherever_it_is_made(tmp_path: Path):
    write_record(tmp_path / "runs", "a", broken={"crop": spread(10, [1])})
    out = tmp_path / "board.html"
    assert run(tmp_path / "runs", "-o", out).exit_code == 0
    assert '"published":[{"data":"imagenet","tables":[{"source":"Alias-Free ViT' in out.read_text()
    (tmp_path / "empty").mkdir()
    failed = run(tmp_path / "runs", "-o", out, "--paper", tmp_path / "empty")
    assert "no published figures in" in str(failed.exception)
