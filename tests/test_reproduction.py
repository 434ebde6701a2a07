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

import numpy as np
import pytest

import faithscope as fs
from roar_runs import make_roar

ROOT = Path(__file__).resolve().parent.parent


def load(name: str, place: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "studies")]  # as for scripts, which import siblings
page = load("docs_reproduction", "docs/reproduction.py")
text_page = load("docs_reproduction_text", "docs/reproduction_text.py")
summarise = load("studies_summarise", "studies/summarise.py")
summarise_roar = load("studies_summarise_roar", "studies/summarise_roar.py")
TEXT = page.ROOT / "docs" / "reproduction_text.md"
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
    from faithscope.results.stats import paired_p_values

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
    assert sum(file.stat().st_size for file in FILES) < 1_000_000
    for file in FILES:
        assert not re.search(r"/(tmp|home|root|work)/", file.read_text()), file.name


def test_pictures_are_few_and_small():
    pictures = list(page.IMAGES.glob("reproduction-*.png"))
    text = "".join(file.read_text() for file in page.PAGES)
    shown = set(re.findall(r"images/(reproduction-[\w-]+\.png)", text))
    assert sorted(shown) == sorted(picture.name for picture in pictures)
    assert len(pictures) <= 7
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
    for told, shown in ((None, note), ("faithscope run x.yaml\n# 3 s\n", "faithscope run x.yaml")):
        if told:
            (folder / "command.txt").write_text(told)
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


# Text


def roar_file() -> dict[str, Any]:
    return json.loads((page.RESULTS / "roar_babi1.json").read_text())


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


def known_in_text() -> set[tuple[str, ...]]:
    from scipy.stats import binomtest

    published = [*text_page.PAPER["table 2"].values()]
    published += [text_page.PAPER["table 1"]["accuracy"], text_page.PAPER["table 4"]["masked"]]
    known = in_percent(roar_file())
    known |= {tuple(page.number(number, 1) for number in row) for row in published}
    many = json.loads((page.RESULTS / "roar_babi1_seeds.json").read_text())["base"]
    count = sum(accuracy >= 0.99 for accuracy in many)
    ends = binomtest(count, len(many)).proportion_ci(method="wilson")
    share = (count / len(many), ends.low, ends.high)
    return known | {tuple(page.number(100 * number, 1) for number in share)}


TRIPLE = r"([−+]?\d+\.\d+) \[([−+]?\d+\.\d+), ([−+]?\d+\.\d+)\]"


@pytest.mark.parametrize("name", ["text found", "text racu", "text curves", "text sparsity"])
def test_every_number_on_text_is_in_its_summary(name):
    quoted = re.findall(TRIPLE, block(TEXT, name).replace("+", ""))
    assert len(quoted) > 10
    known = known_in_text()
    assert [triple for triple in quoted if triple not in known] == []


def test_every_sentence_on_text_has_a_number_with_its_interval():
    sentences = block(TEXT, "text found").strip().splitlines()
    assert len(sentences) >= 9
    assert [sentence for sentence in sentences if not re.search(TRIPLE, sentence)] == []


def test_racu_can_be_computed_again_from_the_summary():
    """By scipy's trapezoid rule, not by ours."""
    from scipy.integrate import trapezoid

    study = roar_file()
    levels = study["protocol"]["levels"]
    curves = {
        (row["measure"], row["procedure"], row["seed"]): np.array([row[str(k)] for k in levels])
        for row in page.rows_of(study["values"])
    }
    rows = page.rows_of(study["racu_by_seed"])
    assert len(rows) == 5 * 2 * 5
    for row in rows:
        random = curves["random", row["procedure"], row["seed"]]
        curve = curves[row["measure"], row["procedure"], row["seed"]]
        again = trapezoid(random - curve) / trapezoid(random - random[-1])
        assert row["racu"] == pytest.approx(np.clip(again, -1, 1), abs=2e-6)
    for row in page.rows_of(study["racu"]):
        own = [r["racu"] for r in rows if all(r[k] == row[k] for k in ("measure", "procedure"))]
        assert row["mean"] == pytest.approx(np.mean(own), abs=2e-6)


def test_the_page_says_yes_where_intervals_overlap():
    text = block(TEXT, "text racu")
    for name, words in text_page.MEASURES.items():
        row = page.find(roar_file()["racu"], measure=name, procedure="recursive")
        _, low, high = text_page.PAPER["table 2"][name]
        meets = max(low, 100 * row["ci_low"]) <= min(high, 100 * row["ci_high"])
        cells = next(line for line in text.splitlines() if line.startswith(f"| {words} |"))
        assert (cells.split(" | ")[3] == "yes") is meets


@pytest.mark.parametrize("part", ["racu", "curves", "left_out", "sparsity"])
def test_a_changed_roar_summary_makes_the_page_stale(part, tmp_path):
    study = roar_file()
    place = study[part]["columns"].index("mean")
    for row in study[part]["rows"]:
        row[place] += 0.01
    for file in FILES:
        shutil.copy(file, tmp_path)
    (tmp_path / "roar_babi1.json").write_text(json.dumps(study))
    text = TEXT.read_text()
    assert page.filled(text, page.Summaries(tmp_path)) != text


