"""What is seen of a ViT is right for every variant, or refused by name; models stay as found."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

import faithscope as fs
from faithscope.methods import METHODS
from faithscope.methods.evidence import Evidence
from faithscope.methods.trace import gather
from faithscope.models import AttentionView
from faithscope.models.attention import run_on_tape
from families import (
    CLASSES,
    EVERY,
    TIMM,
    UNADAPTABLE,
    VARIANTS,
    Family,
    InDict,
    Normalise,
    hf,
    images_of,
    refused,
    seeded,
    small,
    state_of,
    timm_convolutional_stem,
    timm_model,
    timm_pooled_with_prefix,
    timm_vit,
    torchvision_vit,
)
from plain import attention_maps, conservative_maps, read_weights, watched
from sweeps import Noted

READING_ATTENTION = ["raw_attention", "rollout", "grad_cam", "transformer_mm", "attcat"]
NEEDING_PARTS = ["lrp", "partial_lrp", "transformer_attribution", "conservative_lrp"]
IN_PAPERS = [method.name for method in METHODS.values() if method.in_papers]
TARGETS = torch.tensor([0, 1, 3])


# Parts that no library has


class PostNorm(Block):
    def forward(self, x: Tensor, **_: object) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class Parallel(Block):
    def forward(self, x: Tensor, **_: object) -> Tensor:
        return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))


class Tempered(VisionTransformer):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) / 3


class ByHand(nn.Module):
    """A LayerNorm that is written out, with nothing of torch's in it."""

    def __init__(self, width: int, **_: object) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = centred.pow(2).mean(-1, keepdim=True) + self.eps
        return centred / spread.sqrt() * self.weight + self.bias


class Biased(Attention):
    """A bias on the scores, as relative positions are, and a softmax that is written out."""

    def forward(self, tokens: Tensor, **_: object) -> Tensor:
        query, key, value = self.split(tokens)
        scores = query @ key.mT * self.scale + 2 * torch.eye(tokens.shape[1]).to(tokens)
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        joint = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return joint.unbind(0)


class Warm(Attention):
    """A temperature that is learned, as ViTs for small datasets have it."""

    def forward(self, tokens: Tensor, **_: object) -> Tensor:
        query, key, value = Biased.split(self, tokens)
        mixed = functional.scaled_dot_product_attention(query * self.temperature, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


def warm() -> nn.Module:
    module = with_attention(Warm)
    for block in module.blocks:
        block.attn.temperature = nn.Parameter(torch.tensor([[[0.5]], [[2.0]]]))
    return module


class PositionsInPlace(VisionTransformer):
    """Adds its positions in place, as many models do."""

    def _pos_embed(self, patches: Tensor) -> Tensor:
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        tokens += self.pos_embed
        return tokens


def with_attention(kind: type[Attention], **options: object) -> nn.Module:
    """A timm model whose attention modules are of another class."""
    module = timm_vit(**options)
    for block in module.blocks:
        block.attn.__class__ = kind
    return module


def two_layer_head() -> nn.Module:
    module = torchvision_vit()
    module.heads = nn.Sequential(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, CLASSES))
    return module


def in_place_activation() -> nn.Module:
    module = timm_vit()
    for block in module.blocks:
        block.mlp.act = nn.ReLU(inplace=True)
    return module


UNUSUAL = {
    "post_norm": Family(lambda: timm_vit(block_fn=PostNorm)),
    "parallel_branches": Family(lambda: timm_vit(block_fn=Parallel)),
    "two_layer_head": Family(two_layer_head),
    "temperature": Family(lambda: Tempered(**TIMM)),
    "temperature_of_attention": Family(warm),
    "positions_in_place": Family(lambda: PositionsInPlace(**TIMM)),
    "activation_in_place": Family(in_place_activation),
    "norm_in_the_patch_embedding": Family(lambda: timm_vit(embed_norm_layer=nn.LayerNorm)),
}
ALL = {**EVERY, **{f"own_{name}": family for name, family in UNUSUAL.items()}}
every_family = pytest.mark.parametrize("family", ALL.values(), ids=ALL)


def evidence_of(model: nn.Module | fs.Model, images: Tensor, *needs: str) -> Evidence:
    target = torch.arange(len(images)) % CLASSES
    keys = [str(index) for index in range(len(images))]
    model = model if isinstance(model, fs.Model) else fs.wrap(model)
    model.module.requires_grad_(False)
    with torch.no_grad():
        return gather(model, images, target, frozenset(needs), keys=keys)


def worst(ours: Tensor, theirs: Tensor) -> float:
    """The largest error of any map, relative to the largest value of that map."""
    ours, theirs = ours.flatten(1), theirs.flatten(1)
    assert ours.shape == theirs.shape
    return float(((ours - theirs).abs().amax(1) / theirs.abs().amax(1).clamp_min(1e-30)).max())


# What is seen on tapes is the model


