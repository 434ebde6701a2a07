"""The story of one image: what is drawn is what the model answered, and every odd case is drawn."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import faithscope as fs
from commands import fails, run
from conftest import randn, score_maps, tiny_vit, toy
from faithscope.report.removal import pair_parts, removal_groups
from faithscope.report.story import draw_story, read_story
from faithscope.report.style import fit, text_width

METRICS = ("saco", "aopc")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return randn(5, 3, 16, 16, seed=1)


def spoilt_maps(count: int, height: int, width: int) -> dict[str, torch.Tensor]:
    """Signed maps of which the second is constant and the third NaN."""
    maps = randn(count, height, width, seed=2)
    maps[1], maps[2, 3, 4] = 1.0, float("nan")
    return {"spoilt": maps}


RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two groups": {"k": 2},
    "groups of several sizes": {"k": 7, "group": "mean"},
    "auto": {"k": "auto"},
    "patches, fewer than steps": {"units": "patches", "k": 3},
}


@pytest.fixture(scope="module", params=RUNS)
def result(request: pytest.FixtureRequest, vit: fs.Model, images: torch.Tensor) -> fs.Result:
    """Runs of five images, one map constant and one NaN, with three random draws."""
    model = vit
    if "fewer" in request.param:  # 2×2 patches, so that ten steps are four inputs
        model = fs.wrap(tiny_vit(patch_size=8))
    maps = spoilt_maps(5, 16, 16)
    return fs.evaluate(model, images, "rollout", METRICS, maps=maps, **RUNS[request.param])


def naive(result: fs.Result, method: str, draw: int, sample: str, k: int) -> dict[str, list[float]]:
    """Groups and curve of one map, looked up one by one."""
    rows = {
        (row["start"], row["stop"]): row
        for row in result.responses.to_pylist()
        if (row["method"], row["draw"], row["sample"]) == (method, draw, sample)
    }
    n = max(stop for _, stop in rows)
    cuts = [(i * n // k, (i + 1) * n // k) for i in range(k)]
    by_mean = result.manifest.protocol["group"] == "mean"
    sizes = [stop - start if by_mean else 1 for start, stop in cuts]
    return {
        "salience": [rows[cut]["salience"] / size for cut, size in zip(cuts, sizes, strict=True)],
        "p": [np.exp(rows[cut]["log_p"]) for cut in cuts],
        "curve": [np.exp(rows[0, j * n // 10]["log_p"]) for j in range(11)],
    }


def test_groups_are_what_the_model_answered(result):
    found = removal_groups(result)
    assert list(found) == result.methods
    rows = [row for row in result.scores.to_pylist() if row["metric"] == "saco"]
    samples = result.samples["sample"].to_pylist()
    assert len(rows) == sum(removal.k.size for removal in found.values())
    for row in rows:
        removal, place = found[row["method"]], samples.index(row["sample"])
        k = removal.k[row["draw"], place]
        assert k == row["k"]
        own = {name: getattr(removal, name)[row["draw"], place] for name in ("salience", "p")}
        assert all(np.isnan(values[k:]).all() for values in own.values())
        if k == 0:
            assert "nan_map" in row["flag"]
            assert np.isnan(removal.curve[row["draw"], place]).all()
            continue
        expected = naive(result, row["method"], row["draw"], row["sample"], k)
        for name, values in own.items():
            np.testing.assert_array_equal(values[:k], expected[name])
        np.testing.assert_array_equal(removal.curve[row["draw"], place], expected["curve"])


def test_a_rescored_run_is_read_by_its_new_spans(vit, images):
    """K was chosen per map and is now the same for all."""
    metrics = ["saco", "saco(k=4)", "aopc"]
    peaked = torch.zeros(5, 16, 16)
    peaked[:, 0, :4] = 1 + torch.arange(4)
    maps = {"peaked": peaked}
    run = fs.evaluate(vit, images, "rollout", metrics, maps=maps, k="auto", random_draws=2)
    assert len(set(run.maps["k"].to_pylist())) > 1
    again = run.rescore(["saco", "aopc"], k=4)
    for method, removal in removal_groups(again).items():
        assert set(removal.k.flat) == {4}
        for draw, place in np.ndindex(removal.k.shape):
            expected = naive(again, method, draw, run.samples["sample"][place].as_py(), 4)
            np.testing.assert_array_equal(removal.p[draw, place], expected["p"])
            np.testing.assert_array_equal(removal.curve[draw, place], expected["curve"])


def test_scores_follow_from_groups_and_curves(result):
    for method, removal in removal_groups(result).items():
        sacos, aopcs = [], []
        for draw, sample in np.ndindex(removal.k.shape):
            k = removal.k[draw, sample]
            salience, drop = (
                getattr(removal, name)[draw, sample, :k] for name in ("salience", "drop")
            )
            curve = removal.curve[draw, sample]
            aopcs.append((curve[0] - curve).mean())
            if k:
                literal = float(fs.saco(torch.from_numpy(salience), torch.from_numpy(drop)))
                np.testing.assert_allclose(pair_parts(salience, drop).sum(), literal, atol=1e-12)
                constant = method == "spoilt" and sample == 1
                sacos.append(0.0 if constant else literal)
            else:
                sacos.append(np.nan)
        for metric, values in (("saco", sacos), ("aopc", aopcs)):
            averaged = np.reshape(values, removal.k.shape).mean(0)
            np.testing.assert_allclose(averaged, result.values(method, metric), atol=1e-12)
        mean = removal.averaged()
        np.testing.assert_allclose(mean.curve[0], removal.curve.mean(0), atol=1e-15)


def test_draws_of_another_k_are_not_averaged_in():
    from faithscope.report.removal import Removal

    k = np.array([[2], [3], [2]])
    values = np.array([[[1.0, 3.0, np.nan]], [[9.0, 9.0, 9.0]], [[3.0, 5.0, np.nan]]])
    mean = Removal(k, values, values, values, np.ones(1)).averaged()
    np.testing.assert_array_equal(mean.k, [[2]])
    np.testing.assert_array_equal(mean.salience, [[[2.0, 4.0, np.nan]]])


def test_story_tells_every_draw(vit, images):
    result = fs.evaluate(vit, images, ["rollout", "random"], METRICS, random_draws=4)
    story = read_story(result, sample=3)
    assert [row.reference for row in story.values()] == ["random_patch", "random", "random_patch"]
    for method, row in story.items():
        assert len(row.saco) == (1 if method == "rollout" else 4)
        for name in METRICS:
            data = row.as_data()
            assert data[name] == pytest.approx(result.values(method, name)[3])
            assert data["draws"][name] == list(getattr(row, name))
        assert row.pairs.sum() == pytest.approx(row.saco.mean())
        assert np.abs(row.share).sum(-1) == pytest.approx(np.ones(len(row.saco)))
        falls = row.curve[:, :1] - row.curve
        assert falls.mean(1) == pytest.approx(row.aopc)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would be saved; none may have text that is cut off or overlaps."""
    figures: list[Figure] = []

    def save(figure: Figure, file: Path) -> None:
        figures.append(figure)
        with matplotlib.rc_context({"text.parse_math": False}):
            figure.set_dpi(200)
            canvas = FigureCanvasAgg(figure)
            figure.draw_without_rendering()
            page = figure.bbox
            for text in figure.findobj(matplotlib.text.Text):
                if not text.get_visible() or not text.get_text().strip():
                    continue
                box = text.get_window_extent(canvas.get_renderer())
                said = f"'{text.get_text()}' is cut off"
                assert box.x0 >= 0 and box.x1 <= page.x1, said
                assert box.y0 >= 0 and box.y1 <= page.y1, said
            apart(figure, canvas)
        if file.suffix == ".svg":
            figure.savefig(file)

    monkeypatch.setattr("faithscope.report.story.save_figure", save)
    return figures


