"""Tracing: one forward pass, and one backward pass where gradients are needed, serve all methods.

The model stays as it is: hooks record what passes through its attention modules and blocks, and
its blocks are checkpointed, so that the backward pass holds the graph of one block at a time and
memory grows with the token stream [B, N, D] of each block, not with attention [B, heads, N, N].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence, Trace
from faithscope.methods.layout import Inputs, Layout, check_reading, layout_of
from faithscope.methods.readout import Head, tokenwise
from faithscope.methods.rerun import Rerun
from faithscope.models import Model, TextModel, TokenInputs, ViTView
from faithscope.models.attention import Checks, check_recomputed, places_of
from faithscope.models.tape import Call, Tape, first_tensor, tensors_in

_OF_ATTENTION = frozenset({"attention", "attention_gradient", "rerun_gradient"})
_OF_STREAM = frozenset({"stream", "stream_gradient", "relevance", "rerun_gradient", "tapes"})
_OF_BACKWARD = frozenset({"gradient", "attention_gradient", "stream_gradient", "rerun_gradient"})
PASSES_OF_METHODS = frozenset({"path_gradient", "statistics"})
"""A method's own passes, and what no pass shows."""


def gather(
    model: Model,
    inputs: Inputs,
    target: Tensor | None,
    needs: frozenset[str],
    *,
    keys: Sequence[str],
    seed: int = 0,
    batch_size: int = 64,
) -> Evidence:
    """Run at most one forward and one backward pass, recording what is needed."""
    embedded = model.embed(inputs)  # a copy: what inference mode made has no gradients
    target = None if target is None else target.clone()
    layout = layout_of(model, inputs)
    about = (model, inputs, embedded)
    needs -= PASSES_OF_METHODS
    if "rerun_gradient" in needs:
        needs |= {"relevance"}  # whose checks see to it that blocks are followed by blocks
    if not needs:
        target = _predicted(model, inputs, embedded) if target is None else target
        return Evidence(*about, target, keys, seed, batch_size=batch_size)
    vit = model.require_vit("Attention") if needs & (_OF_ATTENTION | _OF_STREAM) else None
    # without a graph nobody sees what else of the input blocks and head are given
    backward = bool(needs & (_OF_BACKWARD | {"relevance", "tapes"}))
    leaf = embedded.clone().requires_grad_(backward)
    with (
        torch.set_grad_enabled(backward),
        torch.compiler.set_stance("force_eager"),  # what is compiled cannot be watched
        one_kernel(),
        recording(model, vit, needs, leaf) as record,
        ExitStack() as stack,
    ):
        if backward and vit is not None:
            stack.enter_context(checkpointing(vit.blocks, record))
        logits = model.read(inputs, leaf)
        record.close()
        if vit is None and isinstance(model, TextModel) and isinstance(inputs, TokenInputs):
            check_reading(model, inputs, logits.detach())
        prefix = 0 if vit is None else _check(record, vit, model, layout, needs)
        if target is None:
            target = logits.detach().argmax(-1)
        with record.checks.gathered():
            gradients = _backward(model, logits, target, leaf, record, needs)
        read, returned = gradients.pop("readout"), gradients.pop("attention")
        readout: Tensor | FaithscopeError | None = None
        if vit is not None:
            try:
                head = Head(record.head, logits, read, embedded.dtype)
                readout = layout.readout(head, vit, prefix)
            except FaithscopeError as error:
                readout = error  # for those that need to know it
    moved = None
    if vit is not None:
        first = next(iter(vit.blocks.values()), vit.attentions[0].module)
        with torch.compiler.set_stance("force_eager"):
            layout.check(first, embedded, logits.detach(), prefix)
            moved = _find_moved(record, vit)
    found = {"readout": readout, "prefix_tokens": prefix, "moved": moved}
    trace = record.trace(logits, needs, **found, **gradients)
    if vit is not None:
        trace = replace(trace, rerun=_rerun(model, vit, trace, needs, returned, read))
    return Evidence(*about, target, keys, seed, batch_size=batch_size, trace=trace)


def _rerun(
    model: Model,
    vit: ViTView,
    trace: Trace,
    needs: frozenset[str],
    returned: Sequence[Tensor],
    read: Sequence[Tensor | None],
) -> Rerun:
    """The blocks, ready to be run once more; `read` begins with the gradient at what left them."""
    left = None
    if "rerun_gradient" in needs:
        left = read[0] if read else None
        if left is None:
            raise no_gradient(model, RuntimeError("require grad"))
        if trace.head is not None:
            trace.head.check_whole("its head", trace.logits)
    return Rerun(
        views=vit.attentions,
        attention_calls=trace.attention_calls,
        traced=returned,
        blocks=[*vit.blocks.items()],
        calls=trace.block_calls,
        gradient=left,
        checks=trace.checks,
        refuse=partial(no_gradient, model),
    )


