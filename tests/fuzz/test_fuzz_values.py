"""Every public function, every argument, any value: a result or one sentence, never a traceback."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import faithscope as fs
import odd
from bag_runs import SMALL
from bags import BagLearner, bag_texts
from conftest import randn, tiny_vit, toy
from faithscope.api import pack_run, unpack_run
from faithscope.methods import METHODS
from faithscope.methods.method import MEASURES
from faithscope.metrics import METRICS, absolute_area, area, mean_drop, mean_log_odds
from fuzzing import answered, cases

pytestmark = pytest.mark.filterwarnings("ignore")

Call = tuple[Callable[..., Any], dict[str, Any]]

IMAGES = randn(2, 3, 4, 4)
CSV = "text,label\n" + "".join(f"word{i % 5} and some more,{i % 2}\n" for i in range(40))
CHEAP = {"methods": "gradient", "metrics": "saco", "k": 2, "random_draws": 1, "pictures": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a finished run of each kind, texts and a study."""
    root = tmp_path_factory.mktemp("values")
    fs.evaluate(toy(4, 4), IMAGES, out=root / "run", **CHEAP)
    fs.roar(bag_texts(), BagLearner(), out=root / "roar", **{**SMALL, "measures": "gradient"})
    (root / "texts.csv").write_text(CSV)
    (root / "study.yaml").write_text("model: bundled:cifar10_vit\ndata: bundled:cifar10\n")
    return root


