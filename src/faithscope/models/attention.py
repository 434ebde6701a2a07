"""Reading attention off a module that nobody modified.

An `AttentionView` knows how to recompute one attention module of the user's model from its input,
whatever library it comes from. Every view checks itself against what the module really returned,
so an unknown variant is refused by name and can never give silently wrong maps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError

QKV = tuple[Tensor, Tensor, Tensor]

_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}
_ROUNDINGS = {torch.float64: 64, torch.float32: 32}


@dataclass(frozen=True)
class AttentionView:
    """One attention module, seen the same way in every library.

    `qkv` maps the module's input [B, N, D] to queries, keys and values [B, heads, N, d];
    `project` maps the mixed values [B, N, heads·d] to what the module returns; a module whose own
    softmax runs in float32 cannot be checked more closely than that. Only relevance (LRP) needs
    `weight`, the joint weight of q, k and v [3·heads·d, D], and the `linears` that apply it.
    """

    name: str
    module: nn.Module
    scale: float
    qkv: Callable[[Tensor], QKV]
    project: Callable[[Tensor], Tensor]
    float32_softmax: bool = False
    weight: Callable[[], Tensor] | None = None
    linears: tuple[nn.Linear, ...] = ()

    def mix(self, tokens: Tensor, returned: Tensor) -> tuple[Tensor, Tensor]:
        """Recompute the attention probabilities and the values that they mix.

        The view is checked: rows must sum to 1, and the recomputed output must be `returned`, what
        the module itself gave for `tokens`.

        Returns:
            Attention [B, heads, N, N] and values [B, heads, N, d].
        """
        query, key, value = self.qkv(tokens)
        attention = (query @ key.transpose(-2, -1) * self.scale).softmax(dim=-1)
        self._check(attention, self.project(join_heads(attention @ value)), returned)
        return attention, value

    def gradient(self, attention: Tensor, value: Tensor, returned_gradient: Tensor) -> Tensor:
        r"""The gradient that reaches the attention probabilities [B, heads, N, N].

        .. math:: G = \frac{\partial f}{\partial o} v^\top, \qquad o = A v
        """
        with torch.enable_grad():
            mixed = join_heads(attention @ value).detach().requires_grad_(True)
            (mixed_gradient,) = torch.autograd.grad(self.project(mixed), mixed, returned_gradient)
        return split_heads(mixed_gradient, value.shape[1]) @ value.transpose(-2, -1)

    def _check(self, attention: Tensor, recomputed: Tensor, returned: Tensor) -> None:
        rows = (attention.sum(-1) - 1).abs().max()
        off = deviation(recomputed, returned, returned.mean(dim=1, keepdim=True))
        allowed = tolerance(attention.dtype, self.float32_softmax)
        if not (rows <= allowed and off <= allowed):
            raise FaithscopeError(
                f"The attention module '{self.name}' does something faithscope does not know "
                f"(recomputed output off by {off:.1e}): its attention cannot be trusted. "
                "Use methods that need no attention, or give fs.wrap(module, attention=[…]) your "
                "own AttentionView for each block."
            )


def join_heads(values: Tensor) -> Tensor:
    """[B, heads, N, d] -> [B, N, heads·d]."""
    return values.transpose(1, 2).flatten(2)


def split_heads(values: Tensor, heads: int) -> Tensor:
    """[B, N, heads·d] -> [B, heads, N, d]."""
    return values.reshape(*values.shape[:2], heads, -1).transpose(1, 2)


def deviation(recomputed: Tensor, recorded: Tensor, base: Tensor | float = 0.0) -> float:
    """How far a recomputed tensor is from the recorded one, relative to what differs from `base`.

    The base is what would be there anyway (a bias, a residual stream) and must not hide an error;
    the rounding of the recorded values is none.
    """
    if recomputed.shape != recorded.shape:
        return float("inf")
    epsilon = torch.finfo(recorded.dtype).eps * _ROUNDINGS.get(recorded.dtype, 2)
    error = ((recomputed - recorded).abs() - epsilon * recorded.abs()).max().clamp(min=0)
    return float(error / (recorded - base).abs().max().clamp_min(1e-30))


def tolerance(dtype: torch.dtype, float32_softmax: bool = False) -> float:
    """The deviation that the rounding of a type explains."""
    allowed = _TOLERANCES.get(dtype, 3e-2)
    return max(allowed, 1e-5) if float32_softmax else allowed


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
        query, key, value = _three(projection(tokens), heads, head_dim)
        return norms[0](query), norms[1](key), value

    def project(mixed: Tensor) -> Tensor:
        norm = getattr(module, "norm", nn.Identity())
        result: Tensor = module.proj(norm(mixed))  # type: ignore[operator]
        return result

    return AttentionView(
        name,
        module,
        head_dim**-0.5,
        qkv,
        project,
        weight=lambda: projection.weight,
        linears=(projection,),
    )


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
        query, key, value = (split_heads(layer(tokens), heads) for layer in linear)
        return query, key, value

    return AttentionView(
        name,
        module,
        head_dim**-0.5,
        qkv,
        output,
        float32_softmax=True,  # of some eager attentions, whatever the model's type
        weight=lambda: torch.cat([layer.weight for layer in linear]),
        linears=tuple(linear),
    )


def _torch_attention(name: str, module: nn.Module) -> AttentionView | None:
    """torchvision: torch's own multi-head attention with one in-projection, batch first."""
    if not isinstance(module, nn.MultiheadAttention) or not module.batch_first:
        return None
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        return None

    def qkv(tokens: Tensor) -> QKV:
        joint = nn.functional.linear(tokens, module.in_proj_weight, module.in_proj_bias)
        return _three(joint, module.num_heads, module.head_dim)

    return AttentionView(
        name,
        module,
        module.head_dim**-0.5,
        qkv,
        module.out_proj,
        weight=lambda: module.in_proj_weight,
    )


def _three(joint: Tensor, heads: int, head_dim: int) -> QKV:
    """Split what a joint layer gave, rows ordered [q; k; v], each head-major."""
    batch, count, _ = joint.shape
    parts = joint.reshape(batch, count, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
    query, key, value = parts.unbind(0)
    return query, key, value
