"""ROAR from end to end with models that train in milliseconds, and what its results say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import faithscope as fs
from bags import MEASURES, BagLearner, bag_texts
from faithscope.api import Prepared
from faithscope.data.text import SPLITS, TokenData
from faithscope.methods.text import measure
from faithscope.methods.words import random_scores
from faithscope.metrics import resolve_metrics
from faithscope.perturb.tokens import mask_tokens
from faithscope.probes.retrain.classification import classification_scores
from faithscope.probes.retrain.doubts import doubts_of
from faithscope.probes.retrain.probe import assemble
from faithscope.result import as_result
from faithscope.runs.scheduler import Progress
from faithscope.runs.tables import SCHEMAS, table_of_rows
from faithscope.verdicts.curves import Trainings
from faithscope.verdicts.sentences import TEST_METRICS
from families import refused
from measures import papers
from roar_runs import make_roar

LEVELS = [0, 20, 50, 80, 100]
BOTH = ("roar", "recursive")


def asked(learner: BagLearner | None = None, **options: Any) -> Prepared:
    options = {"measures": MEASURES, "seeds": 2, "levels": LEVELS, **options}
    return fs.prepare_roar(options.pop("data", bag_texts()), learner or BagLearner(), **options)


@pytest.fixture(scope="module")
def learner() -> BagLearner:
    return BagLearner()


@pytest.fixture(scope="module")
def result(learner: BagLearner) -> fs.Result:
    return asked(learner).run()


def test_every_training_is_run_once(learner, result):
    assert len(learner.begun) == 36 == result.manifest.cost.trainings
    assert len(set(learner.begun)) == len(learner.begun)  # no two on the same data and seed


def test_every_model_is_explained_once_by_each_measure(learner, result):
    assert len(learner.explained) == len(set(learner.explained))
    # 2 seeds × (the base, and two links of a chain) × three splits
    assert len(learner.explained) == 2 * 2 * 3 * 3
    assert result.manifest.cost.explained == {"gradient": 6, "input_x_gradient": 6}


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
@pytest.mark.parametrize("procedure", BOTH)
def test_curves_are_those_of_the_procedure_done_by_hand(result, label, procedure):
    for place, seed in enumerate(result.trained.seeds):
        found = result.trained.values(label, procedure)[place].tolist()
        assert found == by_hand(procedure, label, seed, "relative", LEVELS)


def test_counted_tokens_are_masked_one_by_one():
    found = asked(measures="gradient", seeds=1, levels=range(4), strategy="count").run()
    assert found.trained.levels == [0, 1, 2, 3]
    for procedure in BOTH:
        expected = by_hand(procedure, "gradient", 0, "count", [0, 1, 2, 3])
        assert found.trained.values("gradient", procedure)[0].tolist() == expected
    assert {(row["k"], len(row["masked"])) for row in found.examples.to_pylist()} == {
        (1, 1),
        (2, 2),
        (3, 3),
    }


@pytest.mark.parametrize("pack_size", [1, 3, 100])
def test_packs_of_any_size_give_the_same_numbers(result, pack_size):
    other = asked(BagLearner(pack_size=pack_size)).run()
    assert other.trainings.drop("seconds").equals(result.trainings.drop("seconds"))
    for table in ("sparsity", "examples", "scores"):
        assert other.get_table(table).equals(result.get_table(table))


def test_a_small_memory_gives_the_same_numbers(result, monkeypatch):
    monkeypatch.setattr("faithscope.probes.retrain.masking.CACHE_BYTES", 1)
    assert asked().run().trainings["value"].equals(result.trainings["value"])


def test_the_table_has_a_row_for_every_point_of_a_curve(result):
    table = result.trainings
    assert table.schema.equals(SCHEMAS["trainings"])
    assert table.num_rows == 4 * 2 * 2 * 5 * 5
    assert set(table["metric"].to_pylist()) == set(TEST_METRICS)
    assert not pc.any(pc.is_nan(table["value"])).as_py()
    assert set(pc.list_value_length(table["validation"]).to_pylist()) == {4}  # epochs
    curves = result.trained
    for procedure in BOTH:
        values = [curves.values(name, procedure) for name in curves.measures]
        for one in values:
            assert np.array_equal(one[:, 0], values[0][:, 0])
            assert np.array_equal(one[:, -1], values[0][:, -1])
    assert np.array_equal(*(curves.values("random", name) for name in BOTH))


def test_masks_of_a_text_are_nested_and_of_the_right_size(result):
    examples: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in result.examples.to_pylist():
        examples[row["index"], row["measure"], row["procedure"]].append(row)
    assert len(examples) == 3 * 4 * 2
    for rows in examples.values():
        assert sorted(row["k"] for row in rows) == LEVELS[1:]
        before: set[int] = set()
        for row in sorted(rows, key=lambda row: row["k"]):
            n, masked = len(row["words"]) - 2, set(row["masked"])
            assert len(masked) == row["k"] * n // 100
            assert masked <= set(row["eligible"]) == set(range(1, n + 1))
            assert len(row["scores"]) == (0 if row["k"] == 100 else n + 2)
            assert before <= masked
            assert (row["seed"], row["split"]) == (0, "test")
            before = masked


def test_sparsity_is_of_every_measure_and_seed(result):
    assert result.sparsity.num_rows == 4 * 2 * (10 + 9)
    shares = result.sparsity["value"].to_numpy()
    assert ((shares > 0) & (shares <= 1 + 1e-12)).all()
    other = asked(specials=False).run()
    assert not other.sparsity.equals(result.sparsity)
    assert other.manifest.protocol["specials"] is False


def test_a_result_is_saved_and_read(result, tmp_path):
    result.save(tmp_path / "run")
    found = fs.load_result(tmp_path / "run")
    assert {*found.tables} == {"scores", "trainings", "sparsity", "examples", "pictures", "tasks"}
    for name, table in found.tables.items():
        assert table.equals(result.tables[name])
    files = found.manifest.files
    assert found.manifest.content() == {**result.manifest.content(), "files": files}
    assert repr(found) == "Result(bag on bags: 4 methods, 3 metrics, 2 seeds)"


def test_racu_is_per_seed_and_without_random(result):
    rows = result.racu().to_pylist()
    assert [(row["measure"], row["procedure"]) for row in rows] == [
        (name, procedure) for name in MEASURES for procedure in BOTH
    ]
    for row in rows:
        assert row["mean"] == pytest.approx(np.mean(row["values"]))
        assert np.isnan([row["ci_low"], row["ci_high"]]).all()  # two seeds are too few
        assert row["seeds"] == [0, 1] and row["n"] == 2
        scored = result.values(row["measure"], "racu", row["procedure"])
        assert scored.tolist() == row["values"]
    time = result.compute_time().to_pylist()
    assert [row["measure"] for row in time] == result.methods
    assert all(row["minutes"] == pytest.approx(row["explaining"] + row["training"]) for row in time)


def test_other_metrics_are_scored_without_training(result):
    assert result.metrics == ["racu", "area", "end"]
    again = result.rescore(["racu(clip=false)", "end"])
    assert again.metrics == ["racu(clip=false)", "end"]
    free = {
        (r["measure"], r["procedure"]): r["values"] for r in result.racu(clip=False).to_pylist()
    }
    for (name, procedure), values in free.items():
        assert again.values(name, "racu(clip=false)", procedure).tolist() == values
    asked_so = asked(metrics=["racu(clip=false)", "end"]).run()
    assert asked_so.scores.equals(again.scores)
    assert asked_so.manifest.plan.metrics == again.manifest.plan.metrics
    with refused("only its metrics"):
        result.rescore(seeds=3)


def test_a_forecast_counts_and_measures(tmp_path):
    learner = BagLearner(seconds=0.01)
    request = asked(learner, out=tmp_path)
    found = request.forecast()
    assert (found.cost["trainings"], found.finished) == (36, 0)
    assert {name: found.cost[f"explaining {name}"] for name in MEASURES[:2]} == {
        "gradient": 6,
        "input_x_gradient": 6,
    }
    trains = [task for task in request.planned.tasks if task.kind == "train"]
    assert -(-36 // 7) <= len(trains) == found.tasks / 2
    # an epoch of a pack takes about 0.01 s, and packs of nearly equal size that of the first
    assert 0.5 < found.seconds / (len(trains) * 4 * 0.01) < 4
    assert str(found).startswith("36 trainings, about ")
    learner.seconds, learner.stop_at, learner.epochs_run = 0.0, 9, 0
    with pytest.raises(KeyboardInterrupt):
        request.run()
    later = request.forecast()
    assert 0 < later.finished < later.tasks and later.again == 0
    assert 0 < later.cost["trainings"] < 36


def test_progress_goes_from_nothing_to_everything():
    seen: list[Progress] = []
    asked().run(seen.append)
    told = ("gradient and 1 more", "gradient", "input_x_gradient")  # of intact data both at once
    assert {step.doing.rstrip("/01234567") for step in seen} == {
        *(f"explaining {name}: {split}" for name in told for split in SPLITS),
        "training 4, epoch ",
        "training 5, epoch ",
    }
    done = [step.done for step in seen]
    assert done == sorted(done)
    assert done[0] == 0 and done[-1] == 36 == seen[-1].total


def test_a_learner_that_explains_one_model_after_the_other_tells_of_each(monkeypatch):
    seen: list[Progress] = []
    together = asked().run()
    monkeypatch.setattr(BagLearner, "explains_one_by_one", True, raising=False)
    one_by_one = asked().run(seen.append)
    told = {step.doing for step in seen}
    assert {f"explaining gradient and 1 more: test, model {n} of 2" for n in (1, 2)} <= told
    columns = ["training", "method", "metric", "value"]
    assert one_by_one.scores.select(columns) == together.scores.select(columns)


def test_all_leaves_out_what_a_model_cannot_give_and_a_name_does_not():
    request = asked(measures="all", seeds=1)
    assert [card.label for card in request.plan.methods] == [
        "gradient(norm=one_hot)",
        "input_x_gradient(signed=false)",
        "random",
    ]
    assert [(left.name, left.why) for left in request.plan.left_out] == [
        (papers(name).label, f"A bag of words cannot give '{name}'")
        for name in ("attention", "integrated_gradients")
    ]
    result = request.run()
    assert result.left_out == request.plan.left_out
    assert "attention is left out: A bag of words cannot give 'attention'." in result.warnings()
    some = asked(measures=["attention", "gradient"], seeds=1).plan
    assert [card.label for card in some.methods] == ["gradient", "random"]
    assert [left.name for left in some.left_out] == ["attention"]
    for named in (["attention"], "attention", ["attention", "random"]):
        with refused("cannot give 'attention'"):
            asked(measures=named)
    with refused("cannot give 'attention'"):
        asked(measures=["attention", "gradient"], strict=True)
    with refused("Unknown measure 'gradent'", "gradient"):
        asked(measures=["gradent"])
    with refused("'random_patch' is for images, and the model reads texts"):
        asked(measures=["random_patch"])


def test_texts_without_a_word_are_refused():
    data = bag_texts()
    empty = replace(data.test, texts=("",) * 24, words=((),) * 24)
    with refused("test split of 'bags' has no token that can be masked"):
        asked(data=replace(data, test=empty))


def test_words_that_are_no_text_do_not_stop_a_run(tmp_path):
    """No source gives half a character, but one's own data may."""
    data = bag_texts()
    odd = replace(data.test, words=tuple(("\ud800", *words) for words in data.test.words))
    found = asked(data=replace(data, test=odd), measures="gradient", seeds=1, out=tmp_path).run()
    assert found.examples.equals(fs.load_result(tmp_path).examples)


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

