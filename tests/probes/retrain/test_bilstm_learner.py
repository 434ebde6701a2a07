"""Training and explaining packs of BiLSTM-attention models: as alone, as straightforward, again."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch.nn import functional

import faithscope.probes.retrain.bilstm as module
import faithscope.probes.retrain.pack as pack
from bilstm_tasks import benchmark, masked, rows_of, small_learner, split, task, train
from faithscope.data.text import WordVectors
from faithscope.data.text_sources import load_text
from faithscope.probes.retrain.bilstm import BiLSTMLearner
from faithscope.probes.retrain.classification import classification_scores
from faithscope.probes.retrain.learner import Recipe
from measures import papers

KINDS = pytest.mark.parametrize("paired", [False, True], ids=["single", "paired"])
MEASURES = ("attention", "gradient", "input_x_gradient", "integrated_gradients")


def assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == right[name].dtype and torch.equal(value, right[name]), name


def all_losses(training):
    """Losses [steps, M] of all epochs."""
    found = []
    while not training.is_done:
        training.run_epoch()
        found.append(training.losses.clone())
    return torch.cat(found)


@KINDS
class TestAgainstTheStraightforwardModel:
    """nn.LSTM on packed sequences, nn.Embedding and PyTorch's Adam, step by step in float64."""

    RECIPE = Recipe(epochs=6, batch_size=10, learning_rate=0.02, weight_decay=0.002)

    def ours(self, data):
        learner = replace_recipe(small_learner(data), self.RECIPE)
        training = learner.begin([data], [3])
        for value in training.parameters.values():
            value.data = value.data.to(torch.float64)
        start = {name: value[0].detach().clone() for name, value in training.parameters.items()}
        order = torch.cat([training.order(epoch) for epoch in range(6)])
        return learner, start, order, torch.cat([training.step(rows) for rows in order])

    def theirs(self, data, learner, start, order, *, amsgrad=True, decays_attention=None):
        bench = benchmark()
        model = bench.straightforward(learner, data, start).to(torch.float64)
        model.take(start)
        if decays_attention is None:
            decays_attention = data.train.auxiliary is not None
        attention = [*model.attend.parameters(), *model.vector.parameters()]
        if model.attend_query is not None:
            attention += model.attend_query.parameters()
        rest = [p for p in model.parameters() if all(p is not a for a in attention)]
        decay = self.RECIPE.weight_decay
        optimizer = torch.optim.Adam(
            [
                {"params": rest, "weight_decay": decay},
                {"params": attention, "weight_decay": decay if decays_attention else 0.0},
            ],
            lr=self.RECIPE.learning_rate,
            amsgrad=amsgrad,
        )
        losses = []
        for [rows] in order:
            given = bench.padded(data.train, rows[rows >= 0], "cpu")
            ids, lengths, eligible, other, other_lengths, labels = given
            optimizer.zero_grad()
            embedded = model.main.embedding(ids)
            logits = model(embedded, lengths, eligible, other, other_lengths)
            loss = functional.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    def test_losses_of_every_step(self, paired):
        data = task(paired=paired)
        learner, start, order, mine = self.ours(data)
        assert len(mine) == 30 and mine[-5:].mean() < 0.8 * mine[:5].mean()
        expected = self.theirs(data, learner, start, order)
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-10)

    def test_would_notice_a_wrong_optimiser(self, paired):
        data = task(paired=paired)
        learner, start, order, mine = self.ours(data)
        for wrong in ({"amsgrad": False}, {"decays_attention": not paired}):
            other = self.theirs(data, learner, start, order, **wrong)
            assert (mine - other).abs().max() > 1e-6


def replace_recipe(learner, recipe):
    learner.recipe = recipe
    return learner


