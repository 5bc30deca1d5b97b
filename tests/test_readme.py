"""The README's table of results repeats the committed report, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "results" / "cpu-zen4-2cores" / "main-job" / "report.md"
# Columns of the README's table, by the heading that the report gives them.
COLUMNS = ("Test accuracy", "Difference to dense", "Training time (×", "Theoretical saving", "Inference FLOPs")


def cells(line):
    plain = re.sub(r"<sup>\d+</sup>", "", line).replace("\\[", "[").replace("\\]", "]")
    return [cell.strip() for cell in plain.strip().strip("|").split(" | ")]


def table(text, heading):
    """The rows of the first table whose heading line contains `heading`, by their first cell."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("|") and heading in line)
    rows = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        name, *values = cells(line)
        rows[name] = values
    return cells(lines[first])[1:], rows


def test_table_of_results_repeats_the_committed_report():
    _, quoted = table((ROOT / "README.md").read_text(encoding="utf-8"), "test accuracy (%), measured")
    heads, reported = table(REPORT.read_text(encoding="utf-8"), "Test accuracy (%)")
    assert quoted.keys() == reported.keys()
    chosen = [next(index for index, head in enumerate(heads) if head.startswith(start)) for start in COLUMNS]
    for name, values in quoted.items():
        accuracy, difference, time, theoretical, inference = (reported[name][index] for index in chosen)
        mean, *interval = (100 * (1 - float(number)) for number in re.findall(r"\d+\.\d+", inference))
        removed = f"{mean:.0f}" + (f" [{interval[1]:.0f}, {interval[0]:.0f}]" if interval else "")
        expected = [accuracy, difference, time, theoretical, removed]
        assert values == expected, name


def test_the_first_screen_shows_the_figure_of_that_report():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    (figure,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", "\n".join(lines))
    assert (ROOT / figure).is_file()
    assert Path(figure).parent.parent == REPORT.parent.relative_to(ROOT)


@pytest.mark.parametrize("document", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_of_the_documentation_lead_to_files(document):
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / "docs" / target).exists(), f"docs/{document} links to {target}"
