"""Seeing inside a ViT that nobody modified: where its attention, patches and prefix tokens are.

An `AttentionView` knows how to recompute one attention module of the user's model from its input,
whatever library it comes from. Every view checks itself against what the module really returned,
so an unknown variant is refused by name and can never give silently wrong maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import commonpath

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError

QKV = tuple[Tensor, Tensor, Tensor]

_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}


@dataclass(frozen=True)
class AttentionView:
    """One attention module, seen the same way in every library.

    `qkv` maps the module's input [B, N, D] to queries, keys and values [B, heads, N, d];
    `project` maps the mixed values [B, N, heads·d] to what the module returns; a module whose own
    softmax runs in float32 cannot be checked more closely than that.
    """

    name: str
    module: nn.Module
    scale: float
    qkv: Callable[[Tensor], QKV]
    project: Callable[[Tensor], Tensor]
    float32_softmax: bool = False

    def probabilities(self, tokens: Tensor, returned: Tensor | None = None) -> Tensor:
        """Recompute the attention probabilities [B, heads, N, N] from the module's input.

        With `returned`, what the module gave for `tokens`, the view is checked: rows must sum to 1
        and the recomputed output must be that one.
        """
        query, key, value = self.qkv(tokens)
        attention = (query @ key.transpose(-2, -1) * self.scale).softmax(dim=-1)
        if returned is not None:
            mixed = (attention @ value).transpose(1, 2).flatten(2)
            self._check(attention, self.project(mixed), returned)
        return attention

    def _check(self, attention: Tensor, recomputed: Tensor, returned: Tensor) -> None:
        tolerance = _TOLERANCES.get(attention.dtype, 3e-2)
        if self.float32_softmax:
            tolerance = max(tolerance, 1e-5)
        rows = (attention.sum(-1) - 1).abs().max()
        if recomputed.shape != returned.shape:
            off = torch.tensor(torch.inf)
        else:
            off = (recomputed - returned).abs().max() / returned.abs().max().clamp_min(1e-30)
        if not (rows <= tolerance and off <= tolerance):
            raise FaithscopeError(
                f"The attention module '{self.name}' does something faithscope does not know "
                f"(recomputed output off by {float(off):.1e}): its attention cannot be trusted. "
                "Use methods that need no attention, or give fs.wrap(module, attention=[…]) your "
                "own AttentionView for each block."
            )


@dataclass(frozen=True)
class ViTView:
    """The few facts about a ViT that attention methods need.

    `prefix_tokens` stand before the patches (class, distillation, registers); `readout` says which
    token the head reads: "class" (the first) or "mean" (of the patches).
    """

    attentions: tuple[AttentionView, ...]
    prefix_tokens: int
    readout: str = "class"


def find_attentions(module: nn.Module) -> tuple[AttentionView, ...]:
    """Find every attention module whose make is known, in the order they are defined."""
    found = []
    for name, child in module.named_modules():
        for make in (_joint_attention, _separate_attention, _torch_attention):
            view = make(name, child)
            if view is not None:
                found.append(view)
                break
    return tuple(found)


def _joint_attention(name: str, module: nn.Module) -> AttentionView | None:
    """timm: one linear layer makes q, k and v; optional q/k norms, output norm and gate."""
    projection, heads = getattr(module, "qkv", None), getattr(module, "num_heads", None)
    if not isinstance(projection, nn.Linear) or not isinstance(heads, int):
        return None
    head_dim = projection.out_features // (3 * heads)
    norms = [getattr(module, part, nn.Identity()) for part in ("q_norm", "k_norm")]

    def qkv(tokens: Tensor) -> QKV:
        batch, count, _ = tokens.shape
        joint = projection(tokens).reshape(batch, count, 3, heads, head_dim)
        query, key, value = joint.permute(2, 0, 3, 1, 4).unbind(0)
        return norms[0](query), norms[1](key), value

    def project(mixed: Tensor) -> Tensor:
        norm = getattr(module, "norm", nn.Identity())
        result: Tensor = module.proj(norm(mixed))  # type: ignore[operator]
        return result

    return AttentionView(name, module, head_dim**-0.5, qkv, project)


def _separate_attention(name: str, module: nn.Module) -> AttentionView | None:
    """Hugging Face: three linear layers, and an output projection inside or outside the module."""
    for names in (("q_proj", "k_proj", "v_proj"), ("query", "key", "value")):
        layers = [getattr(module, part, None) for part in names]
        if all(isinstance(layer, nn.Linear) for layer in layers):
            break
    else:
        return None
    heads = getattr(module, "num_attention_heads", None) or getattr(module, "num_heads", None)
    if not isinstance(heads, int):
        return None
    linear: list[nn.Linear] = [layer for layer in layers if isinstance(layer, nn.Linear)]
    head_dim = linear[0].out_features // heads
    output = getattr(module, "o_proj", None) or getattr(module, "out_proj", None) or nn.Identity()

    def qkv(tokens: Tensor) -> QKV:
        query, key, value = (
            layer(tokens).unflatten(-1, (heads, head_dim)).transpose(1, 2) for layer in linear
        )
        return query, key, value

    # Some of its eager attentions take the softmax in float32, whatever the model's type.
    return AttentionView(name, module, head_dim**-0.5, qkv, output, float32_softmax=True)


def _torch_attention(name: str, module: nn.Module) -> AttentionView | None:
    """torchvision: torch's own multi-head attention with one in-projection, batch first."""
    if not isinstance(module, nn.MultiheadAttention) or not module.batch_first:
        return None
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        return None

    def qkv(tokens: Tensor) -> QKV:
        joint = nn.functional.linear(tokens, module.in_proj_weight, module.in_proj_bias)
        batch, count, _ = tokens.shape
        parts = joint.reshape(batch, count, 3, module.num_heads, module.head_dim)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    return AttentionView(name, module, module.head_dim**-0.5, qkv, module.out_proj)


