"""The README's results repeat the committed reports, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

from tools import readme_tables

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "results" / "cpu-emr-2cores" / "reference" / "report.md"


def test_results_repeat_the_committed_reports():
    """After a new export, `python tools/readme_tables.py --write` updates the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme_tables.BLOCK.findall(readme)) == 2
    assert readme_tables.updated(readme) == readme


def test_a_block_has_columns_of_the_first_table_of_its_report():
    report = (
        "# Title\n\n"
        "| Method | Accuracy \\[measured\\]<sup>1</sup> | Executed training FLOPs | Gain | Inference FLOPs |\n"
        "| :--- | ---: | ---: | ---: | ---: |\n"
        "| `dense` | 86.7 | 1.00 | –<sup>3</sup> | 1.00 |\n\n| another | table |\n"
    )
    assert readme_tables.block(report) == (
        "| Method | Accuracy \\[measured\\] | Executed training FLOPs | Inference FLOPs |\n"
        "| :--- | ---: | ---: | ---: |\n"
        "| `dense` | 86.7 | 1.00 | 1.00 |\n"
    )


def test_the_first_screen_shows_the_figure_of_that_report():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    (figure,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", "\n".join(lines))
    assert (ROOT / figure).is_file()
    assert Path(figure).parent.parent == REPORT.parent.relative_to(ROOT)


def heading_anchors(path):
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGES = [path for folder in ("docs", "docs/development") for path in sorted((ROOT / folder).glob("*.md"))]


@pytest.mark.parametrize("document", [str(path.relative_to(ROOT)) for path in PAGES])
def test_links_of_the_documentation_lead_to_files(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), f"{document} links to {target}"
        if anchor:
            assert anchor in heading_anchors(path), f"{document} links to {target}#{anchor}"
