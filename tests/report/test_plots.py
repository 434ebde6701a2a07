"""Plots: what they show, when there is nothing to show, and that no text leaves the picture."""

from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch

import faithscope as fs
from conftest import randn, tiny_vit
from faithscope.report import lines, plots
from faithscope.report.style import Plot, house_style
from faithscope.verdicts.sensitivity import sensitivity_rows

EVIL = "<script>alert('method')</script>"
ODD = ("no map", "_first", "$x^2$ & y", EVIL, "a_long_name(with=options, and_more=up_to_the_end)")
METRICS = ["saco(k=4)", "saco(k=8)", "aopc", "log_odds", "comprehensiveness"]


@pytest.fixture(scope="module")
def model() -> fs.Model:
    return fs.wrap(tiny_vit(dtype=torch.float32), name="tiny")


def evaluated(model: fs.Model, images: int, names: tuple[str, ...], **options) -> fs.Result:
    maps = {name: randn(images, 16, 16, seed=place) for place, name in enumerate(names)}
    maps[names[0]][:] = float("nan")
    pixels = randn(images, 3, 16, 16, seed=50, dtype=torch.float32)
    settings = {"metrics": METRICS, "random_draws": 1, **options}
    return fs.evaluate(model, pixels, methods=(), maps=maps, **settings)


@pytest.fixture(scope="module")
def many(model: fs.Model) -> fs.Result:
    """Sixteen methods with odd names, one of them without a score."""
    return evaluated(model, 12, ODD + tuple(f"method_number_{i}" for i in range(11)))


@pytest.fixture(scope="module")
def alone(model: fs.Model) -> fs.Result:
    """One image, so no intervals."""
    return evaluated(model, 1, ODD)


def every_plot(result: fs.Result) -> list[Plot]:
    moved = plots.sensitivity(sensitivity_rows({"run": result}))
    return [*plots.plots_of(result), *([moved] if moved else [])]


def words(plot: Plot) -> list[str]:
    return [text for text in ElementTree.fromstring(plot.svg()).itertext() if text.strip()]


@pytest.mark.parametrize("which", ["many", "alone"])
def test_every_text_is_whole_and_inside_the_picture(which: str, request) -> None:
    drawn = every_plot(request.getfixturevalue(which))
    names = ["intervals", "radar", "curves", "correlations", "k_choice", "sensitivity"]
    assert [plot.name for plot in drawn] == names
    for plot in drawn:
        assert plot.caption.endswith(".") and plot.description.endswith(".") and plot.title
        with house_style():
            plot.figure.draw_without_rendering()
            drawn_on = plot.figure.get_tightbbox()
        width, height = plot.figure.get_size_inches()
        assert drawn_on.x0 > -0.02 and drawn_on.x1 < width + 0.02, plot.name
        assert drawn_on.y0 > -0.02 and drawn_on.y1 < height + 0.02, plot.name


def test_names_stand_as_they_are_in_svg(many: fs.Result) -> None:
    for plot in plots.plots_of(many):
        assert "<script>" not in plot.svg()
        if plot.name != "correlations":
            names = {name for _, _, name in plot.legend}
            assert {"_first", "$x^2$ & y"} <= {*words(plot), *names}, plot.name


def test_plots_can_be_saved_for_papers_and_are_the_same_each_time(
    many: fs.Result, tmp_path: Path
) -> None:
    first, second = (lines.k_choice(many) for _ in range(2))
    assert first.svg() == second.svg()
    assert first.save(tmp_path / "new" / "a.pdf").read_bytes().startswith(b"%PDF")
    assert first.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").write_text("")
    with pytest.raises(fs.FaithscopeError, match="cannot be written"):
        first.save(tmp_path / "file" / "a.pdf")


def test_nothing_is_drawn_of_what_a_run_does_not_hold(model: fs.Model) -> None:
    lone = evaluated(model, 4, ODD[:2], metrics=["saco"], random_draws=0)
    assert [plot.name for plot in plots.plots_of(lone)] == ["intervals"]
    two = evaluated(model, 4, ODD[:3], metrics=["saco", "aopc"])
    assert [plot.name for plot in plots.plots_of(two)] == ["intervals", "curves", "correlations"]
    assert plots.sensitivity([]) is None


