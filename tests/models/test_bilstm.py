"""BiLSTM-attention: the program's numbers, many models at once, and texts of every length."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilstm_tasks import benchmark, classify, pack, rows_of, split
from conftest import FIXTURES, randn
from faithscope.data.text import Tokens, WordVectors
from faithscope.data.vocabulary import MASK
from faithscope.methods.bilstm import Texts, bilstm_evidence, token_scores
from faithscope.methods.text import Path, path_of
from faithscope.models import bilstm
from faithscope.models.bilstm import Shape
from faithscope.models.recurrence import GATES
from faithscope.probes.retrain.bilstm import SETTINGS, BiLSTMLearner
from measures import PAPERS, papers

SINGLE = Shape(20, 7, 5, 3, is_paired=False)
PAIRED = Shape(20, 7, 5, 3, is_paired=True)
SHAPES = pytest.mark.parametrize("shape", [SINGLE, PAIRED], ids=["single", "paired"])
MEASURES = PAPERS
LENGTHS = [6, 9, 3, 5, 4, 9]
OTHERS = [2, 3, 5, 1, 4, 3]
BUDGET = 2**13


def texts_for(shape: Shape, lengths=LENGTHS, **options) -> Tokens:
    return split(lengths, OTHERS[: len(lengths)] if shape.is_paired else None, **options)


def scores(p, tokens, rule, budget=BUDGET):
    """A measure's scores [M, B, T] in the precision of the parameters."""
    models = len(p["decoder.bias"])
    batch = Texts.of([tokens] * models, "cpu").at(torch.arange(len(tokens)))
    path = path_of(rule) if "path_gradient" in rule.needs else Path()
    found = bilstm_evidence(p, batch, rule.needs, path, budget)
    return torch.stack([token_scores(rule, part) for part in found])


# How many numbers a model learns

TABLE_5 = {
    "Anemia": (5_352_158, "mimic", 16261, 2, False),
    "Diabetes": (6_138_158, "mimic", 18881, 2, False),
    "IMDB": (4_218_458, "imdb", 12482, 2, False),
    "SNLI": (13_601_939, "snli", 20982, 3, True),
    "SST": (4_603_658, "sst", 13766, 2, False),
    "bAbI-1": (55_048, "babi", 25, 36, True),
    # the paper prints 55,048 for all three, though their vocabularies differ
    "bAbI-2": (56_448, "babi", 39, 36, True),
    "bAbI-3": (56_548, "babi", 40, 36, True),
}


class TestParameters:
    @pytest.mark.parametrize("name", TABLE_5)
    def test_count_is_table_5s(self, name):
        count, kind, words, classes, is_paired = TABLE_5[name]
        setting = SETTINGS[kind]
        shape = Shape(words, setting.embedding, setting.hidden, classes, is_paired)
        assert shape.count() == count

    @SHAPES
    def test_a_model_has_the_parameters_of_its_shape(self, shape):
        made = bilstm.initial(shape, 0)
        assert {name: tuple(value.shape) for name, value in made.items()} == shape.parameters()
        assert sum(value.numel() for value in made.values()) == shape.count()

    @SHAPES
    def test_start_within_pytorchs_bounds(self, shape):
        """LSTM: 1/√H; a linear layer: 1/√(its inputs). All of that range is used."""
        wide = replace(shape, hidden=40)
        for name, value in bilstm.initial(wide, 0).items():
            if name.endswith("embedding"):
                assert not value[0].any() and 0.7 < value[1:].std() < 1.3
                continue
            narrow = name.startswith(("main", "auxiliary", "attention.vector"))
            narrow |= name in ("decoder.weight", "decoder.bias") and wide.is_paired
            bound = (40 if narrow else 80) ** -0.5
            assert value.abs().max() <= bound
            if value.numel() >= 40:
                assert value.max() > 0.8 * bound and value.min() < -0.8 * bound

    @SHAPES
    def test_start_is_drawn_from_the_seed(self, shape):
        first, again, other = (bilstm.initial(shape, seed) for seed in (3, 3, 4))
        for name, value in first.items():
            assert torch.equal(value, again[name]) and not torch.equal(value, other[name])

    def test_both_encoders_start_from_the_same_words(self):
        made = bilstm.initial(PAIRED, 0)
        assert torch.equal(made["main.embedding"], made["auxiliary.embedding"])
        assert made["main.embedding"].data_ptr() != made["auxiliary.embedding"].data_ptr()


