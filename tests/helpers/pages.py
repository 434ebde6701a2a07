"""A page, read."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements of a page, its text, the cells of its tables and the words of masked texts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source, self.text = source, ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.table: list[list[str]] = []
        self.words: list[tuple[str, str]] = []
        self._in_cell, self._look = False, ""
        self.feed(source)
        self.tags = [tag for tag, _ in self.elements]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        look = given.get("class") or ""
        self._look = look if tag == "span" and look.startswith("word") else ""
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.table[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\N{NO-BREAK SPACE}", " ")
        if self._in_cell:
            self.table[-1][-1] += data
        if self._look:
            self.words.append((self._look, data))
            self._look = ""

    def attributes(self, *names: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.elements for name in names if name in attrs]
