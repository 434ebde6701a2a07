"""The study of both probes' rankings, from a tiny run to its page."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import faithscope as fs
from commands import csv, rows
from encoders import save_encoder
from faithscope.probes.retrain import finetune
from faithscope.probes.retrain.learner import Recipe
from families import refused
from small_images import SMALL, array_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "studies")]  # as for scripts, which import siblings

import ranks  # noqa: E402

MODEL = "vit(dim=16, depth=1, patch=2)"
TINY = {**SMALL, "measures": ["rollout", "gradient"], "procedures": "roar", "units": "patches"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that trained on images, and its models perturbed under two fills."""
    folder = tmp_path_factory.mktemp("runs")
    data = array_file(folder)
    fs.roar(data, MODEL, out=folder / "ranks", **{**TINY, "levels": [50], "seeds": 2})
    asked = ("perturb", str(folder / "ranks"), "--data", data, "--samples", "8")
    ranks.main([*asked, "--fills", "mean", "drop", "--device", "cpu"])
    return folder / "ranks", data


def test_the_models_that_are_perturbed_are_those_that_were_trained(run):
    folder, data = run
    found = fs.load_results(ranks.perturbed(folder)).results
    assert sorted(found) == ["seed0-drop", "seed0-mean", "seed1-drop", "seed1-mean"]
    from faithscope.data.labelled_images import load_labelled

    test = load_labelled(data).test
    trained = fs.load_result(folder).trainings.to_pylist()
    for seed in (0, 1):
        result = found[f"seed{seed}-mean"]
        assert result.manifest.protocol["target"] == "label"
        (whole,) = {
            row["value"]
            for row in trained
            if (row["k"], row["seed"], row["metric"]) == (0, seed, "accuracy")
        }
        samples = result.samples.to_pylist()
        assert [row["target"] for row in samples] == [row["label"] for row in samples]
        assert len(samples) == 8 <= len(test) and 0 <= whole <= 1
        assert {*result.manifest.methods} >= {"rollout", "gradient", "random"}


