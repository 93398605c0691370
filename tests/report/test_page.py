"""The leaderboard page: its data, and its behavior in Chromium."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from sample_records import HOSTILE, make_record, make_result, make_trio, spread

from shiftbench.records.result import Result
from shiftbench.records.verify import save_verification
from shiftbench.report.page import render_page
from shiftbench.report.scores import leaderboard, score_cells

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
)


def html_of(results: list[Result]) -> str:
    return render_page(leaderboard(score_cells(results)))


def embedded(html: str) -> list[dict[str, Any]]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert match is not None
    content: list[dict[str, Any]] = json.loads(match.group(1))
    return content


def test_page_is_self_contained_and_data_cannot_end_its_script() -> None:
    html = html_of([make_result(name) for name in HOSTILE.values()])
    assert html.count("</script>") == 2
    assert re.findall(r"https?://[^\"' ]+", html.partition('id="data"')[0]) == []
    assert "default-src 'none'" in html
    assert {row[0] for row in embedded(html)[0]["rows"]} == set(HOSTILE.values())


def test_page_texts_are_those_of_the_tables(tmp_path: Path) -> None:
    """JavaScript rounds ties differently: 53.25 is 53.3 there and 53.2 in Python."""
    results = [
        *make_trio(tmp_path),
        make_record(tmp_path, "tie", failures={"crop": spread(400, [187])}),
    ]
    (table,) = leaderboard(score_cells(results))
    (group,) = embedded(render_page([table]))
    assert group["notes"] == table.notes(extents=False)
    index = {row: i for i, row in enumerate(table.rows)}
    titles = {table.title(column): column.curve for column in table.columns}
    columns = {titles[column["name"]]: column for column in group["columns"]}
    for cell in table.curves:
        radius = -1 if cell.name.radius is None else cell.name.radius
        content = columns[cell.name.curve]["cells"][str(index[cell.result])][str(radius)]
        score = cell.value
        assert content[:3] == [score.text(), score.interval(), f"{score.n:,}"]
        assert content[6:] == [int(cell.best), cell.unlike]
        assert columns[cell.name.curve]["ticks"][str(radius)] == cell.extent
    assert "53.2" in json.dumps(group)
    assert not re.search(r"value\.toFixed|toLocaleString", html_of(results))


def test_page_of_200_rows_is_small() -> None:
    many = [make_result(f"model-{i:03d}", max_shift=6) for i in range(200)]
    assert len(html_of(many)) < 300_000


def test_page_states_verification(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    save_verification(record, images=20)
    (group,) = embedded(html_of([record]))
    assert group["rows"][0][2]["verified"].startswith("n=20, 20")
    assert group["rows"][0][2]["geometry"].startswith("rendered, view 64 px, margin 6 px")
    assert group["notes"].startswith("Images: rendered, view 64 px")
    assert embedded(html_of([make_result()]))[0]["rows"][0][2]["verified"] == "no"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    trio = make_trio(folder)
    short = make_record(folder, "short", failures={"crop": spread(400, [20, 9])}, max_shift=3)
    few = make_record(folder, "few", failures={"crop": spread(400, [8])}, attack_limit=50)
    other = make_trio(folder, data="other", digests=range(400))[0]
    hostile = replace(other, model=replace(other.model, name=HOSTILE["html"]))
    path = folder / "leaderboard.html"
    path.write_text(html_of([*trio, short, few, hostile]), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    """Open the page; fail on any error of its scripts."""
    page = browser.new_page(viewport={"width": 1240, "height": 900}, color_scheme="light")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.goto(file.as_uri())
    yield page
    assert errors == []
    page.close()


def models(page: Page) -> list[str]:
    return page.locator("tbody tr .name").all_inner_texts()


def column(page: Page, title: str) -> list[str]:
    heads = page.locator("#table thead th").all_inner_texts()
    place = next(i for i, head in enumerate(heads) if head.replace("\n", " ").startswith(title))
    cells = page.locator(f"#table tbody tr > :nth-child({place + 1})")
    return [text.split("\n")[0] for text in cells.all_inner_texts()]


def test_page_opens_with_the_table_of_most_records(page: Page) -> None:
    assert page.locator("#count").inner_text() == "5 of 5 models"
    assert models(page)[-1] == "few"  # not ranked
    assert column(page, "adversarial crop")[-1].endswith("†")
    assert "3 px" in page.locator("thead").inner_text()  # the largest of all records
    assert page.locator("#notes").inner_text().startswith("Images: rendered, view 64 px")
    assert page.locator("#charts figure").count() == 5


def test_page_filter_and_sort(page: Page) -> None:
    page.fill("#filter", "XCIT af")
    assert models(page) == ["xcit_af.scenes"]
    assert page.locator("#count").inner_text() == "1 of 5 models"
    assert page.locator("#legend li").count() == 1
    page.fill("#filter", "")
    page.get_by_role("button", name="top1").click()
    values = [float(text) for text in column(page, "top1")]
    assert values == sorted(values, reverse=True)
    assert page.evaluate("document.activeElement.dataset.name") == "top1"
    page.keyboard.press("Enter")
    assert [float(text) for text in column(page, "top1")] == sorted(values)
    assert page.locator('th[aria-sort="ascending"]').count() == 1
    page.get_by_role("button", name="model", exact=True).click()
    assert models(page) == sorted(models(page))


def test_page_slider_changes_every_curve(page: Page) -> None:
    page.locator("#shift").fill("1")
    assert page.locator("#steps").inner_text() == "1 step"
    heads = page.locator("thead").inner_text()
    assert "1/2 px" in heads
    assert "1/6 px" in heads
    row = models(page).index("xcit_af.scenes")
    assert column(page, "adversarial crop")[row] == "89.5"  # 36 and 6 of 400 fail
    page.locator("#shift").fill("6")
    assert column(page, "adversarial crop")[models(page).index("short")] == "\u2013"
    page.get_by_role("button", name="Default shift").click()
    assert page.locator("#steps").inner_text() == "default"


def test_page_model_opens_with_details_and_link(page: Page, file: Path) -> None:
    page.get_by_role("button", name="xcit_af.scenes").click()
    dialog = page.get_by_role("dialog")
    assert dialog.locator("h2").inner_text() == "xcit_af.scenes"
    text = dialog.inner_text()
    assert "d" * 16 in text
    assert "pad none" in text
    assert "adversarial half 1/2 px" in text
    assert "n = 400" in text
    link = dialog.get_by_role("link").get_attribute("href")
    assert link == "#" + urlencode({"data": "scenes test, 400 images", "model": "xcit_af.scenes"})
    page.keyboard.press("Escape")
    assert dialog.count() == 0
    page.goto("about:blank")
    page.goto(f"{file.as_uri()}{link}")
    assert page.get_by_role("dialog").locator("h2").inner_text() == "xcit_af.scenes"


def test_page_other_table_with_hostile_name_stays_text(page: Page) -> None:
    page.select_option("#group", index=1)
    assert models(page) == [HOSTILE["html"]]
    page.locator(".name").click()
    assert page.get_by_role("dialog").locator("h2").inner_text() == HOSTILE["html"]
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_page_check_boxes_choose_the_curves(page: Page) -> None:
    drawn = page.locator("#charts figure").first.locator("path.curve")
    before = drawn.count()
    page.get_by_label("Draw xcit.scenes").uncheck()
    assert drawn.count() == before - 1
    title = page.locator("#charts circle title").first.text_content()
    assert title is not None
    assert re.search(r"up to 0 px: [\d.]+ \[[\d.]+, [\d.]+\], n = \d+$", title)
    page.uncheck("#intervals")
    assert page.locator("td small").first.is_hidden()


def test_page_fits_a_phone_and_follows_the_dark_mode(browser: Browser, file: Path) -> None:
    page = browser.new_page(viewport={"width": 420, "height": 860}, color_scheme="dark")
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 150
    page.locator(".name").first.click()
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 420
    page.close()