class TestPretrainedVectors:
    WORDS = ("[PAD]", "[MASK]", "known", "unknown")
    SHAPE = Shape(4, 3, 2, 2, is_paired=True)

    def start(self, seed=0, **options):
        known = {"known": np.array([1.5, -2.0, 3.0]), "[PAD]": np.ones(3), "other": np.ones(3)}
        vectors = WordVectors(known, 3, **options)
        made = bilstm.initial(self.SHAPE, seed, words=self.WORDS, vectors=vectors)
        assert torch.equal(made["main.embedding"], made["auxiliary.embedding"])
        assert known["[PAD]"].tolist() == [1, 1, 1]  # what was given is not changed
        return made["main.embedding"]

    def test_words_without_one_start_at_zero(self):
        expected = torch.tensor([[0, 0, 0], [0, 0, 0], [1.5, -2, 3], [0, 0, 0]])
        assert torch.equal(self.start(), expected)

    def test_or_from_normals_of_the_seed(self):
        table = self.start(normal=True)
        assert not table[0].any() and torch.equal(table[2], torch.tensor([1.5, -2, 3]))
        plain = bilstm.initial(self.SHAPE, 0)["main.embedding"]
        assert torch.equal(table[[1, 3]], plain[[1, 3]])
        assert not torch.equal(table[3], self.start(seed=1, normal=True)[3])


# The program's numbers

ENCODERS = {
    "single": {"encoder": "main"},
    "paired": {"encoder_premise": "main", "encoder_hypothesis": "auxiliary"},
}
LAYERS = {
    "attention.W1.weight": "attention.weight",
    "attention.W1.bias": "attention.bias",
    "attention.W1_premise.weight": "attention.weight",
    "attention.W1_premise.bias": "attention.bias",
    "attention.W1_hypothesis.weight": "attention.query_weight",
    "attention.W1_hypothesis.bias": "attention.query_bias",
    "decoder.weight": "decoder.weight",
    "decoder.bias": "decoder.bias",
    "decoder.decoder_premise.weight": "decoder.context_weight",
    "decoder.decoder_premise.bias": "decoder.context_bias",
    "decoder.decoder_hypothesis.weight": "decoder.query_weight",
    "decoder.decoder_hypothesis.bias": "decoder.query_bias",
    "decoder.decoder_final.weight": "decoder.weight",
    "decoder.decoder_final.bias": "decoder.bias",
}
RNN = {
    "weight_ih": "input_weight",
    "weight_hh": "hidden_weight",
    "bias_ih": "input_bias",
    "bias_hh": "hidden_bias",
}


def converted(theirs, encoders):
    """Our parameters from the program's: other names, other order of gates, directions stacked."""
    ours = {new: theirs[old] for old, new in LAYERS.items() if old in theirs}
    ours["attention.vector"] = theirs["attention.W2.weight"][0]
    for old, new in encoders.items():
        ours[f"{new}.embedding"] = theirs[f"{old}.embedding.weight"]
        for part, name in RNN.items():
            both = []
            for end in ("_l0", "_l0_reverse"):
                gates = dict(zip("ifgo", theirs[f"{old}.rnn.{part}{end}"].chunk(4), strict=True))
                both.append(torch.cat([gates[gate] for gate in GATES]))
            ours[f"{new}.{name}"] = torch.stack(both)
    return ours


