"""The blocks of a model run once more, for all that is read off them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from faithscope.models.attention import AttentionView, Checks, Seen, check_recomputed, run_on_tape
from faithscope.models.tape import Call, Part, Tape


@dataclass(eq=False)
class Block:
    """What is known of one block; tape, tokens and output are there if it was run once more."""

    index: int
    tape: Tape | None = None
    tokens: Tensor | None = None
    output: Tensor | None = None
    seen: Seen | None = None
    looked: Seen | None = None
    """The attention of its module alone."""
    traced_gradient: Tensor | None = None
    rerun_gradient: Tensor | None = None


@dataclass(eq=False)
class Rerun:
    """Blocks run once more for all that is read off them, one at a time, last block first.

    One run of a block serves relevance by every set of rules, attention and a gradient at that,
    which comes from `gradient`, that of the target logit at what leaves the blocks. Attention alone
    needs its module only, also with the gradients that the traced pass found at what attention
    modules gave; then `blocks` may be empty.
    """

    views: Sequence[AttentionView]
    attention_calls: Sequence[Call]
    traced: Sequence[Tensor]
    blocks: Sequence[tuple[str, nn.Module]]
    calls: Sequence[Call]
    gradient: Tensor | None
    checks: Checks
    refuse: Callable[[RuntimeError], Exception]
    """What to raise where there are no gradients."""
    reached: int = field(init=False)
    """The block at whose input `gradient` is."""
    _block: Block | None = field(default=None, init=False)
    _returned: dict[int, Tensor] = field(default_factory=dict, init=False)
    """Gradients at what attention modules gave, of the blocks that `gradient` has passed."""

    def __post_init__(self) -> None:
        self.reached = len(self.blocks)

    def open(self, index: int) -> tuple[Tape, Tensor, Tensor]:
        """The tape of a block, the tokens it follows, and its output, which must be the known one.

        The graph of the block is there if the gradient has come to it.
        """
        block = self._at(index)
        if block.tape is None or block.tokens is None or block.output is None:
            (name, module), call = self.blocks[index], self.calls[index]
            block.tape, block.tokens, block.output = run_on_tape(
                module,
                call,
                whole=True,
                graph=self.gradient is not None and index == self.reached - 1,
                within=self.views[index].module,
            )
            about = (f"The block '{name}'", block.output, call.output, block.tokens)
            check_recomputed(self.checks, *about)
        return block.tape, block.tokens, block.output

    def attention(self, index: int) -> Tensor:
        """Attention probabilities of a block, [B, heads, N, N], outside of any graph."""
        return self._seen(index).attention.detach()

    def attention_gradient(self, index: int) -> Tensor:
        """The gradient at attention that goes with the traced pass, [B, heads, N, N]."""
        block = self._at(index)
        if block.traced_gradient is None:
            block.traced_gradient = self._looked(index).gradient(self.traced[index])
        return block.traced_gradient

    def rerun_gradient(self, index: int) -> Tensor:
        """The gradient at attention that was taken in the blocks run once more."""
        while index not in self._returned:
            self._descend()
        block = self._at(index)
        if block.rerun_gradient is None:
            seen = self._look(index, gradient=True)
            block.rerun_gradient = seen.gradient(self._returned[index])
        return block.rerun_gradient

    def _at(self, index: int) -> Block:
        if self._block is None or self._block.index != index:
            self._block = None  # before another takes memory
            self._block = Block(index)
        return self._block

    def _seen(self, index: int) -> Seen:
        block, view = self._at(index), self.views[index]
        part = None if block.tape is None or view.qkv is not None else _part(block.tape)
        if block.seen is None and part is not None:
            block.seen = view.look(self.attention_calls[index], part=part, checks=self.checks)
        return block.seen or self._looked(index)

    def _looked(self, index: int) -> Seen:
        block = self._at(index)
        if block.looked is None:
            block.looked = self._look(index, gradient=bool(self.traced))
        return block.looked

    def _look(self, index: int, *, gradient: bool) -> Seen:
        call = self.attention_calls[index]
        return self.views[index].look(call, gradient=gradient, checks=self.checks)

    def _descend(self) -> None:
        """Take the gradient through the next block, in passing at its attention."""
        index = self.reached - 1
        tape, tokens, output = self.open(index)
        seen, given = self._seen(index), [made for _, made in tape.parts]
        leaves = seen.leaves if any(made is seen.output for made in given) else ()
        try:
            found = torch.autograd.grad(output, [*given, tokens, *leaves], self.gradient)
        except RuntimeError as error:
            raise self.refuse(error) from error
        self._returned[index], self.gradient = found[0], found[len(given)]
        self.reached = index
        if leaves:
            self._at(index).rerun_gradient = seen.by_head(found[len(given) + 1 :])


def _part(tape: Tape) -> Part | None:
    """The run of the attention module, if it ran once and gradients at its attention can be had."""
    if len(tape.parts) != 1:
        return None
    ((within, _),) = tape.parts
    in_graph = all(held.probabilities.requires_grad for held in within.attentions)
    return tape.parts[0] if in_graph else None