def _predicted(model: Model, inputs: Inputs, embedded: Tensor) -> Tensor:
    """The class of each input, from a pass that nobody else reads."""
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), one_kernel():
        text = isinstance(model, TextModel)
        logits = model.logits(inputs) if text else model.read(inputs, embedded.to(model.dtype))
    return logits.argmax(-1)


def _backward(
    model: Model,
    logits: Tensor,
    target: Tensor,
    inputs: Tensor,
    record: Record,
    needs: frozenset[str],
) -> dict[str, Any]:
    """Gradients of the target logit with respect to everything that is needed, in one pass."""
    stream = [call.tokens for call in record.blocks.values()]
    if stream:
        stream.append(record.blocks[len(record.blocks) - 1].output)
    wanted: dict[str, list[Tensor]] = {
        "input_gradient": [inputs] if "gradient" in needs else [],
        "attention": [call.output for call in record.attention.values()]
        if "attention_gradient" in needs
        else [],
        "stream_gradients": stream if "stream_gradient" in needs else [],
        "readout": record.read_from(),
    }
    tensors = [tensor for part in wanted.values() for tensor in part]
    if not tensors:
        return {"readout": (), "attention": ()}
    with torch.enable_grad():
        chosen = logits.gather(1, target[:, None]).sum()
    try:
        found = iter(torch.autograd.grad(chosen, tensors, allow_unused=True))
    except RuntimeError as error:
        raise no_gradient(model, error) from error
    gradients: dict[str, Any] = {
        name: tuple(next(found) for _ in part) for name, part in wanted.items()
    }
    for name, part in gradients.items():
        if name != "readout" and any(gradient is None for gradient in part):
            raise no_gradient(model, RuntimeError("require grad"))
    gradients["input_gradient"] = next(iter(gradients["input_gradient"]), None)
    return gradients


def no_gradient(model: Model, error: RuntimeError) -> Exception:
    """What to tell of an error in a backward pass: a sentence if the model cut its gradients."""
    if "modified by an inplace operation" in str(error):
        return _in_place("values", "methods that need no gradients")
    cut = ("require grad", "been used in the graph", "use_reentrant")
    if not any(words in str(error) for words in cut):
        return error
    return FaithscopeError(
        f"{model.name} gives no gradients: it detaches them, runs under no_grad or uses reentrant "
        "checkpoints. Change that, or choose methods that need none.",
        reason="it gives no gradients",
    )


def _in_place(what: str, others: str) -> FaithscopeError:
    """What passed through a model is lost, if it was overwritten."""
    reason = f"it changes its {what} in place (as `x += …` does)"
    return FaithscopeError(
        f"The model changes its {what} in place (as `x += …` does), so what passed through it is "
        f"lost: write `x = x + …`, or choose {others}.",
        reason=reason,
    )


