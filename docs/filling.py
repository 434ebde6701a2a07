"""Shared by pages with generated parts: blocks, summaries of studies/results, number formatting."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "studies" / "results"
IMAGES = ROOT / "docs" / "images"

BLOCK = re.compile(r"(<!-- begin: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = Mapping[str, Any]
Study = dict[str, Any]


class Summaries:
    """The files of studies/results by name, with their tables as rows."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.studies: dict[str, Study] = {
            file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))
        }

    def run(self, name: str, which: str | None = None) -> dict[str, Any]:
        """One run of a study: the only one, or the one with this label."""
        runs: dict[str, dict[str, Any]] = self.studies[name]["runs"]
        return runs[which or next(iter(runs))]

    def cell(self, name: str, method: str, metric: str = "saco", which: str | None = None) -> Row:
        """A row of a run's summary."""
        return find(self.run(name, which)["summary"], method=method, metric=metric)

    def pair(self, name: str, metric: str, method: str, other: str) -> dict[str, float]:
        """The paired difference, second minus first, with its interval and p."""
        rows = self.run(name)["comparisons"]
        row = dict(find(rows, metric=metric, method={method, other}, other={method, other}))
        if row["method"] == method:
            row["difference"] = -row["difference"]
            row["ci_low"], row["ci_high"] = -row["ci_high"], -row["ci_low"]
        return row

    def change(self, name: str, which: str, method: str, metric: str) -> Row:
        """How a choice changes a method's score: the paired difference of two runs of a study."""
        return find(self.studies[name]["changes"][which], method=method, metric=metric)

    def ups(self, name: str, metric: str) -> bool:
        """Whether more is better."""
        return bool(self.run(name)["metrics"][metric]["higher_is_better"])


def rows_of(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a stored table."""
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


class Shown:
    """The parts of a run that plots and sentences use, read from a summary."""

    replicate = SimpleNamespace(word="image")

    def __init__(self, run: Mapping[str, Any]) -> None:
        self.methods, self.metrics = list(run["methods"]), list(run["metrics"])
        self.rows, self._correlations = rows_of(run["summary"]), rows_of(run["correlations"])
        methods = {
            name: SimpleNamespace(is_random=about["random"], matched_random=about["matched_random"])
            for name, about in run["methods"].items()
        }
        metrics = {
            name: SimpleNamespace(name=name.partition("(")[0], **about)
            for name, about in run["metrics"].items()
        }
        self.manifest = SimpleNamespace(methods=methods, metrics=metrics)

    def arrow(self, metric: str) -> str:
        """Which direction is better."""
        return "↑" if self.manifest.metrics[metric].higher_is_better else "↓"

    def correlations(self) -> Any:
        """The correlations' rows."""
        import pyarrow as pa

        return pa.Table.from_pylist(self._correlations)


def find(table: Mapping[str, Any], **wanted: Any) -> dict[str, Any]:
    """The one row with these values; a set means any of them."""

    def fits(row: Row) -> bool:
        return all(
            row[key] in value if isinstance(value, set) else row[key] == value
            for key, value in wanted.items()
        )

    (row,) = filter(fits, rows_of(table))
    return row


def fill_blocks(page: str, block: Callable[[str], str]) -> str:
    r"""A page with its generated parts made again, each by its name.

    >>> fill_blocks("<!-- begin: two -->\n1<!-- end -->", lambda name: f"{name} is 2")
    '<!-- begin: two -->\ntwo is 2\n<!-- end -->'
    """
    return BLOCK.sub(lambda part: f"{part[1]}{block(part[2])}\n{part[3]}", page)


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """A number as the page writes it.

    >>> number(-0.0004), number(0.25, sign="+")
    ('0.000', '+0.250')
    """
    if value is None:
        return "—"
    text = f"{value:{sign}.{digits}f}"
    if not float(text):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def interval(row: Row, middle: str = "mean", sign: str = "", digits: int = 3) -> str:
    """A number with its 95 % interval."""
    low, high = (number(row[end], digits, sign) for end in ("ci_low", "ci_high"))
    return f"{number(row[middle], digits, sign)} [{low}, {high}]"


def percent(share: float, digits: int = 0) -> str:
    """A share in percent."""
    return f"{100 * share:.{digits}f} %"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 1) -> str:
    """A Markdown table; the first `names` columns are words."""
    lines = [heads, ["---"] * names + ["---:"] * (len(heads) - names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def listed(words: Sequence[str]) -> str:
    """Words joined as in a sentence."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def span(values: Iterable[float], digits: int = 3) -> str:
    """From the smallest to the largest."""
    known = sorted(values)
    return f"{number(known[0], digits)} to {number(known[-1], digits)}"


def save(plot: Any, name: str) -> None:
    """Save a figure with a reduced palette, which keeps the file small."""
    from PIL import Image

    file = plot.save(IMAGES / f"reproduction-{name}.png")
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
