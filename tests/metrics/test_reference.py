"""Every metric equals the reference numbers of tests/fixtures/vision, in float64 to 1e-9.

Compared for the fills `mean` (their mean_channel) and `black`: x, maps, true_labels (inputs);
yhat, p0; saco_F_*, also *_tiesdesc; saco_s_*, saco_dpred_*; aopc11_*, aopc21_*, lodds11_*;
auc10pct_*, auc5pct_* (of the data set and _persample; _pred and _true); comp11_spans_*, and
comp11_black where 10 divides n; the floor partition of grouping.json; saco_arithmetic.json.

For information only, not compared: the fills mean_global and zero; the partitions *_arraysplit and
*_dropremainder; comp11_* and lerf* where 10 does not divide n (other edges than ours); probs_*
(float32); acc_* (their areas are compared); saco_sizes_*, levels*; F_unnormalised, total_weight;
in grouping.json the partitions array_split, drop_remainder, last_takes_remainder and the rounded
counts.
"""

import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import faithscope as fs
from conftest import FIXTURES, SoftmaxLinear
from faithscope.perturb import groups, most_relevant_first, order_units

VISION = FIXTURES / "vision"
METRICS = (
    *("saco(k=5)", "saco", "saco(k=20)", "aopc", "aopc(steps=20)", "log_odds"),
    *("auc", "auc(step=5)", "comprehensiveness"),
)
RUNS = [("toy100", "mean"), ("toy100", "black"), ("toy63", "mean"), ("toy63", "black")]
RUNS += [("vit_A", "mean")]
runs = pytest.mark.parametrize(("name", "fill"), RUNS)
k_values = pytest.mark.parametrize("k", [5, 10, 20])


@cache
def golden(name):
    card = json.loads((VISION / f"metrics_{name}.json").read_text())
    return np.load(VISION / f"metrics_{name}.npz"), card


def key_of(fill):
    return {"mean": "mean_channel", "black": "black"}[fill]


@cache
def model_of(name):
    if name == "vit_A":
        size = dict(img_size=32, patch_size=8, embed_dim=48, depth=4, num_heads=3, num_classes=10)
        with torch.random.fork_rng(devices=[]):
            module = VisionTransformer(**size)
        weights = np.load(VISION / "weights_A.npz")
        module.load_state_dict({key: torch.from_numpy(weights[key]) for key in weights.files})
        return fs.wrap(module.double().eval())
    numbers, card = golden(name)
    module = SoftmaxLinear(*(torch.from_numpy(numbers[key]) for key in ("toy_W", "toy_b")))
    return fs.wrap(module, mean=card["black_mean"], std=card["black_std"])


@cache
def run(name, fill, *, ties="ascending", labelled=False):
    numbers, card = golden(name)
    maps = {label: numbers["maps"][:, i] for i, label in enumerate(card["map_names"])}
    return fs.evaluate(
        model_of(name),
        torch.from_numpy(numbers["x"]),
        methods=(),
        metrics=METRICS,
        maps=maps,
        labels=numbers["true_labels"] if labelled else None,
        fill=fill,
        ties=ties,
        random_draws=0,
    )


def scores(result, metric):
    """[samples, maps], as in the fixtures."""
    return np.stack([result.values(method, metric) for method in result.methods], axis=1)


def answers(result, column, cuts):
    """A column of the response table at these cuts: [samples, maps, cuts]."""
    rows = {
        (row["sample"], row["method"], row["start"], row["stop"]): row[column]
        for row in result.responses.to_pylist()
    }
    samples = result.samples["sample"].to_pylist()
    return np.array([[[rows[s, m, *cut] for cut in cuts] for m in result.methods] for s in samples])


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


@runs
def test_the_intact_prediction_and_its_probability_are_equal(name, fill):
    numbers, _ = golden(name)
    samples = run(name, fill).samples
    assert samples["predicted"].to_pylist() == numbers["yhat"].tolist()
    close(np.exp(samples["log_p0"].to_numpy()), numbers["p0"])


@k_values
@pytest.mark.parametrize(
    ("name", "fill", "ties"),
    [(*case, "ascending") for case in RUNS]
    + [(name, fill, "descending") for name, fill in RUNS if fill == "mean"],
)
def test_saco_is_equal(name, fill, ties, k):
    numbers, card = golden(name)
    suffix = "_tiesdesc" if ties == "descending" else ""
    expected = numbers[f"saco_F_K{k}_{key_of(fill)}{suffix}"]
    apart = numbers[f"saco_min_dpred_gap_K{k}_{key_of(fill)}"] > 1e-9
    apart[:, card["map_names"].index("constant")] = False  # next test
    assert apart.sum() == apart.size - len(apart)
    metric = "saco" if k == 10 else f"saco(k={k})"
    close(scores(run(name, fill, ties=ties), metric)[apart], expected[apart])


