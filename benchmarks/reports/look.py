"""Show a report as a reader sees it: its size, its words, what axe finds, and the first screen as pictures.

    python -m benchmarks.reports.look DIR PICTURES

DIR has a report. PICTURES, which is made, gets the first screen at 1,280 and 500 pixels in light and dark, and what is
printed as PDF, of `brief.html` too if there is one. Needs Chromium and the extra `test`. Returns 1 if axe finds
something serious, or the page reports an error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

WIDTHS, HEIGHT = (1280, 500), 900  # pixels


def main() -> int:
    """Write the pictures, print the facts, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("pictures", type=Path, metavar="PICTURES")
    typed = parser.parse_args()
    page_file = typed.folder.resolve() / "report.html"
    typed.pictures.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    problems: list[str] = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, offline=True)
                for event in ("console", "pageerror"):
                    page.on(event, lambda found: problems.append(str(found)))
                page.goto(page_file.as_uri())
                page.screenshot(path=typed.pictures / f"{width}-{scheme}.png")
                if width == WIDTHS[-1]:
                    page.screenshot(path=typed.pictures / f"{width}-{scheme}-whole.png", full_page=True)
                page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                words = len(page.locator("main").inner_text().split())
                found = Axe().run(page).response["violations"]
                serious = [one["id"] for one in found if one["impact"] in ("serious", "critical")]
                problems.extend(f"axe: {name} ({scheme}, {width} pixels)" for name in serious)
                page.close()
        page = browser.new_page()
        for name in ("report", "brief"):
            if (typed.folder / f"{name}.html").is_file():
                page.goto(page_file.with_name(f"{name}.html").as_uri())
                page.pdf(path=typed.pictures / f"{name}.pdf", prefer_css_page_size=True)
        browser.close()
    figures = [path.stat().st_size for path in typed.folder.glob("figures/*.svg")]
    size = page_file.stat().st_size
    print(f"report.html: {size:,} bytes, {words:,} words; {len(figures)} figures: {sum(figures):,} bytes")
    print("\n".join(problems) or "axe: nothing serious; no error of the page")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
