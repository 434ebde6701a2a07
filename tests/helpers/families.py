"""Tiny models of every family, built on the spot, and what faithscope must find in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
import transformers
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Attention, ParallelThingsBlock, VisionTransformer
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

from faithscope import FaithscopeError

DEPTH, HEADS, CLASSES = 3, 2, 5
TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": DEPTH, "num_heads": HEADS}
TIMM |= {"mlp_ratio": 2, "num_classes": CLASSES}


def timm_vit(**options: Any) -> nn.Module:
    return VisionTransformer(**{**TIMM, **options})


def hf(kind: str, model: str = "", **options: Any) -> nn.Module:
    tiny = {"image_size": 32, "patch_size": 8, "hidden_size": 24, "intermediate_size": 48}
    tiny |= {"num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "num_labels": CLASSES}
    config = getattr(transformers, f"{kind}Config")(**{**tiny, **options})
    made: nn.Module = getattr(transformers, model or f"{kind}ForImageClassification")(config)
    return made


def torchvision_vit() -> nn.Module:
    return TorchvisionViT(32, 8, DEPTH, HEADS, hidden_dim=24, mlp_dim=48, num_classes=CLASSES)


def images_of(size: tuple[int, int], count: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, *size, generator=generator, dtype=torch.float64).to(dtype)


def seeded(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    """The model in evaluation mode, its weights far from their timid initial values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return module.to(dtype)


@dataclass(frozen=True)
class Family:
    """How to build a tiny model, and the facts its adapter has to find."""

    build: Callable[[], nn.Module]
    size: tuple[int, int] = (32, 32)
    patch: tuple[int, int] = (8, 8)
    prefix: int = 1
    readout: str = "class"

    @property
    def grid(self) -> tuple[int, int]:
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    def module(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        return seeded(self.build, dtype)

    def images(self, count: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
        return images_of(self.size, count, dtype)


FAMILIES = {
    "timm_vit": Family(timm_vit),
    "timm_patch4": Family(lambda: timm_vit(patch_size=4), patch=(4, 4)),
    "timm_wide": Family(lambda: timm_vit(img_size=(32, 48)), size=(32, 48)),
    "timm_oblong_patches": Family(lambda: timm_vit(patch_size=(8, 4)), patch=(8, 4)),
    "timm_no_qkv_bias": Family(lambda: timm_vit(qkv_bias=False)),
    "timm_layer_scale_qk_norm": Family(lambda: timm_vit(init_values=0.1, qk_norm=True)),
    "timm_registers": Family(lambda: timm_vit(reg_tokens=4), prefix=5),
    "timm_pooled": Family(
        lambda: timm_vit(class_token=False, global_pool="avg"), prefix=0, readout="mean"
    ),
    "timm_distilled": Family(lambda: VisionTransformerDistilled(**TIMM), prefix=2),
    "hf_vit": Family(lambda: hf("ViT")),
    "hf_deit": Family(lambda: hf("DeiT"), prefix=2),
    "hf_deit_teacher": Family(
        lambda: hf("DeiT", "DeiTForImageClassificationWithTeacher"), prefix=2
    ),
    "hf_dinov2_registers": Family(
        lambda: hf("Dinov2WithRegisters", num_register_tokens=4, mlp_ratio=2), prefix=5
    ),
    "torchvision_vit": Family(torchvision_vit),
}


class GatedAttention(Attention):
    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        return super().forward(tokens, **options) * tokens.sigmoid()


def timm_gated() -> nn.Module:
    module = timm_vit()
    for block in module.blocks:
        block.attn.__class__ = GatedAttention
    return module


def timm_pooled_with_prefix() -> nn.Module:
    module = timm_vit(global_pool="avg")
    module.pool_include_prefix = True
    return module


def timm_model(name: str, **options: Any) -> nn.Module:
    module: nn.Module = timm.create_model(name, num_classes=CLASSES, **options)
    return module


SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (1, 1), "num_heads": (1, 2)}
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}

UNADAPTABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "rope": (lambda: timm_model("eva02_tiny_patch14_224", **SMALL), "'blocks.1.attn'"),
    "relative_positions": (
        lambda: timm_model("vit_relpos_small_patch16_224", **SMALL),
        "'blocks.1.attn'",
    ),
    "gated_attention": (timm_gated, "'blocks.2.attn'"),
    "hf_relative_positions": (
        lambda: hf("Beit", use_relative_position_bias=True),
        "attention",
    ),
    "talking_heads": (lambda: timm_model("cait_xxs24_224", **SMALL), "prefix_tokens"),
    "parallel_attentions": (lambda: timm_vit(block_fn=ParallelThingsBlock), "attention=[…]"),
    "windows": (lambda: timm_model("swin_tiny_patch4_window7_224", **SWIN), "prefix_tokens"),
    "attention_pooling": (lambda: timm_vit(global_pool="map"), "readout"),
    "pooled_prefix": (timm_pooled_with_prefix, "readout"),
    "convolutions": (lambda: timm_model("resnet10t"), "attention=[…], prefix_tokens=…"),
}
"""Models whose attention faithscope does not know, and what the refusal has to name."""


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Expect a FaithscopeError: one line, one sentence or two, that holds these words."""
    with pytest.raises(FaithscopeError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert message[-1] in ".…"
    for word in words:
        assert word in message


class TwoConvolutions(nn.Module):
    """A patch embedding of two convolutions, with what timm asks of one."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.img_size, self.patch_size, self.grid_size = (32, 32), (8, 8), (4, 4)
        self.first, self.second = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, width, 2, 2)

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.second(self.first(images).relu()).flatten(2).mT
        return tokens


