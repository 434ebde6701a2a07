"""Hugging Face encoders: their tokens, and evidence equal to the paper's program's."""

import json

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from conftest import FIXTURES
from encoders import (
    ENCODERS,
    FILLERS,
    KEYWORDS,
    config,
    one_split,
    save_encoder,
    task,
    tokenizer,
)
from faithscope import FaithscopeError
from faithscope.data.encoding import encode
from faithscope.methods.encoder import encoder_evidence, explain_tokens
from faithscope.methods.text import path_of
from faithscope.models.text_classifier import Pretrained, TextClassifier, by_length, within
from measures import papers


@pytest.fixture(params=["single", "pair"])
def reference(request):
    return np.load(FIXTURES / "roar" / f"roberta_tiny_{request.param}.npz")


def reference_model(fixture, dtype=torch.float32):
    settings = json.loads(str(fixture["config_json"]))
    module = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**settings))
    named = {key: fixture[f"param/{key}"] for key in module.state_dict()}
    module.load_state_dict({key: torch.tensor(value) for key, value in named.items()})
    return TextClassifier(module.to(dtype).eval(), pad_id=1)


def reference_input(fixture):
    sentence = "in/sentence_pair" if "in/sentence_pair" in fixture.files else "in/sentence"
    return [torch.tensor(fixture[key]) for key in (sentence, "in/length", "in/label")]


def evidence(model, inputs, label="integrated_gradients", **options):
    chosen = papers(label, **options)
    path = path_of(chosen) if "path_gradient" in chosen.needs else ()
    return encoder_evidence(model, *inputs, needs=chosen.needs, path=path)


def scores(model, inputs, label, **options):
    return papers(label, **options)(evidence(model, inputs, label, **options))


MEASURES = {
    "gradient": ("gradient", {}),
    "input_times_gradient": ("input_x_gradient", {}),
    "integrated_gradient_k5": ("integrated_gradients", {"steps": 5}),
    "integrated_gradient_k50": ("integrated_gradients", {}),
}


