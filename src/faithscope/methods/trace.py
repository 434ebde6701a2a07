"""Tracing: one forward pass, and one backward pass where gradients are needed, serve all methods.

The model stays as it is: hooks record what passes through its attention modules and blocks, and
its blocks are checkpointed, so that the backward pass holds the graph of one block at a time and
memory grows with the token stream [B, N, D] of each block, not with attention [B, heads, N, N].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence, Trace
from faithscope.models import Model, ViTView
from faithscope.models.blocks import Anatomy, HeadView, StemView

_OF_ATTENTION = frozenset({"attention", "attention_gradient"})
_OF_STREAM = frozenset({"stream", "stream_gradient", "relevance"})
_OF_BACKWARD = frozenset({"gradient", "attention_gradient", "stream_gradient"})


def gather(
    model: Model,
    images: Tensor,
    target: Tensor | None,
    needs: frozenset[str],
    *,
    keys: Sequence[str],
    seed: int = 0,
    batch_size: int = 64,
) -> Evidence:
    """Run at most one forward and one backward pass, recording what is needed."""
    images = images.detach().to(model.dtype).clone()  # what inference mode made has no gradients
    target = None if target is None else target.clone()
    if target is not None and not needs:
        return Evidence(model, images, target, keys, seed, batch_size=batch_size)
    vit = model.require_vit("Attention") if needs & (_OF_ATTENTION | _OF_STREAM) else None
    backward = bool(needs & _OF_BACKWARD)
    inputs = images.clone().requires_grad_(backward)
    with (
        torch.set_grad_enabled(backward),
        one_kernel(),
        recording(vit, needs) as record,
        ExitStack() as stack,
    ):
        if backward and vit is not None:
            stack.enter_context(checkpointing(vit.blocks))
        logits = model.logits(inputs)
        record.close()
        if vit is not None:
            _check(record, vit, model, images, needs)
        if target is None:
            target = logits.detach().argmax(-1)
        gradients = _backward(model, logits, target, inputs, record, needs)
        at_tokens = gradients.pop("readout", None)
        if vit is not None and at_tokens is not None:
            _check_readout(at_tokens, vit, model)
    trace = record.trace(logits, gradients)
    return Evidence(model, images, target, keys, seed, batch_size=batch_size, trace=trace)


def _backward(
    model: Model,
    logits: Tensor,
    target: Tensor,
    inputs: Tensor,
    record: Record,
    needs: frozenset[str],
) -> dict[str, Any]:
    """Gradients of the target logit with respect to everything that is needed, in one pass."""
    gave = [gave for _, gave in record.attention.values()]
    wanted: dict[str, list[Tensor]] = {
        "input_gradient": [inputs] if "gradient" in needs else [],
        "attention_gradients": gave if "attention_gradient" in needs else [],
        "stream_gradients": list(record.stream.values()) if "stream_gradient" in needs else [],
        "readout": gave[-1:],
    }
    tensors = [tensor for part in wanted.values() for tensor in part]
    if not tensors:
        return {}
    with torch.enable_grad():
        chosen = logits.gather(1, target[:, None]).sum()
    try:
        found = iter(torch.autograd.grad(chosen, tensors))
    except RuntimeError as error:
        raise no_gradient(model, error) from error
    gradients = {name: tuple(next(found) for _ in part) for name, part in wanted.items()}
    return {
        **gradients,
        "input_gradient": next(iter(gradients["input_gradient"]), None),
        "readout": next(iter(gradients["readout"]), None),
    }


def no_gradient(model: Model, error: RuntimeError) -> Exception:
    """What to tell of an error in a backward pass: a sentence if the model cut its gradients."""
    cut = ("require grad", "been used in the graph", "use_reentrant")
    if not any(words in str(error) for words in cut):
        return error
    return FaithscopeError(
        f"{model.name} gives no gradients: it detaches them, runs under no_grad or uses reentrant "
        "checkpoints. Change that, or choose methods that need none."
    )


@dataclass(eq=False)
class Record:
    """What hooks saw during the forward pass; closed before checkpoints run blocks again."""

    attention: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    stream: dict[int, Tensor] = field(default_factory=dict)
    parts: dict[str, Tensor] = field(default_factory=dict)
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    is_open: bool = True

    def keep(self, where: dict[Any, Any], key: Any, *seen: Tensor) -> None:
        """Keep what was seen once; a module that runs twice is no block of a ViT."""
        if not self.is_open:
            return
        if key in where:
            raise FaithscopeError(
                "The model runs one of its blocks twice in a forward pass: faithscope cannot read "
                "its attention. Choose methods that need no attention."
            )
        where[key] = seen[0] if len(seen) == 1 else seen
        self.versions += [(tensor, tensor._version) for tensor in seen]

    def close(self) -> None:
        """See nothing more, and make sure that nothing seen was overwritten since."""
        self.is_open = False
        if any(tensor._version != version for tensor, version in self.versions):
            raise FaithscopeError(
                "The model changes its tokens in place (as `x += …` does), so what passed through "
                "it is lost: write `x = x + …`, or choose methods that need no attention."
            )

    def trace(self, logits: Tensor, gradients: dict[str, Any]) -> Trace:
        """What was seen, outside of any graph."""
        embedded = self.parts.get("embedded", self.stream.get(0))
        patches = self.parts.get("patches")
        return Trace(
            logits.detach(),
            attention_inputs=tuple(got.detach() for got, _ in self.attention.values()),
            attention_outputs=tuple(gave.detach() for _, gave in self.attention.values()),
            stream=tuple(tokens.detach() for tokens in self.stream.values()),
            patches=None if patches is None else patches.detach().flatten(2).mT,
            embedded=None if embedded is None else embedded.detach(),
            **gradients,
        )


@contextmanager
def recording(vit: ViTView | None, needs: frozenset[str]) -> Iterator[Record]:
    """Record what is needed of a forward pass; hooks are gone afterwards."""
    record, handles = Record(), []

    def before(module: nn.Module, see: Callable[[Tensor], None]) -> None:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            see(_input(args, kwargs))

        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def after(module: nn.Module, see: Callable[[Tensor, Tensor], Tensor | None]) -> None:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            many = isinstance(output, tuple)
            instead = see(_input(args, kwargs), output[0] if many else output)
            return (instead, *output[1:]) if many and instead is not None else instead

        handles.append(module.register_forward_hook(hook, with_kwargs=True))

    try:
        if vit is not None and needs & _OF_ATTENTION:
            for index, view in enumerate(vit.attentions):
                after(view.module, partial(record.keep, record.attention, index))
            after(vit.attentions[-1].module, _differentiate_the_head)
        if vit is not None and needs & _OF_STREAM:
            blocks = vit.require_blocks("Reading the token stream")
            for index, block in enumerate(blocks):
                before(block, partial(record.keep, record.stream, index))
            after(blocks[-1], lambda _, left: record.keep(record.stream, len(blocks), left))
            anatomy = vit.anatomy
            if isinstance(anatomy, Anatomy) and isinstance(anatomy.stem, StemView):
                projection = anatomy.stem.projection
                after(projection, lambda _, left: record.keep(record.parts, "patches", left))
            if isinstance(anatomy, Anatomy) and not isinstance(anatomy.pre_norm, nn.Identity):
                before(anatomy.pre_norm, partial(record.keep, record.parts, "embedded"))
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _differentiate_the_head(_: Tensor, gave: Tensor) -> Tensor | None:
    """Keep the graph behind the last attention, to see from which tokens the head reads."""
    if gave.requires_grad:
        return None
    torch.set_grad_enabled(True)  # until the caller's own context ends
    return gave.requires_grad_(True).clone()


def _check_readout(gradient: Tensor, vit: ViTView, model: Model) -> None:
    """Refuse a read-out that is not what the head reads.

    Behind the last attention every token goes its own way, so the target logit has a gradient at
    those tokens only from which the head reads.
    """
    read = gradient.abs().amax(dim=(0, 2)) > 0
    if not read.any():
        return  # a head of zeros reads nothing
    prefix, patches = read[: vit.prefix_tokens], read[vit.prefix_tokens :]
    if vit.readout == "mean":
        fits = bool(patches.all() and not prefix.any())
    else:
        known = isinstance(vit.head, HeadView) and len(vit.head.readers) > 1
        fits = bool(vit.prefix_tokens and read[0] and (known or read.sum() == 1))
    if not fits:
        raise FaithscopeError(
            f"The head of {model.name} reads {int(prefix.sum())} of {len(prefix)} prefix tokens "
            f"and {int(patches.sum())} of {len(patches)} patches, which is not "
            f"readout='{vit.readout}': give fs.wrap(module, readout='class' or 'mean', "
            "prefix_tokens=…), or choose methods that read no attention."
        )


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tokens: Tensor = args[0] if args else next(iter(kwargs.values()))
    return tokens


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
def checkpointing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Let blocks forget their intermediates and run again in the backward pass."""
    own = [(block, vars(block).get("forward")) for block in blocks]
    try:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        yield
    finally:
        for block, forward in own:
            if forward is None:
                del block.forward
            else:
                block.forward = forward