@every_family
def test_stem_blocks_and_head_run_again_give_what_the_model_computed(family: Family):
    evidence = evidence_of(family.model(), family.images(), "relevance", "stream", "tapes")
    stream, stem, head = evidence.tensors("stream"), evidence.tape("stem"), evidence.tape("head")
    entered, logits = evidence.tensor("entered"), evidence.tensor("logits")
    with torch.no_grad():
        assert worst(stem.replay(stem.roots[0], evidence.images, entered, ""), stream[0]) <= 1e-12
        for index, (block, call) in enumerate(
            zip(evidence.vit.blocks.values(), evidence.calls("block_calls"), strict=True)
        ):
            _, _, output = run_on_tape(block, call)
            assert worst(output, stream[index + 1]) <= 1e-12
        assert worst(head.replay(head.roots[0], stream[-1], logits, ""), logits) <= 1e-12


@every_family
def test_what_the_head_reads_and_the_tokens_before_the_patches_are_found(family: Family):
    module, images = family.module(), family.images()
    with watched(module) as seen:
        module(images)
    evidence = evidence_of(fs.wrap(module, **family.told), images, "attention")
    torch.testing.assert_close(evidence.readout, read_weights(family, seen), rtol=0, atol=1e-12)
    assert evidence.prefix_tokens == family.prefix
    assert len(evidence.vit.attentions) == len(evidence.vit.blocks) == family.depth


# Against autograd through the library's own forward pass


@every_family
def test_attention_methods_are_what_autograd_gives_by_their_definitions(family: Family):
    module, images = family.module(), family.images(3)
    expected = attention_maps(module, images, TARGETS, family)
    maps = fs.explain(module, images, READING_ATTENTION, target=TARGETS, units="patches")
    for name, values in expected.items():
        assert values.abs().max() > 0
        if name == "attcat" and family is VARIANTS["one_block"]:
            # A patch that meets nothing but a LayerNorm has h·dh = 0, but for rounding and eps.
            torch.testing.assert_close(maps[name], values, rtol=0, atol=1e-14)
        else:
            assert worst(maps[name], values) <= 1e-10, name


@every_family
def test_conservative_lrp_is_what_autograd_gives_by_its_definition(family: Family):
    module, images = family.module(), family.images(3)
    expected = conservative_maps(module, images, TARGETS, family)
    for place, units in (("tokens", "patches"), ("patches", "patches"), ("pixels", "pixels")):
        method = fs.method("conservative_lrp", at=place)
        maps = fs.explain(module, images, method, target=TARGETS, units=units)
        assert worst(maps, expected[place]) <= 1e-10, place


# Relevance is conserved


def kept_by_the_head(family: Family) -> float:
    """All relevance, but for that of a pool's own query: half of what the attention has of it."""
    return 3 / 4 if family.readout == "attention" else 1.0


@every_family
def test_conserving_relevance_keeps_its_sum_between_all_blocks(family: Family):
    evidence = evidence_of(family.model(), family.images(3), "relevance", "stream", "tapes")
    with torch.no_grad():
        sweep = evidence.sweep("conserving")
        for index in reversed(range(family.depth + 1)):
            total = sweep.descend(index).sum((1, 2))
            expected = torch.full_like(total, kept_by_the_head(family))
            torch.testing.assert_close(total, expected, rtol=0, atol=1e-5)


@every_family
@pytest.mark.parametrize("rules", ["original", "conserving"])
def test_pixels_get_the_relevance_that_their_patches_have(family: Family, rules: str):
    evidence = evidence_of(family.model(), family.images(3), "relevance", "stream", "tapes")
    stem, images = evidence.tape("stem"), evidence.tape("stem").roots[0]
    (projection,) = (node for node in stem.nodes if node.kind == "convolution")
    descent = Noted(stem, rules, "its patch embedding")
    with torch.no_grad():
        entering = evidence.sweep(rules).descend(0)
        pixels = descent.run(evidence.tensor("entered"), entering, images, pixels=True).sum(1)
    assert pixels.shape == (3, *family.size)
    rows, columns = family.patch
    inside = pixels.unfold(1, rows, rows).unfold(2, columns, columns).sum((3, 4))
    of_patches = descent.relevance(projection.output).sum(1)
    assert worst(inside, of_patches) <= 1e-6


# Right, or refused in a sentence that names the part


class Between(VisionTransformer):
    """Does something to the tokens between blocks."""

    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        tokens = self._pos_embed(self.patch_embed(images))
        for block in self.blocks:
            tokens = block(tokens) * 1.01
        return self.norm(tokens)


class Twice(VisionTransformer):
    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        tokens = self._pos_embed(self.patch_embed(images))
        for block in self.blocks:
            tokens = block(block(tokens))
        return self.norm(tokens)


class Skipping(VisionTransformer):
    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        tokens = self._pos_embed(self.patch_embed(images))
        return self.norm(self.blocks[1](self.blocks[0](tokens)))