class Case:
    """A small model that the program explained."""

    def __init__(self, kind):
        with np.load(FIXTURES / "roar" / f"bilstm_{kind}.npz") as file:
            found = {name: torch.from_numpy(file[name]) for name in file.files}
        theirs = {n.removeprefix("param/"): v for n, v in found.items() if n.startswith("param/")}
        self.weights = converted(theirs, ENCODERS[kind])
        parts = ("sentence", "length", "eligible", "label", "sentence_aux", "sentence_aux_length")
        self.tokens = Tokens(*(found.get(f"in/{part}") for part in parts))
        self.found = found

    def expected(self, name):
        """A reference; beyond a text's length there is nothing to compare."""
        value = self.found[name]
        inside = torch.arange(value.shape[-1]) < self.tokens.lengths[:, None]
        return value if name.endswith("logits") else value * inside

    @property
    def pack(self):
        return {name: value[None].to(torch.float64) for name, value in self.weights.items()}


@pytest.fixture(scope="module", params=ENCODERS)
def case(request):
    return Case(request.param)


IN_FLOAT32 = {
    "attention": "attention",
    "gradient": "gradient",
    "input_x_gradient": "input_times_gradient",
    "integrated_gradients(steps=1)": "integrated_gradient_k1",
    "integrated_gradients(steps=5)": "integrated_gradient_k5",
    "integrated_gradients(steps=20)": "integrated_gradient_k20",
    "integrated_gradients": "integrated_gradient_k50",
}
IN_FLOAT64 = {
    "attention": "attention",
    "gradient": "gradient",
    "input_x_gradient(signed=True)": "input_times_gradient_signed",
    "integrated_gradients(steps=5, signed=True)": "ig_code_k5_signed",
    "integrated_gradients(signed=True)": "ig_code_k50_signed",
    "integrated_gradients(steps=5, scaling=paper, signed=True)": "ig_paper_k5_signed",
    "integrated_gradients(scaling=paper, signed=True)": "ig_paper_k50_signed",
}


class TestTheProgramsNumbers:
    def test_every_number_is_compared(self, case):
        compared = {f"ref_f32/{name}" for name in ("logits", *IN_FLOAT32.values())}
        compared |= {f"indep_f64/{name}" for name in ("logits", *IN_FLOAT64.values())}
        compared.add("indep_f64/logit_of_label_at_zero_embedding")
        given = {name for name in case.found if name.startswith(("ref", "indep"))}
        assert given == compared

    def test_every_parameter_is_taken(self, case):
        taken = sum(value.numel() for value in case.weights.values())
        given = (v for name, v in case.found.items() if name.startswith("param/"))
        assert taken == sum(value.numel() for value in given)

    @pytest.mark.parametrize("key", ["ref_f32", "indep_f64"])
    def test_logits_and_attention(self, case, key):
        single = {name: value[None] for name, value in case.weights.items()}
        answered = classify(single if key == "ref_f32" else case.pack, case.tokens)
        for mine, name in ((answered.logits, "logits"), (answered.attention, "attention")):
            expected, close = case.expected(f"{key}/{name}"), 1e-5 if key == "ref_f32" else 1e-9
            torch.testing.assert_close(mine[0], expected, rtol=0, atol=close)

    @pytest.mark.parametrize("spec", IN_FLOAT32)
    def test_measures_in_float32(self, case, spec):
        [mine] = BiLSTMLearner("own").explain([case.weights], [case.tokens], papers(spec))
        assert mine.dtype == torch.float32
        expected = case.expected(f"ref_f32/{IN_FLOAT32[spec]}")
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("spec", IN_FLOAT64)
    def test_measures_in_float64(self, case, spec):
        [mine] = scores(case.pack, case.tokens, papers(spec))
        expected = case.expected(f"indep_f64/{IN_FLOAT64[spec]}")
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-9)

    def test_the_papers_scaling_is_complete_and_the_programs_is_not(self, case):
        """The scores add up to the logit less that of the zero embedding, up to the sum's error."""
        logits = case.found["indep_f64/logits"].gather(1, case.tokens.labels[:, None])[:, 0]
        change = logits - case.found["indep_f64/logit_of_label_at_zero_embedding"]
        gaps = {}
        for scaling in ("paper", "code"):
            rule = papers("integrated_gradients", steps=400, scaling=scaling, signed=True)
            gaps[scaling] = (scores(case.pack, case.tokens, rule)[0].sum(-1) - change).abs().max()
        assert gaps["paper"] < 2e-3 < 2e-2 < gaps["code"]

    def test_gold_logit_at_zero_embedding(self, case):
        """What integrated gradients start from, as our model says it."""
        p = case.pack
        p["main.embedding"] = torch.zeros_like(p["main.embedding"])
        gold = classify(p, case.tokens).logits[0].gather(1, case.tokens.labels[:, None])[:, 0]
        expected = case.found["indep_f64/logit_of_label_at_zero_embedding"]
        torch.testing.assert_close(gold, expected, rtol=0, atol=1e-9)