class TestReference:
    def test_logits(self, reference):
        ids, lengths, _ = reference_input(reference)
        model = reference_model(reference)
        expected = torch.tensor(reference["ref_f32/logits"])
        with torch.no_grad():
            found = model.logits(ids, lengths)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("key", MEASURES)
    def test_measures(self, reference, key):
        inputs = reference_input(reference)
        name, options = MEASURES[key]
        expected = torch.tensor(reference[f"ref_f32/{key}"])
        found = scores(reference_model(reference), inputs, name, **options)
        inside = within(inputs[1], expected.shape[1])
        found_inside = found[:, : expected.shape[1]][inside]
        torch.testing.assert_close(found_inside, expected[inside], rtol=1e-5, atol=1e-5)
        assert not found[:, expected.shape[1] :].any()
        assert not found[:, : expected.shape[1]][~inside].any()

    @pytest.mark.parametrize("key", MEASURES)
    def test_float64_agrees_with_float32(self, reference, key):
        inputs = reference_input(reference)
        name, options = MEASURES[key]
        double = scores(reference_model(reference, torch.float64), inputs, name, **options)
        single = scores(reference_model(reference), inputs, name, **options)
        assert double.dtype == torch.float64
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)

    def test_gradient_is_that_of_finite_differences(self, reference):
        ids, lengths, labels = reference_input(reference)
        model = reference_model(reference, torch.float64)
        found = evidence(model, (ids, lengths, labels), "gradient")
        direction = torch.randn(
            found.gradient.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        direction *= within(lengths, ids.shape[1])[..., None]
        start = model.embedding(ids).detach()

        def gold(step):
            logits = model.logits(ids, lengths, start + step * direction)
            return logits.gather(1, labels[:, None])[:, 0].detach()

        expected = (gold(1e-5) - gold(-1e-5)) / 2e-5
        torch.testing.assert_close(
            (found.gradient * direction).sum((1, 2)), expected, rtol=1e-7, atol=1e-8
        )

    def test_several_scales_per_pass_are_one_scale_per_pass(self, reference):
        inputs = reference_input(reference)
        model = reference_model(reference, torch.float64)
        together = evidence(model, inputs).path_gradient
        passes = []
        model.module.register_forward_hook(lambda *_: passes.append(1))
        for budget, count in ((1, 50), (7 * inputs[0].numel(), 8)):
            passes.clear()
            model.tokens_per_pass = budget
            found = evidence(model, inputs).path_gradient
            assert len(passes) == count
            torch.testing.assert_close(found, together, rtol=1e-10, atol=1e-12)

    def test_only_the_main_part_is_scaled(self, reference):
        """The path's gradient, worked out one scale at a time from its definition."""
        ids, lengths, labels = reference_input(reference)
        model = reference_model(reference, torch.float64)
        main = within(lengths, ids.shape[1])[..., None]
        total = 0
        start = model.embedding(ids).detach()
        for step in range(1, 6):
            scaled = torch.where(main, start * step / 5, start).requires_grad_()
            gold = model.logits(ids, lengths, scaled).gather(1, labels[:, None]).sum()
            total = total + torch.autograd.grad(gold, scaled)[0] / 5
        found = evidence(model, (ids, lengths, labels), steps=5, scaling="paper")
        torch.testing.assert_close(found.path_gradient, main * total, rtol=1e-10, atol=1e-12)

    def test_gram_stands_for_the_vocabulary(self, reference):
        inputs = reference_input(reference)
        model = reference_model(reference, torch.float64)
        found = evidence(model, inputs, "gradient")
        one_hot = found.gradient @ model.embedding.weight.detach().T
        torch.testing.assert_close(
            papers("gradient")(found), one_hot.norm(dim=-1), rtol=1e-10, atol=1e-12
        )


class TestLeftAsFound:
    def test_gram_is_made_once_per_weights(self, reference):
        model = reference_model(reference)
        first = model.gram()
        assert model.gram() is first
        with torch.no_grad():
            model.embedding.weight.mul_(2)
        torch.testing.assert_close(model.gram(), 4 * first)
        model.module.double()
        assert model.gram().dtype == torch.float64

    @pytest.mark.parametrize("fails", [False, True])
    def test_flags(self, reference, fails):
        model = reference_model(reference)
        model.module.train()
        model.module.classifier.dense.eval()
        frozen = model.module.classifier.out_proj.weight.requires_grad_(False)
        ids, lengths, labels = reference_input(reference)
        before = [child.training for child in model.module.modules()]
        if fails:
            with pytest.raises(RuntimeError):
                encoder_evidence(model, ids, lengths, labels + 99)
        else:
            encoder_evidence(model, ids, lengths, labels)
        assert [child.training for child in model.module.modules()] == before
        needing = [p for p in model.module.parameters() if not p.requires_grad]
        assert len(needing) == 1 and needing[0] is frozen
        assert all(p.grad is None for p in model.module.parameters())


def test_by_length_keeps_the_budget_and_every_text():
    lengths = torch.randint(0, 30, (200,), generator=torch.Generator().manual_seed(0))
    batches = list(by_length(lengths, 64))
    assert sorted(torch.cat(batches).tolist()) == list(range(200))
    assert all(len(b) * int(lengths[b].max()) <= 64 for b in batches)


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request, tmp_path_factory):
    return Pretrained(save_encoder(tmp_path_factory.mktemp("encoder"), request.param), 2)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    return Pretrained(save_encoder(tmp_path_factory.mktemp("roberta"), "Roberta"), 2)


def read(data, tokens, row):
    return [data.words[i] for i in tokens.ids[row] if i != data.pad_id]