Value = Callable[[str, str, int, int], float]
EXPLAINING = dict(
    task="mask", kind="mask", explaining=1200.0, device="cpu", machine="x", host="x", versions=[]
)


def invented(
    value: Value,
    *,
    tested: int = 10,
    truncated: Mapping[str, int] | None = None,
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row,
    **options: Any,
) -> fs.Result:
    """A result whose performance is value(measure, procedure, k, seed); `change` alters rows."""
    levels = (0, 5, 10) if options.get("strategy") == "count" else (0, 50, 100)
    usual = {"measures": ("gradient", "random"), "levels": levels, "majority": 0.3}
    like = make_roar(data="invented", model="bag", **{**usual, **options})
    rows = []
    for row in like.trainings.to_pylist():
        name, procedure, k, seed = place = [row[c] for c in ("measure", "procedure", "k", "seed")]
        own = {"job": f"{name}-{procedure}-{k}-{seed}", "value": value(*place), "seconds": 60.0}
        rows.append(change({**row, **own}))
    task = {**EXPLAINING, "method": like.methods[0]}
    made = {"trainings": rows, "tasks": [task], "sparsity": [], "examples": [], "pictures": []}
    tables = {name: table_of_rows(name, held) for name, held in made.items()}
    data = like.manifest.data
    sizes = {"train": 80, "validation": 10, "test": tested}
    texts = data.texts.model_copy(update={"sizes": sizes, "truncated": dict(truncated or {})})
    data = data.model_copy(update={"texts": texts})
    return as_result(assemble(like.manifest.plan, tables, data, like.manifest.model))


