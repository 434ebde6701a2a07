"""One table for every place where it is shown: Markdown, LaTeX, CSV, HTML and the terminal.

A name is written so that it stands there as it is and does nothing, whatever is in it.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from faithscope.errors import printable
from faithscope.markup import breakable, keep_together, tag

Row = Mapping[str, Any]

NAN = float("nan")
UNWRAPPED = 1000
"""Columns of what is not a terminal: enough that no line is broken."""
SIGNS = {"better": "*", "worse": "†"}
"""What a verdict is in Markdown, in LaTeX and in a terminal."""
MARKS = {"better": "▲ better", "worse": "▼ worse", "same": "○ not significant"}
"""What it is on a page."""
WORDS = {
    "better": "better than {}",
    "worse": "worse than {}",
    "same": "no significant difference from {}",
}
STYLES = {"better": "green", "worse": "red"}


@dataclass(frozen=True)
class Form:
    """How a number and the ends of its interval are written."""

    digits: int = 3
    scale: float = 1.0
    unit: str = ""
    is_signed: bool = False
    by_distance: bool = False
    """Whether ends are written as distances to the number, as in the paper on ROAR."""

    def write(self, value: float) -> str:
        """One number.

        >>> Form().write(-0.1234), PERCENT.write(-0.0)
        ('-0.123', '0.0 %')
        """
        sign = "+" if self.is_signed else ""
        if not self.by_distance:
            return f"{self.scale * value:{sign}.{self.digits}f}{self.unit}"
        return f"{self.scale * value:{sign}z.{self.digits}f}{self.unit}".replace("-", "−")

    def distances(self, number: Number) -> list[str]:
        """How far above and below a number its interval ends."""
        return [
            f"{self.scale * abs(end - number.value):z.{self.digits}f}"
            for end in (number.high, number.low)
        ]


SCORE, DIFFERENCE = Form(), Form(is_signed=True)
PERCENT = Form(digits=1, scale=100, unit=" %", by_distance=True)


@dataclass(frozen=True)
class Number:
    """A number, its interval where it has one, and what a test says of it."""

    value: float
    low: float = NAN
    high: float = NAN
    form: Form = SCORE
    verdict: str = ""
    against: str = ""
    """What it was tested against."""
    test: str = ""
    """More of the test, for those who point at the verdict."""
    flagged: int = 0
    is_best: bool = False

    @classmethod
    def of(cls, row: Row, value: str = "mean", *, prefix: str = "", **more: Any) -> Number:
        """A number of a row with its interval, `ci_low` and `ci_high`."""
        names = (f"{prefix}{name}" for name in (value, "ci_low", "ci_high"))
        number, low, high = (row[name] for name in names)
        return cls(number, low, high, **more)

    @property
    def is_known(self) -> bool:
        """Whether there is a number at all."""
        return not math.isnan(self.value)

    @property
    def sign(self) -> str:
        """The sign of its verdict."""
        return SIGNS.get(self.verdict, "")

    def interval(self, form: str = "[{}, {}]") -> str:
        """Its interval; "" if it has none."""
        if math.isnan(self.low) or not self.is_known:
            return ""
        if self.form.by_distance:
            return "+{} −{}".format(*self.form.distances(self))
        return form.format(self.form.write(self.low), self.form.write(self.high))

    def __str__(self) -> str:
        if not self.is_known:
            return "—"
        return " ".join(filter(None, (self.form.write(self.value), self.interval(), self.sign)))

    def lines(self, shape: str) -> list[str]:
        """What stands in a terminal: in one line, or the interval below; narrow with few digits."""
        if not self.is_known:
            return ["—  "]
        number, mark = self.form.write(self.value), f" {self.sign or ' '}"
        if shape == "wide":
            return [f"{number} {self.interval()}".rstrip() + mark]
        if shape == "medium":
            return [*filter(None, (number + mark, self.interval()))]
        coarse = replace(self, form=replace(self.form, digits=min(2, self.form.digits)))
        return [*filter(None, (number + mark, coarse.interval("{}…{}")))]

    def latex(self) -> str:
        """The number with its mark; ends by distance are raised and lowered."""
        if not self.is_known:
            return "---"
        plain = replace(self.form, unit="")
        number = plain.write(self.value).replace("−", "-")
        number = rf"\mathbf{{{number}}}" if self.is_best else number
        mark = {"*": "^{*}", "†": r"^{\dagger}"}.get(self.sign, "")
        unit = " " * bool(self.form.unit) + escape_latex(self.form.unit)
        if not self.form.by_distance:
            return f"${number}{mark}${unit}"
        if not math.isnan(self.low):
            above, below = self.form.distances(self)
            number = f"{number}^{{+{above}}}_{{-{below}}}"
        return f"${number}${unit}" + (f"${mark}$" if mark else "")

    def html(self) -> Markup:
        """The number with its interval, its verdict and its flags below."""
        if not self.is_known:
            return Markup("—")
        parts = [minus(self.form.write(self.value))]
        if interval := self.interval():
            parts.append(tag("small", minus(interval)))
        if mark := MARKS.get(self.verdict):
            said = WORDS[self.verdict].format(self.against) + (self.test and f": {self.test}")
            parts.append(tag("small", mark, class_=self.verdict, title=said))
        if self.flagged:
            why = "constant, NaN or otherwise special maps: see the flags in the table of scores"
            parts.append(tag("small", f"{self.flagged} flagged", title=why))
        return Markup("\n").join(map(keep_together, parts))


@dataclass(frozen=True)
class Name:
    """A name with a remark, which only a page shows."""

    text: str
    remark: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Head:
    """The heading of a column of scores: which way is better, and what they are."""

    text: str
    higher_is_better: bool
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.text} {'↑' if self.higher_is_better else '↓'}"


Cell = str | Name | Number


@dataclass(frozen=True)
class Table:
    """A table for people; `records` are its numbers for programs, every digit of them.

    Args:
        name: of its files and its label.
        caption: what it shows, without a full stop.
        heads: of the columns.
        rows: of cells; one that is not known is "—".
        names: how many columns, the first ones, hold names.
        records: one mapping for each number.
        rules: rows before which a new part begins.
        over: what stands above the heads of all columns of numbers.
        is_sortable: whether a page lets people sort it.
        is_stacked: whether LaTeX sets intervals below their numbers.
    """

    name: str
    caption: str
    heads: tuple[str | Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    names: int = 1
    records: Sequence[Row] = ()
    rules: frozenset[int] = frozenset()
    over: str = ""
    is_sortable: bool = False
    is_stacked: bool = False

    def without(self, columns: int) -> Table:
        """The same less its first columns."""
        rows = tuple(row[columns:] for row in self.rows)
        return replace(self, heads=self.heads[columns:], rows=rows, names=self.names - columns)

    def markdown(self) -> str:
        """As GitHub reads it."""
        lines = [
            [escape_markdown(str(head)) for head in self.heads],
            ["---"] * self.names + ["---:"] * (len(self.heads) - self.names),
            *(
                [str(c) if isinstance(c, Number) else escape_markdown(str(c)) for c in row]
                for row in self.rows
            ),
        ]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def latex(self) -> str:
        """It needs the packages booktabs and graphicx."""
        lines = [
            r"% needs \usepackage{booktabs,graphicx}",
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{escape_latex(self.caption)}.}}",
            rf"\label{{tab:{self.name}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{'l' * self.names}{'r' * (len(self.heads) - self.names)}}}",
            r"\toprule",
            _latex_line(escape_latex(str(head)) for head in self.heads),
            r"\midrule",
            *(line for place in range(len(self.rows)) for line in self._latex_row(place)),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def _latex_row(self, place: int) -> Iterator[str]:
        row, has_rule = self.rows[place], place in self.rules
        if has_rule:
            yield r"\midrule"
        if not self.is_stacked:
            yield _latex_line(_in_latex(cell) for cell in row)
            return
        if place and not has_rule:
            yield r"\addlinespace[2pt]"
        yield _latex_line(
            cell.latex() if isinstance(cell, Number) else escape_latex(str(cell)) for cell in row
        )
        below = [cell.interval() if isinstance(cell, Number) else "" for cell in row]
        if any(below):
            yield _latex_line(rf"{{\scriptsize ${text}$}}" if text else "" for text in below)

    def csv(self) -> str:
        """Its records."""
        return as_csv(self.records)

    def files(self) -> dict[str, str]:
        """All forms by the names of their files; one without rows has records only."""
        texts = {}
        if self.rows:
            caption = escape_markdown(self.caption)
            texts[f"{self.name}.md"] = f"{self.markdown()}\n\n{caption}.\n"
            texts[f"{self.name}.tex"] = self.latex()
        return {**texts, f"{self.name}.csv": self.csv()} if self.records else texts

    def html(self) -> Markup:
        """A table element."""
        heads = [tag("tr", *(self._html_head(place) for place in range(len(self.heads))))]
        if self.over:
            wide = len(self.heads) - self.names
            over = tag("th", self.over, colspan=wide, scope="colgroup")
            heads.insert(0, tag("tr", tag("th", colspan=self.names), over, class_="over"))
        rows = [tag("tr", *map(self._html_cell, range(len(row)), row)) for row in self.rows]
        kind = "sortable" if self.is_sortable else "plain"
        return tag("table", tag("thead", *heads), tag("tbody", *rows), class_=kind)

    def _html_head(self, place: int) -> Markup:
        head, is_name = self.heads[place], place < self.names
        if not self.is_sortable:
            return tag("th", breakable(str(head)), scope="col", class_="name" if is_name else None)
        order, title = "ascending", None
        if isinstance(head, Head):
            order = "descending" if head.higher_is_better else "ascending"
            title = f"{'higher' if head.higher_is_better else 'lower'} is better: {head.remark}"
        data = {"data-name": head, "data-kind": "text" if is_name else None, "data-first": order}
        button = tag("button", str(head), type="button", title=title)
        return tag("th", button, scope="col", **data)

    def _html_cell(self, place: int, cell: Cell) -> Markup:
        data = {}
        if self.is_sortable:
            unknown = isinstance(cell, Number) and not cell.is_known
            data["data-value"] = "" if unknown else getattr(cell, "value", cell)
        if isinstance(cell, Number):
            return tag("td", cell.html(), **data)
        parts = [breakable(str(cell)) if place < self.names else str(cell)]
        if isinstance(cell, Name) and cell.remark:
            parts.append(tag("small", cell.remark))
        if place == 0:
            return tag("th", *parts, scope="row", **data)
        return tag("td", *parts, class_="name" if place < self.names else None, **data)

    def fitted(self, console: Console) -> RichTable:
        """For a terminal: the most generous layout that it has room for."""
        for shape in ("wide", "medium", "narrow"):
            table = self._shaped(shape)
            options = console.options.update(max_width=UNWRAPPED)
            if console.measure(table, options=options).maximum <= console.width:
                break
        return table

    def _shaped(self, shape: str) -> RichTable:
        table = RichTable(
            box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0)
        )
        columns = [self._column(table, place, shape) for place in range(len(self.heads))]
        for place, cells in enumerate(zip(*columns, strict=True)):
            if place in self.rules:
                table.add_section()
            table.add_row(*cells)
        return table

    def _column(self, table: RichTable, place: int, shape: str) -> list[Text]:
        """Add a column; numbers are filled up from the left: rich drops blanks at the right."""
        shorter = broken if shape == "narrow" else str
        head = self.heads[place]
        text = str(
            replace(head, text=shorter(printable(head.text)))
            if isinstance(head, Head)
            else "\n".join(map(printable, head.split("\n")))
        )
        own = [row[place] for row in self.rows]
        if place < self.names:
            table.add_column(text, overflow="fold")
            return [Text(shorter(printable(str(cell)))) for cell in own]
        lines = [
            cell.lines(shape) if isinstance(cell, Number) else [printable(str(cell))]
            for cell in own
        ]
        heads = text.split("\n")
        width = max(len(line) for part in (heads, *lines) for line in part)
        table.add_column("\n".join(line.rjust(width) for line in heads))
        return [_styled(cell, part, width) for cell, part in zip(own, lines, strict=True)]


def as_csv(records: Sequence[Row]) -> str:
    """Records with a line of headings; what is not known is empty.

    A text that a spreadsheet would run as a formula is quoted.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for row in records:
        writer.writerow({key: _field(value) for key, value in row.items()})
    return text.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value != value else value


