"""`faithscope roar` from end to end, on texts so few that a training takes a blink."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import faithscope as fs
from commands import csv, fails, interrupted, rows, run
from conftest import randn, tiny_vit
from encoders import save_encoder
from faithscope.cli import roar as command
from faithscope.methods.text import ROAR
from faithscope.probes.retrain import bilstm
from faithscope.probes.retrain.finetune import FinetuneLearner
from faithscope.probes.retrain.learner import Recipe
from faithscope.runs import progress
from small_images import MODEL, array_file


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return csv(tmp_path / "texts.csv", rows())


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models: what is tested here is the way to them."""
    small = bilstm.Setting(Recipe(2, 16), 4, 6, False)
    monkeypatch.setitem(bilstm.SETTINGS, "own", small)


QUICK = ("--measures", "gradient", "--seeds", 1, "--levels", "50", "--epochs", 1)


def test_a_run_is_shown_kept_and_not_run_again(texts, tmp_path):
    out = tmp_path / "deep" / "run"
    told = run("roar", "--dataset", texts, *QUICK, "--out", out)  # its former name, too
    assert "gradient and random, 1 epoch, cpu" in told.stderr
    assert "4 trainings, about" in told.stderr
    assert "1 seed: fewer than three give no interval and no verdict." in told.stdout
    result = fs.load_result(out)
    assert result.headline() in told.stdout
    assert result.procedures == ["roar", "recursive"]
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    assert str(out / "report.html") in told.stdout
    again = run("roar", "--data", texts, *QUICK, "--out", out)
    assert "finished: nothing to do" in again.stderr
    assert again.stdout == told.stdout
    with pytest.warns(UserWarning, match=r"weights of 3 finished trainings .* not brought back"):
        run("roar", "--data", texts, *QUICK, "--out", out, "--keep-weights")
    file = out / "trainings.parquet"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"damaged \(trainings.parquet is not what was"):
        repaired = run("roar", "--data", texts, *QUICK, "--out", out)
    assert repaired.stdout == told.stdout


