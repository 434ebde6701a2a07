"""The canonical view of a ViT's parts: patch embedding, pre-norm blocks, head.

Whatever library a model comes from, its block is seen as

    x1  = x  + scale1(output(mix(norm1(x))))
    out = x1 + scale2(fc2(activation(fc1(norm2(x1)))))

made of the user's own submodules. Relevance (LRP) and conservative gradients recompute one block
at a time through this view. Each part is checked against what the model itself computed: a block
that does anything else is refused by name and can never give silently wrong maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError
from faithscope.models.attention import AttentionView, deviation, join_heads, tolerance

Call = Callable[[nn.Module, Tensor], Tensor]

_NEEDED = {
    "norm1": ("norm1", "layernorm_before", "ln_1"),
    "norm2": ("norm2", "layernorm_after", "ln_2"),
    "fc1": ("mlp.fc1", "intermediate.dense", "mlp.0"),
    "activation": (
        "mlp.act",
        "mlp.activation_fn",
        "mlp.activation",
        "intermediate.intermediate_act_fn",
        "mlp.1",
    ),
    "fc2": ("mlp.fc2", "output.dense", "mlp.3"),
}
_OPTIONAL = {
    "scale1": ("ls1", "layer_scale1"),
    "scale2": ("ls2", "layer_scale2"),
    "mlp_norm": ("mlp.norm",),
}
_PREFIX_TOKENS = ("cls_token", "class_token", "dist_token", "distillation_token", "reg_token")
_POSITIONS = ("pos_embed", "pos_embedding", "position_embeddings")


def call(module: nn.Module, values: Tensor) -> Tensor:
    """The module as it is."""
    result: Tensor = module(values)
    return result


def _linear(layer: nn.Linear, values: Tensor) -> Tensor:
    """What the layer's weight and bias say; if it does more (LoRA, say), the checks will tell."""
    return nn.functional.linear(values, layer.weight, layer.bias)


@dataclass(frozen=True, eq=False)
class BlockSteps:
    """Every intermediate of one block. Tokens are [B, N, D], heads [B, heads, N, d or N]."""

    x: Tensor
    normed1: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    product: Tensor
    attention: Tensor
    mixed: Tensor
    output_in: Tensor
    branch1: Tensor
    x1: Tensor
    normed2: Tensor
    fc2_in: Tensor
    branch2: Tensor
    out: Tensor


@dataclass(frozen=True)
class BlockView:
    """One pre-norm block in the user's own submodules."""

    name: str
    attention: AttentionView
    norm1: nn.Module
    output_norm: nn.Module
    output: nn.Linear
    scale1: nn.Module
    norm2: nn.Module
    fc1: nn.Linear
    activation: nn.Module
    mlp_norm: nn.Module
    fc2: nn.Linear
    scale2: nn.Module

    def run(
        self, x: Tensor, *, norm: Call = call, activate: Call = call, detach: bool = False
    ) -> BlockSteps:
        """Recompute the block; a caller may take norms, activation and attention differently.

        `norm` and `activate` call those modules; `detach` makes attention a constant.
        """
        normed1 = norm(self.norm1, x)
        query, key, value = self.attention.qkv(normed1)
        product = query @ key.transpose(-2, -1)
        attention = (product * self.attention.scale).softmax(dim=-1)
        mixed = (attention.detach() if detach else attention) @ value
        output_in = norm(self.output_norm, join_heads(mixed))
        branch1 = self.scale1(_linear(self.output, output_in))
        x1 = x + branch1
        normed2 = norm(self.norm2, x1)
        fc2_in = norm(self.mlp_norm, activate(self.activation, _linear(self.fc1, normed2)))
        branch2 = self.scale2(_linear(self.fc2, fc2_in))
        return BlockSteps(
            x=x,
            normed1=normed1,
            query=query,
            key=key,
            value=value,
            product=product,
            attention=attention,
            mixed=mixed,
            output_in=output_in,
            branch1=branch1,
            x1=x1,
            normed2=normed2,
            fc2_in=fc2_in,
            branch2=branch2,
            out=x1 + branch2,
        )

    def check(self, steps: BlockSteps, recorded: Tensor) -> None:
        """Refuse a block whose recomputed output is not what the model computed."""
        loose = self.attention.float32_softmax
        _check(f"block '{self.name}'", steps.out, recorded, steps.x, float32_softmax=loose)
        few = steps.normed1[:, :1]
        for layer in self.attention.linears:
            _check(f"block '{self.name}'", _linear(layer, few), layer(few))