class LongSkip(VisionTransformer):
    """Its last block sees the first tokens once more."""

    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        first = tokens = self._pos_embed(self.patch_embed(images))
        for block in self.blocks[:-1]:
            tokens = block(tokens)
        return self.norm(self.blocks[-1](tokens + first))


class SkipBlock(Block):
    def forward(self, x: Tensor, skipped: Tensor | None = None, **_: object) -> Tensor:
        return super().forward(x) + (0 if skipped is None else skipped)


class SkipByArgument(VisionTransformer):
    """Its last block is given the first tokens once more, beside those of the block before."""

    def __init__(self, **options: object) -> None:
        super().__init__(block_fn=SkipBlock, **options)

    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        first = tokens = self._pos_embed(self.patch_embed(images))
        for block in self.blocks[:-1]:
            tokens = block(tokens)
        return self.norm(self.blocks[-1](tokens, first))


class ManyLevels(VisionTransformer):
    """Its head reads what leaves every block, as probes of DINO do."""

    normed_first = True

    def forward(self, images: Tensor) -> Tensor:
        tokens, levels = self._pos_embed(self.patch_embed(images)), []
        for block in self.blocks:
            tokens = block(tokens)
            levels.append(tokens)
        if self.normed_first:
            levels = [self.norm(level) for level in levels]
        return self.head(sum(level[:, 0] for level in levels))


class ManyLevelsPlain(ManyLevels):
    normed_first = False


@pytest.mark.parametrize("kind", [ManyLevels, ManyLevelsPlain])
def test_a_head_that_reads_earlier_blocks_too_is_refused_where_every_part_must_be_known(kind):
    family = Family(lambda: kind(**TIMM))
    module, images = family.module(), family.images(3)
    for method in NEEDING_PARTS:
        with refused("head reads more than what leaves the last block"):
            fs.explain(module, images, method, target=1)
    expected = attention_maps(module, images, TARGETS, family)
    maps = fs.explain(module, images, READING_ATTENTION, target=TARGETS, units="patches")
    for method, values in expected.items():
        assert worst(maps[method], values) <= 1e-10, method


