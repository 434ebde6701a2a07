"""`faithscope explain` of a text: words in the terminal, a page, pictures, the story."""

from __future__ import annotations

import io
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

import faithscope as fs
from commands import fails, run
from faithscope.cli import console
from pages import Page
from text_models import save_classifier

TEXT = "it was a very good film"
METHODS = ("--methods", "gradient,input_x_gradient,random")
EVIL = "<script>alert(1)</script> \x1b[31mgood\u202e <b>film</b> & “it”"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return "--model", save_classifier(tmp_path_factory.mktemp("text") / "bert")


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("long") / "bert"
    return "--model", save_classifier(folder, max_position_embeddings=512)


def told(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("explain", *arguments, "--json").stdout)
    return found


def terminal(monkeypatch: pytest.MonkeyPatch, **options: Any) -> io.StringIO:
    """Let the command print to a terminal of these abilities."""
    seen = io.StringIO()
    given = {"force_terminal": True, "color_system": "truecolor", "width": 80, **options}
    made = Console(file=seen, highlight=False, markup=False, emoji=False, **given)
    monkeypatch.setattr(console, "screen", lambda **_: made)
    return seen


def test_saco_is_that_of_the_salience_shown(model: tuple[str, str]) -> None:
    """Also for random attribution, which is drawn by the sample's key."""
    data = told(TEXT, *model, *METHODS, "--k", 3)
    assert data["texts"] == [TEXT] and data["words"] == TEXT.split() and data["second"] is None
    maps = {f"own {name}": [values] for name, values in data["salience"].items()}
    again = fs.evaluate(fs.load_model(model[1]), [TEXT], (), "saco", maps=maps, k=3)
    assert list(data["saco"]) == ["gradient", "input_x_gradient", "random"]
    for name, value in data["saco"].items():
        assert value == pytest.approx(float(again.values(f"own {name}", "saco")[0]), abs=1e-6)
    assert data["picture"] is None and "image" not in data


def test_a_pipe_gets_plain_words(model: tuple[str, str]) -> None:
    data = told(TEXT, *model, *METHODS)
    out = run("explain", TEXT, *model, *METHODS).stdout
    assert f"\n{TEXT}\n" in out and "predicted: LABEL_" in out and "proves little" in out
    units = len(data["words"])
    assert (f"compares {units} units here, one by one" in out) == (units < 10), data["words"]
    assert "here, one by one" not in run("explain", TEXT, *model, *METHODS, "--k", "3").stdout
    for name, salience in data["salience"].items():
        first = data["words"][salience.index(max(salience))]
        line = rf"^{name} +{first} {max(salience):.3g}, .* {data['saco'][name]:.3f}$"
        assert re.search(line, out, re.MULTILINE), out