@dataclass(frozen=True, eq=False)
class HeadSteps:
    """Intermediates of the head: tokens [B, N, D], pooled [B, r, D], features [B, r·D]."""

    normed: Tensor
    readers: Tensor
    pooled: Tensor
    features: Tensor
    logits: Tensor


@dataclass(frozen=True)
class HeadView:
    """Norm, read-out of one or more tokens, and a linear layer on what was read.

    `readers` name what is read: "class", "distillation" (the second token) or "mean" (of the
    patches); several linear layers are averaged, each on its own reader.
    """

    norm: nn.Module
    readers: tuple[str, ...]
    prefix_tokens: int
    feature_norm: nn.Module
    linears: tuple[nn.Linear, ...]

    def weight(self) -> Tensor:
        """The joint weight of the linear layers, [classes, r·D]."""
        joint = torch.cat([layer.weight / len(self.linears) for layer in self.linears], dim=1)
        return _both_sides(joint)

    def run(self, tokens: Tensor, *, norm: Call = call) -> HeadSteps:
        """Recompute the logits from the last block's output."""
        normed = norm(self.norm, tokens)
        readers = self._readers(normed)
        pooled = readers @ normed
        features = norm(self.feature_norm, pooled).flatten(1)
        logits = features @ self.weight().T
        for layer in self.linears:
            if layer.bias is not None:
                logits = logits + _both_sides(layer.bias) / len(self.linears)
        return HeadSteps(normed, readers, pooled, features, logits)

    def check(self, recomputed: Tensor, recorded: Tensor) -> None:
        """Refuse a head whose recomputed logits are not the model's."""
        _check("head", recomputed, recorded)

    def _readers(self, tokens: Tensor) -> Tensor:
        count = tokens.shape[1]
        weights = tokens.new_zeros(len(self.readers), count)
        for row, reader in enumerate(self.readers):
            if reader == "mean":
                weights[row, self.prefix_tokens :] = 1 / (count - self.prefix_tokens)
            else:
                weights[row, ("class", "distillation").index(reader)] = 1
        return weights


def _both_sides(rows: Tensor) -> Tensor:
    """One logit z is two, -z and z, as `Model.logits` gives them; others stay as they are."""
    return torch.cat([-rows, rows]) if len(rows) == 1 else rows


