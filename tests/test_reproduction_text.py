"""The page on text says what ROAR summaries say, its verdicts follow their rules; summaries too."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roar_runs
from roar_runs import make_roar

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "studies")]  # as for scripts, which import siblings

import filling  # noqa: E402
import reproduction as page  # noqa: E402
import reproduction_text  # noqa: E402
import roar_bases  # noqa: E402
import summarise  # noqa: E402
import summarise_roar  # noqa: E402
import text_babi1  # noqa: E402
import text_findings  # noqa: E402
import text_runs  # noqa: E402
import text_tables  # noqa: E402
from text_figures import draw_text  # noqa: E402

TEXT = ROOT / "docs" / "reproduction_text.md"
COMMITTED = [run.name for run in text_runs.runs(page.Summaries())]
GRADIENTS = ("gradient", "input_x_gradient", "integrated_gradients", "random")
PAPERS = ("attention", *GRADIENTS)
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


@pytest.mark.parametrize("name", ["text racu", "text by run", "text procedures", "text sparsity"])
def test_every_number_is_in_a_summary_or_in_the_paper(name):
    files = [page.RESULTS / f"{run}.json" for run in text_runs.RUNS]
    known = in_paper().union(*(in_percent(json.loads(f.read_text())) for f in files if f.exists()))
    quoted = re.findall(TRIPLE, block(name).replace("+", ""))
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
        start = f"| bAbI-1 | BiLSTM-attention | {words} |"
        cells = next(line for line in lines if line.startswith(start)).split(" | ")
        assert (cells[-1] == "yes |") is meets


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
    assert "five seeds cannot tell" in filled
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


def summary(folder: Path, name: str, **options: Any) -> None:
    """A run made of numbers, summarised under a name of the page."""
    run = folder / "runs" / name
    made = make_roar(**{"measures": PAPERS, **options})
    made.save(run)
    (run / "command.txt").write_text(f"faithscope run studies/{name}.yaml --yes\n# 3 s\n")
    (folder / f"{name}.json").write_text(summarise.written(summarise_roar.summarise(run)))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Summaries of every kind of run that the page knows."""
    folder = tmp_path_factory.mktemp("made")
    once = {"procedures": ("recursive",)}
    summary(folder, "roar_babi1", measures=(*PAPERS, "mutual_information"))
    summary(folder, "roar_babi2", seeds=3, shift=0.1, **once)
    summary(folder, "roar_sst", metric="macro_f1", noise=0.03)
    summary(
        folder,
        "roar_sst_minilm",
        measures=GRADIENTS,
        seeds=2,
        model="hf:/a/place/of/mine/minilm",
        **once,
    )
    summary(folder, "roar_imdb", seeds=2, levels=(0, 10, 30, 50, 70, 90, 100), **once)
    summary(folder, "roar_babi1_count", strategy="count", **once)
    summary(folder, "roar_sst_count", strategy="count", seeds=2, metric="macro_f1", **once)
    base = {
        "data": {
            "metric": "micro_f1",
            "sizes": {"train": 7875, "validation": 1967, "test": 9824},
            "mean_length": 16.2,
            "majority": {"class": "entailment", "score": 0.343},
        },
        "parameters": 100,
        "recipe": {"epochs": 25},
        "epoch": 3,
        "validation": [0.5, 0.6],
        "scores": {"micro_f1": 0.612},
        "seconds": 12.0,
        "device": "a GPU",
        "note": "The training part is not at hand.",
        "command": "python studies/roar_bases.py SNLI=snli:data/snli",
    }
    (folder / "roar_bases.json").write_text(json.dumps({"SNLI": base}))
    return folder


def test_every_kind_of_run_is_on_the_page(made):
    text = page.filled(TEXT.read_text(), page.Summaries(made))
    for name in ("bAbI-1", "bAbI-2", "SST", "IMDB"):
        assert f"### {name}, BiLSTM-attention" in text
    assert "### SST, MiniLM-L6" in text
    assert "## One token at a time" in text
    assert "## Loaders checked" in text and "| 78.0 [77.7, 78.2] | 61.2 |" in text
    for name in text_runs.RUNS:
        assert f"python studies/summarise_roar.py runs/{name} --data" in text
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
    assert verdicts[:2] == [text_findings.UNTOLD] * 2


