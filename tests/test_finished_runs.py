"""Folders of finished runs: what is loaded, in which order, and what their settings move."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import faithscope as fs
from conftest import randn, tiny_vit
from faithscope.studies import Runs
from faithscope.verdicts.sensitivity import ks_of, sensitivity_rows
from families import refused

MAPS = {"one": randn(6, 16, 16, seed=1), "two": randn(6, 16, 16, seed=2)}


def run(model: fs.Model, *, metrics=("saco", "aopc"), seed_of_images: int = 3, **options):
    images = randn(6, 3, 16, 16, seed=seed_of_images)
    return fs.evaluate(model, images, (), metrics, maps=MAPS, random_draws=0, **options)


@pytest.fixture(scope="module")
def mean(vit: fs.Model) -> fs.Result:
    return run(vit)


@pytest.fixture(scope="module")
def blur(vit: fs.Model) -> fs.Result:
    return run(vit, fill="blur")


def kinds(rows) -> list[tuple[str, ...]]:
    return [tuple(row[key] for key in ("axis", "first", "second", "metric")) for row in rows]


def test_a_run_is_loaded_by_the_name_of_its_folder(mean, tmp_path, monkeypatch):
    mean.save(tmp_path / "first")
    runs = fs.load_results(tmp_path / "first")
    assert list(runs.results) == ["first"] and runs.unfinished == ()
    assert runs.results["first"].scores.equals(mean.scores)
    monkeypatch.chdir(tmp_path / "first")
    assert list(fs.load_results(".").results) == ["first"]


def test_a_study_s_runs_come_in_the_order_they_were_made(mean, tmp_path):
    moments = {"b": "2030-01-01T00:00:02", "c": "2030-01-01T00:00:01", "a": "2030-01-01T00:00:02"}
    for name, created in moments.items():
        manifest = mean.manifest.model_copy(update={"created": created})
        replace(mean, manifest=manifest).save(tmp_path / name)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "plan.json").write_text("{}")
    (tmp_path / "a" / "plan.json").write_text("{}")
    (tmp_path / "figures").mkdir()
    (tmp_path / "report.html").write_text("")
    runs = fs.load_results(tmp_path)
    assert list(runs.results) == ["c", "b", "a"]  # b was written before a
    assert runs.unfinished == ("begun",)


def test_a_folder_without_a_finished_run_is_refused(tmp_path: Path):
    with refused("cannot be read", "check the path"):
        fs.load_results(tmp_path / "none")
    with refused("holds no finished run", "faithscope run"):
        fs.load_results(tmp_path)
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "plan.json").write_text("{}")
    with refused("only unfinished ones (cell)"):
        fs.load_results(tmp_path)
    with refused("is not finished", "resume"):
        fs.load_results(tmp_path / "cell")


def test_a_damaged_run_of_a_study_is_named(mean, tmp_path):
    mean.save(tmp_path / "good")
    shutil.copytree(tmp_path / "good", tmp_path / "bad")
    (tmp_path / "bad" / "scores.parquet").write_text("")
    with refused("bad", "is not a whole faithscope run"):
        fs.load_results(tmp_path)


def test_one_choice_is_compared_and_the_first_run_comes_first(mean, blur):
    rows = sensitivity_rows({"x": blur, "y": mean})
    assert kinds(rows) == [("fill", "blur", "mean", "saco"), ("fill", "blur", "mean", "aopc")]
    assert {row["where"] for row in rows} == {""}
    change = np.mean([mean.values(m, "aopc") - blur.values(m, "aopc") for m in MAPS])
    assert rows[1]["signed"] == pytest.approx(change)


def test_runs_that_differ_in_two_choices_or_in_their_images_stay_apart(vit, mean, blur):
    assert not sensitivity_rows({"a": mean, "b": run(vit, fill="blur", ties="descending")})
    assert not sensitivity_rows({"a": mean, "b": run(vit, fill="blur", seed_of_images=4)})
    assert not sensitivity_rows({"a": mean, "b": mean})


def test_methods_are_matched_by_name(mean, blur, vit):
    turned = dict(reversed(MAPS.items()))
    images = randn(6, 3, 16, 16, seed=3)
    metrics = ["saco", "aopc"]
    other = fs.evaluate(vit, images, (), metrics, maps=turned, random_draws=0, fill="blur")
    assert other.methods == ["two", "one"]
    assert sensitivity_rows({"a": mean, "b": other}) == sensitivity_rows({"a": mean, "b": blur})


def test_a_k_is_compared_within_a_run_and_across_runs(vit, mean):
    within = run(vit, metrics=["saco(k=4)", "saco(k=8)", "saco", "saco(k=4, weight=ratio)"])
    assert ks_of(within) == [
        {"4": "saco(k=4)", "8": "saco(k=8)", "10": "saco"},
        {"4": "saco(k=4, weight=ratio)"},
    ]
    rows = sensitivity_rows({"run": within})
    assert kinds(rows) == [("k", "4", "8", "saco"), ("k", "4", "10", "saco")]
    change = [within.values(m, "saco(k=8)") - within.values(m, "saco(k=4)") for m in MAPS]
    assert rows[0]["signed"] == pytest.approx(np.mean(change))
    across = sensitivity_rows({"a": mean, "b": run(vit, k=4)})
    assert kinds(across) == [("k", "10", "4", "saco")]  # aopc has no K


def test_models_of_the_same_name_are_told_apart(mean, blur):
    def renamed(result: fs.Result, **changes: str) -> fs.Result:
        model = result.manifest.model.model_copy(update=changes)
        return replace(result, manifest=result.manifest.model_copy(update={"model": model}))

    other = {"fingerprint": "f" * 32}
    runs = {"a": mean, "b": blur, "c": renamed(mean, **other), "d": renamed(blur, **other)}
    places = {row["where"] for row in sensitivity_rows(runs)}
    assert places == {f"tiny ({mean.manifest.model.fingerprint[:8]})", "tiny (ffffffff)"}
    named = {**other, "name": "big"}
    runs |= {"c": renamed(mean, **named), "d": renamed(blur, **named)}
    assert {row["where"] for row in sensitivity_rows(runs)} == {"tiny", "big"}


def test_both_tables_agree_on_how_far_metrics_agree() -> None:
    """AOPC and comprehensiveness point different ways; better is better in either table."""
    run = fs.evaluate(
        tiny_vit(), randn(12, 3, 16, 16), ["rollout", "gradient"], ["aopc", "comprehensiveness"]
    )
    (pair,) = run.correlations().to_pylist()
    moved = [row for row in sensitivity_rows({"run": run}) if row["axis"] == "removal order"]
    assert moved[0]["agreement"] == pytest.approx(pair["correlation"])


def test_one_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    """Of every file of a run, the manifest included."""
    good = fs.evaluate(tiny_vit(), randn(4, 3, 16, 16), "rollout", "saco", random_draws=1)
    root, draw = good.save(tmp_path / "run"), np.random.default_rng(0)
    for file in sorted(root.iterdir()):
        content = file.read_bytes()
        for place in draw.integers(0, len(content), 20):
            harmed = bytearray(content)
            harmed[place] ^= 1 << int(draw.integers(8))
            file.write_bytes(harmed)
            with refused("is not a whole faithscope run"):
                fs.load_result(root)
        file.write_bytes(content)
    assert fs.load_result(root).methods == good.methods


def test_a_name_too_long_for_a_folder_is_no_folder() -> None:
    with refused("is too long"):
        fs.load_results("x" * 300)


def test_names_that_tell_runs_apart_lose_none() -> None:
    one = fs.evaluate(tiny_vit(), randn(2, 3, 16, 16), "rollout", "saco", random_draws=0)
    other = fs.evaluate(
        tiny_vit(), randn(2, 3, 16, 16), "rollout", "saco", random_draws=0, fill="blur"
    )
    assert list(Runs({"a": one, "b": other}).labelled) == ["fill=mean", "fill=blur"]
    assert list(Runs({"fill=blur": one, "x": one, "y": other}).labelled) == ["fill=blur", "x", "y"]


def test_other_images_of_the_same_names_are_not_compared() -> None:
    pictures = randn(24, 3, 16, 16)
    runs = {
        fill: fs.evaluate(tiny_vit(), part, "rollout", "saco", random_draws=0, fill=fill)
        for fill, part in zip(("mean", "blur"), pictures.split(12), strict=True)
    }
    assert not [row for row in sensitivity_rows(runs) if row["axis"] == "fill"]
    with refused("are not the same"):
        fs.compare(runs["mean"], runs["blur"])
