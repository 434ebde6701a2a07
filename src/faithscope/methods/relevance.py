r"""Layer-wise relevance propagation: the rules as formulas, and the sweep from logit to pixels.

Two sets of rules were published (Chefer et al. 2021): "original" (their `ViT_orig_LRP`), in which
each linear layer hands its full relevance to positive and to negative contributions, and
"conserving" (their `ViT_LRP`), in which sums of relevance are kept. Norms, activations, softmax,
LayerScale and q/k norms pass relevance on unchanged, biases receive none.

Everything is batched; sums of the conserving rules run over one sample at a time. The rules divide
by sign-indefinite sums, so they are ill-conditioned: run them in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, choose
from faithscope.models.attention import check_recomputed, run_on_tape
from faithscope.models.tape import SELECTIONS, Call, Node, Tape, scaled_by, tensors_in

Rules = Literal["original", "conserving"]
STABILISER = 1e-9


def divide(relevance: Tensor, total: Tensor) -> Tensor:
    r"""Stabilised division, 0 where the denominator is exactly 0.

    .. math:: D(r, z) = r / (z + 10^{-9})

    >>> divide(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]))
    tensor([2., 0.])
    """
    denominator = total + STABILISER
    denominator = denominator.masked_fill(denominator == 0, STABILISER)
    return (relevance / denominator).masked_fill(total == 0, 0)


def linear_relevance(inputs: Tensor, weight: Tensor, relevance: Tensor, rules: str) -> Tensor:
    r"""Relevance of a linear layer's inputs, positive and negative contributions apart.

    .. math::
        Z_1 = w^+ x^+, \quad Z_2 = w^- x^-, \quad
        R_{in} = x^+ (w^{+\top} S_1) + x^- (w^{-\top} S_2)

    with :math:`S_1 = S_2 = D(R, Z_1 + Z_2)` (conserving) or :math:`S_i = D(R, Z_i)` (original).

    Shapes: inputs [..., in], weight [out, in], relevance [..., out] -> [..., in].
    """
    plus, minus = inputs.clamp(min=0), inputs.clamp(max=0)
    weight_plus, weight_minus = weight.clamp(min=0), weight.clamp(max=0)
    first, second = plus @ weight_plus.T, minus @ weight_minus.T
    if rules == "conserving":
        share_plus = share_minus = divide(relevance, first + second)
    else:
        share_plus, share_minus = divide(relevance, first), divide(relevance, second)
    return plus * (share_plus @ weight_plus) + minus * (share_minus @ weight_minus)


def add_relevance(a: Tensor, b: Tensor, relevance: Tensor, rules: str) -> tuple[Tensor, Tensor]:
    r"""Relevance of the operands of a sum.

    .. math:: R_a = a \, D(R, a + b), \qquad R_b = b \, D(R, a + b)

    The conserving rules rescale both so that, sample by sample, :math:`\sum R_a + \sum R_b =
    \sum R`, shared in the ratio of :math:`|\sum R_a|` and :math:`|\sum R_b|`.

    Shapes: all [B, N, D].
    """
    share = divide(relevance, a + b)
    to_a, to_b = a * share, b * share
    if rules == "original":
        return to_a, to_b
    total = _sum(relevance)
    sum_a, sum_b = _sum(to_a), _sum(to_b)
    both = sum_a.abs() + sum_b.abs()
    return (
        to_a * divide(divide(sum_a.abs(), both) * total, sum_a),
        to_b * divide(divide(sum_b.abs(), both) * total, sum_b),
    )


def clone_relevance(x: Tensor, *uses: Tensor) -> Tensor:
    r"""Relevance of a tensor that is used several times.

    .. math:: R = x \, (D(R_1, x) + D(R_2, x) + \dots)
    """
    total = divide(uses[0], x)
    for use in uses[1:]:
        total = total + divide(use, x)
    return x * total


def product_relevance(
    a: Tensor, b: Tensor, product: Tensor, relevance: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Relevance of the factors of a matrix product, half each.

    .. math::
        s = D(R, a b), \qquad R_a = \tfrac12 a \, (s b^\top), \qquad
        R_b = \tfrac12 b \, (a^\top s)

    Shapes: a [..., n, k], b [..., k, m], product and relevance [..., n, m].
    """
    share = divide(relevance, product)
    return a * (share @ b.mT) / 2, b * (a.mT @ share) / 2


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
        self.tape.check_whole(self.where, output)
        self._deliver(output, relevance, "start")
        for node in reversed(self.tape.nodes):
            given = [self._collect(tensor) for tensor in node.outputs]
            if any(part is not None for part in given):
                self._pass_on(node, given)
        found = self._collect(root)
        return torch.zeros_like(root) if found is None else found

    def _pass_on(self, node: Node, given: list[Tensor | None]) -> None:
        if node.kind in ("move", "pool"):
            self._move(node, given)
            return
        (relevance,) = given
        assert relevance is not None
        if node.kind == "linear":
            assert node.weight is not None
            weight = node.weight.detach()
            self._deliver(
                node.inputs[0],
                linear_relevance(node.inputs[0].detach(), weight, relevance, self.rules),
                "linear",
            )
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
        shares = add_relevance(
            first.detach().expand_as(relevance),
            second.detach().expand_as(relevance),
            relevance,
            self.rules,
        )
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
        to_attention, to_value = product_relevance(attention, value, mixed, relevance)
        to_product = to_attention
        if self.of_texts:
            scores = seen.scores.detach().to(kind).masked_fill(attention == 0, 0)  # not -inf · 0
            mask = torch.zeros_like(scores)
            to_product, _ = add_relevance(scores, mask, to_attention, self.rules)
        to_query, to_key = product_relevance(query, key.mT, product, to_product)
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
            added = [clone_relevance(tensor.detach(), *added)]
        uses = apart + (
            [torch.stack(added).sum(0) if len(added) > 1 else added[0]] if added else []
        )
        return uses[0] if len(uses) == 1 else clone_relevance(tensor.detach(), *uses)

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