def test_fewer_than_three_seeds_have_no_interval_and_no_verdict(made):
    have = page.Summaries(made)
    lines = reproduction_text.TEXT_BLOCKS["text racu"](have).splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith(("| IMDB", "| SST | MiniLM"))]
    assert len(rows) == 4 + 3
    for row in rows:
        assert re.fullmatch(r"−?[\d.]+ \(−?[\d.]+; −?[\d.]+\)", row[4]), row
        assert re.fullmatch(r"[012] of 2 seeds inside \|", row[6])
    assert {run.name for run in text_runs.told(have)} == {"roar_babi1", "roar_babi2", "roar_sst"}
    findings = text_findings.text_findings(have)
    assert (
        "Too few seeds for a verdict: SST (MiniLM-L6) (two seeds) and IMDB (two seeds)." in findings
    )
    assert text_findings.model_dependent(have).verdict == text_findings.UNTOLD


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


# Verdicts


def judged(folder: Path, rule: Any) -> str:
    return str(rule(page.Summaries(folder)).verdict)


def test_model_dependent(tmp_path):
    rule = text_findings.model_dependent
    for name in ("roar_sst", "roar_sst_minilm"):
        summary(tmp_path, name, measures=GRADIENTS, noise=0.005)
    assert judged(tmp_path, rule) == "disagrees"  # the very same numbers
    summary(tmp_path, "roar_sst_minilm", measures=GRADIENTS, shift=0.3)
    assert judged(tmp_path, rule) == "agrees"
    summary(tmp_path, "roar_sst_minilm", measures=GRADIENTS, shift=0.3, seeds=2)
    assert judged(tmp_path, rule) == "not told"


def test_task_dependent(tmp_path, monkeypatch):
    rule = text_findings.task_dependent
    summary(tmp_path, "roar_babi1")
    assert judged(tmp_path, rule) == "not told"
    summary(tmp_path, "roar_sst", shift=0.1)
    assert judged(tmp_path, rule) == "disagrees"
    monkeypatch.setitem(roar_runs.STRENGTHS, "attention", 0.05)
    summary(tmp_path, "roar_sst")
    assert judged(tmp_path, rule) == "agrees"
    ((one, two, here, there, gap, other), *_) = text_findings.swapped(
        text_runs.runs(page.Summaries(tmp_path))
    )
    assert (one, two) == ("attention", "gradient")
    assert (here.name, there.name) == ("roar_sst", "roar_babi1")
    assert gap["ci_low"] > 0 > other["ci_high"]


def test_attention_can_be_faithful(tmp_path, monkeypatch):
    rule = text_findings.attention_faithful
    summary(tmp_path, "roar_babi1")
    assert judged(tmp_path, rule) == "agrees"
    monkeypatch.setitem(roar_runs.STRENGTHS, "attention", 0.15)
    summary(tmp_path, "roar_babi1")
    assert judged(tmp_path, rule) == "agrees in part"  # others are ahead
    summary(tmp_path, "roar_sst")
    (tmp_path / "roar_babi1.json").unlink()
    assert judged(tmp_path, rule) == "agrees"  # as in the paper, where SST is the exception
    monkeypatch.setitem(roar_runs.STRENGTHS, "attention", -0.1)
    summary(tmp_path, "roar_sst")
    assert judged(tmp_path, rule) == "disagrees"


def test_integrated_gradients_and_their_cost(tmp_path, monkeypatch):
    rule = text_findings.worth_its_cost
    summary(tmp_path, "roar_babi1")
    assert judged(tmp_path, rule) == "disagrees"  # ahead of both
    monkeypatch.setitem(roar_runs.STRENGTHS, "integrated_gradients", 0.25)
    summary(tmp_path, "roar_sst")
    assert judged(tmp_path, rule) == "agrees in part"
    monkeypatch.setitem(roar_runs.STRENGTHS, "integrated_gradients", 0.15)
    summary(tmp_path, "roar_sst")
    assert judged(tmp_path, rule) == "agrees"
    assert "| 3.0 × |" in rule(page.Summaries(tmp_path)).numbers  # 3.5 s and 10.5 s