@dataclass(eq=False)
class Record:
    """What hooks saw during the forward pass; closed before checkpoints run blocks again."""

    attention: dict[int, Call] = field(default_factory=dict)
    blocks: dict[int, Call] = field(default_factory=dict)
    stem: Tape = field(default_factory=Tape)
    head: Tape = field(default_factory=lambda: Tape(is_open=False))
    entered: Tensor | None = None
    started: bool = False
    early: list[str] = field(default_factory=list)
    """Attention modules outside of the blocks that ran before them."""
    left: Tensor | None = None
    shuffled: int | None = None
    """A block that gets what the one before gave in another order."""
    calls: dict[int, Call] = field(default_factory=dict)
    """What every block got and gave."""
    breaks: list[int] = field(default_factory=list)
    """Blocks that do not get what the one before gave."""
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    checks: Checks = field(default_factory=Checks)
    """Of blocks that run again in the backward pass."""
    is_open: bool = True

    def keep(self, where: dict[int, Call], key: int, call: Call) -> None:
        """Keep a call that was seen once; a module that runs twice is no block of a ViT."""
        if not self.is_open:
            return
        if key in where:
            raise FaithscopeError(
                "The model runs one of its blocks twice in a forward pass: faithscope cannot read "
                "its attention. Choose methods that need no attention.",
                reason="it runs one of its blocks twice in a forward pass",
            )
        where[key] = call
        if where is self.blocks:
            self.head.foreign[id(call.tokens)] = call.tokens  # the head may read what leaves only
        self.versions += [(tensor, tensor._version) for tensor in (call.tokens, call.output)]

    def link(self, index: int, tokens: Tensor) -> None:
        """A block starts: note if it gets something else than what the block before gave."""
        self.started = True
        if not self.is_open or not index or self.left is tokens:
            return
        left = self.left
        if left is None or left.shape != tokens.shape or not torch.equal(left, tokens):
            self.breaks.append(index)
            if left is not None and left.shape == tokens.shape and _is_shuffled(left, tokens):
                self.shuffled = index

    def leave(self, tokens: Tensor) -> Tensor:
        """What left the last block: from here on the head reads, with gradients."""
        if not self.is_open:
            return tokens
        if not tokens.requires_grad:
            torch.set_grad_enabled(True)  # until the caller's own context ends
            tokens = tokens.detach().requires_grad_(True).clone()
        self.head.is_open = True
        return self.head.root(tokens)

    def close(self) -> None:
        """See nothing more, and make sure that nothing seen was overwritten since."""
        self.is_open = self.stem.is_open = self.head.is_open = False
        if any(tensor._version != version for tensor, version in self.versions):
            raise _in_place("tokens", "methods that need no attention")

    def read_from(self) -> list[Tensor]:
        """Tensors from which the head may take tokens."""
        return [tensor for tensor in tokenwise(self.head) if tensor.requires_grad]

    def trace(self, logits: Tensor, needs: frozenset[str], **found: Any) -> Trace:
        """What was seen, outside of any graph; tapes only where they are needed."""
        taped = bool(needs & {"relevance", "tapes"})
        return Trace(
            logits if taped else logits.detach(),
            attention_calls=tuple(call.detached() for call in self.attention.values()),
            block_calls=tuple(call.detached() for call in self.blocks.values()),
            stem=self.stem if taped else None,
            head=self.head if taped else None,
            entered=self.entered,
            breaks=tuple(self.breaks),
            **found,
        )