@runs
def test_a_constant_map_has_saco_0_and_the_flag_degenerate(name, fill):
    rows = run(name, fill).scores.to_pylist()
    constant = [row for row in rows if row["method"] == "constant" and "saco" in row["metric"]]
    assert {(row["value"], row["flag"]) for row in constant} == {(0.0, "degenerate")}
    assert not any(row["flag"] for row in rows if row["method"] != "constant")


@runs
@k_values
def test_salience_and_drop_of_every_group_are_equal(name, fill, k):
    numbers, _ = golden(name)
    result = run(name, fill)
    cuts = [span.cut(numbers["maps"][0, 0].size) for span in groups(k)]
    close(answers(result, "salience", cuts), numbers[f"saco_s_K{k}"])
    intact = np.exp(result.samples["log_p0"].to_numpy())[:, None, None]
    drop = intact - np.exp(answers(result, "log_p", cuts))
    close(drop, numbers[f"saco_dpred_K{k}_{key_of(fill)}"])


@runs
@pytest.mark.parametrize(
    ("metric", "key"), [("aopc", "aopc11"), ("aopc(steps=20)", "aopc21"), ("log_odds", "lodds11")]
)
def test_aopc_and_log_odds_are_equal(name, fill, metric, key):
    expected = golden(name)[0][f"{key}_{key_of(fill)}"]
    tolerance = {"rtol": 1e-9} if metric == "log_odds" else {"rtol": 0, "atol": 1e-9}
    np.testing.assert_allclose(scores(run(name, fill), metric), expected, **tolerance)


@pytest.mark.parametrize(
    ("name", "fill", "key"),
    [(name, "mean", "comp11_spans_mean_channel") for name in ("toy100", "toy63", "vit_A")]
    + [("toy100", "black", "comp11_black")],
)
def test_comprehensiveness_is_equal(name, fill, key):
    close(scores(run(name, fill), "comprehensiveness"), golden(name)[0][key])


@runs
@pytest.mark.parametrize(("metric", "key"), [("auc", "auc10pct"), ("auc(step=5)", "auc5pct")])
@pytest.mark.parametrize("truth", ["pred", "true"])
def test_auc_is_equal_per_sample_and_for_the_data_set(name, fill, metric, key, truth):
    numbers, _ = golden(name)
    actual = scores(run(name, fill, labelled=truth == "true"), metric)
    close(actual, numbers[f"{key}_persample_{truth}_{key_of(fill)}"])
    close(actual.mean(0), numbers[f"{key}_{truth}_{key_of(fill)}"])


ARITHMETIC = json.loads((VISION / "saco_arithmetic.json").read_text())["cases"]


@pytest.mark.parametrize("case", ARITHMETIC, ids=lambda case: case["name"])
def test_saco_on_given_groups_is_equal(case):
    salience, drop = (torch.tensor(case[key], dtype=torch.float64) for key in ("s", "dpred"))
    expected = float("nan") if case["F"] is None else case["F"]
    close(fs.saco(salience, drop).item(), expected)


GROUPING = json.loads((VISION / "grouping.json").read_text())
TIES = {"index_asc": "ascending", "index_desc": "descending"}


@pytest.mark.parametrize(
    "case",
    [case for case in GROUPING["groups"] if case["mode"] == "floor"],
    ids=lambda case: f"{case['map']}-{case['K']}-{case['ties']}",
)
def test_the_units_of_every_group_are_equal(case):
    order = order_units(torch.tensor(case["values"]), TIES[case["ties"]]).tolist()
    cuts = [span.cut(len(order)) for span in groups(case["K"])]
    assert [order[start:stop] for start, stop in cuts] == case["groups"]


@pytest.mark.parametrize("n", [int(n) for n in GROUPING["bounds"]])
@k_values
def test_group_edges_are_equal(n, k):
    edges = GROUPING["bounds"][str(n)][str(k)]["floor"]
    assert [span.cut(n) for span in groups(k)] == list(pairwise(edges))


@pytest.mark.parametrize("n", [int(n) for n in GROUPING["n_removed"]])
def test_the_number_of_units_removed_at_each_level_is_equal(n):
    removed = [span.cut(n)[1] for span in most_relevant_first(20)]
    assert removed == [count["floor"] for count in GROUPING["n_removed"][str(n)].values()]
