"""Every method for texts on every family of text models: it runs, or a sentence says why not."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import faithscope as fs
from conftest import randn
from faithscope import FaithscopeError
from faithscope.methods import METHODS
from faithscope.methods.evidence import Evidence
from faithscope.methods.trace import gather
from faithscope.models import TextModel, TokenInputs
from text_models import text_model, tokenizer

GROUPED = {"num_key_value_heads": 1}
ENCODERS = {
    "Bert": {},
    "MiniLM": {"hidden_size": 24, "num_attention_heads": 6},
    "Roberta": {},
    "XLMRoberta": {},
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2},
    "Electra": {"embedding_size": 8},
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 8,
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "MPNet": {},
    "ModernBert": {"cls_token_id": 0, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2},
    "Albert": {"embedding_size": 8},
}
DECODERS = {"GPT2": {}, "Llama": GROUPED, "Qwen2": GROUPED}
FAMILIES = ENCODERS | DECODERS
PLAIN = {"DebertaV2", "MPNet"}
"""Families without fused attention."""
COARSE = {"ModernBert", "Llama", "Qwen2"}
"""Families that compute their rotations, norms or softmax in float32 whatever the model is in."""

SINGLE = ["the film was very good", "a plot", "it is a very bad story", "the plot was very bad"]
PAIRS = [("the film", "it was good"), ("a plot is", "bad"), ("this film", "it is bad")]
METHODS_OF_TEXT = sorted(set(METHODS.of("text")) - {"mutual_information"})
EVERY = [*METHODS_OF_TEXT, "gradient(at=tokens)", "integrated_gradients(at=tokens, steps=5)"]
EVERY += ["conservative_lrp(at=words)", "attention(layers=last, gradient=true)"]

RELEVANCE = {"lrp", "partial_lrp", "transformer_attribution"}
OF_WORDS = {"gradient", "input_x_gradient", "integrated_gradients", "random"}
TWICE = "runs one of its blocks twice in a forward pass"
REFUSED = {
    **{("Albert", name): TWICE for name in EVERY if name not in OF_WORDS},
    **{("DebertaV2", name): "overwrites tensors in place" for name in RELEVANCE},
}
"""What a family does not allow, and the cause that is named."""

every_family = pytest.mark.parametrize("kind", FAMILIES)
inside = pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "Albert"])
INPUTS = [(kind, "single") for kind in FAMILIES] + [(kind, "pairs") for kind in ENCODERS]


@cache
def classifier(kind: str, kernel: str = "sdpa") -> TextModel:
    """A tiny classifier of random weights."""
    family = "Bert" if kind == "MiniLM" else kind
    plain = "eager" if kind in PLAIN else kernel
    model = text_model(family, **FAMILIES[kind], attn_implementation=plain)
    model.module.requires_grad_(False)
    if kind in DECODERS:
        model.module.config.pad_token_id = None
    return model


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("kind", "form"), INPUTS)
def test_a_method_runs_or_the_cause_is_named(kind: str, form: str, name: str):
    model, texts = classifier(kind), SINGLE if form == "single" else PAIRS
    cause = REFUSED.get((kind, name))
    if cause is not None:
        with pytest.raises(FaithscopeError, match=cause) as refusal:
            fs.explain(model, texts, name)
        assert "\n" not in str(refusal.value)
        return
    maps = fs.explain(model, texts, name)
    for text, made in zip(texts, maps, strict=True):
        words = text if isinstance(text, str) else " ".join(text)
        assert made.shape == (len(words.split()),)
        assert made.isfinite().all()
    by_length = sorted(zip(texts, maps, strict=True), key=lambda pair: len(pair[1]))
    for text, made in (by_length[0], by_length[-1]):  # the most padding, and none
        [alone] = fs.explain(model, [text], name)
        scale = alone.abs().max().clamp_min(1e-300)
        assert float((made - alone).abs().max() / scale) <= 1e-8
    if name != "grad_cam":  # whose map is 0 where no gradient is positive
        assert any(len(set(made.tolist())) > 1 for made in maps)


def tokens(model: TextModel, *texts: str) -> TokenInputs:
    """Texts of one length, every token a unit."""
    ids = torch.tensor([model.encode(text).ids for text in texts])
    units = torch.arange(ids.shape[1]).expand_as(ids)
    return TokenInputs(ids, torch.ones_like(ids), torch.zeros_like(ids), units, ids.shape[1])


@cache
def evidence_of(kind: str, kernel: str = "sdpa") -> Evidence:
    model = classifier(kind, kernel)
    texts = tokens(model, SINGLE[0], SINGLE[3])
    needs = ["attention", "attention_gradient", "stream", "stream_gradient", "gradient"]
    if (kind, "lrp") not in REFUSED:
        needs.append("relevance")
    return gather(model, texts, torch.tensor([0, 2]), frozenset(needs), keys=["a", "b"])


def own_attentions(kind: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The logits and the attentions that the library's module gives, in one graph."""
    model, texts = classifier(kind, "eager"), evidence_of(kind).inputs
    embedded = model.embed(texts).requires_grad_(True)
    given = {"inputs_embeds": embedded, "attention_mask": texts.attended}
    if kind in DECODERS:
        given["use_cache"] = False
        model.module.config.pad_token_id = -1
    answer = model.module(**given, output_attentions=True)
    if kind in DECODERS:
        model.module.config.pad_token_id = None
    return answer.logits, answer.attentions


