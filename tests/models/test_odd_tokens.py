"""Tokens that are no patches, and attention that is no average: seen right, or refused."""

from __future__ import annotations

import pytest
import torch
from timm.layers import AttentionPoolLatent
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

import faithscope as fs
from faithscope.models.hierarchy import describe_attention
from families import (
    TIMM,
    images_of,
    refused,
    seeded,
    small,
    timm_convolutional_stem,
    timm_vit,
)
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


# Tokens in another order


class Ordered(VisionTransformer):
    """Its patches come in the order of `places`."""

    places = torch.arange(16)

    def _pos_embed(self, x: Tensor) -> Tensor:
        return super()._pos_embed(x[:, self.places])


class ByColumns(Ordered):
    places = torch.arange(16).reshape(4, 4).T.flatten()


class ClassLast(VisionTransformer):
    """Its class token stands behind the patches, and its head reads the mean of all."""

    def _pos_embed(self, x: Tensor) -> Tensor:
        return super()._pos_embed(x).roll(-1, dims=1)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(tokens.mean(1))


class Flipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = VisionTransformer(**TIMM)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images.flip(-1))


@pytest.mark.parametrize("build", [lambda: ByColumns(**TIMM), lambda: ClassLast(**TIMM), Flipped])
def test_tokens_that_are_not_the_patches_in_their_order_are_refused(build):
    module = seeded(build)
    for method in ("raw_attention", "rollout", "transformer_attribution", "conservative_lrp"):
        with refused("its tokens are not its patches from left to right and down"):
            fs.explain(module, IMAGES, method, target=1)
    assert fs.explain(module, IMAGES, "gradient").isfinite().all()


def test_the_order_of_tokens_is_proven_on_a_flat_image_too():
    module = seeded(Flipped)
    for images in (torch.full_like(IMAGES, 0.5), IMAGES):
        with refused("not its patches from left to right"):
            fs.explain(module, images, "rollout", target=1)


def test_patches_in_their_order_pass_also_behind_convolutions():
    for build in (lambda: Ordered(**TIMM), timm_convolutional_stem):
        assert fs.explain(seeded(build), IMAGES, "rollout", target=1).isfinite().all()


# Blocks beside the stack


class Before(VisionTransformer):
    """A block of its own before the others."""

    def __init__(self) -> None:
        super().__init__(**TIMM)
        self.pre = Block(self.embed_dim, 2)

    def _pos_embed(self, x: Tensor) -> Tensor:
        return self.pre(super()._pos_embed(x))


class SideBySide(VisionTransformer):
    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        tokens = self._pos_embed(self.patch_embed(images))
        return self.norm(sum(block(tokens) for block in self.blocks))


def test_attention_before_the_blocks_is_refused():
    for method in ("rollout", "transformer_attribution", "conservative_lrp"):
        with refused("it attends before its blocks, in 'pre.attn'"):
            fs.explain(seeded(Before), IMAGES, method, target=1)


def test_blocks_side_by_side_are_not_multiplied():
    for method in ("rollout", "transformer_mm"):
        with refused("cannot be followed from block to block"):
            fs.explain(seeded(lambda: SideBySide(**TIMM)), IMAGES, method, target=1)


# What a head reads


class Reading(VisionTransformer):
    def __init__(self, how: str) -> None:
        super().__init__(**TIMM)
        self.how, self.reader = how, AttentionPoolLatent(self.embed_dim, num_heads=2)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        first, patches = tokens[:, 0], tokens[:, 1:].mean(1)
        if self.how == "hardly the class token":
            return self.head(1e-3 * first + patches)
        if self.how == "a mean with weights":
            weights = torch.linspace(0, 1, tokens.shape[1]).to(tokens)
            return self.head((weights[:, None] * tokens).sum(1))
        if self.how == "class token and pool":
            return self.head(first + 1e-3 * self.reader(tokens))
        mixed = tokens + tokens.cumsum(1)
        return self.head(self.reader(mixed))


@pytest.mark.parametrize(
    "how",
    ["hardly the class token", "class token and pool", "mixed, a pool", "a mean with weights"],
)
def test_heads_that_read_more_than_one_thing_are_refused(how):
    with refused("unequally and not through one attention pool"):
        fs.explain(seeded(lambda: Reading(how)), IMAGES, "rollout", target=1)


def test_a_head_of_zeros_without_a_class_token_reads_the_mean():
    def build() -> nn.Module:
        module = VisionTransformer(**{**TIMM, "class_token": False, "global_pool": "avg"})
        module.global_pool = ""
        module.forward_head = lambda tokens, pre_logits=False: module.head(tokens.mean(1))
        return module

    module = seeded(build)
    expected = fs.explain(module, IMAGES, "rollout", target=1)
    nn.init.zeros_(module.head.weight)
    assert torch.allclose(fs.explain(module, IMAGES, "rollout", target=1), expected)


# Ways to write attention


