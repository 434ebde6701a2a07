"""The documentation is true: reference up to date, links lead somewhere, examples run."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import re
import sys
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
assert _spec is not None and _spec.loader is not None
docs = importlib.util.module_from_spec(_spec)
sys.modules["docs_build"] = docs
_spec.loader.exec_module(docs)


def test_reference_lists_what_is_registered():
    assert docs.REFERENCE.read_text() == docs.reference(), "run `make docs`"


def test_the_schema_is_that_of_the_code():
    assert docs.SCHEMA.read_text() == docs.schema(), "run `make docs`"


def test_what_the_command_line_lists_is_what_is_registered():
    assert docs.CATALOGUE.read_text("utf-8") == docs.catalogue(), "run `make docs`"
    assert list(docs.KINDS) == list(docs.CATALOGUES)


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert docs.broken_links(page) == []


@pytest.mark.parametrize(
    "page", [page for page in docs.PAGES if docs.examples(page)], ids=lambda page: page.name
)
def test_examples_run(page, tmp_path):
    """As they stand but for the number of samples: `make docs` runs them with as many as they say.

    In a child of this process, in which everything heavy is imported already.
    """
    code = re.sub(r"limit=(\d+)", lambda said: f"limit={min(2, int(said[1]))}", docs.examples(page))
    child = multiprocessing.get_context("fork").Process(target=run_alone, args=(code, tmp_path))
    child.start()
    child.join()
    error = tmp_path / "error.txt"
    assert not error.exists(), error.read_text()
    assert child.exitcode == 0


def run_alone(code: str, folder: Path) -> None:
    os.chdir(folder)
    try:
        exec(compile(code, "examples", "exec"), {"__name__": "__main__"})
    except BaseException:
        Path("error.txt").write_text(traceback.format_exc())
        raise


def test_accuracy_in_the_text_is_the_one_measured():
    card = json.loads((ROOT / "src/faithscope/bundled/cifar10_vit.json").read_text())
    said = f"{card['test_accuracy']:.2%}".replace("%", " %")
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "docs" / "models.md"):
        assert said in page.read_text(), f"{page.name} must say {said}"
