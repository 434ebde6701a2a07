"""Tables and figures as files: every number is there, and every name stands as it is."""

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import faithscope as fs
from conftest import randn, tiny_vit
from faithscope.report.plots import write_figures
from faithscope.report.table import PERCENT, Head, Name, Number, Table, as_csv, escape_latex
from faithscope.report.tables import comparison_table, scores_table, sensitivity_table, write_tables
from made_up import made_up

NAMES = ("[2pt] a & b_c", "100 % $x$ #~^\\{", '*|<i>\nnew, "line"', "plain_name")


@pytest.fixture(scope="module")
def result() -> fs.Result:
    model = fs.wrap(tiny_vit(dtype=torch.float32), name="my_model & $co")
    maps = {name: randn(12, 16, 16, seed=place) for place, name in enumerate(NAMES)}
    maps["plain_name"][:] = float("nan")
    images = randn(12, 3, 16, 16, seed=9, dtype=torch.float32)
    metrics = ["saco(k=4)", "saco(k=8)", "aopc", "log_odds"]
    methods = ["integrated_gradients"]
    return fs.evaluate(model, images, methods, metrics, maps=maps, random_draws=1)


@pytest.fixture(scope="module")
def folder(result: fs.Result, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("tables") / "new"
    write_tables({"run": result}, place)
    return place


def test_every_table_is_written_in_every_form(folder: Path) -> None:
    forms = {"scores": 3, "correlations": 3, "sensitivity": 3, "comparisons": 1}
    ends = ("csv", "md", "tex")
    names = {f"{name}.{end}" for name, count in forms.items() for end in ends[:count]}
    assert {file.name for file in folder.iterdir()} == names


def read(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text("utf-8"), newline="")))


def test_csv_holds_every_digit_of_every_column(folder: Path, result: fs.Result) -> None:
    for name in ("scores", "comparisons", "correlations"):
        table = {"scores": "summary"}.get(name, name)
        rows = getattr(result, table)().to_pylist()
        found = read(folder / f"{name}.csv")
        assert len(found) == len(rows)
        for given, row in zip(rows, found, strict=True):
            assert list(row) == list(given)
            for key, value in given.items():
                if value is None or value != value:
                    assert row[key] == ""
                else:
                    assert type(value)(row[key]) == value


class Latex:
    """As much of LaTeX as tells whether a table would compile: groups, math, cells."""

    def __init__(self, text: str) -> None:
        self.rows: list[list[str]] = []
        body = re.search(r"\\begin\{tabular\}\{([lr]+)\}\n(.*)\\end\{tabular\}", text, re.S)
        assert body
        self.columns = len(body[1])
        depth, math, cells = 0, False, [""]
        pattern = r"\\\\(?:\[[^]]*\])?\*?|\\[a-zA-Z]+|\\.|."
        text = re.sub(r"(?<!\\)%.*", "", text)
        for token in re.findall(pattern, text, re.S):
            if token == "{":
                depth += 1
            elif token == "}":
                depth -= 1
                assert depth >= 0
            elif token == "$":
                math = not math
            elif token in ("_", "^"):
                assert math, f"{token} outside of math"
            elif token in ("#", "~"):
                raise AssertionError(f"{token} is not escaped")
            elif token.startswith("\\\\"):
                assert token == "\\\\", "a name became an option of the line break"
        assert depth == 0 and not math
        for line in body[2].splitlines():
            if line.endswith(r"\\"):
                cells = re.split(r"(?<!\\)&", line.removesuffix(r"\\"))
                self.rows.append([cell.strip() for cell in cells])

    def __str__(self) -> str:
        return "\n".join(" & ".join(row) for row in self.rows)


@pytest.mark.parametrize("name", ["scores", "correlations", "sensitivity"])
def test_latex_is_well_formed(folder: Path, name: str) -> None:
    table = Latex((folder / f"{name}.tex").read_text("utf-8"))
    assert len(table.rows) > 2
    assert {len(row) for row in table.rows} == {table.columns}