def falling(name: str, procedure: str, k: int, seed: int) -> float:
    at = {"random": (1.0, 0.8, 0.2), "gradient": (1.0, 0.4, 0.2)}
    inside = k in (5, 50)
    return at[name][0 if k == 0 else 1 if inside else 2] + 0.001 * seed * inside


def counted(name: str, procedure: str, k: int, seed: int) -> float:
    """A curve of tokens that ends before everything is masked."""
    return falling(name, procedure, min(k, 5), seed)


def turned_around(name: str, procedure: str, k: int, seed: int) -> float:
    return falling({"random": "gradient", "gradient": "random"}[name], procedure, k, seed)


def mixed(name: str, procedure: str, k: int, seed: int) -> float:
    return falling("random" if seed == 0 else name, procedure, k, seed)


BETTER = "By Recursive ROAR, 1 method on 5 seeds: 1 better than random on racu (gradient)."


def test_a_good_run_gives_no_warnings(tmp_path):
    result = invented(falling)
    assert result.warnings() == []
    assert result.headline() == BETTER
    assert result.verdicts() == [
        f"gradient/{name} is better than random on every metric." for name in BOTH
    ]
    row = result.racu().to_pylist()[1]
    assert row["values"][0] == pytest.approx(0.2 / 0.5)
    assert row["area"] == pytest.approx(0.2, abs=1e-3)
    table = result.curves().to_pylist()
    assert len(table) == 2 * 2 * 3
    assert table[1]["mean"] == pytest.approx(0.402) and table[1]["n"] == 5
    minutes = {row["measure"]: row for row in result.compute_time().to_pylist()}
    assert (minutes["gradient"]["minutes"], minutes["gradient"]["walltime"]) == (5.0, "00:05")
    assert (minutes["random"]["minutes"], minutes["random"]["walltime"]) == (1.0, "00:01")
    assert fs.load_result(result.save(tmp_path)).headline() == result.headline()


