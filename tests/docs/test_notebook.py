"""The notebook runs from its first cell to its last, and what it shows is stored with it."""

import importlib.util
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("docs_notebook", ROOT / "docs" / "notebook.py")
assert _spec is not None and _spec.loader is not None
docs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(docs)

STORED = json.loads(docs.NOTEBOOK.read_text("utf-8"))


def with_images(count: int) -> dict:
    """The notebook on fewer images, which show the same."""
    text = json.dumps(STORED)
    assert text.count("limit=10)") == 1
    return json.loads(text.replace("limit=10)", f"limit={count})"))


def kinds(notebook: dict) -> list[list[str]]:
    """What each cell shows."""
    return [
        sorted(held.get("data", {held.get("name"): ""}).keys())
        for cell in notebook["cells"]
        for held in cell.get("outputs", ())
    ]


def shown(notebook: dict) -> str:
    """All text that is shown, without its markup."""
    held = [part for cell in notebook["cells"] for part in cell.get("outputs", ())]
    texts = [part.get("text") or part["data"].get("text/html", "") for part in held]
    return re.sub(r"<style>.*?</style>|<[^>]*>", " ", "".join(map("".join, texts)), flags=re.S)


def test_every_cell_runs_and_shows_what_is_stored():
    done = docs.run_notebook(with_images(4))
    assert kinds(done) == kinds(STORED), "run `make docs`"
    text = " ".join(shown(done).split())
    for said in ("by 7×7 grid, against random(grid=7x7)", "rollout is left out", "ImageFolder"):
        assert said in text, said
    means = re.findall(r"\(4, 32, 32\) +mean ([\d.]+)", text)
    assert len(means) == 8 and len(set(means)) == 1  # the same images


def test_it_is_small_and_names_no_place_of_ours():
    text = docs.NOTEBOOK.read_text("utf-8")
    assert len(text) < 300_000
    assert not re.search(r"/(work|home|tmp|root|Users)/", text)
    assert STORED["nbformat"] == 4
    for cell in STORED["cells"]:
        assert cell["cell_type"] == "markdown" or cell["execution_count"]