def test_latex_holds_every_score_the_best_in_bold_and_the_marks(
    folder: Path, result: fs.Result
) -> None:
    text = (folder / "scores.tex").read_text("utf-8")
    table = Latex(text)
    assert table.rows[0][1:] == [
        r"saco(k=4) $\uparrow$",
        r"saco(k=8) $\uparrow$",
        r"aopc $\uparrow$",
        r"log\_odds $\downarrow$",
    ]
    means = {row[0]: row[1:] for row in table.rows[1:] if row[0]}
    assert list(means) == [escape_latex(method) for method in result.methods]
    for place, metric in enumerate(result.metrics):
        rows = [row for row in result.summary().to_pylist() if row["metric"] == metric]
        known = [row["mean"] for row in rows if row["n"]]
        best = max(known) if result.arrow(metric) == "↑" else min(known)
        for row in rows:
            cell = means[escape_latex(row["method"])][place]
            if not row["n"]:
                assert cell == "---"
                continue
            assert f"{row['mean']:.3f}" in cell
            assert (r"\mathbf" in cell) == (f"{row['mean']:.3f}" == f"{best:.3f}")
            assert ("^{*}" in cell) == (row["verdict"] == "better")
            assert (r"^{\dagger}" in cell) == (row["verdict"] == "worse")
            assert f"$[{row['ci_low']:.3f}, {row['ci_high']:.3f}]$" in text
    verdicts = {row["verdict"] for row in result.summary().to_pylist()}
    assert "better" in verdicts
    assert r"{*} better, $\dagger$ worse than the matched random method" in text
    assert r"my\_model \& \$co" in text


def test_markdown_is_the_result_s_own_and_names_do_nothing_in_it(
    folder: Path, result: fs.Result
) -> None:
    text = (folder / "scores.md").read_text("utf-8")
    assert text.startswith(result.table())
    lines = result.table().splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(result.metrics) + 2}
    assert r'| \*\|\<i\> new, "line" |' in text
    assert r"| 100 % \$x\$ #\~^\\{ |" in text
    assert "| plain_name |" in text
    assert r"my_model \& \$co" in text


def test_sensitivity_is_told_where_there_are_several_places() -> None:
    nothing = float("nan")
    row = {"axis": "fill", "first": "mean", "second": "a|b", "metric": "saco", "absolute": 0.25}
    row |= {"signed": -0.125, "signed_low": -0.5, "signed_high": 0.25, "flipped": nothing}
    row |= {"agreement": nothing, "agreement_low": nothing, "agreement_high": nothing}
    table = sensitivity_table([{**row, "where": "model_a"}])
    assert table.heads[:3] == ("choice", "where", "metric")
    assert [tuple(map(str, row)) for row in table.rows] == [
        (
            "fill: mean → a|b",
            "model_a",
            "saco",
            "-0.125 [-0.500, +0.250]",
            "0.250",
            "—",
            "—",
        ),
    ]
    assert str(Latex(table.latex())).endswith(
        r"fill: mean $\to$ a\textbar{}b & model\_a & saco & "
        r"$-0.125$ {[}$-0.500$, $+0.250${]} & 0.250 & --- & ---"
    )
    assert "where" not in sensitivity_table([{**row, "where": ""}]).heads


def test_several_runs_have_names_that_are_safe_and_differ(
    result: fs.Result, tmp_path: Path
) -> None:
    small = result.rescore("aopc")
    labels = ("../a b", "A/B", "a-B", "")
    files = write_tables(dict.fromkeys(labels, small), tmp_path / "t")
    assert {file.parent for file in files} == {tmp_path / "t"}
    scores = [file.name for file in files if file.name.endswith("scores.csv")]
    assert scores == ["a-b-scores.csv", "A-B-2-scores.csv", "a-B-3-scores.csv", "run-scores.csv"]
    assert "tab:A-B-2-scores" in (tmp_path / "t" / "A-B-2-scores.tex").read_text("utf-8")


def test_long_names_of_runs_become_short_files(result: fs.Result, tmp_path: Path) -> None:
    small = result.rescore("aopc")
    labels = [f"timm:vit_tiny({'depth=1, ' * 20}), fill={fill}" for fill in ("mean", "blur")]
    files = write_tables(dict.fromkeys(labels, small), tmp_path)
    names = [file.name for file in files if file.name.endswith("-scores.tex")]
    assert [name[:8] for name in names] == ["timm-vit"] * 2
    assert [name.removesuffix("-scores.tex")[-9:] for name in names] == ["fill-mean", "fill-blur"]
    assert all(len(name) == 48 + len("-scores.tex") for name in names)