def escape_markdown(text: str) -> str:
    r"""Write a name so that Markdown shows it as it is.

    >>> print(escape_markdown("_a_b|<i>"))
    \_a_b\|\<i\>
    """
    flat = re.sub(r"([\\`*|<>\[\]$~&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", flat)  # inside a word it means itself


_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after \\ it would begin an option
    "]": "{]}",
    "*": "{*}",
    '"': "''",
    "→": r"$\to$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "−": "$-$",
    "≤": r"$\le$",
    "†": r"$\dagger$",
    "—": "---",
    "…": r"\ldots{}",
    "×": r"$\times$",
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
}


def escape_latex(text: str) -> str:
    r"""Write text so that LaTeX shows it as it is.

    >>> print(escape_latex("50 % of a_b, [-1, 1]"))
    50 \% of a\_b, {[}$-1$, 1{]}
    """
    flat = " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text).split())
    escaped = "".join(_LATEX.get(letter, letter) for letter in flat)
    return re.sub(r"(?<![\w-])[-+]\d+(?:\.\d+)?", r"$\g<0>$", escaped)


def minus(text: str) -> str:
    """Numbers with a true minus sign, and none before zero.

    >>> minus("-0.000 [-0.012, 0.010]")
    '0.000 [−0.012, 0.010]'
    """
    return re.sub(r"-(?=0\.?0*(?!\.?\d))", "", text).replace("-", "−")


