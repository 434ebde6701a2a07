"""The canonical view of a ViT: right for every variant, or refused by name; models as they were."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import timm
import torch
import transformers
from timm.models.vision_transformer import (
    Attention,
    Block,
    ParallelScalingBlock,
    ResPostBlock,
    VisionTransformer,
)
from torch import Tensor, nn
from torch.nn import functional

import faithscope as fs
from faithscope.methods import METHODS
from faithscope.methods.evidence import Evidence
from faithscope.methods.relevance import patch_relevance, pixel_relevance
from faithscope.methods.trace import gather
from families import (
    CLASSES,
    FAMILIES,
    TIMM,
    UNADAPTABLE,
    VARIANTS,
    Family,
    blocks_of,
    hf,
    images_of,
    refused,
    seeded,
    state_of,
    timm_convolutional_stem,
    timm_model,
    timm_vit,
    torchvision_vit,
)

EVERY = {**FAMILIES, **VARIANTS}
every_family = pytest.mark.parametrize("family", EVERY.values(), ids=EVERY)

READING_ATTENTION = ["raw_attention", "rollout", "grad_cam", "transformer_mm", "attcat"]
NEEDING_PARTS = ["lrp", "partial_lrp", "transformer_attribution", "conservative_lrp"]
IN_PAPERS = [method.name for method in METHODS.values() if method.in_papers]


def evidence_of(module: nn.Module, images: Tensor, *needs: str) -> Evidence:
    target = torch.arange(len(images)) % CLASSES
    keys = [str(index) for index in range(len(images))]
    with torch.no_grad():
        return gather(fs.wrap(module), images, target, frozenset(needs), keys=keys)


def worst(ours: Tensor, theirs: Tensor) -> float:
    """The largest error of any map, relative to the largest value of that map."""
    ours, theirs = ours.flatten(1), theirs.flatten(1)
    assert ours.shape == theirs.shape
    return float(((ours - theirs).abs().amax(1) / theirs.abs().amax(1).clamp_min(1e-30)).max())


# The parts, put together again, are the model


@every_family
def test_every_block_recomputed_from_the_stream_is_what_the_model_computed(family: Family):
    evidence = evidence_of(family.module(), family.images(), "relevance", "attention")
    stream, anatomy = evidence.tensors("stream"), evidence.vit.anatomy
    with torch.no_grad():
        for index, block in enumerate(anatomy.blocks):
            steps = block.run(stream[index])
            assert worst(steps.out, stream[index + 1]) <= 1e-12
            assert worst(steps.normed1, evidence.tensors("attention_inputs")[index]) <= 1e-12
            torch.testing.assert_close(steps.out, steps.x + steps.branch1 + steps.branch2)
        head = anatomy.head.run(stream[-1])
    assert worst(head.logits, evidence.tensor("logits")) <= 1e-12
    torch.testing.assert_close(head.readers.sum(1), torch.ones(len(head.readers)).double())


@every_family
def test_tokens_and_positions_add_up_to_what_enters_the_first_block(family: Family):
    module, images = family.module(), family.images()
    evidence = evidence_of(module, images, "relevance")
    stem = evidence.vit.anatomy.stem
    embedded, patches = evidence.tensor("embedded"), evidence.tensor("patches")
    with torch.no_grad():
        tokens, positions = stem.operands(patches, embedded, images)
        assert worst(patches, stem.projection(images).flatten(2).mT) <= 1e-12
    torch.testing.assert_close(tokens[:, -patches.shape[1] :], patches)
    total = stem.summed(embedded, patches.shape[1])
    torch.testing.assert_close(tokens + positions, total)
    torch.testing.assert_close(positions, positions[:1].expand_as(positions))
    if family is VARIANTS["no_positions"]:
        assert positions.abs().max() <= 1e-12


# Against autograd through the library's own forward pass


@contextmanager
def plain_attention(seen: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every library compute attention in the open; its probabilities keep their gradients."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *_: object, **options: object) -> Tensor:
        scale = options.get("scale") or query.shape[-1] ** -0.5
        attention = (query @ key.mT * scale).softmax(-1)
        attention.retain_grad()
        seen.append(attention)
        return attention @ value

    with monkeypatch.context() as patch:
        patch.setattr(functional, "scaled_dot_product_attention", attend)
        yield


def by_definition(
    module: nn.Module, images: Tensor, target: Tensor, family: Family, monkeypatch
) -> dict[str, Tensor]:
    """METHODS.md §3, word by word, from what autograd gives for the library's own forward."""
    module, attention, stream = copy.deepcopy(module), [], []

    def keep(_: nn.Module, args: tuple, kwargs: dict) -> None:
        tokens = args[0] if args else kwargs["hidden_states"]
        tokens.retain_grad()
        stream.append(tokens)

    for block in blocks_of(module):
        block.register_forward_pre_hook(keep, with_kwargs=True)
    with plain_attention(attention, monkeypatch):
        logits = fs.wrap(module).logits(images.clone().requires_grad_(True))
    logits.gather(1, target[:, None]).sum().backward()
    assert len(attention) == len(stream)
    gradients = [values.grad for values in attention]
    attention = [values.detach() for values in attention]
    count, prefix = attention[0].shape[-1], family.prefix
    row = torch.zeros(count, dtype=torch.float64)
    row[0 if family.readout == "class" else slice(prefix, None)] = 1
    row = row / row.sum()
    identity = torch.eye(count, dtype=torch.float64)

    def product(matrices: list[Tensor]) -> Tensor:
        total = identity
        for matrix in matrices:
            total = matrix @ total
        return row @ total

    rolled = [values.mean(1) + identity for values in attention]
    weighted = [(g * a).clamp(min=0).mean(1) for g, a in zip(gradients, attention, strict=True)]
    last, last_gradient = attention[-1], gradients[-1]
    weights = (row @ last_gradient)[..., prefix:].mean(-1, keepdim=True)
    maps = {
        "raw_attention": row @ last.mean(1),
        "rollout": product([matrix / matrix.sum(-1, keepdim=True) for matrix in rolled]),
        "grad_cam": (weights * (row @ last)).mean(1).clamp(min=0),
        "transformer_mm": product([identity + matrix for matrix in weighted]),
        "attcat": sum(
            (h.detach() * h.grad).sum(-1) * a.mean((1, 2))
            for h, a in zip(stream, attention, strict=True)
        ),
    }
    return {name: values[:, prefix:].reshape(-1, *family.grid) for name, values in maps.items()}


