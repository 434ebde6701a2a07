"""The page and the figures: what they show, and that names in them are never run."""

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import matplotlib.pyplot
import numpy as np
import pytest
import torch
from PIL import Image

import faithscope as fs
from conftest import randn, single_vit, tiny_vit
from faithscope.report import lines, plots
from faithscope.report.figures import draw_explanations
from faithscope.report.page import write_page
from faithscope.report.removal import removal_curves
from faithscope.report.style import wrap_label
from faithscope.report.tables import written
from faithscope.runs.tables import table_of_rows
from pages import Page

EVIL = "<script>alert('method')</script>"
KEYS = ("mean", "ci_low", "ci_high")
EVIL_CLASS = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def model() -> fs.Model:
    return single_vit(name="tiny & <b>bold</b>", classes=[EVIL_CLASS] * 5)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return randn(12, 3, 16, 16, seed=1, dtype=torch.float32)


@pytest.fixture(scope="module")
def result(model: fs.Model, images: torch.Tensor) -> fs.Result:
    """Good maps, the same upside down, and maps that are partly constant and NaN."""
    good = fs.explain(model, images, "integrated_gradients")
    spoilt = randn(12, 16, 16, seed=2)
    spoilt[0], spoilt[1, 3, 4] = 1.0, float("nan")
    maps = {"_upside_down": -good, EVIL: spoilt}
    images = images.clone()
    images[5, 0, 0, 0] = float("nan")
    return fs.evaluate(
        model, images, ["integrated_gradients", "rollout"], maps=maps, random_draws=1
    )