def number(value: float) -> str:
    """A score as people write it.

    >>> number(-0.314), number(-0.0)
    ('−0.314', '0.000')
    """
    return minus(SCORE.write(value))


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def broken(label: str) -> str:
    """Break a long name into two lines, near its middle, after a sign if there is one.

    >>> print(broken("integrated_gradients"))
    integrated_
    gradients
    >>> print(broken("comprehensiveness"))
    comprehen-
    siveness
    """
    if len(label) < 12:
        return label
    middle = math.ceil(len(label) / 2)
    signs = [match.end() for match in re.finditer(r"[_:(,=/]", label)]
    cut = min(signs, key=lambda place: abs(place - middle), default=middle)
    return f"{label[:cut]}{'' if signs else '-'}\n{label[cut:]}"


def _in_latex(cell: Cell) -> str:
    """A cell with its interval beside it."""
    if isinstance(cell, Number) and cell.form.by_distance:
        return cell.latex()
    return escape_latex(str(cell))


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _styled(cell: Cell, lines: Sequence[str], width: int) -> Text:
    verdict = cell.verdict if isinstance(cell, Number) else ""
    first, *below = (line.rjust(width) for line in lines)
    text = Text(first, STYLES.get(verdict, ""))
    return text.append("\n" + "\n".join(below), "dim") if below else text
