"""Methods by their definitions: plain hooks and one call of autograd, nothing of faithscope's.

Every library computes attention through torch's function, which is swapped for one written out
here; norms and gates are swapped module by module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from timm.layers import RmsNorm
from torch import Tensor, nn

from families import Family, blocks_of

Change = Callable[[Tensor, int], Tensor]


@dataclass(eq=False)
class Seen:
    """Attention probabilities of each block, those behind the blocks, and tokens between blocks."""

    attention: list[list[Tensor]] = field(default_factory=list)
    pool: list[Tensor] = field(default_factory=list)
    stream: list[Tensor] = field(default_factory=list)
    inside: bool = False

    def of_block(self, index: int) -> Tensor:
        """Probabilities of all heads of a block, [B, heads, N, N]."""
        return torch.cat(self.attention[index], dim=1)

    def gradients(self) -> list[Tensor]:
        """Gradients of each block's probabilities."""
        return [torch.cat([_grad(part) for part in parts], dim=1) for parts in self.attention]


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    change: Callable[[Tensor], Tensor],
) -> Tensor:
    """Softmax attention, written out."""
    assert not dropout_p
    assert not is_causal
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        scores = scores + attn_mask
    return change(scores.softmax(-1)) @ value


@contextmanager
def watched(
    module: nn.Module, *, attention: Change | None = None, tokens: Change | None = None
) -> Iterator[Seen]:
    """See attention and tokens with their gradients; they may be changed on the way.

    `attention` gets the probabilities and the block's index, -1 behind the blocks; `tokens` what
    enters each block, and what leaves the last.
    """
    seen, blocks = Seen(), blocks_of(module)

    def probabilities(made: Tensor) -> Tensor:
        where = len(seen.attention) - 1 if seen.inside else -1
        made = made if attention is None else attention(made, where)
        if made.requires_grad:
            made.retain_grad()
        (seen.attention[-1] if seen.inside else seen.pool).append(made)
        return made

    def passing(values: Tensor) -> Tensor:
        values = values if tokens is None else tokens(values, len(seen.stream))
        if values.requires_grad:
            values.retain_grad()
        seen.stream.append(values)
        return values

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.attention.append([])
        seen.inside = True
        if args:
            return (passing(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": passing(kwargs["hidden_states"])}

    def leave(block: nn.Module, _: Any, output: Any) -> Any:
        seen.inside = False
        if block is not blocks[-1]:
            return output
        if isinstance(output, tuple):
            return (passing(output[0]), *output[1:])
        return passing(output)

    with ExitStack() as stack:
        for block in blocks:
            handle = block.register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(handle.remove)
            stack.callback(block.register_forward_hook(leave).remove)
        stack.enter_context(in_the_open(module, probabilities))
        yield seen


@contextmanager
def in_the_open(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let every library attend by the function above."""

    def fused(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "need_weights": False}  # else torch writes it out itself

    written_out = partial(attend, change=change)
    with ExitStack() as stack:
        for child in module.modules():
            if isinstance(child, nn.MultiheadAttention):
                handle = child.register_forward_pre_hook(fused, with_kwargs=True)
                stack.callback(handle.remove)
        stack.enter_context(
            patch.object(nn.functional, "scaled_dot_product_attention", written_out)
        )
        yield


def logits_of(module: nn.Module, images: Tensor) -> Tensor:
    """The logits, whatever they come in."""
    output = module(images)
    output = output["logits"] if isinstance(output, dict) else getattr(output, "logits", output)
    assert isinstance(output, Tensor)
    return output


def chosen_logit(module: nn.Module, images: Tensor, target: Tensor | int) -> Tensor:
    """The sum of the target logits."""
    target = torch.as_tensor(target).expand(len(images))
    return logits_of(module, images).gather(1, target[:, None]).sum()


def read_weights(family: Family, seen: Seen) -> Tensor:
    """The weights with which the head reads the tokens, [B, N]."""
    first = seen.stream[-1].detach()
    weights = torch.zeros(first.shape[:2], dtype=first.dtype)
    if family.readout == "attention":
        (pool,) = seen.pool
        paid = pool.detach().mean((1, 2))
        weights[:, -paid.shape[1] :] = paid
        return weights
    places = {"class": slice(0, 1), "mean": slice(family.prefix, None), "all": slice(None)}
    weights[:, places[family.readout]] = 1
    return weights / weights.sum(1, keepdim=True)


def attention_maps(
    module: nn.Module, images: Tensor, target: Tensor, family: Family
) -> dict[str, Tensor]:
    """METHODS.md §3, word by word, from what autograd gives for the library's own forward."""
    module = copy.deepcopy(module)
    with watched(module) as seen:
        chosen_logit(module, images.clone().requires_grad_(True), target).backward()
    assert len(seen.attention) == family.depth
    gradients = seen.gradients()
    attention = [seen.of_block(index).detach() for index in range(family.depth)]
    prefix, row = family.prefix, read_weights(family, seen)[:, None]
    identity = torch.eye(attention[0].shape[-1], dtype=torch.float64)

    def product(matrices: list[Tensor]) -> Tensor:
        total = identity
        for matrix in matrices:
            total = matrix @ total
        return (row @ total)[:, 0]

    rolled = [values.mean(1) + identity for values in attention]
    weighted = [(g * a).clamp(min=0).mean(1) for g, a in zip(gradients, attention, strict=True)]
    paid, slopes = (row[:, None] @ part[-1] for part in (attention, gradients))  # [B, heads, 1, N]
    weights = slopes[..., prefix:].mean(-1, keepdim=True)
    maps = {
        "raw_attention": (row @ attention[-1].mean(1))[:, 0],
        "rollout": product([matrix / matrix.sum(-1, keepdim=True) for matrix in rolled]),
        "grad_cam": (weights * paid)[:, :, 0].mean(1).clamp(min=0),
        "transformer_mm": product([identity + matrix for matrix in weighted]),
        "attcat": sum(
            (h.detach() * _grad(h)).sum(-1) * a.mean((1, 2))
            for h, a in zip(seen.stream[:-1], attention, strict=True)
        ),
    }
    return {name: values[:, prefix:].reshape(-1, *family.grid) for name, values in maps.items()}


# Conservative LRP


def _norm(x: Tensor, *, module: Any, constant: str) -> Tensor:
    """A norm over channels that holds its deviation, and its mean, constant."""
    eps = module.eps
    if isinstance(module, nn.LayerNorm):
        mean = x.mean(-1, keepdim=True)
        std = ((x - mean).square().mean(-1, keepdim=True) + eps).sqrt()
        mean = mean.detach() if constant == "mean_std" else mean
        scaled = (x - mean) / (std if constant == "none" else std.detach())
    else:
        size = (x.square().mean(-1, keepdim=True) + eps).sqrt()
        scaled = x / (size if constant == "none" else size.detach())
    scaled = scaled if module.weight is None else scaled * module.weight
    return scaled if getattr(module, "bias", None) is None else scaled + module.bias


def _gelu_by_ratio(_: nn.Module, args: tuple[Tensor, ...], __: Tensor) -> Tensor:
    """GELU(x) / x is held constant."""
    return args[0] * ((1 + torch.erf(args[0] / 2**0.5)) / 2).detach()


GATES = {
    "SwiGLU": "act",
    "GluMlp": "act",
    "DINOv3ViTGatedMLP": "act_fn",
    "Dinov2SwiGLUFFN": "act_fn",
    "EvaAttention": "gate",
    "AttentionRope": "gate",
    "GatedAttention": "gate",
}
"""Where modules keep what makes their gate."""
GELUS = ("GELU", "GELUActivation")


def simplify(module: nn.Module, *, norm: str = "std", activation: str = "derivative") -> None:
    """Hold the deviations of norms and all gates constant, in place."""
    for child in list(module.modules()):
        kind = type(child).__name__
        if isinstance(child, nn.LayerNorm | nn.RMSNorm | RmsNorm):
            child.forward = partial(_norm, module=child, constant=norm)
        elif kind in GELUS and activation == "ratio":
            child.register_forward_hook(_gelu_by_ratio)
        gate = getattr(child, GATES.get(kind, ""), None)
        if isinstance(gate, nn.Module):
            gate.register_forward_hook(lambda _, __, output: output.detach())


def conservative_maps(
    module: nn.Module,
    images: Tensor,
    target: Tensor | int,
    family: Family,
    *,
    norm: str = "std",
    activation: str = "derivative",
) -> dict[str, Tensor]:
    """Input times gradient of the simplified model at its tokens, patches and pixels."""
    module = copy.deepcopy(module).requires_grad_(False)
    simplify(module, norm=norm, activation=activation)
    kept: dict[str, Tensor] = {"pixels": images.clone().requires_grad_(True)}

    def keep_tokens(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept.setdefault("tokens", args[0] if args else kwargs["hidden_states"])

    def keep_patches(_: nn.Module, __: Any, output: Tensor) -> None:
        kept["patches"] = output

    first = ("norm_pre", "pre_layrnorm", "ln_pre")
    norms = [child for name, child in module.named_modules() if name.rpartition(".")[2] in first]
    norms = [child for child in norms if not isinstance(child, nn.Identity)]
    place = norms[0] if norms else blocks_of(module)[0]
    place.register_forward_pre_hook(keep_tokens, with_kwargs=True)
    convolutions = [child for child in module.modules() if isinstance(child, nn.Conv2d)]
    convolutions[-1].register_forward_hook(keep_patches)
    with in_the_open(module, Tensor.detach):
        logit = chosen_logit(module, kept["pixels"], target)
    found = torch.autograd.grad(logit, list(kept.values()))
    products = {
        place: (values * gradient).detach()
        for (place, values), gradient in zip(kept.items(), found, strict=True)
    }
    tokens = products["tokens"][:, family.prefix :].sum(-1).reshape(-1, *family.grid)
    return {part: products[part].sum(1) for part in ("patches", "pixels")} | {"tokens": tokens}