def timm_convolutional_stem(**options: Any) -> nn.Module:
    module = timm_vit(**options)
    module.patch_embed = TwoConvolutions()
    return module


VARIANTS = {
    "registers_without_positions": Family(
        lambda: timm_vit(no_embed_class=True, reg_tokens=2), prefix=3
    ),
    "class_token_without_position": Family(lambda: timm_vit(no_embed_class=True)),
    "pooled_with_class_token": Family(lambda: timm_vit(global_pool="avg"), readout="mean"),
    "pooled_without_feature_norm": Family(
        lambda: timm_vit(global_pool="avg", fc_norm=False), readout="mean"
    ),
    "pooled_with_registers": Family(
        lambda: timm_vit(global_pool="avg", class_token=False, reg_tokens=2),
        prefix=2,
        readout="mean",
    ),
    "norm_before_blocks": Family(lambda: timm_vit(pre_norm=True)),
    "norms_inside_branches": Family(lambda: timm_vit(scale_attn_norm=True, scale_mlp_norm=True)),
    "no_bias_in_projections": Family(lambda: timm_vit(proj_bias=False, qkv_bias=False)),
    "query_and_key_norms": Family(lambda: timm_vit(qk_norm=True)),
    "layer_scale": Family(lambda: timm_vit(init_values=0.3)),
    "odd_mlp_ratio": Family(lambda: timm_vit(mlp_ratio=1.7)),
    "narrow_mlp": Family(lambda: timm_vit(mlp_ratio=1)),
    "three_heads": Family(lambda: timm_vit(num_heads=3)),
    "one_head": Family(lambda: timm_vit(num_heads=1)),
    "many_heads": Family(lambda: timm_vit(num_heads=8)),
    "one_block": Family(lambda: timm_vit(depth=1)),
    "five_blocks": Family(lambda: timm_vit(depth=5)),
    "relu": Family(lambda: timm_vit(act_layer="relu")),
    "quick_gelu": Family(lambda: timm_vit(act_layer="quick_gelu")),
    "no_positions": Family(lambda: timm_vit(pos_embed="none")),
    "other_size": Family(lambda: timm_vit(dynamic_img_size=True), size=(48, 40)),
    "hf_vit_msn": Family(lambda: hf("ViTMSN")),
    "hf_dinov2": Family(lambda: hf("Dinov2", mlp_ratio=2)),
    "hf_no_qkv_bias": Family(lambda: hf("ViT", qkv_bias=False)),
    "hf_silu": Family(lambda: hf("ViT", hidden_act="silu")),
}
"""Further ViTs that have the canonical parts; every method must be right for each."""


def blocks_of(module: nn.Module) -> list[nn.Module]:
    for path in ("blocks", "encoder.layers"):
        if hasattr(module, path.split(".")[0]):
            return list(module.get_submodule(path))
    lists = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
    return list(next(child for child in lists if len(child) == module.config.num_hidden_layers))


def state_of(module: nn.Module, *, but: str = "nothing") -> dict[str, object]:
    """Everything that an explanation might disturb, down to the identity of tensors."""
    state: dict[str, object] = {"grad": torch.is_grad_enabled()}
    state["modes"] = (torch.is_inference_mode_enabled(), torch.get_float32_matmul_precision())
    state["tf32"] = torch.backends.cudnn.allow_tf32
    for name, child in module.named_modules():
        for key, value in vars(child).items():
            if isinstance(value, dict):
                state[f"{name}:{key}"] = [(k, id(v)) for k, v in value.items()]
            else:
                state[f"{name}:{key}"] = (id(value), repr(value)[:80])
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        bits = tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        state[f"tensor {name}"] = (
            id(tensor),
            tensor._version,
            tensor.dtype,
            tensor.requires_grad,
            id(tensor.grad),
            None if tensor.grad is None else tensor.grad.sum().item(),
            bits,
        )
    config = getattr(module, "config", None)
    state["kernel"] = getattr(config, "_attn_implementation", None)
    return {key: value for key, value in state.items() if not key.endswith(but)}


def unsettled(module: nn.Module) -> nn.Module:
    """In training mode but for some parts, some of its weights frozen, with a hook of its own."""
    module.train()
    parts = list(module.modules())
    for part in parts[::3]:
        part.training = False
    for parameter in list(module.parameters())[::2]:
        parameter.requires_grad_(False)
    parts[1].register_forward_hook(lambda *_: None)
    return module
