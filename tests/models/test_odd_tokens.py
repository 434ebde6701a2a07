"""Tokens that are no patches, and attention that is no average: seen right, or refused."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import faithscope as fs
from families import TIMM, images_of, refused, seeded, small
from plain import watched

IMAGES = images_of((32, 32), 2)


class SeveralClasses(VisionTransformer):
    """Its head reads the mean of three class tokens."""

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(tokens[:, :3].mean(1))


def several(classes: int = 3) -> VisionTransformer:
    module = SeveralClasses(**{**TIMM, "reg_tokens": classes - 1})
    module.num_prefix_tokens = classes
    return module


def test_class_tokens_that_are_read_alike_share_the_readout():
    module = seeded(several)
    maps = fs.explain(module, IMAGES, "raw_attention", units="patches", target=1)
    with torch.no_grad(), watched(module) as seen:
        module(IMAGES)
    (last,) = seen.attention[-1]  # [B, heads, N, N]
    expected = last.mean(1)[:, :3, 3:].mean(1).reshape(2, 4, 4)
    assert torch.allclose(maps, expected.to(maps), rtol=1e-5)


def test_class_tokens_beside_registers_that_are_not_read_are_refused():
    class TwoOfThree(SeveralClasses):
        def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
            return self.head(tokens[:, 1:3].mean(1))

    def build() -> VisionTransformer:
        module = TwoOfThree(**{**TIMM, "reg_tokens": 2})
        module.num_prefix_tokens = 3
        return module

    with refused("reads 2 of 3 prefix tokens and 0 of 16 patches"):
        fs.explain(seeded(build), IMAGES, "raw_attention", target=1)


def test_the_query_of_a_pool_is_no_token_before_the_patches():
    class Pool(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
            self.k_proj, self.v_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

        def forward(self, tokens: Tensor) -> Tensor:
            query = self.cls_token.expand(len(tokens), -1, -1)
            parts = (query, self.k_proj(tokens), self.v_proj(tokens))
            heads = [part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts]
            mixed = nn.functional.scaled_dot_product_attention(*heads)
            return mixed.transpose(1, 2).flatten(2)[:, 0]

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = VisionTransformer(
                **{**TIMM, "class_token": False, "global_pool": "", "num_classes": 0}
            )
            self.trunk.num_prefix_tokens = None
            self.pool, self.head = Pool(self.trunk.embed_dim), nn.Linear(self.trunk.embed_dim, 5)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.pool(self.trunk(images)))

    maps = fs.explain(seeded(Pooled), IMAGES, ["rollout", "transformer_attribution"])
    assert all(held.isfinite().all() for held in maps.values())


def test_attention_that_is_subtracted_from_another_is_refused():
    module = seeded(lambda: small("vit_dwee_patch16_reg1_gap_256"))
    with refused("its attention is the difference of two"):
        fs.explain(module, IMAGES, "rollout")


def test_tokens_nobody_knows_are_counted():
    class Detecting(VisionTransformer):
        """Ten tokens behind the patches, as YOLOS has."""

        def _pos_embed(self, x: Tensor) -> Tensor:
            x = super()._pos_embed(x)
            return torch.cat([x, x[:, :10]], dim=1)

    with refused("sees 27 tokens, not 1 prefix + 4×4 patches", "stand before the patches"):
        fs.explain(seeded(lambda: Detecting(**TIMM)), IMAGES, "rollout")