@dataclass(frozen=True)
class StemView:
    """Patch projection and the prefix tokens that get a position.

    `prefix` gives those prefix tokens, each [1, tokens, D], before positions are added;
    `positions` what may be added to tokens [B, k + P, D] of images [B, C, H, W]: the learned
    positions [1, k + P, D] as they are, or as the model interpolates them.
    """

    projection: nn.Conv2d
    prefix: Callable[[], Sequence[Tensor]]
    positions: Callable[[Tensor, Tensor], Iterable[Tensor]]

    @property
    def prefix_count(self) -> int:
        """How many prefix tokens get a position."""
        return sum(part.shape[1] for part in self.prefix())

    def project(self, images: Tensor, weight: Tensor) -> Tensor:
        """The patch projection with another weight and no bias: [B, C, H, W] -> [B, D, h, w]."""
        projected: Tensor = self.projection._conv_forward(images, weight, None)
        return projected

    def project_back(self, patches: Tensor, weight: Tensor, images: Tensor) -> Tensor:
        """The transposed patch projection: [B, D, P] -> the shape of the images."""
        with torch.enable_grad():
            inputs = torch.zeros_like(images).requires_grad_(True)
            projected = self.project(inputs, weight)
            (back,) = torch.autograd.grad(projected, inputs, patches.reshape_as(projected))
        return back

    def check_projection(self, images: Tensor, patches: Tensor) -> None:
        """Refuse a projection that does anything but apply its weight to the images."""
        projected = self.projection._conv_forward(
            images, self.projection.weight, self.projection.bias
        )
        _check("patch embedding", projected.flatten(2).mT, patches)

    def operands(self, patches: Tensor, embedded: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """Both operands of "tokens + positions", [B, k + P, D]: the last P tokens are the patches.

        What was added must be the model's positions, or the stem is refused.
        """
        prefix = [part.expand(len(patches), -1, -1) for part in self.prefix()]
        tokens = torch.cat([*prefix, patches], dim=1)
        added = self.summed(embedded, patches.shape[1]) - tokens
        off = float("inf")
        for positions in self.positions(tokens, images):
            if positions.shape[1:] == added.shape[1:]:
                off = min(off, deviation(tokens + positions, tokens + added, tokens))
            if off <= tolerance(added.dtype):
                return tokens, added
        raise _unknown("patch embedding", off)

    def summed(self, tokens: Tensor, patches: int) -> Tensor:
        """Those of the embedded tokens that have a position: [B, N, D] -> [B, k + P, D]."""
        return torch.cat([tokens[:, : self.prefix_count], tokens[:, -patches:]], dim=1)


@dataclass(frozen=True)
class Anatomy:
    """All parts of a ViT; the stem may be unknown (a sentence), only pixels need it."""

    stem: StemView | str
    pre_norm: nn.Module
    blocks: tuple[BlockView, ...]
    head: HeadView


def _check(
    part: str,
    recomputed: Tensor,
    recorded: Tensor,
    base: Tensor | float = 0.0,
    *,
    float32_softmax: bool = False,
) -> None:
    with torch.no_grad():
        off = deviation(recomputed, recorded, base)
    if not off <= tolerance(recorded.dtype, float32_softmax):
        raise _unknown(part, off)


def _unknown(part: str, off: float) -> FaithscopeError:
    return FaithscopeError(
        f"The {part} does something faithscope does not know (recomputed output off by {off:.1e}): "
        "methods that need every part of the model cannot be trusted with it. Use methods that "
        "read only attention or gradients."
    )


def find_anatomy(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module, AttentionView]],
    head: HeadView | str,
) -> Anatomy | str:
    """Name every part of a ViT, or say in a sentence which part is not known."""
    if not blocks:
        return "its blocks were not found"
    views = []
    for name, block, attention in blocks:
        view = _find_block(name, block, attention)
        if isinstance(view, str):
            return view
        views.append(view)
    if isinstance(head, str):
        return head
    pre_norm = getattr(module, "norm_pre", None) or nn.Identity()
    return Anatomy(_find_stem(module), pre_norm, tuple(views), head)


def _find_block(name: str, block: nn.Module, attention: AttentionView) -> BlockView | str:
    parts: dict[str, Any] = {role: _first(block, paths) for role, paths in _NEEDED.items()}
    parts["output"] = _first(attention.module, ("proj", "o_proj", "out_proj")) or _first(
        block, ("attention.output.dense",)
    )
    for role, part in parts.items():
        linear = role in ("output", "fc1", "fc2")
        if part is None or (linear and not isinstance(part, nn.Linear)):
            return f"the block '{name}' has no part known as its {role}"
    if parts["fc1"].out_features != parts["fc2"].in_features:
        return f"the block '{name}' has a gated MLP"
    if attention.weight is None:
        return f"the attention view '{attention.name}' gives no weight"
    parts |= {role: _first(block, paths) or nn.Identity() for role, paths in _OPTIONAL.items()}
    parts["output_norm"] = getattr(attention.module, "norm", None) or nn.Identity()
    return BlockView(name, attention, **parts)