def apart(figure: Figure, canvas: FigureCanvasAgg) -> None:
    """No two texts of the figure itself overlap."""
    boxes = [(text, text.get_window_extent(canvas.get_renderer())) for text in figure.texts]
    for place, (text, box) in enumerate(boxes):
        for other, its in boxes[place + 1 :]:
            over = (
                min(box.x1, its.x1) - max(box.x0, its.x0),
                min(box.y1, its.y1) - max(box.y0, its.y0),
            )
            assert min(over) <= 1, f"'{text.get_text()}' runs into '{other.get_text()}'"


def words(figure: Figure) -> str:
    found = (text.get_text() for text in figure.findobj(matplotlib.text.Text))
    return " ".join(" ".join(found).split()).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("count", [1, 16])
def test_one_to_sixteen_methods(count, vit, images, drawn, tmp_path):
    maps = {f"method_{place}": randn(1, 16, 16, seed=place) for place in range(count)}
    result = score_maps(vit, images[:1], maps, metrics=METRICS)
    draw_story(vit, images[:1], maps, result, tmp_path / "a.png")
    for method in maps:
        said = f"{method} SaCo {result.values(method, 'saco')[0]:.3f}".replace("-", "−")
        assert said in words(drawn[0])
        assert f"AOPC {result.values(method, 'aopc')[0]:.3f}".replace("-", "−") in words(drawn[0])
    assert "random" not in words(drawn[0]), "there is none to compare with"