def test_options_reach_the_run(texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = run(
        *("roar", "--data", texts, "--recursive", "--measures"),
        "integrated_gradients(scaling=code, steps=2),mutual_information",
        *("--seeds", "3,5", "--strategy", "count", "--levels", "1,2", "--batch-size", 7),
        *("--learning-rate", 0.01, "--limit", 20, "--no-specials", "--json"),
        *("--metrics", "racu(clip=false),end"),
    )
    data = json.loads(told.stdout)
    manifest = data["manifest"]
    assert manifest["plan"]["request"] == {
        "kind": "retrain",
        "model": "bilstm",
        "data": "texts.csv",
        "strategy": "count",
        "levels": [0, 1, 2],
        "procedures": ["recursive"],
        "methods": [
            "integrated_gradients(scaling=code, steps=2)",
            "mutual_information",
            "random",
        ],
        "metrics": ["racu(clip=false)", "end"],
        "seeds": [3, 5],
        "fill": None,
        "units": None,
        "specials": False,
        "batch_size": 7,
        "epochs": 2,
        "learning_rate": 0.01,
    }
    assert manifest["data"]["texts"]["sizes"]["train"] == 20
    result = fs.load_result("runs/roar-bilstm-texts.csv")
    assert set(result.trainings["seed"].to_pylist()) == {3, 5}
    assert len(data["summary"]) == 3 * 2
    assert data["headline"] == result.headline()


def test_only_roar(texts, tmp_path):
    out = tmp_path / "run"
    run("roar", "--data", texts, *QUICK, "--no-recursive", "--out", out)
    assert fs.load_result(out).procedures == ["roar"]


def test_all_leaves_out_what_the_model_cannot_give(texts, tmp_path):
    name = save_encoder(tmp_path / "encoder", "Bert")
    out = tmp_path / "run"
    request = ("--seeds", 1, "--levels", 50, "--epochs", 1, "--no-recursive", "--limit", 10)
    said = run("roar", "--data", texts, "--model", name, *request, "--out", out, "--yes")
    note = "attention is left out: it needs one attention weight"
    assert note in said.stderr and note in said.stdout
    assert any(note in line for line in fs.load_result(out).warnings())
    assert fs.load_result(out).methods == [*(name for name in ROAR if name != "attention")]
    command = ("roar", "--data", texts, "--model", name, *request, "--out", tmp_path / "other")
    told = run(*command, "--measures", "attention,gradient", "--dry-run", "--json")
    assert [held["name"] for held in json.loads(told.stdout)["left_out"]] == ["attention"]
    assert note in told.stderr
    assert "needs one" in fails(*command, "--measures", "attention,gradient", "--strict")
    told = fails("roar", "--data", texts, "--model", name, "--measures", "attention")
    assert "needs one attention weight per token" in told


def test_a_dry_run_says_the_cost_and_writes_nothing(texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = ("roar", "--data", texts, *QUICK, "--dry-run", "--out", "run")
    assert re.match(r"4 trainings, about \d+ s\n", run(*request).stdout)
    data = json.loads(run(*request, "--json").stdout)
    assert (data["cost"]["trainings"], data["finished"], data["tasks"]) == (4, 0, 4)
    assert data["folder"] == "run"
    assert [path.name for path in tmp_path.iterdir()] == ["texts.csv"]


def test_interrupting_says_what_is_kept_and_the_same_command_goes_on(texts, tmp_path):
    out = tmp_path / "run"
    request = ("roar", "--data", texts, *QUICK, "--out", out)
    run(*request[:-1], tmp_path / "whole")
    whole = fs.load_result(tmp_path / "whole")
    told = interrupted(*request, packs=1)
    assert told.stderr.splitlines()[-1] == (
        f"interrupted: 3 finished tasks are kept in {out}; run the same command to resume"
    )
    told = run(*request)
    assert f"resuming the run in {out}" in told.stderr
    assert "(3 of 4 tasks finished)" in told.stderr
    drop = ["seconds"]
    assert fs.load_result(out).trainings.drop(drop) == whole.trainings.drop(drop)


def test_interrupting_before_anything_was_begun(texts, tmp_path, monkeypatch):
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    for place in ("probes.retrain.bilstm.BiLSTMLearner.begin", "api.prepare_request"):
        monkeypatch.setattr(f"faithscope.{place}", stop)
        told = run("roar", "--data", texts, *QUICK, "--out", tmp_path / "run", code=130)
        assert told.stderr.splitlines()[-1] == "interrupted: nothing had been begun"


def test_a_folder_of_something_else(texts, tmp_path):
    out = tmp_path / "run"
    run("roar", "--data", texts, *QUICK, "--out", out)
    told = fails("roar", "--data", texts, *QUICK, "--epochs", 2, "--out", out)
    assert "holds another run (epochs is 1 there and 2 here)" in told
    vision = tmp_path / "vision"
    fs.evaluate(tiny_vit(), randn(2, 3, 16, 16), "rollout", "saco", out=vision)
    assert "holds another run" in fails("roar", "--data", texts, *QUICK, "--out", vision)
    for content in ("", "{}", "[1]", '{"faithscope": 1, "model": {"name": "vit"}}'):
        (vision / "plan.json").write_text(content)
        told = fails("roar", "--data", texts, *QUICK, "--out", vision)
        assert "plan.json' is damaged" in told
    (vision / "plan.json").rename(vision / "manifest.json")
    assert "holds a result already" in fails("roar", "--data", texts, *QUICK, "--out", vision)
    (tmp_path / "file").write_text("taken")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "cannot be made" in fails("roar", "--data", texts, *QUICK, "--out", folder)


def test_a_changed_model_is_noticed(texts, tmp_path, monkeypatch):
    out = tmp_path / "run"
    run("roar", "--data", texts, *QUICK, "--out", out)
    wide = bilstm.Setting(Recipe(2, 16), 5, 6, False)
    monkeypatch.setitem(bilstm.SETTINGS, "own", wide)
    told = fails("roar", "--data", texts, *QUICK, "--out", out)
    assert "model fingerprint" in told
    first = save_encoder(tmp_path / "one", "Bert")
    second = save_encoder(tmp_path / "two", "Bert", initializer_range=0.2)
    data = fs.load_text(texts)
    names = (first, first, second)
    prints = [FinetuneLearner(name, data, device="cpu").fingerprint for name in names]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (["--measures", ""], "Unknown measure ''"),
        (["--model", "hf:"], "A text model is named 'hf:ID or folder'"),
        (["--strategy", "count", "--levels", "3000000000"], "give at most 10,000 tokens"),
        (["--learning-rate", "inf"], "--learning-rate must be a number above 0, got inf"),
        (["--learning-rate", "nan"], "--learning-rate must be a number above 0, got nan"),
        (["--recursive", "--procedures", "roar"], "--recursive and --procedures mean the same"),
        (["--device", "gpu"], "The device 'gpu' is not available here"),
        (["--data", "babbi:x"], "Unknown text source 'babbi': did you mean 'babi'?"),
        (["--data", "bundled:babi9"], "did you mean 'babi1'?"),
        (["--data", "missing.csv"], "There is no file or folder 'missing.csv'"),
        (["--data", "mimic:."], "holds no file 'DIAGNOSES_ICD.csv'"),
        (["--data", "babi:missing"], "missing"),
    ],
)
def test_bad_options_are_refused(texts, request_, complaint):
    usual = () if "--data" in request_ else ("--data", texts)
    assert complaint in fails("roar", *usual, *request_)