def test_panels_that_no_metric_needs_are_not_seen(model: fs.Model) -> None:
    metrics = [f"aopc(steps={steps})" for steps in range(2, 9)]  # seven, in two lines of four
    panels = plots.intervals(evaluated(model, 2, ODD[:2], metrics=metrics)).figure.axes
    assert [axes.get_visible() for axes in panels] == [True] * 7 + [False]


def test_radar_runs_from_the_worst_to_the_best_mean_outward_is_better(many: fs.Result) -> None:
    cells = {(row["metric"], row["method"]): row for row in many.summary().to_pylist()}
    reach = plots._reach(many, cells)
    assert np.isnan(reach["no map"]).all()
    known = np.array([values for name, values in reach.items() if name != "no map"])
    np.testing.assert_allclose(known.min(0), plots.INNERMOST)
    np.testing.assert_allclose(known.max(0), 1)
    down = many.metrics.index("log_odds")
    means = {name: cells["log_odds", name]["mean"] for name in many.methods if name != "no map"}
    assert reach[min(means, key=means.get)][down] == 1  # lower is better


def test_radar_of_equal_scores_lies_in_the_middle(many: fs.Result) -> None:
    row = {"mean": 0.25}
    cells = {(metric, method): row for metric in many.metrics for method in many.methods}
    reach = plots._reach(many, cells)
    middle = (1 + plots.INNERMOST) / 2
    assert all((values == pytest.approx(middle)) for values in reach.values())


def test_correlations_hold_every_number_once(many: fs.Result) -> None:
    text = words(plots.correlations(many))
    for row in many.correlations().to_pylist():
        assert f"{row['correlation']:.2f}".replace("-", "−") in text
        assert f"[{row['ci_low']:.2f}, {row['ci_high']:.2f}]".replace("-", "−") in text
    pairs = len(METRICS) * (len(METRICS) - 1) // 2
    assert sum(word.startswith("[") for word in text) == pairs


@pytest.mark.parametrize("value", np.linspace(-1, 1, 21))
def test_a_cell_can_be_read_in_both_modes(value: float) -> None:
    paper = matplotlib.colors.to_hex(plots.AGREEMENT((value + 1) / 2))
    ink = plots._readable(paper)
    light, dark = sorted((luminance(paper), luminance(ink)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) > 4
    from faithscope.report.style import _VARIABLES

    assert paper not in _VARIABLES and ink not in _VARIABLES  # the page must not change only one


def luminance(colour: str) -> float:
    linear = [((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(colour)]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_k_choice_shows_the_means_in_rising_order_of_k(model: fs.Model) -> None:
    names = ("none", "one", "two")
    run = evaluated(model, 3, names, metrics=["saco(k=8)", "saco(k=auto)", "saco(k=4)"])
    axes = lines.k_choice(run).figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8", "auto"]
    line = axes.get_lines()[names.index("one")]
    means = [run.values("one", f"saco(k={k})").mean() for k in (4, 8, "auto")]
    np.testing.assert_allclose(line.get_ydata(), np.insert(means, 2, np.nan))


def test_sensitivity_has_a_line_per_choice_and_metric_and_a_dot_per_place() -> None:
    row = {
        "axis": "fill",
        "first": "mean",
        "second": "blur",
        "metric": "saco",
        "signed": 0.1,
        "signed_low": 0.05,
        "signed_high": 0.2,
        "flipped": 0.25,
        "agreement": 0.5,
        "agreement_low": float("nan"),
        "agreement_high": float("nan"),
    }
    rows = [
        {**row, "where": "k=5"},
        {**row, "where": "k=10", "signed": -0.3, "signed_low": -0.4, "flipped": 0.75},
        {**row, "where": "", "axis": "ties", "first": "a", "second": "b"},
    ]
    plot = plots.sensitivity(rows)
    text = words(plot)
    for found in ("fill: mean → blur", "ties: a → b", "−0.300 to +0.100", "25 to 75 %", "25 %"):
        assert found in text
    assert "+0.100 [+0.050, +0.200]" in text
    assert text.count("saco") == 2
    changes = [line for line in plot.figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in changes] == pytest.approx([0.25, -0.75, 0.25])
    assert "Each dot is one setting" in plot.caption
