"""Fine-tuning an encoder: it learns, can be taken up again, and gives the measures."""

import copy
import json
from dataclasses import replace

import pytest
import torch
import transformers

from encoders import ENCODERS, KEYWORDS, save_encoder, task
from faithscope import FaithscopeError
from faithscope.models.text_classifier import within
from faithscope.probes.retrain.finetune import (
    FinetuneLearner,
    finetune_recipe,
    make_optimizer,
    warm_up_and_decay,
)
from faithscope.probes.retrain.learner import Recipe
from measures import papers

RECIPE = Recipe(epochs=8, batch_size=16, learning_rate=5e-3, weight_decay=0.01)


@pytest.fixture(scope="module", params=ENCODERS)
def name(request, tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"), request.param)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("roberta"), "Roberta")


def learner_of(name, data, **changes):
    return FinetuneLearner(name, data, device="cpu", recipe=replace(RECIPE, **changes))


def train(learner, data, seed=0):
    training = learner.begin([data], [seed])
    while not training.is_done:
        training.run_epoch()
    return training


class TestLearning:
    def test_learns_a_keyword_and_every_measure_finds_it(self, name):
        texts = task(320)
        learner = learner_of(name, texts)
        data = learner.encode(texts)
        [trained] = train(learner, data).finish()
        assert trained.scores["accuracy"] > 0.95
        assert set(trained.scores) == {
            "accuracy",
            "macro_f1",
            "micro_f1",
            "auroc",
            "cross_entropy",
        }
        assert len(trained.validation) == RECIPE.epochs
        assert trained.validation[trained.epoch - 1] == max(trained.validation)
        assert trained.validation.index(max(trained.validation)) == trained.epoch - 1
        tokens = data.test
        keywords = torch.tensor([data.words.index(word) for word in KEYWORDS])
        chance = (1 / tokens.eligible.sum(1)).mean()  # one word in each text is a keyword
        for label in ("gradient", "input_x_gradient", "integrated_gradients"):
            [scores] = learner.explain([trained.weights], [tokens], papers(label), [0])
            assert scores.shape == tokens.ids.shape and scores.dtype == torch.float32
            assert (scores >= 0).all()
            assert not scores[~within(tokens.lengths, tokens.ids.shape[1])].any()
            top = scores.masked_fill(~tokens.eligible, -1).argmax(1, keepdim=True)
            found = torch.isin(tokens.ids.gather(1, top), keywords)
            assert found.double().mean() > 2 * chance

    def test_without_its_keyword_nothing_is_learnt(self, roberta):
        texts = task(320)
        learner = learner_of(roberta, texts)
        data = learner.encode(texts)
        keywords = torch.tensor([data.words.index(word) for word in KEYWORDS])
        masked = data.with_ids(
            {
                name: torch.where(torch.isin(part.ids, keywords), data.mask_id, part.ids)
                for name, part in data.splits
            }
        )
        [trained] = train(learner, masked).finish()
        assert trained.scores["accuracy"] < 0.7

    def test_pairs_need_both_texts(self, roberta):
        texts = task(480, pairs=True)
        learner = learner_of(roberta, texts)
        [trained] = train(learner, learner.encode(texts)).finish()
        assert trained.scores["accuracy"] > 0.95  # with one text alone, 0.75 at best

    def test_the_paper_selects_by_auroc(self, roberta):
        texts = replace(task(60), selection="auroc")
        learner = learner_of(roberta, texts, epochs=1)
        training = train(learner, learner.encode(texts))
        assert 0 <= training.members[0].validation[0] <= 1


@pytest.fixture(scope="module")
def small(roberta):
    texts = task(60)
    learner = learner_of(roberta, texts, epochs=4)
    return learner, learner.encode(texts)


def same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


class TestResume:
    @pytest.mark.parametrize("stop", [0, 1, 3])
    def test_goes_on_as_if_never_stopped(self, small, stop):
        learner, data = small
        whole = train(learner, data)
        training = learner.begin([data], [0])
        for _ in range(stop):
            training.run_epoch()
        state = {key: value.clone() for key, value in training.state().items()}
        training.run_epoch()  # what is done after a state was taken does not change it
        resumed = learner.begin([data], [0])
        resumed.load_state(state)
        assert resumed.epoch == stop
        same(resumed.state(), state)
        while not resumed.is_done:
            resumed.run_epoch()
        same(resumed.state(), whole.state())
        [a], [b] = resumed.finish(), whole.finish()
        same(a.weights, b.weights)
        assert (a.epoch, a.validation, a.scores) == (b.epoch, b.validation, b.scores)

    def test_a_best_epoch_that_is_not_the_last_is_kept(self, small, monkeypatch):
        learner, data = small
        scores = iter([0.5, 0.9, 0.9, float("nan")])
        monkeypatch.setattr(
            "faithscope.probes.retrain.finetune.selection_score", lambda *_: next(scores)
        )
        training = learner.begin([data], [0])
        training.run_epoch()
        training.run_epoch()
        best = training.state()
        training.run_epoch()
        resumed = learner.begin([data], [0])
        resumed.load_state(training.state())
        resumed.run_epoch()
        [trained] = resumed.finish()
        assert trained.epoch == 2  # the earliest of equal ones
        for key, value in trained.weights.items():
            assert torch.equal(value, best[f"0.model.{key}"])

    def test_an_epoch_without_a_score_gives_way(self, small, monkeypatch):
        learner, data = small
        scores = iter([float("nan"), 0.1, 0.1, 0.1])
        monkeypatch.setattr(
            "faithscope.probes.retrain.finetune.selection_score", lambda *_: next(scores)
        )
        assert train(learner, data).finish()[0].epoch == 2

    def test_seeds_differ_and_repeat(self, small):
        learner, data = small
        first, again, other = (train(learner, data, seed).state() for seed in (3, 3, 4))
        same(first, again)
        assert not torch.equal(
            first["0.model.classifier.dense.weight"], other["0.model.classifier.dense.weight"]
        )

    def test_random_state_is_not_touched(self, small):
        learner, data = small
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        expected = train(learner, data)
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.manual_seed(6)
        same(train(learner, data).state(), expected.state())

    def test_order_and_dropout_change_with_the_epoch(self, small):
        learner, data = small
        training = learner.begin([data], [0])
        [one] = training.members
        first = one._key("order"), one._key("dropout")
        training.run_epoch()
        assert len({*first, one._key("order"), one._key("dropout")}) == 4

    def test_state_is_tensors_of_its_own(self, small):
        learner, data = small
        training = learner.begin([data], [0])
        training.run_epoch()
        state = training.state()
        assert all(isinstance(value, torch.Tensor) for value in state.values())
        kept = copy.deepcopy(state)
        training.run_epoch()
        same(state, kept)


class TestPacks:
    def test_a_model_of_a_pack_is_the_one_trained_alone(self, small):
        learner, data = small
        ids = {name: part.ids.flip(0) for name, part in data.splits}
        other = data.with_ids(ids)
        pack = learner.begin([data, other], [3, 4])
        pack.run_epoch()
        state = pack.state()
        resumed = learner.begin([data, other], [3, 4])
        resumed.load_state(state)
        for training in (pack, resumed):
            while not training.is_done:
                training.run_epoch()
        same(pack.state(), resumed.state())
        alone = [train(learner, one, seed) for one, seed in ((data, 3), (other, 4))]
        for place, whole in enumerate(alone):
            expected = {k.removeprefix("0."): v for k, v in whole.state().items()}
            found = {k.removeprefix(f"{place}."): v for k, v in pack.state().items()}
            same({key: found[key] for key in expected}, expected)
        for ours, whole in zip(pack.finish(), alone, strict=True):
            [theirs] = whole.finish()
            same(ours.weights, theirs.weights)
            assert (ours.epoch, ours.validation) == (theirs.epoch, theirs.validation)

    def test_a_module_that_is_used_again_leaves_nothing_behind(self, small):
        learner, data = small
        [first] = train(learner, data, 5).finish()
        train(learner, data, 6).finish()
        training = train(learner, data, 5)
        [again] = training.finish()
        assert training.members[0].bench in learner._benches
        same(first.weights, again.weights)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestGPU:
    def test_graphs_take_the_steps_that_are_taken_without(self, name):
        texts = task(320)
        found = []
        for records in (True, False):
            learner = FinetuneLearner(name, texts, device="cuda", recipe=RECIPE)
            data = learner.encode(texts)
            training = learner.begin([data] * 3, [0, 1, 2])
            for one in training.members:
                one.bench.lane.records = records
            steps = zip(*(one.steps() for one in training.members), strict=True)
            found.append(torch.stack([step() for group in steps for step in group]).cpu())
            assert bool(training.members[0].bench.lane.recorded) == records
        assert (found[0] - found[1]).abs().max() < 1e-4

    def test_learns_explains_and_goes_on_without_touching_random_state(self, name):
        texts = task(320)
        learner = FinetuneLearner(name, texts, device="cuda", recipe=RECIPE)
        data = learner.encode(texts)
        before = torch.random.get_rng_state(), torch.cuda.get_rng_state()
        training = learner.begin([data], [0])
        training.run_epoch()
        state = training.state()
        assert {value.device.type for value in state.values()} == {"cpu"}
        resumed = learner.begin([data], [0])
        resumed.load_state(state)
        same(resumed.state(), state)
        while not resumed.is_done:
            resumed.run_epoch()
        [trained] = resumed.finish()
        assert torch.equal(torch.random.get_rng_state(), before[0])
        assert torch.equal(torch.cuda.get_rng_state(), before[1])
        assert trained.scores["accuracy"] > 0.95
        other = learner_of(name, texts)
        for label in ("gradient", "input_x_gradient", "integrated_gradients"):
            asked = ([trained.weights], [data.test], papers(label), [0])
            torch.testing.assert_close(
                learner.explain(*asked), other.explain(*asked), rtol=1e-3, atol=1e-4
            )


class TestRecipe:
    def test_schedule_is_that_of_transformers(self):
        for steps in (1, 10, 100, 333):
            optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
            theirs = transformers.get_linear_schedule_with_warmup(
                optimizer, int(0.06 * steps), steps
            )
            for step in range(steps):
                assert warm_up_and_decay(step, steps) == pytest.approx(theirs.get_last_lr()[0])
                optimizer.step()
                theirs.step()

    def test_of_the_paper(self, roberta):
        assert finetune_recipe("babi") == Recipe(8, 16, 2e-5, 0.01)
        for kind in ("sst", "imdb", "snli", "mimic", "own"):
            assert finetune_recipe(kind) == Recipe(3, 16, 2e-5, 0.01)
        assert FinetuneLearner(roberta, replace(task(8), kind="babi")).recipe.epochs == 8

    def test_biases_and_normalisations_do_not_decay(self, name):
        module = learner_of(name, task(8)).checkpoint.build(0)
        optimizer = make_optimizer(module, RECIPE)
        decays = {
            id(p): group["weight_decay"]
            for group in optimizer.param_groups
            for p in group["params"]
        }
        for key, parameter in module.named_parameters():
            spared = key.endswith("bias") or "norm" in key.lower()
            assert decays[id(parameter)] == (0 if spared else 0.01), key
        assert optimizer.defaults["betas"] == (0.9, 0.98)
        assert optimizer.defaults["eps"] == 1e-8

    def test_one_step_is_plain_adamw(self, small):
        """The first step that moves anything, against a loop written out."""
        learner, data = small
        learner = copy.copy(learner)
        learner.recipe = replace(RECIPE, epochs=1, batch_size=len(data.train))
        training = learner.begin([data], [0])
        trained = training.members[0].module
        for child in trained.modules():
            if isinstance(child, torch.nn.Dropout):
                child.p = 0.0
        _without_attention_dropout(trained)
        module = copy.deepcopy(trained).train()
        training.run_epoch()
        mask = (data.train.ids != data.pad_id).long()
        logits = module(input_ids=data.train.ids, attention_mask=mask).logits
        torch.nn.functional.cross_entropy(logits, data.train.labels).backward()
        after = dict(trained.named_parameters())
        for key, p in module.named_parameters():
            if p.grad is None:
                continue
            decay = 0 if key.endswith("bias") or "LayerNorm" in key else 0.01
            clear = p.grad.abs() > 1e-5  # Adam's first step has the size of the rate
            expected = p * (1 - RECIPE.learning_rate * decay) - RECIPE.learning_rate * p.grad.sign()
            torch.testing.assert_close(after[key][clear], expected[clear], rtol=0, atol=1e-5)


def _without_attention_dropout(module):
    for child in module.modules():
        if isinstance(getattr(child, "dropout", None), float):
            child.dropout = 0.0
        if isinstance(getattr(child, "attention_dropout", None), float):
            child.attention_dropout = 0.0


class TestLearner:
    def test_facts(self, name):
        texts = task(8)
        learner = learner_of(name, texts)
        assert learner.name == name and learner.device == "cpu" and learner.pack_size == 1
        module = learner.checkpoint.build(0)
        expected = sum(p.numel() for p in module.parameters())
        assert learner.parameters(learner.encode(texts)) == expected

    def test_explains_several_models_each_by_its_weights(self, small):
        learner, data = small
        weights = [train(learner, data, seed).finish()[0].weights for seed in (0, 1)]
        chosen = papers("gradient")
        both = learner.explain(weights, [data.test, data.validation], chosen, [0, 1])
        [second] = learner.explain([weights[1]], [data.validation], chosen, [1])
        [other] = learner.explain([weights[0]], [data.validation], chosen, [0])
        assert torch.equal(both[1], second)
        assert not torch.allclose(both[1], other)

    def test_attention_is_refused(self, small):
        learner, data = small
        for call in (
            lambda: learner.check(papers("attention")),
            lambda: learner.explain([{}], [data.test], papers("attention"), [0]),
        ):
            with pytest.raises(FaithscopeError, match="'attention' needs one attention weight"):
                call()

    @pytest.mark.parametrize("label", ["random", "mutual_information"])
    def test_measures_without_a_model_pass_the_check_only(self, small, label):
        learner, data = small
        learner.check(papers(label))
        with pytest.raises(FaithscopeError, match="does not ask the model"):
            learner.explain([{}], [data.test], papers(label), [0])

    def test_finish_needs_an_epoch(self, small):
        learner, data = small
        with pytest.raises(FaithscopeError, match="has not finished an epoch"):
            learner.begin([data], [0]).finish()

    def test_weights_can_be_kept_in_safetensors(self, small, tmp_path):
        from safetensors.torch import load_file, save_file

        learner, data = small
        training = train(learner, data)
        save_file(training.state(), tmp_path / "state.safetensors")
        resumed = learner.begin([data], [0])
        resumed.load_state(load_file(tmp_path / "state.safetensors"))
        same(resumed.state(), training.state())
        assert json.dumps(resumed.finish()[0].scores)