def test_without_data():
    assert "roar needs --data" in fails("roar")
    assert "--epochs has no effect with --demo" in fails("roar", "--demo", "--epochs", 3)


class TestTexts:
    """Texts that cannot be used, or only in part."""

    def test_empty_texts_are_left_out_and_counted(self, tmp_path):
        file = csv(tmp_path / "x.csv", [("", "good"), ("  ", "bad"), *rows()])
        told = run("roar", "--data", file, *QUICK, "--out", tmp_path / "run", "--json")
        notes = json.loads(told.stdout)["manifest"]["data"]["texts"]["notes"]
        assert "2 rows without a text or a label left out (the first is row 1)." in notes

    def test_nothing_but_empty_texts(self, tmp_path):
        file = csv(tmp_path / "x.csv", [("", "good"), ("", "bad")])
        assert "has both a text and a label" in fails("roar", "--data", file)

    def test_texts_of_one_token(self, tmp_path):
        file = csv(tmp_path / "x.csv", [(text.split()[0], label) for text, label in rows()])
        told = fails("roar", "--data", file)
        assert "at most 1 token, of which 90 % is less than one" in told
        request = ("--strategy", "count", "--levels", 1, *QUICK[:4], "--out", tmp_path / "run")
        run("roar", "--data", file, *request)

    def test_some_texts_of_one_token_are_counted(self, tmp_path):
        file = csv(tmp_path / "x.csv", [("great", "good"), ("awful", "bad"), *rows()])
        told = run("roar", "--data", file, *QUICK, "--out", tmp_path / "run", "--json")
        assert np.isfinite(fs.load_result(tmp_path / "run").trainings["value"].to_numpy()).all()
        notes = " ".join(json.loads(told.stdout)["manifest"]["data"]["texts"]["notes"])
        assert "2 of 62 texts are so short that 50 % of the tokens is less than one" in notes

    @pytest.mark.parametrize("model", ["bilstm", "Bert"])
    def test_texts_of_special_tokens(self, model, tmp_path):
        """Words that look like special tokens are words, or there is nothing to mask."""
        special = [("[PAD] [CLS] [SEP]", label) for _, label in rows()]
        file = csv(tmp_path / "x.csv", special)
        name = model if model == "bilstm" else save_encoder(tmp_path / "encoder", model)
        request = ("roar", "--data", file, "--model", name, *QUICK, "--out", tmp_path / "run")
        if model == "bilstm":
            run(*request)
        else:
            assert "has no token that can be masked" in fails(*request)

    def test_too_long_texts_are_cut_and_counted(self, tmp_path):
        long = [(" ".join([text] * 60), label) for text, label in rows(20)]
        file = csv(tmp_path / "x.csv", long)
        name = save_encoder(tmp_path / "encoder", "Bert")
        request = (*QUICK, "--no-recursive", "--out", tmp_path / "run")
        told = run("roar", "--data", file, "--model", name, *request)
        assert "20 of 20 texts are longer than the model reads and were cut." in told.stdout

    def test_a_label_never_seen(self, tmp_path):
        folder = tmp_path / "split"
        folder.mkdir()
        csv(folder / "train.csv", rows(20))
        csv(folder / "validation.csv", rows(8))
        csv(folder / "test.csv", [*rows(8), ("great film", "middling")])
        told = fails("roar", "--data", folder)
        assert "The label 'middling'" in told
        assert "is never seen in training" in told

    def test_one_class(self, tmp_path):
        file = csv(tmp_path / "x.csv", [(text, "good") for text, _ in rows()])
        assert "at least two classes are needed" in fails("roar", "--data", file)