@pytest.mark.parametrize("k", [2, 20, "auto"])
def test_any_number_of_groups(k, vit, images, drawn, tmp_path):
    methods = ["rollout", "random"]
    result = fs.evaluate(vit, images[:1], methods, METRICS, k=k, random_draws=10)
    maps = fs.explain(vit, images[:1], methods)
    draw_story(vit, images[0], maps, result, tmp_path / "a.png")
    story = read_story(result)
    bars = [axes for axes in drawn[0].axes if axes.get_xlabel() == "group"]
    assert len(bars) == 2, "of the last row"
    heights = [bar.get_height() for bar in bars[0].patches]
    np.testing.assert_allclose(heights, story["random"].share.mean(0))
    heights = [bar.get_height() for bar in bars[1].patches]
    np.testing.assert_allclose(heights, 100 * story["random"].drop.mean(0))
    assert f"groups of pixels, K = {k} · " in words(drawn[0])
    assert "10 random" in words(drawn[0])
    low, high = (f"{bound(story['random'].saco):.3f}".replace("-", "−") for bound in (min, max))
    assert f"10 draws: {low} … {high}" in words(drawn[0])


def test_bars_pairs_and_curve_show_the_numbers(vit, images, drawn, tmp_path):
    maps = {"mine": randn(1, 16, 16, seed=5)}
    result = score_maps(vit, images[:1], maps, metrics=METRICS, k=6)
    draw_story(vit, images[:1], maps, result, tmp_path / "a.png")
    row = read_story(result)["mine"]
    alone, pairs, curve = panels(drawn[0])
    bars = {round(bar.get_x() + 0.36): bar for bar in alone.patches}
    np.testing.assert_allclose([bars[i].get_height() for i in range(1, 7)], 100 * row.drop[0])
    for i in range(6):
        out_of_order = row.drop[0, i] < row.drop[0, i:].max()
        assert bool(bars[i + 1].get_hatch()) == out_of_order
    white = (1.0, 1.0, 1.0, 1.0)
    areas = {True: 0.0, False: 0.0}
    for square in pairs.patches:
        areas[square.get_facecolor() != white] += square.get_width() ** 2
    right, wrong = areas[True], areas[False]
    assert (right - wrong) / (right + wrong) == pytest.approx(row.saco[0])
    line = next(line for line in curve.get_lines() if len(line.get_xdata()) == 11)
    np.testing.assert_allclose(line.get_ydata(), 100 * row.curve[0])


def panels(figure: Figure) -> list[Any]:
    """The axes of the last row: removed alone, pairs, curve."""
    by_label = {axes.get_xlabel(): axes for axes in figure.axes}
    return [by_label["group"], by_label["the less salient group"], by_label["removed"]]


