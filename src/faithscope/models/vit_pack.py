"""Vision Transformers, many at once: every tensor has a model axis M in front.

One model is M = 1. Models of a pack have the same shape and nothing else in common, so a matrix
product of one becomes a batched product of all, and one pass trains them together. A model is
timm's `VisionTransformer` (class token, pre-norm blocks), parameter for parameter: taken out of
its pack it is an ordinary module, which everything that explains modules can explain.

    images ─ patches ─ project ─ blocks (attend, think) ─ norm ─ class token ─ logits
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-6
"""Of layer norms, as timm has it."""

Parameters = Mapping[str, Tensor]
"""Parameters by timm's names, each [M, …]."""
Flat = tuple[Tensor, Tensor]
"""The same in two pieces [M, P]: matrices, which decay, and all that does not."""


@dataclass(frozen=True)
class ViTShape:
    """The sizes of a Vision Transformer."""

    size: tuple[int, int]
    channels: int
    classes: int
    dim: int = 192
    depth: int = 6
    heads: int = 3
    mlp: float = 3.0
    patch: int = 4

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.size[0] // self.patch, self.size[1] // self.patch

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return self.grid[0] * self.grid[1] + 1

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's name and shape, without the model axis.

        >>> shape = ViTShape((32, 32), 3, 10)
        >>> sum(math.prod(size) for size in shape.parameters().values())
        2250058
        """
        d, hidden = self.dim, int(self.dim * self.mlp)
        shapes: dict[str, tuple[int, ...]] = {
            "cls_token": (1, 1, d),
            "pos_embed": (1, self.tokens, d),
            "patch_embed.proj.weight": (d, self.channels, self.patch, self.patch),
            "patch_embed.proj.bias": (d,),
        }
        for block in range(self.depth):
            layers: dict[str, tuple[int, ...]] = {
                **{"norm1": (d,), "attn.qkv": (3 * d, d), "attn.proj": (d, d)},
                **{"norm2": (d,), "mlp.fc1": (hidden, d), "mlp.fc2": (d, hidden)},
            }
            for name, size in layers.items():
                shapes[f"blocks.{block}.{name}.weight"] = size
                shapes[f"blocks.{block}.{name}.bias"] = size[:1]
        shapes |= {"norm.weight": (d,), "norm.bias": (d,)}
        return shapes | {"head.weight": (self.classes, d), "head.bias": (self.classes,)}

    def halves(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """The parameters that decay (matrices), and those that do not."""
        every = self.parameters()
        heavy = {
            name: size
            for name, size in every.items()
            if name.endswith("weight") and "norm" not in name
        }
        return heavy, {name: size for name, size in every.items() if name not in heavy}

    def module(self) -> nn.Module:
        """One such model as an ordinary module, untrained."""
        from timm.models.vision_transformer import VisionTransformer

        made: nn.Module = VisionTransformer(
            img_size=self.size,
            patch_size=self.patch,
            in_chans=self.channels,
            num_classes=self.classes,
            embed_dim=self.dim,
            depth=self.depth,
            num_heads=self.heads,
            mlp_ratio=self.mlp,
        )
        return made


def initial(shape: ViTShape, seed: int) -> dict[str, Tensor]:
    """One model as it starts, drawn from `seed` as timm draws: small weights, no biases."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, size in shape.parameters().items():
        value = torch.zeros(size)
        if "norm" in name and name.endswith("weight"):
            value.fill_(1.0)
        elif name.startswith("patch_embed"):
            bound = 1 / math.sqrt(shape.channels * shape.patch**2)
            value.uniform_(-bound, bound, generator=generator)
        elif name == "cls_token":
            value.normal_(0.0, 1e-6, generator=generator)
        elif name.endswith("weight") or name == "pos_embed":
            nn.init.trunc_normal_(value, std=0.02, generator=generator)
        made[name] = value
    return made


def flatten(shape: ViTShape, models: Sequence[Mapping[str, Tensor]]) -> Flat:
    """Models as the two pieces of a pack, in which an optimiser takes them in two strokes."""
    heavy, light = (
        torch.stack([torch.cat([one[name].flatten() for name in half]) for one in models])
        for half in shape.halves()
    )
    return heavy, light


def unflatten(shape: ViTShape, flat: Flat) -> dict[str, Tensor]:
    """The parameters by name, [M, …], as views; their gradients come back in one piece."""
    found = {}
    for piece, half in zip(flat, shape.halves(), strict=True):
        parts = torch.split(piece, [math.prod(size) for size in half.values()], dim=1)
        for (name, size), part in zip(half.items(), parts, strict=True):
            found[name] = part.reshape(len(piece), *size)
    return found


def answer(shape: ViTShape, p: Parameters, images: Tensor, dtype: torch.dtype) -> Tensor:
    """Logits of every model on its own images.

    Matrix products are in `dtype`; what is summed up (the tokens between blocks, norms, logits) is
    in the type of the parameters.

    Shapes: images [M, B, C, H, W], normalised -> [M, B, classes].
    """
    models, batch = images.shape[:2]
    rows, columns = shape.grid
    patches = images.view(models, batch, -1, rows, shape.patch, columns, shape.patch)
    patches = patches.permute(0, 1, 3, 5, 2, 4, 6).reshape(models, batch * rows * columns, -1)
    weight, bias = p["patch_embed.proj.weight"].flatten(2), p["patch_embed.proj.bias"]
    x = _linear(patches, weight, bias, dtype).view(models, batch, rows * columns, -1)
    first = p["cls_token"].expand(-1, batch, 1, -1)
    x = (torch.cat((first.to(x.dtype), x), 2) + p["pos_embed"]).flatten(1, 2)
    for block in range(shape.depth):
        part = {
            name: (p[f"blocks.{block}.{name}.weight"], p[f"blocks.{block}.{name}.bias"])
            for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        }
        mixed = _attend(shape, _linear(_norm(x, *part["norm1"]), *part["attn.qkv"], dtype), batch)
        x = x + _linear(mixed, *part["attn.proj"], dtype)
        hidden = functional.gelu(_linear(_norm(x, *part["norm2"]), *part["mlp.fc1"], dtype))
        x = x + _linear(hidden, *part["mlp.fc2"], dtype)
    read = x.view(models, batch, shape.tokens, -1)[:, :, 0]  # a norm is of one token alone
    read = _norm(read, p["norm.weight"], p["norm.bias"])
    return _linear(read, p["head.weight"], p["head.bias"], dtype).to(x.dtype)


def _linear(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows through a layer of each model: [M, R, in], [M, out, in], [M, out] -> [M, R, out]."""
    made: Tensor = _Linear.apply(x.to(dtype), weight.to(dtype), bias.to(dtype))
    return made


class _Linear(torch.autograd.Function):
    """torch.baddbmm, whose own backward pass gives the gradient of the weights transposed.

    To turn it round again took an eighth of a training step on an H200.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.mT @ x, gradient.sum(1)


def _norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm with each model's own weights: [M, R, D], [M, D]."""
    plain = functional.layer_norm(x, x.shape[-1:], eps=EPSILON)
    return plain * weight[:, None] + bias[:, None]


def _attend(shape: ViTShape, projected: Tensor, batch: int) -> Tensor:
    """Attention within each image: [M, B·N, 3·D] -> [M, B·N, D]."""
    models, width = projected.shape[0], shape.dim // shape.heads
    parts = projected.view(models * batch, shape.tokens, 3, shape.heads, width)
    q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
    mixed = functional.scaled_dot_product_attention(q, k, v)
    return mixed.transpose(1, 2).reshape(models, batch * shape.tokens, shape.dim)