def test_the_best_of_several_is_named_with_its_equals():
    def three(name: str, procedure: str, k: int, seed: int) -> float:
        own = "random" if name == "random" else "gradient"
        other = 0.002 * (-1) ** seed * (name == "input_x_gradient" and k == 50)
        return falling(own, procedure, k, seed) + other

    said = invented(three, measures=("gradient", "input_x_gradient", "random")).headline()
    assert "2 methods on 5 seeds: 2 better than random on racu" in said
    assert "Highest racu: gradient (0.399 [0.399, 0.400])" in said
    assert said.endswith(", with no significant difference from input_x_gradient.")


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        (falling, {}, "1 better than random on racu (gradient)"),
        (turned_around, {}, "1 worse than random on racu (gradient)"),
        (mixed, {"seeds": 3}, "1 with no significant difference from random on racu"),
        (counted, {"strategy": "count"}, "1 better than random on end"),
        (
            lambda m, p, k, s: 1 - falling(m, p, k, s),
            {"metric": "cross_entropy", "majority": 0.9},
            "1 better than random on racu",
        ),
        (
            lambda m, p, k, s: 1 - k / 200,
            {"measures": ("random",)},
            "Nothing was compared with random",
        ),
        (lambda m, p, k, s: 0.9, {}, "no significant difference from random"),
        (falling, {"majority": 1.0}, "No verdict: bag did not learn: "),
    ],
)
def test_a_headline_says_what_the_curves_do(value, options, words):
    assert words in invented(value, **options).headline()


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        (falling, {"seeds": 2}, "2 seeds: fewer than three give no interval and no verdict"),
        (falling, {"majority": 1.0}, "not significantly better than always guessing"),
        (falling, {"truncated": {"train": 3, "test": 1}}, "4 of 100 texts"),
        (counted, {"strategy": "count"}, "RACU is not defined where tokens are counted"),
        (
            lambda m, p, k, s: 0.9 if m == "random" else 0.9 - 0.2 * (k == 50),
            {},
            "not defined for seeds 0, 1, 2, 3, 4",
        ),
        (
            lambda m, p, k, s: 0.5 + 0.4 * (k == 100 and s == 3) - 0.1 * (k == 100 and s != 3),
            {"majority": 0.01},
            "opposite sign for seed 3",
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
        (
            lambda m, p, k, s: (
                0.2 if m == "random" and k == 50 and s in (1, 3) else falling(m, p, k, s)
            ),
            {},
            "at its first level (50 %) with seeds 1, 3: RACU",
        ),
    ],
)
def test_what_is_doubtful_is_said(value, options, words):
    said = invented(value, **options).warnings()
    assert any(words in sentence for sentence in said), said
    assert all(sentence.endswith(".") for sentence in said)


