"""Texts to be explained: what they may be given as, and what is said of anything else."""

from __future__ import annotations

import copy
import json
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import faithscope as fs
from commands import fails, run
from faithscope.data.text_samples import TextSamples, load_texts
from families import refused
from text_models import PAIRS, TEXTS, classifier, save_classifier, text_model, tokenizer

MODEL = text_model()
LABELLED = text_model(id2label={0: "Bad", 1: "so_so", 2: "good"})
NUMBERS = [0, 2, 1, 1, 0, 2]


def loaded(data: Any, model: Any = MODEL, **options: Any) -> TextSamples:
    return load_texts(data, model, **options)


# --- Labels ---


def dataset(labels: list[Any], names: list[str] | None) -> datasets.Dataset:
    kind = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    features = datasets.Features({"sentence": datasets.Value("string"), "label": kind})
    return datasets.Dataset.from_dict({"sentence": [*TEXTS], "label": labels}, features=features)


@pytest.mark.parametrize(
    ("labels", "names", "model", "expected"),
    [
        (NUMBERS, None, MODEL, NUMBERS),
        (NUMBERS, ["a", "b", "c"], MODEL, NUMBERS),
        (NUMBERS, ["good", "BAD", "so so"], LABELLED, [2, 1, 0, 0, 2, 1]),
        (NUMBERS, ["good", "bad"], MODEL, None),
        ([0, -1, 0, 0, 0, 0], None, MODEL, None),
    ],
    ids=["numbers", "as_many", "by_name", "others", "missing"],
)
def test_labels_of_a_data_set_become_the_models(labels, names, model, expected):
    if names is not None and len(names) == 2:
        labels = [label % 2 for label in labels]
    rows = dataset(labels, names)
    if expected is None:
        with pytest.warns(UserWarning, match="used without labels"):
            found = loaded(rows, model).labels
    else:
        found = loaded(rows, model).labels
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["good", "bad", "So So", "so_so", "GOOD", "bad"], [2, 0, 1, 1, 2, 0]),
        (["0", "1", "2", "0", "1", "2"], [0, 1, 2, 0, 1, 2]),
        ([0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2]),
        (torch.tensor([0, 1, 2, 0, 1, 2]), [0, 1, 2, 0, 1, 2]),
    ],
    ids=["names", "digits", "numbers", "tensor"],
)
def test_labels_are_given_by_name_or_number(labels, expected):
    found = loaded(TEXTS, LABELLED, labels=labels).labels
    assert found is not None and found.tolist() == expected


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "a film", "label": "fine"}] * 2, "The labels (fine) are not the classes"),
        ([{"text": "a film", "label": 1}, {"text": "bad"}], "1 of 2 texts have no label"),
    ],
)
def test_labels_that_cannot_be_used_are_warned_of(rows, said):
    with pytest.warns(UserWarning) as caught:
        assert loaded(rows, LABELLED).labels is None
    assert said in str(caught[0].message)


# --- Names, pairs, limits ---


def test_pairs_come_by_the_usual_columns(tmp_path):
    for first, second in [("sentence1", "sentence2"), ("premise", "hypothesis"), ("text", "text2")]:
        rows = [{first: one, second: other, "idx": 7 + at} for at, (one, other) in enumerate(PAIRS)]
        held = loaded(rows)
        assert [item.texts for item in held.items] == [*PAIRS]
        assert held.sample_names == ["7", "8", "9"]
    file = tmp_path / "pairs.csv"
    file.write_text("q,a,y\n" + "".join(f"{one},{other},2\n" for one, other in PAIRS))
    held = loaded(f"{file}(text=q, auxiliary=a, label=y)")
    assert [item.texts for item in held.items] == [*PAIRS] and held.labels.tolist() == [2, 2, 2]
    assert [item.texts for item in loaded(PAIRS).items] == [*PAIRS]