@SHAPES
class TestAgainstTheStraightforwardModel:
    """nn.LSTM on packed sequences, one-hot inputs made in full, and autograd."""

    def model(self, shape, p):
        model = benchmark().Straightforward(*(getattr(shape, f) for f in shape.__match_args__))
        model = model.to(torch.float64)
        model.take({name: value[0] for name, value in p.items()})
        return model

    def given(self, tokens):
        others = (tokens.auxiliary, tokens.auxiliary_lengths)
        if tokens.auxiliary is None:
            others = (tokens.lengths, tokens.lengths)
        return tokens.lengths, tokens.eligible, *others

    def test_logits_and_all_gradients(self, shape):
        tokens = texts_for(shape)
        p = {name: value.requires_grad_() for name, value in pack(shape, 1).items()}
        logits = classify(p, tokens).logits[0]
        weight = randn(*logits.shape)
        found = torch.autograd.grad((logits * weight).sum(), list(p.values()))
        model = self.model(shape, {name: value.detach() for name, value in p.items()})
        expected = model(model.main.embedding(tokens.ids), *self.given(tokens))
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
        (expected * weight).sum().backward()
        gradients = self.gradients(model)
        for name, mine in zip(p, found, strict=True):
            torch.testing.assert_close(mine[0], gradients[name], rtol=0, atol=1e-12)

    def gradients(self, model):
        """The model's gradients under our names, by way of the program's."""
        parts = {"attend": "attention.W1", "out": "decoder"}
        encoders = {"main": "main"}
        if model.auxiliary is not None:
            parts = {"attend": "attention.W1_premise", "attend_query": "attention.W1_hypothesis"}
            parts |= {"context": "decoder.decoder_premise", "query": "decoder.decoder_hypothesis"}
            parts["out"] = "decoder.decoder_final"
            encoders["auxiliary"] = "auxiliary"
        named = {}
        for name, value in model.named_parameters():
            layer, _, rest = name.partition(".")
            named[f"{parts.get(layer, layer)}.{rest}"] = value.grad
        named["attention.W2.weight"] = named["vector.weight"]
        return converted(named, encoders)

    def test_gradient_measure_is_the_norm_over_the_vocabulary(self, shape):
        tokens, p = texts_for(shape), pack(shape, 1)
        model = self.model(shape, p)
        one_hot = torch.nn.functional.one_hot(tokens.ids, shape.words).to(torch.float64)
        one_hot.requires_grad_()
        logits = model(one_hot @ p["main.embedding"][0], *self.given(tokens))
        gold = logits.gather(1, tokens.labels[:, None]).sum()
        [gradient] = torch.autograd.grad(gold, one_hot)
        [mine] = scores(p, tokens, papers("gradient"))
        expected = gradient.norm(dim=-1)[:, : mine.shape[1]]
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)
        assert (expected[torch.arange(mine.shape[1]) < tokens.lengths[:, None]] > 0).all()
        times_input = (gradient * one_hot).sum(-1).abs()[:, : mine.shape[1]]
        [mine] = scores(p, tokens, papers("input_x_gradient"))
        torch.testing.assert_close(mine, times_input, rtol=0, atol=1e-12)


# Many models, many texts