@KINDS
class TestPack:
    """Models of a pack have nothing in common but their shape."""

    def test_trains_each_as_alone(self, paired):
        plain = task(paired=paired)
        data, seeds = [plain, masked(plain, 1), masked(plain, 2), plain], [0, 0, 7, 8]
        learner = small_learner(plain, epochs=4)
        training = learner.begin(data, seeds)
        together, finished = all_losses(training), training.finish()
        assert together.shape == (20, 4)
        for place, (part, seed) in enumerate(zip(data, seeds, strict=True)):
            alone = learner.begin([part], [seed])
            torch.testing.assert_close(together[:, [place]], all_losses(alone), rtol=0, atol=1e-5)
            [expected] = alone.finish()
            assert finished[place].validation == expected.validation
            assert finished[place].epoch == expected.epoch
            for name, value in expected.weights.items():
                torch.testing.assert_close(finished[place].weights[name], value, rtol=0, atol=1e-5)

    def test_models_differ_by_seed_and_by_data(self, paired):
        plain = task(paired=paired)
        losses = all_losses(small_learner(plain).begin([plain, plain, masked(plain, 1)], [0, 1, 0]))
        assert (losses[0, 0] - losses[0, 1]).abs() > 1e-4
        assert (losses[0, 0] - losses[0, 2]).abs() > 1e-4

    @pytest.mark.parametrize("name", MEASURES)
    def test_explains_each_as_alone(self, paired, name):
        plain = task(paired=paired)
        data, seeds = [plain, masked(plain, 1), masked(plain, 2)], [0, 0, 7]
        learner = small_learner(plain)
        weights = [trained.weights for trained in train(learner.begin(data, seeds)).finish()]
        tokens = [part.validation for part in data]
        together = learner.explain(weights, tokens, papers(name))
        for mine, one, part in zip(together, weights, tokens, strict=True):
            [alone] = learner.explain([one], [part], papers(name))
            torch.testing.assert_close(mine, alone, rtol=0, atol=1e-6)


@pytest.fixture(scope="module", params=[False, True], ids=["single", "paired"])
def trained(request):
    data = task(paired=request.param)
    learner = small_learner(data)
    pack = learner.begin([data, masked(data, 1)], [0, 1])
    return learner, [one.weights for one in train(pack).finish()], data