def test_report_and_compare_take_the_folder(texts, tmp_path):
    for name, epochs in (("a", 1), ("b", 2)):
        request = ("--seeds", 2, "--measures", "gradient", "--levels", 50, "--epochs", epochs)
        run("roar", "--data", texts, *request, "--out", tmp_path / name)
    told = run("report", tmp_path / "a", "--tables", tmp_path / "tables")
    assert "report.html" in told.stdout
    assert list((tmp_path / "tables").glob("racu*"))
    told = run("compare", tmp_path / "a", tmp_path / "b")
    assert "epochs" in told.stdout


def test_the_demo(tmp_path, monkeypatch):
    quick = {**command.DEMO, "seeds": 1, "levels": (60,)}
    monkeypatch.setattr(command, "DEMO", quick)
    monkeypatch.setattr(command, "DEMO_TRAINING", {**command.DEMO_TRAINING, "epochs": 1})
    monkeypatch.setattr(command, "DEMO_ROWS", (2000, 500))
    out = tmp_path / "demo"
    told = run("roar", "--demo", "--out", out)
    assert "four of sixteen features know the class" in told.stdout
    assert "The class is lost after 4 removals in Recursive ROAR's order" in told.stdout
    result = fs.load_result(out / "run")
    assert result.methods == ["attention", "input_x_gradient(signed=false)", "random"]
    assert result.headline() in told.stdout
    for file in ("report.html", "synthetic.png", "figures/curves.pdf", "figures/sparsity.png"):
        assert (out / file).stat().st_size > 1000
    assert told.stdout.count("\n  faithscope roar ") == 2
    assert "decide nothing" in told.stdout and "docs/reproduction_text.md" in told.stdout
    data = json.loads(run("roar", "--demo", "--out", out, "--json").stdout)
    assert len(data["synthetic"]["curves"]["roar"]) == 17
    assert data["headline"] == result.headline()


def test_progress_is_told_in_lines(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    told = run("roar", "--data", texts, *QUICK, "--out", tmp_path / "run")
    done = r"^100% · training \d, epoch 1/1 · 4/4 trainings · .* per (minute|second) · 0:00 left$"
    assert re.search(done, told.stderr, re.M)
    assert "explaining gradient" in told.stderr


# Images


def test_images(tmp_path):
    data, out = array_file(tmp_path), tmp_path / "run"
    asked = ("roar", "--model", MODEL, "--data", data, "--fill", "blur", *QUICK)
    forecast = run(*asked, "--dry-run")
    assert "4 trainings, about" in forecast.stdout and not out.exists()
    told = run(*asked, "--out", out)
    result = fs.load_result(out)
    assert result.headline() in told.stdout
    assert result.manifest.protocol["fill"] == "blur"
    assert "One image, masked step by step" in (out / "report.html").read_text(encoding="utf-8")
    run("report", out, "--figures", tmp_path / "figures")
    assert [*(tmp_path / "figures").glob("*masked_image*")]


def test_a_study_of_images(tmp_path):
    cell = {"model": MODEL, "data": array_file(tmp_path), "methods": ["gradient"], "seeds": 1}
    short = {"levels": [50], "epochs": 1, "batch_size": 16, "fill": ["mean", "noise"]}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"kind": "retrain", **cell, **short}))
    run("run", file, "--out", tmp_path / "runs", "--yes")
    found = fs.load_results(tmp_path / "runs").results.values()
    assert [held.manifest.protocol["fill"] for held in found] == ["mean", "noise"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "vit", "--data", "bundled:babi1"), "are texts"),
        (("--model", "bilstm", "--data", "bundled:cifar10"), "are images"),
        (("--model", "vit", "--data", "bundled:cifar10", "--fill", "drop"), "fill='drop' takes"),
        (("--model", "vit(patch=5)", "--data", "bundled:cifar10"), "whole patches of 5"),
        (("--model", "vit", "--data", "array:nowhere.npz"), "no array file"),
    ],
)
def test_what_images_cannot_be_is_refused(options, words):
    assert words in fails("roar", *options)