@dataclass(eq=False)
class Sweep:
    """Relevance on its way down through the blocks, one block at a time.

    `calls` are those of the blocks; `relevance` is that of what enters block `reached`, [B, N, D];
    `cam` is the relevance of the attention of that block, [B, heads, N, N].
    """

    blocks: Sequence[tuple[str, nn.Module]]
    calls: Sequence[Call]
    head: Tape
    logits: Tensor
    target: Tensor
    rules: str
    of_texts: bool = False

    def __post_init__(self) -> None:
        choose("LRP rules", self.rules, get_args(Rules))
        start = torch.zeros_like(self.logits).scatter_(1, self.target[:, None], 1).detach()
        descent = Descent(self.head, self.rules, "its head", self.of_texts)
        with torch.no_grad():
            self.relevance = descent.run(self.logits, start, self.head.roots[0])
        self.reached = len(self.blocks)
        self.cam = self.relevance[:0]

    def attention(self, index: int) -> Tensor:
        """Relevance of a block's attention [B, heads, N, N]; blocks come last first."""
        self.descend(index)
        if self.reached < index:
            raise FaithscopeError("Relevance is made block by block, last first, and not kept.")
        return self.cam

    def descend(self, index: int) -> Tensor:
        """Relevance of what enters this block, [B, N, D]."""
        while self.reached > index:
            name, block = self.blocks[self.reached - 1]
            call = self.calls[self.reached - 1]
            tape, tokens, output = run_on_tape(block, call, whole=True)
            check_recomputed(f"The block '{name}'", output, call.output, tokens)
            descent = Descent(tape, self.rules, f"the block '{name}'", self.of_texts)
            with torch.no_grad():
                self.relevance = descent.run(output, self.relevance, tokens)
            self.cam = torch.cat(descent.cams, dim=1) if descent.cams else self.relevance[:0]
            self.reached -= 1
        return self.relevance
