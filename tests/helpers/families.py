"""Tiny models of every family, built on the spot, and what faithscope must find in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import timm
import torch
import transformers
from timm.layers import GluMlp, RmsNorm, SwiGLU, SwiGLUPacked
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import (
    Attention,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

import faithscope as fs
from faithscope import FaithscopeError
from faithscope.models import Model

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
    """How to build a tiny model, and what faithscope has to find in it."""

    build: Callable[[], nn.Module]
    size: tuple[int, int] = (32, 32)
    patch: tuple[int, int] = (8, 8)
    prefix: int = 1
    readout: str = "class"
    depth: int = DEPTH
    told: Mapping[str, Any] = field(default_factory=dict)
    """What fs.wrap must be told."""

    @property
    def grid(self) -> tuple[int, int]:
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    def module(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        return seeded(self.build, dtype)

    def model(self) -> Model:
        return fs.wrap(self.module(), **self.told)

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


def timm_model(name: str, **options: Any) -> nn.Module:
    module: nn.Module = timm.create_model(name, num_classes=CLASSES, **options)
    return module


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
    "as_many_tokens_as_channels": Family(
        lambda: timm_vit(embed_dim=32, class_token=False, global_pool="avg"),
        prefix=0,
        readout="mean",
    ),
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
    "one_block": Family(lambda: timm_vit(depth=1), depth=1),
    "five_blocks": Family(lambda: timm_vit(depth=5), depth=5),
    "relu": Family(lambda: timm_vit(act_layer="relu")),
    "quick_gelu": Family(lambda: timm_vit(act_layer="quick_gelu")),
    "no_positions": Family(lambda: timm_vit(pos_embed="none")),
    "other_size": Family(lambda: timm_vit(dynamic_img_size=True), size=(48, 40)),
    "hf_vit_msn": Family(lambda: hf("ViTMSN")),
    "hf_dinov2": Family(lambda: hf("Dinov2", mlp_ratio=2)),
    "hf_no_qkv_bias": Family(lambda: hf("ViT", qkv_bias=False)),
    "hf_silu": Family(lambda: hf("ViT", hidden_act="silu")),
}
"""Further ViTs of the usual parts."""


SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}


def small(name: str, **options: Any) -> nn.Module:
    return timm_model(name, **{**SMALL, **options})


def eva(**options: Any) -> nn.Module:
    return Eva(**{**SMALL, "num_classes": CLASSES, "mlp_ratio": 2, **options})


def eva_gated() -> nn.Module:
    module = eva(use_rot_pos_emb=True)
    for block in module.blocks:
        block.attn.gate = nn.Linear(24, 24)
    return module


def hf_towers(kind: str) -> nn.Module:
    """A classifier on the vision tower of a model of images and texts."""
    tiny = {"image_size": 32, "patch_size": 8, "hidden_size": 24, "intermediate_size": 48}
    tiny |= {"num_hidden_layers": 2, "num_attention_heads": HEADS}
    vision = getattr(transformers, f"{kind}VisionConfig")(**tiny).to_dict()
    config = getattr(transformers, f"{kind}Config")(vision_config=vision, num_labels=CLASSES)
    made: nn.Module = getattr(transformers, f"{kind}ForImageClassification")(config)
    return made


class GatedAttention(Attention):
    """Attention whose output is gated by its input."""

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        return super().forward(tokens, **options) * self.gate(tokens)


def timm_gated() -> nn.Module:
    module = timm_vit()
    for block in module.blocks:
        block.attn.__class__ = GatedAttention
        block.attn.gate = nn.Sigmoid()
    return module


def timm_pooled_with_prefix() -> nn.Module:
    module = timm_vit(global_pool="avg")
    module.pool_include_prefix = True
    return module


class InDict(nn.Module):
    """Somebody's own module around a classifier, which answers with a dict."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(images)}


