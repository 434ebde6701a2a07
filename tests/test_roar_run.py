"""ROAR from end to end with models that train in milliseconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bags import MEASURES, BagLearner, bag_texts
from faithscope.data.text import TokenData
from faithscope.methods.text import measure, resolve_measures
from faithscope.methods.words import random_scores
from faithscope.perturb.tokens import mask_tokens
from faithscope.probes.retrain.classification import classification_scores
from faithscope.probes.retrain.jobs import jobs_of
from faithscope.probes.retrain.result import ROAR_SCHEMAS, RoarResult, load_roar
from faithscope.probes.retrain.roar import Progress, prepare_roar
from families import refused

LEVELS = [0, 20, 50, 80, 100]
METRICS = ("accuracy", "macro_f1", "micro_f1", "auroc", "cross_entropy")


def asked(learner: BagLearner | None = None, **options):
    options = {"measures": MEASURES, "seeds": 2, "levels": LEVELS, **options}
    return prepare_roar(options.pop("data", bag_texts()), learner or BagLearner(), **options)


@pytest.fixture(scope="module")
def learner() -> BagLearner:
    return BagLearner()


@pytest.fixture(scope="module")
def result(learner) -> RoarResult:
    return asked(learner).run()


def test_every_training_is_run_once(learner, result):
    jobs = jobs_of(resolve_measures(MEASURES), range(2), LEVELS)
    assert len(learner.begun) == len(jobs) == 36 == result.manifest["cost"]["trainings"]
    assert len(set(learner.begun)) == len(learner.begun)  # no two on the same data and seed


def test_every_model_is_explained_once_by_each_measure(learner, result):
    assert len(learner.explained) == len(set(learner.explained))
    # 2 seeds × (the base, and two links of a chain) × three splits
    assert len(learner.explained) == 2 * 2 * 3 * 3
    assert result.manifest["cost"]["explained"] == {"gradient": 6, "input_x_gradient": 6}


def alone(data: TokenData, seed: int):
    """Train one model, by itself."""
    training = BagLearner().begin([data], [seed])
    while not training.is_done:
        training.run_epoch()
    return training.finish()[0]


def by_hand(procedure: str, label: str, seed: int, strategy: str, levels: list[int]) -> list[float]:
    """One curve, step by step as ROAR.md §6 has it."""
    learner = BagLearner()
    data = intact = learner.encode(bag_texts())
    model = base = alone(intact, seed)
    values = [base.scores["accuracy"]]
    for k in levels[1:]:
        start, explained = (data, model) if procedure == "recursive" else (intact, base)
        splits = dict(start.splits)
        if label == "random":
            scores = random_scores(list(splits.values()), seed)
        else:
            scores = [
                learner.explain([explained.weights], [part], measure(label), [seed])[0]
                for part in splits.values()
            ]
        ids = {
            name: mask_tokens(
                part.ids, part.eligible, found, k, strategy=strategy, mask_id=intact.mask_id
            )
            for (name, part), found in zip(splits.items(), scores, strict=True)
        }
        data = intact.with_ids(ids)
        model = alone(data, seed)
        values.append(model.scores["accuracy"])
    return values


@pytest.mark.parametrize("label", ["gradient", "input_x_gradient", "random"])
@pytest.mark.parametrize("procedure", ["roar", "recursive"])
def test_curves_are_those_of_the_procedure_done_by_hand(result, label, procedure):
    for place, seed in enumerate(result.seeds):
        found = result.values(label, procedure)[place].tolist()
        assert found == by_hand(procedure, label, seed, "relative", LEVELS)


def test_counted_tokens_are_masked_one_by_one():
    found = asked(measures="gradient", seeds=1, levels=range(4), strategy="count").run()
    assert found.levels == [0, 1, 2, 3]
    for procedure in ("roar", "recursive"):
        expected = by_hand(procedure, "gradient", 0, "count", [0, 1, 2, 3])
        assert found.values("gradient", procedure)[0].tolist() == expected
    masked = [len(level["masked"]) for level in found.examples[0]["levels"]]
    assert masked == [1, 2, 3]


@pytest.mark.parametrize("pack_size", [1, 3, 100])
def test_packs_of_any_size_give_the_same_numbers(result, pack_size):
    other = asked(BagLearner(pack_size=pack_size)).run()
    names = ["measure", "procedure", "k", "seed", "metric", "value", "epoch"]
    assert other.trainings.select(names).equals(result.trainings.select(names))
    assert other.sparsity.equals(result.sparsity)
    assert other.examples == result.examples


def test_a_small_memory_gives_the_same_numbers(result, monkeypatch):
    monkeypatch.setattr("faithscope.probes.retrain.masking.CACHE_BYTES", 1)
    assert asked().run().trainings["value"].equals(result.trainings["value"])


def test_the_table_has_a_row_for_every_point_of_a_curve(result):
    table = result.trainings
    assert table.schema.equals(ROAR_SCHEMAS["trainings"])
    assert table.num_rows == 4 * 2 * 2 * 5 * 5
    assert set(table["metric"].to_pylist()) == set(METRICS)
    assert not pc.any(pc.is_nan(table["value"])).as_py()
    for procedure in ("roar", "recursive"):
        values = [result.values(name, procedure) for name in result.measures]
        for one in values:
            assert np.array_equal(one[:, 0], values[0][:, 0])
            assert np.array_equal(one[:, -1], values[0][:, -1])
    same = [result.values("random", name) for name in ("roar", "recursive")]
    assert np.array_equal(*same)


def test_masks_of_recursive_steps_are_nested_and_of_the_right_size(result):
    for example in result.examples:
        n = len(example["words"]) - 2
        before: set[int] = set()
        for level in example["levels"]:
            masked = set(level["masked"])
            assert len(masked) == level["k"] * n // 100
            assert 0 not in masked and n + 1 not in masked
            assert len(level["scores"]) == (0 if level["k"] == 100 else n + 2)
            assert before <= masked
            before = masked
    assert len(result.examples) == 3 * 4 * 2
    assert {example["seed"] for example in result.examples} == {0}


def test_sparsity_is_of_every_measure_and_seed(result):
    table = result.sparsity
    assert table.num_rows == 4 * 2 * (10 + 9)
    shares = table["value"].to_numpy()
    assert ((shares > 0) & (shares <= 1 + 1e-12)).all()
    other = asked(specials=False).run()
    assert not other.sparsity.equals(table)
    assert other.manifest["protocol"]["specials"] is False


def test_a_result_is_saved_and_read(result, tmp_path):
    result.save(tmp_path / "run")
    found = load_roar(tmp_path / "run")
    assert found.trainings.equals(result.trainings)
    assert found.sparsity.equals(result.sparsity)
    assert found.examples == result.examples
    assert found.manifest == result.manifest
    assert repr(found) == "RoarResult(bag on bags: 4 measures, 2 seeds, 36 trainings)"


def test_racu_is_per_seed_and_without_random(result):
    rows = result.racu().to_pylist()
    assert [(row["measure"], row["procedure"]) for row in rows] == [
        (name, procedure) for name in MEASURES for procedure in ("roar", "recursive")
    ]
    for row in rows:
        assert row["mean"] == pytest.approx(np.mean(row["values"]))
        assert np.isnan([row["ci_low"], row["ci_high"]]).all()  # two seeds are too few
        assert row["seeds"] == [0, 1] and row["n"] == 2
    assert result.table().count("\n") == 1 + len(MEASURES)
    time = result.compute_time().to_pylist()
    assert [row["measure"] for row in time] == result.measures
    assert all(row["minutes"] == row["explaining"] + row["training"] for row in time)


def test_a_forecast_counts_and_measures(tmp_path):
    learner = BagLearner(seconds=0.01)
    request = asked(learner, out=tmp_path)
    forecast = request.forecast()
    assert (forecast.trainings, forecast.finished) == (36, 0)
    packs = -(-36 // 7)
    assert packs <= forecast.packs == len(request.packs)
    # an epoch sleeps once for its pack, whose size hardly varies
    assert 0.5 < forecast.seconds / (forecast.packs * 4 * 0.01) < 4
    assert "36 trainings in" in str(forecast)
    learner.seconds, learner.stop_at, learner.epochs_run = 0.0, 9, 0
    with pytest.raises(KeyboardInterrupt):
        request.run()
    assert 0 < request.forecast().finished < 36


def test_progress_goes_from_nothing_to_everything():
    seen: list[Progress] = []
    asked().run(seen.append)
    assert {step.doing for step in seen} == {
        "explaining gradient",
        "explaining input_x_gradient",
        "training",
    }
    done = [step.done for step in seen]
    assert done == sorted(done)
    assert done[0] == 0 and done[-1] == 36 == seen[-1].total


def test_all_leaves_out_what_a_model_cannot_give_and_a_name_does_not():
    request = asked(measures="all", seeds=1)
    assert request.jobs.measures == ("gradient", "input_x_gradient", "random")
    assert [said.partition(" is left out of 'all': ")[0] for said in request.left_out] == [
        "attention",
        "integrated_gradients",
    ]
    assert set(request.left_out) <= set(request.run().manifest["data"]["notes"])
    with refused("cannot give 'attention'"):
        asked(measures=["attention"])
    with refused("Unknown measure 'gradent'", "gradient"):
        asked(measures=["gradent"])


def test_texts_without_a_word_are_refused():
    data = bag_texts()
    empty = replace(data.test, texts=("",) * 24, words=((),) * 24)
    with refused("test split of 'bags' has no token that can be masked"):
        asked(data=replace(data, test=empty))


class Diverging(BagLearner):
    """The model of one seed gives scores that are not numbers."""

    def explain(self, weights, tokens, measure, seeds):
        found = super().explain(weights, tokens, measure, seeds)
        return [
            held * (np.nan if seed == 1 else 1.0) for held, seed in zip(found, seeds, strict=True)
        ]


def test_scores_that_cannot_be_ranked_are_refused_with_the_training_they_come_from():
    words = ("gradient", "'k000-s1' (level 0, seed 1)", "lower learning rate")
    with refused(*words):
        asked(Diverging()).run()


# What a result says


def invented(
    value,
    *,
    seeds=5,
    measures=("gradient", "random"),
    strategy="relative",
    levels=(0, 50, 100),
    **data,
):
    """A result whose performance is value(measure, procedure, k, seed)."""
    rows = [
        {
            "job": f"{name}-{procedure}-{k}-{seed}",
            "data": "invented",
            "model": "bag",
            "measure": name,
            "procedure": procedure,
            "strategy": strategy,
            "k": k,
            "seed": seed,
            "metric": metric,
            "value": value(name, procedure, k, seed),
            "epoch": 1,
            "seconds": 60.0,
        }
        for name in measures
        for procedure in ("roar", "recursive")
        for k in levels
        for seed in range(seeds)
        for metric in METRICS
    ]
    about = {
        "name": "invented",
        "kind": "own",
        "classes": ["no", "yes"],
        "metric": "accuracy",
        "selection": "accuracy",
        "sizes": {"train": 80, "validation": 10, "test": 10},
        "mean_length": 9.0,
        "vocabulary": 20,
        "majority": {"class": "no", "score": 0.3},
        "truncated": {},
        "notes": [],
        "fingerprint": "",
        **data,
    }
    manifest = {
        "format": 1,
        "kind": "roar",
        "created": "2026-01-01T00:00:00+00:00",
        "data": about,
        "model": {"name": "bag", "parameters": 1, "recipe": {}, "device": "cpu"},
        "protocol": {
            "strategy": strategy,
            "levels": list(levels),
            "procedures": ["roar", "recursive"],
            "measures": list(measures),
            "seeds": list(range(seeds)),
            "clip": True,
        },
        "cost": {
            "seconds": 1.0,
            "trainings": 9,
            "training_seconds": 1.0,
            "explaining_seconds": {"gradient": 1200.0},
            "explained": {"gradient": 10},
        },
        "machine": {},
        "versions": {"faithscope": "0"},
    }
    trainings = pa.Table.from_pylist(rows, schema=ROAR_SCHEMAS["trainings"])
    return RoarResult(trainings, ROAR_SCHEMAS["sparsity"].empty_table(), [], manifest)


def falling(name: str, procedure: str, k: int, seed: int) -> float:
    at = {"random": {0: 1.0, 50: 0.8, 100: 0.2}, "gradient": {0: 1.0, 50: 0.4, 100: 0.2}}
    return at[name][k] + 0.001 * seed * (k == 50)


def test_a_good_run_is_told_without_warnings(tmp_path):
    result = invented(falling)
    assert result.warnings() == []
    row = result.racu().to_pylist()[1]
    assert row["values"][0] == pytest.approx(0.2 / 0.5)
    assert row["area"] == pytest.approx(0.2, abs=1e-3)
    assert result.headline() == (
        "By Recursive ROAR of bag on invented, gradient has a RACU of 39.9 [39.9, 40.0] %. "
        "It is better than random masking."
    )
    table = result.curves().to_pylist()
    assert len(table) == 2 * 2 * 3
    assert table[1]["mean"] == pytest.approx(0.402) and table[1]["n"] == 5
    minutes = result.compute_time().to_pylist()
    assert (minutes[0]["minutes"], minutes[0]["walltime"]) == (3.0, "00:03")
    assert (minutes[1]["minutes"], minutes[1]["walltime"]) == (1.0, "00:01")
    assert load_roar(result.save(tmp_path)).headline() == result.headline()


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        (falling, {"seeds": 2}, "fewer than three seeds"),
        (falling, {"majority": {"class": "no", "score": 1.0}}, "no better than always guessing"),
        (falling, {"truncated": {"train": 3, "test": 1}}, "4 of 100 texts"),
        (
            lambda m, p, k, s: 0.9 if m == "random" else 0.9 - 0.2 * (k == 50),
            {},
            "not defined for seeds 0, 1, 2, 3, 4",
        ),
        (
            lambda m, p, k, s: 0.5 + 0.4 * (k == 100 and s == 3) - 0.1 * (k == 100 and s != 3),
            {},
            "sign turned around for seed 3",
        ),
        (
            lambda m, p, k, s: (
                falling(m, p, k, s)
                + (0.1 if m == "gradient" and k == 100 else 0)
                - (0.35 if m == "gradient" and k == 50 else 0)
            ),
            {},
            "gradient (recursive): performance rises by 24.8 points from 50 to 100 % masked",
        ),
    ],
)
def test_what_is_doubtful_is_said(value, options, words):
    said = invented(value, **options).warnings()
    assert any(words in sentence for sentence in said)
    assert all(sentence.endswith(".") for sentence in said)


def test_trainings_that_diverged_are_named():
    result = invented(falling)
    rows = result.trainings.to_pylist()
    wild = {"random-roar-0-2": np.nan, "gradient-recursive-50-1": np.inf}
    for row in rows:
        if row["metric"] == "cross_entropy" and row["job"] in wild:
            row["value"] = wild[row["job"]]
    trainings = pa.Table.from_pylist(rows, schema=ROAR_SCHEMAS["trainings"])
    (said,) = replace(result, trainings=trainings).warnings()
    assert said.startswith("gradient-recursive-50-1, random-roar-0-2 diverged: ")


def test_a_seed_without_racu_is_left_out_and_named():
    def flat_in_seed_1(name, procedure, k, seed):
        return 0.9 if seed == 1 and name == "random" else falling(name, procedure, k, seed)

    row = invented(flat_in_seed_1, seeds=4).racu().to_pylist()[0]
    assert row["degenerate"] == [1] and row["n"] == 3
    assert np.isnan(row["values"][1])
    assert row["mean"] == pytest.approx(np.nanmean(row["values"]))


def test_racu_is_clipped_or_not():
    def beyond(name, procedure, k, seed):
        at = {"random": {0: 0.5, 50: 0.4, 100: 0.4}, "gradient": {0: 0.5, 50: 0.1, 100: 0.4}}
        return at[name][k]

    result = invented(beyond)
    assert result.racu().to_pylist()[0]["mean"] == 1.0
    assert result.racu(clip=False).to_pylist()[0]["mean"] == pytest.approx(6.0)
    assert result.racu(metric="auroc").num_rows == 2
    with refused("Unknown metric 'f1'"):
        result.racu(metric="f1")


def test_measures_that_are_no_better_than_random_are_not_praised():
    def turned(name, procedure, k, seed):
        return falling({"random": "gradient", "gradient": "random"}[name], procedure, k, seed)

    assert "no measure is more faithful than random masking" in invented(turned).headline()
    mixed = invented(lambda m, p, k, s: falling(m if s else "random", p, k, s), seeds=3)
    assert "None is surely better" in mixed.headline()


def turned_around(name, procedure, k, seed):
    return falling({"random": "gradient", "gradient": "random"}[name], procedure, k, seed)


@pytest.mark.parametrize("value", [falling, turned_around])
@pytest.mark.parametrize("strategy", ["relative", "count"])
@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_give_no_verdict(value, strategy, seeds):
    result = invented(value, strategy=strategy, seeds=seeds)
    said = result.headline()
    assert said.startswith("Fewer than three seeds are too few for a verdict: by Recursive ROAR")
    assert "[" not in said and "faithful" not in said and "better" not in said
    assert "[" not in "".join(result.table().splitlines()[1:]) and "\\" not in result.table()
    assert all(np.isnan(row["ci_low"]) for row in result.curves().to_pylist())
    rising = invented(lambda m, p, k, s: falling(m, p, 100 - k, s) if k else 1.0, seeds=seeds)
    assert not any("give the class away" in warning for warning in rising.warnings())


def counted(name, procedure, k, seed):
    """Where a curve of tokens ends: gradient below random, or not in every seed."""
    return falling(name, procedure, 50 if k == 100 else k, seed)


def test_counted_tokens_are_compared_with_random():
    def mixed(name, procedure, k, seed):
        end = {"random": 0.5, "gradient": [0.1, 0.6, 0.6, 0.55, 0.45][seed]}[name]
        return end if k == 100 else falling(name, procedure, k, seed)

    def told(value):
        return invented(value, strategy="count").headline()

    assert "falls furthest under gradient, to 40.2 %, further than under random" in told(counted)
    assert "to 46.0 %, not surely further than under random masking" in told(mixed)
    said = told(lambda m, p, k, s: counted("random" if m == "gradient" else "gradient", p, k, s))
    assert "under no measure does the accuracy fall further than under random masking" in said


def test_counted_tokens_have_no_doubts_about_racu():
    flat = invented(lambda m, p, k, s: 0.9, strategy="count")
    assert flat.warnings() == []


@pytest.mark.parametrize("base", [0.2, 0.3, 0.5])
@pytest.mark.parametrize("strategy", ["relative", "count"])
def test_a_model_that_learnt_nothing_is_told(base, strategy):
    """Ten test texts: 0.3 ± 0.29 may be the most common class."""
    result = invented(lambda m, p, k, s: base, strategy=strategy)
    assert result.headline().startswith("The model did not learn: ")
    assert result.headline().endswith("says nothing.")
    assert "no measure to compare" not in result.headline()
    assert any("learnt nothing" in warning for warning in result.warnings())
    better = invented(lambda m, p, k, s: base, strategy=strategy, sizes={"test": 10_000})
    assert better.is_unlearned == (base < 0.5)


def test_a_measure_without_racu_is_not_called_none():
    flat = invented(lambda m, p, k, s: 0.9)
    assert flat.headline().endswith("RACU is not defined for any measure: the warnings say why.")


def test_a_tiny_denominator_names_its_seeds():
    def floored(name, procedure, k, seed):
        if name == "random" and k == 50 and seed in (1, 3):
            return 0.2
        return falling(name, procedure, k, seed)

    said = invented(floored).warnings()
    assert any("at its first level (50 %) with seeds 1, 3: RACU" in line for line in said)

    def beyond(name, procedure, k, seed):
        low = name == "gradient" and procedure == "roar" and k == 50 and seed == 2
        return -2.0 if low else falling(name, procedure, k, seed)

    (said,) = invented(beyond).warnings()
    assert said == "RACU was beyond ±100 % and is clipped to it: seed 2, gradient (roar)."
    assert invented(beyond).with_clip(False).warnings() == []


def test_a_fall_to_guessing_that_ends_is_told():
    levels = [0, 30, 60, 100]

    def fallen(name, procedure, k, seed):
        alone = (name, procedure, seed) == ("gradient", "recursive", 3)
        return {0: 1.0, 30: 0.2 if alone else 0.6, 60: 0.5, 100: 0.2}[k]

    (said,) = invented(fallen, levels=levels, sizes={"test": 500}).warnings()
    assert "(gradient (recursive), seed 3: 20.0 % at 30 %, 50.0 % at 60 %)" in said
    assert "RACU takes the fall for tokens that mattered" in said
    assert invented(fallen, levels=levels, sizes={"test": 10}).warnings() == []

    def everywhere(name, procedure, k, seed):
        return fallen("gradient", "recursive", k, 3) if name == "gradient" else 1 - 0.008 * k

    (said,) = invented(everywhere, levels=levels, sizes={"test": 500}).warnings()[-1:]
    assert said.endswith("; and 6 more).")


def test_models_that_answer_one_class_are_found():
    share = 0.4  # of the only answer, one of three classes

    def constant(name, procedure, k, seed):
        return share if (name, procedure, k, seed) == ("gradient", "roar", 50, 2) else 0.9

    result = invented(constant)
    metrics = np.array(result.trainings["metric"])
    values = np.array(result.trainings["value"].to_pylist())
    values[(values == share) & (metrics == "macro_f1")] = 2 * share / (1 + share) / 3
    values[(values == 0.9) & (metrics == "macro_f1")] = 0.8
    place = result.trainings.schema.get_field_index("value")
    trainings = result.trainings.set_column(place, "value", pa.array(values))
    found = replace(result, trainings=trainings).one_class()
    assert found == [{"measure": "gradient", "procedure": "roar", "seed": 2, "k": 50}]


@given(st.integers(0, 10**6), st.sampled_from([2, 3, 6]), st.booleans())
def test_macro_f1_tells_that_one_class_is_the_only_answer(seed, classes, is_constant):
    draw = torch.Generator().manual_seed(seed)
    labels, other = torch.randint(classes, (2, 500), generator=draw)
    answers = torch.full_like(labels, int(other[0])) if is_constant else other
    told = classification_scores(torch.nn.functional.one_hot(answers, classes).double(), labels)
    result = invented(lambda m, p, k, s: 0.9, seeds=1)
    values = pa.array([told[name] for name in result.trainings["metric"].to_pylist()])
    place = result.trainings.schema.get_field_index("value")
    found = replace(result, trainings=result.trainings.set_column(place, "value", values))
    assert bool(found.one_class()) == is_constant


def test_a_run_of_random_alone_says_so():
    result = invented(lambda m, p, k, s: 1 - k / 200, measures=("random",))
    assert result.racu().num_rows == 0
    assert "no measure to compare" in result.headline()
    assert result.warnings() == []
