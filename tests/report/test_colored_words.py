"""Words coloured by their salience, and the gallery of texts."""

from __future__ import annotations

import json
import re
from colorsys import rgb_to_hls
from pathlib import Path

import numpy as np
import pytest
import torch

import faithscope as fs
from faithscope.report.gallery import make_gallery
from faithscope.report.page import render_page
from faithscope.report.words import (
    BETWEEN,
    BLANK,
    MOST_WORDS,
    RAMPS,
    coloured,
    contrast,
    lay_out,
    looks_of,
    paper_and_ink,
    plain_word,
    runs_to_left,
)
from faithscope.runs.checks import words_of
from families import refused
from pages import Page
from text_models import PAIRS, TEXTS, text_model

EVIL = "</script><script>alert(1)</script>"
METHODS = ["gradient", "input_x_gradient"]


@pytest.fixture(scope="module")
def result() -> fs.Result:
    model = text_model(dtype=torch.float32).with_units("words", "both")
    rows = [{"text": text, "id": f"name {place}", "label": 0} for place, text in enumerate(TEXTS)]
    rows.append({"text": f"the film {EVIL} good", "id": EVIL, "label": 1})
    return fs.evaluate(model, rows, METHODS, ["saco", "aopc"], units="words", k=3, random_draws=2)


@pytest.mark.parametrize("is_dark", [False, True])
def test_every_word_can_be_read(is_dark: bool) -> None:
    for kind in RAMPS:
        for look in looks_of(kind):
            held = paper_and_ink(look, is_dark=is_dark)
            assert (held is None) == look.endswith("-0")
            assert held is None or contrast(*held) >= 4.5, look


@pytest.mark.parametrize("is_dark", [False, True])
def test_the_stronger_the_further_from_the_page(is_dark: bool) -> None:
    page = 0.09 if is_dark else 1.0
    for sign in ("plain-", "signed-", "signed--"):
        found = [paper_and_ink(f"{sign}{step}", is_dark=is_dark) for step in range(1, 9)]
        away = [abs(page - rgb_to_hls(*held[0])[1]) for held in found if held]
        assert len(away) == 8 and away == sorted(away)


def test_words_are_coloured_by_their_place_on_the_scale() -> None:
    found = coloured(["a", "bad", "film"], np.array([0.0, -2.0, 1.0]))
    assert [word.look for word in found.words] == ["signed-0", "signed--8", "signed-4"]
    assert found.words[1].said == "salience -2" and found.first == "film 1, a 0, bad -2"
    flat = coloured(["a", "b"], np.array([2.0, 2.0]))
    assert [word.look for word in flat.words] == ["", ""]
    assert flat.note == "constant map: it ranks nothing" and not flat.first
    lost = coloured(["a", "b"], np.array([np.nan, 2.0]))
    assert "NaN" in lost.note and {word.look for word in lost.words} == {""}


def test_pairs_and_long_texts() -> None:
    pair = coloured(["a", "b", "c"], np.arange(3.0), 2)
    assert [word.text for word in pair.words] == ["a", "b", BETWEEN, "c"]
    long = coloured(["word"] * (MOST_WORDS + 1234), np.arange(MOST_WORDS + 1234.0)).cut()
    assert len(long.words) == MOST_WORDS + 1 and long.words[-1].text == "… and 1,234 more"


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        ("Ġgood", "good"),
        ("▁", "▁"),
        ("", BLANK),
        ("  ", BLANK),
        ("\u200d", BLANK),
        ("\u202eevil", "\\u202eevil"),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ],
)
def test_a_word_is_seen_and_does_nothing(word: str, plain: str) -> None:
    assert plain_word(word) == plain


def test_lines_are_no_wider_than_asked() -> None:
    words = coloured([*"abc", "x" * 300, "film"], np.arange(5.0)).words
    placed = lay_out(words, 2.0, size=9)
    assert [held.line for held in placed] == [0, 0, 0, 1, 2]
    assert "…" in placed[3].word.text and placed[1].left > placed[0].left == 0
    assert runs_to_left(["12", "(", "سلام"]) and not runs_to_left(["12", "."])


