"""Methods for text that score tokens by word embeddings, gradients, words or chance.

They need no Transformer: whatever model can be explained gives the evidence (a BiLSTM in bilstm.py,
an encoder that is trained in encoder.py, a Transformer here). Their defaults are those of the
programs for BERT; the options of the Recursive ROAR paper are written out in `ROAR`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Size, Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence, Layer
from faithscope.methods.gradient import Integral, check_steps
from faithscope.methods.layout import check_reading
from faithscope.methods.method import Method, method, register_method
from faithscope.methods.trace import no_gradient
from faithscope.models import TextModel, TokenInputs
from faithscope.models.device import float64_device
from faithscope.models.tape import first_tensor, swapped
from faithscope.rng import keyed_uniform, stream_keys

F = TypeVar("F", bound=Callable[..., Tensor])

At = Literal["words", "tokens"]
"""Where gradients are taken: at the word embeddings, or at what enters the first block, which has
positions and types."""
Baseline = Literal["pad", "pad_all", "zero"]
"""Where a path begins: at [PAD] in the place of all but special tokens, or of all, or at 0."""

ROAR = (
    "attention",
    "gradient(norm=one_hot)",
    "input_x_gradient(signed=false)",
    "integrated_gradients(rule=riemann_right, baseline=zero, scaling=code, signed=false)",
    "random",
)
"""The measures of the Recursive ROAR paper, as the program that made its tables has them."""


@dataclass(frozen=True, eq=False)
class TokenEvidence:
    """What a model left behind of B texts of T tokens; positions beyond a text's length are 0."""

    embeddings: Tensor | None = None
    """[B, T, E] word embeddings as the model reads them, or the tokens that enter its blocks."""
    attention: Tensor | None = None
    """[B, T] attention weights."""
    gradient: Tensor | None = None
    """[B, T, E] gradient of the target logit with respect to `embeddings`."""
    gram: Tensor | None = None
    """[E, E] the embedding matrix's Gram matrix, or [B, E, E] where texts have their own."""
    baseline: Tensor | None = None
    """[B, T, E] where the path begins, None at 0."""
    path_gradient: Tensor | None = None
    """[B, T, E] the gradient summed over the path, by the weights of `path_of`."""
    word_scores: Tensor | None = None
    """[B, T] statistics of the training split for the word at each position."""
    uniform: Tensor | None = None
    """[B, T] random numbers in [0, 1)."""

    @property
    def tokens(self) -> Size | None:
        """How many texts and tokens there are, [B, T]; None where nothing is known of them."""
        held = (self.embeddings, self.attention, self.gradient, self.word_scores, self.uniform)
        return next((part.shape[:2] for part in held if part is not None), None)


# What the options of a measure ask for


@dataclass(frozen=True)
class Path:
    """Where the gradient is taken between a baseline and the text: (share, weight) of each place.

    At share a it is taken at baseline + a · (text - baseline).
    """

    points: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    baseline: str = "zero"


def path_of(measure: Method) -> Path:
    """The path that a measure integrates along."""
    chosen = {**measure.defaults, **measure.options}
    points = _points(chosen["rule"], chosen["steps"])
    if chosen["scaling"] == "code":
        points = [(share, weight * share) for share, weight in points]
    return Path(tuple(points), chosen["baseline"])


def _points(rule: str, steps: int) -> list[tuple[float, float]]:
    """The places of an integral from 0 to 1 and their weights."""
    check_steps(rule, steps)
    if rule == "gausslegendre":
        nodes, halves = np.polynomial.legendre.leggauss(steps)
        rounded = (halves / 2).astype(np.float32)  # as captum rounds them
        return list(zip(((1 + nodes) / 2).tolist(), rounded.tolist(), strict=True))
    if rule == "riemann_trapezoid":  # captum's weights, which sum to (steps - 1) / steps
        ends = {0, steps - 1}
        return [(i / (steps - 1), (0.5 if i in ends else 1) / steps) for i in range(steps)]
    first = {"riemann_left": 0, "riemann_middle": 0.5, "riemann_right": 1}[rule]
    return [((first + i) / steps, 1 / steps) for i in range(steps)]


def place_of(measure: Method) -> str:
    """Where a measure takes gradients, "words" or "tokens"."""
    return str({**measure.defaults, **measure.options}.get("at", "words"))