def test_a_summary_and_its_page(run, tmp_path):
    folder, _ = run
    ranks.main(["summarise", str(folder), "--out", str(tmp_path)])
    study = json.loads((tmp_path / "ranks.json").read_text())
    assert study["methods"] == ["rollout", "gradient"] and study["samples"] == 8
    assert [(row["fill"], row["metric"]) for row in ranks.rows_of(study["correlations"])] == [
        (fill, metric) for fill in ("mean", "drop") for metric in ranks.METRICS
    ]
    racu = fs.load_result(folder).scores.to_pylist()
    for row in ranks.rows_of(study["racu"]):
        assert row["random"] == 0
        for method in study["methods"]:
            (value,) = (
                None if "sign_turned" in held["flag"] else held["value"]
                for held in racu
                if (held["training"], held["method"], held["metric"])
                == (row["seed"], method, "racu")
            )
            assert row[method] == (value and pytest.approx(value, rel=1e-5))
    ranks.main(["page", str(tmp_path / "ranks.json"), "--out", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text()
    assert "seeds are too few for intervals: nothing can be concluded." in text
    assert "images/ranks.svg" in text and (tmp_path / "images/ranks.svg").stat().st_size > 1000


def test_the_page_says_what_the_summaries_say(tmp_path):
    files = sorted((ROOT / "studies" / "results").glob("ranks_*.json"))
    ranks.main(["page", *map(str, files), "--out", str(tmp_path / "ranks.md")])
    assert (tmp_path / "ranks.md").read_text() == (ROOT / "docs" / "ranks.md").read_text()


def test_the_readme_says_what_the_page_says():
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/ranks.md"))
    (found,) = re.findall(r"give the class away with a macro F1 of (0\.\d+)", readme)
    assert f"{found} (integrated_gradients(steps=20))" in page
    named = {"attcat", "integrated_gradients(steps=20)"}
    sst, fashion = (
        json.loads((ROOT / "studies" / "results" / f"ranks_{name}.json").read_text())
        for name in ("bert", "fashion")
    )
    worst = np.argsort(ranks.mean_racu(sst))[:2]
    assert {ranks.ranked(sst)[place] for place in worst} == named and {*best(sst)} == named
    assert ranks.ranked(fashion)[ranks.mean_racu(fashion).argmin()] in named
    count = best(fashion).count("integrated_gradients(steps=20)")
    told = (ROOT / "docs" / "roar_images.md").read_text()
    assert f"{count} of {len(best(fashion))} combinations of metric and fill put them first" in told


def best(study):
    """The best method by every metric under every fill, over all seeds."""
    rows, found = ranks.rows_of(study["perturbation"]), []
    for fill, metric in {(row["fill"], row["metric"]) for row in rows}:
        own = [row for row in rows if (row["fill"], row["metric"]) == (fill, metric)]
        way = 1 if study["higher_is_better"][metric] else -1
        found.append(max(ranks.ranked(study), key=lambda m, o=own, w=way: w * sum(r[m] for r in o)))
    return found


def test_other_data_is_refused(run, tmp_path):
    folder, _ = run
    other = array_file(tmp_path, seed=5)
    with refused("is not the data of"):
        ranks.main(["perturb", str(folder), "--data", other, "--device", "cpu"])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("missing", "has no 'seed1-drop': run perturb to its end"),
        ("fewer", "'seed1-drop' has other samples or another protocol"),
        ("swapped", "'seed1-drop' is of another model"),
    ],
)
def test_perturbed_runs_that_do_not_fit_are_refused(run, tmp_path, harm, said):
    folder, data = run
    for name in ("ranks", "ranks_perturbed"):
        shutil.copytree(folder.with_name(name), tmp_path / name)
    place = tmp_path / "ranks_perturbed" / "seed1-drop"
    shutil.rmtree(place)
    if harm == "swapped":
        shutil.copytree(place.with_name("seed0-drop"), place)
    elif harm == "fewer":
        only = ("--samples", "4", "--fills", "drop", "--seeds", "1", "--device", "cpu")
        ranks.main(["perturb", str(tmp_path / "ranks"), "--data", data, *only])
    with refused(said):
        ranks.main(["summarise", str(tmp_path / "ranks"), "--out", str(tmp_path)])


def test_patches_alone_can_be_dropped():
    images, texts = SimpleNamespace(modality="image"), SimpleNamespace()
    assert "drop" not in ranks._fills(images, "pixels")
    assert "drop" in ranks._fills(images, "patches") and "drop" in ranks._fills(texts, None)


def test_correlations_are_of_ranks_seed_by_seed():
    racu = np.array([[0.1, 0.2, 0.3, 0.0]] * 3)
    same, turned = ranks.agreement(racu**3, racu), ranks.agreement(-racu, racu)
    assert same["spearman"] == same["kendall"] == 1.0
    assert np.isnan(same["kendall_low"])  # no spread says nothing of the next seed
    assert turned["spearman"] == turned["kendall_of_means"] == -1.0 and turned["n"] == 3
    mixed = ranks.agreement(np.stack([racu[0], racu[0], -racu[0]]), racu)
    assert mixed["spearman"] == pytest.approx(1 / 3)
    assert mixed["spearman_low"] == -1.0 and mixed["spearman_high"] == 1.0
    assert ranks.within(np.stack([racu[0], -racu[0]]))["kendall_within"] == -1.0
    lost = np.stack([racu[0], racu[0], [np.nan, 0.2, 0.3, 0.0], -racu[0]])
    known = ranks.agreement(np.stack([racu[0]] * 4), lost)
    assert known["n"] == 3 and known["spearman"] == pytest.approx(1 / 3)
    assert ranks.within(lost)["spearman_within"] == pytest.approx(-1 / 3)
    flat = ranks.agreement(np.zeros((3, 4)), racu)
    assert flat["n"] == 0 and np.isnan(flat["spearman"])


