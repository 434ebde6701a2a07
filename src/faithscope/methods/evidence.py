"""Evidence: what one traced pass left behind, as methods read it.

A block's attention, its gradient and its relevance are large, so they are recomputed from what the
trace kept when a method asks for them, block by block, last block first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError, choose
from faithscope.methods.layout import Inputs, Layout, layout_of
from faithscope.methods.relevance import Sweep
from faithscope.methods.rerun import Rerun
from faithscope.models import Model, TextModel, ViTView
from faithscope.models.attention import Checks
from faithscope.models.fused import exact
from faithscope.models.tape import Call, Tape

NEEDS = {
    "gradient": "d logit_target / d images",
    "path_gradient": "gradients at other images, for which the method runs the model itself",
    "attention": "attention probabilities of every block",
    "attention_gradient": "d logit_target / d attention probabilities",
    "stream": "the tokens between blocks",
    "stream_gradient": "d logit_target / d tokens between blocks",
    "tapes": "what happens before and behind the blocks, to run it differently",
    "relevance": "LRP relevance, made in float64",
    "rerun_gradient": "attention_gradient, taken in the blocks that relevance runs once more",
}
"""What a method may declare that it reads."""

TOKEN_NEEDS = {
    "attention": "the attention weight of every token",
    "gradient": "d logit_target / d word embedding",
    "path_gradient": "its mean on the way from a baseline to the text",
    "stream": "the tokens that enter the first block",
    "stream_gradient": "d logit_target / d those tokens",
    "statistics": "the words and labels of the training split",
}
"""What a method for text may declare that it reads."""


_NEED_OF = {
    "input_gradient": "gradient",
    "attention_calls": "attention",
    "rerun": "attention",
    "attention_gradients": "attention_gradient",
    "rerun_gradients": "rerun_gradient",
    "block_calls": "stream",
    "stream_gradients": "stream_gradient",
    "stem": "tapes",
    "entered": "tapes",
    "head": "tapes",
}


HALF = frozenset({torch.float16, torch.bfloat16})
LOSS_SCALE = 256.0
"""Of half precision: gradients below 6e-8 vanish in fp16, above 65,504 they overflow."""


@dataclass(frozen=True, eq=False)
class Trace:
    """What one forward pass, and one backward pass where gradients are needed, left behind.

    Of every attention module and of every block what it got and gave; tokens are [B, N, D], or
    [B, H, W, D] in a grid, first block first. `stem` and `head` are tapes from the images to
    `entered`, what enters the first block, and from the last block to the logits. `readout` [B, N]
    are the weights with which the head reads tokens, of which `prefix_tokens` are no patches, or
    why they are not known. `moved` names a block in or before which tokens
    are put in another order. `rerun` runs blocks once more, what that gives is under `checks`.
    """

    logits: Tensor
    attention_calls: tuple[Call, ...] = ()
    block_calls: tuple[Call, ...] = ()
    stream_gradients: tuple[Tensor, ...] = ()
    input_gradient: Tensor | None = None
    readout: Tensor | FaithscopeError | None = None
    prefix_tokens: int = 0
    breaks: tuple[int, ...] = ()
    moved: str | None = None
    stem: Tape | None = None
    entered: Tensor | None = None
    head: Tape | None = None
    checks: Checks = field(default_factory=Checks)
    rerun: Rerun | None = None

    @property
    def attention_gradients(self) -> Rerun | None:
        """What gives gradients at attention that go with the traced pass, if they are known."""
        return self.rerun if self.rerun is not None and self.rerun.traced else None

    @property
    def rerun_gradients(self) -> Rerun | None:
        """What takes gradients at attention in the blocks it runs once more, if it does."""
        return self.rerun if self.rerun is not None and self.rerun.gradient is not None else None

    @property
    def stream(self) -> tuple[Tensor, ...]:
        """The tokens that enter each block, and those that leave the last."""
        if not self.block_calls:
            return ()
        return (*(call.tokens for call in self.block_calls), self.block_calls[-1].output)


@dataclass(frozen=True, eq=False)
class Layer:
    """One block of the ViT, seen by a layer method; evidence is made when it is asked for."""

    index: int
    evidence: Evidence

    @property
    def depth(self) -> int:
        """How many blocks there are."""
        return len(self.evidence.vit.attentions)

    @property
    def is_last(self) -> bool:
        """Whether this is the block next to the head, the first that is visited."""
        return self.index == self.depth - 1

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches."""
        return self.evidence.prefix_tokens

    @property
    def readout(self) -> Tensor:
        """The weights with which the head reads the tokens, [B, N]."""
        return self.evidence.readout

    @property
    def attention(self) -> Tensor:
        """Attention probabilities [B, heads, N, N], checked against what the block returned."""
        self._check()
        self.evidence.calls("attention_calls")
        return self.evidence.rerun.attention(self.index)

    @cached_property
    def attention_gradient(self) -> Tensor:
        """Gradient of the target logit at the attention probabilities, [B, heads, N, N]."""
        self._check()
        gradients: Rerun = self.evidence.part("attention_gradients")
        return gradients.attention_gradient(self.index)

    @property
    def rerun_gradient(self) -> Tensor:
        """The same but for rounding, at less cost where relevance is read."""
        self._check()
        gradients: Rerun = self.evidence.part("rerun_gradients")
        return gradients.rerun_gradient(self.index)

    def _check(self) -> None:
        self.evidence.check_order()
        self.evidence.check_chain(self.index)

    def relevance(self, rules: str) -> Tensor:
        """LRP relevance of the attention probabilities, [B, heads, N, N]."""
        self.evidence.check_order()
        beside = self.evidence.sweeps.values()
        return self.evidence.sweep(rules).attention(self.index, beside)

    def stream(self, side: str = "input") -> Tensor:
        """The tokens that enter the block, or leave it (side="output"), [B, N, D]."""
        return self.evidence.tensors("stream")[self._place(side)].flatten(1, -2)

    def stream_gradient(self, side: str = "input") -> Tensor:
        """Gradient of the target logit at those tokens, [B, N, D]."""
        return self.evidence.tensors("stream_gradients")[self._place(side)].flatten(1, -2)

    def _place(self, side: str) -> int:
        return self.index + (choose("side of a block", side, ("input", "output")) == "output")

    def other(self, index: int) -> Layer:
        """Another block of the same model."""
        return Layer(index, self.evidence)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known about one batch; only what the methods in use need is there.

    `inputs` are images, or texts; `embedded` what gradients are taken at, images [B, C, H, W] or
    word embeddings [B, T, E]. Shapes: target int64 [B].
    """

    model: Model
    inputs: Inputs
    embedded: Tensor
    target: Tensor
    keys: Sequence[str]
    seed: int = 0
    draw: int = 0
    batch_size: int = 64
    trace: Trace | None = None
    sweeps: dict[str, Sweep] = field(default_factory=dict)

    @property
    def images(self) -> Tensor:
        """The images [B, C, H, W], in the type that they are explained in."""
        return self.embedded

    @property
    def scale(self) -> float:
        """What logits of `read` are multiplied by, so that no gradient vanishes in half precision.

        It is a power of two, so it changes no digit.
        """
        return LOSS_SCALE if self.model.dtype in HALF else 1.0

    def read(self, values: Tensor, places: Tensor | slice = slice(None)) -> Tensor:
        """Run the model on what stands for the inputs at `places`: logits times `scale`."""
        logits = self.model.read(self.inputs[places], values.to(self.model.dtype))
        return logits if self.scale == 1 else self.scale * exact(logits).to(values.dtype)

    @property
    def vit(self) -> ViTView:
        """The view of the ViT."""
        return self.model.require_vit("Reading layers")

    @property
    def readout(self) -> Tensor:
        """The weights with which the head reads the tokens, [B, N]."""
        found = self.part("readout")
        if isinstance(found, FaithscopeError):
            raise found
        weights: Tensor = found
        return weights

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches."""
        return 0 if self.trace is None else self.trace.prefix_tokens

    def check_chain(self, index: int) -> None:
        """Refuse to multiply attention from this block on if tokens change on the way."""
        broken = [] if self.trace is None else [at for at in self.trace.breaks if at > index]
        if broken:
            names = [view.name for view in self.vit.attentions[broken[0] - 1 : broken[0] + 1]]
            what = f"it does something to its tokens between '{names[0]}' and '{names[1]}'"
            raise FaithscopeError(
                f"The attention of {self.model.name} cannot be followed from block to block, since "
                f"{what}: choose methods that read only gradients, or the last block.",
                reason=what,
            )

    def check_order(self) -> None:
        """Refuse to read attention if tokens are put in another order on the way."""
        if self.trace is not None and self.trace.moved is not None:
            what = f"tokens are put in another order in or before its block '{self.trace.moved}'"
            raise FaithscopeError(
                f"The attention of {self.model.name} cannot be laid out as an image, since {what}: "
                "choose methods that read only gradients.",
                reason=what,
            )

    def layers(self) -> Iterator[Layer]:
        """The blocks, last first; no more than one block's attention needs to exist at a time."""
        for index in reversed(range(len(self.vit.attentions))):
            yield Layer(index, self)

    def tensor(self, part: str) -> Tensor:
        """A part of the trace that is one tensor."""
        found: Tensor = self.part(part)
        return found

    def tensors(self, part: str) -> tuple[Tensor, ...]:
        """A part of the trace that has one tensor for each place between blocks."""
        found: tuple[Tensor, ...] = self.part(part)
        return found

    def calls(self, part: str) -> tuple[Call, ...]:
        """What the attention modules, or the blocks, got and gave."""
        found: tuple[Call, ...] = self.part(part)
        return found

    def tape(self, part: str) -> Tape:
        """What happens before the blocks ("stem") or behind them ("head")."""
        found: Tape = self.part(part)
        return found

    def part(self, part: str) -> Any:
        """A part of the trace, which must have been declared to be read."""
        found = None if self.trace is None else getattr(self.trace, part)
        if found is None or (isinstance(found, tuple) and not found):
            need = _NEED_OF.get(part, part)
            raise FaithscopeError(
                f"A method read '{need}' without declaring it: register it with needs=('{need}',)."
            )
        return found

    @property
    def checks(self) -> Checks:
        """What is computed twice is compared under these."""
        return Checks() if self.trace is None else self.trace.checks

    @property
    def rerun(self) -> Rerun:
        """The blocks, run once more where something is read off them."""
        found: Rerun = self.part("rerun")
        return found

    @cached_property
    def layout(self) -> Layout:
        """How tokens stand for what a map is over."""
        return layout_of(self.model, self.inputs)

    def to_map(self, values: Tensor) -> Tensor:
        """Values of tokens, [B, N], as maps [B, h, w]; of texts [B, 1, units]."""
        return self.layout.to_map(values, self.prefix_tokens)

    def input_gradient(self) -> Tensor:
        """Gradient of the target logit at what is embedded, images [B, C, H, W] or words."""
        return self.tensor("input_gradient")

    def descend(self, rules: str) -> Tensor:
        """Relevance of what enters the first block, [B, N, D]."""
        return self.sweep(rules).descend(0, self.sweeps.values())

    def sweep(self, rules: str) -> Sweep:
        """The relevance sweep of one rule set, shared by all methods that read it."""
        if rules not in self.sweeps:
            self.vit.require_blocks("Relevance")
            self.calls("block_calls")
            self.sweeps[rules] = Sweep(
                self.rerun,
                self.tape("head"),
                self.tensor("logits"),
                self.target,
                rules,
                of_texts=isinstance(self.model, TextModel),
            )
        return self.sweeps[rules]