def reads_words_only(measure: Method) -> bool:
    """Whether word embeddings and their gradients are all that a measure reads of a model."""
    return measure.by_token and measure.needs <= {"gradient", "path_gradient", "statistics"}


# Transformers


def token_evidence(evidence: Evidence, measure: Method) -> TokenEvidence:
    """What a measure reads of a Transformer, from the evidence that all methods share."""
    inputs, model = evidence.inputs, evidence.model
    assert isinstance(inputs, TokenInputs) and isinstance(model, TextModel)
    at_words = place_of(measure) == "words"
    embeddings = evidence.embedded if at_words else Layer(0, evidence).stream()
    gradient = gram = baseline = along = None
    if "gradient" in measure.needs:
        gradient, weight = evidence.input_gradient(), model.embedding.weight.detach()
        gram = weight.T @ weight if measure.options.get("norm") == "one_hot" else None
    if "stream_gradient" in measure.needs:
        gradient = Layer(0, evidence).stream_gradient()
    if "path_gradient" in measure.needs:
        path = path_of(measure)
        check_reading(model, inputs)
        baseline = _baseline(evidence, path.baseline, at_words=at_words)
        along = _path_gradient(evidence, path.points, embeddings, baseline, at_words=at_words)
    return TokenEvidence(
        embeddings=embeddings,
        gradient=gradient,
        gram=gram,
        baseline=baseline,
        path_gradient=along,
        uniform=_uniform(evidence, inputs) if measure.is_random else None,
    )


def _baseline(evidence: Evidence, kind: str, *, at_words: bool) -> Tensor | None:
    """Where a path begins, [B, T, E]; None at 0."""
    model, inputs = evidence.model, evidence.inputs
    assert isinstance(inputs, TokenInputs) and isinstance(model, TextModel)
    if kind == "zero":
        return None
    words = model.embed(model.padded(inputs, keep_special=kind == "pad"))
    if at_words:
        return words
    seen = list[Tensor]()

    def look(tokens: Tensor) -> Tensor:
        seen.append(tokens)
        return tokens

    with torch.no_grad(), _entering(evidence, look):
        model.read(inputs, words)
    return seen[0]


