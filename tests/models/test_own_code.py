"""Models and methods in Python files of one's own: run where a person names them, nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import faithscope as fs
from commands import fails, run
from faithscope.methods import METHODS
from faithscope.request import Given, Perturb, check_request
from faithscope.request.code import as_code, short_name, split_label
from families import refused

NET = """
from pathlib import Path
Path({marker!r}).touch()
import torch
import faithscope as fs
from beside import SIDE

class Net(torch.nn.Module):
    def __init__(self, classes=3, scale=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, classes * 3 * SIDE * SIDE))
        self.scale = scale

    def forward(self, x):
        return self.scale * x.flatten(1).double() @ self.weight.double().view(-1, 3 * SIDE * SIDE).T

def build():
    return fs.wrap(Net(), input_size=(SIDE, SIDE), mean=(0.5,) * 3, std=(0.5,) * 3)

def plain(classes, *rest, scale=2.0):
    return Net(classes, scale)

def nothing():
    return {{}}

def fails():
    raise KeyError("no weights here")

ready = Net()
number = 7
"""
METHOD = """
import faithscope as fs

def mine(module, images, target, *, power=1.0):
    return images.abs().sum(1) ** power

@fs.register_method({name!r}, granularity="pixel", needs=("gradient",))
def registered(evidence, *, sign=1):
    return sign * (evidence.images * evidence.input_gradient()).sum(1)

made = fs.method("input_x_gradient")
word = "none"
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that is there once the model's file has run."""
    return tmp_path / "code-has-run"


@pytest.fixture
def here(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, a method and a module that the model imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(METHODS, "_items", dict(METHODS._items))  # one of the files registers
    (tmp_path / "beside.py").write_text("SIDE = 8\n")
    (tmp_path / "net.py").write_text(NET.format(marker=str(marker)))
    (tmp_path / "method.py").write_text(METHOD.format(name="mine_registered"))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("net.py:build", ("net.py", "build", {})),
        ("a b/net.py:Net(classes=2)", ("a b/net.py", "Net", {"classes": 2})),
        *((text, None) for text in ("timm:vit", "net.py", "net.py:", "hf:x/net.py:b", "a:b.py")),
    ],
)
def test_code_is_a_file_and_a_name_in_it(text: str, expected: Any):
    code = as_code(text)
    found = None if code is None else (str(code.file), code.name, code.options)
    assert found == expected


def test_a_label_stands_before_a_name():
    assert split_label("my vit=timm:x(a=1)") == ("my vit", "timm:x(a=1)")
    for name in ("timm:x(a=1)", "hf:a=b", "bilstm", "=x", "a/b=c"):
        assert split_label(name) == ("", name)


def test_long_names_are_short_and_stay_distinct():
    names = [f"timm:vit({'x' * 100}), fill={fill}" for fill in ("blur", "mean")]
    short = list(map(short_name, names))
    assert len({*short}) == 2 and all(len(name) == 48 for name in short)
    assert short[0].endswith("fill=blur") and short[0].startswith("timm-vit")


# Models


@pytest.mark.parametrize(
    ("name", "scale", "classes"),
    [
        *(("build", 1, 3), ("Net", 1, 3), ("Net(classes=2)", 1, 2), ("ready", 1, 3)),
        ("plain(classes=4)", 2, 4),
    ],
)
def test_a_model_is_what_a_name_in_a_file_gives(here, name, scale, classes):
    model = fs.load_model(f"net.py:{name}", device="cpu")
    assert model.name == f"net.py:{name}"
    assert model.module.scale == scale
    assert model.logits(torch.zeros(1, 3, 8, 8)).shape == (1, classes)
    assert not model.module.training
    labelled = fs.load_model(f"mine={here}/net.py:{name}", device="cpu")
    assert labelled.name == "mine" and labelled.origin.startswith(f"net.py:{name}, ")