@pytest.fixture(scope="module")
def calls(place: Path) -> dict[str, Call]:
    model, texts = fs.wrap(toy(4, 4)), bag_texts()
    run, trained = fs.load_result(place / "run"), fs.load_result(place / "roar")
    runs, compared = fs.load_results(place / "run"), fs.compare(run, run)
    options = {name: None for name in ("limit", "out", "tolerance", "checkpoint", "labels", "maps")}
    protocol = {"target": "predicted", "fill": "mean", "units": "pixels", "upsample": "bilinear"}
    others = {"ties": "ascending", "group": "sum", "seed": 0, "precision": "auto", "device": "auto"}
    small = {"batch_size": "auto", "pretrained": True, "progress": None}
    perturb = {"model": model, "data": IMAGES, **CHEAP, **options, **protocol, **others, **small}
    retrain = {"data": texts, "model": "bilstm", "measures": "gradient", "metrics": "racu"}
    retrain |= {"seeds": 1, "levels": [50], "strategy": "relative", "procedures": "roar"}
    retrain |= {"epochs": 1, "batch_size": 4, "learning_rate": 0.1, "specials": True}
    retrain |= {"limit": None, "device": "cpu", "keep_weights": False, "keep_every": 1.0}
    curve = {"curve": [1.0, 0.5], "baseline": [1.0, 0.8], "ratios": [0.0, 1.0]}
    new = {"out": None}
    return {
        "evaluate": (fs.evaluate, perturb),
        "prepare": (fs.prepare, {k: v for k, v in perturb.items() if k != "progress"}),
        "explain": (
            fs.explain,
            {"model": model, "data": IMAGES, "methods": "gradient", "target": None}
            | {"units": "pixels", "upsample": "bilinear", "seed": 0},
        ),
        "prepare_roar": (fs.prepare_roar, retrain | new),
        "prepare_roar by name": (
            fs.prepare_roar,
            {"data": str(place / "texts.csv"), "model": "bilstm", "limit": None, "seeds": 1},
        ),
        "compare": (
            fs.compare,
            {"first": run, "second": run, "methods": None, "metrics": None, "allow": ()},
        ),
        "compare trainings": (fs.compare, {"first": trained, "second": trained}),
        "saco": (
            fs.saco,
            {"salience": [2.0, 1.0], "drop": [0.1, 0.2], "weight": "difference", "penalty": 0.0},
        ),
        "racu": (fs.racu, {**curve, "clip": True}),
        "absolute_area": (absolute_area, curve),
        "mean_drop": (mean_drop, {"p0": 0.9, "p": [0.9, 0.1]}),
        "mean_log_odds": (mean_log_odds, {"log_p0": 0.0, "log_p": [0.0, -1.0]}),
        "area": (area, {"values": [1.0, 0.5]}),
        "load_data": (
            fs.load_data,
            {"data": "bundled:cifar10:1", "model": model, "limit": None, "seed": None},
        ),
        "load_text": (fs.load_text, {"name": place / "texts.csv", "limit": None}),
        "load_result": (fs.load_result, {"folder": place / "run"}),
        "load_results": (fs.load_results, {"folder": place / "run"}),
        "load_study": (fs.load_study, {"path": place / "study.yaml", "changes": None}),
        "method": (fs.method, {"name": "rollout", "modality": "image", "start_layer": 0}),
        "measure": (fs.measure, {"name": "integrated_gradients", "steps": 3, "signed": False}),
        "metric": (fs.metric, {"name": "saco", "k": 5, "weight": "ratio", "penalty": 0.0}),
        "metric auc": (fs.metric, {"name": "auc", "step": 5}),
        "metric racu": (fs.metric, {"name": "racu", "clip": True}),
        "metric aopc": (fs.metric, {"name": "aopc", "steps": 5}),
        "register_method": (
            _registered(fs.register_method),
            {"name": "odd", "granularity": "pixel", "needs": (), "modality": "image"}
            | {"function": len},
        ),
        "register_measure": (
            _registered(fs.register_measure),
            {"name": "odd", "needs": (), "function": len},
        ),
        "layer_method": (
            _registered(fs.layer_method),
            {"name": "odd", "needs": ("attention",), "function": len},
        ),
        "register_metric": (fs.register_metric, {"cls": fs.Metric}),
        "Result.values": (run.values, {"method": "gradient", "metric": "saco", "procedure": None}),
        "Result.get_table": (run.get_table, {"name": "scores"}),
        "Result.arrow": (run.arrow, {"metric": "saco"}),
        "Result.report": (run.report, {"path": "page.html"}),
        "Result.save": (run.save, {"folder": "saved"}),
        "Result.rescore": (run.rescore, {"metrics": "saco", "k": 2, "group": "sum"}),
        "Result.curves": (trained.curves, {"metric": None}),
        "Result.racu": (trained.racu, {"clip": None, "metric": None}),
        "Result.rescore of trainings": (trained.rescore, {"metrics": "racu"}),
        "Runs": (runs.__getitem__, {"label": "run"}),
        "Runs.report": (runs.report, {"path": "page.html"}),
        "Comparison": (compared.sentences, {}),
        "Prepared.at": (fs.prepare(model, IMAGES, **CHEAP).at, {"out": "at"}),
        "pack_run": (pack_run, {"run": place / "run", "to": "x.tar.gz", "states": False}),
        "unpack_run": (unpack_run, {"parcels": "x.tar.gz", "out": "unpacked"}),
        "wrap": (
            fs.wrap,
            {"module": toy(4, 4), "name": "x", "input_size": (4, 4), "mean": (0.5,) * 3}
            | {"std": (0.5,) * 3, "classes": list("abcd"), "transform": None, "attention": None}
            | {"patch_size": None, "prefix_tokens": None, "readout": None},
        ),
        "synthetic_problem": (
            fs.synthetic_problem,
            {"train_size": 200, "test_size": 50, "model": "linear", "noise": "shared", "seed": 0},
        ),
        "Model.class_name": (model.class_name, {"index": 0}),
        "Model.to": (model.to, {"device": "cpu"}),
    }


def _registered(register: Callable[..., Any]) -> Callable[..., Any]:
    def call(function: Any, **options: Any) -> Any:
        name = options.pop("name")
        return register(name, **options)(function)

    return call


def _is_theirs(argument: str, value: Any) -> bool:
    """What raises by itself is the caller's business, and a loader without an end runs on."""
    return (argument == "progress" and callable(value)) or argument == "data"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Odd paths are written somewhere else, and what is registered is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = [(registry, dict(registry._items)) for registry in (METHODS, MEASURES, METRICS)]
    yield
    for registry, items in kept:
        registry._items = items


