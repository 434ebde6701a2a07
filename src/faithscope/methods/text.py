"""Measures for text: how much each token mattered to the gold label's logit.

As for images, a measure declares the evidence it needs and is a short function of it; a model that
can be explained gives the evidence (methods/bilstm.py, methods/encoder.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Size, Tensor

from faithscope.methods.evidence import Evidence
from faithscope.methods.method import Method, method, register_method
from faithscope.models import TextModel, TokenInputs
from faithscope.models.device import float64_device
from faithscope.rng import keyed_uniform, stream_keys

F = TypeVar("F", bound=Callable[..., Tensor])


@dataclass(frozen=True, eq=False)
class TokenEvidence:
    """What a model left behind of B texts of T tokens; positions beyond a text's length are 0."""

    embeddings: Tensor | None = None
    """[B, T, E] word embeddings as the model reads them."""
    attention: Tensor | None = None
    """[B, T] attention weights."""
    gradient: Tensor | None = None
    """[B, T, E] gradient of the gold logit with respect to `embeddings`."""
    gram: Tensor | None = None
    """[E, E] the embedding matrix's Gram matrix, or [B, E, E] where texts have their own."""
    path_gradient: Tensor | None = None
    """[B, T, E] the gradient averaged over the path (weights as `path_weights` gave them)."""
    word_scores: Tensor | None = None
    """[B, T] statistics of the training split for the word at each position."""
    uniform: Tensor | None = None
    """[B, T] random numbers in [0, 1)."""

    @property
    def tokens(self) -> Size | None:
        """How many texts and tokens there are, [B, T]; None where nothing is known of them."""
        held = (self.embeddings, self.attention, self.gradient, self.word_scores, self.uniform)
        return next((part.shape[:2] for part in held if part is not None), None)


def token_evidence(evidence: Evidence, measure: Method) -> TokenEvidence:
    """What a measure reads of a Transformer, from the evidence that all methods share."""
    embeddings, inputs = evidence.embedded, evidence.inputs
    assert isinstance(inputs, TokenInputs) and isinstance(evidence.model, TextModel)
    gradient = gram = along = None
    if "gradient" in measure.needs:
        weight = evidence.model.embedding.weight.detach()
        gradient, gram = evidence.input_gradient(), weight.T @ weight
    if "path_gradient" in measure.needs:
        along = _path_gradient(evidence, path_of(measure))
    return TokenEvidence(
        embeddings=embeddings,
        gradient=gradient,
        gram=gram,
        path_gradient=along,
        uniform=_uniform(evidence, inputs) if measure.is_random else None,
    )


