"""`fs.plot`: figures that a notebook shows, in axes of one's own, and what cannot be drawn."""

from io import BytesIO

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import faithscope as fs
from conftest import randn, tiny_vit
from faithscope.data.images import TensorImages
from families import refused
from roar_runs import make_roar

METHODS = ["rollout", "gradient"]


@pytest.fixture(scope="module")
def model() -> fs.Model:
    return fs.wrap(tiny_vit(dtype=torch.float32), name="tiny")


@pytest.fixture(scope="module")
def images():
    return randn(5, 3, 16, 16, dtype=torch.float32)


@pytest.fixture(scope="module")
def maps(model, images):
    return fs.explain(model, images, METHODS)


@pytest.fixture(scope="module")
def result(model, images) -> fs.Result:
    metrics = ["saco(k=4)", "saco(k=8)", "aopc"]
    return fs.evaluate(model, images, METHODS, metrics, random_draws=1)


@pytest.fixture(scope="module")
def roar() -> fs.Result:
    return make_roar(seeds=3)


def shown(figure: Figure) -> Image.Image:
    """As a notebook shows it."""
    return Image.open(BytesIO(figure._repr_png_()))


def test_every_plot_is_a_figure_that_a_notebook_shows(model, images, maps, result, roar):
    before = dict(matplotlib.rcParams)
    told = {name: held[0] for name, held in maps.items()}
    single = fs.evaluate(model, images[:1], METHODS, ["saco", "aopc"], random_draws=1)
    drawn = {
        "heatmaps": fs.plot.heatmaps(images, maps, model=model),
        "one method": fs.plot.heatmaps(images.numpy(), maps["rollout"].numpy()),
        "story": fs.plot.story(model, images[0], told, single),
        **{name: getattr(fs.plot, name)(result) for name in ("intervals", "radar", "curves")},
        **{name: getattr(fs.plot, name)(result) for name in ("correlations", "k_choice")},
        "trainings": fs.plot.curves(roar),
        "sparsity": fs.plot.sparsity(roar),
    }
    for name, figure in drawn.items():
        assert isinstance(figure, Figure), name
        picture = shown(figure)
        assert 250 < picture.width < 1400 and picture.height > 150, name
        assert np.asarray(picture.convert("L")).std() > 5, name  # something is on it
    assert dict(matplotlib.rcParams) == before


def test_pyplot_knows_nothing_of_them(result, maps, images):
    import matplotlib.pyplot as plt

    fs.plot.intervals(result)
    fs.plot.heatmaps(images, maps)
    assert plt.get_fignums() == []


def test_a_legend_is_inside_the_figure(result):
    figure = fs.plot.curves(result)
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == set(result.methods)
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert 0 <= box.x0 and box.x1 <= figure.bbox.x1
    axes = figure.axes[0].get_window_extent()
    assert axes.x1 <= box.x0 + 1


def test_it_looks_the_same_whoever_draws_it(result):
    own = fs.plot.intervals(result)._repr_png_()
    with matplotlib.rc_context({"font.size": 20, "xtick.labelsize": 25}):
        figure = fs.plot.intervals(result)
        assert figure._repr_png_() == own


def test_panels_are_drawn_in_given_axes(result, roar, maps, images):
    figure = Figure(figsize=(12, 8))
    axes = figure.subplots(3, 3)
    methods = [*METHODS, "random", "random_patch"]
    assert fs.plot.intervals(result, metrics="aopc", ax=axes[0, 0]) is figure
    names = [label.get_text() for label in axes[0, 0].get_yticklabels()]
    assert names == methods and axes[0, 0].yaxis_inverted()
    assert fs.plot.curves(result, ax=axes[0, 1]) is figure
    assert {t.get_text() for t in axes[0, 1].get_legend().get_texts()} == set(methods)
    assert fs.plot.correlations(result, ax=axes[0, 2]) is figure
    assert len(axes[0, 2].patches) == 3
    assert fs.plot.radar(result, methods=["rollout"], ax=axes[1, 0]) is figure
    assert fs.plot.heatmaps(images[:2], maps["gradient"][:2], ax=axes[1, 1:]) is figure
    assert [len(panel.images) for panel in axes[1, 1:]] == [1, 1]
    assert fs.plot.curves(roar, ax=list(axes[2, :2])) is figure
    assert fs.plot.k_choice(result, ax=axes[2, 2]) is figure
    assert len(figure.axes) == 9  # and none of our own


