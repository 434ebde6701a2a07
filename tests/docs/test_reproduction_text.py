"""The page on text says what ROAR summaries say, of every kind of run."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "studies")]  # as for scripts, which import siblings

import filling  # noqa: E402
import reproduction as page  # noqa: E402
import reproduction_text  # noqa: E402
import text_appendix  # noqa: E402
import text_babi1  # noqa: E402
import text_findings  # noqa: E402
import text_numbers  # noqa: E402
import text_runs  # noqa: E402
import text_table2  # noqa: E402
import text_tables  # noqa: E402
from text_figures import draw_text  # noqa: E402

from text_pages import all_runs, summary  # noqa: E402

TEXT = ROOT / "docs" / "reproduction_text.md"
COMMITTED = [run.name for run in text_runs.runs(page.Summaries())]
TRIPLE = r"([−+]?\d+\.\d+) \[([−+]?\d+\.\d+), ([−+]?\d+\.\d+)\]"


def block(name: str) -> str:
    """What stands between the markers of the page."""
    (text,) = [part[0] for part in page.BLOCK.finditer(TEXT.read_text()) if part[2] == name]
    return text.split("-->\n", 1)[1].removesuffix("<!-- end -->")


# The committed page


def in_percent(value: Any) -> set[tuple[str, ...]]:
    """Every number with its interval in a ROAR summary, as the page writes it, and turned round."""
    if not isinstance(value, dict):
        return set()
    rows = page.rows_of(value) if "columns" in value else [value]
    said = set().union(*map(in_percent, value.values()))
    for row in rows:
        for middle in ("mean", "difference"):
            if None not in (found := [row.get(key) for key in (middle, "ci_low", "ci_high")]):
                mean, low, high = (100 * number for number in found)
                for triple in ((mean, low, high), (-mean, -high, -low)):
                    said.add(tuple(page.number(number, 1) for number in triple))
    return said


def in_paper() -> set[tuple[str, ...]]:
    """Every number with its interval that the paper prints."""
    models = [data[model] for data in text_runs.paper().values() for model in ("bilstm", "roberta")]
    found = [triple for own in models for triple in own["racu"].values()]
    found += [own[part] for own in models for part in ("performance", "masked")]
    return {tuple(page.number(number, 1) for number in triple) for triple in found}


@pytest.mark.parametrize("name", ["text racu", "text ends", "text procedures", "text sparsity"])
def test_every_number_is_in_a_summary_or_in_the_paper(name):
    files = [page.RESULTS / f"{run}.json" for run in text_runs.RUNS]
    known = in_paper().union(*(in_percent(json.loads(f.read_text())) for f in files if f.exists()))
    tables = "\n".join(line for line in block(name).splitlines() if line.startswith("|"))
    quoted = re.findall(TRIPLE, tables.replace("+", ""))
    assert len(quoted) > 7
    assert [triple for triple in quoted if triple not in known] == []


@pytest.mark.parametrize("name", COMMITTED)
def test_racu_can_be_computed_again_from_the_summary(name):
    """By scipy's trapezoid rule, not by ours."""
    from scipy.integrate import trapezoid

    study = json.loads((page.RESULTS / f"{name}.json").read_text())
    levels = study["protocol"]["levels"]
    curves = {
        (row["measure"], row["procedure"], row["seed"]): np.array([row[str(k)] for k in levels])
        for row in page.rows_of(study["values"])
    }
    rows = page.rows_of(study["racu_by_seed"])
    measures, procedures = (study["protocol"][key] for key in ("measures", "procedures"))
    assert len(rows) == (len(measures) - 1) * len(procedures) * len(study["protocol"]["seeds"])
    for row in rows:
        random = curves["random", row["procedure"], row["seed"]]
        curve = curves[row["measure"], row["procedure"], row["seed"]]
        again = trapezoid(random - curve, levels) / trapezoid(random - random[-1], levels)
        assert row["racu"] == pytest.approx(np.clip(again, -1, 1), abs=1e-5)
    for row in page.rows_of(study["racu"]):
        own = [r["racu"] for r in rows if all(r[k] == row[k] for k in ("measure", "procedure"))]
        assert row["mean"] == pytest.approx(np.mean(own), abs=1e-5)