def test_a_checkpoint_fits_a_model_of_ones_own(here):
    torch.save({"weight": torch.zeros(3 * 192)}, here / "w.pt")
    model = fs.load_model("net.py:build", checkpoint="w.pt", device="cpu")
    assert not model.module.weight.any() and model.weights == "checkpoint w.pt"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.py:build", ["no Python file 'none.py'", "check the path"]),
        ("net.py:biuld", ["Unknown name in 'net.py' 'biuld'", "did you mean 'build'"]),
        ("net.py:plain", ["needs 'classes'", "net.py:plain(classes=…)"]),
        ("net.py:build(depth=2)", ["takes no options", "depth"]),
        ("net.py:Net(clases=2)", ["option of model 'net.py:Net'", "did you mean 'classes'"]),
        ("net.py:nothing", ["type dict", "torch module"]),
        ("net.py:number", ["type int", "torch module"]),
        ("net.py:fails", ["'net.py:fails' failed", "KeyError: 'no weights here'", "in line 27"]),
        ("bad.py:build", ["'bad.py' cannot be imported", "ZeroDivisionError", "in line 2"]),
        ("worse.py:build", ["'worse.py' cannot be imported", "SyntaxError", "in line 1"]),
        ("exits.py:build", ["'exits.py' cannot be imported", "SystemExit"]),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(here, name, words):
    (here / "bad.py").write_text("x = 0\ny = 1 / x\n")
    (here / "worse.py").write_text("def build(:\n")
    (here / "exits.py").write_text("raise SystemExit(3)\n")
    with refused(*words):
        fs.load_model(name)
    said = fails("evaluate", "--model", name, "--data", "array:x.npy")
    assert all(word in said for word in words)


# Methods


def test_methods_of_ones_own_are_scored_and_labelled(here):
    model, images = fs.load_model("net.py:build", device="cpu"), torch.rand(2, 3, 8, 8)
    names = ["method.py:mine", "method.py:mine(power=2.0)", "method.py:registered(sign=-1)"]
    maps = fs.explain(model, images, [*names, "method.py:made"])
    assert list(maps) == [*names, "method.py:made"]
    assert torch.equal(maps[names[1]], images.abs().sum(1) ** 2)
    torch.testing.assert_close(maps[names[2]], -maps["method.py:made"])
    result = fs.evaluate(model, images, names, "saco", random_draws=0)
    assert result.methods == names
    assert {name for name in result.manifest.plan.given if name.startswith("method")} == {
        f"method {name}" for name in names
    }
    assert fs.method("method.py:mine").label == "method.py:mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.py:mine", ["no Python file 'none.py'"]),
        ("method.py:mien", ["Unknown name in 'method.py' 'mien'", "did you mean 'mine'"]),
        ("method.py:mine(pwer=1)", ["option of method 'method.py:mine'", "did you mean 'power'"]),
        ("method.py:word", ["type str", "(module, images, target) -> maps"]),
    ],
)
def test_what_is_no_method_is_said_in_a_sentence(here, name, words):
    with refused(*words):
        fs.method(name)
    said = fails("evaluate", "--model", "net.py:build", "--data", "array:x.npy", "--method", name)
    assert all(word in said for word in words)


def test_a_changed_method_does_not_resume_silently(here):
    asked = {"methods": "method.py:mine", "metrics": "saco", "random_draws": 0, "out": here / "run"}
    model = fs.load_model("net.py:build", device="cpu")
    fs.evaluate(model, "array:x.npy", **asked)
    fs.evaluate(model, "array:x.npy", **asked)
    file = here / "method.py"
    file.write_text("def mine(module, images, target):\n    return images.sum(1)\n")
    with refused("holds another run", "given method method.py:mine"):
        fs.evaluate(model, "array:x.npy", **asked)


def test_a_changed_model_does_not_resume_silently(here):
    """The same weights, another forward."""
    asked = {"data": "array:x.npy", "methods": "gradient", "metrics": "saco", "random_draws": 0}
    fs.evaluate("net.py:build", out=here / "run", device="cpu", **asked)
    file = here / "net.py"
    file.write_text(file.read_text().replace("return self.scale *", "return -self.scale *"))
    with refused("holds another run", "given model"):
        fs.evaluate("net.py:build", out=here / "run", device="cpu", **asked)


# The command line


FEW = ["--metrics", "saco", "--random-draws", "0", "--k", "2", "--device", "cpu"]


def test_typed_code_simply_runs(here, marker):
    arguments = ["--model", "mine=net.py:build", "--data", "array:x.npy", *FEW]
    run("evaluate", *arguments, "--methods", "gradient,method.py:mine", "--out", "run")
    result = fs.load_result(here / "run")
    assert (result.manifest.model.name, result.methods) == ("mine", ["gradient", "method.py:mine"])
    assert result.manifest.plan.given["model"].startswith("net.py:build, ")
    run("evaluate", *arguments, "--method", "method.py:mine(power=2.0)", "--out", "other")
    assert fs.load_result(here / "other").methods == ["method.py:mine(power=2.0)"]
    from PIL import Image

    Image.fromarray(np.load(here / "x.npy")[0]).save(here / "a.png")
    picture = ["a.png", "--model", "net.py:build", "--method", "method.py:mine", "--k", "2"]
    assert "method.py:mine" in run("explain", *picture).stdout
    assert marker.exists()


