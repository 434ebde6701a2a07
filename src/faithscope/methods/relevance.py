r"""Layer-wise relevance propagation: the rules as formulas, and the sweep from logit to pixels.

Two sets of rules were published (Chefer et al. 2021): "original" (their `ViT_orig_LRP`), in which
each linear layer hands its full relevance to positive and to negative contributions, and
"conserving" (their `ViT_LRP`), in which sums of relevance are kept. Norms, activations, softmax,
LayerScale and q/k norms pass relevance on unchanged, biases receive none.

Everything is batched; sums of the conserving rules run over one sample at a time. The rules divide
by sign-indefinite sums, so they are ill-conditioned: run them in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError, choose
from faithscope.methods.rerun import Rerun
from faithscope.models.tape import SELECTIONS, Node, Tape, scaled_by, tensors_in

Rules = Literal["original", "conserving"]
STABILISER = 1e-9


def divide(relevance: Tensor, total: Tensor) -> Tensor:
    r"""Stabilised division, 0 where the denominator is exactly 0.

    .. math:: D(r, z) = r / (z + 10^{-9})

    >>> divide(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]))
    tensor([2., 0.])
    """
    return relevance / divisor(total)


def divisor(total: Tensor) -> Tensor:
    """What `divide` divides by, whatever the relevance: stabilised, infinite where it is 0."""
    stable = total + STABILISER
    stable.masked_fill_(stable == 0, STABILISER)
    return stable.masked_fill_(total == 0, torch.inf)


@dataclass(eq=False)
class Contributions:
    r"""Positive and negative contributions to what a linear layer gives, which all rules share.

    .. math:: Z_1 = w^+ x^+, \quad Z_2 = w^- x^-

    Shapes: inputs [..., in], weight [out, in].
    """

    inputs: InitVar[Tensor]
    weight: InitVar[Tensor]

    def __post_init__(self, inputs: Tensor, weight: Tensor) -> None:
        self.given, self.is_plus = inputs, inputs > 0
        self.weight_plus, self.weight_minus = weight.clamp(min=0), weight.clamp(max=0)
        self.first = inputs.clamp(min=0) @ self.weight_plus.T
        self.second = inputs.clamp(max=0) @ self.weight_minus.T

    def relevance(self, relevance: Tensor, rules: str) -> Tensor:
        r"""Relevance of the layer's inputs, [..., in], from that of its outputs, [..., out].

        .. math:: R_{in} = x^+ (w^{+\top} S_1) + x^- (w^{-\top} S_2)

        with :math:`S_1 = S_2 = D(R, Z_1 + Z_2)` (conserving) or :math:`S_i = D(R, Z_i)` (original).
        No sum is negative, and one that is 0 reaches only inputs that are 0.
        """
        if rules == "conserving":
            share_plus = share_minus = relevance / (self.first + self.second).add_(STABILISER)
        else:
            share_plus = relevance / (self.first + STABILISER)
            share_minus = relevance / (self.second + STABILISER)
        back_plus, back_minus = share_plus @ self.weight_plus, share_minus @ self.weight_minus
        return torch.where(self.is_plus, back_plus, back_minus).mul_(self.given)


def linear_relevance(inputs: Tensor, weight: Tensor, relevance: Tensor, rules: str) -> Tensor:
    r"""Relevance of a linear layer's inputs, positive and negative contributions apart.

    .. math::
        Z_1 = w^+ x^+, \quad Z_2 = w^- x^-, \quad
        R_{in} = x^+ (w^{+\top} S_1) + x^- (w^{-\top} S_2)

    with :math:`S_1 = S_2 = D(R, Z_1 + Z_2)` (conserving) or :math:`S_i = D(R, Z_i)` (original).

    Shapes: inputs [..., in], weight [out, in], relevance [..., out] -> [..., in].
    """
    return Contributions(inputs, weight).relevance(relevance, rules)


def add_relevance(
    a: Tensor, b: Tensor, relevance: Tensor, rules: str, *, by: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Relevance of the operands of a sum; `by` is its `divisor`, if that is known.

    .. math:: R_a = a \, D(R, a + b), \qquad R_b = b \, D(R, a + b)

    The conserving rules rescale both so that, sample by sample, :math:`\sum R_a + \sum R_b =
    \sum R`, shared in the ratio of :math:`|\sum R_a|` and :math:`|\sum R_b|`.

    Shapes: all [B, N, D].
    """
    share = relevance / (divisor(a + b) if by is None else by)
    to_a, to_b = a * share, share.mul_(b)
    if rules == "original":
        return to_a, to_b
    sums = torch.stack([_sum(to_a), _sum(to_b)])
    size = sums.abs()
    factors = divide(divide(size, size.sum(0)) * _sum(relevance), sums)
    return to_a.mul_(factors[0]), to_b.mul_(factors[1])


