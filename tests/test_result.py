"""Results: what the tables say, against which random attribution, and that they survive a disk."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import faithscope as fs
from conftest import randn, toy
from faithscope.runs.tables import SCHEMAS
from faithscope.verdicts.statistics import holm, paired_p_values
from families import refused
from made_up import METRICS, made_up
from roar_runs import make_roar


def normal(mean, *shape, seed=0):
    return np.random.default_rng(seed).normal(mean, 0.1, size=shape)


@pytest.fixture(scope="module")
def verdicts():
    """Four methods against three draws of random on 30 samples."""
    scores = {
        "good": {"saco": normal(0.5, 30, seed=1), "auc": normal(0.2, 30, seed=2)},
        "bad": {"saco": normal(-0.5, 30, seed=3), "auc": normal(0.8, 30, seed=4)},
        "mixed": {"saco": normal(0.5, 30, seed=5), "auc": normal(0.8, 30, seed=6)},
        "dull": {"saco": normal(0.0, 30, seed=7), "auc": normal(0.5, 30, seed=8)},
        "random": {"saco": normal(0.0, 30, 3, seed=9), "auc": normal(0.5, 30, 3, seed=10)},
    }
    return made_up(scores), scores


def by_cell(result):
    return {(row["method"], row["metric"]): row for row in result.summary().to_pylist()}


# --- What the summary says ---


def test_a_verdict_knows_which_way_is_better(verdicts):
    said = {cell: row["verdict"] for cell, row in by_cell(verdicts[0]).items()}
    assert said == {
        **{("good", "saco"): "better", ("good", "auc"): "better"},
        **{("bad", "saco"): "worse", ("bad", "auc"): "worse"},
        **{("mixed", "saco"): "better", ("mixed", "auc"): "worse"},
        **{("dull", "saco"): "same", ("dull", "auc"): "same"},
        **{("random", "saco"): "", ("random", "auc"): ""},
    }


def test_random_draws_are_averaged_before_the_paired_test(verdicts):
    result, scores = verdicts
    cells = [(method, metric) for method in ("good", "bad", "mixed", "dull") for metric in METRICS]
    differences = [scores[m][k] - scores["random"][k].mean(axis=1) for m, k in cells]
    expected = holm(paired_p_values(np.stack(differences, axis=1)))
    rows = by_cell(result)
    np.testing.assert_allclose([rows[cell]["p_vs_random"] for cell in cells], expected)
    np.testing.assert_allclose(
        [rows[cell]["difference"] for cell in cells], np.mean(differences, axis=1)
    )


def test_the_mean_and_n_count_samples_not_draws(verdicts):
    result, scores = verdicts
    row = by_cell(result)["random", "saco"]
    assert row["n"] == 30
    assert row["mean"] == pytest.approx(scores["random"]["saco"].mean())
    assert row["ci_low"] < row["mean"] < row["ci_high"]


def test_samples_without_a_score_are_left_out_of_everything(verdicts):
    _, scores = verdicts
    holes = {m: {k: v.copy() for k, v in by.items()} for m, by in scores.items()}
    holes["good"]["saco"][3:6] = np.nan
    row = by_cell(made_up(holes))["good", "saco"]
    known = np.delete(np.arange(30), [3, 4, 5])
    assert row["n"] == 27
    assert row["mean"] == pytest.approx(scores["good"]["saco"][known].mean())
    random = scores["random"]["saco"].mean(axis=1)
    assert row["difference"] == pytest.approx((scores["good"]["saco"] - random)[known].mean())


def test_a_sample_is_flagged_once_however_many_of_its_draws_are(verdicts):
    _, scores = verdicts
    marked = {("random", "saco", 2): "degenerate", ("good", "auc", 0): "few_units"}
    marked[("good", "auc", 1)] = "degenerate"
    rows = by_cell(made_up(scores, flags=marked))
    assert rows["random", "saco"]["flagged"] == 1
    assert rows["good", "auc"]["flagged"] == 2
    assert rows["good", "saco"]["flagged"] == 0


def test_the_table_marks_better_and_worse(verdicts):
    lines = verdicts[0].table().splitlines()
    assert lines[0] == "| method | saco ↑ | auc ↓ |"
    marks = {line.split(" | ")[0][2:]: (line.count("*"), line.count("†")) for line in lines[2:]}
    assert marks == dict(good=(2, 0), bad=(0, 2), mixed=(1, 1), dull=(0, 0), random=(0, 0))


def test_the_verdicts_are_sentences(verdicts):
    assert verdicts[0].verdicts() == [
        "good is better than random on every metric.",
        "bad is worse than random on every metric.",
        "mixed is better than random on saco; is worse than random on auc.",
        "dull shows no significant difference from random on any metric.",
    ]
    assert verdicts[0].headline() == (
        "4 methods on 30 images: 1 better than random on every metric (good), 1 better on some "
        "metrics and worse on others (mixed), 1 worse on every metric (bad), 1 with no significant "
        "difference on any metric (dull)."
    )


def test_without_random_there_is_no_verdict(verdicts):
    _, scores = verdicts
    result = made_up({"good": scores["good"]}, matched=None)
    assert {row["verdict"] for row in result.summary().to_pylist()} == {""}
    assert result.verdicts() == []
    assert "*" not in result.table()


def test_one_sample_has_a_mean_but_no_interval_and_no_verdict():
    one = np.ones(1)
    result = made_up({m: {"saco": one, "auc": one} for m in ("good", "random")})
    assert "| good | 1.000 | 1.000 |" in result.table()
    assert result.verdicts() == []


# --- Matched random ---


@pytest.mark.parametrize(
    ("units", "for_pixels"), [("pixels", "random"), ("patches", "random_patch")]
)
def test_patch_maps_are_compared_with_random_patches_and_pixel_maps_with_random_pixels(
    vit, units, for_pixels
):
    maps = {"coarse": randn(4, 4, 4), "fine": randn(4, 16, 16)}
    result = fs.evaluate(vit, randn(4, 3, 16, 16), maps=maps, units=units, k=5)
    matched = {row["method"]: row["matched_random"] for row in result.summary().to_pylist()}
    assert matched == {
        **{"coarse": "random_patch", "fine": for_pixels},
        **{"random": "", "random_patch": ""},
    }


def test_a_model_without_patches_has_only_random_pixels():
    result = fs.evaluate(toy(), randn(2, 3, 10, 10), maps={"mine": randn(2, 10, 10)})
    assert result.methods == ["mine", "random"]


def test_every_draw_is_in_the_table(vit):
    result = fs.evaluate(vit, randn(3, 3, 16, 16), maps={"mine": randn(3, 4, 4)}, random_draws=4)
    rows = result.scores.to_pylist()
    draws = {m: {r["draw"] for r in rows if r["method"] == m} for m in result.methods}
    assert draws == {"mine": {0}, "random": {0, 1, 2, 3}, "random_patch": {0, 1, 2, 3}}
    by_draw = [
        r["value"]
        for r in rows
        if (r["method"], r["metric"], r["sample"]) == ("random", "aopc", "1")
    ]
    assert len(set(by_draw)) == 4
    assert result.values("random", "aopc")[1] == pytest.approx(np.mean(by_draw))


# --- Saving and loading ---


@pytest.fixture(scope="module")
def result():
    maps = randn(4, 10, 10)
    maps[1], maps[2, 0, 0] = 1.0, torch.nan
    labels = torch.tensor([0, 1, 2, 3])
    return fs.evaluate(toy(), randn(4, 3, 10, 10), maps={"mine": maps}, labels=labels, k="auto")


@pytest.fixture
def saved(result, tmp_path):
    return result.save(tmp_path / "run")


def test_a_result_survives_the_disk_bit_for_bit(result, saved):
    loaded = fs.load_result(saved)
    assert result.tables.keys() == loaded.tables.keys()
    for name, before in result.tables.items():
        after, schema = loaded.tables[name], SCHEMAS[name]
        assert before.schema.equals(schema) and after.schema.equals(schema)
        for field in schema:
            left, right = (table[field.name].to_pylist() for table in (before, after))
            if pa.types.is_floating(field.type):
                left, right = (np.array(values).tobytes() for values in (left, right))
            assert left == right
    assert loaded.manifest.model_copy(update={"files": {}}) == result.manifest
    assert loaded.manifest.files.keys() == {f"{name}.parquet" for name in result.tables}
    assert loaded.table() == result.table()
    assert repr(loaded.summary().to_pylist()) == repr(result.summary().to_pylist())


def test_saving_again_replaces_the_run_and_leaves_nothing_else(result, saved):
    result.save(saved)
    names = {"manifest.json", *(f"{name}.parquet" for name in result.tables)}
    assert {file.name for file in saved.iterdir()} == names


def test_a_run_that_cannot_be_written_says_so(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(fs.FaithscopeError, match="another folder"):
        result.save(tmp_path / "file" / "run")


FOREIGN = pa.BufferOutputStream()
pq.write_table(pa.table({"sample": ["a"], "value": [1.0]}), FOREIGN)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scores.parquet", None),
        ("scores.parquet", lambda whole: whole[: len(whole) // 2]),
        ("scores.parquet", lambda _: FOREIGN.getvalue().to_pybytes()),
        ("manifest.json", lambda _: b'{"format": 1, "methods"'),
        ("manifest.json", lambda _: b"[1, 2, 3]"),
        ("manifest.json", lambda _: b'{"format": 2}'),
        ("manifest.json", lambda _: b'{"format": 3}'),
        ("manifest.json", lambda _: b"\xff\xfe\x00"),
        ("manifest.json", lambda whole: whole.replace(b'"seconds": ', b'"seconds": 1')),
    ],
    ids="missing cut foreign half list hollow future binary touched".split(),
)
def test_a_damaged_or_foreign_folder_is_refused_in_a_sentence(saved, name, change):
    file = saved / name
    file.unlink() if change is None else file.write_bytes(change(file.read_bytes()))
    with refused("run"):
        fs.load_result(saved)
    with refused("run"):
        fs.load_result(saved / "nowhere")


# --- The manifest ---


def test_the_manifest_holds_the_whole_protocol(result):
    assert result.manifest.protocol == {
        **{"target": "predicted", "output": "softmax", "k": "auto"},
        **{"fill": "mean", "units": "pixels"},
        **{"upsample": "bilinear", "ties": "ascending", "group": "sum", "seed": 0},
        "precision": "fp64",
        "explain_precision": "auto",
        "random_draws": 3,
        "tolerance": None,
    }


def test_fingerprints_tell_models_and_data_apart():
    def prints(seed, shift):
        images, maps = randn(2, 3, 10, 10), {"mine": randn(2, 10, 10)}
        images[0, 0, 0, 0] += shift
        manifest = fs.evaluate(toy(seed=seed), images, maps=maps, random_draws=0).manifest
        return manifest.model.fingerprint, manifest.data.fingerprint

    base, other_model, other_data = prints(0, 0.0), prints(1, 0.0), prints(0, 0.1)
    assert prints(0, 0.0) == base
    assert other_model[0] != base[0] and other_model[1] == base[1]
    assert other_data[0] == base[0] and other_data[1] != base[1]


def test_the_responses_hold_every_answer_that_the_scores_come_from(result):
    rows = [r for r in result.responses.to_pylist() if (r["sample"], r["method"]) == ("0", "mine")]
    p = {(r["start"], r["stop"]): np.exp(r["log_p"]) for r in rows}
    levels = [p[0, 0]] + [p[0, stop] for stop in range(10, 101, 10)]
    assert result.values("mine", "aopc")[0] == pytest.approx(p[0, 0] - np.mean(levels), abs=1e-12)


# --- As a frame ---


def test_tables_become_frames_with_names_as_text(verdicts):
    pytest.importorskip("pandas")
    result, scores = verdicts
    frame = result.to_pandas()
    assert len(frame) == result.scores.num_rows
    assert not any(str(kind) == "category" for kind in frame.dtypes)
    means = frame[frame.method == "good"].groupby("metric")["value"].mean()
    assert means["saco"] == pytest.approx(scores["good"]["saco"].mean())
    summary = result.to_pandas("summary")
    assert summary.to_dict("records")[0]["mean"] == result.rows[0]["mean"]
    for name in ("samples", "comparisons", "correlations"):
        assert len(result.to_pandas(name)) > 0
    with refused("Unknown table of this result 'sumary': did you mean 'summary'?"):
        result.to_pandas("sumary")
    with refused("Unknown table of this result 'racu'"):
        result.to_pandas("racu")


def test_frames_of_trainings():
    pytest.importorskip("pandas")
    result = make_roar(seeds=3)
    assert list(result.to_pandas("racu").columns)[:3] == ["measure", "procedure", "mean"]
    assert len(result.to_pandas("curves")) == result.curves().num_rows


def test_without_pandas_it_is_said_what_to_do(verdicts, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused("to_pandas needs pandas: pip install pandas"):
        verdicts[0].to_pandas()