@contextmanager
def _entering(evidence: Evidence, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Give the first block other tokens."""
    first = next(iter(evidence.vit.require_blocks("at=tokens").values()))

    def hook(_: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        tokens = first_tensor((args, kwargs))
        known = {id(tokens): change(tokens)}
        return swapped(args, known), swapped(kwargs, known)

    handle = first.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _path_gradient(
    evidence: Evidence,
    points: Sequence[tuple[float, float]],
    embeddings: Tensor,
    baseline: Tensor | None,
    *,
    at_words: bool,
) -> Tensor:
    """The weighted sum of the target logit's gradients along a path: [B, T, E]."""
    model, count = evidence.model, len(evidence.inputs)
    start = torch.zeros_like(embeddings) if baseline is None else baseline
    total = torch.zeros_like(embeddings)
    together = max(1, evidence.batch_size // count)

    def answer(places: Tensor, values: Tensor) -> Tensor:
        if at_words:
            return evidence.read(values, places)
        with _entering(evidence, lambda _: values):
            return model.read(evidence.inputs[places], evidence.embedded[places])

    for first in range(0, len(points), together):
        part = embeddings.new_tensor(points[first : first + together])
        places = torch.arange(count, device=embeddings.device).repeat(len(part))
        shares = part[:, 0, None, None, None]
        values = (start + shares * (embeddings - start)).flatten(0, 1).requires_grad_(True)
        with torch.enable_grad():
            chosen = answer(places, values).gather(1, evidence.target[places, None])
            try:
                (found,) = torch.autograd.grad(
                    (part[:, 1:] * chosen.view(len(part), -1)).sum(), values
                )
            except RuntimeError as error:
                raise no_gradient(model, error) from error
        total += found.view(len(part), *embeddings.shape).sum(0)
    return total / evidence.scale


def _uniform(evidence: Evidence, inputs: TokenInputs) -> Tensor:
    """A random number for each unit, at the first of its tokens: [B, T]."""
    keys = stream_keys(evidence.keys, seed=evidence.seed, purpose="random", draw=evidence.draw)
    drawn = keyed_uniform(keys.to(float64_device(inputs.device)), inputs.count)
    units = inputs.units.to(drawn.device)
    begins = (units >= 0) & (units != units.roll(1, dims=1))
    return drawn.gather(1, units.clamp_min(0)) * begins


# The registry


def register_measure(
    name: str,
    *,
    needs: Iterable[str] | Callable[..., Iterable[str]] = (),
    is_random: bool = False,
    in_papers: bool = False,
    in_half: bool = False,
) -> Callable[[F], F]:
    """Register a function of TokenEvidence as a measure: a method of the modality "text"."""
    return register_method(
        name,
        needs=needs,
        modality="text",
        is_random=is_random,
        in_papers=in_papers,
        in_half=in_half,
    )


def measure(name: str, **options: Any) -> Method:
    """Make a measure from its name (or text like ``integrated_gradients(steps=20)``) and options.

    >>> measure("integrated_gradients", steps=20).label
    'integrated_gradients(steps=20)'
    """
    return method(name, modality="text", **options)


def _given(evidence: Tensor | None) -> Tensor:
    assert evidence is not None  # what a measure declares to need is there
    return evidence


def _gradient_at(*, at: str, **_: object) -> tuple[str, ...]:
    return ("gradient",) if at == "words" else ("stream", "stream_gradient")


def _path_at(*, at: str, **_: object) -> tuple[str, ...]:
    return ("path_gradient",) if at == "words" else ("path_gradient", "stream")


def _sized(scores: Tensor, signed: bool) -> Tensor:
    return scores if signed else scores.abs()


@register_measure("gradient", needs=_gradient_at)
def gradient(
    evidence: TokenEvidence,
    *,
    norm: Literal["l2", "l1", "sum", "one_hot"] = "l2",
    at: At = "words",
) -> Tensor:
    r"""Norm of the gradient at the token's embedding.

    .. math:: \| g_t \|_2, \qquad g_t = \partial f / \partial e_t

    `norm` is "l2", "l1", the signed "sum", or "one_hot", that of the gradient with respect to the
    token's one-hot vector (Madsen et al. 2022):

    .. math:: \| W g_t \|_2 = \sqrt{g_t^\top (W^\top W) g_t}

    with the embedding matrix :math:`W` [V, E]: the Gram matrix [E, E] stands for the V numbers per
    token, which are never made.
    """
    g = _given(evidence.gradient)
    if norm == "one_hot":
        if at != "words":
            raise FaithscopeError("gradient's norm=one_hot is of words: it needs at=words.")
        return ((g @ _given(evidence.gram)) * g).sum(-1).clamp_min(0).sqrt()
    if norm == "sum":
        return g.sum(-1)
    found: Tensor = torch.linalg.vector_norm(g, ord=int(norm[1]), dim=-1)
    return found


@register_measure("input_x_gradient", needs=_gradient_at)
def input_x_gradient(evidence: TokenEvidence, *, signed: bool = True, at: At = "words") -> Tensor:
    r"""Input times gradient, ⟨e_t, g_t⟩; with signed=false its size."""
    return _sized((_given(evidence.embeddings) * _given(evidence.gradient)).sum(-1), signed)


@register_measure("integrated_gradients", needs=_path_at, in_papers=True, in_half=True)
def integrated_gradients(
    evidence: TokenEvidence,
    *,
    steps: int = 50,
    rule: Integral = "gausslegendre",
    baseline: Baseline = "pad",
    scaling: Literal["paper", "code"] = "paper",
    signed: bool = True,
    at: At = "words",
) -> Tensor:
    r"""Integrated gradients from [PAD], special tokens kept.

    .. math:: \Bigl\langle e_t - b_t, \int_0^1 \nabla f(b + \alpha (e - b))_t \, d\alpha
              \Bigr\rangle

    `baseline` puts [PAD] in the place of all tokens but special ones ("pad"), of all ("pad_all"),
    or is 0 ("zero"). scaling="code" takes the gradient through the scaling, which multiplies it by
    α, as the program of Madsen et al. (2022) does; with signed=false the size counts.
    """
    inputs = _given(evidence.embeddings)
    if evidence.baseline is not None:
        inputs = inputs - evidence.baseline
    return _sized((inputs * _given(evidence.path_gradient)).sum(-1), signed)


@register_measure("mutual_information", needs=("statistics",))
def mutual_information(evidence: TokenEvidence) -> Tensor:
    """What the word's presence says about the class in the training split, whatever the model."""
    return _given(evidence.word_scores)


@register_measure("random", is_random=True, in_papers=True)
def random(evidence: TokenEvidence) -> Tensor:
    """Uniform noise."""
    return _given(evidence.uniform)