def test_models_under_one_protocol_share_a_table(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)

    def made_of(model: str, fill: str, *metrics: str) -> fs.Result:
        scores = {
            method: {metric: draw.normal(size=5) for metric in metrics}
            for method in ("gradient", "random")
        }
        own = {"name": model, "fingerprint": model}
        directions = {"saco": True, "aopc": True}
        return made_up(scores, protocol={"fill": fill}, model=own, metrics=directions)

    runs = {
        f"{model} {fill}": made_of(model, fill, "saco", *extra)
        for fill in ("mean", "blur")
        for model, extra in (("one_vit", ("aopc",)), ("two", ()))
    }
    runs["three mean"] = made_of("three", "noise", "saco")
    files = {file.name: file for file in write_tables(runs, tmp_path)}
    joined = sorted(name for name in files if "models" in name)
    assert joined == sorted(
        f"fill-{fill}-models-scores.{form}"
        for fill in ("mean", "blur")
        for form in ("csv", "md", "tex")
    )
    text = files["fill-blur-models-scores.md"].read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split("|")[1:3] for line in lines[2:]] == [
        [" one_vit ", " gradient "],
        ["  ", " random "],
        [" two ", " gradient "],
        ["  ", " random "],
    ]
    assert lines[0].startswith("| model | method | saco ↑ | aopc ↑ |")
    assert lines[4].endswith("| — |")
    assert "of 2 models on" in text
    latex = files["fill-blur-models-scores.tex"].read_text()
    assert latex.count(r"\midrule") == 2 and r"one\_vit & gradient" in latex
    records = read(files["fill-blur-models-scores.csv"])
    assert {row["model"] for row in records} == {"one_vit", "two"} and len(records) == 6
    means = {(row["model"], row["method"], row["metric"]): float(row["mean"]) for row in records}
    for row in runs["two blur"].rows:
        assert means["two", row["method"], row["metric"]] == row["mean"]
    alone = write_tables({"a": runs["two blur"]}, tmp_path / "alone")
    assert not any("models" in file.name for file in alone)


def test_figures_are_written_in_the_formats_asked_for(result: fs.Result, tmp_path: Path) -> None:
    files = write_figures({"run": result}, tmp_path, formats=("pdf", "svg"))
    names = ("intervals", "radar", "curves", "correlations", "k_choice", "sensitivity")
    assert [file.name for file in files] == [f"{n}.{f}" for n in names for f in ("pdf", "svg")]
    assert all(file.stat().st_size > 3000 for file in files)
    with pytest.raises(fs.FaithscopeError, match=r"format of a figure 'jpg'.*Valid: pdf, png, svg"):
        write_figures({"run": result}, tmp_path, formats=("jpg",))


def test_tables_say_where_they_cannot_be_written(result: fs.Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(fs.FaithscopeError, match="cannot be written"):
        write_tables({"run": result}, tmp_path / "file")


def test_a_csv_name_with_commas_and_lines_comes_back() -> None:
    rows = [{"name": name, "value": float("nan")} for name in NAMES]
    assert [row["name"] for row in csv.DictReader(io.StringIO(as_csv(rows), newline=""))] == list(
        NAMES
    )


def test_a_spreadsheet_runs_no_name() -> None:
    (line,) = list(csv.DictReader(io.StringIO(as_csv([{"name": "=1+1", "value": -0.5}]))))
    assert line == {"name": "'=1+1", "value": "-0.5"}


NOTHING = float("nan")
TABLE = Table(
    "name",
    "caption of 5 %",
    ("method", Head("a_score", True, "Σ x"), Head("loss", False)),
    (
        (
            Name("<b>", "by pixel"),
            Number(-0.0004, -0.2, 0.1, verdict="worse", against="random"),
            "—",
        ),
        ("random", Number(NOTHING), Number(0.5, 0.25, 0.75, PERCENT, is_best=True)),
    ),
    rules=frozenset({1}),
    is_sortable=True,
)


def test_one_table_has_the_same_numbers_in_every_form() -> None:
    assert TABLE.markdown().splitlines()[2:] == [
        "| \\<b\\> | -0.000 [-0.200, 0.100] † | — |",
        "| random | — | 50.0 % +25.0 −25.0 |",
    ]
    assert r"random & --- & $\mathbf{50.0}^{+25.0}_{-25.0}$ \% \\" in TABLE.latex()
    html = TABLE.html()
    assert '<td data-value="-0.0004">0.000\n<small>[−0.200, 0.100]</small>' in html
    assert '<small class="worse" title="worse than random">▼ worse</small>' in html
    assert '<th scope="row" data-value="&lt;b&gt;">&lt;b&gt;<small>by pixel</small></th>' in html
    assert 'data-first="descending"><button type="button" title="higher is better: Σ x">' in html
    assert '<td data-value="">—</td>' in html
    assert "50.0\N{NO-BREAK SPACE}%" in html
    shorter = TABLE.without(1)
    assert (shorter.names, len(shorter.heads), len(shorter.rows[0])) == (0, 2, 2)


@pytest.mark.parametrize("of", ["scores", "comparison"])
@pytest.mark.parametrize("width", [70, 90, 140, 1000])
def test_a_table_fits_the_terminal(result: fs.Result, of: str, width: int) -> None:
    table = scores_table(result)
    if of == "comparison":
        table = comparison_table(fs.compare(result, result))
    terminal = Console(width=width, force_terminal=True, color_system=None, record=True)
    terminal.print(table.fitted(terminal))
    text = terminal.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for row in result.rows:
        if row["n"]:
            assert (f"{row['mean']:.3f}" if of == "scores" else "+0.000") in text
