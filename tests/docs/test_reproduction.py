"""The reproduction page says what the committed summaries say, and summaries what runs say."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import faithscope as fs

ROOT = Path(__file__).resolve().parents[2]


def load(name: str, place: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "studies")]  # as for scripts, which import siblings
page = load("docs_reproduction", "docs/reproduction.py")
summarise = load("studies_summarise", "studies/summarise.py")
FILES = sorted(page.RESULTS.glob("*.json"))


def block(file: Path, name: str) -> str:
    """What stands between the markers of a page."""
    (text,) = [part[0] for part in page.BLOCK.finditer(file.read_text()) if part[2] == name]
    return text.split("-->\n", 1)[1].removesuffix("<!-- end -->")


@pytest.mark.parametrize("file", page.PAGES, ids=lambda file: file.name)
def test_pages_say_what_the_summaries_say(file):
    text = file.read_text()
    assert page.BLOCK.search(text)
    assert page.filled(text, page.Summaries()) == text, "run `python docs/reproduction.py`"


def test_every_block_is_on_a_page():
    shown = [part[2] for file in page.PAGES for part in page.BLOCK.finditer(file.read_text())]
    assert sorted(shown) == sorted(page.BLOCKS)


def estimates(value: Any) -> set[tuple[str, ...]]:
    """Every number with its interval inside a summary, as the pages write it, and turned round."""
    if not isinstance(value, dict):
        return set()
    if "columns" not in value:
        return set().union(*map(estimates, value.values()))
    kinds = [("mean", "ci_low", "ci_high"), ("difference", "ci_low", "ci_high")]
    kinds += [("correlation", "ci_low", "ci_high"), ("signed", "signed_low", "signed_high")]
    kinds += [("agreement", "agreement_low", "agreement_high")]
    said = set()
    for row in page.rows_of(value):
        for kind in kinds:
            if None not in (found := [row.get(name) for name in kind]):
                middle, low, high = found
                for triple in ((middle, low, high), (-middle, -high, -low)):
                    said.add(tuple(map(page.number, triple)))
    return said


@pytest.mark.parametrize(("file", "name"), [(page.PAGES[0], "found"), (page.PAGES[1], "teaser")])
def test_every_number_that_we_found_is_in_a_summary(file, name):
    studies = [json.loads(path.read_text()) for path in FILES]
    known = set().union(*map(estimates, studies))
    text = block(file, name).replace("+", "")
    pattern = r"(−?\d+\.\d+) \[(−?\d+\.\d+), (−?\d+\.\d+)\]"
    quoted = re.findall(pattern, text)
    assert len(quoted) > 1
    assert [triple for triple in quoted if triple not in known] == []
    rest = re.sub(r"p ≤ [\d.]+", "", re.sub(pattern, "", text))
    assert re.findall(r"\d+\.\d+", rest) == [], "a score without its interval"


def test_every_sentence_has_a_number_with_its_interval():
    sentences = block(page.PAGES[0], "found").strip().splitlines()
    assert len(sentences) >= 9
    for sentence in sentences:
        assert re.search(r"\d\.\d+ \[[−+]?\d\.\d+, [−+]?\d\.\d+\]", sentence), sentence


def test_the_page_counts_tests_as_they_are_made():
    from faithscope.verdicts.statistics import paired_p_values

    assert inspect.signature(paired_p_values).parameters["resamples"].default == page.FLIPS
    have = page.Summaries()
    said = page.families(have)
    for name in page.MODELS:
        run = have.run(name)
        tested = [row for row in page.rows_of(run["summary"]) if row["p_vs_random"] is not None]
        assert f"{len(tested)} tests against matched" in said
        lowest = min(row["p_vs_random"] for row in tested)
        assert f"second no lower than {lowest:.3f}" in said
        lowest = min(row["p"] for row in page.rows_of(run["comparisons"]))
        assert f"first family can be no lower than {lowest:.3f}" in said


def test_verdicts_opposed_to_saco_are_counted_on_both_sides():
    have = page.Summaries()
    counts = dict.fromkeys(page.OTHERS, 0)
    for name in page.MODELS:
        for method in page.METHODS:
            ours = have.cell(name, method)["verdict"]
            for metric in counts:
                other = have.cell(name, method, metric)["verdict"]
                counts[metric] += (ours, other) in {("better", "worse"), ("worse", "better")}
    shown = page.listed([f"{n} ({page.METRICS[metric]})" for metric, n in counts.items()])
    assert f"in {shown} of 60 cases" in page.matched_text(have)


@pytest.mark.parametrize("name", ["c10_base", "ablation_deit", "k_base", "fills_base"])
def test_a_changed_summary_makes_the_page_stale(name, tmp_path):
    for file in FILES:
        shutil.copy(file, tmp_path)
    changed = tmp_path / f"{name}.json"
    study = json.loads(changed.read_text())
    for run in study["runs"].values():
        means = run["summary"]["columns"].index("mean")
        for row in run["summary"]["rows"]:
            row[means] = row[means] and row[means] + 0.01
    changed.write_text(json.dumps(study))
    text = page.PAGES[0].read_text()
    assert page.filled(text, page.Summaries(tmp_path)) != text


def test_a_changed_page_is_noticed():
    text = page.PAGES[0].read_text()
    place = text.index("[", text.index("<!-- begin: found -->"))
    digit = next(i for i in range(place, len(text)) if text[i].isdigit())
    other = text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :]
    assert page.filled(other, page.Summaries()) == text != other


def test_summaries_are_small_and_name_no_place_of_the_machine():
    assert sum(file.stat().st_size for file in FILES) < 1_300_000
    for file in FILES:
        assert not re.search(r"/(tmp|home|root|work)/", file.read_text()), file.name


def test_pictures_are_few_and_small():
    pictures = list(page.IMAGES.glob("reproduction-*.png"))
    text = "".join(file.read_text() for file in page.PAGES)
    shown = set(re.findall(r"images/(reproduction-[\w-]+\.png)", text))
    assert sorted(shown) == sorted(picture.name for picture in pictures)
    assert len(pictures) <= 15
    assert all(picture.stat().st_size < 300_000 for picture in pictures)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two little runs that differ in their fill."""
    root = tmp_path_factory.mktemp("runs") / "little"
    model = fs.load_model("bundled:cifar10_vit")
    data = fs.load_data("bundled:cifar10", model, limit=6)
    for fill in ("mean", "black"):
        fs.evaluate(
            model,
            data,
            methods=["raw_attention", "rollout"],
            metrics=["saco", "saco(k=auto)", "aopc"],
            fill=fill,
            random_draws=1,
            out=root / fill,
        )
    return root