def test_maps_that_cannot_be_scored_say_so(vit, images, drawn, tmp_path):
    broken = randn(1, 16, 16)
    broken[0, 2, 3] = float("nan")
    maps = {"flat": torch.ones(1, 16, 16), "broken": broken, "broken_patches": broken[:, :4, :4]}
    result = fs.evaluate(vit, images[:1], (), METRICS, maps=maps, random_draws=3)
    draw_story(vit, images[:1], maps, result, tmp_path / "a.png")
    said = words(drawn[0])
    assert said.count("not scored: the map holds NaN or infinity") == 2
    assert "constant map: it ranks nothing" in said
    assert "SaCo 0.000" in said
    assert "SaCo is 0 by definition" in said
    assert said.count("no SaCo") == said.count("no AOPC") == 2
    only = {"broken": broken}
    alone = score_maps(vit, images[:1], only, metrics=METRICS)
    draw_story(vit, images[:1], only, alone, tmp_path / "b.png")
    assert read_story(alone)["broken"].as_data()["k"] == 0


def test_a_model_that_answers_nan(images, drawn, tmp_path):
    class Shy(torch.nn.Module):
        """Answers NaN once the first pixel is gone."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.seen = toy(16, 16), float(images[0, 0, 0, 0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gone = x[:, 0, 0, 0] != self.seen
            return torch.where(gone[:, None], torch.nan, self.inner(x))

    model = fs.wrap(Shy(), name="shy")
    maps = {"mine": randn(1, 16, 16, seed=5)}
    result = score_maps(model, images[:1], maps, metrics=METRICS)
    draw_story(model, images[:1], maps, result, tmp_path / "a.png")
    assert "the model answered NaN" in words(drawn[0])


@pytest.mark.parametrize("size", [(8, 40), (40, 8), (1, 30)])
def test_images_that_are_not_square(size, drawn, tmp_path):
    model = fs.wrap(toy(*size), name="long")
    image, maps = randn(1, 3, *size), {"mine": randn(1, *size).abs(), "signed": randn(1, *size)}
    result = score_maps(model, image, maps, metrics=METRICS)
    draw_story(model, image, maps, result, tmp_path / "a.png")
    photograph = drawn[0].axes[0].get_position()
    width, height = drawn[0].get_size_inches() * (photograph.width, photograph.height)
    assert height / width == pytest.approx(size[0] / size[1], rel=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "$x_1$ & <b>bold</b> \\frac",
        "a class name that goes on and on, " * 12,
        "W" * 300,
        "猫\x00\n\tкот 🐈",
        "",
    ],
)
@pytest.mark.filterwarnings("error:Glyph")
def test_odd_names(name, images, drawn, tmp_path):
    model = fs.wrap(tiny_vit(), name=name or "m", classes=[f"{place} {name}" for place in range(5)])
    maps = {name or "m": randn(1, 16, 16)}
    result = fs.evaluate(
        model, images[:1], (), METRICS, maps=maps, labels=[4], target=3, random_draws=2
    )
    path = draw_story(model, images[:1], maps, result, tmp_path / "a.svg")
    assert next(ElementTree.parse(path).iter()).tag.endswith("svg"), "it is well-formed"
    assert "the true class is 4" in words(drawn[0])
    if len(name) < 40:
        plain = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        assert f"3 {plain}".strip() in words(drawn[0])


def test_patches_and_a_title(vit, images, drawn, tmp_path):
    result = fs.evaluate(vit, images, "rollout", METRICS, units="patches", k=4, random_draws=5)
    maps = fs.explain(vit, images[2:3], ["rollout"], units="patches")
    draw_story(vit, images[2], maps, result, tmp_path / "a.png", sample=2, title="my own title")
    said = words(drawn[0])
    assert "my own title" in said
    assert "groups of patches, K = 4 · " in said
    assert "5 draws of random attribution (random_patch" in said
    assert f"AOPC {result.values('rollout', 'aopc')[2]:.3f}".replace("-", "−") in said


def test_where_a_score_lies_among_random_draws(vit, images, drawn, tmp_path):
    """A map made of the answers beats every draw; its opposite loses to every one."""
    single = torch.eye(256, dtype=torch.float64).reshape(256, 16, 16).bool()
    image = images[:1]
    fill = image.mean((2, 3), keepdim=True)
    with torch.no_grad():
        target = vit.logits(image).argmax()
        p = vit.logits(torch.where(single[:, None], fill, image)).softmax(-1)[:, target]
    best = -p.reshape(1, 16, 16)
    maps = {"best": best, "worst": -best}
    result = fs.evaluate(vit, image, (), METRICS, maps=maps, random_draws=10)
    draw_story(vit, image, maps, result, tmp_path / "a.png")
    said = words(drawn[0])
    assert read_story(result)["best"].saco[0] > max(read_story(result)["random"].saco)
    assert re.search(r"best SaCo 0\.\d+ ▲ above 10 random:", said)
    assert "▼ below 10 random:" in said


def test_what_cannot_be_told_is_refused(vit, images, tmp_path):
    maps = {"mine": randn(1, 16, 16)}
    result = score_maps(vit, images[:1], maps, metrics=METRICS)
    path = tmp_path / "a.png"
    for match, arguments, options in (
        ("written as .png, .pdf, .svg, got 'a.txt'", (images[:1], maps, result, "a.txt"), {}),
        ("of one image", (images[:2], maps, result, path), {}),
        ("0 methods", (images[:1], {}, result, path), {}),
        ("'mime'.*did you mean", (images[:1], {"mime": maps["mine"]}, result, path), {}),
        ("one map", (images[:1], {"mine": randn(2, 16, 16)}, result, path), {}),
        ("no sample 1", (images[:1], maps, result, path), {"sample": 1}),
    ):
        with pytest.raises(fs.FaithscopeError, match=match):
            draw_story(vit, *arguments, **options)  # type: ignore[arg-type]
    for metrics in ("saco", "aopc", ("saco(weight=ratio)", "aopc")):
        other = score_maps(vit, images[:1], maps, metrics=metrics)
        with pytest.raises(fs.FaithscopeError, match="needs the metrics saco"):
            draw_story(vit, images[:1], maps, other, path)
    assert removal_groups(score_maps(vit, images[:1], maps, metrics="aopc")) == {}
    assert not path.exists()


def test_text_is_measured():
    long = "a word " * 40
    for width in (1.0, 2.0):
        lines = fit(long, width, size=9, lines=3).split("\n")
        assert len(lines) == 3
        assert all(0.6 * width < text_width(line, size=9) <= width for line in lines)
    assert fit("short", 5, size=9) == "short"


class TestCommand:
    def test_pictures(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        few = ("explain", "bundled:cifar10:3", "--story", "--random-draws", 2, "--methods")
        told = run(*few, "rollout,gradient").stdout
        with Image.open("bundled-cifar10-3-story.png") as picture:
            assert min(picture.size) > 1000
        data = json.loads(run(*few, "rollout", "--out", "x.pdf", "--json").stdout)
        assert Path("x.pdf").read_bytes().startswith(b"%PDF")
        rollout = data["story"]["rollout"]
        drop, salience = torch.tensor(rollout["drop"]), torch.tensor(rollout["salience"])
        assert float(fs.saco(salience, drop)) == pytest.approx(data["saco"]["rollout"], abs=1e-6)
        falls = rollout["p"][0] - np.array(rollout["p"])
        assert falls.mean() == pytest.approx(data["aopc"]["rollout"])
        assert len(data["story"][rollout["random"]]["draws"]["saco"]) == 2
        draws = data["story"]["random_patch"]["draws"]["saco"]
        row = rf"^rollout +{rollout['saco']:.3f} +{min(draws):.3f} … {max(draws):.3f}"
        assert re.search(row, told, re.MULTILINE)

    def test_draws_without_a_story(self):
        assert "needs --story" in fails("explain", "bundled:cifar10:3", "--random-draws", 2)
