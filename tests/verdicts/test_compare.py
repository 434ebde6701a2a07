"""Two runs compared: pairs by name, numbers as scipy has them, refusals, what fails a job."""

import csv
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

import commands
import faithscope as fs
from conftest import randn, tiny_vit
from faithscope.cli import console
from faithscope.runs.tables import table_of_rows
from faithscope.verdicts.conditions import Condition, failures, parse_condition
from faithscope.verdicts.statistics import holm
from made_up import METRICS, made_up
from roar_runs import make_roar

N = 20
Pair, Folders = tuple[fs.Result, fs.Result], tuple[Path, Path]


def run_of(scores: Any, names: list[str] | None = None, **options: Any) -> fs.Result:
    """A run from scores {method: {metric: [samples]}} of the samples named."""
    count = len(next(iter(next(iter(scores.values())).values())))
    return made_up(scores, names or [f"{i}.png" for i in range(count)], matched=None, **options)


def normal(mean: float, seed: int, count: int = N) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 0.1, count)


def scores_of(shift: dict[tuple[str, str], float] | None = None, seed: int = 0) -> Any:
    """Three methods and random; the scores moved by noise around `shift`, if one is given."""
    names = ("up", "down", "still", "random")
    base = {
        m: {k: normal(0.5, 10 * i + j) for j, k in enumerate(METRICS)} for i, m in enumerate(names)
    }
    if shift is None:
        return base
    return {
        m: {
            k: v + normal(shift.get((m, k), 0.0), 100 + seed + 10 * i + j)
            for j, (k, v) in enumerate(by.items())
        }
        for i, (m, by) in enumerate(base.items())
    }


SHIFT = {("up", "saco"): 0.3, ("up", "auc"): -0.3, ("down", "saco"): -0.3, ("random", "auc"): 0.3}


@pytest.fixture(scope="module")
def pair() -> tuple[fs.Result, fs.Result]:
    """A run, and one with another fill in which two methods and random moved."""
    return run_of(scores_of()), run_of(scores_of(SHIFT), protocol={"fill": "blur"})


@pytest.fixture(scope="module")
def found(pair: Pair) -> fs.Comparison:
    return fs.compare(*pair)


def cells(comparison: fs.Comparison) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["method"], row["metric"]): row for row in comparison.rows}


def verdicts(comparison: fs.Comparison) -> dict[tuple[str, str], str]:
    return {cell: row["verdict"] for cell, row in cells(comparison).items()}


# Numbers


def test_verdicts_know_which_way_is_better(found):
    assert verdicts(found) == {
        **{("up", "saco"): "better", ("up", "auc"): "better"},
        **{("down", "saco"): "worse", ("down", "auc"): "same"},
        **{("still", "saco"): "same", ("still", "auc"): "same"},
        **{("random", "saco"): "same", ("random", "auc"): "worse"},
    }


def test_numbers_are_those_of_scipy(found):
    before, after = scores_of(), scores_of(SHIFT)
    p_values = []
    for (method, metric), row in cells(found).items():
        one, other = before[method][metric], after[method][metric]
        assert row["first"] == pytest.approx(one.mean())
        assert row["second"] == pytest.approx(other.mean())
        assert row["difference"] == pytest.approx((other - one).mean())
        assert row["n"] == N
        assert row["d_z"] == pytest.approx((other - one).mean() / (other - one).std(ddof=1))
        interval = stats.bootstrap(
            (other - one,), np.mean, n_resamples=2000, rng=np.random.default_rng(0)
        ).confidence_interval
        assert (row["ci_low"], row["ci_high"]) == pytest.approx(interval)
        p_values.append(
            stats.permutation_test(
                (one, other),
                lambda x, y, axis: (y - x).mean(axis),
                permutation_type="samples",
                n_resamples=20_000,
                vectorized=True,
                rng=np.random.default_rng(2),
            ).pvalue
        )
    told = [row["p"] for row in found.rows]
    np.testing.assert_allclose(told, holm(np.array(p_values)), atol=0.03)
    assert min(told) < 0.01 and max(told) == 1


