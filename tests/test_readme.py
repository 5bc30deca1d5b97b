"""The README's results repeat the committed reports, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

from tools import readme_tables

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
((_, FOLDER, BLOCK, _),) = readme_tables.BLOCK.findall(TEXT)


def test_results_repeat_the_committed_reports():
    """After a new export, `python tools/readme_tables.py --write` updates the README."""
    assert readme_tables.updated(TEXT) == TEXT


def test_the_table_has_the_rows_of_the_figure_above_it():
    report = (ROOT / FOLDER / "report.md").read_text(encoding="utf-8")
    (alt,) = re.findall(r"!\[Gain over dense training at equal [^.]+\. (.*)\]\(", report)
    figure = [part.split(":")[0].replace("\\", "").removesuffix(" (no pruning)") for part in alt.split("; ")]
    typed = dict(re.findall(r"<sup>(\d+)</sup>&nbsp;`([^`]+)`", BLOCK))
    rows = re.findall(r"^\| \*?`([^`]+)`(?:<sup>(\d+)</sup>)?", BLOCK, re.MULTILINE)
    assert [typed.get(number, name) for name, number in rows] == ["dense", *figure]


def test_a_block_has_columns_of_the_first_table_of_its_report():
    report = (
        "# Title\n\n"
        "| Method | Accuracy \\[measured\\]<sup>1</sup> | Training time (× dense) | Gain over dense for this cost | "
        "At equal time | As good | Inference FLOPs |\n"
        "| :--- | ---: | ---: | ---: | :--- | :--- | ---: |\n"
        "| `dense` | 88 | 1.00 | – | – | – | 1.00 |\n"
        "| `sdgp` | 86.7 | 0.90 \\[0.89, 0.91\\] | −4<sup>3</sup> | worse | no | 1.00 |\n"
        "| · dense for this cost | 88.1 | 0.90 |  |  |  |  |\n"
        "| `sdgp[n=1,mode=a]` (no pruning) | 81.7 | – | – | too few seeds | too few seeds | 1.00 |\n"
        "| `dense[repeat=2]` | 88 | – | – | –<sup>4</sup> | – | 1.00 |\n\n| another | table |\n"
    )
    assert readme_tables.block(report) == (
        "| Method | Accuracy \\[measured\\] | Time (×&nbsp;dense) | Gain at equal time | Verdict | Inference FLOPs |\n"
        "| :--- | ---: | ---: | ---: | :--- | ---: |\n"
        "| `dense` | 88 | 1.00 | – | – | 1.00 |\n"
        "| `sdgp` | 86.7 | 0.90 \\[0.89,&nbsp;0.91\\] | −4 | worse | 1.00 |\n"
        "| *`sdgp n=1 mode=a`<sup>1</sup>* | *81.7* | *–* | *–* | *too few seeds* | *1.00* |\n\n"
        "In italics: ways without pruning, which reports mark with `(no pruning)`.\n\n"
        "<details><summary>Names as typed</summary>\n\n<sup>1</sup>&nbsp;`sdgp[n=1,mode=a]`\n\n</details>\n"
    )


def test_a_block_has_the_cheapest_way_to_each_accuracy():
    report = (
        "**What an accuracy costs.** Take there the first way.\n\n"
        "| Accuracy of at least (%) | Lowest cost (× dense) | Reached by | The ways that reach it, cheapest first |\n"
        "| ---: | ---: | :--- | :--- |\n"
        "| 85 | 0.43 | 6 of 7 ways | `small[n=1]` (no pruning): 0.43, preliminary; `a[n=1]`: 0.5; "
        "`dense`, 6 epochs: 0.6; `dense`, 7 epochs: 0.7; 2 more |\n"
        "| 86 | 0.7 | 2 of 7 ways | `dense`, 7 epochs: 0.7; `dense`, 9 epochs: 1.00 |\n"
        "| 99 | – | 0 of 7 ways | none |\n\n"
        "| Method |\n"
    )
    assert readme_tables.prices(report.splitlines(), {"small[n=1]": "small"}) == [
        "**What an accuracy costs**: the cheapest of 7 ways, rows above with a cost and shorter dense trainings "
        "([how to read it](docs/verdict.md#what-an-accuracy-costs)).",
        "| Accuracy of at least (%) | Lowest cost (×&nbsp;dense) | Cheapest way |\n"
        "| ---: | ---: | :--- |\n"
        "| 85 | 0.43 | *`small`*, preliminary; `dense`, 6 epochs: 0.6 |\n"
        "| 86 | 0.7 | `dense`, 7 epochs |\n"
        "| 99 | – | none |",
    ]


def test_the_first_screen_shows_the_figure_of_that_report():
    (figure,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", "\n".join(TEXT.splitlines()[:30]))
    assert (ROOT / figure).is_file()
    assert Path(figure).parent.parent == Path(FOLDER)


PAGES = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "results" / "README.md")


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = (heading.replace("`", "").lower() for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page} links to {target}#{anchor}"
