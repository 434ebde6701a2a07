"""Every option is declared once; Python, command line, YAML, manifest and page follow it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import faithscope as fs
from bags import BagLearner, bag_texts
from commands import fails, run
from conftest import randn, tiny_vit
from faithscope.methods import METHODS
from faithscope.request import (
    Perturb,
    Request,
    Retrain,
    check_request,
    options,
    plain,
    python_names,
    read_texts,
)
from faithscope.runs.plan import SECTIONS
from faithscope.studies import make_study
from families import refused

KINDS = {"evaluate": Perturb, "roar": Retrain}
ONE = {
    Perturb: {"model": "bundled:cifar10_vit", "data": "bundled:cifar10"},
    Retrain: {"data": "bundled:babi1"},
}
"""The least that makes a request."""
FIELDS = [(call, name) for call, kind in KINDS.items() for name in options(kind)]
OTHERS = {
    "model": "timm:vit_tiny_patch16_224",
    "data": "elsewhere",
    "limit": 3,
    "device": "cpu",
    "on": "ray",
    "address": "head:6379",
    "workers": 3,
    "gpus_per_worker": 0.25,
    "cpus_per_worker": 2,
    "out": "somewhere",
    "strict": True,
    "trust_remote_code": True,
    "methods": ["gradient"],
    "metrics": ["saco"],
    "target": 3,
    "output": "sigmoid",
    "k": [4, "auto"],
    "fill": "blur",
    "units": "patches",
    "upsample": "nearest",
    "side": "first",
    "ties": "descending",
    "group": "mean",
    "random_draws": 1,
    "seed": 7,
    "precision": "fp32",
    "explain_precision": "bf16",
    "tolerance": 0.5,
    "batch_size": 5,
    "compile": True,
    "pictures": 2,
    "checkpoint": "weights.safetensors",
    "pretrained": False,
    "seeds": [3, 1],
    "levels": [20, 40],
    "strategy": "count",
    "procedures": ["roar"],
    "epochs": 2,
    "learning_rate": 0.5,
    "specials": False,
    "keep_weights": True,
    "keep_every": 1.5,
}
"""Another value than the default for every option."""
VALID = ", ".join(METHODS)
RETRAIN = {"model": "hf:somewhere", "metrics": ["racu(clip=false)"]}


def other(kind: type[Request], name: str) -> object:
    return {**OTHERS, **(RETRAIN if kind is Retrain else {})}[name]


def least(kind: type[Request], name: str) -> dict[str, str]:
    """The least that an option makes sense with."""
    if kind is Retrain and name in ("fill", "units"):
        return {"model": "vit", "data": "bundled:cifar10"}
    return ONE[kind]


def changed(kind: type[Request], name: str) -> Request:
    return check_request(kind, {**least(kind, name), name: other(kind, name)})


# Declared once


@pytest.mark.parametrize("call", KINDS)
def test_the_signature_in_python_is_the_declaration(call: str) -> None:
    kind, signature = KINDS[call], inspect.signature(getattr(fs, call))
    objects = {"labels", "maps", "progress"}
    names = python_names(kind)
    assert signature.parameters.keys() - objects == names.keys()
    for name, field in names.items():
        parameter, held = signature.parameters[name], kind.model_fields[field]
        if parameter.default is inspect.Parameter.empty:
            assert held.is_required()
            continue
        expected = check_request(kind, {**ONE[kind], field: parameter.default})
        assert getattr(expected, field) == held.default, name


@pytest.mark.parametrize("call", KINDS)
def test_the_docstring_explains_every_argument(call: str) -> None:
    said = inspect.getdoc(getattr(fs, call)) or ""
    arguments = said.partition("Args:\n")[2]
    assert re.findall(r"^ {4}(\w+):", arguments, re.M) == list(
        inspect.signature(getattr(fs, call)).parameters
    )


def test_explain_shares_the_fields_of_an_evaluation() -> None:
    signature = inspect.signature(fs.explain)
    for name in ("units", "upsample", "seed"):
        assert signature.parameters[name].default == Perturb.model_fields[name].default
    assert {"model", "data", "methods", "target"} < signature.parameters.keys()


@pytest.mark.parametrize(("call", "name"), FIELDS)
def test_the_command_line_has_every_option_and_says_what_it_is(call: str, name: str) -> None:
    text = " ".join(run(call, "--help").stdout.split())
    option = options(KINDS[call])[name]
    flag = f"--{(option.name or name).replace('_', '-')}"
    assert f"{flag} " in text or f"{flag}," in text
    assert " ".join(option.help.split()) in text


def spelled(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize(("call", "name"), FIELDS)
def test_text_and_yaml_and_python_give_the_same_request(call: str, name: str) -> None:
    kind = KINDS[call]
    value = other(kind, name)
    request = changed(kind, name)
    assert getattr(request, name) != kind.model_fields[name].default
    if not isinstance(value, bool):
        typed = read_texts(kind, {name: spelled(value)})
        assert check_request(kind, {**least(kind, name), **typed}) == request
    content = {"kind": request.kind, "name": "s", **least(kind, name), name: value}
    if options(kind)[name].by_hand:
        with refused(f"may not give '{name}'"):
            make_study(content)
        return
    study = make_study(content)
    listed = options(kind)[name].axis and isinstance(value, list)
    assert len(study.cells) == (len(value) if listed else 1)
    if not listed:
        assert next(iter(study.cells.values())) == request


@pytest.mark.parametrize(("call", "name"), FIELDS)
def test_other_names_of_an_option_work_in_yaml(call: str, name: str) -> None:
    kind = KINDS[call]
    option = options(kind)[name]
    for alias in (*option.aliases, *([option.name] if option.name else [])):
        content = {key: value for key, value in ONE[kind].items() if key != name}
        kinds = {"kind": "images" if kind is Perturb else "roar"}
        study = make_study({**kinds, "name": "s", **content, alias: other(kind, name)})
        assert list(study.cells.values()) == [changed(kind, name)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[type[Request], fs.Result]:
    few = {"measures": ["gradient"], "levels": [50], "seeds": 3}
    return {
        Perturb: fs.evaluate(tiny_vit(), randn(3, 3, 16, 16), ["gradient"], ["saco"]),
        Retrain: fs.roar(bag_texts(), BagLearner(), **few),
    }


@pytest.mark.parametrize(("call", "name"), FIELDS)
def test_the_manifest_and_the_page_hold_the_protocol(call, name, results, tmp_path) -> None:
    kind = KINDS[call]
    option, manifest = options(kind)[name], results[kind].manifest
    means_something = option.modality in ("", manifest.plan.modality)
    is_protocol = option.role == "protocol" and name not in SECTIONS
    assert (name in manifest.protocol) == (is_protocol and means_something)
    written = manifest.plan.content()["request"]
    assert (name in written) == (option.role != "running")
    if name in manifest.protocol:
        page = results[kind].report(tmp_path / "page.html").read_text("utf-8")
        assert f"<dt>{name}</dt>" in page
        assert option.meanings or option.metavar, "a reader is told what the value means"


def test_the_page_explains_the_values(results, tmp_path) -> None:
    page = results[Perturb].report(tmp_path / "page.html").read_text("utf-8")
    for said in ("Single pixels are ranked", "own mean, per channel", "this many"):
        assert said in page
    page = results[Retrain].report(tmp_path / "page.html").read_text("utf-8")
    assert "Levels are percentages" in page


def test_data_goes_by_its_former_name_too() -> None:
    module, images = tiny_vit(), randn(2, 3, 16, 16)
    options_ = {"methods": "gradient", "metrics": "saco", "random_draws": 0}
    named = fs.evaluate(module, images=images, **options_)
    assert named.scores.equals(fs.evaluate(module, data=images, **options_).scores)
    assert fs.explain(module, images=images, methods="gradient").shape == (2, 16, 16)
    assert fs.prepare(module, images=images, **options_).plan.data.samples == 2
    with refused("'images' and 'data' mean the same"):
        fs.evaluate(module, images=images, data=images)
    assert "nowhere" in fails("roar", "--dataset", "nowhere")


# Wrong values

WRONG = {
    "evaluate": [
        ("methods", "rolout", f"Unknown method 'rolout': did you mean 'rollout'? Valid: {VALID}"),
        ("methods", "rollout(start=1)", "did you mean 'start_layer'?"),
        ("methods", "rollout(start_layer=1", "not of the form name(option=value, …)"),
        ("methods", "rollout,rollout", "'rollout' is named twice"),
        ("methods", "lrp(rules=foo)", "lrp's rules 'foo'"),
        ("metrics", "sacco", "Unknown metric 'sacco': did you mean 'saco'? Valid: aopc, auc"),
        ("metrics", "saco,nonsense", "Unknown metric 'nonsense'"),
        ("metrics", "auc(stride=5)", "'stride': did you mean 'step'? Valid: step."),
        (
            "fill",
            "men",
            "'men': did you mean 'mean'? Valid: black, blur, drop, inpaint, mask, mean",
        ),
        (
            "units",
            "pixel",
            "units 'pixel': did you mean 'pixels'? Valid: auto, patches, pixels, tokens, words",
        ),
        ("upsample", "cubic", "'cubic'. Valid: bilinear, nearest"),
        ("ties", "up", "tie order 'up'. Valid: ascending, descending"),
        ("group", "max", "'max': did you mean 'mean'? Valid: mean, sum"),
        ("k", "1", "k must be a whole number of at least 2, or 'auto', got 1"),
        ("k", "many", "k must be a whole number of at least 2, or 'auto', got 'many'"),
        ("limit", "0", "limit must be a whole number of at least 1, got 0"),
        ("precision", "fp31", "did you mean 'fp32'? Valid: auto, bf16, fp16, fp32, fp64, tf32"),
        ("batch_size", "0", "batch_size must be 'auto' or at least 1, got 0"),
        ("batch_size", "large", "batch_size must be 'auto' or at least 1, got 'large'"),
        ("random_draws", "-1", "random_draws must be a whole number from 0 to 1000, got -1"),
        ("seed", "-1", "seed must be a whole number of at least 0, got -1"),
        ("seed", "a", "seed must be a whole number of at least 0, got 'a'"),
        *(
            ("tolerance", value, f"tolerance must be a number above 0 and below 2, got {said}")
            for value, said in (("0", "0"), ("-1", "-1"), ("2", "2"), ("small", "'small'"))
        ),
    ],
    "roar": [
        ("measures", "gradent", "Unknown measure 'gradent': did you mean 'gradient'?"),
        ("measures", "gradient(step=1)", "'step'"),
        ("measures", "integrated_gradients(scaling=program)", "scaling 'program'"),
        ("measures", "gradient,gradient", "named twice"),
        ("model", "lstm", "Unknown model to train 'lstm': did you mean 'bilstm'?"),
        ("levels", "10,110", "10, 110 are not levels of masking: give at least one between 0 and"),
        ("levels", "50,10", "The levels 50, 10 do not rise"),
        ("levels", "10,10", "The levels 10, 10 do not rise"),
        ("levels", "-10,10", "levels must be whole numbers of at least 0"),
        ("levels", "0,100", "give at least one between 0 and 100 percent"),
        ("levels", "ten", "levels must be whole numbers of at least 0"),
        ("seeds", "0", "seeds must be a number of seeds, or seeds from 0 upwards, got 0"),
        ("seeds", "-3", "seeds from 0 upwards, got -3"),
        ("seeds", "1,1", "each once"),
        ("seeds", "3000000000", "There are too many seeds: give at most 1,000"),
        ("seeds", "few", "seeds must be a number of seeds"),
        ("strategy", "percent", "strategy 'percent': did you mean 'count'? Valid: count, relative"),
        ("procedures", "recursiv", "procedure 'recursiv': did you mean 'recursive'?"),
        ("epochs", "0", "epochs must be a whole number of at least 1, got 0"),
        ("epochs", "1.5", "epochs must be a whole number of at least 1"),
        ("batch_size", "0", "batch_size must be a whole number of at least 1, got 0"),
        ("learning_rate", "0", "learning_rate must be a number above 0, got 0"),
        ("learning_rate", "fast", "learning_rate must be a number above 0, got 'fast'"),
        ("limit", "0", "limit must be a whole number of at least 1, got 0"),
        ("metrics", "saco", "Unknown metric 'saco': did you mean 'racu'? Valid: area, end, racu"),
        ("metrics", "racu(clip=maybe)", "'clip' of racu is true or false"),
    ],
}


@pytest.mark.parametrize(
    ("call", "name", "text", "words"),
    [(call, *case) for call, cases in WRONG.items() for case in cases],
)
def test_a_wrong_value_gets_the_same_sentence_everywhere(call, name, text, words, tmp_path):
    """On the command line, where options have dashes, in a study and in Python."""
    least = {**ONE[KINDS[call]], name: text}
    flags = [(f"--{key.replace('_', '-')}", value) for key, value in least.items()]
    spelled = words.replace(name, name.replace("_", "-"))
    assert spelled in fails(call, *(word for flag in flags for word in flag))
    lines = [f"{key}: {f'[{text}]' if ',' in text else text}" for key, text in least.items()]
    file = tmp_path / "study.yaml"
    file.write_text("\n".join([f"kind: {KINDS[call].model_fields['kind'].default}", *lines]))
    with refused(words):
        fs.load_study(file)
    value = yaml.safe_load(lines[list(least).index(name)])[name]
    with refused(words):
        getattr(fs, call)(**{**least, name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        (Perturb, "k", True, ["k must be a whole number of at least 2, or 'auto'", "True"]),
        (Perturb, "k", [5, 1], ["k must be", "[5, 1]"]),
        (Perturb, "k", (), ["k must be"]),
        *((Perturb, "seed", seed, ["seed must be a whole number"]) for seed in (True, None, 1.5)),
        (Perturb, "fill", ["mean"], ["fill must be"]),
        (Perturb, "pretrained", "yes", ["pretrained must be true or false", "'yes'"]),
        (Perturb, "pretrained", 1, ["pretrained must be true or false"]),
        (Perturb, "tolerance", float("nan"), ["tolerance must be"]),
        (Perturb, "tolerance", True, ["tolerance must be", "above 0"]),
        (Perturb, "methods", [3], ["methods must be", "[3]"]),
        (Perturb, "out", 3, ["out must be a path", "3"]),
        (Perturb, "batch_size", 2.5, ["batch_size must be 'auto' or at least 1"]),
        (Retrain, "seeds", [], ["seeds must be"]),
        (Retrain, "levels", ["10"], ["levels must be whole numbers"]),
        (Retrain, "procedures", [], ["There is no procedure"]),
        (Retrain, "learning_rate", float("inf"), ["learning_rate must be a number above 0"]),
        (Retrain, "specials", "no", ["specials must be true or false"]),
        (Retrain, "clip", True, ["Unknown option 'clip'"]),
        (Perturb, "upsampel", "nearest", ["option 'upsampel'", "did you mean 'upsample'"]),
    ],
)
def test_wrong_values_get_one_sentence_of_ours(kind, name, value, words) -> None:
    with refused(*words):
        check_request(kind, {**ONE[kind], name: value})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@given(st.sampled_from(FIELDS), ANYTHING)
def test_any_value_is_taken_or_answered_in_a_sentence(field, value) -> None:
    kind, name = KINDS[field[0]], field[1]
    try:
        request = check_request(kind, {**ONE[kind], name: value})
    except fs.FaithscopeError as error:
        said = str(error)
        assert said.endswith(".") and "pydantic" not in said and "validation" not in said
    else:
        assert check_request(kind, {**ONE[kind], name: getattr(request, name)}) == request


def test_numbers_of_numpy_lists_and_paths_are_taken() -> None:
    request = check_request(
        Perturb,
        {
            "model": "m",
            "data": Path("some") / "folder",
            "k": np.array([5, 10]),
            "seed": np.int64(3),
            "tolerance": np.float32(0.5),
            "pretrained": np.bool_(False),
            "methods": ["rollout"],
        },
    )
    assert request.k == (5, 10) and request.seed == 3 and request.pretrained is False
    assert request.data == str(Path("some") / "folder") and request.tolerance == 0.5
    assert plain(range(3)) == (0, 1, 2)


def test_an_endless_list_is_not_read_to_its_end() -> None:
    def endless():
        while True:
            yield 1

    with refused("There are too many seeds"):
        fs.prepare_roar(bag_texts(), BagLearner(), seeds=endless())