TABLES: dict[str, Any] = {
    "pandas": lambda columns: pd.DataFrame(columns, index=[7, 7, 8]),
    "arrow": pa.table,
    "polars": lambda columns: pytest.importorskip("polars").DataFrame(columns),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_read_row_by_row_not_column_by_column(kind):
    texts, labels = ["a good film", None, "bad"], ["good", "bad", "bad"]
    data = loaded(TABLES[kind]({"sentence": texts, "label": labels, "id": [5, 6, 7]}), LABELLED)
    assert [item.text for item in data.items] == ["a good film", "", "bad"]
    assert data.labels is not None and data.labels.tolist() == [2, 0, 0]
    assert data.sample_names == ["5", "6", "7"]
    with refused("no text in a column", "columns body"):
        loaded(TABLES[kind]({"body": texts}))


def test_a_limit_takes_texts_from_all_over_and_keeps_their_names():
    held = loaded(TEXTS, limit=2)
    assert [TEXTS[int(name)] for name in held.sample_names] == [item.text for item in held.items]
    assert len({*held.sample_names}) == 2
    maps = {"mine": [torch.rand(len(MODEL.encode(item.text).words)) for item in held.items]}
    result = fs.evaluate(MODEL, TEXTS, maps=maps, limit=2, random_draws=0, metrics="aopc")
    assert {*result.tables["samples"]["sample"].to_pylist()} == {*held.sample_names}


def test_a_saved_data_set_of_hugging_face_is_read_by_split(tmp_path):
    datasets.DatasetDict({"validation": dataset(NUMBERS, None)}).save_to_disk(tmp_path / "saved")
    held = loaded(f"hf:{tmp_path / 'saved'}(split=validation)")
    assert held.name == "hf:saved:validation" and held.labels.tolist() == NUMBERS
    with refused("split of"):
        loaded(f"hf:{tmp_path / 'saved'}")


def test_a_text_may_have_brackets_colons_and_ends():
    for text in ("it was (not) good", "imdb: a film", "a film (y=1)", "film: good", "good."):
        assert [item.text for item in loaded(text).items] == [text]


def test_texts_are_encoded_as_one_by_one():
    texts = [*TEXTS, *PAIRS, " ".join(["good film"] * 60), ("story " * 50, "bad " * 40)]
    for units in ("tokens", "words"):
        model = MODEL.with_units(units, "both")
        with pytest.warns(UserWarning, match="2 texts were longer than the 64 tokens"):
            held = loaded(texts, model)
        for made, text in zip(held.encoded, texts, strict=True):
            given = (text,) if isinstance(text, str) else text
            read = model.tokenizer(*given, truncation=True, max_length=64)
            assert made == model.encode(*given)
            assert (list(made.ids), list(made.types)) == (read["input_ids"], read["token_type_ids"])
    assert MODEL.with_units("words", "both").encode("actings plots").words == ("actings", "plots")


def test_random_draws_hang_on_words_not_on_places():
    first, second = loaded(["a film", "bad"]), loaded(["bad", "a film"])
    assert first.read_batches([0])[0].keys == second.read_batches([1])[0].keys
    keys = [item.key for item in loaded([("a film", "None"), "a film", "a|film"]).items]
    assert len({*keys}) == 3


# --- What is refused, in a sentence ---

PICTURE = Image.new("RGB", (8, 8))
NOT_TEXTS = {
    "tensor": torch.rand(2, 3, 8, 8),
    "pixels": torch.zeros(2, 8, 8, 3, dtype=torch.uint8),
    "grey": np.zeros((8, 8), dtype=np.uint8),
    "picture": PICTURE,
    "pictures": [PICTURE],
    "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(2, 3, 8, 8))),
    "cifar": "cifar10:folder",
    "array": "array:images.npy",
    "pattern": "photos/*.jpg",
    "number": 5,
    "none": [None],
    "triple": [("a", "b", "c")],
    "floats": {"input_ids": torch.rand(2, 5)},
    "deep": {"input_ids": torch.ones(2, 5, 5, dtype=torch.int64)},
}


@pytest.mark.parametrize("data", NOT_TEXTS.values(), ids=NOT_TEXTS)
def test_what_is_no_text_is_refused(data):
    with refused("reads texts", "give strings, pairs"):
        fs.evaluate(MODEL, data, "gradient")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], ["no texts"]),
        ("", ["is empty"]),
        (" ", ["is empty"]),
        (["", " "], ["None of the 2 texts", "it has no tokens"]),
        ([""], ["The only text cannot be used"]),
        ("missing.csv", ["no file or folder 'missing.csv'"]),
        ("folder/missing", ["no file or folder"]),
        ([{"body": "a film"}], ["no text in a column", "columns body"]),
        ([{"text": "bad"}, {"text": 5}], ["text 1 holds 5 for a text", "in quotes"]),
        ([{"text": "a film", "id": 1}, {"text": "bad", "id": 1}], ["2 texts are called '1'"]),
        ({"input_ids": [[2, 99]]}, ["the token 99", "0 to 71"]),
        ({"input_ids": [[1, 5]]}, ["attention_mask"]),
        ({"input_ids": [[0, 5, 2, 1]]}, ["attention_mask"]),
        ({"input_ids": [[0, 5, 2]], "attention_mask": [[1, 1]]}, ["one shape"]),
        ({"input_ids": [[5] * 65]}, ["65 tokens", "reads 64"]),
        ({"input_ids": torch.ones(0, 5, dtype=torch.int64)}, ["no texts"]),
        ({"input_ids": torch.ones(2, 0, dtype=torch.int64)}, ["None of the 2", "has no tokens"]),
        ({"input_ids": torch.tensor(1)}, ["attention_mask"]),
        (pd.DataFrame({"text": ["bad", 5]}), ["this table cannot be read", "a list of dicts"]),
    ],
)
def test_texts_that_cannot_be_used_are_refused(data, words):
    with refused(*words):
        fs.evaluate(MODEL, data, "gradient")


