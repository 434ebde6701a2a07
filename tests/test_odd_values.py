"""Values of the wrong kind, one by one: each was a foreign traceback or a wrong number once."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import faithscope as fs
from bags import BagLearner, bag_texts
from conftest import randn, toy
from faithscope.api import pack_run, unpack_run
from faithscope.registry import Registry
from families import refused

IMAGES = randn(2, 3, 4, 4)
MAPS = {"mine": randn(2, 4, 4)}


def evaluated(**options):
    return fs.evaluate(
        toy(4, 4), **{"data": IMAGES, "maps": MAPS, "metrics": "saco", "k": 2, **options}
    )


class Crooked:
    """Nothing can be asked of it."""

    def _raise(self, *_):
        raise RuntimeError("crooked")

    __repr__ = __len__ = __iter__ = __array__ = __fspath__ = __bool__ = _raise


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": "x"}, ["limit", "'x'"]),
        ({"limit": True}, ["limit", "True"]),
        ({"seed": "x"}, ["seed must be", "'x'"]),
        ({"seed": True}, ["seed must be", "True"]),
        ({"seed": 1.5}, ["seed must be", "1.5"]),
        ({"k": b"ab"}, ["k must be", "b'ab'"]),
        ({"k": itertools.count(2)}, ["k"]),
        ({"tolerance": True}, ["tolerance must be", "True"]),
        ({"out": 0}, ["out must be a path", "0"]),
        ({"out": ""}, ["out is empty"]),
        ({"out": "a\0b"}, ["out", "no file name"]),
        ({"out": "a" * 300}, ["out", "too long"]),
        ({"out": "~nosuchuser/x"}, ["out", "nobody"]),
        ({"out": "\ud800"}, ["out", "no file name"]),
        ({"out": Crooked()}, ["out must be a path", "Crooked"]),
        ({"checkpoint": 3}, ["checkpoint must be a path", "3"]),
        ({"target": True}, ["target must be class numbers"]),
        ({"target": b"ab"}, ["target must be class numbers"]),
        ({"target": [0.5, 1]}, ["target must be class numbers"]),
        ({"labels": [True, False]}, ["labels must be class numbers"]),
        ({"labels": torch.tensor([1j, 0])}, ["labels must be class numbers"]),
        ({"metrics": 3}, ["A metric is", "3"]),
        ({"metrics": b"saco"}, ["A metric is", "b'saco'"]),
        ({"metrics": np.array("saco")}, ["cannot be read one by one"]),
        ({"metrics": np.array([["saco"]])}, ["A metric is"]),
        ({"metrics": itertools.repeat("saco")}, ["More than 20,000"]),
        ({"methods": itertools.count()}, ["More than 20,000"]),
        ({"methods": [3]}, ["A method is", "3"]),
        ({"methods": Crooked()}, ["cannot be read one by one"]),
        ({"methods": [Crooked()]}, ["A method is", "Crooked"]),
        ({"data": "a" * 300}, ["no folder or image", "aaa"]),
        ({"data": "a\0b"}, ["no folder or image"]),
        ({"data": Crooked()}, []),
        ({"data": IMAGES.to(torch.complex64)}, ["Images must be float tensors"]),
        ({"data": IMAGES.to("meta")}, ["Images must be float tensors"]),
        ({"maps": 3}, ["maps must be given by name"]),
        ({"maps": {"mine": "text"}}, ["no file or folder of maps 'text'"]),
        ({"maps": {"mine": MAPS["mine"].to(torch.complex64)}}, ["The maps 'mine'"]),
        ({"progress": 3}, ["progress must be a function", "3"]),
        ({"pretrained": 1}, ["pretrained must be true or false", "1"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_evaluate_refuses(options, words):
    with refused(*words):
        evaluated(**options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fs.load_text(0), ["data must be a path", "0"]),
        (lambda: fs.load_text("x", limit="x"), ["limit must be", "'x'"]),
        (lambda: fs.load_text("x", limit=True), ["limit must be", "True"]),
        (lambda: fs.load_text("a\0b"), ["no file or folder"]),
        (lambda: fs.load_text("a" * 300), ["no file or folder"]),
        (lambda: fs.load_text("babi:~nosuchuser"), ["nobody"]),
        (lambda: fs.load_text("/dev/null"), ["not a file of texts"]),
        (lambda: fs.load_study(5), ["must be a path", "5"]),
        (lambda: fs.load_study(Path(__file__), 5), []),
        (lambda: fs.load_result(None), ["must be a path", "None"]),
        (lambda: fs.load_results(3), ["must be a path", "3"]),
        (lambda: fs.load_data(3, fs.wrap(toy(4, 4))), ["Images are", "got int"]),
        (lambda: fs.load_data("x", toy(4, 4)), ["faithscope Model"]),
        (lambda: fs.load_data("x", fs.wrap(toy(4, 4)), limit="x"), ["limit must be", "'x'"]),
        (lambda: fs.roar(bag_texts(), 3), ["'bilstm'", "learner", "3"]),
        (lambda: fs.roar(bag_texts(), procedures=2), ["procedure '2'", "recursive, roar"]),
        (lambda: fs.roar(bag_texts(), seeds=b"ab"), ["a number of seeds", "b'ab'"]),
        (lambda: fs.roar(bag_texts(), seeds=True), ["a number of seeds", "True"]),
        (lambda: fs.roar(bag_texts(), measures=itertools.count()), ["More than 20,000"]),
        (lambda: fs.compare(3, 4), ["must be a path", "3"]),
        (lambda: fs.metric(3), ["A name is text", "3"]),
        (lambda: fs.metric("saco", penalty="x"), ["penalty", "'x'"]),
        (lambda: fs.metric("saco", k=[]), ["k must be", "[]"]),
        (lambda: fs.metric("auc", step=True), ["step", "True"]),
        (lambda: fs.method(None), ["A name is text", "None"]),
        (lambda: fs.method("gradient", modality=3), ["modality '3'"]),
        (lambda: fs.measure(["gradient"]), ["A name is text"]),
        (lambda: fs.racu([1, 0], [1, 0], [0, 1], clip="x"), ["clip", "'x'"]),
        (lambda: pack_run(3), ["must be a path", "3"]),
        (lambda: unpack_run(3, "x"), ["cannot be read one by one"]),
        (lambda: unpack_run([3], "x"), ["must be a path", "3"]),
    ],
)
def test_every_other_call_refuses(call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(*words):
        call()


def test_results_refuse(tmp_path):
    result = evaluated()
    for call, words in (
        (lambda: result.save(None), ["must be a path"]),
        (lambda: result.report(0), ["must be a path"]),
        (lambda: result.report("."), ["name a file"]),
        (lambda: result.values(3, "saco"), ["method of this result '3'"]),
        (lambda: result.values("mine", "saco", "roar"), ["procedure of this result 'roar'"]),
        (lambda: result.arrow(["saco"]), ["metric of this result"]),
        (lambda: result.get_table("nothing"), ["table 'nothing'", "scores"]),
        (lambda: result.rescore(3), ["A metric is"]),
        (lambda: result.rescore(k="x"), ["k must be", "'x'"]),
        (lambda: fs.compare(3, result), ["must be a path", "3"]),
        (lambda: fs.compare(result, result, metrics=3), ["A metric is", "3"]),
        (lambda: fs.compare(result, result, allow=3), ["An option is", "3"]),
        (lambda: fs.compare(result, result, methods=[3]), ["The name of a method is text", "3"]),
    ):
        with refused(*words):
            call()


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    result = evaluated(out="~/runs/one")
    assert (tmp_path / "runs/one/manifest.json").exists()
    result.save("~/again")
    result.report("~/page.html")
    assert fs.load_result("~/again").metrics == ["saco"]
    assert (tmp_path / "page.html").exists()


# Registered names


@pytest.mark.parametrize(
    "name",
    [
        *(3, None, ["x"], b"x", "", "all", "registered", "a(b)", "a,b", "../../x", "..", "a b"),
        *("a\n", "\x1b[31m", "captum:mine", "x" * 101),
    ],
)
def test_a_name_that_could_not_be_written_is_not_registered(name):
    registry = Registry[int]("method")
    with refused("The name of a method is one word", "all or registered"):
        registry.register(name, 1)
    with refused("The name of a method is one word"):
        fs.register_method(name, granularity="pixel")(lambda evidence: evidence.images.sum(1))
    with refused("The name of a metric is one word"):
        fs.register_metric(type("Mine", (fs.Metric,), {**TRAITS, "name": name}))


TRAITS = {"higher_is_better": True, "bounds": (0.0, 1.0), "paper": "", "equation": ""}


def test_what_is_registered_is_a_function_or_a_metric():
    with refused("A method is a function", "3"):
        fs.register_method("mine")(3)
    with refused("A metric is a class", "3"):
        fs.register_metric(3)
    with refused("has no 'higher_is_better'"):
        fs.register_metric(type("Mine", (fs.Metric,), {"name": "mine"}))
    with refused("evidence", "3"):
        fs.register_method("mine", needs=3)
    with refused("evidence '3'"):
        fs.register_measure("mine", needs=[3])
    with refused("granularity"):
        fs.register_method("mine", granularity=np.array(["pixel", "patch"]))
    with refused("traits of 'mine'", "ZeroDivisionError"):
        fs.register_method("mine", needs=lambda **_: 1 / 0)(lambda evidence: evidence)


# What methods, metrics and learners give


@pytest.mark.parametrize(
    "made", [None, "text", 1j, [1j], torch.ones(2, 4, 4) * 1j, b"abc", Crooked(), {"a": 1}]
)
def test_a_method_gives_numbers(made):
    def mine(module, images, target):
        return made

    for call in (lambda: fs.explain(toy(4, 4), IMAGES, mine), lambda: evaluated(methods=mine)):
        with refused("mine"):
            call()


@pytest.mark.parametrize("kind", [torch.int8, torch.bool, torch.uint8, torch.float16])
def test_maps_of_a_method_may_be_of_any_type(kind):
    maps = (randn(2, 4, 4) * 50).to(kind)

    def mine(module, images, target):
        return maps[: len(images)]

    found = fs.explain(toy(4, 4), IMAGES, mine)
    assert found.is_floating_point()
    own = evaluated(methods=mine, random_draws=0, maps={"given": maps})
    assert own.values("mine", "saco").tolist() == own.values("given", "saco").tolist()


@pytest.mark.parametrize("made", [None, "text", torch.ones(2) * 1j, [[1, 2]], Crooked()])
def test_a_metric_gives_numbers(made):
    def mine(responses):
        return made

    @dataclass(frozen=True)
    class Own(fs.Metric):
        name: ClassVar[str] = "own"
        higher_is_better: ClassVar[bool] = True
        bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
        paper: ClassVar[str] = ""
        equation: ClassVar[str] = ""

        def resolution(self, k):
            return 2

        def spans(self, k):
            return fs.metric("aopc").spans(k)

        def score(self, responses):
            return made

    for metric, name in ((mine, "'mine'"), (Own(), "'own'")):
        with refused(name):
            evaluated(metrics=metric)


def test_a_metric_that_raises_is_named():
    def mine(responses):
        return responses.nothing

    with refused("'mine'", "AttributeError"):
        evaluated(metrics=mine)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([], ["a list of scores for", "gave []"]),
        (None, ["gave None"]),
        ([None] * 2, ["must be an array of numbers"]),
        ([torch.zeros(1, 1)] * 2, ["one score for each token"]),
    ],
)
def test_a_learner_gives_scores_for_every_model(made, words):
    learner = BagLearner()
    learner.explain = lambda *_: made
    with refused(*words):
        fs.roar(bag_texts(), learner, measures="gradient", seeds=2, levels=[50])


def test_a_learner_encodes_tokens():
    learner = BagLearner()
    learner.encode = lambda _: 3
    with refused("TokenData", "3"):
        fs.prepare_roar(bag_texts(), learner)


# Texts of one's own making


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "mine"}, ["kind of texts 'mine'", "own"]),
        ({"metric": 3}, ["metric of texts '3'"]),
        ({"selection": "loss"}, ["selection of texts 'loss'"]),
        ({"name": ""}, ["The name of texts"]),
        ({"classes": 3}, ["The classes of 'bags'", "3"]),
        ({"classes": ("one",)}, ["labels of the train split", "from 0 to 0"]),
        ({"test": None}, ["the test split of 'bags'", "None"]),
        ({"labels": np.array([0.5] * 24)}, ["labels of the test split"]),
        ({"labels": np.array([7] * 24)}, ["labels of the test split", "from 0 to 1"]),
        ({"labels": np.array([0] * 23)}, ["not equally many"]),
        ({"texts": (3,) * 24}, ["not a text"]),
        ({"words": ("text",) * 24}, ["lists of words"]),
        ({"auxiliary_words": (("a",),) * 24}, ["second text"]),
    ],
)
def test_texts_must_go_together(changes, words):
    data = bag_texts()
    inner = {name: value for name, value in changes.items() if hasattr(data.test, name)}
    data = replace(data, test=replace(data.test, **inner)) if inner else replace(data, **changes)
    with refused(*words):
        fs.prepare_roar(data, BagLearner(), measures="gradient", seeds=1, levels=[50])
