"""Gathering evidence: one traced pass serves every method that needs the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError
from faithscope.methods.method import Evidence, Method
from faithscope.models import Model, ViTView, undisturbed

Trace = tuple[tuple[Tensor, Tensor], ...]


def explain_batch(
    model: Model,
    images: Tensor,
    target: Tensor | None,
    methods: Sequence[tuple[Method, int]],
    *,
    keys: Sequence[str],
    seed: int = 0,
    batch_size: int = 64,
) -> list[Tensor]:
    """Explain one batch by several (method, random draw) pairs, sharing what they need.

    Without a target the predicted class is explained, as the traced pass predicts it.

    Returns:
        One tensor of maps per pair, [B, H, W] or [B, h, w], detached.
    """
    needs = frozenset[str]().union(*(method.needs for method, _ in methods))
    with (
        torch.inference_mode(False),
        torch.autocast(images.device.type, enabled=False),
        undisturbed(model.module),
    ):
        evidence = gather(model, images, target, needs, keys=keys, seed=seed, batch_size=batch_size)
        rows = _walk_layers(evidence, [method for method, _ in methods if method.by_layer])
        maps = []
        for method, draw in methods:
            if method.by_layer:
                made = _row_to_map(evidence, rows[method.label], method)
            else:
                made = method.function(replace(evidence, draw=draw), **method.options)
            maps.append(_checked_shape(made.detach(), evidence, method))
    return maps


def gather(
    model: Model,
    images: Tensor,
    target: Tensor | None,
    needs: frozenset[str],
    *,
    keys: Sequence[str],
    seed: int,
    batch_size: int,
) -> Evidence:
    """Run at most one forward and one backward pass, recording what is needed."""
    images = images.detach().to(model.dtype).clone()  # what inference mode made has no gradients
    target = None if target is None else target.clone()
    if target is not None and not needs:
        return Evidence(model, images, target, keys, seed, batch_size=batch_size)
    vit = model.require_vit("Attention") if "attention" in needs else None
    with_gradient = "gradient" in needs
    inputs = images.clone().requires_grad_(with_gradient)
    with torch.set_grad_enabled(with_gradient), recording(vit) as records:
        logits = model.logits(inputs)
        gradient = None
        if target is None:
            target = logits.detach().argmax(-1)
        if with_gradient:
            chosen = logits.gather(1, target[:, None]).sum()
            (gradient,) = torch.autograd.grad(chosen, inputs)
    trace = None if vit is None else _ordered(records, vit, model, images)
    return Evidence(
        model,
        images,
        target,
        keys,
        seed,
        batch_size=batch_size,
        gradient=gradient,
        trace=trace,
    )


@contextmanager
def recording(vit: ViTView | None) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    """Record what goes into and comes out of each attention module; hooks are gone afterwards."""
    records: dict[int, tuple[Tensor, Tensor]] = {}
    handles = []

    def recorder(index: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            tokens = args[0] if args else next(iter(kwargs.values()))
            returned = output[0] if isinstance(output, tuple) else output
            records[index] = (tokens.detach(), returned.detach())

        return hook

    try:
        for index, view in enumerate(() if vit is None else vit.attentions):
            hook = recorder(index)
            handles.append(view.module.register_forward_hook(hook, with_kwargs=True))
        yield records
    finally:
        for handle in handles:
            handle.remove()


def _ordered(
    records: dict[int, tuple[Tensor, Tensor]], vit: ViTView, model: Model, images: Tensor
) -> Trace:
    """Check that every block was seen, in order, with prefix + grid tokens."""
    if list(records) != list(range(len(vit.attentions))):
        raise FaithscopeError(
            f"{model.name} ran {len(records)} of its {len(vit.attentions)} attention modules, or "
            "in another order: give fs.wrap(module, attention=[…]) those of its blocks, first "
            "block first."
        )
    rows, columns = model.require_grid(images, "Attention")
    expected = vit.prefix_tokens + rows * columns
    for view, (tokens, _) in zip(vit.attentions, records.values(), strict=True):
        if tokens.ndim != 3 or tokens.shape[1] != expected:
            raise FaithscopeError(
                f"'{view.name}' of {model.name} sees tokens of shape {list(tokens.shape)}, not "
                f"{vit.prefix_tokens} prefix + {rows}×{columns} patches = {expected}: give "
                "fs.wrap(module, prefix_tokens=…, patch_size=…)."
            )
    return tuple(records.values())


def _walk_layers(evidence: Evidence, methods: Sequence[Method]) -> dict[str, Tensor]:
    """Take every layer method through the blocks together, last block first."""
    if not methods:
        return {}
    start = _readout_row(evidence)
    rows = {method.label: start for method in methods}
    for layer in evidence.layers():
        for method in methods:
            rows[method.label] = method.function(rows[method.label], layer, **method.options)
    return rows


def _readout_row(evidence: Evidence) -> Tensor:
    """The weights with which the head reads the tokens: [B, N]."""
    vit = evidence.model.require_vit("Attention")
    assert evidence.trace is not None
    batch, count, _ = evidence.trace[0][0].shape
    row = evidence.images.new_zeros(batch, count)
    if vit.readout == "class":
        row[:, 0] = 1
    else:
        row[:, vit.prefix_tokens :] = 1 / (count - vit.prefix_tokens)
    return row


def _row_to_map(evidence: Evidence, row: Tensor, method: Method) -> Tensor:
    model = evidence.model
    rows, columns = model.require_grid(evidence.images, method.label)
    return row[:, model.require_vit(method.label).prefix_tokens :].reshape(-1, rows, columns)


def _checked_shape(maps: Tensor, evidence: Evidence, method: Method) -> Tensor:
    batch, _, height, width = evidence.images.shape
    grid = evidence.model.grid(height, width)
    allowed = [[batch, height, width]] + ([[batch, *grid]] if grid else [])
    if list(maps.shape) not in allowed:
        shapes = " or ".join(map(str, allowed))
        raise FaithscopeError(
            f"The method '{method.label}' gave maps of shape {list(maps.shape)}; needed: {shapes}."
        )
    return maps