class TestExplain:
    @pytest.mark.parametrize("name", MEASURES)
    @pytest.mark.parametrize("tokens", [1, 300, 10**6])
    def test_how_much_goes_into_a_pass_does_not_matter(self, trained, name, tokens, monkeypatch):
        learner, weights, data = trained
        given = (weights, [data.test, masked(data, 1).test], papers(name))
        expected = learner.explain(*given)
        monkeypatch.setitem(module.TOKENS_PER_PASS, "cpu", tokens)
        for mine, other in zip(learner.explain(*given), expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("name", MEASURES)
    def test_each_text_as_alone_and_in_its_place(self, trained, name):
        learner, weights, data = trained
        [found] = learner.explain(weights[:1], [data.test], papers(name))
        assert found.shape == data.test.ids.shape and found.dtype == torch.float32
        for row in range(len(data.test)):
            part = rows_of(data.test, slice(row, row + 1))
            [alone] = learner.explain(weights[:1], [part], papers(name))
            torch.testing.assert_close(found[[row]], alone, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("name", MEASURES)
    def test_nothing_beyond_a_text(self, trained, name):
        learner, weights, data = trained
        for found in learner.explain(weights, [data.test, data.test], papers(name)):
            inside = torch.arange(found.shape[1]) < data.test.lengths[:, None]
            assert (found[~inside] == 0).all() and (found >= 0).all()
            shown = data.test.eligible if name == "attention" else inside
            assert (found[shown] > 0).all()

    def test_nothing_beyond_a_text_whatever_the_measure(self, trained):
        learner, weights, data = trained
        ones = replace(papers("attention"), function=lambda e: torch.ones_like(e.attention))
        [found] = learner.explain(weights[:1], [data.test], ones)
        assert torch.equal(found.sum(1), data.test.lengths.to(torch.float32))

    def test_attention_sums_to_one(self, trained):
        learner, weights, data = trained
        [found] = learner.explain(weights[:1], [data.test], papers("attention"))
        torch.testing.assert_close(found.sum(1), torch.ones(len(found)), rtol=0, atol=1e-6)
        assert (found[~data.test.eligible] == 0).all()

    @pytest.mark.parametrize("name", MEASURES)
    def test_twice_gives_the_same_bits(self, trained, name):
        learner, weights, data = trained
        first, again = (learner.explain(weights[:1], [data.test], papers(name)) for _ in "ab")
        assert torch.equal(first[0], again[0])

    def test_weights_are_not_changed(self, trained):
        learner, weights, data = trained
        before = {name: value.clone() for name, value in weights[0].items()}
        learner.explain(weights[:1], [data.test], papers("integrated_gradients"))
        assert_same_bits(dict(weights[0]), before)
        assert not any(value.requires_grad for value in weights[0].values())


class TestOrder:
    def test_every_text_once_and_the_last_batch_may_be_smaller(self):
        data = task()
        order = small_learner(data).begin([data, data], [0, 1]).order(0)
        assert order.shape == (5, 2, 10)
        for place in range(2):
            rows = order[:, place].flatten()
            assert sorted(rows[:44].tolist()) == list(range(44)) and (rows[44:] == -1).all()

    def test_is_keyed_by_seed_and_epoch(self):
        data = task()
        learner = small_learner(data)
        pack, other = learner.begin([data] * 3, [0, 1, 0]), learner.begin([data], [1])
        assert torch.equal(pack.order(2)[:, [1]], other.order(2))
        assert torch.equal(pack.order(2)[:, 0], pack.order(2)[:, 2])
        made = [pack.order(epoch)[:, place] for epoch in range(4) for place in range(2)]
        for at, one in enumerate(made):
            assert not any(torch.equal(one, another) for another in made[:at])

    def test_does_not_depend_on_what_was_trained(self):
        data = task()
        training = small_learner(data).begin([data], [0])
        before = training.order(2)
        train(training, 2)
        assert torch.equal(training.order(2), before)

    def test_leaves_global_randomness_alone(self):
        data = task()
        state = torch.get_rng_state()
        train(small_learner(data).begin([data], [0])).finish()
        assert torch.equal(torch.get_rng_state(), state)


class TestLastBatch:
    def test_counts_only_the_texts_it_has(self):
        """The mean over 4 texts, whatever fills the batch up."""
        data = task()
        for size, rows in ((10, [5, 9, 2, 30, *[-1] * 6]), (4, [5, 9, 2, 30])):
            training = small_learner(data, batch_size=size).begin([data], [0])
            loss = training.step(torch.tensor([rows]))
            weights = training.state()
            if size == 10:
                expected_loss, expected = loss, weights
        torch.testing.assert_close(loss, expected_loss, rtol=0, atol=1e-6)
        for name, value in weights.items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("count", [1, 9, 10, 11])
    def test_of_any_size(self, count):
        data = task(count)
        training = train(small_learner(data).begin([data], [0]))
        assert training.steps_per_epoch == (2 if count == 11 else 1)
        assert training.losses.isfinite().all()


class TestBestEpoch:
    def scripted(self, monkeypatch, columns, selection="auroc"):
        """Train a pack whose validation scores are given; also every epoch's weights."""
        rows = iter(np.array(columns).T.flatten().tolist())
        monkeypatch.setattr(pack, "selection_score", lambda *_: next(rows))
        data = task(selection=selection)
        models, epochs = len(columns), len(columns[0])
        learner = small_learner(data, epochs=epochs)
        training = learner.begin([data] * models, list(range(models)))
        after = []
        while not training.is_done:
            training.run_epoch()
            after.append({name: v.detach().clone() for name, v in training.parameters.items()})
        return training.finish(), after

    def test_is_the_earliest_on_ties_and_each_models_own(self, monkeypatch):
        columns = [[0.5, 0.7, 0.7, 0.6], [0.9, 0.2, 0.9, 0.9], [0.1, 0.2, 0.3, 0.4]]
        finished, after = self.scripted(monkeypatch, columns)
        assert [trained.epoch for trained in finished] == [2, 1, 4]
        for place, trained in enumerate(finished):
            assert trained.validation == tuple(columns[place])
            for name, value in trained.weights.items():
                assert torch.equal(value, after[trained.epoch - 1][name][place])

    @pytest.mark.parametrize(
        ("scores", "best"),
        [
            ([float("nan"), 0.5, 0.7, 0.7], 3),
            ([0.5, float("nan"), 0.7, 0.6], 3),
            ([0.5, float("nan"), 0.4, float("nan")], 1),
            ([0.0, float("nan"), 0.0, 0.0], 1),
            ([float("nan"), float("nan"), 0.0, float("nan")], 3),
            ([float("nan")] * 4, 1),
        ],
    )
    def test_nan_is_never_preferred(self, monkeypatch, scores, best):
        finished, after = self.scripted(monkeypatch, [scores, [0.1, 0.3, 0.2, 0.3]])
        assert [trained.epoch for trained in finished] == [best, 2]
        for place, trained in enumerate(finished):
            for name, value in trained.weights.items():
                assert torch.equal(value, after[trained.epoch - 1][name][place])

    @pytest.mark.parametrize("selection", ["accuracy", "auroc"])
    def test_is_tested_on_the_test_split(self, selection):
        data = task(selection=selection)
        learner = small_learner(data, epochs=4)
        [trained] = train(learner.begin([data], [0])).finish()
        assert trained.validation[trained.epoch - 1] == max(trained.validation)
        p = {name: value[None] for name, value in trained.weights.items()}
        test = data.test
        logits = module.bilstm.classify(p, test.ids[None], test.lengths[None], test.eligible[None])
        expected = classification_scores(logits.logits[0], test.labels)
        assert trained.scores == pytest.approx(expected, abs=1e-6)


class TestGoingOn:
    """A training that was taken up again is the training that was not interrupted."""

    EPOCHS = 4

    def begin(self, paired):
        data = task(paired=paired)
        return small_learner(data, epochs=self.EPOCHS).begin([data, masked(data, 1)], [0, 5])

    @KINDS
    def test_from_every_epoch_bit_by_bit(self, paired):
        states, training = [], self.begin(paired)
        while not training.is_done:
            states.append(save(training.state()))
            training.run_epoch()
        for epoch, state in enumerate(states):
            again = self.begin(paired)
            again.load_state(load(state))
            assert again.epoch == epoch
            train(again)
            assert_same_bits(again.state(), training.state())
            for one, other in zip(again.finish(), training.finish(), strict=True):
                assert (one.epoch, one.validation) == (other.epoch, other.validation)
                assert one.scores == other.scores
                assert_same_bits(dict(one.weights), dict(other.weights))

    def test_into_a_training_that_has_gone_elsewhere(self):
        training = train(self.begin(False), 1)
        state = training.state()
        other = train(self.begin(False), 3)
        other.load_state(state)
        assert_same_bits(train(other).state(), train(training).state())

    def test_a_state_is_a_copy(self):
        training = train(self.begin(False), 1)
        state = training.state()
        before = {name: value.clone() for name, value in state.items()}
        train(training, 1)
        assert_same_bits(state, before)
        other = self.begin(False)
        other.load_state(state)
        train(other, 1)
        assert_same_bits(state, before)

    def test_same_seed_same_bits(self):
        assert_same_bits(train(self.begin(True)).state(), train(self.begin(True)).state())


class TestEmbeddings:
    @KINDS
    def test_the_paddings_row_stays_zero(self, paired):
        data = task(paired=paired)
        training = train(small_learner(data).begin([data, masked(data, 1)], [0, 1]))
        for name, value in training.parameters.items():
            if name.endswith("embedding"):
                assert not value[:, 0].any() and value[:, 1:].any()

    @KINDS
    @pytest.mark.parametrize("words", [20, 400])
    def test_words_that_never_occur_only_decay(self, paired, words):
        """Vocabularies smaller and larger than a batch; the last words occur nowhere."""
        data = task(paired=paired)
        more = tuple(f"never {place}" for place in range(words - 18))
        data = replace(data, words=(*data.words, *more))
        training = small_learner(data, weight_decay=0.0).begin([data], [0])
        start = training.state()["parameter/main.embedding"]
        end = train(training).state()["parameter/main.embedding"]
        assert torch.equal(start[:, 20:], end[:, 20:])
        met = data.train.ids.unique()
        met = met[met > 0]
        assert (start[:, met] != end[:, met]).any(-1).all()

    def test_pretrained_vectors_are_where_training_starts(self):
        known = {"word 6": np.array([1.0, 2.0, 3.0, 4.0])}
        data = task(vectors=WordVectors(known, 4))
        learner = small_learner(data)
        training = learner.begin([data, data], [0, 1])
        table = training.state()["parameter/main.embedding"]
        assert learner.shape(data).embedding == 4 and table.shape == (2, 20, 4)
        assert table[:, 6].tolist() == [[1, 2, 3, 4]] * 2
        assert not table[:, :6].any() and not table[:, 7:].any()
        train(training)
        end = training.parameters["main.embedding"]
        assert end.isfinite().all() and (end[:, 6] != table[:, 6]).any()
        assert not end[:, 0].any()


class TestShortTexts:
    """Texts of one token and texts with nothing to mask, in every split."""

    @KINDS
    def test_are_trained_on_and_explained(self, paired):
        lengths = [1, 2, 5, 2, 1, 7, 3]
        others = [1, 2, 1, 3, 1, 2, 1] if paired else None
        part = split(lengths, others)
        data = replace(task(paired=paired), train=part, validation=part, test=part)
        learner = small_learner(data, batch_size=3)
        training = learner.begin([data, data], [0, 1])
        finished = train(training).finish()
        assert training.losses.isfinite().all()
        for trained in finished:
            assert all(value.isfinite().all() for value in trained.weights.values())
            assert np.isfinite(trained.scores["cross_entropy"])
        for name in MEASURES:
            for found in learner.explain([t.weights for t in finished], [part] * 2, papers(name)):
                empty = part.lengths <= 2
                assert found.isfinite().all() and not found[empty].any()
                assert (found[~empty].sum(1) > 0).all()

    def test_nothing_but_empty_texts(self):
        part = split([2, 1, 2])
        data = replace(task(), train=part, validation=part, test=part)
        learner = small_learner(data)
        [trained] = train(learner.begin([data], [0])).finish()
        assert all(value.isfinite().all() for value in trained.weights.values())
        [found] = learner.explain([trained.weights], [part], papers("attention"))
        assert not found.any()


class TestBundledSample:
    """Two facts and a question of bAbI-1; six places are the answer, of 36 classes."""

    def trained(self, epochs):
        texts = load_text("bundled:babi1")
        learner = BiLSTMLearner(texts.kind)
        data = learner.encode(texts)
        assert learner.parameters(data) == 55_048
        assert (learner.recipe.epochs, learner.recipe.batch_size) == (100, 50)
        replace_recipe(learner, replace(learner.recipe, epochs=epochs))
        [trained] = train(learner.begin([data], [0])).finish()
        return learner, data, trained

    def test_is_learnt_far_above_chance_in_a_few_epochs(self):
        _, data, trained = self.trained(4)
        majority = data.test.labels.bincount().max() / len(data.test)
        assert trained.scores["accuracy"] > 0.45 > 2 * majority

    @pytest.mark.slow
    def test_is_learnt_in_twenty_epochs_and_measures_find_the_place(self):
        learner, data, trained = self.trained(20)
        assert trained.scores["accuracy"] >= 0.98
        places = torch.tensor([data.words.index(data.classes[c]) for c in data.test.labels])
        is_answer = data.test.ids == places[:, None]
        assert is_answer.any(1).all()
        eligible = data.test.eligible
        chance = (is_answer.sum(1) / eligible.sum(1)).mean()
        for name in ("input_x_gradient", "integrated_gradients"):
            [found] = learner.explain([trained.weights], [data.test], papers(name))
            top = found.masked_fill(~eligible, -1).argmax(1, keepdim=True)
            assert is_answer.gather(1, top).to(torch.float32).mean() > 3 * chance


class TestSizes:
    def test_a_batch_is_not_larger_than_the_data(self):
        data = task()
        count = len(data.train)
        large = replace_recipe(small_learner(data), Recipe(epochs=2, batch_size=10**12))
        exact = replace_recipe(small_learner(data), Recipe(epochs=2, batch_size=count))
        runs = [all_losses(learner.begin([data], [0])) for learner in (large, exact)]
        assert torch.equal(*runs)

    @KINDS
    def test_steps_of_one_shape_equal_steps_as_long_as_their_texts(self, paired):
        """As on a GPU: all steps read as many rows at each time; the last has rows of no text."""
        data = task(paired=paired)
        by_text, by_shape = (small_learner(data).begin([data] * 2, [0, 1]) for _ in range(2))
        counts = by_shape.most_rows(3)
        lengths = data.train.lengths
        assert sum(counts) < len(counts) * by_shape.batch_size
        assert len(counts) == lengths.max()
        for epoch in range(3):
            order = by_shape.order(epoch)
            for rows, ordered in zip(order, module._longest_first(order, lengths), strict=True):
                losses = by_text.step(rows), by_shape.step(ordered, counts)
                torch.testing.assert_close(*losses, rtol=0, atol=1e-6)
        values = by_text.parameters, by_shape.parameters
        torch.testing.assert_close(*map(dict, values), rtol=0, atol=1e-5)

    def test_no_step_has_more_rows_than_the_most(self):
        data = task()
        training = small_learner(data).begin([data] * 3, [4, 9, 4])
        most = torch.tensor(training.most_rows(3))
        times = torch.arange(len(most))
        seen = torch.zeros_like(most)
        for epoch in range(3):
            for rows in training.order(epoch).flatten(0, 1):
                read = data.train.lengths[rows[rows >= 0]]
                seen = seen.maximum((read[:, None] > times).sum(0))
        shortest = data.train.lengths.min()
        assert torch.equal(seen[shortest:], most[shortest:])
        assert (most[:shortest] == training.batch_size).all()

    def test_one_long_text_does_not_make_others_go_one_by_one(self):
        tokens = split([200, *[5] * 99])
        texts = module.Texts.of([tokens], "cpu")
        batches = list(texts.by_length(200))
        assert [len(rows) for rows in batches] == [1, 40, 40, 19]
        assert sorted(torch.cat(batches).tolist()) == list(range(100))

    def test_long_texts_make_packs_small(self, monkeypatch):
        texts = load_text("bundled:babi1", limit=60)
        assert BiLSTMLearner(texts.kind).pack_size == 8
        monkeypatch.setitem(module.TOKENS_PER_STEP, "cpu", 2000)
        learner = BiLSTMLearner(texts.kind)
        data = learner.encode(texts)
        longest = int(data.train.lengths.max())
        assert learner.pack_size == 2000 // (50 * longest) < 8
        asked = BiLSTMLearner(texts.kind, pack_size=5)
        asked.encode(texts)
        assert asked.pack_size == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestGPU:
    @KINDS
    @pytest.mark.parametrize("hidden", [32, 128, 5])
    def test_trains_and_explains_as_the_cpu(self, paired, hidden):
        """The kernels (32 units in registers, 128 not), the loop, and the recorded step."""
        data = task(200, paired=paired)
        both = [data, masked(data, 1)]
        found = {}
        for device in ("cpu", "cuda"):
            learner = BiLSTMLearner(data.kind, device=device, recipe=Recipe(3, 10))
            learner.setting = replace(learner.setting, hidden=hidden, embedding=7)
            training = learner.begin(both, [0, 1])
            found[device] = all_losses(training).cpu()
            weights = [trained.weights for trained in training.finish()]
            if device == "cpu":
                kept = weights
            for name in MEASURES:
                tokens = [part.test for part in both]
                scores = learner.explain(kept, tokens, papers(name), [0, 1])
                found[device, name] = torch.stack(scores)
        torch.testing.assert_close(found["cpu"], found["cuda"], rtol=0, atol=2e-4)
        for name in MEASURES:
            pair = found["cpu", name], found["cuda", name]
            torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-5)