def test_a_terminal_gets_colours(model: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    data = told(TEXT, *model, *METHODS)
    seen = terminal(monkeypatch)
    run("explain", TEXT, *model, *METHODS)
    line = next(line for line in seen.getvalue().split("\n") if line.startswith("gradient"))
    assert re.sub(r"\x1b\[[\d;]*m", "", line).split()[2:] == data["words"]
    strongest = data["words"][data["salience"]["gradient"].index(max(data["salience"]["gradient"]))]
    assert re.search(rf"\x1b\[38;2;255;255;255;48;2;[\d;]+m{strongest}\x1b", line), line


@pytest.mark.parametrize("options", [{"no_color": True}, {"color_system": "standard"}])
def test_few_colours_are_none(
    model: tuple[str, str], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    seen = terminal(monkeypatch, **options)
    run("explain", TEXT, *model, *METHODS)
    assert "most salient" in seen.getvalue() and "[48;" not in seen.getvalue()


def test_pairs_and_sides(model: tuple[str, str], tmp_path: Path) -> None:
    pair = ("the film is good", "it was bad")
    page = tmp_path / "pair.html"
    data = told(*pair, *model, *METHODS, "--out", page)
    assert data["texts"] == [*pair] and data["second"] == 4
    assert data["words"] == " ".join(pair).split()
    words = [word for _, word in Page(page.read_text("utf-8")).words]
    assert words[:8] == ["the", "film", "is", "good", "‖", "it", "was", "bad"]
    second = told(*pair, *model, *METHODS, "--side", "second")
    assert second["words"] == pair[1].split() and second["second"] is None
    with warnings.catch_warnings(record=True) as told_of_pairs:
        run("explain", *pair, *model, *METHODS)
    assert not any("Read as a pair" in str(held.message) for held in told_of_pairs)
    with pytest.warns(UserWarning, match="Read as a pair of texts, 'the film .*' and 'gradient'"):
        run("explain", pair[0], "gradient", *model, *METHODS)


def test_the_page_is_whole_and_inert(model: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "evil.html"
    run("explain", EVIL, *model, *METHODS, "--units", "words", "--out", page)
    source = page.read_text("utf-8")
    reader = Page(source)
    assert reader.tags.count("script") == 1 and not {"b", "img", "link"} & {*reader.tags}
    assert "<script>alert(1)</script>" in reader.text
    assert "\x1b" not in source and "\u202e" not in "".join(word for _, word in reader.words)
    assert not re.search(r"(?:src|href)=.?https?:", source)
    assert "prefers-color-scheme: dark" in source and "salience" in source


def test_a_bundled_sentence() -> None:
    data = told("bundled:sst:3", "--model", "bundled:sst_text", "--methods", "gradient")
    assert len(data["texts"]) == 1 and len(data["words"]) == len(data["salience"]["gradient"])
    assert data["predicted"]["name"] in ("negative", "positive")


def test_pictures_and_stories(model: tuple[str, str], tmp_path: Path) -> None:
    kinds = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    for story in ((), ("--story", "--random-draws", 3)):
        for suffix, start in kinds.items():
            path = tmp_path / f"{len(story)}{suffix}"
            out = run("explain", TEXT, *model, *METHODS, "--out", path, *story).stdout
            assert f"picture  {path}" in out
            assert path.read_bytes().startswith(start)
    with Image.open(tmp_path / "0.png") as small, Image.open(tmp_path / "3.png") as large:
        assert large.size[1] > 2 * small.size[1]


def test_the_story_is_one_of_a_text(model: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "story.html"
    asked = (TEXT, *model, *METHODS, "--story", "--random-draws", 4, "--k", 3)
    data = told(*asked, "--out", page)
    story = data["story"]["gradient"]
    assert story["k"] == 3 and len(story["p"]) == 11 and story["random"] == "random"
    assert len(data["story"]["random"]["draws"]["saco"]) == 4
    source = page.read_text("utf-8")
    for words in ("How the scores come about", "The text", "tokens coloured by their salience"):
        assert words in source
    out = run("explain", *asked).stdout
    assert re.search(r"^gradient +-?\d\.\d+ +-?\d\.\d+ … ", out, re.MULTILINE)


def test_long_texts(long_model: tuple[str, str], tmp_path: Path) -> None:
    text = "good bad film plot " * 200  # longer than the model reads
    page = tmp_path / "long.html"
    with pytest.warns(UserWarning, match="longer than the 512 tokens"):
        data = told(text, *long_model, "--methods", "gradient", "--out", page)
    assert len(data["words"]) == 510  # and two special tokens
    reader = Page(page.read_text("utf-8"))
    assert len(reader.words) >= 510 and not re.search(r"… and \d+ more", reader.text)
    with pytest.warns(UserWarning):
        run("explain", text, *long_model, "--methods", "gradient", "--out", tmp_path / "long.png")


def test_other_scripts(model: tuple[str, str], tmp_path: Path) -> None:
    for place, text in enumerate(
        ("הסרט הזה טוב", "هذا الفيلم جيد", "好 电影 👍🏽", "می\u200cخواهم این")
    ):
        files = [tmp_path / f"{place}{suffix}" for suffix in (".html", ".png")]
        for file in files:
            data = told(text, *model, "--methods", "gradient", "--units", "words", "--out", file)
            assert "".join(data["words"]) == "".join(text.split())
        assert 'dir="auto"' in files[0].read_text("utf-8")
        assert data["words"][0] in files[0].read_text("utf-8")


def test_bad_input(model: tuple[str, str], tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        return fails("explain", *arguments, "--methods", "gradient")

    assert "put each between quotation marks" in refused("a", "b", "c", *model)
    assert "The text is empty" in refused("", *model)
    assert "The second text of the pair is empty" in refused("good film", "   ", *model)
    assert "name a file .png, .pdf, .svg or .html" in refused(TEXT, *model, "--out", "x.txt")
    assert "BertFor" in refused("cat.jpg", *model) or "cat.jpg" in refused("cat.jpg", *model)
    both = tmp_path / "two.csv"
    both.write_text("text\ngood film\nbad film\n")
    assert "holds 2 texts" in refused(both, *model)
    assert "is not a picture" in refused("bundled:cifar10:1", "--out", tmp_path / "x.html")
    assert "reads images: give one, got 2" in refused("a", "b")
    assert not list(tmp_path.glob("x.*"))
