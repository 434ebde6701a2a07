"""Progress without asking: where a bar is drawn, which one, and where nothing is said."""

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import faithscope as fs
from conftest import randn, toy
from faithscope.runs import progress
from faithscope.runs.progress import following
from faithscope.runs.scheduler import Progress
from families import refused


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal(kind: str = "xterm-256color") -> Iterator[Terminal]:
    """Inside, what is written to stderr goes to a terminal; pytest has its own before a test."""
    with pytest.MonkeyPatch.context() as patch:
        held = Terminal()
        patch.setattr(sys, "stderr", held)
        patch.setenv("TERM", kind)
        patch.setenv("COLUMNS", "120")
        yield held


@pytest.fixture
def notebook(monkeypatch):
    shell = SimpleNamespace(kernel=object())
    ipython = SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0), display=None)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(progress, "SHORT_SECONDS", 0.0)


def report_all(report) -> None:
    for done in (10.0, 60.0, 90.0):
        report(Progress("measuring", "shard-0", done, 100.0))
        time.sleep(0.15)  # bars are drawn ten times a second


def evaluate(**options):
    return fs.evaluate(toy(4, 4), randn(3, 3, 4, 4), "gradient", "saco", **options)


def test_nothing_is_said_where_nobody_is_watching(capfd):
    evaluate()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("forced", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_colours_in_a_log_are_no_reason_for_a_bar(forced, monkeypatch, capfd):
    monkeypatch.setenv(forced, "1")
    evaluate()
    assert capfd.readouterr().err == ""


def test_a_terminal_gets_a_bar_with_rate_and_time_left():
    with terminal() as screen, following("model passes") as report:
        report_all(report)
    said = screen.getvalue()
    assert "measuring" in said and "/100 model passes" in said
    assert "per second" in said and "left" in said


def test_a_dumb_terminal_gets_none():
    with terminal("dumb") as screen:
        evaluate()
    assert screen.getvalue() == ""


def test_false_is_silent():
    with terminal() as screen:
        evaluate(progress=False)
    assert screen.getvalue() == ""


def test_evaluate_draws_it_by_itself():
    with terminal() as screen:
        evaluate()
    assert "model passes" in screen.getvalue()


def test_a_notebook_gets_the_bar_of_tqdm(notebook, capfd):
    with following("model passes") as report:
        report_all(report)
    said = capfd.readouterr().err
    assert "measuring" in said and "60/100" in said and "model passes/s" in said


def test_a_function_is_called_and_nothing_is_drawn():
    told = []
    with terminal() as screen:
        result = evaluate(progress=told.append)
    assert told[-1].done == told[-1].total == result.manifest.cost.response_passes
    assert screen.getvalue() == ""


def test_true_says_lines_where_there_is_no_bar(monkeypatch, capfd):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    with following("model passes", True) as report:
        report_all(report)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith(" 10% · measuring · 10/100 model passes") and len(lines) == 3


def test_what_is_no_function_is_refused():
    with refused("progress must be a function, True or False, got 'loud'"):
        evaluate(progress="loud")


@pytest.mark.parametrize("kind", ["terminal", "notebook"])
def test_the_bar_goes_when_the_run_fails(kind, request):
    if kind == "notebook":
        request.getfixturevalue("notebook")
    with terminal() as screen, pytest.raises(ZeroDivisionError):
        with following("model passes") as report:
            report_all(report)
            raise ZeroDivisionError
    assert screen.getvalue().endswith(("\r", "\x1b[2K"))  # the line is empty again


def test_explaining_many_images_is_followed_too():
    images, told = randn(70, 3, 4, 4), []
    whole = fs.explain(toy(4, 4), images, ["gradient", "random"], progress=told.append)
    assert [(place.doing, place.done, place.total) for place in told] == [
        ("explaining", done, 70) for done in (0, 32, 64)
    ]
    parts = [fs.explain(toy(4, 4), part, "random") for part in images.split(50)]
    assert torch.equal(whole["random"], torch.cat(parts))
    with terminal() as screen:
        fs.explain(toy(4, 4), images[:3], "gradient")
        assert screen.getvalue() == ""
        fs.explain(toy(4, 4), images, "gradient")
    assert "/70 images" in screen.getvalue()