def test_a_small_exact_case():
    """Six samples, one row: all differences have one sign, so p = 2/2⁶."""
    one = run_of({"m": {"saco": np.zeros(6)}})
    other = run_of({"m": {"saco": np.array([1.0, 2, 3, 4, 5, 6])}}, protocol={"k": 5})
    (row,) = fs.compare(one, other).rows
    assert row["difference"] == 3.5
    assert row["p"] == pytest.approx(2 / 64)
    assert row["p"] == pytest.approx(stats.wilcoxon([1, 2, 3, 4, 5, 6]).pvalue)
    assert row["verdict"] == "better"


def test_the_other_way_round_is_the_mirror_image(pair):
    there, back = (cells(fs.compare(*runs)) for runs in (pair, pair[::-1]))
    mirrored = {"better": "worse", "worse": "better", "same": "same", "": ""}
    for cell, row in there.items():
        other = back[cell]
        assert other["difference"] == -row["difference"]
        assert (other["first"], other["second"]) == (row["second"], row["first"])
        assert other["p"] == row["p"]
        assert other["d_z"] == pytest.approx(-row["d_z"])
        assert other["ci_low"] == pytest.approx(-row["ci_high"], abs=5e-3)
        assert other["verdict"] == mirrored[row["verdict"]]


@pytest.mark.parametrize("count", [1, 3, N])
def test_a_run_is_the_same_as_itself(count):
    run = run_of({m: {k: v[:count] for k, v in by.items()} for m, by in scores_of().items()})
    same = fs.compare(run, run)
    for row in same.rows:
        assert row["difference"] == 0
        assert row["verdict"] == "same"
        assert row["p"] == 1 or count == 1
    assert same.differs == ()
    assert same.headline().startswith("Nothing changed on ")
    assert failures(same, [parse_condition("different")]) == []


def test_too_few_samples_give_no_verdict():
    runs = [
        {m: {k: v[:5] for k, v in by.items()} for m, by in s.items()}
        for s in (scores_of(), scores_of(SHIFT))
    ]
    few = fs.compare(run_of(runs[0]), run_of(runs[1]))
    assert set(verdicts(few).values()) == {""}
    assert few.headline() == ("5 shared images are too few for a verdict: it needs at least 9.")
    assert few.sentences() == []
    runs[1]["still"] = runs[0]["still"]  # what did not change at all needs no test
    assert fs.compare(run_of(runs[0]), run_of(runs[1])).headline() == few.headline()


def test_equal_means_are_not_equal_scores():
    swapped = np.array([1.0, -1.0] * 10)
    moved = fs.compare(
        run_of({"m": {"saco": np.zeros(N)}}), run_of({"m": {"saco": swapped}}, protocol={"k": 5})
    )
    assert moved.rows[0]["difference"] == 0
    assert moved.rows[0]["verdict"] == "same"
    assert "Nothing changed" not in moved.headline()


def test_the_table_is_the_rows(found):
    table = found.summary()
    assert table.to_pylist() == found.rows
    numbers = "first second difference ci_low ci_high p d_z n"
    assert table.column_names == f"method procedure metric random {numbers} verdict".split()


# Pairs


def test_samples_are_paired_by_name(pair, found):
    """Another order changes nothing; what one run has alone is left out and counted."""
    order = np.random.default_rng(0).permutation(N)
    shuffled = run_of(
        {m: {k: v[order] for k, v in by.items()} for m, by in scores_of(SHIFT).items()},
        [f"{i}.png" for i in order],
        protocol={"fill": "blur"},
    )
    again = cells(fs.compare(pair[0], shuffled))
    for cell, row in cells(found).items():
        assert again[cell] == pytest.approx(row)

    names = [f"{i}.png" for i in range(5, N)] + ["new.png"]
    subset = run_of(
        {
            m: {k: np.append(v[5:], 9.0) for k, v in by.items()}
            for m, by in scores_of(SHIFT).items()
        },
        names,
        protocol={"fill": "blur"},
    )
    part = fs.compare(pair[0], subset)
    assert (len(part.replicates), part.only_first, part.only_second) == (N - 5, 5, 1)
    row = cells(part)["up", "saco"]
    expected = (scores_of(SHIFT)["up"]["saco"] - scores_of()["up"]["saco"])[5:].mean()
    assert row["difference"] == pytest.approx(expected)
    assert row["n"] == N - 5