@every_family
def test_attention_methods_are_what_autograd_gives_by_their_definitions(
    family: Family, monkeypatch: pytest.MonkeyPatch
):
    module, images, target = family.module(), family.images(3), torch.tensor([0, 1, 3])
    expected = by_definition(module, images, target, family, monkeypatch)
    maps = fs.explain(module, images, READING_ATTENTION, target=target, units="patches")
    for name, values in expected.items():
        assert values.abs().max() > 0
        if name == "attcat" and family is VARIANTS["one_block"]:
            # A patch that meets nothing but a LayerNorm has h·dh = 0, but for rounding and eps.
            torch.testing.assert_close(maps[name], values, rtol=0, atol=1e-14)
        else:
            assert worst(maps[name], values) <= 1e-10, name


def conservative_by_definition(
    module: nn.Module, images: Tensor, target: Tensor, family: Family, monkeypatch
) -> Tensor:
    """Autograd through the library's forward, attention and deviations held constant."""
    module, seen = copy.deepcopy(module), []

    def attend(query: Tensor, key: Tensor, value: Tensor, *_: object, **options: object) -> Tensor:
        scale = options.get("scale") or query.shape[-1] ** -0.5
        return (query @ key.mT * scale).softmax(-1).detach() @ value

    def norm(x: Tensor, shape: object, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        deviation = (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt().detach()
        return (x - x.mean(-1, keepdim=True)) / deviation * weight + (0 if bias is None else bias)

    def keep(_: nn.Module, args: tuple, kwargs: dict) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])
        seen[-1].retain_grad()

    before = getattr(module, "norm_pre", nn.Identity())
    place = blocks_of(module)[0] if isinstance(before, nn.Identity) else before
    place.register_forward_pre_hook(keep, with_kwargs=True)
    with monkeypatch.context() as patch:
        patch.setattr(functional, "scaled_dot_product_attention", attend)
        patch.setattr(functional, "layer_norm", norm)
        logits = fs.wrap(module).logits(images.clone().requires_grad_(True))
    logits.gather(1, target[:, None]).sum().backward()
    tokens = (seen[0].detach() * seen[0].grad).sum(-1)
    return tokens[:, family.prefix :].reshape(-1, *family.grid)