def test_the_top_twenty_percent(tmp_path):
    rule = text_findings.top_twenty
    summary(tmp_path, "roar_babi1", noise=0.001)
    assert judged(tmp_path, rule) == "agrees"
    file = tmp_path / "roar_babi1.json"
    study = json.loads(file.read_text())
    for row in study["values"]["rows"]:  # all curves the random one's, turned round: a late drop
        row[3:] = [1.15 - 0.15 - 0.85 * (k / 100) ** 3 for k in range(0, 101, 10)]
    file.write_text(json.dumps(study))
    assert judged(tmp_path, rule) == "disagrees"


def test_class_leakage(tmp_path):
    rule = text_findings.class_leakage
    summary(tmp_path, "roar_babi1", noise=0.001)
    assert judged(tmp_path, rule) == "not told"
    file = tmp_path / "roar_babi1.json"
    study = json.loads(file.read_text())
    columns = study["values"]["columns"]
    for row in study["values"]["rows"]:
        if row[columns.index("procedure")] == "recursive" and row[0] == "attention":
            row[columns.index("80")] = row[columns.index("60")] + 0.2 + 0.001 * row[2]
    file.write_text(json.dumps(study))
    assert judged(tmp_path, rule) == "agrees in part"  # one of eight may be chance
    for row in study["values"]["rows"]:
        if row[columns.index("procedure")] == "recursive":
            row[columns.index("80")] = row[columns.index("60")] + 0.2 + 0.001 * row[2]
    file.write_text(json.dumps(study))
    found = rule(page.Summaries(tmp_path))
    assert found.verdict == "agrees"
    assert "to 80 %" in found.numbers


def test_models_that_learnt_nothing_give_no_verdict(tmp_path):
    summary(tmp_path, "roar_babi1")
    file = tmp_path / "roar_babi1.json"
    study = {**json.loads(file.read_text()), "learnt": False}
    file.write_text(json.dumps(study))
    have = page.Summaries(tmp_path)
    assert {finding.verdict for finding in text_findings.findings(have)} == {"not told"}
    assert "learnt nothing: bAbI-1" in text_findings.text_findings(have)


def test_welchs_interval_is_scipys():
    from scipy.stats import ttest_ind

    one, two = [0.1, 0.15, 0.3], [0.5, 0.45, 0.2, 0.6, 0.4]
    ours = text_runs.welch(one, two)
    theirs = ttest_ind(two, one, equal_var=False).confidence_interval(0.95)
    assert (ours["ci_low"], ours["ci_high"]) == pytest.approx((theirs.low, theirs.high))
    wider = text_runs.welch(one, two, comparisons=4)
    theirs = ttest_ind(two, one, equal_var=False).confidence_interval(1 - 0.05 / 4)
    assert wider["ci_low"] == pytest.approx(theirs.low)
    assert text_runs.welch(one[:2], two)["ci_low"] is None


def test_rounding_of_the_paper_is_granted_and_said():
    assert text_tables.overlap_words("yes", "yes") == "overlap"
    assert "once" in text_tables.overlap_words("**no**", "yes")
    assert text_tables.overlap_words("**no**", "**no**") == "no overlap"
    assert text_tables.overlap_words("1 of 2 seeds inside", "2 of 2 seeds inside") == (
        "2 of 2 seeds inside"
    )


# Summaries


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
    one, other = (
        summarise.written(summarise_roar.summarise(folder)) for folder in (study, roar_run[0])
    )
    assert one == other


def test_two_seeds_have_no_interval_in_a_summary(tmp_path):
    make_roar(seeds=2).save(tmp_path / "two")
    study = summarise_roar.summarise(tmp_path / "two")
    for part in ("curves", "racu", "procedures", "measures", "sparsity"):
        rows = page.rows_of(json.loads(summarise.written(study[part])))
        assert rows
        assert {row["ci_low"] for row in rows} == {row["ci_high"] for row in rows} == {None}, part
    assert len(study["values"]["rows"]) == 6 * 2 * 2