def test_the_page_does_without_many_seeds(tmp_path):
    shutil.copy(page.RESULTS / "roar_babi1.json", tmp_path)
    filled = page.filled(TEXT.read_text(), page.Summaries(tmp_path))
    assert "five seeds cannot tell" in filled
    assert "Wilson" not in filled


def test_many_seeds_are_counted(tmp_path):
    shutil.copy(page.RESULTS / "roar_babi1.json", tmp_path)
    many = {
        "base": [1.0] * 6 + [0.9] * 2,
        "masked": [0.15, 0.16, 0.17, 0.18] * 2,
        "base_validation": [1.0] * 8,
        "masked_validation": [0.19] * 8,
        "epochs": 100,
        "seconds": 1.0,
        "machine": "a GPU",
        "command": "python studies/roar_seeds.py texts",
    }
    (tmp_path / "roar_babi1_seeds.json").write_text(json.dumps(many))
    have = page.Summaries(tmp_path)
    said = text_page.text_base(have)
    assert "Of 8 seeds 6 reach 99 %, 75.0 [40.9, 92.9] %" in said  # Wilson (1927)
    assert f"in {0.75**5:.0%}".replace("%", " %") in said
    assert "Over 8 seeds the mean is 16.5" in text_page.text_masked(have)
    assert many["command"] in text_page.text_commands(have)


@pytest.fixture(scope="module")
def roar_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "roar"
    made = make_roar(seeds=3)
    made.save(folder)
    (folder / "command.txt").write_text("faithscope roar x\n# 3 s\n")
    (folder / "jobs").mkdir()
    history = [0.1 * step for step in range(1, 9)] + [0.85] * 4
    card = {"card": {"validation": history, "epoch": 9}}
    (folder / "jobs" / "k000-s1.json").write_text(json.dumps(card))
    return folder, made


def test_a_roar_summary_says_what_the_run_says(roar_run, tmp_path):
    folder, made = roar_run
    summarise_roar.main([str(folder), "--out", str(tmp_path)])
    study = page.Summaries(tmp_path).studies["roar"]
    assert study["command"] == ["faithscope roar x", "# 3 s"]
    for row in made.racu().to_pylist():
        ours = page.find(study["racu"], measure=row["measure"], procedure=row["procedure"])
        assert ours["mean"] == pytest.approx(row["mean"], rel=1e-5)
        for seed, value in zip(row["seeds"], row["values"], strict=True):
            kind = {key: row[key] for key in ("measure", "procedure")}
            one = page.find(study["racu_by_seed"], **kind, seed=seed)
            assert one["racu"] == pytest.approx(value, rel=1e-5)
            rest = page.find(study["left_out"], **kind, seed=seed)["mean"]
            assert rest == pytest.approx((sum(row["values"]) - value) / 2, rel=1e-5)
    assert len(study["curves"]["rows"]) == 6 * 2 * 11
    trained = page.find(study["trainings"], k=0, seed=1)
    assert (trained["validation"], trained["epoch"], trained["tenth"]) == (0.85, 9, 0.85)
    assert page.find(study["trainings"], k=100, seed=0)["validation"] is None


def test_differences_of_a_roar_summary_are_paired(roar_run):
    folder, made = roar_run
    study = summarise_roar.summarise(folder)
    values = {
        (r["measure"], r["procedure"]): np.array(r["values"]) for r in made.racu().to_pylist()
    }
    row = page.find(study["procedures"], measure="attention")
    gap = values["attention", "recursive"] - values["attention", "roar"]
    assert row["difference"] == pytest.approx(gap.mean())
    assert row["ci_low"] <= gap.mean() <= row["ci_high"]
    row = page.find(study["measures"], procedure="roar", measure="attention", other="gradient")
    assert row["difference"] == pytest.approx(
        (values["gradient", "roar"] - values["attention", "roar"]).mean()
    )


def test_roar_summaries_repeat(roar_run):
    texts = [summarise.written(summarise_roar.summarise(roar_run[0])) for _ in range(2)]
    assert texts[0] == texts[1]
    assert "NaN" not in texts[0]


def test_a_roar_summary_refuses_other_data(roar_run):
    with pytest.raises(SystemExit, match="other data than the run's"):
        summarise_roar.summarise(roar_run[0], "bundled:babi1")


def test_class_shares_are_those_of_the_data(roar_run, tmp_path):
    from faithscope.data.text_sources import fingerprint, load_text

    texts = load_text("bundled:babi1")
    folder = tmp_path / "same"
    shutil.copytree(roar_run[0], folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["data"]["fingerprint"] = fingerprint(texts)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    found = summarise_roar.summarise(folder, "bundled:babi1")
    for name, split in texts.splits:
        shares = found["classes"][name]
        assert sum(shares.values()) == pytest.approx(1)
        office = texts.classes.index("office")
        assert shares["office"] == pytest.approx((split.labels == office).mean())
    places = {"bathroom", "bedroom", "garden", "hallway", "kitchen", "office"}
    assert set(found["telling_words"]) == places == set(found["classes"]["train"])


def test_a_study_of_one_run_gives_the_same_summary(roar_run, tmp_path):
    study = tmp_path / "roar"
    shutil.copytree(roar_run[0], study / "bilstm_babi")
    shutil.move(study / "bilstm_babi" / "command.txt", study)
    assert summarise_roar.summarise(study) == summarise_roar.summarise(roar_run[0])