@every_family
def test_conservative_lrp_is_what_autograd_gives_by_its_definition(
    family: Family, monkeypatch: pytest.MonkeyPatch
):
    module, images, target = family.module(), family.images(3), torch.tensor([0, 1, 3])
    expected = conservative_by_definition(module, images, target, family, monkeypatch)
    maps = fs.explain(module, images, "conservative_lrp", target=target, units="patches")
    assert worst(maps, expected) <= 1e-10


# Relevance is conserved


@every_family
def test_conserving_relevance_sums_to_one_between_all_blocks(family: Family):
    evidence = evidence_of(family.module(), family.images(3), "relevance")
    with torch.no_grad():
        sweep = evidence.sweep("conserving")
        for index in reversed(range(len(evidence.vit.blocks) + 1)):
            total = sweep.descend(index).sum((1, 2))
            torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)


@every_family
@pytest.mark.parametrize("rules", ["original", "conserving"])
def test_pixels_get_the_relevance_that_their_patches_have(family: Family, rules: str):
    module, images = family.module(), family.images(3)
    evidence = evidence_of(module, images, "relevance")
    stem = evidence.vit.anatomy.stem
    patches, embedded = evidence.tensor("patches"), evidence.tensor("embedded")
    with torch.no_grad():
        entering = evidence.sweep(rules).descend(0)
        operands = stem.operands(patches, embedded, images)
        relevance = patch_relevance(stem, *operands, entering, rules)
        pixels = pixel_relevance(stem, images, relevance)
    assert pixels.shape == (3, *family.size)
    rows, columns = family.patch
    inside = pixels.unfold(1, rows, rows).unfold(2, columns, columns).sum((3, 4))
    of_patches = relevance.sum(-1).reshape(-1, *family.grid)
    assert worst(inside, of_patches) <= 1e-6


# Right, or refused in a sentence that names the part


class PostNorm(Block):
    def forward(self, x: Tensor, **_: object) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class Parallel(Block):
    def forward(self, x: Tensor, **_: object) -> Tensor:
        return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))


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


class Tempered(VisionTransformer):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) / 3


def two_layer_head() -> nn.Module:
    module = torchvision_vit()
    module.heads = nn.Sequential(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, CLASSES))
    return module


UNUSUAL_PARTS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "post_norm": (lambda: timm_vit(block_fn=PostNorm), "block 'blocks.2'"),
    "timm_post_norm": (lambda: timm_vit(block_fn=ResPostBlock, init_values=1), "block 'blocks.2'"),
    "parallel_mlp": (lambda: timm_vit(block_fn=Parallel), "block 'blocks.2'"),
    "swiglu": (lambda: timm_vit(mlp_layer=timm.layers.SwiGLU), "block 'blocks.0'"),
    # timm's DINOv2 giant has this MLP.
    "packed_swiglu": (lambda: timm_vit(mlp_layer=timm.layers.SwiGLUPacked), "block 'blocks."),
    "something_between_blocks": (lambda: Between(**TIMM), "does something"),
    "two_layer_head": (two_layer_head, "head is not one linear layer"),
    "temperature": (lambda: Tempered(**TIMM), "head"),
    "hf_swiglu": (lambda: hf("Dinov2", mlp_ratio=2, use_swiglu_ffn=True), "block 'dinov2"),
    "hf_beit": (lambda: hf("Beit"), "block 'beit"),
    "hf_data2vec": (lambda: hf("Data2VecVision"), "block 'data2vec_vision"),
}