@SHAPES
class TestPack:
    def test_each_model_answers_as_alone(self, shape):
        tokens = texts_for(shape)
        others = replace(tokens, ids=torch.where(tokens.ids % 3 == 1, MASK, tokens.ids))
        others = replace(others, ids=torch.where(tokens.eligible, others.ids, tokens.ids))
        together = classify(pack(shape, 4, 5, 4), tokens, others, others)
        for place, (seed, part) in enumerate(((4, tokens), (5, others), (4, others))):
            alone = classify(pack(shape, seed), part)
            for name in ("logits", "attention"):
                mine, expected = getattr(together, name)[place], getattr(alone, name)[0]
                torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("name", MEASURES)
    def test_each_model_is_explained_as_alone(self, shape, name):
        tokens = texts_for(shape)
        together = scores(pack(shape, 4, 5), tokens, papers(name))
        for place, seed in enumerate((4, 5)):
            alone = scores(pack(shape, seed), tokens, papers(name))[0]
            torch.testing.assert_close(together[place], alone, rtol=0, atol=1e-12)

    def test_texts_of_different_lengths_side_by_side(self, shape):
        """Row i of one model may be long where row i of another is short."""
        tokens = texts_for(shape)
        turned = rows_of(tokens, torch.arange(len(tokens)).flip(0))
        together = classify(pack(shape, 4, 5), tokens, turned).logits
        alone = classify(pack(shape, 5), tokens).logits[0]
        torch.testing.assert_close(together[1].flip(0), alone, rtol=0, atol=1e-12)


@SHAPES
class TestVocabulary:
    def test_projecting_words_or_tokens_is_the_same(self, shape):
        """Few texts: their tokens are projected. The same often enough: every word is, once."""
        wide, times = replace(shape, words=60), 30
        tokens = texts_for(shape, words=60)
        many = rows_of(tokens, torch.arange(len(tokens)).repeat(times))
        found = []
        for part in (tokens, many):
            p = {name: value.requires_grad_() for name, value in pack(wide, 1, 2).items()}
            logits = classify(p, part).logits
            found.append((logits, torch.autograd.grad(logits.square().sum(), list(p.values()))))
        (few_logits, few), (many_logits, summed) = found
        assert tokens.lengths.sum() < 60 < many.lengths.sum()
        torch.testing.assert_close(many_logits, few_logits.repeat(1, times, 1), rtol=0, atol=1e-12)
        for one, other in zip(few, summed, strict=True):
            torch.testing.assert_close(times * one, other, rtol=1e-10, atol=1e-10)


# Texts of every kind


class TestPadding:
    @SHAPES
    @settings(max_examples=40)
    @given(
        st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=5),
        st.integers(0, 3),
        st.integers(0, 3),
    )
    def test_a_text_says_the_same_however_it_is_padded(self, shape, sizes, more, more_auxiliary):
        lengths, others = zip(*sizes, strict=True)
        tokens = split(list(lengths), list(others) if shape.is_paired else None)
        p = pack(shape, 1, 2)
        wider = self.padded(tokens, more, more_auxiliary)
        answered = classify(p, wider)
        inside = torch.arange(answered.attention.shape[2]) < tokens.lengths[:, None]
        assert not (answered.attention * ~inside).any()
        for row, length in enumerate(lengths):
            alone = rows_of(tokens, slice(row, row + 1))
            alone = replace(alone, ids=alone.ids[:, :length], eligible=alone.eligible[:, :length])
            expected = classify(p, alone)
            logits, attention = answered.logits[:, [row]], answered.attention[:, [row], :length]
            torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-12)
            torch.testing.assert_close(attention, expected.attention, rtol=0, atol=1e-12)

    def padded(self, tokens, more, more_auxiliary):
        pad = torch.nn.functional.pad
        wider = replace(
            tokens, ids=pad(tokens.ids, (0, more)), eligible=pad(tokens.eligible, (0, more))
        )
        if tokens.auxiliary is None:
            return wider
        return replace(wider, auxiliary=pad(tokens.auxiliary, (0, more_auxiliary)))

    @SHAPES
    def test_what_the_padding_holds_does_not_matter(self, shape):
        tokens, p = texts_for(shape), pack(shape, 1)
        beyond = torch.arange(tokens.ids.shape[1]) >= tokens.lengths[:, None]
        other = replace(tokens, ids=torch.where(beyond, 7, tokens.ids))
        expected, mine = classify(p, tokens), classify(p, other)
        assert torch.equal(mine.logits, expected.logits)
        assert torch.equal(mine.attention, expected.attention)

    @SHAPES
    @pytest.mark.parametrize("name", MEASURES)
    def test_scores_beyond_a_text_are_zero(self, shape, name):
        tokens = texts_for(shape)
        found = scores(pack(shape, 1), tokens, papers(name))[0]
        inside = torch.arange(found.shape[1]) < tokens.lengths[:, None]
        assert not (found * ~inside).any() and found.isfinite().all()
        shown = tokens.eligible[:, : found.shape[1]] if name == "attention" else inside
        assert (found[shown] > 0).all()


