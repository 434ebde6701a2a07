"""What the head reads: found from the gradient at the tokens, never believed.

Whatever a model or its wrapper does behind the last block, the target logit has a gradient at the
tokens it reads: only at the first (a class token), the same at every patch (their mean), or, if
an attention pool reads them, any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.models import ViTView
from faithscope.models.tape import (
    PRODUCTS,
    QUOTIENTS,
    TOKENWISE,
    Node,
    Tape,
    by_token,
    tensors_in,
)

COPIES = frozenset("contiguous clone to type_as type float double half bfloat16".split())

EQUAL = 1e-5
"""How far gradients may be apart, relative to the largest, to count as the same."""
LEAST = 0.1
"""Of what a head reads in the patches' mean, how much it must read in the class token beside it."""


@dataclass(frozen=True, eq=False)
class Head:
    """What is behind the last block.

    `tape` are its operations and `logits` what they lead to, `gradients` those of the target logit
    at the tensors of `tokenwise`; weights are made in `dtype`.
    """

    tape: Tape
    logits: Tensor
    gradients: Sequence[Tensor | None]
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """How many tokens there are."""
        return self.tape.roots[0][0, ..., 0].numel()

    @property
    def gradient(self) -> Tensor | None:
        """At the tokens as they are last seen alone: [B, N, D], None if nothing has one."""
        found = [gradient for gradient in self.gradients if gradient is not None]
        return by_token(found[-1], self.tape.roots[0]) if found else None

    def unread(self) -> Tensor:
        """Weights [B, N] of 0."""
        tokens = self.tape.roots[0]
        return torch.zeros(len(tokens), self.count, dtype=self.dtype, device=tokens.device)


def tokenwise(head: Tape) -> list[Tensor]:
    """Tensors [B, N, D] behind the last block in which no token has met another, first to last."""
    if not head.roots:
        return []
    root = head.roots[0]
    known = {id(root): root}
    for node in head.nodes:
        alone = node.kind in TOKENWISE or node.name in COPIES
        made = node.output if alone and len(node.outputs) == 1 else None
        if made is None or made.ndim != 3 or made.shape[:2] != root.shape[:2]:
            continue
        if all(id(tensor) in known for tensor in node.inputs) and not _weighs(node, made):
            known[id(made)] = made
    return list(known.values())


def _weighs(node: Node, made: Tensor) -> bool:
    """Whether an operation multiplies tokens by constants that are not the same for all."""
    if node.name not in PRODUCTS | QUOTIENTS or len(node.inputs) > 1:
        return False
    others = (held for held in tensors_in((node.args, node.kwargs)) if held is not node.inputs[0])
    weights = [held.detach().broadcast_to(made.shape) for held in others]
    return any(not torch.equal(held, held[:, :1].expand_as(held)) for held in weights)


def find_readout(head: Head, vit: ViTView, name: str, prefix: int) -> Tensor:
    """The weights with which the head of a ViT reads its tokens.

    Args:
        head: what is behind the last block.
        vit: what is known or was said of the model.
        name: of the model.
        prefix: tokens before the patches.

    Returns:
        Weights [B, N] that sum to 1.
    """
    last, weights, count = head.gradient, head.unread(), head.count
    kind = "nothing" if last is None else _kind(last, prefix)
    pool = _pool(head.tape, head.logits, count, prefix)
    if pool is not None and kind in ("", "nothing"):
        kind = "attention"
    elif kind == "nothing":  # a head of zeros reads nothing
        kind = vit.readout or vit.hint or ("class" if prefix else "mean")
    if last is not None and (not kind or (vit.readout is not None and kind != vit.readout)):
        raise _refused(last, kind, vit.readout, name, prefix)
    if kind == "class":
        classes = 1 if last is None else _classes(last, prefix)
        weights[:, :classes] = 1 / classes
    elif kind == "attention" and pool is not None:
        weights = pool.to(head.dtype)
    else:
        first = 0 if kind == "all" else prefix
        weights[:, first:] = 1 / (count - first)
    return weights