def test_a_verdict_counts_intervals():
    rows = [
        {"fill": "mean", "metric": "saco", "spearman": 0.9, "ends": (0.7, 1.0)},
        {"fill": "drop", "metric": "saco", "spearman": 0.1, "ends": (-0.3, 0.5)},
        {"fill": "mean", "metric": "aopc", "spearman": -0.6, "ends": (-0.9, -0.3)},
    ]
    for row in rows:
        row["spearman_low"], row["spearman_high"] = row.pop("ends")
        row["n"] = 5
        row |= {f"kendall_{end}": row[f"spearman_{end}"] for end in ("low", "high")}
    study = {"seeds": [0] * 5, "methods": ["a"] * 6}
    study["correlations"] = {"columns": list(rows[0]), "rows": [[*row.values()] for row in rows]}
    said = ranks.verdict(study)
    assert (
        "by perturbation is significantly like RACU's in 1 of 3 combinations of metric and fill"
        in said
    )
    assert "the other way round in 1, and neither in 1 (Spearman" in said
    assert "highest mean correlation is 0.90 (SaCo, mean)" in said
    assert "lowest -0.60 (AOPC, mean)" in said


def test_methods_whose_masks_may_give_the_class_away_are_left_out_afterwards(tmp_path):
    names = ["a", "b", "c", "leaks", "random"]
    racu = {"columns": ["seed", *names], "rows": [[s, 0.3, 0.2, 0.1, -0.9, 0.0] for s in (0, 1)]}
    scores = [["mean", "log_odds", s, -4.0, -3.0, -2.0, -9.0, -1.0] for s in (0, 1)]
    study = {
        "methods": names[:-1],
        "rising": ["leaks"],
        "racu": racu,
        "perturbation": {"columns": ["fill", "metric", "seed", *names], "rows": scores},
        "correlations": {"columns": ["fill", "metric"], "rows": [["mean", "log_odds"]]},
        "higher_is_better": {"log_odds": False},
    }
    said = ranks.without_rising(study)
    assert said.startswith("Masks of leaks may give the class away") and "1.00 to 1.00" in said
    assert "the other 4 (a, b, c and random)" in said
    assert ranks.without_rising({**study, "rising": []}) == ""
    assert "Without them 3 are left, too few to" in ranks.without_rising(
        {**study, "rising": names[:2]}
    )
    assert ranks.of_masks(study, tmp_path / "mine.json") == ""
    tried = {"level": 70, "metric": "accuracy", "seeds": [0, 1], "guess": 0.5}
    tried["scores"] = {"random": [0.5, 0.52], "leaks": [0.9, 0.92]}
    (tmp_path / "leakage_mine.json").write_text(json.dumps(tried))
    assert "score 0.510 (random) and 0.910 (leaks) on the" in ranks.of_masks(
        {**study, "rising": ["leaks", "b"]}, tmp_path / "mine.json"
    )


def test_the_studies_are_what_the_script_expects():
    for name in ("ranks_cifar10", "ranks_sst", "ranks_fashion", "ranks_bert"):
        study = yaml.safe_load((ROOT / "studies" / f"{name}.yaml").read_text())
        assert study["kind"] == "retrain" and study["procedures"] == ["roar"]
        assert len(study["methods"]) == 6 and study["seeds"] == 5
        assert study["levels"] == [10, 30, 50, 70, 90]


def test_fine_tuned_texts(tmp_path, monkeypatch):
    recipe = Recipe(epochs=1, batch_size=16, learning_rate=1e-3, weight_decay=0.01)
    monkeypatch.setattr(finetune, "finetune_recipe", lambda _: recipe)
    encoder = save_encoder(tmp_path / "encoder", "Bert")
    data = csv(tmp_path / "texts.csv", rows())
    study = yaml.safe_load((ROOT / "studies" / "ranks_sst.yaml").read_text())
    measures = study["methods"]
    options = {"procedures": "roar", "seeds": 2, "levels": [50], "device": "cpu"}
    fs.roar(str(data), encoder, measures=measures, out=tmp_path / "ranks", **options)
    asked = ("perturb", str(tmp_path / "ranks"), "--data", str(data), "--samples", "4")
    ranks.main([*asked, "--fills", "mask", "--device", "cpu"])
    ranks.main(["summarise", str(tmp_path / "ranks"), "--out", str(tmp_path)])
    study = json.loads((tmp_path / "ranks.json").read_text())
    assert study["methods"] == measures and study["samples"] == 4