class Probe(nn.Module):
    """A head on what a backbone gives: its class token, or the mean of its patches."""

    def __init__(
        self, backbone: nn.Module, head: nn.Module | None = None, *, mean: bool = False
    ) -> None:
        super().__init__()
        self.backbone, self.mean = backbone, mean
        self.fc = nn.Linear(24, CLASSES) if head is None else head

    def forward(self, images: Tensor) -> Tensor:
        if self.mean:
            features = self.backbone.forward_features(images)[:, 1:].mean(1)
        else:
            features = self.backbone(images)
        features = getattr(features, "pooler_output", features)
        logits: Tensor = self.fc(features)
        return logits


def mlp_head() -> nn.Module:
    head = nn.Sequential(
        nn.Linear(24, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, CLASSES)
    )
    head[1].running_mean.normal_(0, 0.1)
    head[1].running_var.uniform_(0.5, 2)
    return head


class Normalise(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        mean, std = images.new_tensor([0.49, 0.46, 0.41]), images.new_tensor([0.2, 0.3, 0.4])
        return (images - mean[:, None, None]) / std[:, None, None]


class ClipBlock(nn.Module):
    """A block as open_clip has it: torch's own attention and names of its own."""

    def __init__(self, width: int = 24, heads: int = HEADS) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 2 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.ln_1(tokens)
        tokens = tokens + self.attn(normed, normed, normed, need_weights=False)[0]
        mixed: Tensor = tokens + self.mlp(self.ln_2(tokens))
        return mixed


class ClipTower(nn.Module):
    """An image tower as open_clip has it: a norm before the blocks, a projection behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_size, self.image_size = (8, 8), (32, 32)
        self.conv1 = nn.Conv2d(3, 24, 8, 8, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(24))
        self.positional_embedding = nn.Parameter(torch.zeros(17, 24))
        self.ln_pre, self.ln_post = nn.LayerNorm(24), nn.LayerNorm(24)
        self.resblocks = nn.ModuleList(ClipBlock() for _ in range(2))
        self.proj = nn.Parameter(torch.zeros(24, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv1(images).reshape(len(images), 24, -1).permute(0, 2, 1)
        first = self.class_embedding.view(1, 1, -1).expand(len(images), -1, -1)
        tokens = torch.cat([first, patches], dim=1) + self.positional_embedding
        tokens = self.ln_pre(tokens)
        for block in self.resblocks:
            tokens = block(tokens)
        logits: Tensor = self.ln_post(tokens)[:, 0] @ self.proj
        return logits


def pooled(build: Callable[[], nn.Module], prefix: int = 1, **facts: Any) -> Family:
    """A family of two blocks whose head reads the mean of the patches."""
    return Family(build, prefix=prefix, **{"readout": "mean", "depth": 2, **facts})


WRAPPED = {
    "in_dict": Family(lambda: InDict(timm_vit())),
    "data_parallel": Family(lambda: nn.DataParallel(timm_vit())),
    "normalised_first": Family(lambda: nn.Sequential(Normalise(), timm_vit())),
    "probe": Family(lambda: Probe(timm_vit(num_classes=0))),
    "probe_of_the_mean": Family(lambda: Probe(timm_vit(num_classes=0), mean=True), readout="mean"),
    "mlp_head": Family(lambda: Probe(timm_vit(num_classes=0), mlp_head())),
    "pooled_in_dict": Family(lambda: InDict(timm_vit(global_pool="avg")), readout="mean"),
}
"""ViTs inside somebody's own module."""

OTHERS = {
    "eva02": pooled(lambda: small("eva02_tiny_patch14_224")),
    "eva_giant": pooled(lambda: small("eva_giant_patch14_224")),
    "eva_post_norm": pooled(lambda: eva(use_post_norm=True)),
    "eva_gated": pooled(eva_gated),
    "eva_scaled_swiglu": pooled(
        lambda: eva(use_rot_pos_emb=True, swiglu_mlp=True, scale_mlp=True, scale_attn_inner=True)
    ),
    "grouped_queries": pooled(
        lambda: eva(
            embed_dim=32,
            num_heads=4,
            num_kv_heads=2,
            use_rot_pos_emb=True,
            attn_type="rope",
            qkv_fused=False,
        )
    ),
    "rope": Family(lambda: small("vit_small_patch16_rope_224"), depth=2),
    "rope_mixed": Family(lambda: small("vit_small_patch16_rope_mixed_224"), depth=2),
    "dinov3": pooled(lambda: small("vit_small_patch16_dinov3"), 5),
    "dinov3_plus": pooled(lambda: small("vit_small_plus_patch16_dinov3"), 5),
    "pe_core": Family(lambda: small("vit_pe_core_tiny_patch16_384"), readout="attention", depth=2),
    "pe_spatial": pooled(lambda: small("vit_pe_spatial_tiny_patch16_512")),
    "beit": pooled(lambda: small("beit_base_patch16_224")),
    "beit_shared_bias": pooled(
        lambda: Beit(**SMALL, num_classes=CLASSES, use_shared_rel_pos_bias=True)
    ),
    "relative_positions": pooled(lambda: small("vit_relpos_small_patch16_224"), 0),
    "shared_relative_positions": pooled(lambda: small("vit_srelpos_small_patch16_224"), 0),
    "post_norm_relative_positions": pooled(lambda: small("vit_relpos_base_patch16_rpn_224"), 0),
    "siglip": Family(
        lambda: small("vit_base_patch16_siglip_224"), prefix=0, readout="attention", depth=2
    ),
    "attention_pool": Family(lambda: timm_vit(global_pool="map"), readout="attention"),
    "pooled_prefix": Family(timm_pooled_with_prefix, readout="all"),
    "parallel": Family(lambda: timm_vit(block_fn=ParallelThingsBlock)),
    "parallel_scaling": Family(lambda: timm_vit(block_fn=ParallelScalingBlock)),
    "parallel_scaling_fused": Family(
        lambda: timm_vit(block_fn=partial(ParallelScalingBlock, fuse_out_proj=True))
    ),
    "post_norm": Family(lambda: timm_vit(block_fn=ResPostBlock, init_values=1)),
    "swiglu": Family(lambda: timm_vit(mlp_layer=SwiGLU)),
    "swiglu_packed": Family(lambda: timm_vit(mlp_layer=SwiGLUPacked)),
    "glu": Family(lambda: timm_vit(mlp_layer=GluMlp)),
    "rms_norm": Family(lambda: timm_vit(norm_layer=RmsNorm)),
    "gated_attention": Family(timm_gated),
    "open_clip": Family(ClipTower, depth=2),
    "hf_beit": Family(lambda: hf("Beit"), readout="mean"),
    "hf_beit_bias": Family(lambda: hf("Beit", use_relative_position_bias=True), readout="mean"),
    "hf_beit_shared_bias": Family(
        lambda: hf("Beit", use_shared_relative_position_bias=True), readout="mean"
    ),
    "hf_data2vec": Family(lambda: hf("Data2VecVision"), readout="mean"),
    "hf_ijepa": Family(lambda: hf("IJepa"), prefix=0, readout="mean"),
    "hf_clip": pooled(lambda: hf_towers("CLIP")),
    "hf_siglip": pooled(lambda: hf_towers("Siglip"), 0),
    "hf_swiglu": Family(lambda: hf("Dinov2", mlp_ratio=2, use_swiglu_ffn=True)),
    "hf_siglip_pool": Family(
        lambda: Probe(hf("SiglipVision", "SiglipVisionModel", num_hidden_layers=2)),
        prefix=0,
        readout="attention",
        depth=2,
    ),
    "hf_dinov3": Family(
        lambda: Probe(hf("DINOv3ViT", "DINOv3ViTModel", num_register_tokens=2)), prefix=3
    ),
    "hf_dinov3_gated": Family(
        lambda: Probe(hf("DINOv3ViT", "DINOv3ViTModel", use_gated_mlp=True)), prefix=1
    ),
    **WRAPPED,
}
"""ViTs with other parts: rotary and relative positions, gates, other norms, blocks and heads."""

EVERY = {**FAMILIES, **VARIANTS, **OTHERS}


class Odd(Attention):
    """Softmax attention that is written out, to be spoiled."""

    def split(self, tokens: Tensor) -> tuple[Tensor, ...]:
        joint = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return joint.unbind(0)

    def chances(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def forward(self, tokens: Tensor, **_: Any) -> Tensor:
        query, key, value = self.split(tokens)
        mixed = self.chances(query * self.scale @ key.mT) @ value
        result: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return result


class Talking(Odd):
    def chances(self, scores: Tensor) -> Tensor:
        mix = torch.tensor([[0.7, 0.3], [0.4, 0.6]]).to(scores)
        return (scores.softmax(-1).permute(0, 2, 3, 1) @ mix).permute(0, 3, 1, 2)


class Sparse(Odd):
    def chances(self, scores: Tensor) -> Tensor:
        found = scores.softmax(-1)
        return found * (found > 0.05)


class Forgetful(Odd):
    def chances(self, scores: Tensor) -> Tensor:
        found = scores.softmax(-1).clone()
        found[..., 3] = 0
        return found


class ForgetfulByView(Odd):
    def chances(self, scores: Tensor) -> Tensor:
        found = scores.softmax(-1).clone()
        found[..., 3].zero_()
        return found


class OverQueries(Odd):
    def chances(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


class SoftmaxByHand(Odd):
    def chances(self, scores: Tensor) -> Tensor:
        found = (scores - scores.amax(-1, keepdim=True)).exp()
        return found / found.sum(-1, keepdim=True)


class Transposed(Odd):
    """Channels look at channels, each with all tokens."""

    def forward(self, tokens: Tensor, **_: Any) -> Tensor:
        query, key, value = (part.mT for part in self.split(tokens))
        mixed = (query * self.scale @ key.mT).softmax(-1) @ value
        result: Tensor = self.proj(mixed.permute(0, 3, 1, 2).flatten(2))
        return result


def odd(kind: type[Odd], **options: Any) -> nn.Module:
    module = timm_vit(**options)
    for block in module.blocks:
        block.attn.__class__ = kind
    return module


AS_MANY = {"embed_dim": 32, "class_token": False, "global_pool": "avg"}
"""16 tokens, and as many channels in each head."""
SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 24, "num_heads": (1, 2)}

UNADAPTABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "talking_heads": (partial(odd, Talking), "changed by 'permute' before they weigh"),
    "cait": (partial(small, "cait_xxs24_224"), "(talking heads)"),
    "sparse": (partial(odd, Sparse), "changed by 'gt' before they weigh"),
    "forgetful": (partial(odd, Forgetful), "changed by 'an operation in place'"),
    "forgetful_by_view": (partial(odd, ForgetfulByView), "changed by 'an operation in place'"),
    "over_queries": (partial(odd, OverQueries), "does not sum to 1"),
    "softmax_by_hand": (partial(odd, SoftmaxByHand), "no softmax over tokens"),
    "channels": (partial(odd, Transposed), "its attention is [12, 12]"),
    "as_many_channels": (partial(odd, Transposed, **AS_MANY), "mixes channels, not tokens"),
    "windows": (
        lambda: timm_model("swin_tiny_patch4_window7_224", depths=(2, 2), **SWIN),
        "computed in windows, in 2 stages",
    ),
    "windows_in_one_stack": (
        lambda: timm_model("swin_tiny_patch4_window7_224", depths=(1, 1), **SWIN),
        "computed in windows, in 2 stages",
    ),
    "cross_covariance": (
        lambda: timm_model("xcit_nano_12_p16_224", depth=2),
        "between channels (cross-covariance)",
    ),
    "convolutions": (lambda: timm_model("resnet10t"), "no attention between positions"),
    "max_pooling": (lambda: timm_vit(global_pool="max"), "unequally"),
}
"""Models whose attention faithscope does not know, and what the refusal has to say."""


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The blocks of any of these models, by the names that libraries give them."""
    names = ("blocks", "layers", "layer", "resblocks")
    for name, child in module.named_modules():
        if name.rpartition(".")[2] in names and isinstance(child, nn.ModuleList | nn.Sequential):
            return list(child)
    raise LookupError(type(module).__name__)


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