@pytest.fixture(scope="module")
def page(result: fs.Result, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = write_page(result, tmp_path_factory.mktemp("page") / "new" / "report.html")
    return Page(path.read_text("utf-8"))


def test_page_refers_to_nothing_outside(page: Page) -> None:
    names = ("src", "href", "xlink:href", "srcset", "action", "data", "poster")
    references = page.attributes(*names)
    assert references, "the plots use markers by reference, so there must be some"
    assert all(value.startswith(("#", "data:")) for value in references)
    assert not {"link", "iframe", "object", "base"} & set(page.tags)
    assert "@import" not in page.source
    assert all(found.startswith("url(#") for found in re.findall(r"url\(.", page.source))
    assert "default-src 'none'" in page.source


def test_names_are_shown_and_not_run(page: Page) -> None:
    scripts = [attrs.get("type") for tag, attrs in page.elements if tag == "script"]
    assert sorted(scripts, key=str) == [None, "application/json"]
    assert EVIL in page.text
    assert EVIL_CLASS in page.text
    assert "tiny & <b>bold</b>" in page.text
    assert not page.attributes("onerror")
    assert not {"b", "img"} & set(page.tags)


def test_only_the_script_of_the_page_may_run(page: Page) -> None:
    script = (resources.files("faithscope.report") / "page.js").read_text("utf-8")
    assert f"<script>{script}</script>" in page.source
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv"))
    assert policy is not None
    assert re.search(r"script-src 'sha256-[\w+/]{43}='$", policy)


def test_table_holds_every_number_and_mark_of_the_summary(page: Page, result: fs.Result) -> None:
    marks = {"better": "▲ better", "worse": "▼ worse", "same": "○ not significant"}
    rows = {row[0].split("by p")[0]: row[1:] for row in page.table[1:]}
    assert list(rows) == result.methods
    assert [head.split()[0] for head in page.table[0][1:]] == result.metrics
    for row in result.summary().to_pylist():
        cell = rows[row["method"]][result.metrics.index(row["metric"])]
        mean, low, high = (f"{row[key]:z.3f}".replace("-", "−") for key in KEYS)
        assert mean in cell
        assert f"[{low}, {high}]" in cell
        assert [word for word in marks.values() if word in cell] == (
            [marks[row["verdict"]]] if row["verdict"] else []
        )
        assert (f"{row['flagged']} flagged" in cell) == (row["flagged"] > 0)
    assert {row["verdict"] for row in result.summary().to_pylist()} == {*marks, ""}


def test_every_heading_is_a_button_that_sorts_the_best_first(page: Page, result: fs.Result) -> None:
    headings = page.source[page.source.index("<thead>") : page.source.index("</thead>")]
    assert headings.count("<button ") == 1 + len(result.metrics)
    first = page.attributes("data-first")[1:]
    arrows = [result.arrow(metric) for metric in result.metrics]
    assert first == [{"↑": "descending", "↓": "ascending"}[arrow] for arrow in arrows]


def test_page_tells_the_story_and_the_protocol(page: Page, result: fs.Result) -> None:
    assert result.headline() in page.text
    for verdict in result.verdicts():
        assert verdict in page.text
    assert "5: it holds NaN or infinite values" in page.text
    assert "11 used, 1 left out" in page.text
    for key, value in result.manifest.protocol.items():
        assert re.search(rf"{key}\s+{written(value)}", page.text)
    assert "Removed units are replaced: the image's own mean, per channel." in page.text
    for name, number in result.manifest.versions.items():
        assert f"{name} {number}" in page.text
    hosts = result.manifest.machine.hosts
    assert hosts and f"hosts {', '.join(hosts)}, threads" in page.text


def test_same_run_gives_the_same_page(result: fs.Result, tmp_path: Path) -> None:
    first, second = (write_page(result, tmp_path / name).read_bytes() for name in "ab")
    assert first == second


@pytest.mark.parametrize("draws", [0, 1])
def test_page_of_one_image_has_no_intervals_and_no_marks(
    model: fs.Model, images: torch.Tensor, tmp_path: Path, draws: int
) -> None:
    alone = fs.evaluate(model, images[:1], "rollout", "saco", random_draws=draws)
    page = Page(write_page(alone, tmp_path / "page.html").read_text("utf-8"))
    assert page.table[1][1].split() == [
        f"{alone.values('rollout', 'saco')[0]:z.3f}".replace("-", "−")
    ]
    assert "▲" not in page.text
    assert "most relevant pixels go" not in page.text


def test_page_says_where_it_cannot_be_written(result: fs.Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(fs.FaithscopeError, match="cannot be written"):
        write_page(result, tmp_path / "file" / "page.html")


def svg_text(drawing: str) -> list[str]:
    """All labels of a drawing, which must be well-formed."""
    return [text for text in ElementTree.fromstring(drawing).itertext() if text.strip()]


def test_intervals_name_methods_metrics_and_directions(result: fs.Result) -> None:
    text = svg_text(plots.intervals(result).svg())
    assert set(result.methods) - set(text) == {EVIL}  # too long for one line
    assert set(result.metrics) <= set(text)
    ups = [result.arrow(metric) for metric in result.metrics].count("↑")
    assert text.count("↑ higher is better") == ups
    assert text.count("↓ lower is better") == len(result.metrics) - ups
    assert {"better than matched random", "no significant difference", "worse"} <= set(text)


def test_curves_are_those_the_metric_reads(result: fs.Result, tmp_path: Path) -> None:
    levels, curves = removal_curves(result)
    assert len(levels) == 11
    assert list(curves) == result.methods
    for method, values in curves.items():
        drop = (values[:, :1] - values).mean(1)
        np.testing.assert_allclose(
            np.sort(drop), np.sort(result.values(method, "aopc")), atol=1e-12
        )
    plot = lines.removal(result)
    names = {"_upside_down", "random_patch"}
    for _ in range(2):  # a file names the lines, a page does it beside the drawing
        assert not names & set(svg_text(plot.svg()))
        drawn = set(svg_text(plot.save(tmp_path / "a.svg").read_text("utf-8")))
        assert {*names, "100\N{NO-BREAK SPACE}%"} <= drawn
    assert sorted(name for _, _, name in plot.legend) == sorted(result.methods)


def test_curves_average_draws_and_bring_sizes_together() -> None:
    """Two images of other sizes; of the larger one two draws are averaged."""
    run = fs.evaluate(
        fs.wrap(torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()), name="any"),
        [randn(3, 2, 5, seed=1, dtype=torch.float32), randn(3, 4, 5, seed=2, dtype=torch.float32)],
        "random",
        ["aopc(steps=2)", "log_odds(steps=4)"],
        random_draws=2,
    )
    cuts = {10: {0: 0.8, 5: 0.4, 10: 0.2}, 20: {0: 1.0, 5: 0.5, 10: 0.4, 20: 0.1}}
    answers = [
        ("0", 0, 10, cuts[10]),
        ("0", 1, 10, cuts[10]),
        ("1", 0, 20, cuts[20]),
        ("1", 1, 20, {0: 1.0, 5: 0.9, 10: 0.2, 20: 0.2}),
    ]
    responses = [
        {"sample": sample, "method": "random", "draw": draw, "start": 0, "stop": stop}
        | {"log_p": np.log(p), "top1": 0, "salience": 0.0}
        for sample, draw, _, curve in answers
        for stop, p in curve.items()
    ]
    maps = [
        {"sample": sample, "method": "random", "draw": draw, "units": units}
        | {"granularity": "pixel", "finite": True, "constant": False, "failed": False}
        for sample, draw, units, _ in answers
    ]
    spans = [
        {"units": units, "metric": "aopc(steps=2)", "place": place, "start": 0, "stop": stop}
        for units, stops in ((10, (0, 5, 10)), (20, (0, 10, 20)))
        for place, stop in enumerate(stops)
    ]
    spans += [
        {"units": units, "metric": "log_odds(steps=4)", "place": place, "start": 0, "stop": stop}
        for units, stops in ((10, (0, 0, 5, 5, 10)), (20, (0, 5, 10, 10, 20)))
        for place, stop in enumerate(stops)
    ]
    rows = {"responses": responses, "maps": maps, "spans": spans}
    made = {name: table_of_rows(name, held) for name, held in rows.items()}
    levels, curves = removal_curves(replace(run, tables={**run.tables, **made}))
    np.testing.assert_allclose(levels, [0, 0.25, 0.5, 1])
    np.testing.assert_allclose(curves["random"], [[0.8, 0.6, 0.4, 0.2], [1.0, 0.7, 0.3, 0.15]])


def test_no_curve_without_a_metric_that_needs_one(model: fs.Model, images: torch.Tensor) -> None:
    run = fs.evaluate(model, images[:2], "rollout", ["saco", "comprehensiveness"], random_draws=0)
    assert lines.removal(run) is None


def draw(model: fs.Model, path: Path, *, count: int = 1, **options: object) -> Path:
    """A figure of `count` signed maps for one image of two colours."""
    maps = {f"method_{place}": randn(1, 8, 8, seed=place) for place in range(count)}
    return draw_explanations(model, checkers(model), maps, path, **options)  # type: ignore[arg-type]


COLOURS = ((204, 51, 102), (51, 204, 153))


def checkers(model: fs.Model) -> torch.Tensor:
    """One 8×8 image of two colours in turn, normalised for the model."""
    odd = (torch.arange(8)[:, None] + torch.arange(8)) % 2
    pixels = torch.tensor(COLOURS)[odd].permute(2, 0, 1)[None] / 255
    mean, std = torch.tensor(model.mean), torch.tensor(model.std)
    return (pixels - mean[:, None, None]) / std[:, None, None]


def test_image_is_drawn_in_its_own_colours_and_crisp(model: fs.Model, tmp_path: Path) -> None:
    picture = np.asarray(Image.open(draw(model, tmp_path / "a.png")).convert("RGB"))
    drawn = np.any([(picture == colour).all(-1) for colour in COLOURS], axis=0)
    rows, columns = np.flatnonzero(drawn.any(1)), np.flatnonzero(drawn.any(0))
    assert min(len(rows), len(columns)) > 400
    assert drawn[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()


@pytest.mark.parametrize("count", [1, 5, 12])
def test_many_methods_continue_in_further_lines(
    model: fs.Model, tmp_path: Path, count: int
) -> None:
    width, height = Image.open(draw(model, tmp_path / "a.png", count=count)).size
    assert width / height < 4.6
    assert 800 < width < 2500
    text = svg_text(draw(model, tmp_path / "a.svg", count=count).read_text("utf-8"))
    assert {f"method_{place}" for place in range(count)} <= set(text)


def test_cells_say_what_they_show(model: fs.Model, tmp_path: Path) -> None:
    images = randn(2, 3, 16, 16, dtype=torch.float32)
    spoilt = randn(2, 16, 16)
    spoilt[0], spoilt[1, 0, 0] = 3.0, float("nan")
    path = draw_explanations(
        model,
        images,
        {"spoilt": spoilt, "$x$ <i>": randn(2, 4, 4).abs()},
        tmp_path / "a.svg",
        titles=["cat → dog (71 %)", EVIL_CLASS],
        scores={"spoilt": [0.0, float("nan")], "$x$ <i>": [0.4249, -0.5]},
        subtitle="two images",
    )
    text = " ".join(svg_text(path.read_text("utf-8"))).replace("\N{NO-BREAK SPACE}", " ")
    for words in ("constant map", "holds NaN", "SaCo +0.42", "SaCo −0.50", "no SaCo", "$x$ <i>"):
        assert words in text
    assert "cat → dog (71 %)" in text
    assert "<img src=x" in text
    assert "two images" in text
    assert "highest" in text
    assert "positive" not in text, "no map with values of both signs was drawn"


def test_maps_of_both_signs_have_two_colours_around_zero(tmp_path: Path) -> None:
    values = torch.zeros(1, 8, 8)
    values[0, :, :2], values[0, :, 6:] = -1.0, 1.0
    grey = fs.wrap(tiny_vit(), name="no normalisation known")
    path = draw_explanations(grey, torch.zeros(1, 3, 8, 8), {"m": values}, tmp_path / "a.png")
    cell = np.asarray(Image.open(path).convert("RGB")).astype(int)
    row = cell[cell.shape[0] // 2, cell.shape[1] // 2 :]
    start, stop = np.flatnonzero(row.min(-1) < 250)[[0, -1]]
    low, middle, high = (row[start + int(share * (stop - start))] for share in (0.1, 0.5, 0.9))
    assert low[2] - low[0] > 60, "negative is blue"
    assert np.ptp(middle) == 0, "zero shows the grey image"
    assert high[0] - high[2] > 60, "positive is red"


def test_figures_leave_matplotlib_as_it_was(
    model: fs.Model, result: fs.Result, tmp_path: Path
) -> None:
    with matplotlib.rc_context({"text.color": "yellow", "font.size": 30}):
        before = dict(matplotlib.rcParams)
        styled = draw(model, tmp_path / "a.png").read_bytes()
        for plot in plots.plots_of(result):
            plot.svg()
        assert dict(matplotlib.rcParams) == before
    assert draw(model, tmp_path / "b.png").read_bytes() == styled
    assert matplotlib.pyplot.get_fignums() == []


def test_papers_get_a_pdf(model: fs.Model, tmp_path: Path) -> None:
    content = draw(model, tmp_path / "new" / "a.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert len(content) > 5000


def test_what_cannot_be_drawn_is_refused(model: fs.Model, tmp_path: Path) -> None:
    with pytest.raises(fs.FaithscopeError, match=r"written as .png, .pdf, .svg, got 'a.txt'"):
        draw(model, tmp_path / "a.txt")
    with pytest.raises(fs.FaithscopeError, match="1 images, but 2 of titles"):
        draw(model, tmp_path / "a.png", titles=["one", "two"])
    with pytest.raises(fs.FaithscopeError, match="2 of the scores of 'method_0'"):
        draw(model, tmp_path / "a.png", scores={"method_0": [0.1, 0.2]})
    with pytest.raises(fs.FaithscopeError, match="nothing to draw"):
        draw(model, tmp_path / "a.png", count=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(fs.FaithscopeError, match="cannot be written"):
        draw(model, tmp_path / "file" / "a.png")


@pytest.mark.parametrize(
    ("label", "wrapped"),
    [
        ("rollout", "rollout"),
        ("transformer_attribution", "transformer_\nattribution"),
        ("lrp(rules=conserving)", "lrp\n(rules=conserving)"),
        ("a cat and a dog (71 %)", "a cat and a dog\n(71\N{NO-BREAK SPACE}%)"),
        ("one two three four five six seven eight", "one two three four\nfive six seven…"),
    ],
)
def test_labels_break_where_they_may(label: str, wrapped: str) -> None:
    assert wrap_label(label, 19, lines=2) == wrapped