def test_words_of_tokens_are_not_known():
    with refused("Words are found by the tokenizer"):
        fs.evaluate(MODEL, {"input_ids": [[0, 5, 2]]}, "gradient", units="words")


def test_an_empty_text_costs_that_text():
    texts = ["", *TEXTS, " "]
    result = fs.evaluate(MODEL, texts, "gradient", random_draws=0)
    assert {item.name: item.why for item in result.manifest.data.skipped} == {
        "0": "it has no tokens",
        "7": "it has no tokens",
    }
    assert result.samples.num_rows == len(TEXTS)
    with refused("The text '0' would be left out", "strict"):
        fs.evaluate(MODEL, texts, "gradient", strict=True)
    with refused("The text '0' cannot be explained"):
        fs.explain(MODEL, texts, "gradient")


def test_a_side_that_is_not_there_costs_the_text():
    result = fs.evaluate(MODEL, [*PAIRS, "a film"], "gradient", "aopc", side="second")
    (left,) = result.manifest.data.skipped
    assert (left.name, left.why) == ("3", "it has no tokens on its second side")


def test_long_texts_are_cut_with_a_warning():
    with pytest.warns(UserWarning, match="1 text was longer than the 64 tokens"):
        result = fs.evaluate(MODEL, ["good film " * 40, TEXTS[2]], "gradient", random_draws=0)
    assert result.tables["maps"]["units"].to_pylist() == [62, 14]


# --- Models ---


def test_one_text_of_one_token():
    with refused("'saco' compares groups of units, and there is only one unit"):
        fs.evaluate(MODEL, "good", "gradient")
    result = fs.evaluate(MODEL, "good", "gradient", ["aopc", "log_odds"])
    assert {*result.scores["flag"].to_pylist()} == {"degenerate"}
    with refused("10 groups cannot be made of 2 units: choose k of at most 2."):
        fs.evaluate(MODEL, "good film", "gradient")


def test_a_tokenizer_without_a_mask_token():
    model = fs.wrap(classifier("Bert"), tokenizer=tokenizer("Bert", mask=False))
    with refused("'mask' needs a mask token", "choose another (drop, pad, unk)"):
        fs.evaluate(model, TEXTS, "gradient")
    for fill in ("drop", "pad", "unk"):
        assert fs.evaluate(model, TEXTS, "gradient", "aopc", fill=fill).samples.num_rows == 6


