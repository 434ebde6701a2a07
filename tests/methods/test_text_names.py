"""A method's name means the same for a text in both probes, and whatever model is explained."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import faithscope as fs
from bilstm_tasks import classify, pack, split
from encoders import save_encoder, task
from faithscope import FaithscopeError
from faithscope.data.vocabulary import PAD
from faithscope.methods import METHODS, Method, resolve_methods
from faithscope.methods.bilstm import Texts, bilstm_evidence, check_measure, token_scores
from faithscope.methods.text import ROAR, Path, measure, path_of
from faithscope.models.bilstm import Shape
from faithscope.models.text_classifier import read_lengths
from faithscope.models.text_model import text_model
from faithscope.probes.retrain.finetune import FinetuneLearner
from faithscope.probes.retrain.texts import TextModality
from faithscope.request import Given, Retrain, check_request

OF_MODELS = sorted(set(METHODS.of("text")) - {"mutual_information", "random", "attention"})
MORE = ["gradient(norm=one_hot)", "integrated_gradients(baseline=pad_all, steps=7)"]
MORE += [*ROAR[1:-1], "attention(layers=last, gradient=true)", "gradient(at=tokens)"]
OF_TRANSFORMERS = ["rollout", "lrp", "attcat", "conservative_lrp", "gradient(at=tokens)"]


@pytest.fixture(scope="module", params=["Bert", "Roberta"])
def trained(request, tmp_path_factory):
    """A learner, what a training may have left behind, and texts."""
    name = save_encoder(tmp_path_factory.mktemp("encoder"), request.param)
    texts = task(24)
    learner = FinetuneLearner(name, texts, device="cpu")
    return learner, learner.checkpoint.build(3).state_dict(), learner.encode(texts).test


@pytest.mark.parametrize("name", [*OF_MODELS, *MORE])
def test_retraining_explains_by_a_name_as_explain_does(trained, name: str):
    learner, weights, tokens = trained
    [scores] = learner.explain([weights], [tokens], measure(name), [0])
    module = learner.checkpoint.build(3)
    model = text_model(module, learner.checkpoint.tokenizer, name="the same")
    lengths = read_lengths(tokens.ids, learner.checkpoint.pad_id)
    given = {"input_ids": [ids[:n].tolist() for ids, n in zip(tokens.ids, lengths, strict=True)]}
    maps = fs.explain(model, given, name, target=tokens.labels)
    for row, ranked, made in zip(scores, tokens.eligible, maps, strict=True):
        torch.testing.assert_close(row[ranked], made.float(), rtol=1e-4, atol=1e-5)


def test_all_is_the_papers_options_in_full():
    request = check_request(Retrain, {"model": "bilstm", "data": "bundled:babi1"})
    chosen = TextModality().measures(request, Given())
    assert [held.label for held in chosen] == list(ROAR)
    assert [held.name for held in chosen] == [held.partition("(")[0] for held in ROAR]
    assert ROAR[3] == (
        "integrated_gradients(rule=riemann_right, baseline=zero, scaling=code, signed=false)"
    )


def test_all_of_texts_are_the_papers_methods_of_images():
    of_images, of_texts = (resolve_methods("all", modality) for modality in ("image", "text"))
    assert {held.name for held in of_images} == {held.name for held in of_texts}


# BiLSTM-attention

SHAPE = Shape(20, 7, 5, 3, is_paired=False)
TOKENS = split([6, 9, 3, 5], None)


def weights() -> dict[str, Tensor]:
    """A model whose [PAD] has an embedding, as that of a trained one may."""
    made = pack(SHAPE, 1)
    made["main.embedding"][:, PAD] = 0.3
    return made


def scores(name: str | Method) -> Tensor:
    rule = measure(name) if isinstance(name, str) else name
    batch = Texts.of([TOKENS], "cpu").at(torch.arange(len(TOKENS)))
    path = path_of(rule) if "path_gradient" in rule.needs else Path()
    [evidence] = bilstm_evidence(weights(), batch, rule.needs, path, 2**13)
    return token_scores(rule, evidence)


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_a_bilstm_refuses_what_needs_blocks(name: str):
    with pytest.raises(FaithscopeError, match="reads the blocks of a Transformer"):
        check_measure(measure(name))


def test_attention_of_a_bilstm_is_alpha_and_has_no_options():
    alpha, found = classify(weights(), TOKENS).attention[0], scores("attention")
    torch.testing.assert_close(found, alpha[:, : found.shape[1]], rtol=0, atol=1e-12)
    check_measure(measure("attention"))
    with pytest.raises(FaithscopeError, match="one attention weight for each token, α"):
        check_measure(measure("attention", layers="last"))


def test_norms_of_a_gradient_are_those_of_its_numbers():
    batch = Texts.of([TOKENS], "cpu").at(torch.arange(len(TOKENS)))
    needs = frozenset({"gradient"})
    [evidence] = bilstm_evidence(weights(), batch, needs, Path(), 2**13)
    slope = evidence.gradient
    for name, expected in (
        ("gradient", slope.square().sum(-1).sqrt()),
        ("gradient(norm=l1)", slope.abs().sum(-1)),
        ("gradient(norm=sum)", slope.sum(-1)),
        ("input_x_gradient", (slope * evidence.embeddings).sum(-1)),
        ("input_x_gradient(signed=false)", (slope * evidence.embeddings).sum(-1).abs()),
    ):
        torch.testing.assert_close(scores(name), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("baseline", ["pad", "pad_all", "zero"])
def test_integrated_gradients_add_up_to_what_the_logit_changes_from_the_baseline(baseline: str):
    found = scores(measure("integrated_gradients", baseline=baseline, steps=200)).sum(-1)
    p = weights()
    padded = TOKENS.eligible if baseline == "pad" else torch.ones_like(TOKENS.eligible)
    begun = replace(TOKENS, ids=TOKENS.ids.masked_fill(padded, PAD))
    empty = {**p, "main.embedding": torch.zeros_like(p["main.embedding"])}
    start = classify(empty if baseline == "zero" else p, begun).logits[0]
    change = classify(p, TOKENS).logits[0] - start
    expected = change.gather(1, TOKENS.labels[:, None])[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