def test_a_method_that_crashes_is_blamed_itself(here):
    (here / "bad.py").write_text(
        "def crash(module, images, target):\n    raise RuntimeError('boom')\n"
    )
    arguments = ["--model", "net.py:build", "--data", "array:x.npy", *FEW]
    told = run("evaluate", *arguments, "--methods", "gradient,bad.py:crash")
    line = "bad.py:crash is left out: it fails on every image (RuntimeError: boom)."
    assert line in told.stderr and line in told.stdout
    assert "The method 'bad.py:crash' fails on every image (RuntimeError: boom)" in fails(
        "evaluate", *arguments, "--methods", "bad.py:crash"
    )


# Files cannot make it run


def study(folder: Path, **keys: Any) -> Path:
    file = folder / "study.yaml"
    usual = {"model": "net.py:build", "data": "array:x.npy", "methods": ["gradient"]}
    usual |= {"metrics": ["saco"], "random_draws": 0, "k": 2, "name": "own"}
    file.write_text(json.dumps({**usual, **keys}))
    return file


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"model": {"mine": "net.py:build"}},
        {"model": [{"name": "net.py:build", "label": "mine"}]},
        {"model": "timm:vit_tiny_patch16_224", "methods": ["net.py:build"]},
        {"model": "timm:vit_tiny_patch16_224", "methods": ["gradient", "net.py:build(a=1)"]},
    ],
    ids=["model", "labelled", "listed", "method", "options"],
)
def test_a_study_runs_no_code_unless_it_is_allowed(here, marker, keys):
    file = study(here, **keys)
    said = fails("run", file, "--out", "out")
    assert "Python code" in said and "--allow-code" in said
    dry = run("run", file, "--dry-run", "--allow-code", "--out", "out")
    assert "would import" in dry.stderr and "net.py:build" in dry.stderr
    with refused("Python code"):
        fs.run_study(fs.load_study(file), here / "out")
    assert not marker.exists()
    assert "may not give 'allow_code'" in fails("run", study(here, **keys, allow_code=True))
    assert "may not give" in fails("run", study(here, **keys), "--set", "allow_code=true")


def test_a_dry_run_measures_what_names_no_code(here, marker):
    tiny = "timm:vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=1)"
    models = {"mine": "net.py:build", "tiny": {"name": tiny, "pretrained": False}}
    file = study(here, model=models)
    dry = run("run", file, "--dry-run", "--json", "--out", "out")
    told = json.loads(dry.stdout)
    assert told["mine_array-x.npy"] == {"imports": ["mine=net.py:build"]}
    assert told["tiny_array-x.npy"]["tasks"] == 1
    assert not marker.exists()


def test_an_allowed_study_runs_with_labels(here, marker):
    models = {"mine": "net.py:build", "twice": "net.py:Net(scale=2.0)"}
    file = study(here, model={"mine": models["mine"]}, methods=["gradient", "method.py:mine"])
    run("run", file, "--allow-code", "--out", "out", "--device", "cpu")
    done = fs.load_results(here / "out")
    assert list(done.results) == ["mine_array-x.npy"]
    (result,) = done.results.values()
    assert (result.manifest.model.name, result.methods) == ("mine", ["gradient", "method.py:mine"])
    again = fs.run_study(fs.load_study(file).allowing_code(), here / "out", device="cpu")
    assert list(again.results) == list(done.results)


def test_a_request_by_itself_runs_no_code(here, marker):
    """As one that came out of a file, a plan or a packed run."""
    from faithscope.api import prepare_request

    named = {"data": "array:x.npy", "model": "net.py:build", "methods": ("gradient",)}
    with refused("Python code"):
        prepare_request(check_request(Perturb, named))
    with refused("Python code"):
        given = Given(model=torch.nn.Flatten())
        prepare_request(check_request(Perturb, {**named, "methods": ("net.py:build",)}), given)
    assert not marker.exists()


@pytest.mark.slow
def test_code_of_ones_own_goes_to_workers(here, machines):
    asked = {"methods": ["gradient", "method.py:mine"], "metrics": "saco", "random_draws": 1}
    there = fs.evaluate("net.py:build", "array:x.npy", **asked, **machines.on())
    at_home = fs.evaluate("net.py:build", "array:x.npy", device="cpu", **asked)
    assert there.scores.equals(at_home.scores)