def test_a_decoder_is_not_given_its_token_for_padding():
    """It would look for the end of the text before it."""
    module = classifier("GPT2")
    words = tokenizer("GPT2")
    assert fs.evaluate(fs.wrap(module, tokenizer=words), TEXTS, "gradient", fill="unk").methods
    module.config.pad_token_id = words.unk_token_id
    with refused("'unk' needs a unk token", "padding", "(drop, mask, pad)"):
        fs.evaluate(fs.wrap(module, tokenizer=words), TEXTS, "gradient", fill="unk")
    with refused("None of the 6 texts", "'drop' would leave nothing", "(choose another)"):
        fs.evaluate(fs.wrap(module, tokenizer=words), TEXTS, "gradient", fill="drop")


def test_a_module_without_its_tokenizer_or_with_a_slow_one():
    with refused("reads texts", "tokenizer=…"):
        fs.evaluate(classifier("Bert"), TEXTS, "gradient")
    with refused("must be a fast one", "AutoTokenizer"):
        fs.wrap(classifier("Bert"), tokenizer=object())
    with refused("has 72 tokens but", "embeds 50"):
        fs.wrap(classifier("Bert", vocab_size=50), tokenizer=tokenizer("Bert"))
    with refused("is no text classifier"):
        fs.wrap(torch.nn.Linear(2, 2), tokenizer=tokenizer("Bert"))


def test_a_model_whose_attention_is_not_known():
    model = text_model("ConvBert")
    with refused("lets its tokens meet beside attention", "methods that"):
        fs.evaluate(model, TEXTS, "rollout")
    maps = {"mine": [torch.rand(len(model.encode(text).words)) for text in TEXTS]}
    result = fs.evaluate(model, TEXTS, ["rollout", "gradient"], maps=maps)
    assert [left.name for left in result.left_out] == ["rollout"]
    assert {*result.methods} == {"gradient", "mine", "random"}


@pytest.mark.parametrize("method", ["captum:Saliency", "random_patch", "grad_cam(layer=x)"])
def test_a_method_of_images(method):
    for ask in (fs.evaluate, fs.explain):
        with refused(f"The method '{method}' is for images", "the model reads texts"):
            ask(MODEL, TEXTS, method)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fill": "mean"}, ["'mean' is not for texts", "drop, mask, pad, unk"]),
        ({"units": "patches"}, ["units='patches' is not for texts", "tokens or words"]),
        ({"upsample": "nearest"}, ["upsample is for maps of images"]),
        ({"k": 15}, ["15 groups cannot be made of 14 units"]),
        ({"target": "label"}, ["needs labels"]),
        ({"target": 7}, ["class 7"]),
        ({"labels": [0]}, ["each of the 6 texts, got 1"]),
        ({"labels": 3}, ["each of the 6 texts, got one"]),
        ({"maps": {"mine": [np.ones(6)] * 6}}, ["'mine' have 6 numbers for '2': expected 14"]),
        ({"maps": {"mine": np.ones(6)}}, ["'mine' have shape [6]", "one number for each unit"]),
    ],
)
def test_options_that_do_not_fit_texts(options, words):
    with refused(*words):
        fs.evaluate(MODEL, TEXTS, **{"methods": "gradient", **options})


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (["it was good", "bad"], {}, ["reads images", "is text"]),
        ([("it was", "bad")], {}, ["reads images", "is text"]),
        ("texts.csv", {}, ["reads images", "is text"]),
        ({"input_ids": [[5]]}, {}, ["reads images", "is text"]),
        ("it was good", {}, ["no folder or image", "reads no texts"]),
        (torch.rand(1, 3, 32, 32), {"side": "first"}, ["side is for pairs of texts"]),
        (torch.rand(1, 3, 32, 32), {"fill": "mask"}, ["'mask' is not for images"]),
        (torch.rand(1, 3, 32, 32), {"units": "words"}, ["units='words' is not for images"]),
    ],
)
def test_an_image_model_is_not_given_texts(data, options, words):
    with refused(*words):
        fs.evaluate("bundled:cifar10_vit", data, "gradient", **options)