def test_a_sample_without_one_of_its_scores_is_no_pair(pair):
    holes = scores_of(SHIFT)
    holes["up"]["saco"][:3] = np.nan
    holes["down"]["saco"][:] = np.nan
    rows = cells(fs.compare(pair[0], run_of(holes, protocol={"fill": "blur"})))
    assert rows["up", "saco"]["n"] == N - 3
    assert rows["up", "saco"]["first"] == pytest.approx(scores_of()["up"]["saco"][3:].mean())
    assert rows["down", "saco"]["n"] == 0
    assert math.isnan(rows["down", "saco"]["difference"])
    assert rows["down", "saco"]["verdict"] == ""


def test_what_one_run_has_alone_is_left_out_and_named(pair):
    fewer = {m: {"saco": by["saco"]} for m, by in scores_of(SHIFT).items() if m != "up"}
    part = fs.compare(pair[0], run_of({**fewer, "new": fewer["still"]}))
    assert part.methods == ("down", "still", "random")
    assert part.metrics == ("saco",)
    assert part.lone_methods == ("up", "new")
    assert part.lone_metrics == ("auc",)


def test_some_methods_and_metrics(pair, found):
    part = fs.compare(*pair, methods=["still", " up "], metrics="saco")
    assert [(row["method"], row["metric"]) for row in part.rows] == [
        ("still", "saco"),
        ("up", "saco"),
    ]
    assert cells(part)["still", "saco"]["p"] <= cells(found)["still", "saco"]["p"]
    with pytest.raises(fs.FaithscopeError, match="did you mean 'saco'"):
        fs.compare(*pair, metrics=["sacco"])


def test_folders_are_as_good_as_results(pair, found, tmp_path):
    folders = [run.save(tmp_path / name) for run, name in zip(pair, "ab", strict=True)]
    assert fs.compare(*folders).rows == found.rows
    assert fs.compare(str(folders[0]), pair[1]).rows == found.rows
    with pytest.raises(fs.FaithscopeError, match=r"holds 2 runs.*\(a, b\)|\(b, a\)"):
        fs.compare(tmp_path, pair[1])


# What differs, and what is refused


def changed(**options: Any) -> fs.Result:
    return run_of(scores_of(SHIFT), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"protocol": {"fill": "blur"}}, ["fill: mean → blur"]),
        ({"protocol": {"random_draws": 1}}, ["random_draws: 3 → 1"]),
        ({"model": {"name": "n", "fingerprint": "b" * 32}}, ["model: m → n"]),
        ({"model": {"fingerprint": "b" * 32}}, ["weights of m: aaaaaaaa → bbbbbbbb"]),
        (
            {"model": {"fingerprint": "b" * 32, "weights": "random"}},
            ["weights of m: aaaaaaaa → random bbbbbbbb"],
        ),
        ({"data": {"name": "e", "fingerprint": "g"}}, ["data: d → e"]),
        ({"data": {"name": "e"}}, []),  # the same images by another name
    ],
)
def test_one_thing_may_differ(pair, options, words):
    assert list(fs.compare(pair[0], changed(**options)).differs) == words


def test_another_version_is_told(pair):
    newer = changed(versions={"faithscope": "0.2.0"})
    assert fs.compare(pair[0], newer).differs == ("faithscope: 0.1.0 → 0.2.0",)


OTHER = {"name": "n", "fingerprint": "b" * 32}


@pytest.mark.parametrize(
    ("options", "allow", "advice"),
    [
        ({"protocol": {"fill": "blur", "k": 5}}, [], "--allow fill"),
        ({"protocol": {"fill": "blur", "k": 5, "seed": 1}}, [], "--allow fill,seed"),
        ({"protocol": {"seed": 1, "precision": "fp32"}}, [], "--allow precision"),
        ({"protocol": {"fill": "blur", "k": 5, "seed": 1}}, ["k"], "--allow seed"),
        ({"protocol": {"fill": "blur"}, "model": OTHER}, [], "--allow fill"),
        ({"model": OTHER, "data": {"name": "e", "fingerprint": "g"}}, [], "--allow data"),
    ],
)
def test_two_things_may_not(pair, options, allow, advice):
    with pytest.raises(fs.FaithscopeError, match="more than one thing") as told:
        fs.compare(pair[0], changed(**options), allow=allow)
    assert str(told.value).endswith(f"by name: {advice}.")
    for axis in options.get("protocol", {}).keys() - set(allow):
        assert f"{axis}: " in str(told.value)
    allowed = [*allow, *advice.removeprefix("--allow ").split(",")]
    assert fs.compare(pair[0], changed(**options), allow=allowed).rows  # the advice helps