def test_trainings_that_diverged_are_named():
    wild = {"random-roar-0-2": np.nan, "gradient-recursive-50-1": np.inf}

    def change(row):
        is_loss = row["metric"] == "cross_entropy"
        return {**row, "value": wild.get(row["job"], row["value"])} if is_loss else row

    (said,) = invented(falling, change=change).warnings()
    assert said.startswith("gradient-recursive-50-1, random-roar-0-2 diverged: ")


def test_a_seed_without_racu_is_left_out_and_named():
    def flat_in_seed_1(name, procedure, k, seed):
        return 0.9 if seed == 1 and name == "random" else falling(name, procedure, k, seed)

    result = invented(flat_in_seed_1, seeds=4)
    row = result.racu().to_pylist()[0]
    assert row["degenerate"] == [1] and row["n"] == 3
    assert np.isnan(row["values"][1])
    assert row["mean"] == pytest.approx(np.nanmean(row["values"]))
    flags = {row["training"]: row["flag"] for row in result.scores.to_pylist()[:4]}
    assert flags == {0: "", 1: "no_loss", 2: "", 3: ""}
    (said,) = result.warnings()  # nor is a curve that loses nothing said to lose everything
    assert said.startswith("RACU is not defined for seed 1: ")


def test_racu_is_clipped_or_not():
    def beyond(name, procedure, k, seed):
        at = {"random": {0: 0.5, 50: 0.4, 100: 0.4}, "gradient": {0: 0.5, 50: 0.1, 100: 0.4}}
        return at[name][k]

    result = invented(beyond)
    assert result.racu().to_pylist()[0]["mean"] == 1.0
    assert result.racu(clip=False).to_pylist()[0]["mean"] == pytest.approx(6.0)
    assert result.rescore("racu(clip=false)").racu().to_pylist()[0]["mean"] == pytest.approx(6.0)
    assert result.racu(metric="auroc").num_rows == 2
    with refused("Unknown metric 'f1'"):
        result.racu(metric="f1")

    def once(name, procedure, k, seed):
        low = name == "gradient" and procedure == "roar" and k == 50 and seed == 2
        return -2.0 if low else falling(name, procedure, k, seed)

    (said,) = invented(once).warnings()
    assert said == "RACU was beyond ±100 % and is clipped to it: seed 2, gradient (roar)."
    assert invented(once).rescore("racu(clip=false)").warnings() == []


@pytest.mark.parametrize("value", [falling, turned_around])
@pytest.mark.parametrize("strategy", ["relative", "count"])
@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_give_no_verdict(value, strategy, seeds):
    result = invented(value, strategy=strategy, seeds=seeds)
    said = result.headline()
    assert "too few for a verdict: a verdict needs at least 3" in said
    assert "[" not in said and "better" not in said and result.verdicts() == []
    assert all(np.isnan(row["ci_low"]) for row in result.curves().to_pylist())
    assert all(np.isnan(row["ci_low"]) and not row["verdict"] for row in result.rows)
    rising = invented(lambda m, p, k, s: falling(m, p, 100 - k, s) if k else 1.0, seeds=seeds)
    assert not any("give the class away" in warning for warning in rising.warnings())


