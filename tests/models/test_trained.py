"""Models that a run of retraining trained, loaded by name: `run:FOLDER(seed=0)`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import faithscope as fs
from commands import csv, fails, rows, run
from encoders import save_encoder
from faithscope.data.text_sources import load_text
from faithscope.data.vocabulary import MASK, UNK
from faithscope.methods.text import ROAR, measure
from faithscope.models import PassCounter
from faithscope.models.bilstm_text import BiLSTMText
from faithscope.models.tensor_files import read_tensors, tensor_file
from faithscope.models.tokens import TokenInputs
from faithscope.probes.retrain import finetune
from faithscope.probes.retrain.learner import Recipe
from faithscope.probes.retrain.learners import load_learner
from families import refused
from small_images import SMALL, array_file

MODEL = "vit(dim=16, depth=1, patch=2)"
TEXTS = ["the film was great", "an awful , dull film it was !", "lovely", "zebra film"]
NAMES = ("attention", "gradient", "input_x_gradient", "integrated_gradients", "random")
METRICS = ("saco", "aopc", "log_odds", "auc", "comprehensiveness", "sufficiency", "deletion")
PAIRS = 60
MEASURES = (*ROAR[:-1], *NAMES[1:-1], "integrated_gradients(baseline=pad_all)")


def trained(folder: Path, data: str, model: str = "bilstm", **options: Any) -> str:
    asked = {"measures": "gradient", "levels": [50], "procedures": "roar", "device": "cpu"}
    fs.roar(data, model, out=folder, progress=False, **{**asked, "epochs": 2, **options})
    return f"run:{folder}"


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("single")
    data = str(csv(folder / "texts.csv", rows()))
    return trained(folder / "run", data, seeds=2, epochs=6), data


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("paired")
    return trained(folder / "run", "bundled:babi1", seeds=1, epochs=1, limit=PAIRS), "bundled:babi1"


@pytest.fixture
def model(single: tuple[str, str]) -> BiLSTMText:
    return as_bilstm(single[0])


def as_bilstm(name: str) -> BiLSTMText:
    found = fs.load_model(name, device="cpu")
    assert isinstance(found, BiLSTMText)
    found.module.double()
    return found


def accuracy_of(name: str, seed: int) -> float:
    """Of the intact data, as the run itself tested it."""
    run = fs.load_result(name.removeprefix("run:")).trainings.to_pylist()
    at = (0, seed, "accuracy")
    (found,) = {r["value"] for r in run if (r["k"], r["seed"], r["metric"]) == at}
    return float(found)


# What is loaded is what was trained


@pytest.mark.parametrize("seed", [0, 1])
def test_a_bilstm_answers_as_the_run_tested_it(single: tuple[str, str], seed: int) -> None:
    name, data = single
    loaded = fs.load_model(f"{name}(seed={seed})")
    result = fs.evaluate(loaded, load_text(data), "random", "aopc", random_draws=1)
    assert result.manifest.data.accuracy == pytest.approx(accuracy_of(name, seed))
    assert loaded.classes == load_text(data).classes


def test_a_vit_answers_as_the_run_tested_it(tmp_path: Path) -> None:
    data = array_file(tmp_path)
    few = {**SMALL, "measures": "gradient", "levels": [50], "seeds": 1, "progress": False}
    fs.roar(data, MODEL, procedures="roar", out=tmp_path / "run", **few)
    name = f"run:{tmp_path / 'run'}"
    loaded = fs.load_model(name)
    assert loaded.input_size == (8, 8) and loaded.mean is not None and loaded.patch_size == (2, 2)
    result = fs.evaluate(
        loaded, f"{data}(images=x_test, labels=y_test)", "rollout", "aopc", random_draws=0
    )
    assert result.manifest.data.accuracy == pytest.approx(accuracy_of(name, 0))


def test_a_fine_tuned_encoder_answers_as_the_run_tested_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(epochs=1, batch_size=16, learning_rate=1e-3, weight_decay=0.01)
    monkeypatch.setattr(finetune, "finetune_recipe", lambda _: recipe)
    encoder = save_encoder(tmp_path / "encoder", "Bert")
    data = str(csv(tmp_path / "texts.csv", rows()))
    name = trained(tmp_path / "run", data, f"mine={encoder}", seeds=1, epochs=1)
    result = fs.evaluate(name, load_text(data), "rollout", "aopc", random_draws=0)
    assert result.manifest.data.accuracy == pytest.approx(accuracy_of(name, 0))
    assert fs.load_model(name).classes == load_text(data).classes
    config = Path(encoder.removeprefix("hf:")) / "tokenizer.json"
    held = json.loads(config.read_text())
    held["normalizer"] = {"type": "Lowercase"}
    config.write_text(json.dumps(held))
    with refused("is not the one that"):
        fs.load_model(name)


# A BiLSTM's maps


@pytest.mark.parametrize("kind", ["single", "paired"])
@pytest.mark.parametrize("name", MEASURES)
def test_maps_are_those_that_roar_ranks_by(
    name: str, kind: str, request: pytest.FixtureRequest
) -> None:
    run_name, source = request.getfixturevalue(kind)
    loaded = as_bilstm(run_name)
    data = load_text(source, limit=PAIRS if loaded.is_paired else None)
    learner = load_learner("bilstm", data, device="cpu")
    test = learner.encode(data).test
    few = test.at(torch.arange(7))
    (expected,) = learner.explain([loaded.module.state_dict()], [few], measure(name), [0])
    side = "first" if loaded.is_paired else "both"
    maps = fs.explain(loaded, data, name, target=test.labels, side=side)[:7]
    for found, own, eligible in zip(maps, expected, few.eligible, strict=True):
        torch.testing.assert_close(found, own[eligible].double(), rtol=2e-6, atol=1e-9)


def test_alpha_is_a_distribution_over_words(model: BiLSTMText) -> None:
    for alpha in fs.explain(model, TEXTS, "attention"):
        assert (alpha >= 0).all() and float(alpha.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_explained_alone_as_among_others(model: BiLSTMText, name: str) -> None:
    together = fs.explain(model, [*TEXTS, *(text for text, _ in rows(30))], name)
    for text, expected in zip(TEXTS, together, strict=False):
        (alone,) = fs.explain(model, [text], name)
        torch.testing.assert_close(alone, expected, rtol=1e-9, atol=1e-12)


def test_padding_of_tokens_is_not_read(model: BiLSTMText) -> None:
    texts = [text for text in TEXTS if "," not in text]  # cut at blanks as it is otherwise
    encoded = model.encode_all([(text,) for text in texts])
    width = max(len(one.ids) for one in encoded)
    ids = torch.tensor([[*one.ids, *[0] * (width - len(one.ids))] for one in encoded])
    tokens = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    for name in NAMES[:-1]:
        for padded, one in zip(fs.explain(model, tokens, name), texts, strict=True):
            (alone,) = fs.explain(model, [one], name)
            torch.testing.assert_close(padded, alone, rtol=1e-9, atol=1e-12)


def test_unknown_words_are_shown_and_read_as_unknown(model: BiLSTMText) -> None:
    from faithscope.data.text_samples import load_texts

    (held,) = load_texts("Zebra film", model).encoded
    assert held.words == ("zebra", "film") and held.ids[1] == UNK


# Fills


def answers(model: BiLSTMText, fill: str, removed: list[int]) -> Tensor:
    from faithscope.data.text_samples import load_texts
    from faithscope.perturb import FILLS, FillContext

    inputs = next(load_texts([TEXTS[0]], model).batches(1)).images
    mask = torch.zeros(1, inputs.count, dtype=torch.bool)
    mask[0, removed] = True
    made: Any = FILLS.of("text")[fill]
    field = made.field(inputs, FillContext(("a",), 0, None, None, model.specials))
    changed: TokenInputs = made.replaced(inputs, mask, field, (1, inputs.count))
    return model.logits(changed)


def logits_of(model: BiLSTMText, ids: list[int]) -> Tensor:
    whole = torch.tensor([ids])
    made = TokenInputs(whole, torch.ones_like(whole), 0 * whole, 0 * whole, len(ids))
    return model.logits(made)


def test_fills_change_what_they_say(model: BiLSTMText) -> None:
    (held,) = model.encode_all([(tuple(TEXTS[0].split()),)])
    ids = list(held.ids)
    for fill, token in (("mask", MASK), ("unk", UNK)):
        expected = logits_of(model, [*ids[:2], token, *ids[3:]])
        torch.testing.assert_close(answers(model, fill, [1]), expected)
    torch.testing.assert_close(answers(model, "drop", [1]), logits_of(model, ids[:2] + ids[3:]))
    words = model.embed(TokenInputs(*[torch.tensor([ids])] * 4, len(ids)))
    words[0, 2] = 0
    attended = torch.ones(1, len(ids), dtype=torch.int64)
    attended[0, 2] = 0
    made = model.module(torch.tensor([ids]), 0 * attended, 0 * attended + 1, words)
    padded = answers(model, "pad", [1])
    assert not torch.allclose(padded, made.logits)  # nothing attends to it, either
    assert model.module(torch.tensor([ids]), 0 * attended, attended).attention[0, 2] == 0
    for fill in ("mask", "unk", "drop", "pad"):
        assert answers(model, fill, [0, 1, 2, 3]).isfinite().all()


# From end to end


@pytest.mark.parametrize("fill", ["mask", "pad", "drop", "unk"])
def test_metrics_from_few_passes(single: tuple[str, str], fill: str) -> None:
    """Two shared passes for each text, and for each map one by each cut of it."""
    from faithscope.metrics import resolve_metrics
    from faithscope.probes.perturb.plan import passes_per_image

    loaded, counter = fs.load_model(single[0]), PassCounter()
    texts = [text for text, _ in rows(8)]
    prepared = fs.prepare(loaded, texts, NAMES[:-1], METRICS, fill=fill, random_draws=1)
    with counter.watch(loaded.module):
        result = prepared.run(progress=False)
    most = 8 * passes_per_image(resolve_metrics(METRICS), 12, len(NAMES), k=10)
    cost = result.manifest.cost
    assert cost.response_passes <= most
    assert counter.count == cost.response_passes + cost.explanation_passes
    # α, a forward and backward, and 50 places of a path
    assert cost.explanation_passes <= 8 * (1 + 2 + 50)
    assert {row["method"] for row in result.summary().to_pylist()} == {*NAMES}
    assert {row["metric"] for row in result.summary().to_pylist()} == {*METRICS}
    assert not result.manifest.data.failed and not result.left_out


def test_a_pair_is_asked_about_its_first_text(paired: tuple[str, str]) -> None:
    name, data = paired
    with refused("explains the first text of a pair", "side='first'"):
        fs.evaluate(name, data, "gradient", limit=3)
    result = fs.evaluate(name, data, ["attention", "gradient"], "aopc", side="first", limit=5)
    assert result.samples.num_rows == 5 and not result.left_out
    story = ("Mary went home. John left the garden.", "Where is Mary?")
    (alpha,) = fs.explain(name, [story], "attention", side="first")
    assert len(alpha) == 8
    with refused("reads pairs of texts, and was given single texts"):
        fs.explain(name, ["Mary went home."], "gradient", side="first")


def test_commands_and_studies(single: tuple[str, str], tmp_path: Path) -> None:
    name, data = single
    out = tmp_path / "out"
    asked = ("--methods", "attention,gradient,rollout", "--metrics", "saco", "--limit", 6)
    told = run("evaluate", "--model", name, "--data", data, *asked, "--k", 5, "--out", out)
    assert "rollout" in told.stdout + told.stderr
    kept = fs.load_result(out)
    again = fs.evaluate(name, data, ["attention", "gradient"], "saco", k=5, limit=6)
    for method in ("attention", "gradient"):
        assert kept.values(method, "saco").tolist() == again.values(method, "saco").tolist()
    assert kept.left_out[0].name == "rollout" and "BiLSTM" in kept.left_out[0].why
    said = json.loads(
        run("explain", TEXTS[0], "--model", name, "--methods", "attention", "--json").stdout
    )
    assert said["words"] == TEXTS[0].split() and sum(said["salience"]["attention"]) < 1.001
    page = tmp_path / "page.html"
    run("explain", TEXTS[0], "--model", name, "--methods", "gradient", "--story", "--out", page)
    assert "great" in page.read_text()
    study = tmp_path / "study.yaml"
    study.write_text(
        f"model: '{name}(seed=1)'\ndata: {data}\nmethods: [gradient]\nmetrics: [aopc]\nlimit: 4\n"
    )
    run("run", study, "--out", tmp_path / "study", "--yes")
    assert len(fs.load_results(tmp_path / "study").results) == 1


# What is refused


def test_what_a_bilstm_has_not_is_refused_by_name(single: tuple[str, str]) -> None:
    name, data = single
    with refused("'rollout'", "it is a BiLSTM, which has no Transformer blocks", "attention, grad"):
        fs.evaluate(name, data, "rollout")
    with refused("attention(layers=last)", "α"):
        fs.evaluate(name, data, "attention(layers=last)")
    with refused("gradient(at=tokens)", "BiLSTM"):
        fs.explain(name, TEXTS, "gradient(at=tokens)")
    with refused("are words already"):
        fs.evaluate(name, data, "gradient", units="words")
    with refused("single texts"):
        fs.evaluate(name, [("a film", "good")], "gradient")
    with refused("is not for texts"):
        fs.evaluate(name, data, "gradient", fill="mean")
    with refused('holds another run (kind is "retrain" there and "perturb" here)'):
        fs.evaluate(name, data, "gradient", "aopc", out=name.removeprefix("run:"))


def test_runs_that_hold_no_such_model(single: tuple[str, str], tmp_path: Path) -> None:
    name = single[0]
    folder = Path(name.removeprefix("run:"))
    with refused("trained no model with seed 7: its seeds are 0, 1", f"{name}(seed=0)"):
        fs.load_model(f"{name}(seed=7)")
    with refused("holds no trained model"):
        fs.load_model(f"run:{tmp_path}")
    with refused("is a trained model"):
        fs.load_model(name, pretrained=False)
    with refused("Unknown option of model 'run'"):
        fs.load_model(f"{name}(sed=1)")
    with refused("The option 'seed' of model 'run' is a whole number, got 'x'"):
        fs.load_model(f"{name}(seed=x)")
    assert "trained no model with seed 9" in fails(
        "evaluate", "--model", f"{name}(seed=9)", "--data", single[1]
    )
    for copy in ("one", "two"):
        target = tmp_path / "study" / copy / "artifacts" / "models"
        target.mkdir(parents=True)
        file = folder / "artifacts" / "models" / "k000-s0.safetensors"
        (target / file.name).write_bytes(file.read_bytes())
        (target / "k000-s0 (copy).safetensors").write_bytes(b"made by a file manager")
    with refused("holds 2 runs: name one", str(tmp_path / "study" / "two")):
        fs.load_model(f"run:{tmp_path / 'study'}")
    one, two = (tmp_path / "study" / copy for copy in ("one", "two"))
    assert fs.load_model(f"run:{one}").fingerprint == fs.load_model(name).fingerprint
    bracketed = (tmp_path / "one").with_name("rüns (1)")
    (tmp_path / "study" / "one").rename(bracketed)
    for way in (f"run:{bracketed}", f"run:{bracketed}(seed=0)"):
        assert fs.load_model(way).name == way
    held = target / file.name
    content = bytearray(held.read_bytes())
    content[-1] ^= 1
    held.write_bytes(content)
    with refused("cannot be used (its hash differs)", "run fs.roar again"):
        fs.load_model(f"run:{two}")
    tensors, about = read_tensors(file.read_bytes())
    held.write_bytes(tensor_file(tensors, {k: v for k, v in about.items() if k != "card"}))
    with refused("does not say of what model"):
        fs.load_model(f"run:{two}")
    card = json.loads(about["card"])
    card["words"] = card["words"][:-1]
    held.write_bytes(tensor_file(tensors, {**about, "card": json.dumps(card)}))
    with refused("its weights are not those of such a model"):
        fs.load_model(f"run:{two}")