def test_a_summary_says_what_the_run_says(study, tmp_path):
    summarise.main([str(study), "--out", str(tmp_path)])
    have = page.Summaries(tmp_path)
    result = fs.load_result(study / "mean")
    for row in result.summary().to_pylist():
        ours = have.cell("little", row["method"], row["metric"], "fill=mean")
        assert ours["mean"] == pytest.approx(row["mean"], rel=1e-5)
        assert ours["verdict"] == row["verdict"]
    change = have.change("little", "fill=black", "rollout", "saco")
    black = fs.load_result(study / "black").values("rollout", "saco").mean()
    assert change["second"] == pytest.approx(black, rel=1e-5)
    assert have.run("little")["model"]["card"]["test_accuracy"] == 0.9407
    assert sum(have.run("little")["k_used"]["rollout"].values()) == 6


def test_the_command_is_that_of_command_txt_or_a_note(study, tmp_path):
    folder = tmp_path / "copied"
    shutil.copytree(study, folder)
    (note,) = summarise.summarise(folder)["command"]
    assert note.startswith("# copied: no command.txt")
    assert "bundled:cifar10 (6 images)" in note and "fill mean, black" in note
    for given, shown in ((None, note), ("faithscope run x.yaml\n# 3 s\n", "faithscope run x.yaml")):
        if given:
            (folder / "command.txt").write_text(given)
        summarise.main([str(folder), "--out", str(tmp_path)])
        assert page.commands(page.Summaries(tmp_path), "copied").splitlines()[1] == shown


def test_summaries_repeat(study, tmp_path):
    texts = [summarise.written(summarise.summarise(study)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert "NaN" not in texts[0]


def test_correlation_over_images_is_spearmans_of_each_method(study):
    from scipy.stats import spearmanr

    result = fs.load_result(study / "mean")
    rows = summarise.over_images(result)
    (ours,) = [row for row in rows if (row["metric"], row["other"]) == ("saco", "aopc")]
    each = [
        spearmanr(result.values(method, "saco"), result.values(method, "aopc")).statistic
        for method in ("raw_attention", "rollout")
    ]
    assert ours["correlation"] == pytest.approx(sum(each) / 2)
    assert ours["ci_low"] <= ours["correlation"] <= ours["ci_high"]
