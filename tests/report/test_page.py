"""The leaderboard page: what Python sends, and what a real browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image
from sample_records import make_record, spread, trio, write_record

from shiftbench.records.choose import load_records
from shiftbench.records.record import MetricInfo, Record
from shiftbench.records.verify import save_verification
from shiftbench.report.formats.base import Report, marked
from shiftbench.report.formats.page import payload, render_page
from shiftbench.report.published import Published
from shiftbench.report.ranking import Measured
from shiftbench.report.table import STANDARD, build_tables
from shiftbench.scores import ACCURACY, ScoreName, Scores
from shiftbench.statistics import Score

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "timm:x</script><script>window.hacked=1</script><img src=x onerror=hacked=1>"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
)
PAPER = [
    Published("A paper, Table 1", "vit", "scenes", "top1", "70.4"),
    Published("A paper, Table 1", "vit", "scenes", "consistency half", "82.0"),
    Published("A paper, Table 1", "swin", "scenes", "top1", "68.4"),
    Published("A paper, Table 2", "vit", "imagenet", "top1", "60.1"),
]


def html_of(records: list[Record], published: list[Published] | None = None, **how: Any) -> str:
    return render_page(Report(build_tables(records, **how), published=published or []))


def embedded(html: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="records">(.*?)</script>', html, re.S)
    assert match is not None
    content: dict[str, Any] = json.loads(match.group(1))
    return content


def test_the_page_loads_nothing_and_a_record_cannot_end_its_script():
    tables = build_tables([make_record(HOSTILE, settings={"note": "@@STYLE@@ <!-- \u2028"})])
    html = render_page(Report(tables))
    assert html.count("</script>") == 2
    assert not re.search(r'(src|href)="', html)
    assert "http://www.w3.org/2000/svg" in html
    assert re.findall(r"https?://[^\"' ]+", html) == ["http://www.w3.org/2000/svg"]
    assert embedded(html) == json.loads(json.dumps(payload(Report(tables))))


def test_the_script_spells_no_metric():
    folder = resources.files("shiftbench.report.formats.page")
    scripts = {f.name: f.read_text() for f in folder.iterdir() if f.name.endswith(".js")}
    assert len(scripts) > 3
    names = {word for name in STANDARD for word in (name.family, name.kind, name.column) if word}
    for file, text in scripts.items():
        words = set(re.findall(r"\w+", text))
        assert not words & (names - {"accuracy"}), file  # maps are of accuracy, whatever the metric
        if file not in ("charts.js", "overview.js"):  # which round coordinates and ticks
            assert not words & {"toFixed", "toPrecision", "toLocaleString"}, file


def test_every_cell_is_what_a_table_of_its_max_shift_holds(tmp_path: Path):
    trio(tmp_path)
    write_record(tmp_path, "b", broken={"crop": spread(400, [40])}, settings={"mode": "sampled:9"})
    write_record(tmp_path, "c", broken={"crop": spread(400, [40])}, settings={"search_limit": 50})
    records = load_records([tmp_path])
    (group,) = payload(Report(build_tables(records)))["groups"]
    order = [row["model"] for row in group["rows"]]
    compared = 0
    for s in (0, 3, 6):
        (table,) = build_tables(records, max_shift=s)
        rows = sorted(table.rows, key=lambda row: order.index(row.record.model.name))
        columns = {column.name: column for column in table.columns}
        assert group["notes"][s] == table.notes()
        for column in group["columns"]:
            cells = column["cells"][s if column["curve"] else 0]
            for row, cell in zip(rows, cells, strict=True):
                expected = row.cell(columns[column["name"]])
                if not isinstance(expected, Measured):
                    assert (cell is None) == (expected is None)
                    continue
                flags = "b" * expected.best + "u" * (not expected.ranked) + "n" * expected.own_n
                text = marked(expected, expected.score.text())
                rest = [expected.score.interval(), f"{expected.score.n:,}", flags]
                assert [cell[0], *cell[2:]] == [text, *rest]
                compared += 1
    assert compared > 90


def test_ranks_follow_the_scores_among_the_ranked_and_among_the_others():
    records = [make_record(f"m{i}", broken={"crop": spread(100, [10 + 7 * i])}) for i in range(4)]
    records += [
        make_record(f"s{i}", broken={"crop": spread(100, [i])}, settings={"mode": "sampled:9"})
        for i in range(2)
    ]
    (group,) = payload(Report(build_tables(records)))["groups"]
    column = next(c for c in group["columns"] if c["curve"])
    ranks = {row["model"]: column["cells"][6][i][1] for i, row in enumerate(group["rows"])}
    assert ranks == {"m0": 3, "m1": 2, "m2": 1, "m3": 0, "s0": 1, "s1": 0}


def test_a_metric_that_no_one_here_knows_has_a_column_and_a_chart():
    toy = {ScoreName("wobble"): Score(3.25, 3.0, 3.5, 100, "px")}
    toy |= {ScoreName("drift", "far", s): Score(1.5 + s, 1.0, 9.0, 100, "") for s in range(4)}
    info = MetricInfo("toy", {}, ("wobble", "drift_far"), 100, "")
    records = [
        replace(r, scores=Scores({**r.scores, **toy}), metrics={**r.metrics, "toy": info})
        for r in (make_record("a"), make_record("b"))
    ]
    (group,) = payload(Report(build_tables(records)))["groups"]
    columns = {column["name"]: column for column in group["columns"]}
    assert columns["wobble"]["cells"][0][0] == ["3.25", 0, "[3, 3.5]", "100", "b"]
    assert columns["drift_far"]["group"] == "drift"
    assert columns["drift_far"]["curve"]["points"][0][2] == [3.5, 1.0, 9.0]
    assert not columns["drift_far"]["curve"]["percent"]


def test_a_score_without_a_word_on_how_it_was_measured_is_not_ranked():
    record = make_record()
    (group,) = payload(Report(build_tables([replace(record, metrics={})])))["groups"]
    flags = {column["name"]: column["cells"][0][0][-1] for column in group["columns"][1:3]}
    assert set(flags.values()) == {"u"}


def test_the_images_are_counted_as_they_broke(tmp_path: Path):
    radii = spread(60, [6, 3, 2, 0, 1])
    labels = [i % 3 for i in range(60)]
    record = write_record(tmp_path, broken={"crop": radii}, labels=labels)
    (group,) = payload(Report(build_tables([record])))["groups"]
    images = group["rows"][0]["detail"]["images"]
    (where,) = images["broken"]
    counts = Counter({ring: radii.count(ring) for ring in (1, 2, 4)})  # dy is the ring, dx is 0
    for i, dy in enumerate(where["axis"]):
        for j, dx in enumerate(where["axis"]):
            assert where["values"][i][j] == (counts[int(dy)] if dx == "0" and dy != "0" else 0)
    assert where["caption"] == "6 of 60 images broken by a shift"
    for label, n, (clean, crop) in images["classes"]["rows"]:
        mine = [r for r, y in zip(radii, labels, strict=True) if str(y) == label]
        assert n == str(len(mine))
        assert clean[0] == str(mine.count(0))
        assert crop[0] == str(sum(r is not None and r > 0 for r in mine))
    ((_, examples),) = images["examples"]
    assert examples[0] == ["test/00006", "0", "dy 1, dx 0 px", "1"]
    data = replace(record.data, classes=("cat", "dog", "fox"))
    (group,) = payload(Report(build_tables([replace(record, data=data)])))["groups"]
    images = group["rows"][0]["detail"]["images"]
    assert {row[0] for row in images["classes"]["rows"]} == {"cat", "dog", "fox"}
    assert images["examples"][0][1][0][1:4:2] == ["cat", "dog"]
    (margin,) = images["histograms"]
    assert sum(margin["counts"]) == 60
    assert sum(margin["counts"][: margin["zero"]]) == 6


def test_a_full_grid_shows_how_near_its_survivors_are_to_breaking(tmp_path: Path):
    record = write_record(tmp_path, broken={"crop": spread(50, [4, 6])}, full_grid=True)
    assert record.folder is not None
    worst = [-2.0] * 10 + [i / 8 for i in range(1, 41)]
    samples = record.samples().assign(crop_worst_margin=worst)
    samples.to_parquet(record.folder / "samples.parquet", index=False)
    (group,) = payload(Report(build_tables([record])))["groups"]
    _, shown = group["rows"][0]["detail"]["images"]["histograms"]
    assert shown["title"] == "crop worst margin"
    assert shown["caption"] == "10 of 50 below 0"
    edges = [float(edge) for edge in shown["edges"]]
    counts, _ = np.histogram(worst, edges)
    assert shown["counts"] == counts.tolist()
    assert edges[shown["zero"]] == 0


def test_a_wide_grid_becomes_a_small_map(tmp_path: Path):
    record = write_record(tmp_path, broken={"crop": spread(90, [1] * 60)}, max_shift=60)
    (group,) = payload(Report(build_tables([record])))["groups"]
    (where,) = group["rows"][0]["detail"]["images"]["broken"]
    assert len(where["axis"]) <= 25
    assert where["axis"][len(where["axis"]) // 2] == "0"
    assert sum(map(sum, where["values"])) == 59


def test_the_page_opens_on_imagenet_then_on_the_most_models():
    records = [make_record(f"m{i}", data=d) for i, d in enumerate(("cifar10", "scenes", "scenes"))]
    records.append(make_record("d", data="imagenet"))
    groups = payload(Report(build_tables(records)))["groups"]
    assert [group["data"] for group in groups] == ["imagenet", "scenes", "cifar10"]


def test_the_overview_holds_the_scores_of_the_table(tmp_path: Path):
    records = trio(tmp_path)
    (group,) = payload(Report(build_tables(records)))["groups"]
    assert group["overview"]["y"] == "right at every crop shift up to 6 px (%)"
    for dot in group["overview"]["dots"]:
        model = group["rows"][dot["row"]]["model"]
        (record,) = (r for r in records if r.model.name == model)
        scores = [record.scores[name] for name in (ACCURACY, ScoreName("adversarial", "crop", 6))]
        assert [dot["x"], dot["y"]] == [round(100 * score.value, 2) for score in scores]
    assert payload(Report(build_tables(records[:1])))["groups"][0]["overview"] is None


def test_published_figures_stand_in_tables_of_their_source():
    scenes, imagenet = payload(Report(build_tables([make_record()]), published=PAPER))["published"]
    assert scenes["data"] == "scenes"
    assert scenes["tables"][0]["heads"] == ["top1", "consistency half"]
    assert scenes["tables"][0]["rows"] == [["vit", "70.4", "82.0"], ["swin", "68.4", ""]]
    assert imagenet["tables"][0]["source"] == "A paper, Table 2"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    if path is None:
        pytest.skip("no Chromium on this machine: install Debian's chromium to test the page")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        yield running
        running.close()


SCENES = "scenes test, 400 images"
CIFAR = "cifar10 test, 400 images"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    trio(folder / "runs", full_grid=True)
    trio(folder / "runs", data="cifar10")
    write_record(
        folder / "runs",
        HOSTILE,
        broken={"crop": spread(400, [60, 10])},
        settings={"mode": "sampled:16"},
    )
    file = folder / "leaderboard.html"
    file.write_text(html_of(load_records([folder / "runs"]), PAPER), encoding="utf-8")
    return file


@pytest.fixture
def page(browser: Browser, page_file: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1240, "height": 900})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    opened.on("request", lambda r: problems.append(r.url) if "http" in r.url else None)
    opened.goto(page_file.as_uri())
    opened.select_option("#data", SCENES)
    opened.check("#all")
    yield opened
    context.close()
    assert problems == []


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a page of its own for some records."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def open_page(records: list[Record], **how: Any) -> Page:
        file = tmp_path / "page.html"
        file.write_text(html_of(records, **how), encoding="utf-8")
        page = context.new_page()
        page.goto(file.as_uri())
        return page

    yield open_page
    context.close()


def models(page: Page) -> list[str]:
    return page.locator("#table tbody .link").all_inner_texts()


def column(page: Page, name: str) -> list[str]:
    cells = page.locator(f'#table tbody td[data-label="{name}"]')
    return [text.split("\n")[0] for text in cells.all_inner_texts()]


def test_headers_sort_and_say_so(page: Page):
    assert column(page, "adversarial crop") == ["85.2", "82.0", "69.5", "≤ 82.5"]
    header = page.locator('th[data-column="top1"]')
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert column(page, "top1") == ["91.0", "90.0", "89.0", "85.0"]
    header.get_by_role("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert column(page, "top1") == ["85.0", "89.0", "90.0", "91.0"]
    assert page.evaluate("document.activeElement.textContent") == "top1"
    page.locator('th[data-column="model"] button').click()
    assert models(page) == sorted(models(page))


@pytest.mark.parametrize(
    ("name", "last"), [("consistency_half", "\N{EN DASH}"), ("adversarial_crop", "≤ 82.5")]
)
def test_empty_and_unranked_cells_come_last_in_both_directions(page: Page, name: str, last: str):
    button = page.locator(f'th[data-column="{name}"] button')
    for _ in range(2):
        button.click()
        assert models(page)[-1] == HOSTILE
        assert column(page, name.replace("_", " "))[-1] == last
    assert page.locator("td .unranked").all_inner_texts() == ["≤ 82.5"]


def test_the_table_opens_with_five_columns(page: Page):
    def titles() -> list[str]:
        heads = page.locator("#table th[data-column]")
        return [str(heads.nth(i).get_attribute("data-column")) for i in range(heads.count())]

    everything = titles()
    page.uncheck("#all")
    first = ["model", "top1", "consistency_crop", "adversarial_crop", "adversarial_bilinear"]
    assert titles() == first
    assert len(everything) > 10
    page.evaluate("document.querySelector('#sort').value = 'consistency_half'")
    page.locator("#sort").dispatch_event("change")
    assert set(titles()) == {*first, "consistency_half"}  # what it is sorted by is in sight


def test_the_filter_narrows_table_and_curves(page: Page):
    page.fill("#filter", "PICO af")
    assert models(page) == ["xcit_pico_6_p4_af.scenes"]
    assert page.locator("#count").inner_text() == "1 of 4 on scenes test, 400 images"
    assert page.locator('.chart[data-column="adversarial_crop"] .series').count() == 1
    page.fill("#filter", "nothing like it")
    assert models(page) == []


def test_curves_hold_the_records_and_can_be_left_out(page: Page):
    charts = page.locator(".chart")
    attacks = ["integer", "half", "crop", "bilinear", "camera"]
    names = [charts.nth(i).get_attribute("data-column") for i in range(5)]
    assert names == [f"adversarial_{attack}" for attack in attacks]
    crop = page.locator('.chart[data-column="adversarial_crop"]')
    assert crop.locator(".series").count() == 4
    assert crop.locator(".band").count() == 4
    page.get_by_label(f"Draw the curves of {HOSTILE}").uncheck()
    assert crop.locator(".series").count() == 3


def test_the_page_opens_with_a_dot_per_model(page: Page):
    dots = page.locator("#overview .dot")
    assert dots.count() == 3  # an upper bound has no place among them
    dots.first.click()
    assert page.get_by_role("dialog").is_visible()


def test_the_max_shift_changes_the_table(page: Page):
    page.locator("#shift").press("Home")
    by_model = dict(zip(models(page), column(page, "adversarial crop"), strict=True))
    assert by_model["xcit_pico_6_p4_aps.scenes"] == "89.0"  # its accuracy: no shift at all
    assert "crop 0 px" in page.locator("#notes").inner_text()


def test_values_can_be_read_by_pointer_and_by_keyboard(page: Page):
    chart = page.locator('.chart[data-column="adversarial_bilinear"] svg')
    chart.focus()
    page.keyboard.press("ArrowLeft")
    tip = page.locator("#tip")
    assert tip.locator("b").inner_text() == "bilinear, up to 1 px"
    page.keyboard.press("ArrowLeft")
    assert tip.locator("b").inner_text() == "bilinear, up to 5/6 px"
    assert "n=400" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    chart.hover()
    assert tip.is_visible()


def test_a_model_opens_with_provenance_and_heat_maps(page: Page):
    page.get_by_role("link", name="xcit_pico_6_p4_af.scenes").click()
    dialog = page.get_by_role("dialog")
    assert dialog.locator("h2").inner_text() == "xcit_pico_6_p4_af.scenes"
    assert "d" * 64 in dialog.inner_text()  # the digest of the weights
    maps = dialog.locator("section", has_text="Accuracy at each offset")
    assert maps.locator("figure").count() == 5
    assert maps.locator("figure rect").count() == 5 * 169
    cell = maps.locator("figure").nth(2).locator("rect title")
    assert "dy 0, dx 0 px: 91.0" in " ".join(cell.all_text_contents())
    page.keyboard.press("Escape")
    assert dialog.count() == 0


def test_names_from_records_stay_text(page: Page):
    assert HOSTILE in models(page)
    page.get_by_role("link", name=HOSTILE).click()
    assert "upper bounds" in page.get_by_role("dialog").inner_text()
    assert "--full-grid" in page.get_by_role("dialog").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_records_without_attacks_make_a_page_too(opened: Callable[..., Page]):
    record = make_record("plain", consistent={"half": [True] * 100})
    kept = {name: score for name, score in record.scores.items() if name.radius is None}
    page = opened([replace(record, scores=Scores(kept))])
    assert column(page, "top1") == ["90.0"]
    assert page.locator("#curves-section").is_hidden()
    assert page.locator("#shift").is_hidden()
    assert page.locator('th[data-column="model"]').get_attribute("aria-sort") == "ascending"


def test_the_theme_follows_the_system_until_it_is_chosen(page: Page):
    def becomes(theme: str) -> None:
        page.locator(f"html[data-theme={theme}]").wait_for(state="attached")

    page.emulate_media(color_scheme="dark")
    becomes("dark")
    page.emulate_media(color_scheme="light")
    becomes("light")
    page.click("#theme")
    page.emulate_media(color_scheme="dark")
    assert page.locator("#theme").inner_text() == "Theme: light"
    becomes("light")
    page.click("#theme")
    becomes("dark")


@pytest.mark.parametrize(("width", "scheme"), [(1240, "light"), (1240, "dark"), (390, "light")])
def test_the_page_fits_its_screen(page: Page, tmp_path: Path, width: int, scheme: str):
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(f"html[data-theme={scheme}]").wait_for(state="attached")
    page.screenshot(path=tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as shot:
        corner = shot.convert("L").getpixel((2, 2))
    assert isinstance(corner, int)
    assert (corner < 60) == (scheme == "dark")
    names = page.locator("#table .link")
    assert all(names.nth(i).is_visible() for i in range(names.count()))
    assert page.locator("#sort").is_visible() == (width < 720)


def test_bold_is_what_the_table_judged(page: Page, page_file: Path):
    tables = build_tables(load_records([page_file.parent / "runs"]))
    (table,) = (table for table in tables if table.label == SCENES)
    for column_ in table.measured_columns():
        cells = [(row.record.model.name, row.cell(column_)) for row in table.rows]
        best = {name for name, cell in cells if isinstance(cell, Measured) and cell.best}
        place = page.locator(f'#table tr:has(td[data-label="{column_.title}"] .best) .link')
        assert set(place.all_inner_texts()) == best


@pytest.mark.parametrize(
    "how",
    [
        {"max_shift": 2, "reverse": True},
        {"sort": "date"},  # a column that the page has only when it is asked for
        {"sort": "consistency_half"},
        {"sort": "param_count", "max_shift": 0},
    ],
    ids=str,
)
def test_the_page_opens_as_the_table_was_asked_for(
    opened: Callable[..., Page], page_file: Path, how: dict[str, Any]
):
    records = load_records([page_file.parent / "runs"])
    tables, page = build_tables(records, **how), opened(records, **how)
    for table in tables:
        page.select_option("#data", table.label)
        assert models(page) == [row.record.model.name for row in table.rows]
        header = page.locator(f'th[data-column="{table.sort}"]')
        expected = "descending" if table.descending else "ascending"
        assert header.get_attribute("aria-sort") == expected
    assert page.input_value("#shift") == str(how.get("max_shift", 6))
    (shown,) = (column for column in tables[-1].columns if column.name == "adversarial_crop")
    crop = [row.cell(shown) for row in tables[-1].rows]
    texts = [marked(cell, cell.score.text()) for cell in crop if isinstance(cell, Measured)]
    assert column(page, "adversarial crop") == texts


def test_records_of_other_conditions_are_another_table(opened: Callable[..., Page]):
    records = [make_record("a"), make_record("b"), make_record("a", settings={"precision": "bf16"})]
    page = opened(records)
    place, labels = page.url, page.locator("#data option").all_inner_texts()
    assert sorted(labels) == sorted(table.label for table in build_tables(records))
    counts = []
    for label in labels:
        page.select_option("#data", label)
        counts.append(len(models(page)))
        page.locator("#table .link").first.click()
        page.locator("#detail-title").wait_for()
        linked = page.url.replace("+", " ").replace("%2C", ",")
        assert label in linked  # the name alone is not enough
        page.keyboard.press("Escape")
        page.wait_for_url(place)
    assert sorted(counts) == [1, 2]


def test_a_model_has_a_link_that_opens_it(page: Page, page_file: Path):
    link = "#" + urlencode({"model": "xcit_pico_6_p4_af.cifar10", "data": "cifar10"})
    page.goto("about:blank")
    page.goto(page_file.as_uri() + link)
    title = page.locator("#detail-title")
    assert title.inner_text() == "xcit_pico_6_p4_af.cifar10"
    assert page.locator("#data option:checked").inner_text() == CIFAR
    page.keyboard.press("Escape")
    page.wait_for_url(page_file.as_uri())
    page.locator("#table .link").last.click()
    opened = page.url
    page.get_by_role("button", name="Close").click()
    page.wait_for_url(page_file.as_uri())
    page.goto(opened)
    title.wait_for()
    assert title.inner_text() == models(page)[-1]
    page.go_back()
    title.wait_for(state="hidden")


def test_a_link_to_a_model_that_is_gone_says_so(page: Page, page_file: Path):
    page.goto("about:blank")
    page.goto(page_file.as_uri() + "#" + urlencode({"model": "<b>gone", "data": "scenes"}))
    assert page.locator("#missing").inner_text() == "This page has no <b>gone on scenes."
    assert page.locator("dialog").is_hidden()


def test_the_detail_shows_which_images_broke_and_where(page: Page):
    page.get_by_role("link", name="xcit_pico_6_p4.scenes").click()
    dialog = page.get_by_role("dialog")
    broken = dialog.locator("section", has_text="Where images broke")
    caption = broken.locator("figcaption").nth(2)
    assert caption.inner_text() == "adversarial crop 82 of 400 images broken by a shift"
    assert "dy 1, dx 0 px: 24 images" in broken.locator("rect title").all_text_contents()
    assert dialog.locator(".classes tbody tr").count() == 10
    dialog.get_by_text("Images that the smallest shifts broke").click()
    assert "test/00040" in dialog.inner_text()
    assert dialog.locator(".bar.wrong").count() > 0


def test_published_figures_are_set_apart(page: Page):
    section = page.locator("#published")
    assert "Not measured here" in section.inner_text()
    assert section.locator("details[open] summary").all_inner_texts() == [
        "scenes, 1 published table"
    ]
    page.select_option("#data", CIFAR)
    assert section.locator("details[open]").count() == 0
    assert "vit" not in models(page)


def test_only_a_verified_record_says_so(opened: Callable[..., Page], tmp_path: Path):
    write_record(tmp_path, "plain", broken={"crop": spread(9, [1])})
    save_verification(write_record(tmp_path, "checked", broken={"crop": spread(9, [1])}), 7)
    page = opened(load_records([tmp_path]))
    assert page.locator("tr:has(.tag.good) .link").all_inner_texts() == ["checked"]
    for name, words in (("checked", "7 images re-measured"), ("plain", "not verified")):
        page.get_by_role("link", name=name).click()
        assert words in page.get_by_role("dialog").inner_text()
        page.get_by_role("button", name="Close").click()


def test_many_models_leave_room_for_their_curves(opened: Callable[..., Page]):
    broken = {a: spread(50, [5, 1, 1]) for a in ("integer", "half", "crop", "bilinear", "camera")}
    names = [f"timm:a_model_of_some_kind_{i:03d}" for i in range(60)]
    page = opened([make_record(name, broken=broken) for name in names])
    assert len(models(page)) == 60
    for part in ("#table .link >> nth=0", ".chart >> nth=0", ".chart >> nth=4"):
        box = page.locator(part).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900
    assert page.locator(".interval").first.is_hidden()
    page.check("#intervals")
    assert page.locator(".interval").first.is_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    more = page.get_by_role("button", name="Show all 60 models")
    more.wait_for()
    assert len(models(page)) == 8
    more.click()
    assert len(models(page)) == 60