def find_head(module: nn.Module, *, prefix_tokens: int, readout: str) -> HeadView | str:
    """Find the norm and the linear layers behind the last block, or say why they are not known."""
    norm = _first(module, ("norm", "layernorm", "encoder.ln")) or _in_base(module, "layernorm")
    feature_norm = _first(module, ("fc_norm",)) or _in_base(module, "pooler.layernorm")
    linears: list[Any] = [_first(module, ("head", "classifier", "cls_classifier"))]
    if linears[0] is None:
        heads = getattr(module, "heads", None)  # torchvision's, linear if it has one layer only
        linears = list(heads) if isinstance(heads, nn.Sequential) and len(heads) == 1 else []
    second = _first(module, ("head_dist", "distillation_classifier"))
    linears += [] if second is None else [second]
    if not linears or not all(isinstance(layer, nn.Linear) for layer in linears):
        return "its head is not one linear layer at the top of the model"
    readers: tuple[str, ...] = (readout,)
    if second is not None:
        readers = ("class", "distillation")
    elif linears[0].in_features == 2 * _width(norm):
        readers = ("class", "mean")
    return HeadView(
        norm or nn.Identity(), readers, prefix_tokens, feature_norm or nn.Identity(), tuple(linears)
    )


def _width(norm: Any) -> int:
    shape = getattr(norm, "normalized_shape", None)
    return shape[0] if shape else 0


def _find_stem(module: nn.Module) -> StemView | str:
    convolutions = [child for child in module.modules() if isinstance(child, nn.Conv2d)]
    if len(convolutions) != 1:
        return f"its patch embedding has {len(convolutions)} convolutions, not one"
    norm = _first(module, ("patch_embed.norm",)) or nn.Identity()
    if not isinstance(norm, nn.Identity):
        return "its patch embedding has a norm"
    # Tokens that are put in front after positions are added (no_embed_class) are no operand of it.
    owners = [] if getattr(module, "no_embed_class", False) else _owners(module, _PREFIX_TOKENS)
    positions = _owners(module, _POSITIONS)
    stride = convolutions[0].stride

    def added(tokens: Tensor, images: Tensor) -> Iterator[Tensor]:
        grid = images.shape[-2] // int(stride[0]), images.shape[-1] // int(stride[1])
        for child, name in positions:
            yield from _positions(child, getattr(child, name), tokens, images, grid)
        if not positions:
            yield torch.zeros_like(tokens[:1])

    return StemView(
        convolutions[0], lambda: [getattr(child, name) for child, name in owners], added
    )


def _positions(
    owner: Any, learned: Tensor, tokens: Tensor, images: Tensor, grid: tuple[int, int]
) -> Iterator[Tensor]:
    """Learned positions as they are, and as their library interpolates them for other images."""
    yield learned
    if getattr(owner, "dynamic_img_size", False):  # timm
        from timm.layers import resample_abs_pos_embed

        before = 0 if owner.no_embed_class else owner.num_prefix_tokens
        old = owner.patch_embed.grid_size
        yield resample_abs_pos_embed(learned, list(grid), list(old), before)
    if hasattr(owner, "interpolate_pos_encoding"):  # Hugging Face
        with suppress(TypeError, ValueError, RuntimeError):  # of images that are not square
            yield owner.interpolate_pos_encoding(tokens, *images.shape[-2:])


def _owners(module: nn.Module, names: Sequence[str]) -> list[tuple[nn.Module, str]]:
    """Which submodule keeps each of these parameters, in the order of the names."""
    return [
        (child, name)
        for name in names
        for child in module.modules()
        if child._parameters.get(name) is not None
    ]


def _first(module: nn.Module, paths: Sequence[str]) -> Any:
    """The first of these dotted attributes that is there."""
    for path in paths:
        found: Any = module
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return found
    return None


def _in_base(module: nn.Module, path: str) -> Any:
    """The same in a child: Hugging Face keeps the encoder in one, such as `vit` or `deit`."""
    for child in module.children():
        found = _first(child, (path,))
        if found is not None:
            return found
    return None