class TestEncode:
    def test_single(self, encoder):
        data = encode(encoder, one_split(["good film", "odd"]))
        start, end = data.words[encoder.start_id], data.words[encoder.end_id]
        assert read(data, data.train, 0) == [start, "good", "film", end]
        unknown = data.words[encoder.tokenizer.unk_token_id]
        assert read(data, data.train, 1) == [start, unknown, end]
        assert data.train.lengths.tolist() == [4, 3]
        assert data.train.eligible.tolist() == [
            [False, True, True, False],
            [False, True] + [False] * 2,
        ]
        assert data.words[data.mask_id] in ("<mask>", "[MASK]")

    def test_pair_has_one_end_token_between(self, encoder):
        data = encode(encoder, one_split(["good film", "bad"], ["is it", "was this very"]))
        start, end = data.words[encoder.start_id], data.words[encoder.end_id]
        assert read(data, data.train, 0) == [start, "good", "film", end, "is", "it", end]
        assert data.train.lengths.tolist() == [4, 3]
        assert data.train.eligible.sum(1).tolist() == [2, 1]
        assert not data.train.eligible[:, 3:].any()

    def test_pair_is_berts_own_format(self, tmp_path):
        bert = Pretrained(save_encoder(tmp_path, "Bert"), 2)
        data = encode(bert, one_split(["good film"], ["is it"]))
        own = bert.tokenizer("good film", "is it")
        assert data.train.ids[0].tolist() == own["input_ids"]
        module = bert.build(0).double()
        types = torch.tensor([[0] * 4 + [1] * 3])
        with torch.no_grad():
            expected = module(input_ids=data.train.ids, token_type_ids=types).logits
            other = module(input_ids=data.train.ids).logits
            found = TextClassifier(module, bert.pad_id).logits(data.train.ids, data.train.lengths)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        assert not torch.allclose(found, other)

    def test_positions_of_roberta_begin_behind_its_padding(self, encoder):
        is_roberta = encoder.config.model_type == "roberta"
        assert encoder.max_length == (22 if is_roberta else 24)

    def test_truncation_keeps_the_last_token_and_is_counted(self, encoder):
        most = encoder.max_length
        long = " ".join(FILLERS * 2)  # 28 words
        exact = " ".join((FILLERS * 2)[: most - 2])
        data = encode(encoder, one_split([long, "good", exact]))
        assert data.truncated == {"train": 1, "validation": 1, "test": 1}
        assert data.train.ids.shape[1] == most
        assert data.train.lengths.tolist() == [most, 3, most]
        row = read(data, data.train, 0)
        assert row[1:-1] == (FILLERS * 2)[: most - 2]
        assert row[-1] == data.words[encoder.end_id]
        with torch.no_grad():  # and the model does read that many
            model = TextClassifier(encoder.build(0), encoder.pad_id)
            assert model.predict(data.train.ids, data.train.lengths).isfinite().all()

    def test_a_pair_is_cut_as_a_whole(self, encoder):
        most = encoder.max_length
        words = " ".join((FILLERS * 2)[: most - 4])  # with its delimiters most - 2 tokens
        data = encode(encoder, one_split([words, " ".join(FILLERS * 2)], ["good bad film", "good"]))
        end = data.words[encoder.end_id]
        assert read(data, data.train, 0)[-3:] == [end, "good", end]
        assert data.train.lengths.tolist() == [most - 2, most]
        assert data.truncated["train"] == 2

    def test_nothing_left(self, encoder):
        end = encoder.tokenizer.sep_token
        data = encode(encoder, one_split(["", f"{end} {end}"]))
        assert data.train.lengths.tolist() == [2, 4]
        assert not data.train.eligible.any()
        model = encoder.classifier(0)
        for name in ("gradient", "input_x_gradient", "integrated_gradients"):
            assert explain_tokens(model, data.train, papers(name)).isfinite().all()

    def test_a_mask_in_the_text_is_eligible(self, roberta):
        data = encode(roberta, one_split(["<mask> good"]))
        assert data.train.eligible[0].tolist() == [False, True, True, False]
        assert data.train.ids[0, 1] == data.mask_id