def find_token(head: Head, name: str) -> Tensor:
    """The weights with which the head of a text model reads its tokens: one of them, or their mean.

    Returns:
        Weights [B, N] that sum to 1.
    """
    last, weights, count = head.gradient, head.unread(), head.count
    size = None if last is None else last.abs().amax(dim=2)
    if last is None or size is None or not size.max() > 0:  # a head of zeros reads nothing
        weights[:, 0] = 1
        return weights
    read = size.amax(0) > 0
    if read.sum() == 1:
        weights[:, read] = 1
    elif (last - last.mean(1, keepdim=True)).abs().max() <= EQUAL * size.max():
        weights[:] = 1 / count
    elif (pool := _pool(head.tape, head.logits, count, 0)) is not None:
        weights = pool.to(head.dtype)
    else:
        what = f"the head of {name} reads {int(read.sum())} of {count} tokens, unequally and not "
        what += "through one attention pool"
        raise FaithscopeError(
            f"{what[0].upper()}{what[1:]}: choose methods that read no attention.", reason=what
        )
    return weights


def _kind(gradient: Tensor, prefix: int) -> str:
    """What has this gradient [B, N, D]: "" if it is none of what is known."""
    size = gradient.abs().amax(dim=2)
    top = size.max()
    if not top > 0:
        return "nothing"
    read = size.amax(0) > 0
    patches = gradient[:, prefix:]
    equal = bool((patches - patches.mean(1, keepdim=True)).abs().max() <= EQUAL * top)
    others = read[max(2, _classes(gradient, prefix)) : prefix]
    if prefix and read[0] and not others.any() and equal:
        if not read[prefix:].any():
            return "class"  # perhaps with the distillation token
        whole = (gradient - gradient.mean(1, keepdim=True)).abs().max() <= EQUAL * top
        beside = size[:, 0] >= LEAST * size[:, prefix:].sum(1)
        return "all" if whole else "class" if beside.all() else ""  # and the mean of the patches
    if equal and read[prefix:].all():
        rest = gradient[:, :prefix]
        if not read[:prefix].any():
            return "mean"
        if (rest - patches.mean(1, keepdim=True)).abs().max() <= EQUAL * top:
            return "all"
    return ""


def _classes(gradient: Tensor, prefix: int) -> int:
    """How many class tokens there are: all before the patches if the head reads them alike."""
    before = gradient[:, :prefix]
    apart = (before - before.mean(1, keepdim=True)).abs().amax() if prefix > 1 else 1
    alone = not gradient[:, prefix:].any()
    return prefix if prefix > 1 and alone and apart <= EQUAL * gradient.abs().max() else 1


def _pool(head: Tape, logits: Tensor, tokens: int, prefix: int) -> Tensor | None:
    """What the one query of the one attention in the head pays each token, mean over heads: [B, N].

    It may look at all tokens, or at the patches alone. Nothing else may read tokens, and they may
    not have met before.
    """
    if len(head.attentions) != 1:
        return None
    seen, root = head.attentions[0], head.roots[0]
    beside = (node for node in head.way_back(logits) if node.kind != "attention")
    if any(held is root for node in beside for held in node.inputs):
        return None
    shape = tuple(seen.probabilities.shape)
    fits = len(shape) > 2 and shape[-2:] in [(1, tokens), (1, tokens - prefix)]
    if not fits or head.mixer(seen.key, seen.value) is not None:
        return None
    paid = seen.probabilities.detach().reshape(shape[0], -1, *shape[-2:]).mean(1)[:, 0]
    return F.pad(paid, (tokens - paid.shape[1], 0))


def _refused(
    gradient: Tensor, kind: str, said: str | None, name: str, prefix: int
) -> FaithscopeError:
    read = gradient.abs().amax(dim=(0, 2)) > 0
    before, patches = read[:prefix], read[prefix:]
    seen = (
        f"reads {int(before.sum())} of {len(before)} prefix tokens and {int(patches.sum())} of "
        f"{len(patches)} patches"
    )
    if kind:
        seen = "reads its tokens through an attention pool" if kind == "attention" else seen
        what = f"the head of {name} {seen}, which is readout='{kind}', not '{said}'"
        advice = f"give fs.wrap(module, readout='{kind}'), or leave it out"
    else:
        what = f"the head of {name} {seen}, unequally and not through one attention pool"
        advice = "choose methods that read no attention"
    return FaithscopeError(f"{what[0].upper()}{what[1:]}: {advice}.", reason=what)
