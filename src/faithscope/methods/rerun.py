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
    attention_gradient: Tensor | None = None


@dataclass(eq=False)
class Rerun:
    """Blocks run once more for all that is read off them, one at a time, last block first.

    One run of a block serves relevance by every set of rules, attention and the gradient at that.
    Attention alone needs its module only; then `blocks` may be empty. Gradients at what attention
    modules gave are `returned` by the traced pass, or taken here from `gradient`, that of the
    target logit at what leaves the blocks.
    """

    views: Sequence[AttentionView]
    attention_calls: Sequence[Call]
    blocks: Sequence[tuple[str, nn.Module]]
    calls: Sequence[Call]
    checks: Checks
    refuse: Callable[[RuntimeError], Exception]
    """What to raise where there are no gradients."""
    returned: dict[int, Tensor] = field(default_factory=dict)
    gradient: Tensor | None = None
    reached: int = field(init=False)
    """The block at whose input `gradient` is."""
    block: Block | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.reached = len(self.blocks)

    @property
    def has_gradients(self) -> bool:
        """Whether gradients at attention can be had."""
        return self.gradient is not None or bool(self.returned)

    def open(self, index: int) -> tuple[Tape, Tensor, Tensor]:
        """The tape of a block, the tokens it follows, and its output, which must be the known one.

        The graph of the block is there where a gradient is, which can go through it once.
        """
        block = self._at(index)
        if block.tape is None or block.tokens is None or block.output is None:
            (name, module), call = self.blocks[index], self.calls[index]
            is_next = self.gradient is not None and index == self.reached - 1
            block.tape, block.tokens, block.output = run_on_tape(
                module,
                call,
                whole=True,
                graph=is_next or index in self.returned,
                within=self.views[index].module,
            )
            about = (f"The block '{name}'", block.output, call.output, block.tokens)
            check_recomputed(self.checks, *about)
        return block.tape, block.tokens, block.output

    def seen(self, index: int) -> Seen:
        """The attention of a block."""
        block, view = self._at(index), self.views[index]
        if block.seen is None:
            block.seen = view.look(
                self.attention_calls[index],
                gradient=self.has_gradients,
                part=None if block.tape is None or view.qkv is not None else _part(block.tape),
                checks=self.checks,
            )
        return block.seen

    def attention_gradient(self, index: int) -> Tensor:
        """Gradient of the target logit at the attention of a block, [B, heads, N, N]."""
        while index not in self.returned:
            self._descend()
        block = self._at(index)
        if block.attention_gradient is None:
            block.attention_gradient = self.seen(index).gradient(self.returned[index])
        return block.attention_gradient

    def _at(self, index: int) -> Block:
        if self.block is None or self.block.index != index:
            self.block = None  # before another takes memory
            self.block = Block(index)
        return self.block

    def _descend(self) -> None:
        """Take the gradient through the next block, in passing at its attention."""
        index = self.reached - 1
        tape, tokens, output = self.open(index)
        block, seen = self._at(index), self.seen(index)
        given = [made for _, made in tape.parts]
        leaves = seen.leaves if any(made is seen.output for made in given) else ()
        try:
            found = torch.autograd.grad(output, [*given, tokens, *leaves], self.gradient)
        except RuntimeError as error:
            raise self.refuse(error) from error
        self.returned[index], self.gradient = found[0], found[len(given)]
        self.reached = index
        if leaves:
            block.attention_gradient = seen.by_head(found[len(given) + 1 :])


def _part(tape: Tape) -> Part | None:
    """The run of the attention module, if it ran once and gradients at its attention can be had."""
    if len(tape.parts) != 1:
        return None
    ((within, _),) = tape.parts
    in_graph = all(held.probabilities.requires_grad for held in within.attentions)
    return tape.parts[0] if in_graph else None
