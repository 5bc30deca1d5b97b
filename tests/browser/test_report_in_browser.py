"""A report in real headless Chromium, from a file and without network: scripts, figures, schemes, accessibility."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import ACCURACIES, TIMES, Suite
from time_passes import time_json

from reports import write_report
from reports.data.records import page_groups, read

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (extra `test`)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

LONG = "ratio=0.12,interval=2,recipe.learning_rate_of_a_long_name=3.43,recipe.precise_bn=5000"
EVIL = "<script>alert(1)</script>"
NAME = EVIL.replace("/", "")  # a method names a folder
TIMED = {"sdgp[n=2,m=4]": 0.9123, "sdgp[n=1,m=4]": 0.8456, "prunetrain[ratio=0.2]": 0.7891, NAME: 0.6543,
         f"oneshot[{LONG}]": 0.9876}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with its report: six methods, one of them with markup as its name, and a time pass."""
    suite = Suite(tmp_path_factory.mktemp("browser"))
    suite.add_all()
    for seed in range(3):
        accuracy, time = ACCURACIES["sdgp"][seed], TIMES["sdgp"][seed]
        suite.add("sdgp", seed, accuracy=accuracy - 2.5 + seed, time=time - 40, variant="n=1,m=4")
        suite.add(NAME, seed, accuracy=accuracy - 4, time=time - 90 - seed)
        suite.add("dense", seed, accuracy=ACCURACIES["dense"][seed] - 1.5, time=250.0, epochs=3, recipe={"epochs": 3})
    suite.add("oneshot", 0, accuracy=65.5, time=380.0, variant=LONG)
    suite.add("sdgp", 3, accuracy=None, time=None, status="error", message=f"killed {EVIL}")
    made = suite.write()
    group = max(page_groups(read(made).trials)[0], key=lambda one: len(one.trials))
    (made / "time.json").write_text(
        json.dumps(time_json(dict(group.key), **{name: (ratio,) for name, ratio in TIMED.items()}))
    )
    write_report(made)
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        # Chromium's own sandbox does not start in most containers.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page with what it reported: console messages, errors, dialogs and requests."""

    def __init__(self, browser: Any, folder: Path, **options: Any) -> None:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        for event, say in (
            ("console", lambda message: f"{message.type}: {message.text}"),
            ("pageerror", lambda error: f"error: {error}"),
            ("requestfailed", lambda request: f"failed: {request.url}"),
        ):
            self.page.on(event, lambda found, say=say: self.problems.append(say(found)))
        self.page.on("dialog", self._dialog)
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto((folder / "report.html").as_uri())

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def unfold(self) -> Any:
        """Open all sections."""
        self.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        return self.page


@pytest.fixture(scope="module")
def opened(browser: Any, folder: Path) -> Iterator[Opened]:
    """Return the page with all sections open. Tests leave it as they found it."""
    found = Opened(browser, folder)
    found.unfold()
    yield found
    found.context.close()


def test_the_page_reports_nothing_and_loads_nothing(opened: Opened, folder: Path) -> None:
    assert opened.problems == []
    assert opened.requests == [(folder / "report.html").as_uri()]
    assert opened.page.locator(".figures svg:visible").count() == 6