def _path_gradient(evidence: Evidence, path: Sequence[tuple[float, float]]) -> Tensor:
    """The weighted sum of the target logit's gradients at scaled word embeddings: [B, T, E]."""
    model, embeddings, count = evidence.model, evidence.embedded, len(evidence.inputs)
    total = torch.zeros_like(embeddings)
    together = max(1, evidence.batch_size // count)
    for first in range(0, len(path), together):
        part = embeddings.new_tensor(path[first : first + together])
        places = torch.arange(count, device=embeddings.device).repeat(len(part))
        scaled = (part[:, 0, None, None, None] * embeddings).flatten(0, 1).requires_grad_(True)
        with torch.enable_grad():
            logits = model.read(evidence.inputs[places], scaled)
            chosen = logits.gather(1, evidence.target[places, None]).view(len(part), -1)
            (found,) = torch.autograd.grad((part[:, 1:] * chosen).sum(), scaled)
        total += found.view(len(part), *embeddings.shape).sum(0)
    return total


def _uniform(evidence: Evidence, inputs: TokenInputs) -> Tensor:
    """A random number for each unit, at the first of its tokens: [B, T]."""
    keys = stream_keys(evidence.keys, seed=evidence.seed, purpose="random", draw=evidence.draw)
    drawn = keyed_uniform(keys.to(float64_device(inputs.device)), inputs.count)
    units = inputs.units.to(drawn.device)
    begins = (units >= 0) & (units != units.roll(1, dims=1))
    return drawn.gather(1, units.clamp_min(0)) * begins


def register_measure(
    name: str, *, needs: Iterable[str] = (), is_random: bool = False, in_papers: bool = False
) -> Callable[[F], F]:
    """Register a function of TokenEvidence as a measure: a method of the modality "text"."""
    return register_method(
        name, needs=needs, modality="text", is_random=is_random, in_papers=in_papers
    )


def measure(name: str, **options: Any) -> Method:
    """Make a measure from its name (or text like ``integrated_gradients(steps=20)``) and options.

    >>> measure("integrated_gradients", steps=20).label
    'integrated_gradients(steps=20)'
    """
    return method(name, modality="text", **options)


def path_of(measure: Method) -> list[tuple[float, float]]:
    """The scales of the input at which a measure takes the gradient, and the weight of each."""
    chosen = {**measure.defaults, **measure.options}
    steps = chosen["steps"]
    shares = [i / steps for i in range(1, steps + 1)]
    if chosen["scaling"] == "code":
        return [(share, share / steps) for share in shares]
    return [(share, 1 / steps) for share in shares]


def _given(evidence: Tensor | None) -> Tensor:
    assert evidence is not None  # what a measure declares to need is there
    return evidence


def _sized(scores: Tensor, signed: bool) -> Tensor:
    return scores if signed else scores.abs()


@register_measure("attention", needs=("attention",), in_papers=True)
def attention(evidence: TokenEvidence) -> Tensor:
    """The attention weight of the token, α_t."""
    return _given(evidence.attention)


@register_measure("gradient", needs=("gradient",), in_papers=True)
def gradient(evidence: TokenEvidence) -> Tensor:
    r"""L2 norm of the gradient with respect to the token's one-hot vector.

    .. math:: \| W g_t \|_2 = \sqrt{g_t^\top (W^\top W) g_t}

    with the gradient :math:`g_t` of the word embedding and the embedding matrix :math:`W` [V, E]:
    the Gram matrix [E, E] stands for the V numbers per token, which are never made.
    """
    g, gram = _given(evidence.gradient), _given(evidence.gram)
    return ((g @ gram) * g).sum(-1).clamp_min(0).sqrt()


@register_measure("input_x_gradient", needs=("gradient",), in_papers=True)
def input_x_gradient(evidence: TokenEvidence, *, signed: bool = False) -> Tensor:
    """Input times gradient, |⟨e_t, g_t⟩|; `signed` keeps the sign."""
    return _sized((_given(evidence.embeddings) * _given(evidence.gradient)).sum(-1), signed)


@register_measure("integrated_gradients", needs=("path_gradient",), in_papers=True)
def integrated_gradients(
    evidence: TokenEvidence,
    *,
    steps: int = 50,
    scaling: Literal["code", "paper"] = "code",
    signed: bool = False,
) -> Tensor:
    r"""Integrated gradients from the zero embedding.

    .. math:: \Bigl| \Bigl\langle e_t, \frac1k \sum_{i=1}^k w_i \nabla f(\tfrac ik e)
              \Bigr\rangle_t \Bigr|

    with :math:`w_i = 1` in the paper and :math:`w_i = i/k` in the program that made its tables
    (`scaling`: the gradient there is taken through the scaling).
    """
    return _sized((_given(evidence.embeddings) * _given(evidence.path_gradient)).sum(-1), signed)


@register_measure("mutual_information", needs=("statistics",))
def mutual_information(evidence: TokenEvidence) -> Tensor:
    """What the word's presence says about the class in the training split, whatever the model."""
    return _given(evidence.word_scores)


@register_measure("random", is_random=True, in_papers=True)
def random(evidence: TokenEvidence) -> Tensor:
    """Uniform noise."""
    return _given(evidence.uniform)
