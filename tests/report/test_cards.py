"""What a notebook shows of results, comparisons, models and images: cards of HTML, read as such."""

import base64
import copy
import pickle
import re
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import faithscope as fs
from conftest import NORMALISED, randn, tiny_vit
from faithscope.data.card import MOST_PICTURES
from faithscope.data.images import TensorImages, in_random_order
from made_up import made_up
from roar_runs import make_roar

EVIL = "<script>alert('x')</script>"


class Card(HTMLParser):
    """The elements and the text of a card; whatever is opened must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "img":
            self.pictures.append(dict(attrs))
        elif tag != "wbr":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def card(thing: object) -> Card:
    found = Card(thing._repr_html_())
    assert "script" not in found.tags and "button" not in found.tags
    return found


@pytest.fixture(scope="module")
def runs():
    rng = torch.Generator().manual_seed(0)

    def scores(mean: float) -> dict:
        values = {name: (mean + torch.randn(30, generator=rng) / 10).tolist() for name in "ab"}
        return {"saco": values["a"], "auc": values["b"]}

    methods = {"good": scores(0.6), EVIL: scores(0.0), "random": scores(0.0)}
    other = {"good": scores(0.2), EVIL: scores(0.0), "random": scores(0.0)}
    return made_up(methods), made_up(other, protocol={"fill": "blur"})


def test_a_result_shows_its_headline_scores_verdicts_and_protocol(runs):
    shown = card(runs[0])
    assert runs[0].headline() in shown.text
    for row in runs[0].summary().to_pylist():
        assert f"{row['mean']:.3f}".replace("-0.000", "0.000").replace("-", "−") in shown.text
    assert EVIL in shown.text and "▲ better" in shown.text
    assert "▲ better, ▼ worse than the matched random method" in shown.text
    assert "*" not in shown.text and "†" not in shown.text
    for line in (*runs[0].verdicts(), *runs[0].metric_verdicts()):
        assert line in shown.text
    assert "fill mean" in shown.text
    assert len(repr(runs[0])) < 100


def test_many_sentences_are_folded():
    few, many = (
        made_up({name: {"saco": np.arange(30.0)} for name in (*"abcdefgh"[:count], "random")})
        for count in (3, 8)
    )
    assert "details" not in card(few).tags
    assert "details" in card(many).tags and many.verdicts()[-1] in card(many).text


def test_a_comparison_shows_what_differs(runs):
    compared = fs.compare(*runs)
    shown = card(compared)
    assert compared.headline() in shown.text and "fill: mean → blur" in shown.text
    assert "worse in the second run" in shown.text and EVIL in shown.text
    for line in compared.sentences():
        assert line in shown.text
    assert isinstance(compared, fs.Comparison)
    assert repr(compared).startswith("Comparison(2 methods") or "Comparison(" in repr(compared)


def test_a_result_of_trainings_shows_itself():
    found = make_roar()
    assert found.headline() in card(found).text


def test_a_result_without_any_score_shows_itself():
    nothing = made_up({"m": {"saco": [float("nan")] * 3}, "random": {"saco": [0.0, 0.1, 0.2]}})
    assert "—" in card(nothing).text


# Models


class NeverRun(nn.Module):
    """Its card must not run it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        raise AssertionError("run")


def test_a_model_shows_what_it_takes_and_what_is_known_of_it():
    model = fs.wrap(tiny_vit(), name=EVIL, classes=list("abcdef"), **NORMALISED)
    shown = card(model)
    assert EVIL in shown.text and "mean 0.5, 0.4, 0.45; std 0.25, 0.2, 0.3" in shown.text
    assert "6: a, b, c, d, e, …" in shown.text
    assert "2 attention layers, 1 token before the patches" in shown.text
    assert "gradients, attention, hidden states and relevance" in shown.text
    assert "Not for" not in shown.text


def test_a_model_that_is_no_vit_says_which_methods_it_is_not_for():
    shown = card(fs.wrap(NeverRun(), name="mine"))
    assert "NeverRun, not known as a ViT" in shown.text
    refusal = "Not for methods that read attention, hidden states and relevance. That needs a stack"
    assert refusal in shown.text and shown.text.count("That needs") == 1
    assert "3 parameters in float32 on cpu" in shown.text


# Images


def pictures(shown: Card) -> list[Image.Image]:
    files = [re.sub(r"^data:image/\w+;base64,", "", held["src"] or "") for held in shown.pictures]
    return [Image.open(BytesIO(base64.b64decode(file))) for file in files]


def test_images_show_a_few_of_themselves_in_their_own_colours():
    model = fs.load_model("bundled:cifar10_vit")
    data = fs.load_data("bundled:cifar10", model, limit=30)
    shown = card(data)
    assert "bundled:cifar10: 30 images" in shown.text and "3×32×32" in shown.text
    assert repr(data) == "TensorImages(bundled:cifar10: 30 images)"
    assert len(shown.pictures) == MOST_PICTURES
    assert shown.pictures[0]["title"] == "0: airplane"
    mean, std = (torch.tensor(part).reshape(3, 1, 1) for part in (model.mean, model.std))
    expected = 255 * (data.images[0] * std + mean)
    first = torch.from_numpy(np.array(pictures(shown)[0])).permute(2, 0, 1)
    assert (first - expected).abs().max() <= 1
    sources = [held["src"] for held in shown.pictures]
    for same in (in_random_order(data, 0), fs.load_data(data.images, model)):
        assert [held["src"] for held in card(same).pictures] == sources


def test_data_can_be_copied_and_sent_though_a_model_cannot():
    model = fs.load_model("bundled:cifar10_vit")
    data = fs.load_data("bundled:cifar10", model, limit=2)
    for made in (pickle.loads(pickle.dumps(data)), copy.deepcopy(data)):
        assert made.model is None and torch.equal(made.images, data.images)
    assert data.model is model


def test_large_images_are_small_in_a_card():
    data = TensorImages(torch.rand(2, 3, 300, 200))
    assert [max(held.size) for held in pictures(card(data))] == [128, 128]
    assert len(data._repr_html_()) < 40_000 and len(repr(data)) < 60


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    Image.new("RGB", (20, 10), "red").save(tmp_path / "a.png")
    (tmp_path / "<b>.png").write_text("nothing")
    data = fs.load_data(str(tmp_path), fs.load_model("bundled:cifar10_vit"))
    shown = card(data)
    assert len(shown.pictures) == 1 and "'<b>.png': it cannot be read" in shown.text


def test_a_loader_is_not_read():
    def endless():
        raise AssertionError("read")
        yield

    model = fs.wrap(tiny_vit())
    for given in (endless(), DataLoader(torch.zeros(3, 3, 4, 4))):
        data = fs.load_data(given, model)
        shown = card(data)
        assert not shown.pictures and "read as they come" in shown.text
        assert len(repr(data)) < 60


def test_data_that_fails_shows_why():
    data = TensorImages(randn(3, 3, 4, 4))
    object.__setattr__(data, "images", [None] * 3)
    assert "None can be shown (AttributeError" in card(data).text
