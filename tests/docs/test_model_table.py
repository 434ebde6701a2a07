"""The table of models × methods: its list, what a cell is, and (slow) all of it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))

import model_list  # noqa: E402
import model_table  # noqa: E402

LISTED = json.loads(model_list.LIST.read_text())["models"]
SOME = ("timm:test_vit", "timm:test_coatnet", "torchvision:mnasnet0_5", "transformers:ViTFor")

CAUSES = (
    r"it has no attention between positions",
    r"stages of different grids, of [\d, and]+ channels, so there is no single roll-out",
    r"sets of tokens side by side, of [\d, and]+ channels, so there is no single roll-out",
    r"it attends only in its last stages, behind others without queries and keys",
    r"its attention is linear, without a matrix of probabilities",
    r"its attention is between channels \(cross-covariance\), not between positions",
    r"its attention mixes heads before and after the softmax \(talking heads\)",
    r"its attention is mixed with a second one, of positions, by a gate",
    r"attends within windows, so there is no single roll-out",
    r"its attention is the difference of two",
    r"lets its tokens meet beside attention",
    r"sees \d+ tokens, not [\d a-z+]*\d+×\d+ patches",
    r"it attends before its blocks",
    r"for which relevance has no rule",
    r"unequally and not through one attention pool",
)
"""Why a method may be undefined for a model."""


def of_entry(name: str) -> dict[str, str]:
    return next(entry for entry in LISTED if entry["model"].startswith(name))


def test_the_list_is_long_and_has_every_family_of_the_registries():
    names = [entry["model"] for entry in LISTED]
    assert len(names) == len(set(names)) >= 150
    assert {entry["kind"] for entry in LISTED} == set(model_list.KINDS)
    libraries = Counter(name.partition(":")[0] for name in names)
    assert set(libraries) == {"timm", "transformers", "torchvision"}
    for word in ("eva02", "dinov3", "beit", "siglip", "relpos", "samvit", "swin", "hiera", "pvt"):
        assert any(word in name.lower() for name in names), word


def test_the_page_counts_every_model_of_the_list_and_its_own_cells():
    page = model_table.PAGE.read_text()
    families = Counter(entry["family"] for entry in LISTED)
    rows = [line.strip("| ").split(" | ") for line in page.splitlines()]
    rows = [row for row in rows if row[0] in families]
    assert {row[0]: int(row[1]) for row in rows} == families and len(rows) == len(families)
    ran = of = 0
    for _, models, *cells in rows:
        for cell, methods in zip(cells, model_table.GROUPS.values(), strict=False):
            count = int(models) * len(methods)
            some = re.fullmatch(r"(\d+) of (\d+)", cell)
            assert some is None or int(some[2]) == count, (cell, count)
            ran += int(some[1]) if some else 0 if cell == "—" else count
            of += count
    said = f"{len(LISTED)} models, {of:,} cells: {ran:,} run ({ran / of:.0%}), {of - ran:,} are"
    assert said in page and ran >= 0.7 * of


def test_some_models_run_and_the_rest_is_refused_in_one_sentence(tmp_path):
    entries = [of_entry(name) for name in SOME]
    rows = model_table.run(entries, tmp_path / "some.jsonl", workers=1)
    assert {row["model"] for row in rows} == {entry["model"] for entry in entries}
    by_name = {row["model"].partition("(")[0]: row["cells"] for row in rows}
    assert all(map(model_table.ok, by_name["timm:test_vit"].values()))
    staged = by_name["timm:test_coatnet"]
    assert staged["gradient"] == "ran" and staged["raw_attention"].startswith("ran: raw_attention(")
    assert re.search(CAUSES[1], staged["rollout"])
    plain = by_name["torchvision:mnasnet0_5"]
    assert plain["grad_cam"] == "ran: grad_cam(layer=layers)"
    assert re.search(CAUSES[0], plain["lrp"])
    again = model_table.run(entries, tmp_path / "some.jsonl")  # nothing is run twice
    assert again == rows
    check(rows)
    blocks = model_table.blocks(rows)
    assert "| timm vision_transformer | 1 | yes | yes | yes | yes | yes |" in blocks["model table"]


def check(rows: list[model_table.Row]) -> None:
    """No crash, and every refusal is one sentence that names one of the known causes."""
    for row in rows:
        for method, cell in row["cells"].items():
            assert not cell.startswith("crashed"), f"{row['model']} {method}: {cell}"
            if not model_table.ok(cell):
                assert any(re.search(cause, cell) for cause in CAUSES), f"{row['model']}: {cell}"
                assert cell.endswith(".") and ". " not in cell.replace("…", ""), cell
        assert row["cells"][model_table.GIVEN] == "ran", row["model"]


@pytest.mark.slow
def test_all_models(tmp_path):
    rows = model_table.run(LISTED, tmp_path / "all.jsonl")
    check(rows)
    ran, of = model_table.counted(rows)
    assert ran >= 0.7 * of
    assert sum(row["seconds"] for row in rows) < 2 * 40 * 60
    assert model_table.blocks(rows)["model table"] in model_table.PAGE.read_text()