# --- On the command line ---


def test_the_command_evaluates_a_file_of_texts(tmp_path):
    name = save_classifier(tmp_path / "model")
    file = tmp_path / "texts.csv"
    file.write_text("text,label\n" + "".join(f"{text},1\n" for text in TEXTS))
    asked = ["evaluate", "--model", name, "--data", file, "--methods", "gradient"]
    run(*asked, "--fill", "drop", "--units", "words", "--out", tmp_path / "run", "--yes")
    result = fs.load_result(tmp_path / "run")
    again = fs.evaluate(name, file, "gradient", fill="drop", units="words")
    assert result.scores.equals(again.scores)
    run("evaluate", "--from", tmp_path / "run", "--metrics", "aopc")
    for data in ("bundled:cifar10", "cifar10:folder", tmp_path / "none.csv"):
        said = fails("evaluate", "--model", name, "--data", data)
        assert "network" not in said
    said = fails("evaluate", "--model", name, "--data", file, "--methods", "grad_cam(layer=x)")
    assert "is for images" in said


def test_a_study_has_axes_of_fills_and_units(tmp_path):
    name = save_classifier(tmp_path / "model")
    (tmp_path / "texts.jsonl").write_text("\n".join(f'{{"text": "{text}"}}' for text in TEXTS))
    study = tmp_path / "study.yaml"
    study.write_text(
        f"model: {{tiny: '{name}'}}\ndata: {tmp_path / 'texts.jsonl'}\nmethods: [gradient]\n"
        "fills: [auto, drop]\nunits: [tokens, words]\nrandom_draws: 1\n"
    )
    run("run", study, "--out", tmp_path / "out", "--device", "cpu")
    runs = fs.load_results(tmp_path / "out")
    assert len(runs.results) == 4
    found = {
        (held.manifest.protocol["fill"], held.manifest.protocol["units"])
        for held in runs.results.values()
    }
    assert found == {("mask", "tokens"), ("mask", "words"), ("drop", "tokens"), ("drop", "words")}
    assert runs.sensitivity().num_rows


def test_a_folder_without_a_tokenizer(tmp_path):
    classifier("Bert", torch.float32).save_pretrained(tmp_path / "model")
    said = fails("evaluate", "--model", f"hf:{tmp_path / 'model'}", "--data", "a film")
    assert "without a fast tokenizer" in said and "network" not in said


def test_the_longest_texts_come_first_and_a_forecast_takes_one_of_median_length():
    held = loaded(["", *TEXTS])
    lengths = [len(held.encoded[place].words) for part in held.parts(2) for place in part]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] == 0
    (typical,) = held.typical(held.read_batches([1])[0]).samples
    assert len(held.encoded[int(typical)].words) == lengths[3]
    prepared = fs.prepare(MODEL, held, "gradient", "aopc")
    assert prepared.planned.worker.example.samples == (typical,)
    assert prepared.forecast().seconds > 0


# --- Slips that cost a number before ---


def test_maps_with_numbers_for_special_tokens_are_refused():
    texts = ["the film is good", "a story is bad"]
    six = torch.randn(2, 6)
    for maps in (six, six.tolist(), list(six)):
        with refused("4"):
            fs.evaluate(MODEL, texts, maps={"mine": maps}, metrics="saco", k=4)
    padded = torch.cat([six[:, :4], torch.zeros(2, 2)], dim=1)
    longer = [*texts, "a good story and this is"]
    with refused("6 numbers for", "expected 4"):  # what lies behind a shorter text is no padding
        fs.evaluate(MODEL, longer, maps={"mine": torch.randn(3, 6)}, metrics="saco", k=4)
    padded = torch.cat([padded, torch.randn(1, 6)])
    alone = fs.evaluate(MODEL, texts, maps={"mine": six[:, :4]}, metrics="saco", k=4)
    among = fs.evaluate(MODEL, longer, maps={"mine": padded}, metrics="saco", k=4)
    values = [
        {row["sample"]: row["value"] for row in run.scores.to_pylist() if row["method"] == "mine"}
        for run in (alone, among)
    ]
    assert {name: values[1][name] for name in values[0]} == pytest.approx(values[0], abs=1e-6)