def test_only_what_can_differ_can_be_allowed(pair):
    with pytest.raises(fs.FaithscopeError, match="did you mean 'fill'"):
        fs.compare(*pair, allow=["fil"])
    assert fs.compare(*pair, allow="fill").rows  # a single name will do


def test_nothing_in_common_is_refused(pair):
    strange = {"m": {"saco": np.zeros(N)}}
    with pytest.raises(fs.FaithscopeError, match=r"no image in common.*same images"):
        fs.compare(pair[0], run_of(scores_of(), [f"x{i}" for i in range(N)]))
    with pytest.raises(fs.FaithscopeError, match="no method in common"):
        fs.compare(pair[0], run_of(strange))
    with pytest.raises(fs.FaithscopeError, match="no metric in common"):
        other = {m: {"aopc": by["saco"]} for m, by in scores_of().items()}
        fs.compare(pair[0], run_of(other, metrics={"aopc": True}))


def test_a_metric_that_turned_round_is_refused(pair):
    turned = run_of(scores_of(), metrics={"saco": False, "auc": False})
    with pytest.raises(fs.FaithscopeError, match="do not agree whether a higher 'saco' is better"):
        fs.compare(pair[0], turned)
    assert fs.compare(pair[0], turned, metrics=["auc"]).rows


def test_other_pixels_under_the_same_names_are_told(pair):
    other = changed(model=OTHER, data={"fingerprint": "g"})
    (note,) = fs.compare(pair[0], other).notes
    assert "pixels may differ" in note
    assert fs.compare(pair[0], changed(model=OTHER)).notes == ()


@pytest.mark.parametrize("sign", [{"label": 3}, {"log_p0": -1.0}])
def test_other_images_under_the_same_names_are_refused(sign):
    """Their labels or the same model's answers give them away, as in two subsets of an array."""
    one, other = run_of(scores_of(), label=2), changed(**{"label": 2, **sign})
    with pytest.raises(fs.FaithscopeError, match="20 of 20 images have the same name"):
        fs.compare(one, other)
    (note,) = fs.compare(one, other, allow=["data"]).notes
    assert "not the same image" in note


def test_another_model_may_answer_otherwise():
    assert fs.compare(run_of(scores_of()), changed(model=OTHER, log_p0=-1.0)).notes == ()


# Words


def test_headline_and_sentences(found):
    assert found.headline() == (
        "3 methods on 20 shared images, the second run against the first: 1 better on every "
        "metric (up), 1 worse on some metrics (down), 1 with no significant difference on any "
        "metric (still)."
    )
    up, down, still, random = found.sentences()
    row = cells(found)["down", "saco"]
    assert up.startswith("up is better on saco (")
    assert down == (
        f"down is worse on saco ({row['first']:.3f} → {row['second']:.3f}); shows no significant "
        "difference on auc."
    )
    assert still == "still shows no significant difference on any metric."
    assert random.startswith("Random attribution changed, too, random on auc (")


def test_only_random_in_common():
    only = {"random": scores_of()["random"]}
    comparison = fs.compare(run_of(only), run_of(only, protocol={"fill": "blur"}))
    assert "Only random attribution" in comparison.headline()
    assert "cannot be judged" in failures(comparison, [parse_condition("worse")])[0]


# Conditions

NAMES = st.text("abcxyz_:(=)0 9/", min_size=1, max_size=12).map(str.strip).filter(bool)
BLANKS = st.text(" \t", max_size=2)