def _forget() -> None:
    for registry in (METHODS, MEASURES, METRICS):
        for name in [name for name in registry._items if name not in KNOWN[registry.kind]]:
            del registry._items[name]


KNOWN = {registry.kind: set(registry) for registry in (METHODS, MEASURES, METRICS)}


@given(st.data())
@cases(120)
def test_any_argument_of_any_function(calls, data):
    """One argument is odd, the others are as they should be."""
    name = data.draw(st.sampled_from([name for name, (_, good) in calls.items() if good]))
    call, good = calls[name]
    argument = data.draw(st.sampled_from(sorted(good)))
    value = data.draw(odd.values())
    if name == "evaluate" and _is_theirs(argument, value):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answered(call, **{**good, argument: value})
    _forget()


@given(st.data())
@cases(20)
def test_names_and_paths_are_words_that_are_known(calls, data):
    """The same with odd texts, which are what people give most."""
    paths = {"Result.save", "Result.report", "load_result", "load_study", "load_text", "pack_run"}
    name = data.draw(st.sampled_from(sorted(paths | {"load_data", "method", "metric", "Runs"})))
    call, good = calls[name]
    first = next(iter(good))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answered(call, **{**good, first: data.draw(odd.paths())})


@given(name=odd.values())
@cases(15)
def test_any_name_that_is_registered_can_be_written(name):
    """A name that is taken can stand in a table, in a list on the command line and in a file."""
    given_names = []

    @answered_by(given_names, name)
    def mine(evidence):
        return evidence.images.sum(1)

    if given_names:
        assert fs.method(name).label == name
        assert "/" not in name and "," not in name and "(" not in name and name.isprintable()
    _forget()


def answered_by(taken: list[str], name: Any) -> Callable[..., Any]:
    def decorate(function: Any) -> Any:
        found = answered(lambda: fs.register_method(name, granularity="pixel")(function))
        if not isinstance(found, fs.FaithscopeError):
            taken.append(name)
        return function

    return decorate


@given(made=odd.values())
@cases(25)
def test_a_method_may_give_anything(made):
    """Maps, or a sentence with the method's name."""

    def mine(module: Any, images: Any, target: Any) -> Any:
        return made

    model = toy(4, 4)
    found = answered(fs.explain, model, IMAGES, mine)
    if isinstance(found, fs.FaithscopeError):
        assert "mine" in str(found)


@given(made=odd.values() | odd.arrays([(2,), (1,), (2, 1)]))
@cases(25)
def test_a_metric_may_give_anything(made):
    """Scores, or a sentence with the metric's name."""

    def mine(responses: Any) -> Any:
        return made

    maps = {"given": randn(2, 4, 4)}
    found = answered(fs.evaluate, toy(4, 4), IMAGES, maps=maps, metrics=mine, random_draws=0)
    if isinstance(found, fs.FaithscopeError):
        assert "mine" in str(found)


@given(st.data())
@cases(20)
def test_a_learner_may_give_anything(data):
    """ROAR with a learner of somebody's own, of which one answer is odd."""
    learner = BagLearner()
    part = data.draw(st.sampled_from(["encode", "explain", "check", "recipe", "name"]))
    made = data.draw(odd.values())
    if part in ("recipe", "name"):
        setattr(learner, part, made)
    else:
        setattr(learner, part, lambda *args: made)
    options = {"measures": "gradient", "seeds": 1, "levels": [50], "procedures": "roar"}
    answered(fs.roar, bag_texts(20, 8), learner, **options)


def test_a_tiny_vit_takes_odd_images_too():
    """Methods that read attention refuse what the model cannot read."""
    for images in (IMAGES, randn(2, 3, 16, 0), randn(0, 3, 16, 16), randn(2, 0, 16, 16)):
        found = answered(fs.explain, tiny_vit(), images, "rollout")
        assert isinstance(found, fs.FaithscopeError)
    assert torch.is_tensor(answered(fs.explain, tiny_vit(), randn(1, 3, 16, 16), "rollout"))