@pytest.mark.parametrize("kind", ["Roberta", "GPT2"])
def test_a_word_that_is_padding_to_the_model_costs_its_text(kind):
    model = text_model(kind)
    model.module.config.pad_token_id = model.tokenizer.pad_token_id
    pad = model.tokenizer.pad_token
    odd = "the film is bad" + pad if kind == "GPT2" else f"the {pad} film is bad"
    for texts in ([odd], ["the story of this plot and the acts of a scene is good", odd]):
        with refused("it reads word embeddings otherwise than tokens"):
            fs.explain(model, texts, "gradient")


def test_padding_that_also_ends_a_text_needs_its_attention_mask():
    own = copy.deepcopy(tokenizer("GPT2"))
    own.pad_token = own.eos_token or own.unk_token
    made = fs.wrap(classifier("GPT2"), tokenizer=own)
    short, long = made.tokenizer("the film is bad").input_ids, made.tokenizer(TEXTS[2]).input_ids
    pad = made.tokenizer.pad_token_id
    with refused("attention_mask"):
        loaded({"input_ids": [short + [pad] * (len(long) - len(short)), long]}, made)
    ended = [short, long] if pad != made.tokenizer.eos_token_id else [[*short, pad], [*long, pad]]
    assert len(loaded({"input_ids": ended}, made)) == 2