class Written(nn.Module):
    """The attention of a block, written in another way."""

    def __init__(self, own: nn.Module, how: str) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads, self.how = own.qkv, own.proj, own.num_heads, how

    def forward(self, x: Tensor, **_: object) -> Tensor:
        images, count, dim = x.shape
        parts = self.qkv(x).reshape(images, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if self.how == "einsum":
            scores = torch.einsum("b h i d, b h j d -> b h i j", query, key)
            paid = (scores * query.shape[-1] ** -0.5).softmax(-1)
            mixed = torch.einsum("bhij,bhjd->bihd", paid, value).flatten(2)
            return self.proj(mixed)
        if "rolled" in self.how:
            key, value = key.roll(3, 2), value.roll(3, 2)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if self.how == "masked":
            scores = scores.masked_fill(torch.eye(count, dtype=torch.bool), -torch.inf)
        elif self.how == "masked by a sum":
            scores = scores + torch.zeros(count, count).fill_diagonal_(-torch.inf)
        paid = scores.softmax(-1)
        if self.how == "stored":
            self.map, self.mean = paid.detach(), paid.mean(1)
            mixed = torch.matmul(input=paid, other=value)
        elif self.how == "one axis":
            paid = paid.reshape(-1, count, count)
            mixed = torch.bmm(paid, value.reshape(-1, count, dim // self.heads))
            mixed = mixed.reshape(images, self.heads, count, -1)
        else:
            mixed = paid @ value
        if self.how == "pooled":  # beside attention
            mixed = mixed + nn.functional.avg_pool1d(value.flatten(1, 2).mT, 3, 1, 1).mT.reshape(
                value.shape
            )
        return self.proj(mixed.transpose(1, 2).flatten(2))


METHODS = ["raw_attention", "rollout", "transformer_mm", "attcat", "lrp", "conservative_lrp"]


@pytest.mark.parametrize("how", ["einsum", "stored", "one axis"])
def test_attention_may_be_written_in_many_ways(how):
    module = seeded(timm_vit)
    expected = fs.explain(module, IMAGES, METHODS, target=1)
    for block in module.blocks:
        block.attn = Written(block.attn, how)
    maps = fs.explain(module, IMAGES, METHODS, target=1)
    assert maps.keys() == expected.keys()
    for method, values in expected.items():
        assert (maps[method] - values).abs().max() <= 1e-5 * values.abs().max(), method


def test_a_mask_may_be_filled_in_and_a_temperature_be_learned():
    module, other = seeded(timm_vit), seeded(timm_vit)
    for block, same in zip(module.blocks, other.blocks, strict=True):
        block.attn = Written(block.attn, "masked")
        block.attn.temperature = nn.Parameter(torch.ones(()))
        same.attn = Written(same.attn, "masked by a sum")
    maps = fs.explain(module, IMAGES, METHODS, target=1)
    expected = fs.explain(other, IMAGES, METHODS, target=1)
    for method, values in expected.items():
        assert (maps[method] - values).abs().max() <= 1e-10 * values.abs().max(), method
    assert describe_attention(module.blocks[0].attn) is None


class Shifting(Block):
    """Moves its tokens by one at the end."""

    def forward(self, x: Tensor, **_: object) -> Tensor:
        return super().forward(x).roll(1, 1)


class Around(Block):
    """Attends to its tokens in another order."""

    def forward(self, x: Tensor, **_: object) -> Tensor:
        x = x + self.attn(self.norm1(x).roll(2, 1)).roll(-2, 1)
        return x + self.mlp(self.norm2(x))


class ShuffledBetween(VisionTransformer):
    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        tokens = self._pos_embed(self.patch_embed(images))
        for block in self.blocks[:-1]:
            tokens = block(tokens)
        tokens = self.blocks[-1](torch.cat([tokens[:, :1], tokens[:, 1:].flip(1)], 1))
        return self.norm(tokens)


def keys_rolled() -> nn.Module:
    module = timm_vit()
    for block in module.blocks:
        block.attn = Written(block.attn, "rolled")
    return module


@pytest.mark.parametrize(
    "build",
    [
        keys_rolled,
        lambda: timm_vit(block_fn=Shifting),
        lambda: timm_vit(block_fn=Around),
        lambda: ShuffledBetween(**TIMM),
    ],
    ids=["keys and values", "behind attention", "around attention", "between blocks"],
)
@pytest.mark.parametrize("method", ["raw_attention", "rollout", "transformer_mm", "partial_lrp"])
def test_tokens_that_change_their_order_on_the_way_are_refused(build, method):
    module = seeded(build)
    between = isinstance(module, ShuffledBetween) and method == "partial_lrp"
    words = "does something to its tokens between" if between else "put in another order"
    for _ in range(2):  # what is known of a block is not forgotten
        with refused(words):
            fs.explain(module, IMAGES, method, target=1)


def test_what_mixes_tokens_beside_attention_is_refused():
    module = seeded(timm_vit)
    module.blocks[0].attn = Written(module.blocks[0].attn, "pooled")
    with refused("'avg_pool1d' lets its tokens meet beside attention"):
        fs.explain(module, IMAGES, "rollout", target=1)


def test_autocast_inside_a_model_is_on_when_its_parts_run_again():
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = timm_vit()

        def forward(self, images: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.net(images).float()

    module = seeded(Cast).float()
    maps = fs.explain(module, IMAGES.float(), "rollout", target=1)
    exact = fs.explain(module.net, IMAGES.float(), "rollout", target=1)
    assert (maps - exact).abs().max() <= 0.1 * exact.abs().max()


def test_a_vector_may_be_divided_by_its_length_by_hand():
    class Cosine(nn.Module):
        def __init__(self, by_hand: bool) -> None:
            super().__init__()
            self.net, self.texts, self.by_hand = timm_vit(), nn.Linear(5, 3), by_hand

        def forward(self, images: Tensor) -> Tensor:
            found = self.net(images)
            if self.by_hand:
                return self.texts(found / found.norm(dim=-1, keepdim=True))
            return self.texts(nn.functional.normalize(found, dim=-1))

    one, other = (seeded(lambda by_hand=by_hand: Cosine(by_hand)) for by_hand in (True, False))
    for method in ("lrp", "transformer_attribution", "conservative_lrp"):
        maps = [fs.explain(module, IMAGES, method, target=1) for module in (one, other)]
        assert torch.allclose(*maps), method