@contextmanager
def recording(
    model: Model, vit: ViTView | None, needs: frozenset[str], images: Tensor
) -> Iterator[Record]:
    """Record what is needed of a forward pass; hooks are gone afterwards."""
    record, handles = Record(), list[Any]()

    def after(module: nn.Module, see: Callable[[Call], None]) -> None:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            see(Call(args, kwargs, first_tensor(output)))

        handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def leave(_: nn.Module, args: Any, output: Any) -> Any:
        """The last block gives its tokens to the head."""
        tokens = record.leave(first_tensor(output))
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    def chain(index: int, block: nn.Module) -> None:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            record.link(index, first_tensor((args, kwargs)))

        def behind(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            record.left = first_tensor(output) if record.is_open else None
            if record.is_open and index not in record.calls:
                record.calls[index] = Call(args, kwargs, first_tensor(output))

        handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(block.register_forward_hook(behind, with_kwargs=True))

    def outside(name: str, module: nn.Module) -> None:
        def called(*_: Any) -> None:
            if record.is_open and not record.started:
                record.early.append(name)

        handles.append(module.register_forward_pre_hook(called))

    def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
        """The first block takes what the stem made."""
        if record.stem.is_open:
            record.entered = first_tensor((args, kwargs))
            record.stem.is_open = False

    if vit is None:
        yield record
        return
    try:
        if needs & _OF_ATTENTION:
            for index, view in enumerate(vit.attentions):
                after(view.module, partial(_keep, record, record.attention, index))
        last = vit.attentions[-1].module
        if needs & _OF_STREAM:
            blocks = vit.require_blocks("Reading the token stream")
            for index, block in enumerate(blocks.values()):
                after(block, partial(_keep, record, record.blocks, index))
        if vit.blocks:
            first, last = (modules := [*vit.blocks.values()])[0], modules[-1]
            handles.append(first.register_forward_pre_hook(enter, with_kwargs=True))
            for index, block in enumerate(modules):
                chain(index, block)
            for name, module in vit.outside.items():
                outside(name, module)
        handles.append(last.register_forward_hook(leave))
        taped = bool(needs & {"relevance", "tapes"})
        record.stem.is_open = taped
        with ExitStack() as tapes:
            if taped:
                record.stem.root(images)
                tapes.enter_context(record.stem.watch(model.module))
            tapes.enter_context(record.head.watch(model.module))
            yield record
    finally:
        for handle in handles:
            handle.remove()


def _keep(record: Record, where: dict[int, Call], index: int, call: Call) -> None:
    record.keep(where, index, call)


@contextmanager
def one_kernel() -> Iterator[None]:
    """Run torch's own attention by the same kernel with and without gradients, bit for bit."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def checkpointing(blocks: Mapping[str, nn.Module], record: Record) -> Iterator[None]:
    """Let blocks forget their intermediates and run again, to the same output, in the backward."""
    own = [(block, vars(block).get("forward")) for block in blocks.values()]
    try:
        for name, block in blocks.items():
            run = partial(_run_again, f"The block '{name}'", block.forward, ref(record), [])
            block.forward = partial(checkpoint, run, use_reentrant=False)
        with set_checkpoint_early_stop(False):  # else a block does not come to its output again
            yield
    finally:
        for block, forward in own:
            if forward is None:
                del block.forward
            else:
                block.forward = forward


def _run_again(
    what: str,
    forward: Callable[..., Any],
    found: ref[Record],
    given: list[Tensor],
    *args: Any,
    **kw: Any,
) -> Any:
    """Run a block; what it gives once the forward pass is over must be what it `given` then.

    The graph of the model holds this call, and a record the tensors of that graph: were the record
    not found by a weak reference, neither would ever be freed.
    """
    output = forward(*args, **kw)
    tokens = first_tensor(output).detach()
    record = found()
    if record is not None and record.is_open:
        given.append(tokens)
    elif record is not None and given:
        base = first_tensor((args, kw)).detach()
        check_recomputed(record.checks, what, tokens, given[0], base)
    return output


def _check(
    record: Record, vit: ViTView, model: Model, layout: Layout, needs: frozenset[str]
) -> int:
    """Check that every block was seen, in order; count the tokens before the patches."""
    depth = len(vit.attentions)
    for what, order, wanted in (
        ("attention modules", list(record.attention), needs & _OF_ATTENTION),
        ("blocks", list(record.blocks), needs & _OF_STREAM),
    ):
        if wanted and order != list(range(depth)):
            raise FaithscopeError(
                f"{model.name} ran {len(order)} of its {depth} {what}, or in another order: give "
                "fs.wrap(module, attention=[…]) those of its blocks, first block first.",
                reason=f"it ran {len(order)} of its {depth} {what}, or in another order",
            )
    if record.early:
        what = f"it attends before its blocks, in '{record.early[0]}'"
        raise FaithscopeError(
            f"{model.name} cannot be explained by its blocks, since {what}: choose methods that "
            "read only gradients, or give fs.wrap(module, attention=[…]) the attention module of "
            "each block.",
            reason=what,
        )
    if needs & {"relevance", "tapes"}:
        _check_chain(record, vit)
    prefix = vit.prefix_tokens or 0
    for index, call in enumerate((*record.attention.values(), *record.blocks.values())):
        prefix = layout.prefix(vit, index % depth, call.tokens)
    return prefix


def _is_shuffled(left: Tensor, entered: Tensor) -> bool:
    """Whether tokens are others in another order."""
    before, after = (
        held.detach().flatten(1, -2).amax(-1).sort().values for held in (left, entered)
    )
    return torch.equal(before, after)


def _find_moved(record: Record, vit: ViTView) -> str | None:
    """A block before or in which tokens are put in another order."""
    if record.shuffled is not None:
        return list(vit.blocks)[record.shuffled]
    for index, (name, block) in enumerate(vit.blocks.items()):
        found = places_of(block, record.calls[index]) if index in record.calls else []
        if any(touched and place not in touched for place, touched in found):
            return name
    return None


def _check_chain(record: Record, vit: ViTView) -> None:
    """Refuse what happens between blocks, of which nobody took note."""
    names, calls = list(vit.blocks), list(record.blocks.values())
    earlier = {id(call.tokens) for call in calls}
    for index, (before, after) in enumerate(pairwise(calls)):
        left, entered = before.output.detach(), after.tokens.detach()
        chained = before.output is after.tokens  # which need not be read to be known
        chained = chained or (left.shape == entered.shape and torch.equal(left, entered))
        others = (
            held for held in tensors_in((after.args, after.kwargs)) if held is not after.tokens
        )
        if not chained or any(id(held) in earlier or held.requires_grad for held in others):
            what = f"it does something to its tokens between '{names[index]}' and "
            what += f"'{names[index + 1]}'"
            raise FaithscopeError(
                f"Relevance goes from block to block, but {what}: choose methods that read only "
                "attention or gradients.",
                reason=what,
            )