class TestWholeSplits:
    def test_explaining_by_length_keeps_the_order(self, encoder):
        data = encode(encoder, task(40, pairs=True))
        model = encoder.classifier(0)
        model.module.double()
        model.tokens_per_pass = 50
        tokens = data.train
        found = explain_tokens(model, tokens, papers("input_x_gradient"))
        logits = model.predict(tokens.ids, tokens.lengths)
        assert found.shape == tokens.ids.shape and found.dtype == torch.float32
        for row in range(len(tokens)):
            alone = (tokens.ids[[row]], tokens.lengths[[row]], tokens.labels[[row]])
            expected = scores(model, alone, "input_x_gradient")[0].float()
            torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(logits[[row]], model.logits(*alone[:2]).detach())
        assert not found[~within(tokens.lengths, tokens.ids.shape[1])].any()

    def test_masking_every_token_leaves_the_main_part(self, encoder):
        data = encode(encoder, task(20))
        tokens = data.train
        ids = torch.where(tokens.eligible, data.mask_id, tokens.ids)
        masked = data.with_ids({name: ids if name == "train" else p.ids for name, p in data.splits})
        model = encoder.classifier(0)
        lengths = tokens.lengths
        same = lengths == lengths[0]
        logits = model.predict(masked.train.ids, masked.train.lengths)[same]
        torch.testing.assert_close(logits, logits[:1].expand_as(logits), rtol=1e-5, atol=1e-6)


class TestBuild:
    def test_the_head_is_drawn_from_the_seed_and_the_rest_from_the_checkpoint(self, encoder):
        before = torch.random.get_rng_state()
        first, again, other = (encoder.build(seed).state_dict() for seed in (1, 1, 2))
        assert torch.equal(torch.random.get_rng_state(), before)
        saved = transformers.AutoModelForMaskedLM.from_pretrained(encoder.place).state_dict()
        changed = {key for key in first if not torch.equal(first[key], other[key])}
        assert changed and all("classifier" in key or "pooler" in key for key in changed)
        for key, value in first.items():
            assert torch.equal(value, again[key])
            if key in saved:
                assert torch.equal(value, saved[key])

    def test_a_trained_head_is_not_taken_over(self, tmp_path, roberta):
        folder = tmp_path / "trained"
        module = roberta.build(7)
        module.save_pretrained(folder)
        roberta.tokenizer.save_pretrained(folder)
        trained = Pretrained(f"hf:{folder}", 2)
        head, new = module.classifier.out_proj.weight, trained.build(3).classifier.out_proj.weight
        assert not torch.equal(head, new)
        assert torch.equal(new, roberta.build(3).classifier.out_proj.weight)
        assert Pretrained(f"hf:{folder}", 5).build(0).classifier.out_proj.out_features == 5

    def test_random_weights_differ_from_the_checkpoint(self, roberta):
        scratch = Pretrained(roberta.name, 2, pretrained=False)
        a, b = scratch.build(9), roberta.build(9)
        assert not torch.equal(a.get_input_embeddings().weight, b.get_input_embeddings().weight)

    def test_half_precision_checkpoints_become_float32(self, tmp_path, roberta):
        roberta.build(0).half().save_pretrained(tmp_path)
        roberta.tokenizer.save_pretrained(tmp_path)
        module = Pretrained(f"hf:{tmp_path}", 2).build(0)
        assert {p.dtype for p in module.parameters()} == {torch.float32}

    def test_parameters(self, encoder):
        module = encoder.build(0)
        assert encoder.parameters == sum(p.numel() for p in module.parameters())


class Shifted(nn.Module):
    """Reads word embeddings otherwise than ids."""

    def __init__(self, module):
        super().__init__()
        self.inner, self.config = module, module.config

    def get_input_embeddings(self):
        return self.inner.get_input_embeddings()

    def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None):
        if inputs_embeds is not None:
            inputs_embeds = 3 * inputs_embeds
        return self.inner(
            input_ids=input_ids, inputs_embeds=inputs_embeds, attention_mask=attention_mask
        )