def test_the_page_says_yes_where_intervals_overlap():
    lines = block("text racu").splitlines()
    run = text_runs.Run("roar_babi1", page.Summaries().studies["roar_babi1"])
    for name, words in text_runs.MEASURES.items():
        row = run.racu(name)
        _, low, high = text_runs.paper()["bAbI-1"]["bilstm"]["racu"][name]
        meets = max(low, 100 * row["ci_low"]) <= min(high, 100 * row["ci_high"])
        start = f"| bAbI-1 | 0 to 100 | {words} |"
        cells = next(line for line in lines if line.startswith(start)).split(" | ")
        assert (cells[-1] == "yes |") is meets
        mean = text_runs.paper()["bAbI-1"]["bilstm"]["racu"][name][0]
        assert cells[5] == page.number(100 * row["mean"] - mean, 1, "+")


@pytest.mark.parametrize("part", ["racu", "curves", "left_out", "sparsity", "procedures"])
def test_a_changed_summary_makes_the_page_stale(part, tmp_path):
    for file in page.RESULTS.glob("*.json"):
        shutil.copy(file, tmp_path)
    study = json.loads((tmp_path / "roar_babi1.json").read_text())
    column = "difference" if part == "procedures" else "mean"
    place = study[part]["columns"].index(column)
    for row in study[part]["rows"]:
        row[place] += 0.01
    (tmp_path / "roar_babi1.json").write_text(json.dumps(study))
    text = TEXT.read_text()
    assert page.filled(text, page.Summaries(tmp_path)) != text


def test_the_papers_numbers_are_whole_and_in_order():
    known = text_runs.paper()
    assert set(known) == {"bAbI-1", "bAbI-2", "bAbI-3", "SNLI", "SST", "IMDB"}
    for name, data in known.items():
        assert set(data["bilstm"]["racu"]) == set(text_runs.MEASURES)
        assert set(data["roberta"]["racu"]) == set(text_runs.MEASURES) - {"attention"}
        for model in ("bilstm", "roberta"):
            own = data[model]
            for mean, low, high in (own["performance"], own["masked"], *own["racu"].values()):
                assert low <= mean <= high, name
    # As many parameters as a BiLSTM of 128 units with vectors of 300 has for the vocabulary.
    size, hidden = 300, 128
    rest = 8 * hidden * (size + hidden + 2) + 2 * hidden**2 + 2 * hidden + 2 * 2 * hidden + 2
    assert known["SST"]["bilstm"]["parameters"] == 13766 * size + rest
    assert known["IMDB"]["bilstm"]["parameters"] == 12482 * size + rest
    assert known["SNLI"]["sizes"] == {"train": 549367, "validation": 9842, "test": 9824}


# bAbI-1 in depth


def test_the_page_does_without_many_seeds(tmp_path):
    shutil.copy(page.RESULTS / "roar_babi1.json", tmp_path)
    filled = page.filled(TEXT.read_text(), page.Summaries(tmp_path))
    assert "Five seeds are too few" in filled
    assert "Wilson" not in filled


def test_many_seeds_are_counted(tmp_path):
    shutil.copy(page.RESULTS / "roar_babi1.json", tmp_path)
    many = {
        "base": [1.0] * 6 + [0.9] * 2,
        "masked": [0.15, 0.16, 0.17, 0.18] * 2,
        "command": "python studies/roar_seeds.py texts",
    }
    (tmp_path / "roar_babi1_seeds.json").write_text(json.dumps(many))
    have = page.Summaries(tmp_path)
    said = text_babi1.text_babi1(have)
    assert "Of 8 seeds 6 reach 99 %, 75.0 [40.9, 92.9] %" in said  # Wilson (1927)
    assert f"in {0.75**5:.0%}".replace("%", " %") in said
    assert "Over 8 seeds the mean is 16.5" in said
    assert many["command"] in reproduction_text.TEXT_BLOCKS["text commands"](have)


