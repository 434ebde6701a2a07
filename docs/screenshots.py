"""Take the screenshots of the report for the documentation.

    python docs/screenshots.py faithscope-demo/report.html

Needs chromium and playwright (in the `dev` extra).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).resolve().parent / "images"
TALL = 1100


def open_page(browser: Browser, address: str, **options: object) -> Page:
    """A page whose gallery is drawn, scrolled back to its top."""
    page = browser.new_page(**options)  # type: ignore[arg-type]
    page.goto(address)
    page.locator(".gallery").first.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)
    page.evaluate("scrollTo(0, 0)")
    return page


def main() -> None:
    """Write report-light, -dark, -phone, -print and -story."""
    address = Path(sys.argv[1]).resolve().as_uri()
    chromium = os.environ.get("FAITHSCOPE_CHROMIUM") or shutil.which("chromium")
    wide = {"width": 1100, "height": TALL}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        light = open_page(browser, address, viewport=wide)
        light.screenshot(path=IMAGES / "report-light.png")
        light.locator(".gallery").first.scroll_into_view_if_needed()
        light.locator(".open").nth(2).click()
        light.wait_for_timeout(500)
        light.screenshot(path=IMAGES / "report-story.png")
        dark = open_page(browser, address, viewport=wide, color_scheme="dark")
        dark.locator(".gallery").first.evaluate("node => node.scrollIntoView()")
        dark.wait_for_timeout(500)
        dark.screenshot(path=IMAGES / "report-dark.png")
        narrow = {"width": 390, "height": 2 * 390}
        phone = open_page(browser, address, viewport=narrow, device_scale_factor=2)
        phone.screenshot(path=IMAGES / "report-phone.png")
        paper = open_page(browser, address, viewport={"width": 794, "height": 1123})
        paper.emulate_media(media="print")
        paper.add_style_tag(content="body { padding: 12mm !important; }")  # the printer's margin
        paper.screenshot(path=IMAGES / "report-print.png")
        browser.close()


if __name__ == "__main__":
    main()
