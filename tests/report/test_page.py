"""The leaderboard page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from sample_records import make_record, spread, trio, write_record

from shiftbench.records.choose import load_records
from shiftbench.report.page import payload, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "timm:x</script><script>window.hacked=1</script><img src=x onerror=hacked=1>"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
)


def embedded(html: str) -> dict[str, object]:
    match = re.search(r'<script type="application/json" id="records">(.*?)</script>', html, re.S)
    assert match is not None
    content: dict[str, object] = json.loads(match.group(1))
    return content


def test_the_page_loads_nothing_and_a_record_cannot_end_its_script():
    record = make_record(HOSTILE, settings={"note": "@@STYLE@@ <!-- \u2028"})
    html = render_page([record])
    assert html.count("</script>") == 2
    assert not re.search(r'(src|href)="', html)
    assert "http://www.w3.org/2000/svg" in html
    assert re.findall(r"https?://[^\"' ]+", html) == ["http://www.w3.org/2000/svg"]
    assert embedded(html) == json.loads(json.dumps(payload([record])))


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
    file.write_text(render_page(load_records([folder / "runs"])), encoding="utf-8")
    return file


@pytest.fixture
def page(browser: Browser, page_file: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1240, "height": 900})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    opened.on("request", lambda r: problems.append(r.url) if r.url != page_file.as_uri() else None)
    opened.goto(page_file.as_uri())
    opened.select_option("#data", "scenes")
    yield opened
    context.close()
    assert problems == []


def models(page: Page) -> list[str]:
    return page.locator("#table tbody .link").all_inner_texts()


def column(page: Page, name: str) -> list[str]:
    cells = page.locator(f'#table tbody td[data-label="{name}"]')
    return [text.split("\n")[0] for text in cells.all_inner_texts()]


def test_headers_sort_and_say_so(page: Page):
    assert column(page, "adversarial crop") == ["85.2", "≤ 82.5", "82.0", "69.5"]
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


def test_empty_cells_come_last_in_both_directions(page: Page):
    button = page.locator('th[data-column="consistency_half"] button')
    for _ in range(2):
        button.click()
        assert models(page)[-1] == HOSTILE
        assert column(page, "consistency half")[-1] == "\N{EN DASH}"


def test_the_filter_narrows_table_and_curves(page: Page):
    page.fill("#filter", "PICO af")
    assert models(page) == ["xcit_pico_6_p4_af.scenes"]
    assert page.locator("#count").inner_text() == "1 of 4 on scenes, 400 images"
    assert page.locator('.chart[data-attack="crop"] .series').count() == 1
    page.fill("#filter", "nothing like it")
    assert models(page) == []


def test_curves_hold_the_records_and_can_be_left_out(page: Page):
    charts = page.locator(".chart")
    attacks = ["integer", "half", "crop", "bilinear", "camera"]
    assert [charts.nth(i).get_attribute("data-attack") for i in range(5)] == attacks
    crop = page.locator('.chart[data-attack="crop"]')
    assert crop.locator(".series").count() == 4
    assert crop.locator(".band").count() == 4
    page.get_by_label(f"Draw the curves of {HOSTILE}").uncheck()
    assert crop.locator(".series").count() == 3


def test_the_max_shift_changes_the_table(page: Page):
    page.locator("#shift").press("Home")
    by_model = dict(zip(models(page), column(page, "adversarial crop"), strict=True))
    assert by_model["xcit_pico_6_p4_aps.scenes"] == "89.0"  # its accuracy: no shift at all
    assert "crop 0 px" in page.locator("#notes").inner_text()


def test_values_can_be_read_by_pointer_and_by_keyboard(page: Page):
    chart = page.locator('.chart[data-attack="bilinear"] svg')
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
    page.get_by_role("button", name="xcit_pico_6_p4_af.scenes").click()
    dialog = page.get_by_role("dialog")
    assert dialog.locator("h2").inner_text() == "xcit_pico_6_p4_af.scenes"
    assert "d" * 64 in dialog.inner_text()  # the digest of the weights
    assert dialog.locator(".maps figure").count() == 5
    assert dialog.locator(".maps rect").count() == 5 * 169
    cell = dialog.locator(".maps figure").nth(2).locator("rect title")
    assert "dy 0, dx 0 px: 91.0" in " ".join(cell.all_text_contents())
    page.keyboard.press("Escape")
    assert dialog.count() == 0


def test_names_from_records_stay_text(page: Page):
    assert HOSTILE in models(page)
    page.get_by_role("button", name=HOSTILE).click()
    assert "upper bounds" in page.get_by_role("dialog").inner_text()
    assert "--full-grid" in page.get_by_role("dialog").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_records_without_attacks_make_a_page_too(browser: Browser, tmp_path: Path):
    record = make_record("plain", consistent={"half": [True] * 100})
    bare = replace(record, scores=replace(record.scores, adversarial={}))
    file = tmp_path / "bare.html"
    file.write_text(render_page([bare]), encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    assert column(page, "top1") == ["90.0"]
    assert page.locator("#curves-section").is_hidden()
    assert page.locator("#shift").is_hidden()
    assert page.locator('th[data-column="top1"]').get_attribute("aria-sort") == "descending"
    page.close()


def test_another_data_set_is_another_table(page: Page):
    page.select_option("#data", "cifar10")
    assert {name.split(".")[1] for name in models(page)} == {"cifar10"}


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