def clone_relevance(x: Tensor, *uses: Tensor, by: Tensor | None = None) -> Tensor:
    r"""Relevance of a tensor that is used several times; `by` is its `divisor`, if that is known.

    .. math:: R = x \, (D(R_1, x) + D(R_2, x) + \dots)
    """
    by = divisor(x) if by is None else by
    total = uses[0] / by
    for use in uses[1:]:
        total.add_(use / by)
    return total.mul_(x)


def product_relevance(
    a: Tensor, b: Tensor, product: Tensor, relevance: Tensor, *, by: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Relevance of the factors of a matrix product, half each; `by` is its `divisor`, if known.

    .. math::
        s = D(R, a b), \qquad R_a = \tfrac12 a \, (s b^\top), \qquad
        R_b = \tfrac12 b \, (a^\top s)

    Shapes: a [..., n, k], b [..., k, m], product and relevance [..., n, m].
    """
    share = (relevance / (divisor(product) if by is None else by)).div_(2)
    return (share @ b.mT).mul_(a), (a.mT @ share).mul_(b)


def _sum(values: Tensor) -> Tensor:
    return values.sum(dim=tuple(range(1, values.ndim)), keepdim=True)


def convolution_relevance(node: Node, relevance: Tensor, rules: str) -> Tensor:
    """The rule of a linear layer for a convolution: [B, C, H, W] from relevance [B, D, h, w]."""
    inputs, weight = node.inputs[0], _weight(node)
    plus, minus = inputs.clamp(min=0), inputs.clamp(max=0)
    weight_plus, weight_minus = weight.clamp(min=0), weight.clamp(max=0)
    first, second = _convolved(node, plus, weight_plus), _convolved(node, minus, weight_minus)
    if rules == "conserving":
        share_plus = share_minus = divide(relevance, first + second)
    else:
        share_plus, share_minus = divide(relevance, first), divide(relevance, second)
    return plus * _transposed(node, plus, weight_plus, share_plus) + minus * _transposed(
        node, minus, weight_minus, share_minus
    )


def pixel_relevance(node: Node, relevance: Tensor) -> Tensor:
    r"""Relevance of pixels by the z^B rule, with the bounds of each image.

    .. math::
        Z = W x - W^+ l - W^- h + 10^{-9}, \qquad
        R_{pix} = x (W^\top \tfrac{R}{Z}) - l (W^{+\top} \tfrac{R}{Z}) - h (W^{-\top} \tfrac{R}{Z})

    Shapes: the convolution's images [B, C, H, W], relevance [B, D, h, w] -> [B, C, H, W].
    """
    images, weight = node.inputs[0], _weight(node)
    low = images.amin((1, 2, 3), keepdim=True).expand_as(images)
    high = images.amax((1, 2, 3), keepdim=True).expand_as(images)
    terms = ((images, weight), (-low, weight.clamp(min=0)), (-high, weight.clamp(max=0)))
    parts = torch.stack([_convolved(node, values, kernel) for values, kernel in terms])
    share = relevance / (parts.sum(0) + STABILISER)
    pixels = [values * _transposed(node, values, kernel, share) for values, kernel in terms]
    return torch.stack(pixels).sum(0)


def _weight(node: Node) -> Tensor:
    weight: Tensor = node.kwargs["weight"] if "weight" in node.kwargs else node.args[1]
    return weight.detach()


def _convolved(node: Node, values: Tensor, weight: Tensor) -> Tensor:
    """The convolution of other values with another weight and no bias."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    given |= {"input": values, "weight": weight, "bias": None}
    result: Tensor = node.function(**given)
    return result


def _transposed(node: Node, like: Tensor, weight: Tensor, values: Tensor) -> Tensor:
    """The transposed convolution: [B, D, h, w] -> the shape of `like`."""
    with torch.enable_grad():
        inputs = torch.zeros_like(like).requires_grad_(True)
        (back,) = torch.autograd.grad(_convolved(node, inputs, weight), inputs, values)
    return back


@dataclass(eq=False)
class Shared:
    """What several sets of rules have in common at one operation, made for the first of them."""

    _known: dict[tuple[str, int], Any] = field(default_factory=dict)

    def contributions(self, node: Node) -> Contributions:
        """Those to a linear layer."""
        made: Contributions = self._once(
            "linear", node, lambda: Contributions(node.inputs[0].detach(), _known(node.weight))
        )
        return made

    def divisor(self, about: object, total: Callable[[], Tensor]) -> Tensor:
        """That of a total that belongs to an operation, or to a tensor."""
        made: Tensor = self._once("divisor", about, lambda: divisor(total()))
        return made

    def _once(self, what: str, about: object, make: Callable[[], Any]) -> Any:
        key = what, id(about)
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


@dataclass(eq=False)
class Descent:
    """Relevance on its way back along a tape, from what was computed to what it was made of.

    `cams` are the relevances of the attention probabilities that it passed, [B, heads, N, M].
    """

    tape: Tape
    rules: str
    where: str
    of_texts: bool = False
    """Whether to follow the published program for BERT where that for ViT does otherwise: the mask
    is a summand of the scores, and queries, keys and values are three uses of a token."""
    cams: list[Tensor] = field(default_factory=list)
    _arrived: dict[int, list[tuple[str, Tensor]]] = field(default_factory=dict)
    _sides: set[int] = field(default_factory=set)
    """Tensors on the way from a projection to the product of queries and keys."""
    _pixels: set[int] = field(default_factory=set)
    """Images, normalised perhaps: tensors whose convolution follows the rule of pixels."""
    _shared: Shared = field(default_factory=Shared)
    """What is shared with other rules at the operation that relevance has come to."""

    @property
    def images(self) -> int:
        """How many images there are."""
        return len(self.tape.roots[0])

    def run(
        self, output: Tensor, relevance: Tensor, root: Tensor, *, pixels: bool = False
    ) -> Tensor:
        """Take relevance from an output of the tape to its root."""
        if pixels:
            self._find_pixels(root)
        (found,) = descend([self], output, [relevance], root)
        return found

    def start(self, output: Tensor, relevance: Tensor) -> None:
        """Relevance arrives at what the tape gave."""
        self._deliver(output, relevance, "start")

    def step(self, node: Node, shared: Shared) -> None:
        """Relevance that has arrived at an operation's outputs goes to its inputs."""
        self._shared = shared
        given = [self._collect(tensor) for tensor in node.outputs]
        if any(part is not None for part in given):
            self._pass_on(node, given)

    def end(self, root: Tensor, shared: Shared) -> Tensor:
        """What has arrived at the root."""
        self._shared = shared
        found = self._collect(root)
        return torch.zeros_like(root) if found is None else found

    def _pass_on(self, node: Node, given: list[Tensor | None]) -> None:
        if node.kind in ("move", "pool"):
            self._move(node, given)
            return
        (relevance,) = given
        assert relevance is not None
        if node.kind == "linear":
            parts = self._shared.contributions(node)
            self._deliver(node.inputs[0], parts.relevance(relevance, self.rules), "linear")
        elif node.kind == "convolution":
            inputs = node.inputs[0]
            if id(inputs) in self._pixels:
                self._deliver(inputs, pixel_relevance(node, relevance), "linear")
            else:
                found = convolution_relevance(node, relevance, self.rules)
                self._deliver(inputs, found, "linear")
        elif node.kind in ("norm", "pass"):
            side = id(node.output) in self._sides
            self._deliver(node.inputs[0], relevance, node.kind, side=side)
        elif node.kind == "sum":
            self._share(node, relevance)
        elif node.kind == "both sides":
            self._turn(node, relevance)
        elif node.kind == "gate":
            for tensor in node.inputs:
                self._deliver(tensor, relevance / 2, "gate")
        elif node.kind == "attention":
            self._attend(node, relevance)
        else:
            raise self._no_rule(node)

    def _share(self, node: Node, relevance: Tensor) -> None:
        """Both operands of a sum; linear layers that are nothing but added are one."""
        first, second = _operands(node)
        joint = self._joint(node)
        if joint is not None:
            self._through_layers(*joint, relevance)
            return
        a, b = (held.detach().expand_as(relevance) for held in (first, second))
        by = self._shared.divisor(node, lambda: a + b)
        shares = add_relevance(a, b, relevance, self.rules, by=by)
        for tensor, share in zip((first, second), shares, strict=True):
            if self.tape.is_live(tensor):
                self._deliver(tensor, share, "sum")

    def _joint(self, node: Node) -> tuple[list[Tensor], Tensor] | None:
        """The inputs and the weight of the one layer that two make whose outputs are only added.

        Where both see the same, as a low-rank update and what it updates do, so does the one.
        """
        if len(node.inputs) != 2 or any(self.tape.uses(held) > 1 for held in node.inputs):
            return None
        chains = [self._chain(held) for held in node.inputs]
        for one, weight in chains[0]:
            for other, update in chains[1]:
                if one is other:
                    return [one], weight + update
        if not all(chains):
            return None
        return [chain[0][0] for chain in chains], torch.cat([c[0][1] for c in chains], dim=-1)

    def _chain(self, tensor: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of each linear layer in a row that made a tensor, its input and the weight from there."""
        found: list[tuple[Tensor, Tensor]] = []
        factor, node = 1.0, self.tape.maker(tensor)
        while node is not None:
            number = scaled_by(node)
            if node.kind == "linear":
                weight = _known(node.weight) * factor
                found.append((node.inputs[0], found[-1][1] @ weight if found else weight))
                factor = 1.0
            elif number is None:
                break
            else:
                factor *= number
            node = self.tape.maker(node.inputs[0])
        return found

    def _through_layers(self, inputs: list[Tensor], weight: Tensor, relevance: Tensor) -> None:
        """One linear layer on several inputs side by side."""
        joint = torch.cat([held.detach() for held in inputs], dim=-1)
        found = linear_relevance(joint, weight, relevance, self.rules)
        sizes = [held.shape[-1] for held in inputs]
        for held, part in zip(inputs, torch.split(found, sizes, dim=-1), strict=True):
            self._deliver(held, part, "linear")

    def _turn(self, node: Node, relevance: Tensor) -> None:
        """One logit of a linear layer w as two, -z and z: the rows -w and w of one layer."""
        made = self.tape.maker(node.inputs[0])
        while made is not None and made.kind in ("move", "pass") and len(made.inputs) == 1:
            made = self.tape.maker(made.inputs[0])
        if made is None:
            raise self._no_rule(node)
        if made.kind == "linear":
            inputs, row = [made.inputs[0]], _known(made.weight)
        elif made.kind == "sum" and (joint := self._joint(made)) is not None:
            inputs, row = joint
        else:
            raise self._no_rule(made)
        if len(row) != 1 or inputs[0].ndim != 2:
            raise self._no_rule(made)
        self._through_layers(inputs, torch.cat([-row, row]), relevance)

    def _attend(self, node: Node, relevance: Tensor) -> None:
        """Probabilities and values, then queries and keys, half each."""
        seen = node.attention
        assert seen is not None
        parts = (seen.query, seen.key, seen.value, seen.product, seen.probabilities, seen.mixed)
        kind = relevance.dtype  # a softmax may run in another
        query, key, value, product, attention, mixed = (part.detach().to(kind) for part in parts)
        by = self._shared.divisor(seen.mixed, lambda: mixed)
        to_attention, to_value = product_relevance(attention, value, mixed, relevance, by=by)
        to_product = to_attention
        if self.of_texts:
            scores = seen.scores.detach().to(kind).masked_fill(attention == 0, 0)  # not -inf · 0
            mask = torch.zeros_like(scores)
            to_product, _ = add_relevance(scores, mask, to_attention, self.rules)
        by = self._shared.divisor(seen.product, lambda: product)
        to_query, to_key = product_relevance(query, key.mT, product, to_product, by=by)
        self.cams.insert(0, to_attention.reshape(self.images, -1, *to_attention.shape[-2:]))
        for tensor, found, side in (
            (seen.query, to_query, True),
            (seen.key, to_key.mT, True),
            (seen.value, to_value, False),
        ):
            if self.tape.is_live(tensor):
                self._deliver(tensor, found, "move", side=side)

    def _move(self, node: Node, given: list[Tensor | None]) -> None:
        """Numbers that only change places, or are added up along an axis (the epsilon rule)."""
        pooled = node.kind == "pool" or _is_selection(node)
        known = {id(tensor): tensor.detach().requires_grad_(True) for tensor in node.inputs}
        with torch.enable_grad():
            made = [held for held in tensors_in(node.call(known)) if held.is_floating_point()]
            outputs, sums = [], []
            for held, part in zip(made, given, strict=True):
                if part is not None:
                    outputs.append(held)
                    sums.append(divide(part, held.detach()) if pooled else part)
            found = torch.autograd.grad(outputs, [*known.values()], sums, allow_unused=True)
        side = any(id(tensor) in self._sides for tensor in node.outputs)
        for tensor, part in zip(node.inputs, found, strict=True):
            if part is not None:
                self._deliver(tensor, tensor.detach() * part if pooled else part, "move", side=side)

    def _deliver(self, tensor: Tensor, relevance: Tensor, kind: str, *, side: bool = False) -> None:
        if side:
            tensor = self._projected(tensor)
            self._sides.add(id(tensor))
        self._arrived.setdefault(id(tensor), []).append((kind, relevance.to(tensor.dtype)))

    def _collect(self, tensor: Tensor) -> Tensor | None:
        """What has arrived at a tensor; one that was used twice combines its uses."""
        arrived = self._arrived.pop(id(tensor), None)
        if arrived is None:
            return None
        apart = [part for kind, part in arrived if kind in ("sum", "norm", "pass")]
        added = [part for kind, part in arrived if kind not in ("sum", "norm", "pass")]
        if self.of_texts and len(added) > 1:
            added = [self._joined(tensor, added)]
        uses = apart + (
            [torch.stack(added).sum(0) if len(added) > 1 else added[0]] if added else []
        )
        return uses[0] if len(uses) == 1 else self._joined(tensor, uses)

    def _joined(self, tensor: Tensor, uses: list[Tensor]) -> Tensor:
        """The relevance of a tensor from that of its uses."""
        held = tensor.detach()
        return clone_relevance(held, *uses, by=self._shared.divisor(tensor, lambda: held))

    def _projected(self, tensor: Tensor) -> Tensor:
        """Queries or keys before norms and rotations, which pass relevance on unchanged."""
        earliest, waiting, seen = tensor, [tensor], {id(tensor)}
        while waiting:
            held = waiting.pop()
            if held.shape == tensor.shape:
                earliest = held if self._is_before(held, earliest) else earliest
            node = self.tape.maker(held)
            if node is None or node.kind in ("linear", "convolution"):
                continue
            if node.kind == "sum" and self._joint(node) is not None:
                continue
            for operand in node.inputs:
                if id(operand) not in seen:
                    seen.add(id(operand))
                    waiting.append(operand)
        return earliest

    def _is_before(self, one: Tensor, other: Tensor) -> bool:
        places = [self.tape.place(tensor) for tensor in (one, other)]
        return places[0] < places[1]

    def _find_pixels(self, root: Tensor) -> None:
        self._pixels.add(id(root))
        for node in self.tape.nodes:
            if node.kind in ("pass", "norm") and id(node.inputs[0]) in self._pixels:
                self._pixels.add(id(node.output))

    def _no_rule(self, node: Node) -> FaithscopeError:
        what = f"{self.where} uses '{node.name}', for which relevance has no rule"
        return FaithscopeError(
            f"{what[0].upper()}{what[1:]}: choose methods that read only attention or gradients.",
            reason=what,
        )


def _is_selection(node: Node) -> bool:
    """Whether one of several is taken, as the class token is, so that an axis is gone."""
    return node.name in SELECTIONS and node.output.ndim < node.inputs[0].ndim


def _known(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.detach()


def _operands(node: Node) -> tuple[Tensor, Tensor]:
    first, second = (*node.args, *node.kwargs.values())[:2]
    return first, second


def descend(
    descents: Sequence[Descent], output: Tensor, relevances: Sequence[Tensor], root: Tensor
) -> list[Tensor]:
    """Take relevance by several sets of rules, side by side, from an output of a tape to its root.

    What does not depend on rules is made once for all of them.
    """
    tape = descents[0].tape
    tape.check_whole(descents[0].where, output)
    for descent, relevance in zip(descents, relevances, strict=True):
        descent.start(output, relevance)
    for node in reversed(tape.nodes):
        shared = Shared()
        for descent in descents:
            descent.step(node, shared)
    shared = Shared()
    return [descent.end(root, shared) for descent in descents]


@dataclass(eq=False)
class Sweep:
    """Relevance on its way down through the blocks, one block at a time.

    `relevance` is that of what enters block `reached`, [B, N, D]; `cam` is the relevance of the
    attention of that block, [B, heads, N, N]. Of the sweeps `beside` it that a descent is told of,
    those that go `all_the_way` come with it as long as they are where it is.
    """

    rerun: Rerun
    head: Tape
    logits: Tensor
    target: Tensor
    rules: str
    of_texts: bool = False
    all_the_way: bool = False

    def __post_init__(self) -> None:
        choose("LRP rules", self.rules, get_args(Rules))
        start = torch.zeros_like(self.logits).scatter_(1, self.target[:, None], 1).detach()
        descent = Descent(self.head, self.rules, "its head", self.of_texts)
        with torch.no_grad():
            self.relevance = descent.run(self.logits, start, self.head.roots[0])
        self.reached = len(self.rerun.blocks)
        self.cam = self.relevance[:0]

    def attention(self, index: int, beside: Collection[Sweep] = ()) -> Tensor:
        """Relevance of a block's attention [B, heads, N, N]; blocks come last first."""
        self.descend(index, beside)
        if self.reached < index:
            raise FaithscopeError("Relevance is made block by block, last first, and not kept.")
        return self.cam

    def descend(self, index: int, beside: Collection[Sweep] = ()) -> Tensor:
        """Relevance of what enters this block, [B, N, D]."""
        while self.reached > index:
            others = [held for held in beside if held is not self]
            with_it = [held for held in others if held.all_the_way and held.reached == self.reached]
            self._enter(self.reached - 1, [self, *with_it])
        return self.relevance

    def _enter(self, index: int, sweeps: Sequence[Sweep]) -> None:
        """Take sweeps through one block."""
        tape, tokens, output = self.rerun.open(index)
        where = f"the block '{self.rerun.blocks[index][0]}'"
        descents = [Descent(tape, sweep.rules, where, sweep.of_texts) for sweep in sweeps]
        with torch.no_grad():
            arrived = descend(descents, output, [sweep.relevance for sweep in sweeps], tokens)
        for sweep, descent, relevance in zip(sweeps, descents, arrived, strict=True):
            cams = descent.cams
            sweep.relevance, sweep.reached = relevance, index
            sweep.cam = relevance[:0] if not cams else cams[0]
            if len(cams) > 1:
                sweep.cam = torch.cat(cams, dim=1)