def find_vit(
    module: nn.Module,
    *,
    attention: Sequence[AttentionView | nn.Module] | None = None,
    prefix_tokens: int | None = None,
    readout: str | None = None,
) -> ViTView | str:
    """Read the ViT facts off a module, each one overridden where given.

    Returns:
        The view, or a sentence naming the fields of `fs.wrap` that are missing.
    """
    attentions = _find_stack(module) if attention is None else tuple(map(_as_view, attention))
    prefix_tokens = _prefix_tokens(module) if prefix_tokens is None else prefix_tokens
    readout = readout or _readout(module)
    if attentions and prefix_tokens is not None and readout is not None:
        return ViTView(attentions, prefix_tokens, readout)
    missing = [
        field
        for field, lacking in (
            ("attention=[…]", not attentions),
            ("prefix_tokens=…", prefix_tokens is None),
            ("readout='class' or 'mean'", readout is None),
        )
        if lacking
    ]
    return f"{type(module).__name__} was not recognised as one: give {', '.join(missing)}"


def _find_stack(module: nn.Module) -> tuple[AttentionView, ...]:
    """The attention modules if they form one stack of blocks; none if some are side by side."""
    found = find_attentions(module)
    paths = [view.name.replace(".", "/") for view in found]
    forks = {commonpath(pair) for pair in pairwise(paths)}
    return found if len(forks) <= 1 else ()


def _as_view(item: AttentionView | nn.Module) -> AttentionView:
    if isinstance(item, AttentionView):
        return item
    views = find_attentions(item)
    if len(views) != 1:
        raise FaithscopeError(
            f"fs.wrap(attention=[…]) takes attention modules or AttentionViews; "
            f"{type(item).__name__} holds {len(views)} attention modules of a known make."
        )
    return views[0]


def find_patch_size(
    module: nn.Module, input_size: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Find the patch size in pixels where the libraries keep it."""
    for child in module.modules():
        grid = getattr(child, "grid_size", None)  # timm; true also for a convolutional stem
        whole = getattr(child, "img_size", None) or input_size  # of this grid, not of the images
        if isinstance(grid, tuple) and len(grid) == 2 and isinstance(whole, tuple):
            return whole[0] // grid[0], whole[1] // grid[1]
        size = getattr(child, "patch_size", None)
        if isinstance(size, int):
            return size, size
        if isinstance(size, Sequence) and len(size) == 2:
            return int(size[0]), int(size[1])
    return None


def _prefix_tokens(module: nn.Module) -> int | None:
    declared = getattr(module, "num_prefix_tokens", None)  # timm: class, distillation, registers
    if isinstance(declared, int):
        return declared
    names = {name.rpartition(".")[2] for name, _ in module.named_parameters()}
    if not names & {"cls_token", "class_token", "pos_embedding", "position_embeddings"}:
        return None
    config = getattr(module, "config", None)
    single = len(names & {"cls_token", "class_token"}) + len(names & {"distillation_token"})
    return single + int(getattr(config, "num_register_tokens", 0) or 0)


def _readout(module: nn.Module) -> str | None:
    if getattr(getattr(module, "config", None), "use_mean_pooling", False):  # Hugging Face BEiT
        return "mean"
    pool = getattr(module, "global_pool", "token")
    if pool == "avg" and getattr(module, "pool_include_prefix", False):
        return None
    return {"token": "class", "avg": "mean"}.get(str(pool))