def test_words_need_a_tokenizer_that_splits_into_words():
    own = tokenizer("Bert").backend_tokenizer.to_str()
    made = Tokenizer.from_str(json.dumps({**json.loads(own), "pre_tokenizer": None}))
    named = {"mask_token": "[MASK]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    whole = PreTrainedTokenizerFast(tokenizer_object=made, **named)
    model = fs.wrap(classifier("Bert"), tokenizer=whole)
    with refused("does not split texts into words", "units='tokens'"):
        fs.evaluate(model, ["a good film is good"], "gradient", "aopc", units="words")


def test_what_is_no_text_costs_that_text_alone():
    data = loaded(["the film is good", "\ud800 good", "a story is bad"])
    result = fs.evaluate(MODEL, data, "gradient", "aopc", k=4)
    (left,) = result.manifest.data.skipped
    assert left.name == "1" and "lone surrogate" in left.why and len(result.samples) == 2


@pytest.mark.parametrize("label", ["--1", "99999999999999999999"])
def test_labels_that_are_no_numbers_are_warned_of(label):
    with pytest.warns(UserWarning, match="used without labels"):
        assert loaded([{"text": "good film", "label": label}]).labels is None


def test_a_column_that_is_not_there_is_refused(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("text,label\na good film,1\n")
    for option in ("label=lab", "auxiliary=nope"):
        with refused("Unknown column", "Valid: label, text"):
            loaded(f"{file}({option})")


def test_own_code_explains_texts(tmp_path):
    folder, code = save_classifier(tmp_path / "model", "Bert"), tmp_path / "mine.py"
    code.write_text("def lengths(module, texts, target):\n    return texts.ids * 1.0\n")
    file = tmp_path / "t.csv"
    file.write_text("text\nthe film is good\na story is bad\n")
    options = ["--model", folder, "--data", file, "--method", f"{code}:lengths"]
    run("evaluate", *options, "--metrics", "aopc", "--k", 4, "--out", tmp_path / "run")
    assert "mine.py:lengths" in fs.load_result(tmp_path / "run").methods


def test_slips_in_options_of_names_that_images_have_too_are_said_of_texts():
    with refused("did you mean 'l2'"):
        fs.evaluate(MODEL, [*TEXTS], "gradient(norm=l3)", "aopc")
    with refused("a number for each unit", "or for each token"):
        fs.evaluate(MODEL, [TEXTS[0]], lambda *_: torch.ones(3), "aopc", k=4)


# --- What is wrong of one text, and what is said before the start ---


def test_texts_of_which_nothing_would_be_left_are_left_out_alone():
    made = [MODEL.encode(text).ids for text in TEXTS[:3]]
    bare = [one[1:-1] if place == 1 else one for place, one in enumerate(made)]
    tokens = [{"input_ids": list(one)} for one in bare]
    result = fs.evaluate(MODEL, tokens, "gradient", "aopc", fill="drop", random_draws=0)
    assert result.samples["sample"].to_pylist() == ["0", "2"]
    assert [held.name for held in result.manifest.data.skipped] == ["1"]
    (said,) = (line for line in result.warnings() if "left out" in line)
    assert said.startswith("1 of 3 texts is left out; the first, '1': it has no special tokens")
    kept = fs.evaluate(MODEL, tokens, "gradient", "aopc", fill="mask", random_draws=0)
    assert kept.samples.num_rows == 3 and not any("left out" in one for one in kept.warnings())


def test_skipped_texts_are_warned_of():
    given = [TEXTS[0], "", TEXTS[1], " "]
    result = fs.evaluate(MODEL, given, "gradient", "aopc", random_draws=0)
    assert any(
        line.startswith("2 of 4 texts are left out; the first, '1': it has no tokens")
        for line in result.warnings()
    )


def test_samples_are_listed_in_the_order_of_the_data():
    given = [{"text": text, "id": f"text {place}"} for place, text in enumerate(TEXTS)]
    result = fs.evaluate(MODEL, given, "gradient", "aopc", random_draws=0)
    assert len({len(MODEL.encode(text).ids) for text in TEXTS}) > 2
    assert result.samples["sample"].to_pylist() == [row["id"] for row in given]
    for place, text in enumerate(TEXTS):
        alone = fs.evaluate(MODEL, [text], "gradient", "aopc", random_draws=0, batch_size=1)
        own = float(alone.values("gradient", "aopc")[0])
        assert float(result.values("gradient", "aopc")[place]) == pytest.approx(own, abs=1e-9)


def test_bundled_data_of_the_other_kind_is_said_to_be_that():
    images = fs.load_model("bundled:cifar10_vit")
    for name in ("bundled:sst", "bundled:sst:7", "bundled:babi1", "sst:nowhere"):
        with refused(f"reads images, and '{name}' is text"):
            fs.load_data(name, images)
    for name in ("bundled:cifar10", "bundled:cifar10:7"):
        with refused(f"reads texts, and '{name}' names images"):
            loaded(name)


@pytest.mark.parametrize("wrong", [{"labels": [0, 1, 2, 9, 0, 1]}, {"target": 9}])
def test_classes_that_are_none_are_refused_before_the_start(wrong):
    with refused("The class 9 is not a class of the model: its classes are 0 to 2."):
        fs.prepare(MODEL, TEXTS, "gradient", **wrong)


def test_a_class_is_named():
    by_name = fs.evaluate(LABELLED, TEXTS, "gradient", "aopc", target="So So", random_draws=0)
    by_number = fs.evaluate(LABELLED, TEXTS, "gradient", "aopc", target=1, random_draws=0)
    assert {*by_name.samples["target"].to_pylist()} == {1}
    assert by_name.manifest.plan.content() == by_number.manifest.plan.content()
    named, numbered = (fs.explain(LABELLED, TEXTS, "gradient", target=one) for one in ("good", 2))
    assert all(torch.equal(*pair) for pair in zip(named, numbered, strict=True))
    for call in (fs.evaluate, fs.explain):
        with refused("Unknown target 'god': did you mean 'good'?", "Bad"):
            call(LABELLED, TEXTS, "gradient", target="god")


def test_the_command_line_takes_the_name_of_a_class():
    asked = ("bundled:sst:7", "--model", "bundled:sst_text", "--methods", "gradient")
    for target in ("negative", "0"):
        found = json.loads(run("explain", *asked, "--target", target, "--json").stdout)
        assert found["explained"]["class"] == 0 and found["explained"]["name"] == "negative"
    assert "did you mean 'positive'?" in fails("explain", *asked, "--target", "postive")
