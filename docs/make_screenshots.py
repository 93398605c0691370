"""Write screenshots of the leaderboard page: `python docs/make_screenshots.py DIR...`.

Light, dark, phone, and the details of a model. docs/guides/leaderboard.md shows `page.png`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from shiftbench.records.folder import load_records
from shiftbench.report.page import render_page
from shiftbench.report.scores import leaderboard, score_cells

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SCREENS = {  # name -> (width, height, color scheme)
    "page.png": (1240, 900, "light"),
    "page-dark.png": (1240, 900, "dark"),
    "page-phone.png": (390, 844, "light"),
}


def main() -> None:
    """Write the screenshots to docs/images, or to `--output`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path, default=[Path("results/records")])
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "images")
    arguments = parser.parse_args()
    records = load_records(arguments.records)
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "leaderboard.html"
        tables = leaderboard(score_cells(records))
        page_file.write_text(render_page(tables), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        for name, (width, height, scheme) in SCREENS.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                device_scale_factor=2 if width < 600 else 1.5,
            )
            page.goto(page_file.as_uri())
            page.screenshot(path=arguments.output / name, full_page=width > 600)
            if scheme == "light":
                page.locator("#table .name").first.click()
                page.get_by_role("dialog").wait_for()
                page.screenshot(path=arguments.output / name.replace("page", "detail"))
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
