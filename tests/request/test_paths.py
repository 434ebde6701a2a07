"""Paths as people give them: home folders are known, what is no path is refused."""

from pathlib import Path

import pytest

from faithscope.request import Perturb, as_path, check_request, existing_path
from families import refused


class Raises:
    def __fspath__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __fspath__


class Half:
    def __fspath__(self) -> str:
        return "half"


def test_home_folders_are_known(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_path("~/runs") == tmp_path / "runs"
    assert as_path(Path("~/runs")) == tmp_path / "runs"
    assert check_request(Perturb, {"model": "m", "data": "d", "out": "~/x"}).out == str(
        tmp_path / "x"
    )


def test_whatever_is_a_path_to_python_is_one(tmp_path):
    assert as_path(Half()) == Path("half")
    assert as_path(b"runs") == Path("runs")
    assert as_path("/a/~nosuchuser/x") == Path("/a/~nosuchuser/x")
    assert as_path("\udcff").name == "\udcff"  # a name of bytes that are not UTF-8
    assert existing_path(tmp_path) == tmp_path
    assert existing_path(tmp_path / "no") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, ["The path must be a path, got 0"]),
        (None, ["got None"]),
        ("", ["is empty"]),
        (Raises(), ["Raises"]),
        ("a\0b", [r"'a\x00b'", "no file name"]),
        ("\ud800", [r"'\ud800'", "no file name"]),
        ("a" * 300, ["too long", "255"]),
        ("é" * 200, ["too long", "255"]),
        ("a/" * 2100, ["too long", "4095"]),
        ("~nosuchuser/x", ["~nosuchuser/x", "nobody"]),
    ],
)
def test_what_is_no_path_is_refused(value, words):
    with refused(*words):
        as_path(value)
    assert existing_path(value) is None
