"""Names from files in a terminal: shown, not obeyed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import faithscope as fs
from commands import run
from conftest import randn, toy
from faithscope.cli.console import note, say, say_files, show_check, show_entries
from faithscope.cli.evaluate import show

EVIL = "\x1b[31mred\x9b2J\x07\u202egnp\x7f\rx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evil") / "run"
    model = fs.wrap(toy(4, 4), name=f"model {EVIL}")
    maps = {EVIL: randn(6, 4, 4, seed=1), f"other\n{EVIL}": randn(6, 4, 4, seed=2)}
    images = randn(6, 3, 4, 4)
    fs.evaluate(model, images, (), ["saco", "aopc"], maps=maps, k=4, random_draws=1, out=root)
    return root


def is_inert(text: str) -> bool:
    return text.replace("\n", "").isprintable() and "[31mred" in text


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_names_are_shown_and_not_obeyed(folder: Path, more: tuple[str, ...]) -> None:
    shown = run("evaluate", "--from", folder, "--metrics", "saco", *more)
    compared = run("compare", folder, folder, *more)
    for result in (shown, compared):
        assert is_inert(result.stdout), result.stdout
        assert result.stderr.replace("\n", "").isprintable()
    if more:
        assert EVIL in {row["method"] for row in json.loads(shown.stdout)["summary"]}


def test_everything_that_prints_is_inert(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(EVIL)
    note(EVIL)
    say_files({EVIL: Path(EVIL)})
    show_entries(EVIL, [(EVIL, EVIL, EVIL)])
    show_check(EVIL, "ok", EVIL, EVIL)
    show(fs.load_result(folder), {}, None, False)
    out, err = capsys.readouterr()
    assert is_inert(out) and is_inert(err)