@pytest.mark.parametrize("base", [0.2, 0.3, 0.5])
@pytest.mark.parametrize("strategy", ["relative", "count"])
def test_a_model_that_learnt_nothing_gives_no_verdict(base, strategy):
    """Ten test texts: 0.3 ± 0.29 may be the most common class."""
    result = invented(lambda m, p, k, s: base, strategy=strategy)
    assert result.headline().startswith("No verdict: bag did not learn: ")
    assert result.verdicts() == [] and not any(row["verdict"] for row in result.rows)
    assert any("did not learn" in warning for warning in result.warnings())
    better = invented(lambda m, p, k, s: base, strategy=strategy, tested=10_000)
    assert better.trained.is_unlearned == better.forbids_verdicts == (base < 0.5)


def test_a_fall_to_guessing_that_ends_is_a_doubt():
    levels = (0, 30, 60, 100)

    def fallen(name, procedure, k, seed):
        alone = (name, procedure, seed) == ("gradient", "recursive", 3)
        return {0: 1.0, 30: 0.2 if alone else 0.6, 60: 0.5, 100: 0.2}[k]

    (said,) = invented(fallen, levels=levels, tested=500).warnings()
    assert "(gradient (recursive), seed 3: 20.0 % at 30 %, 50.0 % at 60 %)" in said
    assert "RACU takes the fall for tokens that mattered" in said
    assert invented(fallen, levels=levels).warnings() == []

    def everywhere(name, procedure, k, seed):
        return fallen("gradient", "recursive", k, 3) if name == "gradient" else 1 - 0.008 * k

    (said,) = invented(everywhere, levels=levels, tested=500).warnings()[-1:]
    assert said.endswith("; and 6 more).")


def test_models_that_answer_one_class_are_found():
    share = 0.4  # of the only answer, one of three classes

    def change(row):
        place = (row["measure"], row["procedure"], row["k"], row["seed"])
        value = share if place == ("gradient", "roar", 50, 2) else 0.9
        f1 = 2 * share / (1 + share) / 3 if value == share else 0.8
        return {**row, "value": f1 if row["metric"] == "macro_f1" else value}

    found = invented(falling, change=change).one_class()
    assert found == [{"measure": "gradient", "procedure": "roar", "seed": 2, "k": 50}]


@given(st.integers(0, 10**6), st.sampled_from([2, 3, 6]), st.booleans())
def test_macro_f1_shows_that_one_class_is_the_only_answer(seed, classes, is_constant):
    draw = torch.Generator().manual_seed(seed)
    labels, other = torch.randint(classes, (2, 500), generator=draw)
    answers = torch.full_like(labels, int(other[0])) if is_constant else other
    scores = classification_scores(torch.nn.functional.one_hot(answers, classes).double(), labels)
    result = invented(falling, seeds=1, change=lambda row: {**row, "value": scores[row["metric"]]})
    assert bool(result.one_class()) == is_constant


@pytest.mark.parametrize(
    ("random", "is_floored"),
    [
        ([0.9, 0.897, 0.9, 0.895], False),
        ([0.9, 0.31, 0.3, 0.3], True),
        ([0.9, 0.7, 0.5, 0.3], False),
    ],
    ids=["nothing is lost", "all at once", "step by step"],
)
def test_a_curve_that_loses_nothing_is_not_at_its_floor(random, is_floored):
    run = make_roar(seeds=3, measures=("gradient", "random"), levels=(0, 30, 60, 100))
    rows = run.trainings.to_pylist()
    for row in rows:
        value = random[run.trained.levels.index(row["k"])]
        row["value"] = value if row["measure"] == "random" or row["k"] in (0, 100) else value - 0.05
    curves = Trainings(run.manifest.plan, run.trained.card, table_of_rows("trainings", rows))
    kinds = [doubt.kind for doubt in doubts_of(curves, resolve_metrics("racu", "retrain"))]
    assert ("floored" in kinds) == is_floored