@given(
    method=st.one_of(st.just(""), NAMES.filter(lambda name: all(name.split("/")))),
    metric=NAMES.filter(lambda name: "/" not in name),
    sign=st.sampled_from("<>"),
    number=st.floats(allow_nan=False, allow_infinity=False),
    blanks=st.tuples(*[BLANKS] * 6),
)
def test_conditions_are_read_whatever_the_blanks(method, metric, sign, number, blanks):
    one, two, three, four, five, six = blanks
    name = f"{method}{two}/{three}{metric}" if method else metric
    read = parse_condition(f"{one}{name}{four}{sign}{five}{number!r}{six}")
    parts = [*(part.strip() for part in method.split("/") if method), metric]
    assert (read.name, read.sign, read.number) == ("/".join(parts), sign, number)


@given(st.text(max_size=20))
def test_any_text_is_a_condition_or_refused(text):
    try:
        condition = parse_condition(text)
    except fs.FaithscopeError as error:
        assert str(error)
    else:
        assert condition.sign in ("worse", "better", "different", "<", ">")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("wors", "did you mean 'worse'"),
        ("", "Unknown condition"),
        ("saco", "METRIC<NUMBER"),
        ("saco<", "needs a number after '<', got ''"),
        ("saco<=1", "needs a number"),
        ("saco<nan", "needs a number"),
        ("saco>inf", "needs a number"),
        ("saco<1_0", "needs a number"),
        ("saco<0<1", "Unknown metric"),
        ("<1", "names no metric"),
        ("up/<1", "names no metric"),
        ("/saco<1", "names no method"),
        ("sacco<1", "did you mean 'saco'"),
        ("upp/saco<1", "did you mean 'up'"),
    ],
)
def test_bad_conditions(found, text, complaint):
    with pytest.raises(fs.FaithscopeError, match=complaint):
        parse_condition(text).check(found)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("worse", ["down/saco"]),
        ("better", ["up/saco", "up/auc"]),
        ("different", ["up/saco", "up/auc", "down/saco"]),
        ("saco<-0.2", ["down/saco"]),
        ("saco < -0.2", ["down/saco"]),
        ("saco>0.2", ["up/saco"]),
        ("auc>0.2", []),  # only random's moved that far
        ("random/auc>0.2", ["random/auc"]),
        ("up/saco<0", []),
        (" up / saco > 0.2 ", ["up/saco"]),
        ("saco<-9", []),
    ],
)
def test_what_fails(found, text, named):
    condition = parse_condition(text)
    condition.check(found)
    line = condition.failure(found)
    told = [
        f"{row['method']}/{row['metric']}"
        for row in found.rows
        if f"{row['method']}/{row['metric']} {row['difference']:+.4f} [" in line
    ]
    assert told == named
    assert bool(line) == bool(named)


def test_bounds_are_not_part_of_themselves():
    one = run_of({"m": {"saco": np.zeros(N)}})
    other = run_of({"m": {"saco": np.full(N, 0.25)}})
    comparison = fs.compare(one, other)
    for text, fails in (("saco>0.25", False), ("saco>0.2499", True), ("saco<0.25", False)):
        assert bool(parse_condition(text).failure(comparison)) is fails


def test_what_cannot_be_judged_fails(pair):
    holes = scores_of(SHIFT)
    holes["still"]["saco"][:] = np.nan
    fewer = {m: by for m, by in holes.items() if m != "up"}
    comparison = fs.compare(pair[0], run_of(fewer, protocol={"fill": "blur"}))

    def said(text: str) -> str:
        condition = parse_condition(text)
        condition.check(comparison)
        return condition.failure(comparison)

    missing = "cannot be judged: still/saco (no image has both scores)"
    assert missing in said("saco<-9")
    assert missing in said("still/saco>9")
    assert missing in said("better")
    assert said("worse").startswith("worse: down/saco -")
    assert said("up/saco<-9") == (
        "up/saco < -9: cannot be judged, since only one of the runs has it."
    )
    assert said("down/saco>9") == ""


def test_too_few_samples_fail_a_verdict_but_not_a_bound():
    one, other = ({"m": {"saco": np.arange(3.0) * factor}} for factor in (1, 2))
    comparison = fs.compare(run_of(one), run_of(other))
    (line,) = failures(comparison, [parse_condition("worse"), parse_condition("saco<0")])
    assert "cannot be judged: m/saco +1.0000" in line
    assert "(a verdict needs 6 images)" in line