class TestBadInput:
    def refused(self, name, match, classes=2):
        with pytest.raises(FaithscopeError, match=match) as error:
            Pretrained(name, classes)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("name", ["roberta-base", "timm:vit", "hf:"])
    def test_name(self, name):
        self.refused(name, "named 'hf:ID or folder'")

    def test_no_folder(self, tmp_path):
        self.refused(f"hf:{tmp_path}/none", "There is no folder")

    def test_empty_folder(self, tmp_path):
        self.refused(f"hf:{tmp_path}", "could not be loaded")

    def test_no_mask_token(self, tmp_path):
        save_encoder(tmp_path, "Roberta")
        tokenizer("Roberta", mask=False).save_pretrained(tmp_path)
        self.refused(f"hf:{tmp_path}", "has no mask token")

    @pytest.mark.parametrize("kind", ENCODERS)
    def test_no_tokenizer(self, tmp_path, kind):
        config(kind, 21).save_pretrained(tmp_path)
        self.refused(f"hf:{tmp_path}", "comes without a fast tokenizer")

    def test_not_a_sequence_classifier(self, tmp_path):
        transformers.ViTConfig(hidden_size=16).save_pretrained(tmp_path)
        tokenizer("Roberta").save_pretrained(tmp_path)
        self.refused(f"hf:{tmp_path}", "is a vit model, which transformers has no sequence")

    def test_tokenizer_without_delimiters(self, tmp_path):
        save_encoder(tmp_path, "Roberta")
        words = tokenizer("Roberta")
        words.backend_tokenizer.post_processor = None
        words.save_pretrained(tmp_path)
        self.refused(f"hf:{tmp_path}", "puts 0 special tokens around a text")

    def test_tokenizer_of_another_model(self, tmp_path):
        config("Roberta", 9).save_pretrained(tmp_path)
        tokenizer("Roberta").save_pretrained(tmp_path)
        self.refused(f"hf:{tmp_path}", "has 21 tokens but its model embeds 9")

    def test_no_weights(self, tmp_path):
        config("Roberta", 21).save_pretrained(tmp_path)
        tokenizer("Roberta").save_pretrained(tmp_path)
        with pytest.raises(FaithscopeError, match="could not be loaded"):
            Pretrained(f"hf:{tmp_path}", 2).build(0)

    def test_weights_of_another_size(self, tmp_path):
        save_encoder(tmp_path, "Roberta")
        config("Roberta", 21, intermediate_size=48).save_pretrained(tmp_path)
        with pytest.raises(FaithscopeError, match="do not fit its configuration: 6 are"):
            Pretrained(f"hf:{tmp_path}", 2).build(0)

    def test_a_model_that_reads_embeddings_otherwise(self, roberta):
        model = TextClassifier(Shifted(roberta.build(0)), roberta.pad_id)
        ids = torch.tensor([[0, 5, 6, 2], [0, 5, 2, 1]])
        with pytest.raises(FaithscopeError, match="gradients would mislead"):
            model.check("mine", ids)

    def test_a_model_that_cannot_read_embeddings(self, roberta):
        model = TextClassifier(Shifted(roberta.build(0)), roberta.pad_id)
        model.module.inner.forward = None
        with pytest.raises(FaithscopeError, match="cannot be read from word embeddings"):
            model.check("mine", torch.tensor([[0, 5, 6, 2]]))

    def test_loading_says_nothing(self, tmp_path, capfd):
        name = save_encoder(tmp_path, "Roberta")
        capfd.readouterr()
        Pretrained(name, 2).build(0)
        assert capfd.readouterr() == ("", "")


def test_words_are_readable(roberta):
    assert {*FILLERS, *KEYWORDS, "<s>", "<mask>"} <= set(roberta.words)
