"""Parser for report pages, and access to their tables."""

from __future__ import annotations

import html.parser
from pathlib import Path


class Page(html.parser.HTMLParser):
    """Collects elements, tables and text of a page. Tags that are not closed in order are an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.headings: list[str] = []
        self.text = ""
        self._table = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in attrs}
        self.elements.append((tag, attributes))
        if tag in ("meta", "br", "wbr", "hr", "img", "input", "link"):
            return
        self.open.append(tag)
        if tag == "table":
            self._table = attributes["id"]
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")
        elif tag in ("h1", "h2", "h3", "h4"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if "script" in self.open or "style" in self.open:
            return
        self.text += data
        if ("td" in self.open or "th" in self.open) and "sup" not in self.open:
            self.tables[self._table][-1][-1] += data
        elif any(heading in self.open for heading in ("h1", "h2", "h3", "h4")):
            self.headings[-1] += data


def parse(path: Path) -> Page:
    """Parse a page, which must be well formed."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    return page


def table(page: Page, ending: str) -> dict[str, dict[str, str]]:
    """Return the rows of the first table whose id has this ending, as method -> head -> text."""
    rows = next(rows for name, rows in page.tables.items() if name.endswith(ending))
    heads = [" ".join(head.split()) for head in rows[0]]
    return {row[0].strip(): dict(zip(heads, row, strict=True)) for row in rows[1:]}


def by_head(row: dict[str, str], *words: str) -> str:
    """Return the only cell whose head contains all these words."""
    (text,) = [text for head, text in row.items() if all(word in head for word in words)]
    return text