class ReadsPixels(VisionTransformer):
    """Its head also reads the image, as one of two branches does."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + images.mean((1, 2, 3))[:, None]


def test_a_head_that_reads_the_image_too_is_refused_where_every_part_must_be_known():
    family = Family(lambda: ReadsPixels(**TIMM))
    module, images = family.module(), family.images(3)
    for method in NEEDING_PARTS:
        with refused("head reads more than what leaves the last block"):
            fs.explain(module, images, method, target=1)


class FirstOutputs(VisionTransformer):
    """Every block is given what the attention of the first gave, as value residuals do."""

    def __init__(self, **options: object) -> None:
        super().__init__(block_fn=SkipBlock, **options)

    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        tokens, given, kept = self._pos_embed(self.patch_embed(images)), None, []
        handle = self.blocks[0].attn.register_forward_hook(lambda *seen: kept.append(seen[-1]))
        for block in self.blocks:
            tokens, given = block(tokens, given), kept[0]
        handle.remove()
        return self.norm(tokens)


@pytest.mark.parametrize("kind", [Between, LongSkip, SkipByArgument, FirstOutputs])
def test_what_happens_between_blocks_is_refused_where_every_part_must_be_known(kind):
    family = Family(lambda: kind(**TIMM))
    module, images = family.module(), family.images(3)
    for method in NEEDING_PARTS:
        with refused("does something to its tokens between 'blocks."):
            fs.explain(module, images, method, target=1)
    expected = attention_maps(module, images, TARGETS, family)
    multiplied = (
        []
        if issubclass(kind, SkipByArgument | FirstOutputs)
        else ["rollout", "transformer_mm", "attcat"]
    )
    for method, values in expected.items():
        if method in multiplied:
            with refused("cannot be followed from block to block", "between 'blocks."):
                fs.explain(module, images, method, target=TARGETS)
        else:
            maps = fs.explain(module, images, method, target=TARGETS, units="patches")
            assert worst(maps, values) <= 1e-10, method


@pytest.mark.parametrize("name", UNADAPTABLE)
def test_what_relevance_makes_of_unknown_attention_is_right_or_refused_in_a_sentence(name: str):
    module = seeded(UNADAPTABLE[name][0])
    images = images_of(fs.wrap(module).input_size or (32, 32))
    for method in ("partial_lrp", "transformer_attribution"):
        with refused():
            fs.explain(module, images, method, target=1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Twice(**TIMM), ["twice"]),
        (lambda: Skipping(**TIMM), ["2 of its 3"]),
        (lambda: timm_model("xcit_nano_12_p16_224", depth=2), ["(cross-covariance)"]),
    ],
    ids=["twice", "skipping", "cross_covariance"],
)
def test_a_model_whose_attention_cannot_be_read_is_refused_by_all_that_read_it(build, words):
    module = seeded(build)
    images = images_of(fs.wrap(module).input_size or (32, 32), 1)
    for method in READING_ATTENTION + NEEDING_PARTS:
        with refused(*words):
            fs.explain(module, images, method, target=1)
    assert fs.explain(module, images, "gradient", target=1).isfinite().all()


def test_a_convolutional_stem_is_followed_but_has_no_patches_of_one_projection():
    module, images = seeded(timm_convolutional_stem), images_of((32, 32), 3)
    with refused("2 convolutions", "at=tokens"):
        fs.explain(module, images, "conservative_lrp(at=patches)")
    family = Family(timm_convolutional_stem)
    expected = conservative_maps(module, images, 1, family)["pixels"]
    maps = fs.explain(module, images, "conservative_lrp(at=pixels)", target=1)
    assert worst(maps, expected) <= 1e-10
    evidence = evidence_of(module, images, "relevance", "stream", "tapes")
    stem = evidence.tape("stem")
    descent = Noted(stem, "conserving", "its patch embedding")
    with torch.no_grad():
        relevance = evidence.sweep("conserving").descend(0)
        torch.testing.assert_close(relevance.sum((1, 2)), torch.ones(3).double(), rtol=0, atol=1e-5)
        pixels = descent.run(evidence.tensor("entered"), relevance, stem.roots[0], pixels=True)
    first, second = (node for node in stem.nodes if node.kind == "convolution")
    given, inputs = descent.relevance(second.output), second.inputs[0].detach()
    # What nothing positive has added to has nobody to hand its relevance to.
    reached = functional.conv2d(inputs, module.patch_embed.second.weight.clamp(min=0), stride=2) > 0
    kept = descent.relevance(second.inputs[0])
    torch.testing.assert_close(kept.sum((1, 2, 3)), (given * reached).sum((1, 2, 3)).detach())
    torch.testing.assert_close(
        pixels.sum((1, 2, 3)), descent.relevance(first.output).sum((1, 2, 3))
    )


def test_conservative_lrp_reads_tokens_before_the_first_norm_whatever_the_stem():
    family = Family(partial(timm_convolutional_stem, pre_norm=True))
    module, images = family.module(), family.images(3)
    expected = conservative_maps(module, images, TARGETS, family)["tokens"]
    maps = fs.explain(module, images, "conservative_lrp", target=TARGETS, units="patches")
    assert worst(maps, expected) <= 1e-10


def test_a_norm_that_is_written_out_is_held_constant_as_the_librarys_own_is():
    ours, plain = seeded(lambda: timm_vit(norm_layer=ByHand)), seeded(timm_vit)
    plain.load_state_dict(ours.state_dict())
    images = images_of((32, 32), 3)
    for method in ("conservative_lrp", "conservative_lrp(norm=none)"):
        maps = [fs.explain(module, images, method, target=1) for module in (ours, plain)]
        assert worst(*maps) <= 1e-10


def test_norms_over_groups_of_channels_are_refused_by_conservative_lrp():
    class Grouped(nn.GroupNorm):
        def __init__(self, width: int, **_: object) -> None:
            super().__init__(2, width)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mT).mT

    module, images = seeded(lambda: timm_vit(norm_layer=Grouped)), images_of((32, 32))
    with refused("LayerNorm", "group_norm"):
        fs.explain(module, images, "conservative_lrp")
    assert fs.explain(module, images, "conservative_lrp(norm=none)").isfinite().all()


def right_or_refused(
    module: nn.Module,
    images: Tensor,
    method: str,
    expected: Tensor,
    target: Tensor | int = 1,
    tolerance: float = 1e-8,
) -> None:
    """A map that equals this one, or a refusal; never another map."""
    patches = expected.shape[1:] != images.shape[2:]
    units = "patches" if patches else "pixels"
    try:
        maps = fs.explain(module, images, method, target=target, units=units)
    except fs.FaithscopeError:
        return
    assert worst(maps, expected) <= tolerance


class Normalising(VisionTransformer):
    """Takes images as they are and normalises them itself, as many deployed models do."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(Normalise()(images))


@pytest.mark.parametrize(
    "method",
    ["lrp", "lrp(rules=conserving)", "conservative_lrp", "conservative_lrp(at=patches)"],
)
def test_a_model_that_normalises_inside_is_explained_as_one_that_gets_normalised_images(
    method: str,
):
    inside, outside = seeded(lambda: Normalising(**TIMM)), seeded(timm_vit)
    images = images_of((32, 32))
    expected = fs.explain(outside, Normalise()(images), method, target=1)
    assert worst(fs.explain(inside, images, method, target=1), expected) <= 1e-8