def test_a_summary_in_tokens_has_curves_and_no_racu(tmp_path):
    make_roar(strategy="count", procedures=("recursive",)).save(tmp_path / "tokens")
    study = json.loads(summarise.written(summarise_roar.summarise(tmp_path / "tokens")))
    assert study["racu"]["rows"] == study["measures"]["rows"] == study["procedures"]["rows"] == []
    assert len(study["curves"]["rows"]) == 6 * 11
    assert study["ends"]["100"]["mean"] is None
    assert study["ends"]["0"]["mean"] == 1.0


def test_a_summary_names_a_models_folder_by_its_last_part(tmp_path):
    make_roar(model="hf:/a/place/of/mine/minilm").save(tmp_path / "mine")
    text = summarise.written(summarise_roar.summarise(tmp_path / "mine"))
    assert "/a/place" not in text
    assert json.loads(text)["model"]["name"] == "hf:minilm"
    assert "hf:minilm" in json.loads(text)["headline"]


def test_models_that_learnt_nothing_are_marked(tmp_path):
    made = make_roar()
    made.manifest["data"]["majority"]["score"] = 1.0
    made.save(tmp_path / "lost")
    assert summarise_roar.summarise(tmp_path / "lost")["learnt"] is False
    make_roar().save(tmp_path / "found")
    assert summarise_roar.summarise(tmp_path / "found")["learnt"] is True


# One base model each


@pytest.fixture
def snli(tmp_path: Path) -> Path:
    """A dev part of 20 premises with three hypotheses each, a test part, no training part."""
    folder = tmp_path / "snli"
    folder.mkdir()
    for split, premises in (("dev", range(20)), ("test", range(30, 40))):
        rows = [
            (f"man {premise} eats", f"someone {what} now", label)
            for premise in premises
            for what, label in (
                ("eats", "entailment"),
                ("runs", "contradiction"),
                ("sings", "neutral"),
            )
        ]
        for name, column in zip(("s1", "s2", "labels"), zip(*rows, strict=True), strict=True):
            (folder / f"{name}.{split}").write_text("\n".join(column) + "\n")
    return folder


def test_the_dev_part_stands_in_for_training(snli):
    data, note = roar_bases.load(f"snli:{snli}")
    assert [len(split) for _, split in data.splits] == [48, 12, 30]
    assert not {*data.train.texts} & {*data.validation.texts}  # no premise on both sides
    assert "the first 48 pairs of the dev part train, the other 12 validate" in note
    shutil.copy(snli / "s1.dev", snli / "s1.train")
    for name in ("s2", "labels"):
        shutil.copy(snli / f"{name}.dev", snli / f"{name}.train")
    data, note = roar_bases.load(f"snli:{snli}")
    assert [len(split) for _, split in data.splits] == [60, 60, 30]
    assert note == ""


def test_bases_are_trained_and_kept(snli, tmp_path, capsys):
    out = tmp_path / "roar_bases.json"
    options = ["--epochs", "1", "--device", "cpu", "--out", str(out)]
    roar_bases.main(["bAbI-1=bundled:babi1", "--limit", "30", *options])
    roar_bases.main([f"SNLI=snli:{snli}", *options])
    found = json.loads(out.read_text())
    assert list(found) == ["bAbI-1", "SNLI"]
    assert found["SNLI"]["data"]["sizes"] == {"train": 48, "validation": 12, "test": 30}
    assert found["bAbI-1"]["data"]["sizes"]["train"] == 30
    for base in found.values():
        assert len(base["validation"]) == base["recipe"]["epochs"] == base["epoch"] == 1
        assert 0 <= base["scores"]["accuracy"] <= 1
        assert base["device"] == "CPU"
    text = reproduction_text.TEXT_BLOCKS["text bases"](page.Summaries(tmp_path))
    assert "| SNLI | train / validation / test | 549,367 / 9,842 / 9,824 | 48 / 12 / 30 |" in text
    for wrong in ("SNLI", "SNLI=snli:/nowhere"):
        with pytest.raises(SystemExit) as stopped:
            roar_bases.main([wrong, *options])
        assert stopped.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) < 8