@pytest.mark.parametrize("name", UNUSUAL_PARTS)
def test_unusual_parts_are_refused_by_name_where_every_part_must_be_known(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    build, named = UNUSUAL_PARTS[name]
    module, images = seeded(build), images_of((32, 32), 3)
    for method in NEEDING_PARTS:
        with refused(named):
            fs.explain(module, images, method, target=1)
    target = torch.tensor([0, 1, 3])
    family = Family(build, readout="mean" if name in ("hf_beit", "hf_data2vec") else "class")
    expected = by_definition(module, images, target, family, monkeypatch)
    maps = fs.explain(module, images, READING_ATTENTION, target=target, units="patches")
    for method, values in expected.items():
        assert worst(maps[method], values) <= 1e-10, method


@pytest.mark.parametrize("name", UNADAPTABLE)
def test_unknown_attention_is_refused_where_every_part_must_be_known(name: str):
    module = seeded(UNADAPTABLE[name][0])
    images = images_of(fs.wrap(module).input_size or (32, 32))
    for method in NEEDING_PARTS:
        with refused():
            fs.explain(module, images, method, target=1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: timm_vit(block_fn=ParallelScalingBlock), ["attention=[…]"]),
        (lambda: Twice(**TIMM), ["twice"]),
        (lambda: Skipping(**TIMM), ["2 of its 3"]),
        (lambda: timm_model("xcit_nano_12_p16_224", depth=2), ["blocks.0.attn"]),
    ],
    ids=["parallel_scaling", "twice", "skipping", "cross_covariance"],
)
def test_a_model_whose_attention_cannot_be_read_is_refused_by_all_that_read_it(build, words):
    module = seeded(build)
    images = images_of(fs.wrap(module).input_size or (32, 32), 1)
    for method in READING_ATTENTION + NEEDING_PARTS:
        with refused(*words):
            fs.explain(module, images, method, target=1)
    assert fs.explain(module, images, "gradient", target=1).isfinite().all()


def test_a_convolutional_stem_is_refused_by_lrp_alone():
    module, images = seeded(timm_convolutional_stem), images_of((32, 32), 3)
    with refused("2 convolutions", "partial_lrp"):
        fs.explain(module, images, "lrp")
    for place in ("patches", "pixels"):
        with refused("2 convolutions", "at=tokens"):
            fs.explain(module, images, f"conservative_lrp(at={place})")
    evidence = evidence_of(module, images, "relevance")
    with torch.no_grad():
        total = evidence.sweep("conserving").descend(0).sum((1, 2))
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)
    maps = fs.explain(module, images, ["partial_lrp", "transformer_attribution"])
    assert all((values.flatten(1).std(1) > 0).all() for values in maps.values())


def test_conservative_lrp_reads_tokens_before_the_first_norm_whatever_the_stem(
    monkeypatch: pytest.MonkeyPatch,
):
    family = Family(partial(timm_convolutional_stem, pre_norm=True))
    module, images, target = family.module(), family.images(3), torch.tensor([0, 1, 3])
    expected = conservative_by_definition(module, images, target, family, monkeypatch)
    right_or_refused(module, images, "conservative_lrp", expected, target)


def test_other_norms_are_refused_by_conservative_lrp_alone(monkeypatch: pytest.MonkeyPatch):
    family = Family(lambda: timm_vit(norm_layer="rmsnorm"))
    module, images, target = family.module(), family.images(3), torch.tensor([0, 1, 3])
    with refused("LayerNorm", "RmsNorm"):
        fs.explain(module, images, "conservative_lrp")
    assert fs.explain(module, images, "conservative_lrp(norm=none)").isfinite().all()
    expected = by_definition(module, images, target, family, monkeypatch)
    maps = fs.explain(module, images, READING_ATTENTION, target=target, units="patches")
    for method, values in expected.items():
        assert worst(maps[method], values) <= 1e-10, method
    test_conserving_relevance_sums_to_one_between_all_blocks(family)


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


def normalised(images: Tensor) -> Tensor:
    mean, std = images.new_tensor([0.49, 0.46, 0.41]), images.new_tensor([0.2, 0.3, 0.4])
    return (images - mean[:, None, None]) / std[:, None, None]