class LowRank(nn.Linear):
    """A linear layer with a low-rank update that is not merged into its weight (LoRA)."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(inside, outside)
        self.down = nn.Parameter(torch.zeros(2, inside))
        self.up = nn.Parameter(torch.zeros(outside, 2))

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) + values @ self.down.T @ self.up.T

    def merged(self) -> nn.Linear:
        plain = nn.Linear(self.in_features, self.out_features)
        plain.weight.data = self.weight.data + self.up.data @ self.down.data
        plain.bias.data = self.bias.data.clone()
        return plain


def low_rank(*names: str) -> nn.Module:
    module = timm_vit()
    for block in module.blocks:
        for name in names:
            parent, _, child = name.rpartition(".")
            old = block.get_submodule(name)
            setattr(block.get_submodule(parent), child, LowRank(old.in_features, old.out_features))
    return module


# An nn.Linear may compute something else than its weight says: LoRA, normalised weights, a hook.
@pytest.mark.parametrize("name", ["mlp.fc1", "mlp.fc2", "attn.proj", "attn.qkv"])
@pytest.mark.parametrize("method", ["lrp", "transformer_attribution", "partial_lrp"])
def test_a_linear_layer_that_is_more_than_its_weight_is_never_taken_for_its_weight(
    name: str, method: str
):
    module, images = seeded(lambda: low_rank(name)), images_of((32, 32))
    merged = copy.deepcopy(module)
    for block in merged.blocks:
        parent, _, child = name.rpartition(".")
        setattr(block.get_submodule(parent), child, block.get_submodule(name).merged())
    torch.testing.assert_close(merged.double()(images), module(images))
    expected = fs.explain(merged, images, method, target=1, units="patches")
    right_or_refused(module, images, method, expected)


class Standardised(nn.Conv2d):
    def standardised(self) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return weight / self.weight.std((1, 2, 3), keepdim=True)

    def forward(self, images: Tensor) -> Tensor:
        return self._conv_forward(images, self.standardised(), self.bias)


@pytest.mark.parametrize("method", ["lrp", "conservative_lrp(at=pixels)"])
def test_a_projection_that_is_more_than_its_weight_is_never_taken_for_its_weight(method: str):
    def build() -> nn.Module:
        module = timm_vit()
        module.patch_embed.proj = Standardised(3, 24, 8, 8)
        return module

    module, images = seeded(build), images_of((32, 32))
    plain = seeded(timm_vit)
    state = module.state_dict()
    state["patch_embed.proj.weight"] = module.patch_embed.proj.standardised().detach()
    plain.load_state_dict(state)
    torch.testing.assert_close(plain(images), module(images))
    right_or_refused(module, images, method, fs.explain(plain, images, method, target=1))


# 2×8 patches are as many as 4×4: the learned positions have the right shape, but are not added.
def test_positions_interpolated_to_as_many_patches_in_another_shape_are_understood():
    module = seeded(lambda: timm_vit(dynamic_img_size=True))
    maps = fs.explain(module, images_of((16, 64)), NEEDING_PARTS, target=1)
    assert all(values.isfinite().all() for values in maps.values())


class OwnPooling(VisionTransformer):
    """Class token in front, but its head reads the mean of the patches."""

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(tokens[:, 1:].mean(1))


# None of these says at its outermost module what its head reads.
POOLING = {
    "wrapped": (lambda: InDict(timm_vit(global_pool="avg")), "mean"),
    "sequential": (lambda: nn.Sequential(nn.Identity(), timm_vit(global_pool="avg")), "mean"),
    "data_parallel": (lambda: nn.DataParallel(timm_vit(global_pool="avg")), "mean"),
    "own_pooling": (lambda: OwnPooling(**TIMM), "mean"),
    "class_token": (timm_vit, "class"),
    "all_tokens": (timm_pooled_with_prefix, "all"),
    "attention_pool": (lambda: timm_vit(global_pool="map"), "attention"),
    "siglip": (lambda: small("vit_base_patch16_siglip_224"), "attention"),
}


@pytest.mark.parametrize("name", POOLING)
def test_what_a_head_reads_may_be_said_but_only_the_truth_is_believed(name: str):
    build, truth = POOLING[name]
    module, images = seeded(build), images_of((32, 32), 3)
    found = fs.explain(module, images, READING_ATTENTION, target=1)
    for said in ("class", "mean", "all", "attention"):
        model = fs.wrap(module, readout=said)
        if said == truth:
            maps = fs.explain(model, images, READING_ATTENTION, target=1)
            assert all(torch.equal(maps[method], found[method]) for method in found)
            continue
        for method in READING_ATTENTION:
            with refused("head", f"readout='{truth}'", f"not '{said}'"):
                fs.explain(model, images, method, target=1)


def test_a_pool_behind_which_all_weights_are_zero_is_still_a_pool():
    module, images = seeded(lambda: timm_vit(global_pool="map")), images_of((32, 32), 3)
    expected = fs.explain(module, images, "rollout", target=1)
    nn.init.zeros_(module.head.weight)
    assert torch.equal(fs.explain(module, images, "rollout", target=1), expected)
    with refused("head", "reads its tokens through an attention pool", "not 'mean'"):
        fs.explain(fs.wrap(module, readout="mean"), images, "rollout", target=1)


class Mixing(VisionTransformer):
    """Its head lets tokens meet before it takes the first."""

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        mixed: Tensor = self.mix(tokens)
        return self.head(mixed[:, 0])


def by_a_matrix(tokens: Tensor) -> Tensor:
    return (tokens.mT @ torch.linspace(-1, 1, 17 * 17).reshape(17, 17).to(tokens)).mT


def by_a_convolution(tokens: Tensor) -> Tensor:
    weight = torch.linspace(-1, 1, 24 * 24 * 3).reshape(24, 24, 3).to(tokens)
    return functional.conv1d(tokens.mT, weight, padding=1).mT


MIXING: dict[str, Callable[[], nn.Module]] = {
    "prr": lambda: timm_vit(global_pool="prr"),
    "max": lambda: timm_vit(global_pool="max"),
    "average_and_max": lambda: timm_vit(global_pool="avgmax"),
    **{
        name: partial(type(f"Mixing_{name}", (Mixing,), {"mix": staticmethod(mix)}), **TIMM)
        for name, mix in {
            "rolled": lambda tokens: tokens.roll(1, 1),
            "other_order": lambda tokens: torch.cat([tokens[:, -1:], tokens[:, :-1]], dim=1),
            "by_a_matrix": by_a_matrix,
            "by_a_convolution": by_a_convolution,
            "sorted": lambda tokens: tokens.sort(dim=1).values,
        }.items()
    },
}


@pytest.mark.parametrize("build", MIXING.values(), ids=MIXING)
def test_a_head_in_which_tokens_meet_is_never_taken_for_one_that_reads_the_first(build):
    module, images = seeded(build), images_of((32, 32))
    for method in READING_ATTENTION:
        with refused("head", "unequally and not through one attention pool"):
            fs.explain(module, images, method, target=1)


# A bias may be most of the output and must not hide the rest.
@pytest.mark.parametrize(
    ("dtype", "bias"), [(torch.float32, 1.0), (torch.float32, 1000.0), (torch.bfloat16, 100.0)]
)
def test_a_wrong_view_of_ones_own_is_refused_behind_a_large_bias_too(
    dtype: torch.dtype, bias: float
):
    module = seeded(lambda: with_attention(Biased), torch.float32)
    for block in module.blocks:
        block.attn.proj.bias.data[0] = bias
    module = module.to(dtype)
    wrong = [  # without the bias of its scores
        AttentionView(f"blocks.{index}.attn", attn, attn.scale, attn.split, attn.proj)
        for index, attn in enumerate(block.attn for block in module.blocks)
    ]
    images = images_of((32, 32), dtype=dtype)
    for method in ("raw_attention", "rollout"):
        with refused("'blocks.2.attn'", "recomputed output off by"):
            fs.explain(fs.wrap(module, attention=wrong), images, method)
    assert fs.explain(module, images, "raw_attention").isfinite().all()


class ListsInLists(nn.Module):
    """Blocks that are lists of their parts: nothing that could be hooked runs as a block."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_size = 8
        self.stem, self.head, self.norm = nn.Conv2d(3, 24, 8, 8), nn.Linear(24, 5), nn.LayerNorm(24)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 24))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, 24))
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(24),
                    nn.MultiheadAttention(24, 2, batch_first=True),
                    nn.LayerNorm(24),
                    nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)),
                ]
            )
            for _ in range(3)
        )

    def forward(self, images: Tensor) -> Tensor:
        patches = self.stem(images).flatten(2).mT
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        tokens = tokens + self.pos_embed
        for norm1, attention, norm2, mlp in self.blocks:
            normed = norm1(tokens)
            tokens = tokens + attention(normed, normed, normed, need_weights=False)[0]
            tokens = tokens + mlp(norm2(tokens))
        return self.head(self.norm(tokens)[:, 0])