def test_a_page_of_texts_speaks_of_texts(result: fs.Result) -> None:
    source = render_page(result)
    reader = Page(re.sub(r"<(style|script)\b.*?</\1>", "", source, flags=re.DOTALL))
    assert "Text by text" in reader.text and "7 texts" in reader.text
    assert not re.search(r"\b(image|pixel|patch)", reader.text), reader.text
    assert "text" in result.headline() and "image" not in str(result.verdicts())
    assert Page(source).tags.count("script") == 2  # the page's own, and its data


def test_the_gallery_has_the_words_and_maps(result: fs.Result) -> None:
    held = make_gallery(result)
    assert held is not None and held.data["sample"] == "text"
    entries = {entry["id"]: entry for entry in held.data["samples"]}
    assert set(entries) == {EVIL, *(f"name {place}" for place in range(len(TEXTS)))}
    for place, text in enumerate(TEXTS):
        entry = entries[f"name {place}"]
        assert entry["words"] == text.split() and entry["second"] is None
        assert "image" not in entry
        for kind, rows, columns, _ in entry["maps"]:
            assert kind in ("plain", "signed", "constant") and rows == 1
            assert columns == len(entry["words"])


def test_pairs_are_kept_as_pairs() -> None:
    model = text_model(dtype=torch.float32)
    found = fs.evaluate(model, list(PAIRS), "gradient", "saco", k=2, random_draws=1)
    held = make_gallery(found)
    assert held is not None
    seconds = {entry["id"]: entry["second"] for entry in held.data["samples"]}
    expected = fs.load_data(list(PAIRS), model)
    assert seconds == {str(place): one.second for place, one in enumerate(expected.encoded)}
    assert all(seconds.values())


@pytest.mark.parametrize(
    "content", ["[]", '{"words": 3}', '{"words": ["a"], "second": 7}', '{"words": [null]}', "{"]
)
def test_a_spoilt_text_is_refused(content: str) -> None:
    with pytest.raises(ValueError):
        words_of(content.encode())
    assert words_of(json.dumps({"words": ["a", "b"], "second": 1}).encode()) == (["a", "b"], 1)


def test_a_notebook_shows_texts_and_models() -> None:
    model = text_model(dtype=torch.float32)
    shown = fs.load_data([*TEXTS, EVIL], model, labels=[0, 1, 2, 0, 1, 2, 0])._repr_html_()
    assert "7 texts" in shown and TEXTS[0] in shown and "LABEL_1" in shown
    assert EVIL not in shown and "&lt;/script&gt;" in shown
    card = model._repr_html_()
    for words in ("texts of up to 64 tokens", "a Transformer of 2 attention layers", "LABEL_0"):
        assert words in card
    assert "normalisation" not in card and "patches" not in card


def test_plots_of_texts(tmp_path: Path) -> None:
    model = text_model(dtype=torch.float32)
    texts = fs.load_data(list(TEXTS), model)
    maps = fs.explain(model, texts, METHODS)
    figure = fs.plot.heatmaps(texts, maps, limit=2)
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert words[: len(TEXTS[0].split())] == TEXTS[0].split()
    assert "The first 2 of 6 texts" in [text.get_text() for text in figure.texts]
    with refused("There are 6 texts, but 1 of the maps 'own'"):
        fs.plot.heatmaps(texts, {"own": maps["gradient"][:1]})
    with refused("has 6 values for a text of 1 units"):
        fs.plot.heatmaps(texts, {"own": [maps["gradient"][0]] * 6})
    found = fs.evaluate(model, texts, METHODS, ["saco", "aopc"], k=2, random_draws=2)
    for sample, name in enumerate(found.samples["sample"].to_pylist()):
        figure = fs.plot.story(model, texts, maps, found, sample=sample)
        words = [text.get_text() for axes in figure.axes for text in axes.texts]
        assert texts.encoded[int(name)].words[0] in words
    with refused("is not among these"):
        fs.plot.story(model, fs.load_data(["other"], model), maps, found, sample=5)