def test_names_with_options_are_found_whatever_the_blanks():
    label = "saco(k=5, weight=ratio)"
    runs = [
        run_of({"lrp(rules=conserving)": {label: values}}, metrics={label: True})
        for values in (np.zeros(N), np.ones(N))
    ]
    comparison = fs.compare(*runs, metrics=["saco(k=5,weight=ratio)"])
    condition = parse_condition("lrp( rules=conserving )/saco(k=5,weight = ratio) > 0.5")
    condition.check(comparison)
    assert "+1.0000" in condition.failure(comparison)


def test_a_condition_names_five_rows_and_counts_the_rest():
    names = [f"m{i}" for i in range(8)]
    runs = [run_of({m: {"saco": np.full(N, v)} for m in names}) for v in (0.0, 1.0)]
    line = Condition("x", "better").failure(fs.compare(*runs))
    assert "m4/saco" in line and "m5/saco" not in line
    assert line.endswith(" and 3 more.")


# The command

run, fails = (partial(command, "compare") for command in (commands.run, commands.fails))


@pytest.fixture(scope="module")
def folders(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("runs")
    return pair[0].save(root / "a"), pair[1].save(root / "b")


def test_prints_what_differs_the_table_and_the_verdict(folders, found):
    told = run(*folders)
    assert told.stderr == ""
    assert "fill: mean → blur" in told.stdout
    assert "20 images" in told.stdout
    assert found.headline() in told.stdout
    row = cells(found)["down", "saco"]
    assert (
        f"{row['difference']:+.3f} [{row['ci_low']:+.3f}, {row['ci_high']:+.3f}] †" in told.stdout
    )
    assert "nan" not in told.stdout


def test_exit_codes(folders):
    run(*folders, "--fail-if", "saco<-0.9", "--fail-if", "up/saco<0")
    told = run(
        *folders, "--fail-if", "worse", "--fail-if", "saco<-9", "--fail-if", "saco>0.2", code=1
    )
    lines = told.stderr.splitlines()
    assert [line.split(":")[:2] for line in lines] == [
        ["failed", " worse"],
        ["failed", " saco > 0.2"],
    ]
    assert "saco ↑" in told.stdout  # the table is shown all the same
    run(folders[0], folders[0], "--fail-if", "different")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--fail-if", "wors"], "did you mean 'worse'"),
        (["--fail-if", "sacco<1"], "did you mean 'saco'"),
        (["--metrics", "auk"], "did you mean 'auc'"),
        (["--methods", ","], "No methods given"),
        (["--metrics", "saco", "--fail-if", "auc<1"], "Unknown metric 'auc'"),
        (["--allow", "fil"], "did you mean 'fill'"),
    ],
)
def test_bad_input_is_one_line_and_exits_with_2(folders, arguments, complaint):
    assert complaint in fails(*folders, *arguments)


def test_conditions_are_read_before_the_runs(tmp_path):
    assert "There is no folder" in fails(tmp_path / "none", tmp_path)
    assert "Unknown condition" in fails(tmp_path, tmp_path, "--fail-if", "wors")
    assert "no finished run" in fails(tmp_path, tmp_path)


def test_what_may_not_be_compared_exits_with_2(folders, tmp_path):
    other = changed(protocol={"fill": "blur", "k": 5}).save(tmp_path / "c")
    assert "--allow fill." in fails(folders[0], other)
    run(folders[0], other, "--allow", "fill, k")


def test_json_is_all_of_stdout_and_has_no_nan(folders, tmp_path):
    holes = scores_of(SHIFT)
    holes["still"]["saco"][:] = np.nan
    broken = run_of(holes, protocol={"fill": "blur"}).save(tmp_path / "b")
    told = run(folders[0], broken, "--json", "--fail-if", "worse", code=1)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    data = json.loads(told.stdout, parse_constant=refuse)
    rows = {(row["method"], row["metric"]): row for row in data["rows"]}
    assert rows["still", "saco"]["difference"] is None
    assert data["images"] == {"shared": N, "only_first": 0, "only_second": 0}
    assert data["differs"] == ["fill: mean → blur"]
    assert f"failed: {data['failed'][0]}\n" == told.stderr