class TestAttention:
    @SHAPES
    @settings(max_examples=40)
    @given(
        st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=5),
        st.integers(0, 99),
    )
    def test_sums_to_one_over_eligible_tokens_and_is_zero_elsewhere(self, shape, sizes, seed):
        lengths, others = zip(*sizes, strict=True)
        tokens = split(list(lengths), list(others) if shape.is_paired else None, seed=seed)
        weights = classify(pack(shape, 1, 2), tokens).attention
        assert (weights[:, tokens.eligible] > 0).all()
        assert (weights[:, ~tokens.eligible] == 0).all()
        some = tokens.eligible.any(-1).to(torch.float64).expand(2, -1)
        torch.testing.assert_close(weights.sum(-1), some, rtol=0, atol=1e-12)


@SHAPES
class TestNothingToAttendTo:
    """Texts of [CLS] [EOS], and of one token, beside others."""

    LENGTHS = (2, 6, 1, 4)

    def test_the_context_is_zero(self, shape):
        tokens, p = texts_for(shape, list(self.LENGTHS)), pack(shape, 1)
        answered = classify(p, tokens)
        empty = [0, 2]
        assert answered.logits.isfinite().all() and not answered.attention[0, empty].any()
        if not shape.is_paired:
            assert torch.equal(answered.logits[0, empty], p["decoder.bias"].expand(2, -1))

    def test_alone_in_a_batch(self, shape):
        tokens, p = texts_for(shape, list(self.LENGTHS)), pack(shape, 1)
        for row in range(4):
            alone = classify(p, rows_of(tokens, slice(row, row + 1))).logits[0, 0]
            expected = classify(p, tokens).logits[0, row]
            torch.testing.assert_close(alone, expected, rtol=0, atol=1e-12)

    def test_gradients_stay_finite_and_are_those_of_the_others(self, shape):
        tokens, found = texts_for(shape, list(self.LENGTHS)), []
        for part in (tokens, rows_of(tokens, torch.tensor([1, 3]))):
            p = {name: value.requires_grad_() for name, value in pack(shape, 1).items()}
            logits = classify(p, part).logits
            wanted = [p["main.embedding"], p["main.hidden_weight"], p["attention.vector"]]
            found.append(torch.autograd.grad(logits.sum(), wanted))
        if shape.is_paired:  # there the layers that follow see what the texts have not
            assert all(part.isfinite().all() for part in found[0])
            return
        for mine, expected in zip(*found, strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("name", MEASURES)
    def test_scores_are_zero(self, shape, name):
        tokens = texts_for(shape, list(self.LENGTHS))
        found = scores(pack(shape, 1), tokens, papers(name))[0]
        assert found.isfinite().all() and not found[[0, 2]].any() and found[[1, 3]].any()


@pytest.mark.parametrize("spec", ["integrated_gradients", "integrated_gradients(steps=7)"])
@SHAPES
def test_several_steps_of_the_path_in_a_pass_are_the_same(shape, spec):
    tokens, p = texts_for(shape), pack(shape, 1, 2)
    one_by_one = scores(p, tokens, papers(spec), budget=1)
    for budget in (200, 500, 10**6):
        found = scores(p, tokens, papers(spec), budget=budget)
        torch.testing.assert_close(found, one_by_one, rtol=0, atol=1e-13)
