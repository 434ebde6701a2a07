"""The documentation is true: reference up to date, links lead somewhere, examples run."""

from __future__ import annotations

import importlib.util
import json
import sys
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
def test_examples_run(page):
    assert docs.run_examples(page) == ""


def test_accuracy_in_the_text_is_the_one_measured():
    card = json.loads((ROOT / "src/faithscope/bundled/cifar10_vit.json").read_text())
    said = f"{card['test_accuracy']:.2%}".replace("%", " %")
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "docs" / "models.md"):
        assert said in page.read_text(), f"{page.name} must say {said}"