@pytest.mark.parametrize("method", ["attcat", *NEEDING_PARTS])
def test_blocks_that_are_bare_lists_are_refused_where_blocks_are_needed(method: str):
    module, images = seeded(ListsInLists), images_of((32, 32))
    assert fs.explain(module, images, "transformer_mm").isfinite().all()
    with refused("blocks"):
        fs.explain(module, images, method, target=1)


class InPlace(Block):
    """Adds the residual to the branch in place, which autograd allows."""

    def forward(self, tokens: Tensor, **_: object) -> Tensor:
        branch = self.attn(self.norm1(tokens))
        branch += tokens
        result = self.mlp(self.norm2(branch))
        result += branch
        return result


@pytest.mark.parametrize("method", READING_ATTENTION + NEEDING_PARTS)
def test_residuals_that_are_added_in_place_are_never_mistaken_for_tokens(method: str):
    images, target = images_of((32, 32), 3), torch.tensor([0, 1, 3])
    plain, in_place = seeded(timm_vit), seeded(lambda: timm_vit(block_fn=InPlace))
    expected = fs.explain(plain, images, method, target=target, units="patches")
    assert expected.abs().max() > 0
    right_or_refused(in_place, images, method, expected, target)


class Detached(VisionTransformer):
    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(images)


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "transformer_mm", "attcat"])
def test_a_model_that_cuts_its_gradients_is_told_so_in_a_sentence(method: str):
    module, images = seeded(lambda: Detached(**TIMM)), images_of((32, 32))
    assert fs.explain(module, images, "rollout").isfinite().all()
    with refused("gradient"):
        fs.explain(module, images, method, target=1)