def test_csv(folders, found, tmp_path):
    file = tmp_path / "new" / "table.csv"
    assert str(file) in run(*folders, "--csv", file).stdout
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    assert [float(row["difference"]) for row in rows] == [row["difference"] for row in found.rows]
    assert "cannot be written" in run(*folders, "--csv", tmp_path, code=2).stderr


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_fits_the_terminal(width, found, monkeypatch):
    terminal = Console(width=width, force_terminal=True, color_system=None, record=True)
    monkeypatch.setattr(console, "screen", lambda stderr=False: terminal)
    console.show_comparison(found)
    text = terminal.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for row in found.rows:
        assert f"{row['difference']:+.3f}" in text


def test_real_runs_of_two_models(tmp_path):
    """Two models, one in memory and one from a disk, on images that are normalised differently."""
    rng = np.random.default_rng(0)

    images = torch.from_numpy(rng.normal(size=(12, 3, 16, 16)))
    runs = [
        fs.evaluate(
            fs.wrap(tiny_vit(seed=seed), name=f"tiny {seed}", mean=(0.5,) * 3, std=(scale,) * 3),
            images / scale,
            ["rollout", "gradient"],
            ["saco", "log_odds"],
            random_draws=1,
        )
        for seed, scale in ((0, 1.0), (1, 0.5))
    ]
    comparison = fs.compare(runs[0].save(tmp_path / "a"), runs[1])
    assert comparison.differs == ("model: tiny 0 → tiny 1",)
    assert any("pixels may differ" in note for note in comparison.notes)
    for row in comparison.rows:
        values = [result.values(row["method"], row["metric"]) for result in runs]
        assert row["difference"] == pytest.approx((values[1] - values[0]).mean())
    itself = fs.compare(tmp_path / "a", runs[0])
    assert itself.differs == ()
    assert {row["difference"] for row in itself.rows} == {0.0}


def test_a_job_does_not_turn_green_by_dropping_a_method():
    first = fs.evaluate(tiny_vit(), randn(12, 3, 16, 16), ["rollout", "gradient"], ["saco", "aopc"])
    second = fs.evaluate(tiny_vit(), randn(12, 3, 16, 16), "rollout", "saco")
    found = fs.compare(first, second)
    (line,) = failures(found, [parse_condition("worse")])
    assert "gradient, aopc of the first run, not in the second" in line
    assert not failures(fs.compare(second, first), [parse_condition("worse")])
    chosen = fs.compare(first, second, methods=["rollout"], metrics=["saco"])
    assert not failures(chosen, [parse_condition("worse")])


def test_runs_without_scores_say_so():
    nothing = {"m": {"saco": np.full(N, np.nan)}}
    found = fs.compare(run_of(nothing), run_of(nothing, protocol={"fill": "blur"}))
    assert found.headline() == "No score to compare: of 20 shared images none has one in both runs."


def test_texts_of_the_same_name_must_be_the_same():
    first, second = (make_roar(seeds=3, data=name) for name in ("a", "a"))
    other = second.manifest.data.model_copy(update={"fingerprint": "another"})
    second = replace(second, manifest=second.manifest.model_copy(update={"data": other}))
    with pytest.raises(fs.FaithscopeError, match="data: other texts of the name a"):
        fs.compare(first, second)


def test_two_seeds_that_change_places_are_not_unchanged():
    first = make_roar(seeds=2, measures=("gradient", "random"), procedures=("roar",))
    rows = first.scores.to_pylist()
    values = {(row["method"], row["metric"], row["training"]): row["value"] for row in rows}
    swapped = [
        {**row, "value": values[row["method"], row["metric"], 1 - row["training"]]} for row in rows
    ]
    scores = table_of_rows("scores", swapped)
    second = replace(first, tables={**first.tables, "scores": scores})
    found = fs.compare(first, second)
    assert {row["verdict"] for row in found.rows} == {""}
    assert "Nothing changed" not in found.headline()
    assert "Nothing changed" in fs.compare(first, first).headline()