def test_the_policy_blocks_scripts_that_are_not_the_page_s(browser: Any, folder: Path, tmp_path: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    (tmp_path / "report.html").write_text(text.replace("<main>", f"<main>{EVIL}", 1), encoding="utf-8")
    page = Opened(browser, tmp_path)
    assert any("Content Security Policy" in problem for problem in page.problems)
    assert not any("dialog" in problem for problem in page.problems)
    page.context.close()


def names(page: Any, ending: str) -> list[str]:
    cells = page.locator(f"table[id$='{ending}'] tbody tr:visible td:first-child code")
    return [" ".join(text.split()) for text in cells.all_inner_texts()]


def test_a_click_or_a_key_on_a_head_sorts_and_dense_stays_first(opened: Opened) -> None:
    page = opened.page
    before = names(page, "-results")
    head = page.locator("table[id$='-results'] th", has_text="Test accuracy")
    rows = "[...document.querySelectorAll(\"table[id$='-results'] tbody tr\")]"
    values = f"{rows}.map((row) => Number(row.cells[2].dataset.value))"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    dense, *others = page.evaluate(values)
    assert others == sorted(others)
    assert max(others) < dense
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert page.evaluate(values) == [dense, *sorted(others, reverse=True)]
    assert sorted(names(page, "-results")) == sorted(before)
    assert names(page, "-results")[0] == "dense"


def test_the_filter_hides_rows_and_says_how_many_are_left(opened: Opened) -> None:
    page = opened.page
    line = page.locator("figure:has(table[id$='-results']) .filter")
    field = line.get_by_label("Filter rows")
    field.focus()
    page.keyboard.type("SDGP m=4")
    assert sorted(names(page, "-results")) == ["sdgp[n=1,m=4]", "sdgp[n=2,m=4]"]
    assert line.get_by_role("status").inner_text() == "2 of 6 rows shown"
    field.fill("")
    assert len(names(page, "-results")) == 6
    assert line.get_by_role("status").inner_text() == ""


def test_markup_in_names_is_shown_as_text(opened: Opened) -> None:
    page = opened.page
    assert NAME in names(page, "-time")
    assert NAME in page.locator("figure[id$='-accuracy-time'] svg text").all_text_contents()
    assert f"killed {EVIL}" in page.locator("#table-problems").inner_text()
    assert opened.problems == []


def test_figures_follow_the_scheme(opened: Opened) -> None:
    page = opened.page
    colour = """() => {
      const label = document.querySelector("figure[id$='-accuracy-time'] svg text");
      return [getComputedStyle(label).fill, getComputedStyle(document.body).backgroundColor];
    }"""
    assert page.evaluate(colour) == ["rgb(27, 31, 35)", "rgb(255, 255, 255)"]
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(500)
    assert page.evaluate(colour) == ["rgb(230, 233, 236)", "rgb(20, 23, 26)"]
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(500)
    assert page.evaluate(colour) == ["rgb(27, 31, 35)", "rgb(255, 255, 255)"]


@pytest.mark.parametrize("javascript", [True, False])
def test_everything_is_printed(browser: Any, folder: Path, javascript: bool) -> None:
    found = Opened(browser, folder, java_script_enabled=javascript)
    page = found.page
    assert not page.locator("[id$='-relative']").is_visible()
    assert (page.locator(".filter, th button").count() > 0) == javascript
    page.emulate_media(media="print")
    assert page.locator("[id$='-relative']").is_visible()
    assert page.locator(".figures svg:visible").count() == 6
    assert page.pdf().startswith(b"%PDF")
    assert found.problems == []
    found.context.close()


def test_a_link_to_a_closed_section_opens_it(browser: Any, folder: Path) -> None:
    found = Opened(browser, folder)
    section = found.page.locator("#provenance")
    assert not section.locator("table").first.is_visible()
    found.page.locator("nav a[href='#provenance']").click()
    section.locator("table").first.wait_for()
    found.context.close()


@pytest.mark.parametrize("width", [500, 850, 1280])
def test_the_page_and_its_tables_fit_and_marks_stay_with_their_words(browser: Any, folder: Path, width: int) -> None:
    found = Opened(browser, folder, viewport={"width": width, "height": 900})
    page = found.unfold()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    scrolling = """(all) => [...document.querySelectorAll(all)].filter((one) => one.scrollWidth > one.clientWidth)
      .map((one) => one.querySelector("table").id)"""
    assert page.evaluate(scrolling, ".scroll" if width == 1280 else ".first .scroll") == []
    together = """() => {
      const mark = [...document.querySelectorAll("td sup")].find((one) => one.parentElement.innerText[0] === "–");
      mark.parentElement.style.cssText = "display: block; width: 0; overflow-wrap: normal";
      return mark.getBoundingClientRect().top < mark.previousElementSibling.getBoundingClientRect().bottom;
    }"""
    assert page.evaluate(together)
    assert page.locator("[id$='-time'] tr").first.locator("th").count() == 8
    found.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 500])
def test_axe_finds_nothing_serious(browser: Any, folder: Path, scheme: str, width: int) -> None:
    """With all sections open."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = Opened(browser, folder, viewport={"width": width, "height": 900}, color_scheme=scheme)
    violations = axe.Axe().run(found.unfold()).response["violations"]
    found.context.close()
    assert [one["id"] for one in violations if one["impact"] in ("serious", "critical")] == []
    assert found.problems == []
