"""How large is the page of a run, how long does it take to write, to open and to sort?

    python benchmarks/report.py runs/thousand

Needs chromium and playwright (in the `dev` extra).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

import faithscope as fs

SORT = """() => {
  const order = document.querySelector('[data-field="sort"]');
  order.value = "worst";
  const started = performance.now();
  order.dispatchEvent(new Event("input", { bubbles: true }));
  return performance.now() - started;
}"""
OPENED = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


def main() -> None:
    """Write the page of a run, open it, sort its gallery, and print what that took."""
    runs = fs.load_results(sys.argv[1])
    images = sum(result.samples.num_rows for result in runs.results.values())
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        started = time.perf_counter()
        page = runs.report(Path(folder) / "page.html")
        written = time.perf_counter() - started
        print(f"images     {images:,}")
        print(f"size       {page.stat().st_size / 1e6:.1f} MB")
        print(f"written    {written:.1f} s")
        chromium = os.environ.get("FAITHSCOPE_CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(page.as_uri())
        print(f"opened     {tab.evaluate(OPENED) / 1000:.2f} s")
        tab.locator(".gallery").first.scroll_into_view_if_needed()
        tab.locator(".tile").first.wait_for()
        print(f"sorted     {tab.evaluate(SORT):.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()