def test_axes_of_a_part_of_a_figure_give_the_whole_figure(result):
    figure = Figure()
    part, _ = figure.subfigures(1, 2)
    assert fs.plot.curves(result, ax=part.subplots()) is figure


def test_more_images_than_are_drawn_are_counted(images, maps):
    figure = fs.plot.heatmaps(images, maps, limit=2)
    assert "The first 2 of 5 images" in [text.get_text() for text in figure.texts]
    assert sum(bool(axes.images) for axes in figure.axes) == 2 * 3 + 1  # and the key


def test_data_knows_its_own_colours():
    model = fs.load_model("bundled:cifar10_vit")
    data = fs.load_data("bundled:cifar10", model, limit=2)
    maps = torch.rand(2, 8, 8)
    by_data, by_hand = (
        fs.plot.heatmaps(data, maps),
        fs.plot.heatmaps(data.images, maps, model=model),
    )
    assert by_data._repr_png_() == by_hand._repr_png_()
    assert by_data._repr_png_() != fs.plot.heatmaps(data.images, maps)._repr_png_()


def test_what_cannot_be_drawn_is_said(model, images, maps, result, roar):
    axes = Figure().subplots(1, 2)
    with refused("has 3 panels, got 1 axes"):
        fs.plot.intervals(result, ax=axes[0])
    with refused("has 1 panel, got 2 axes"):
        fs.plot.curves(result, ax=axes)
    with refused("ax must be axes of matplotlib"):
        fs.plot.curves(result, ax="here")
    with refused("ax must be axes of matplotlib"):
        fs.plot.curves(result, ax=[])
    with refused("Unknown metric of this result", "did you mean 'aopc'"):
        fs.plot.intervals(result, metrics=["aopcc"])
    with refused("A plot is of a result", "Model(tiny"):
        fs.plot.curves(model)
    with refused("only a run of fs.roar"):
        fs.plot.sparsity(result)
    few = fs.evaluate(model, images, "gradient", "saco", random_draws=0)
    for name, why in {
        "k_choice": "the run has one K",
        "correlations": "at least two metrics",
        "radar": "at least three metrics",
        "curves": "step by step, as aopc does",
    }.items():
        with refused("There is nothing to draw", why):
            getattr(fs.plot, name)(few)
    for name in ("intervals", "radar", "correlations", "k_choice"):
        with refused("of an evaluation of samples"):
            getattr(fs.plot, name)(roar)
    with refused("There are 2 images, but 5 of the maps 'rollout'"):
        fs.plot.heatmaps(images[:2], maps)
    with refused("limit must be"):
        fs.plot.heatmaps(images, maps, limit=0)
    with refused("images of one size"):
        fs.plot.heatmaps(TensorImages([images[0], images[1, :, :8, :8]]), maps)
    with refused("The images must be tensors", "fs.load_data(images, model)"):
        fs.plot.heatmaps("photo.jpg", maps)


def test_the_namespace_is_small_and_documented():
    for name in fs.plot.__all__:
        assert getattr(fs.plot, name).__doc__
    assert "plot" in dir(fs)


def test_a_story_takes_all_images_of_a_result(model, images, maps):
    result = fs.evaluate(model, images, METHODS, ["saco", "aopc"], random_draws=1)
    data = TensorImages(images)
    all_given = shown(fs.plot.story(model, data, maps, result, sample=2))
    one = {name: held[2] for name, held in maps.items()}
    single = shown(fs.plot.story(model, images[2], one, result, sample=2))
    np.testing.assert_array_equal(np.asarray(all_given), np.asarray(single))
    with refused("A story is of one image", "[2, 3, 16, 16]"):
        fs.plot.story(model, images[:2], maps, result)
    with refused("maps by method", "got Tensor"):
        fs.plot.story(model, images[0], maps["rollout"][0], result)


def test_pictures_are_to_be_prepared_for_a_model(model, maps, result):
    photo = Image.new("RGB", (16, 16))
    for given in ([photo] * 5, photo, "photos/*.jpg"):
        with refused("fs.load_data(images, model)"):
            fs.plot.heatmaps(given, maps)
    with refused("fs.load_data(images, model)"):
        fs.plot.story(model, [photo], maps, result)
