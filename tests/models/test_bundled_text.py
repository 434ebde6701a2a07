"""The bundled text classifier and the sentences that come with it."""

import itertools
import json
import re
import socket
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import faithscope as fs
from commands import fails, run
from conftest import tiny_vit
from faithscope.models import BUNDLE, TextModel

MODEL, DATA = "bundled:sst_text", "bundled:sst"
FOLDER = Path(str(BUNDLE)) / "sst_text"
SAMPLE = Path(str(BUNDLE)) / "sst.jsonl"
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def model() -> TextModel:
    loaded = fs.load_model(MODEL)
    assert isinstance(loaded, TextModel)
    return loaded


@pytest.fixture(scope="module")
def card() -> dict:
    return json.loads((FOLDER / "card.json").read_text("utf-8"))


def count_right(model, data) -> int:
    with torch.no_grad():
        hits = [model.logits(batch.images).argmax(-1) == batch.labels for batch in data.batches(50)]
    return int(torch.cat(hits).sum())


# The model


def test_it_is_as_good_as_its_card_and_the_recipes_say(model, card):
    data = fs.load_data(DATA, model)
    assert count_right(model, data) == card["sample_right"]
    assert len(data) == card["sample_sentences"] == 200
    page = (RECIPES / "README.md").read_text("utf-8")
    assert f"({card['sample_right']} of 200)" in page
    assert f"{card['test_accuracy']:.2%}".replace("%", " %") in page
    assert card["test_right"] / card["test_sentences"] == pytest.approx(
        card["test_accuracy"], abs=5e-5
    )
    assert card["test_sentences"] == 1821 and card["test_accuracy"] >= 0.82


def test_it_is_small_and_its_card_is_true(model, card):
    files = [*FOLDER.iterdir(), SAMPLE]
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in files} == {*names, "card.json", "sst.jsonl"}
    assert sum(file.stat().st_size for file in files) <= 2_500_000
    with safe_open(FOLDER / "model.safetensors", "pt") as opened:
        assert {opened.get_tensor(key).dtype for key in opened.keys()} == {torch.float16}
    assert sum(weights.numel() for weights in model.module.parameters()) == card["parameters"]
    assert list(model.classes) == card["classes"] == ["negative", "positive"]
    assert model.embedding.num_embeddings == len(model.tokenizer)


def test_its_weights_are_those_of_the_file_every_time(model):
    held, again = load_file(FOLDER / "model.safetensors"), fs.load_model(MODEL)
    assert model.module.state_dict().keys() == held.keys()
    for key, weights in model.module.state_dict().items():
        assert weights.dtype == torch.float32
        torch.testing.assert_close(weights, held[key].float(), rtol=0, atol=0)
        torch.testing.assert_close(weights, again.module.state_dict()[key], rtol=0, atol=0)
    random = fs.load_model(MODEL, pretrained=False)
    assert not torch.equal(random.embedding.weight, model.embedding.weight)


def test_transformers_reads_it_as_it_is(model):
    read = fs.load_model(f"hf:{FOLDER}")
    for key, weights in model.module.state_dict().items():
        torch.testing.assert_close(read.module.state_dict()[key], weights, rtol=0, atol=0)
    assert read.preparation == model.preparation


def test_plain_text_and_the_treebanks_spelling_are_the_same_tokens(model):
    for plain, treebank in (
        ("It's a lovely film, isn't it?", "It 's a lovely film , is n't it ?"),
        ("Dull (and long)", "Dull -LRB- and long -RRB-"),
        ('A "good" comedy/drama', "A `` good '' comedy\\/drama"),
    ):
        assert model.encode(plain).ids == model.encode(treebank).ids
    assert model.encode("CLICHÉ is n't bad .").words == ("cliche", "is", "n't", "bad", ".")
    words = model.with_units("words", "both").encode("It isn't bad.").words
    assert words == ("It", "is", "n't", "bad", ".")


def test_it_knows_its_mask_and_what_is_cut(model):
    assert None not in model.specials.values()
    assert model.max_length == 128
    encoded = model.encode("good " * 200)
    assert encoded.is_cut and len(encoded.ids) == 128


def test_it_takes_no_options():
    with pytest.raises(fs.FaithscopeError, match="takes no options"):
        fs.load_model(f"{MODEL}(revision=main)")
    with pytest.raises(fs.FaithscopeError, match="did you mean 'sst_text'"):
        fs.load_model("bundled:sst_txt")


# The sentences


def test_the_sentences_are_balanced_and_have_stable_names(model):
    rows = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()]
    assert [row["label"] for row in rows].count("negative") == 100
    places = [int(re.fullmatch(r"test-(\d+)", row["id"])[1]) for row in rows]
    assert places == sorted(set(places)) and 0 < places[0] < 30 and 2180 < places[-1] <= 2210
    assert max(b - a for a, b in itertools.pairwise(places)) < 25
    data = fs.load_data(DATA, model)
    assert data.sample_names == [row["id"] for row in rows]
    assert data.labels.tolist() == [row["label"] == "positive" for row in rows]
    few = fs.load_data(DATA, model, limit=10)
    assert set(few.sample_names) < set(data.sample_names)
    assert not any("-LRB-" in row["text"] for row in rows)


def test_one_sentence_by_its_number(model):
    one, everything = fs.load_data(f"{DATA}:7", model), fs.load_data(DATA, model)
    assert list(one.items) == [everything.items[7]]
    with pytest.raises(fs.FaithscopeError, match="numbered 0 to 199, got '200'"):
        fs.load_data(f"{DATA}:200", model)


def test_other_names_are_refused(model):
    with pytest.raises(
        fs.FaithscopeError, match=r"'bundled:ssst': .* bundled:sst or bundled:babi1"
    ):
        fs.load_data("bundled:ssst", model)
    assert fs.load_data("bundled:babi1", model, limit=2).name == "bundled:babi1"
    with pytest.raises(fs.FaithscopeError, match="reads images, and 'bundled:sst' is text"):
        fs.load_data(DATA, fs.wrap(tiny_vit(dtype=torch.float32)))


# The command line


def test_they_are_listed():
    assert MODEL in run("list", "models").stdout
    listed = run("list", "data").stdout
    assert re.search(r"bundled:sst +200 test sentences", listed)


def test_the_demo(tmp_path, monkeypatch):
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    out = tmp_path / "demo"
    told = run("demo", "--text", "--texts", 4, "--out", out)
    assert "2 random draws per token" in told.stderr
    result = fs.load_result(out / "run")
    assert result.methods[0] == "integrated_gradients"
    assert result.metrics == ["saco", "aopc", "log_odds", "auc", "comprehensiveness"]
    assert len(result.samples) == 4
    assert result.headline() in told.stdout
    page = (out / "report.html").read_text("utf-8")
    assert MODEL in page and "rollout" in page
    for path in (out / "report.html", out / "run"):
        assert str(path) in told.stdout
    commands = re.findall(r"\n  faithscope (.+)", told.stdout)
    assert [command.split()[0] for command in commands] == ["explain", "evaluate"]
    asked = commands[1].split()[1:]
    assert "4 texts" in run("evaluate", *asked, "--limit", 4, "--methods", "gradient").stdout


def test_the_demo_refuses_what_makes_no_sense(tmp_path):
    assert "--texts must be at least 1" in fails("demo", "--text", "--texts", 0, "--out", tmp_path)
    assert "--images has no effect with --text" in fails("demo", "--text", "--images", 3)
    assert "--texts needs --text" in fails("demo", "--texts", 3)