class Doubled(torch.autograd.Function):
    """Leaves torch for a moment, though gradients find their way."""

    @staticmethod
    def forward(ctx, values: Tensor) -> Tensor:
        return torch.from_numpy(values.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * 2


class OutsideTorch(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        return Doubled.apply(self.inner(tokens)) / 2


def outside_torch() -> nn.Module:
    module = timm_vit()
    for block in module.blocks:
        block.mlp = OutsideTorch(block.mlp)
    return module


def compiled_activation() -> nn.Module:
    module = timm_vit()
    for block in module.blocks:
        block.mlp.act = torch.jit.script(nn.GELU())
    return module


def compiled_stem() -> nn.Module:
    module = timm_vit()
    module.patch_embed = torch.jit.trace(module.patch_embed, torch.zeros(1, 3, 32, 32))
    return module


# What nobody saw would be taken for a constant.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("build", [outside_torch, compiled_activation, compiled_stem])
@pytest.mark.parametrize("method", READING_ATTENTION + NEEDING_PARTS)
def test_what_cannot_be_looked_into_is_never_taken_for_a_constant(build, method: str):
    module, plain, images = seeded(build), seeded(timm_vit), images_of((32, 32))
    torch.testing.assert_close(module(images), plain(images))
    model = fs.wrap(module, patch_size=8)
    if method == "lrp" or (build is not compiled_stem and method in NEEDING_PARTS[:3]):
        with refused("cannot be looked into"):
            fs.explain(model, images, method, target=1)
    else:
        expected = fs.explain(plain, images, method, target=1)
        assert worst(fs.explain(model, images, method, target=1), expected) <= 1e-10


# Models that run in an unusual way


class Reentrant(VisionTransformer):
    def forward_features(self, images: Tensor, **_: object) -> Tensor:
        tokens = self._pos_embed(self.patch_embed(images))
        for block in self.blocks:
            tokens = torch.utils.checkpoint.checkpoint(block, tokens, use_reentrant=True)
        return self.norm(tokens)


@pytest.mark.parametrize("method", ["transformer_mm", "attcat", "transformer_attribution"])
def test_a_reentrant_checkpoint_is_right_or_refused_in_a_sentence(method: str):
    images = images_of((32, 32))
    expected = fs.explain(seeded(timm_vit), images, method, target=1, units="patches")
    right_or_refused(seeded(lambda: Reentrant(**TIMM)), images, method, expected)


def timm_checkpointed() -> nn.Module:
    module = timm_vit()
    module.set_grad_checkpointing(True)
    return module


def hf_checkpointed() -> nn.Module:
    module = hf("ViT")
    module.gradient_checkpointing_enable()
    return module


@pytest.mark.parametrize(
    ("build", "plain"),
    [(timm_checkpointed, timm_vit), (hf_checkpointed, lambda: hf("ViT"))],
    ids=["timm", "hugging_face"],
)
@pytest.mark.parametrize("training", [True, False])
def test_gradient_checkpoints_of_the_models_own_change_nothing(build, plain, training: bool):
    images = images_of((32, 32))
    expected = fs.explain(seeded(plain), images, IN_PAPERS, target=1)
    maps = fs.explain(seeded(build).train(training), images, IN_PAPERS, target=1)
    for name in IN_PAPERS:
        assert worst(maps[name], expected[name]) <= 1e-10, name


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_the_callers_mode_changes_no_map_and_is_restored(mode):
    module, images = seeded(timm_vit, torch.float32), images_of((32, 32), dtype=torch.float32)
    expected = fs.explain(module, images, IN_PAPERS, target=1)
    with mode():
        before = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
        )
        maps = fs.explain(module, images.clone(), IN_PAPERS, target=1)
        assert before == (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
        )
    for name in IN_PAPERS:
        assert torch.equal(maps[name], expected[name]), name


def test_a_frozen_model_gets_the_same_maps():
    images = images_of((32, 32))
    frozen = seeded(timm_vit).requires_grad_(False)
    expected = fs.explain(seeded(timm_vit), images, IN_PAPERS, target=1)
    maps = fs.explain(frozen, images, IN_PAPERS, target=1)
    assert all(torch.equal(maps[name], expected[name]) for name in IN_PAPERS)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", [timm_vit, lambda: hf("ViT"), torchvision_vit])
def test_half_precision_gives_maps_near_those_of_float32(build, dtype: torch.dtype):
    halved = seeded(build, dtype)
    full = copy.deepcopy(halved).float()
    images = images_of((32, 32), 3, dtype)
    target = torch.tensor([0, 1, 3])
    methods = [name for name in IN_PAPERS if name != "random"]
    maps = fs.explain(halved, images, methods, target=target)
    expected = fs.explain(full, images.float(), methods, target=target)
    for name in methods:
        assert maps[name].isfinite().all(), name
        relevance = name in ("lrp", "partial_lrp", "transformer_attribution")  # float64 either way
        allowed = 1e-12 if relevance else {torch.float16: 0.02, torch.bfloat16: 0.08}[dtype]
        assert worst(maps[name].to(expected[name].dtype), expected[name]) <= allowed, name


# The model is left as it was found


def in_use(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    """Half frozen, in training mode, with gradients of its last step and a buffer of its own."""
    module = seeded(build, dtype).train()
    module.register_buffer("steps", torch.tensor([1.0]))
    parameters = list(module.parameters())
    for index, parameter in enumerate(parameters):
        parameter.requires_grad_(index % 2 == 0)
        parameter.grad = torch.ones_like(parameter) if index % 4 == 0 else None
    return module


BUILDS = {"timm": timm_vit, "hugging_face": lambda: hf("ViT"), "torchvision": torchvision_vit}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_every_tensor_flag_and_hook_is_the_very_same_afterwards(build):
    module, images = in_use(build), images_of((32, 32), dtype=torch.float32)
    before = state_of(module)
    fs.explain(module, images, IN_PAPERS)
    assert state_of(module) == before


class Trap(nn.Module):
    """Passes its input on, and fails when it is told to: in the forward or the backward pass."""

    def __init__(self, error: BaseException, when: str) -> None:
        super().__init__()
        self.error, self.when, self.sprung = error, when, 0

    def forward(self, values: Tensor) -> Tensor:
        if self.when == "forward" or (self.when == "float64" and values.dtype == torch.float64):
            vars(self)["sprung"] += 1
            raise self.error
        if self.when == "backward" and values.requires_grad:
            values = values.clone()
            values.register_hook(self.fail)
        return values

    def fail(self, _: Tensor) -> None:
        vars(self)["sprung"] += 1
        raise self.error


def trapped(error: BaseException, when: str) -> nn.Module:
    module = in_use(timm_vit)
    module.blocks[1].mlp.drop1 = Trap(error, when)
    return module


@pytest.mark.parametrize("error", [ZeroDivisionError("here"), KeyboardInterrupt("here")], ids=repr)
@pytest.mark.parametrize(
    ("when", "methods"),
    [
        ("forward", "rollout"),
        ("forward", "transformer_mm"),
        ("forward", "lrp"),
        ("backward", "transformer_mm"),
        ("backward", "integrated_gradients"),
        ("backward", "transformer_attribution"),
        ("float64", "lrp"),
        ("float64", "transformer_attribution"),
        ("float64", ["lrp", "partial_lrp"]),
    ],
)
def test_whatever_fails_wherever_the_model_is_left_as_it_was_found(error, when, methods):
    module, images = trapped(error, when), images_of((32, 32), dtype=torch.float32)
    before = state_of(module, but=":sprung")
    ours = fs.FaithscopeError if isinstance(error, Exception) else type(error)
    with pytest.raises(ours, match="here"):
        fs.explain(module, images, methods, target=1)
    trap = module.blocks[1].mlp.drop1
    assert trap.sprung
    assert state_of(module, but=":sprung") == before
    trap.when = "never"
    assert fs.explain(module, images, "transformer_attribution").isfinite().all()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("need", ["attention_gradient", "relevance"])
def test_a_method_that_fails_leaves_the_model_as_it_was_found(error, need: str):
    def fail(_: Evidence) -> Tensor:
        raise error("in the method")

    method = fs.Method("failing", fail, needs=frozenset({need}))
    module, images = in_use(timm_vit), images_of((32, 32), dtype=torch.float32)
    before = state_of(module)
    ours = fs.FaithscopeError if issubclass(error, Exception) else error
    with pytest.raises(ours, match="in the method"):
        fs.explain(module, images, method)
    assert state_of(module) == before


# The old weight norm keeps its product as a plain attribute.
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_are_computed_before_each_pass_are_left_in_the_models_type():
    def build() -> nn.Module:
        module = timm_vit()
        nn.utils.weight_norm(module.blocks[0].mlp.fc1)
        return module

    module = seeded(build, torch.float32)
    images = images_of((32, 32), dtype=torch.float32)
    module(images)
    fs.explain(module, images, "lrp")
    assert module.blocks[0].mlp.fc1.weight.dtype == torch.float32