class Normalising(VisionTransformer):
    """Takes images as they are and normalises them itself, as many deployed models do."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(normalised(images))


@pytest.mark.parametrize("method", ["lrp", "lrp(rules=conserving)", "conservative_lrp(at=pixels)"])
def test_a_model_that_normalises_inside_is_never_explained_at_the_wrong_pixels(method: str):
    inside, outside = seeded(lambda: Normalising(**TIMM)), seeded(timm_vit)
    images = images_of((32, 32))
    expected = fs.explain(outside, normalised(images), method, target=1)
    right_or_refused(inside, images, method, expected)


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


@pytest.mark.parametrize("count", [1, 2])
def test_a_norm_in_the_patch_embedding_is_refused_by_lrp_whatever_the_batch(count: int):
    module = seeded(lambda: timm_vit(dynamic_img_size=True, embed_norm_layer=nn.LayerNorm))
    for size in ((32, 32), (48, 40)):
        with refused("patch embedding"):
            fs.explain(module, images_of(size, count), "lrp", target=1)


# 2×8 patches are as many as 4×4: the learned positions have the right shape, but are not added.
def test_positions_interpolated_to_as_many_patches_in_another_shape_are_understood():
    module = seeded(lambda: timm_vit(dynamic_img_size=True))
    maps = fs.explain(module, images_of((16, 64)), NEEDING_PARTS, target=1)
    assert all(values.isfinite().all() for values in maps.values())


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        return self.module(images)


class OwnPooling(VisionTransformer):
    """Class token in front, but its head reads the mean of the patches."""

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(tokens[:, 1:].mean(1))


def clip_classifier() -> nn.Module:
    vision = {"image_size": 32, "patch_size": 8, "hidden_size": 24, "intermediate_size": 48}
    vision |= {"num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.CLIPConfig(vision_config=vision, num_labels=CLASSES)
    return transformers.CLIPForImageClassification(config)


POOLING: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "hf_ijepa": (lambda: hf("IJepa"), 0),
    "hf_clip": (clip_classifier, 1),
    "wrapped": (lambda: Wrapper(timm_vit(global_pool="avg")), 1),
    "sequential": (lambda: nn.Sequential(nn.Identity(), timm_vit(global_pool="avg")), 1),
    "data_parallel": (lambda: nn.DataParallel(timm_vit(global_pool="avg")), 1),
    "own_pooling": (lambda: OwnPooling(**TIMM), 1),
}


# None of these says at its outermost module what its head reads.
@pytest.mark.parametrize("name", POOLING)
def test_a_head_that_pools_is_never_explained_by_the_class_token(name: str):
    build, prefix = POOLING[name]
    module, images = seeded(build), images_of((32, 32), 3)
    known = {"prefix_tokens": prefix} if name == "hf_clip" else {}
    told = fs.wrap(module, **{"prefix_tokens": prefix, "readout": "mean"})
    for method in ("raw_attention", "rollout", "grad_cam", "transformer_mm"):
        expected = fs.explain(told, images, method, target=1, units="patches")
        right_or_refused(fs.wrap(module, **known), images, method, expected)


class Biased(Attention):
    """A bias on the scores, as relative positions are."""

    def forward(self, tokens: Tensor, **_: object) -> Tensor:
        joint = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = joint.unbind(0)
        scores = query @ key.mT * self.scale + 2 * torch.eye(tokens.shape[1]).to(tokens)
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


# A bias may be most of the output and must not hide the rest.
@pytest.mark.parametrize(
    ("dtype", "bias"), [(torch.float32, 1.0), (torch.float32, 1000.0), (torch.bfloat16, 100.0)]
)
def test_unknown_attention_is_refused_behind_a_large_bias_too(dtype: torch.dtype, bias: float):
    module = seeded(timm_vit, torch.float32)
    for block in module.blocks:
        block.attn.__class__ = Biased
        block.attn.proj.bias.data[0] = bias
    with refused("'blocks.2.attn'"):
        fs.explain(module.to(dtype), images_of((32, 32), dtype=dtype), "raw_attention")


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
        ("float64", "all"),
    ],
)
def test_whatever_fails_wherever_the_model_is_left_as_it_was_found(error, when: str, methods: str):
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