# Pages of made-up runs


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Summaries of every kind of run that the page knows."""
    return all_runs(tmp_path_factory.mktemp("made"))


def test_every_kind_of_run_is_on_the_page(made):
    text = page.filled(TEXT.read_text(), page.Summaries(made))
    for name in ("bAbI-1", "bAbI-2", "SST", "IMDB"):
        assert f"### {name}, BiLSTM-attention" in text
    assert "### SST, MiniLM-L6" in text
    assert "## One token at a time" in text
    assert "## Loaders checked" in text and "| 78.0 [77.7, 78.2] | 61.2 |" in text
    for name in text_runs.RUNS:
        assert f"python studies/summarise_roar.py runs/{name}" in text
    assert "studies/roar_bases.py SNLI=snli:data/snli" in text
    assert "nan" not in text.lower().replace("explanan", "").replace("finan", "")
    assert "None" not in text.replace("None is", "")


def test_what_was_not_run_is_not_on_the_page(tmp_path):
    summary(tmp_path, "roar_babi1")
    have = page.Summaries(tmp_path)
    filled = {name: fill(have) for name, fill in reproduction_text.TEXT_BLOCKS.items()}
    assert filled["text count"] == filled["text bases"] == filled["text overview"] == ""
    for name in ("text runs", "text racu", "text by run", "text time", "text cost"):
        assert not re.search("SST|IMDB|MiniLM|bAbI-2", filled[name]), name
    verdicts = [finding.verdict for finding in text_findings.findings(have)]
    assert verdicts[:2] == [text_findings.INCONCLUSIVE] * 2


def test_fewer_than_three_seeds_have_no_interval_and_no_verdict(made):
    have = page.Summaries(made)
    lines = reproduction_text.TEXT_BLOCKS["text racu"](have).splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith(("| IMDB", "| SST with"))]
    assert len(rows) == 4 + 3
    for row in rows:
        assert re.fullmatch(r"−?[\d.]+ \(−?[\d.]+; −?[\d.]+\)†", row[4]), row
        assert re.fullmatch(r"[012] of 2 seeds inside \|", row[7])
    assert {run.name for run in text_runs.conclusive(have)} == {"roar_babi1", "roar_sst"}
    few = "Too few seeds for a verdict: SST with MiniLM-L6 (two seeds) and IMDB (two seeds)."
    assert few in text_findings.text_findings(have)
    assert text_findings.model_dependent(have).verdict == text_findings.INCONCLUSIVE


def test_pictures_are_drawn_for_what_there_is(made, tmp_path, monkeypatch):
    monkeypatch.setattr(filling, "IMAGES", tmp_path)
    have = page.Summaries(made)
    draw_text(have)
    drawn = {file.name for file in tmp_path.glob("*.png")}
    shown = set(
        re.findall(r"images/(reproduction-text-\w+\.png)", page.filled(TEXT.read_text(), have))
    )
    assert drawn == shown
    assert len(drawn) == 4 + 4  # data sets; all, racu, count, sparsity


# Runs that were cut off


def run_of(folder: Path, name: str) -> text_runs.Run:
    return text_runs.Run(name, page.Summaries(folder).studies[name])


def test_levels_too_far_apart_are_not_set_beside_table_2(made):
    have = page.Summaries(made)
    cut, short, coarse, full = (
        run_of(made, f"roar_{name}") for name in ("babi2", "sst_minilm", "imdb", "babi1")
    )
    assert (cut.cut_at, short.cut_at, coarse.cut_at, full.cut_at) == (40, 80, None, None)
    assert not cut.is_comparable and cut.is_conclusive
    assert short.is_comparable and coarse.is_comparable and not coarse.is_full
    assert text_runs.published_racu(cut, "gradient") is None
    assert text_runs.published_racu(short, "gradient")["mean"] == pytest.approx(0.261)
    racu = reproduction_text.TEXT_BLOCKS["text racu"](have)
    assert "| bAbI-2 |" not in racu and "too far apart: bAbI-2." in racu
    assert racu.count("†") == 4 + 3 + 1
    by_run = reproduction_text.TEXT_BLOCKS["text by run"](have)
    assert "| RACU over 0 to 40 and 100 % [%] |" in by_run
    assert "the last 60 points are a straight line between two trainings" in by_run
    assert "between 80 and 100 % RACU is interpolated linearly" in by_run
    said = reproduction_text.TEXT_BLOCKS["text runs"](have)
    for words in ("bAbI-2 (after 40 %)", "MiniLM-L6 (after 80 %)", "(after 3 of 10 tokens)"):
        assert words in said.rsplit("\n", 1)[1]
    count = reproduction_text.TEXT_BLOCKS["text count"](have)
    assert "bAbI-1: cut off after 3 of 10 tokens, so no verdict." in count


def test_racu_over_some_levels(made):
    full = run_of(made, "roar_babi1")
    have = page.Summaries(made)
    for name in full.measures:
        again = text_runs.racu_over(full, name, full.levels)
        assert again == pytest.approx(full.racu(name)["values"], abs=1e-5)
    assert text_runs.moved(have, text_runs.ELEVEN) == 0
    assert 0 < text_runs.moved(have, (*range(0, 81, 10), 100)) < 0.05


def test_models_are_compared_over_the_levels_of_both(made):
    one, two = run_of(made, "roar_sst"), run_of(made, "roar_sst_minilm")
    assert text_findings.common_levels(one, two) == [*range(0, 81, 10), 100]
    coarse = run_of(made, "roar_imdb")
    assert text_findings.common_levels(one, coarse) == []  # other steps, other rankings
    found = text_findings.model_dependent(page.Summaries(made))
    assert "| SST, 0 to 80 and 100 % | gradient |" in found.numbers


def test_finer_steps_are_set_against_random_masking(made):
    """Of equal curves, one of which masks more at random, neither is ahead."""
    text = reproduction_text.TEXT_BLOCKS["text count"](page.Summaries(made))
    assert re.search(r"random masking alone loses \d+\.\d points (more|less)", text)
    gap = {"mean": -0.08, "ci_low": -0.09, "ci_high": -0.07, "values": [-0.08, -0.09, -0.07]}
    words = text_appendix.finer_words(9, 50, text_numbers.turned(gap), {"attention": gap})
    assert "Nine tokens are not 50 % of every text" in words
    assert "loses 8.0 points more" in words
    assert "not significantly better for any measure (significantly worse for attention)" in words
    words = text_appendix.finer_words(9, 50, gap, {"attention": text_numbers.turned(gap)})
    assert "loses 8.0 points less" in words and "significantly better for attention." in words


def test_doubts_name_the_widest_gap_that_passes(tmp_path):
    summary(tmp_path, "roar_babi1")
    file = tmp_path / "roar_babi1.json"
    study = json.loads(file.read_text())
    for row in study["racu"]["rows"]:  # mean and ends
        row[2:5] = [0.0, -0.1, 0.1] if row[0] != "attention" else [0.465, 0.4, 0.6]
    file.write_text(json.dumps(study))
    have = page.Summaries(tmp_path)
    assert "attention on bAbI-1 is 20 points off and passes" in text_table2.text_doubts(have)
    assert "significantly the highest" not in text_table2.text_doubts(have)


def test_rounding_of_the_paper_is_allowed_for():
    assert text_tables.overlap_words("yes", "yes") == "overlap"
    assert "once" in text_tables.overlap_words("no", "yes")
    assert text_tables.overlap_words("no", "no") == "no overlap"
    assert text_tables.overlap_words("1 of 2 seeds inside", "2 of 2 seeds inside") == (
        "2 of 2 seeds inside"
    )
