"""ROAR summaries say what their runs say; loaders are checked with one model each."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import faithscope as fs
from faithscope.data.text_sources import fingerprint, load_text
from faithscope.data.vocabulary import UNK
from faithscope.probes.retrain.learners import load_learner
from roar_runs import make_roar, with_rows

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "studies")]  # as for scripts, which import siblings

import interval_chance  # noqa: E402
import reproduction as page  # noqa: E402
import reproduction_text  # noqa: E402
import rewrite_words  # noqa: E402
import roar_bases  # noqa: E402
import roar_leakage  # noqa: E402
import summarise  # noqa: E402
import summarise_roar  # noqa: E402

# Summaries


@pytest.fixture(scope="module")
def roar_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "roar"
    made = make_roar(seeds=3)
    history = {"validation": [0.1 * step for step in range(1, 9)] + [0.85] * 4, "epoch": 9}
    rows = made.trainings.to_pylist()
    rows = [{**row, **(history if row["job"] == "k000-s1" else {})} for row in rows]
    made = with_rows(made, "trainings", rows)
    made.save(folder)
    (folder / "command.txt").write_text("faithscope roar x\n# 3 s\n")
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
    assert page.find(study["trainings"], k=100, seed=0)["validation"] == 0.75
    assert page.find(study["trainings"], k=100, seed=0)["tenth"] is None
    assert study["headline"] == made.headline() and study["warnings"] == made.warnings()


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
    texts = load_text("bundled:babi1")
    made = roar_run[1]
    data = made.manifest.data.model_copy(update={"fingerprint": fingerprint(texts)})
    made = replace(made, manifest=made.manifest.model_copy(update={"data": data}))
    found = summarise_roar.summarise(made.save(tmp_path / "same"), "bundled:babi1")
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


def test_models_that_learnt_nothing_are_marked(tmp_path):
    make_roar(majority=1.0).save(tmp_path / "lost")
    assert summarise_roar.summarise(tmp_path / "lost")["learnt"] is False
    make_roar().save(tmp_path / "found")
    assert summarise_roar.summarise(tmp_path / "found")["learnt"] is True


@pytest.mark.parametrize("strategy", ["relative", "count"])
def test_a_summary_is_enough_to_say_again_what_its_run_says(tmp_path, strategy):
    made = make_roar(seeds=3, strategy=strategy, metric="macro_f1", majority=0.5)
    study = json.loads(summarise.written(summarise_roar.summarise(made.save(tmp_path / "run"))))
    study |= {"headline": "in former words", "warnings": []}
    file = tmp_path / "roar_run.json"
    file.write_text(summarise.written(study))
    rewrite_words.main([str(file)])
    found = json.loads(file.read_text())
    assert found == {**study, "headline": made.headline(), "warnings": made.warnings()}
    if strategy == "relative":
        study["racu_by_seed"]["rows"][3][-1] += 0.001
        with pytest.raises(SystemExit, match="and not as in"):
            rewrite_words.rewritten(study)


@pytest.mark.parametrize("file", sorted(page.RESULTS.glob("roar_*.json")), ids=lambda f: f.stem)
def test_stored_summaries_say_it_in_the_words_of_today(file):
    study = json.loads(file.read_text())
    if "headline" in study:
        assert rewrite_words.rewritten(study) == study  # else: python studies/rewrite_words.py


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


def test_a_folder_whose_name_is_in_that_of_its_kind_is_found(snli, monkeypatch):
    (snli / "n").mkdir()
    for file in snli.glob("*.*"):
        file.rename(snli / "n" / file.name)
    monkeypatch.chdir(snli)
    data, note = roar_bases.load("snli:./n/(min_df=2)")
    assert [len(split) for _, split in data.splits] == [48, 12, 30]
    assert "The training part is not at hand" in note


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


# Models that see only masks


def test_only_masks_are_left_to_see():
    texts = load_text("bundled:babi1", limit=20)
    data = load_learner("bilstm", texts, epochs=1, device="cpu").encode(texts)
    masks = {name: part.eligible & (part.ids % 2 == 0) for name, part in data.splits}
    for (name, before), (_, after) in zip(
        data.splits, roar_leakage.only_masks(data, masks).splits, strict=True
    ):
        assert (after.ids[masks[name]] == data.mask_id).all()
        assert (after.ids[before.eligible & ~masks[name]] == UNK).all()
        assert torch.equal(after.ids[~before.eligible], before.ids[~before.eligible])
        assert torch.equal(after.auxiliary, before.auxiliary)


def test_models_are_trained_on_the_masks_of_a_run(tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "roar_babi1_leakage.json"
    options = {"seeds": 3, "levels": [50], "epochs": 1, "device": "cpu", "limit": 40}
    fs.roar("bundled:babi1", measures="gradient", out=run, **options)
    given = [str(run), "bundled:babi1", "--limit", "40", "--level", "50", "--out", str(out)]
    roar_leakage.main([*given, "--device", "cpu"])
    found = json.loads(out.read_text())
    assert list(found["scores"]) == ["random", "gradient"]
    assert [len(scores) for scores in found["scores"].values()] == [3, 3]
    assert found["epochs"] == 1
    for place, wrong, said in (
        (0, str(tmp_path / "none"), "none"),
        (3, "30", "'bundled:babi1' is not what"),
        (5, "70", "keeps no masks of random at 70 %"),
    ):
        with pytest.raises(SystemExit) as stopped:
            roar_leakage.main([*given[:place], wrong, *given[place + 1 :]])
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err


# How often intervals err


def test_the_mistakes_of_intervals_are_those_stored():
    stored = json.loads((page.RESULTS / "interval_chance.json").read_text())
    draws = 150
    for seeds in interval_chance.SEEDS:
        again = interval_chance.mistakes(seeds, draws)
        for name, share in again.items():
            error = (stored[str(seeds)][name] / draws) ** 0.5
            assert share == pytest.approx(stored[str(seeds)][name], abs=4 * error)
        assert again["both"] <= min(again["bca"], again["student"])


def test_mistakes_are_written(tmp_path):
    out = tmp_path / "interval_chance.json"
    interval_chance.main(["--draws", "20", "--out", str(out)])
    found = json.loads(out.read_text())
    assert found["5"] == interval_chance.mistakes(5, 20)
    assert found["command"] == "python studies/interval_chance.py"