@inside
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_attention_and_its_gradient_are_the_librarys_own(kind: str, kernel: str):
    evidence = evidence_of(kind, kernel)
    logits, attentions = own_attentions(kind)
    chosen = logits.gather(1, evidence.target[:, None]).sum()
    gradients = torch.autograd.grad(chosen, attentions)
    for layer in evidence.layers():
        paid, slope = attentions[layer.index].detach(), gradients[layer.index]
        close = 1e-5 if kind in COARSE else 1e-10
        torch.testing.assert_close(layer.attention, paid, rtol=0, atol=close)
        torch.testing.assert_close(layer.attention_gradient, slope, rtol=0, atol=close)


@inside
def test_the_read_out_is_the_token_that_the_head_reads(kind: str):
    evidence = evidence_of(kind)
    expected = torch.zeros(2, evidence.inputs.ids.shape[1], dtype=torch.float64)
    if kind == "ModernBert":  # whose head reads the mean, unless its settings say otherwise
        pooling = evidence.model.module.config.classifier_pooling
        expected[:] = 1 / expected.shape[1] if pooling == "mean" else expected
        expected[:, 0] = 1 / expected.shape[1] if pooling == "mean" else 1
    else:
        expected[:, -1 if kind in DECODERS else 0] = 1
    assert torch.equal(evidence.readout, expected)


@inside
def test_conserving_relevance_sums_to_one_for_every_text(kind: str):
    if (kind, "lrp") in REFUSED:
        pytest.skip("relevance is refused")
    sums = evidence_of(kind).sweep("conserving").descend(0).sum((1, 2))
    close = 1e-2 if kind in COARSE else 1e-5
    torch.testing.assert_close(sums, torch.ones(2, dtype=torch.float64), rtol=0, atol=close)


@every_family
def test_gradients_are_those_of_finite_differences(kind: str):
    model = classifier(kind)
    text = tokens(model, SINGLE[0])
    target = torch.tensor([1])
    gradient = gather(model, text, target, frozenset({"gradient"}), keys=["a"]).input_gradient()
    size, close = (1e-3, 1e-3) if kind in COARSE else (1e-5, 1e-6)
    start, step = model.embed(text), size * randn(*gradient.shape)
    ends = [model.read(text, start + sign * step)[0, 1] for sign in (1, -1)]
    expected = (ends[0] - ends[1]) / 2
    torch.testing.assert_close((gradient * step).sum(), expected, rtol=close, atol=0)


@every_family
def test_nothing_of_a_model_is_changed(kind: str):
    model = classifier(kind)
    before = {name: held.clone() for name, held in model.module.state_dict().items()}
    settings = model.module.config.to_dict()
    allowed = [name for name in METHODS_OF_TEXT if (kind, name) not in REFUSED]
    fs.explain(model, SINGLE, allowed)
    assert all(torch.equal(held, before[name]) for name, held in model.module.state_dict().items())
    assert model.module.config.to_dict() == settings
    for child in model.module.modules():
        assert not child._forward_hooks and not child._forward_pre_hooks
        assert "forward" not in vars(child)


# What cannot be explained


def test_without_a_pad_token_the_baseline_is_refused_and_another_is_named():
    model = classifier("GPT2")
    bare = replace(model, tokenizer=tokenizer("GPT2", pad=False))
    with pytest.raises(FaithscopeError, match="no pad token: choose baseline=zero"):
        fs.explain(bare, SINGLE, "integrated_gradients")
    assert len(fs.explain(bare, SINGLE, "integrated_gradients(baseline=zero, steps=5)")) == 4


def test_a_model_that_reads_embeddings_otherwise_is_not_explained():
    model = classifier("Bert")

    class Shifted(type(model.module)):
        def forward(self, input_ids=None, inputs_embeds=None, **given):
            moved = None if inputs_embeds is None else inputs_embeds * 1.5
            return super().forward(input_ids=input_ids, inputs_embeds=moved, **given)

    module = Shifted(model.module.config).double().eval()
    other = fs.wrap(module, tokenizer=model.tokenizer)
    for name in ("gradient", "integrated_gradients", "rollout", "lrp"):
        with pytest.raises(FaithscopeError, match="reads word embeddings otherwise than tokens"):
            fs.explain(other, SINGLE, name, target=0)


def test_a_method_of_images_is_said_to_be_that():
    with pytest.raises(FaithscopeError, match=r"is for images, .* choose attcat, .* of your own"):
        fs.explain(classifier("Bert"), SINGLE, "random_patch")
    with pytest.raises(FaithscopeError, match=r"is for images, .*: leave out layer"):
        fs.explain(classifier("Bert"), SINGLE, "grad_cam(layer=classifier)")


def test_norm_one_hot_is_of_words():
    with pytest.raises(FaithscopeError, match="norm=one_hot is of words"):
        fs.explain(classifier("Bert"), SINGLE, "gradient(norm=one_hot, at=tokens)")