def _check(
    record: Record, vit: ViTView, model: Model, images: Tensor, needs: frozenset[str]
) -> None:
    """Check that every block was seen, in order, with prefix + grid tokens."""
    depth = len(vit.attentions)
    seen: list[Tensor] = [got for got, _ in record.attention.values()]
    for what, order, wanted in (
        ("attention modules", list(record.attention), needs & _OF_ATTENTION),
        ("blocks", [index for index in record.stream if index < depth], needs & _OF_STREAM),
    ):
        if wanted and order != list(range(depth)):
            raise FaithscopeError(
                f"{model.name} ran {len(order)} of its {depth} {what}, or in another order: give "
                "fs.wrap(module, attention=[…]) those of its blocks, first block first."
            )
    rows, columns = model.require_grid(images, "Attention")
    expected = vit.prefix_tokens + rows * columns
    for index, tokens in enumerate([*seen, *record.stream.values()]):
        if tokens.ndim != 3 or tokens.shape[1] != expected:
            name = vit.attentions[index % depth].name
            raise FaithscopeError(
                f"'{name}' of {model.name} sees tokens of shape {list(tokens.shape)}, not "
                f"{vit.prefix_tokens} prefix + {rows}×{columns} patches = {expected}: give "
                "fs.wrap(module, prefix_tokens=…, patch_size=…)."
            )
