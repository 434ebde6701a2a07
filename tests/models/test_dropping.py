"""Dropping patches: as if they had been left out by hand, and nothing stays behind."""

import copy

import pytest
import torch
from torch import Tensor, nn

import faithscope as fs
from conftest import randn
from faithscope.models.dropping import find_dropping
from families import EVERY, UNADAPTABLE, Family, refused, seeded, state_of, timm_model, timm_vit


def found(model: fs.Model, images: Tensor):
    with torch.inference_mode():
        return find_dropping(model, model.module, model.logits, images)


def kept_of(count: int, patches: int, left: int) -> Tensor:
    """Which patches each image keeps, another choice for each: [count, left], ascending."""
    scores = randn(count, patches, seed=left)
    return scores.argsort(1)[:, :left].sort(1).values


def answers(model: fs.Model, images: Tensor, kept: Tensor) -> Tensor:
    patches = torch.Size(model.require_grid(images, "a test")).numel()
    dropping = found(model, images)
    with torch.inference_mode(), dropping.keep(model.module, kept, patches):
        return model.logits(images)


# --- The same by hand, image by image ---


def by_timm(module: nn.Module, image: Tensor, kept: Tensor, prefix: int) -> Tensor:
    tokens = module.norm_pre(module._pos_embed(module.patch_embed(image)))
    tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:][:, kept]], dim=1)
    for block in module.blocks:
        tokens = block(tokens)
    return module.forward_head(module.norm(tokens))


def by_eva(module: nn.Module, image: Tensor, kept: Tensor, prefix: int) -> Tensor:
    tokens, rope = module._pos_embed(module.patch_embed(image))
    tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:][:, kept]], dim=1)
    tokens = module.norm_pre(tokens)
    for place, block in enumerate(module.blocks):
        own = rope[place] if getattr(module, "rope_mixed", False) else rope
        tokens = block(tokens, rope=own[..., kept, :])
    return module.forward_head(module.norm(tokens))


def by_hugging_face(module: nn.Module, image: Tensor, kept: Tensor, prefix: int) -> Tensor:
    backbone = getattr(module, "vit", None) or module.deit
    tokens = backbone.embeddings(image)
    tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:][:, kept]], dim=1)
    for layer in backbone.layers:
        tokens = layer(tokens)
    return module.classifier(backbone.layernorm(tokens)[:, 0])


def by_torchvision(module: nn.Module, image: Tensor, kept: Tensor, prefix: int) -> Tensor:
    patches = module._process_input(image)
    tokens = torch.cat([module.class_token, patches], dim=1) + module.encoder.pos_embedding
    tokens = torch.cat([tokens[:, :1], tokens[:, 1:][:, kept]], dim=1)
    return module.heads(module.encoder.ln(module.encoder.layers(tokens))[:, 0])


BY_HAND = {
    "timm_vit": by_timm,
    "timm_oblong_patches": by_timm,
    "timm_pooled": by_timm,
    "pooled_with_class_token": by_timm,
    "pooled_with_registers": by_timm,
    "timm_distilled": by_timm,
    "timm_registers": by_timm,
    "norm_before_blocks": by_timm,
    "class_token_without_position": by_timm,
    "siglip": by_timm,
    "eva02": by_eva,
    "rope": by_eva,
    "rope_mixed": by_eva,
    "dinov3": by_eva,
    "hf_vit": by_hugging_face,
    "hf_deit": by_hugging_face,
    "torchvision_vit": by_torchvision,
}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", list(BY_HAND))
def test_answers_are_those_of_a_sequence_cut_by_hand(name: str, share: float) -> None:
    family = EVERY[name]
    model, images = family.model(), family.images(3)
    patches = family.grid[0] * family.grid[1]
    kept = kept_of(3, patches, max(1, int(share * patches)))
    with torch.inference_mode():
        alone = [
            BY_HAND[name](model.module, image[None], own, family.prefix)
            for image, own in zip(images, kept, strict=True)
        ]
    torch.testing.assert_close(answers(model, images, kept), torch.cat(alone), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["timm_vit", "timm_distilled", "timm_registers", "hf_vit"])
def test_without_any_patch_the_prefix_tokens_are_left(name: str) -> None:
    family = EVERY[name]
    model, images = family.model(), family.images()
    assert found(model, images).alone
    nothing = torch.empty(2, 0, dtype=torch.int64)
    with torch.inference_mode():
        by_hand = BY_HAND[name](model.module, images[:1], nothing[0], family.prefix)
    given = answers(model, images, nothing)
    torch.testing.assert_close(given, by_hand.expand(2, -1), rtol=0, atol=1e-10)


ALONE = {"class": True, "all": True, "mean": False}


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"siglip"}))
def test_what_a_model_reads_tells_whether_it_answers_without_patches(name: str) -> None:
    """And every model but those with relative positions inside their blocks allows dropping."""
    family = EVERY[name]
    model, images = family.model(), family.images()
    if name in PLACED:
        with refused("place in the sequence", "choose another fill"):
            found(model, images)
        return
    dropping = found(model, images)
    assert dropping.prefix == family.prefix
    reads_both = name.startswith(("hf_dinov2", "hf_swiglu"))  # class token and mean of the patches
    if family.readout != "attention":
        assert dropping.alone is (ALONE[family.readout] and not reads_both)


PLACED = {"beit", "relative_positions", "post_norm_relative_positions", "hf_beit_bias"}


@pytest.mark.parametrize("name", ["siglip", "attention_pool", "hf_siglip_pool"])
def test_an_attention_pool_over_patches_reads_nothing_without_them(name: str) -> None:
    family = EVERY[name]
    assert not found(family.model(), family.images()).alone


# --- Nothing changes but the sequence ---


@pytest.mark.parametrize("name", ["timm_vit", "timm_registers", "rope", "hf_vit"])
def test_dropping_nothing_gives_the_bits_of_the_intact_model(name: str) -> None:
    family = EVERY[name]
    model, images = family.model(), family.images()
    everything = torch.arange(family.grid[0] * family.grid[1]).expand(2, -1)
    with torch.inference_mode():
        intact = model.logits(images)
    assert torch.equal(answers(model, images, everything), intact)


def test_a_batch_answers_as_its_images_alone() -> None:
    family = EVERY["rope_mixed"]
    model, images, kept = family.model(), family.images(4), kept_of(4, 16, 7)
    together = answers(model, images, kept)
    alone = [answers(model, images[i : i + 1], kept[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["timm_vit", "eva02", "hf_vit", "beit"])
def test_the_model_is_left_as_found(name: str) -> None:
    family = EVERY[name]
    model, images = family.model(), family.images()
    before = state_of(model.module)
    try:
        answers(model, images, kept_of(2, 16, 5))
    except fs.FaithscopeError:
        assert name == "beit"
    assert state_of(model.module) == before


def test_hooks_are_gone_after_an_error() -> None:
    family = EVERY["timm_vit"]
    model, images = family.model(), family.images()
    dropping, before = found(model, images), state_of(model.module)
    with pytest.raises(KeyError), dropping.keep(model.module, kept_of(2, 16, 5), 16):
        raise KeyError
    assert state_of(model.module) == before


def test_a_copy_in_another_precision_is_cut_as_well() -> None:
    family = EVERY["timm_vit"]
    model, images, kept = family.model(), family.images(), kept_of(2, 16, 5)
    exact, dropping = answers(model, images, kept), found(model, images)
    copied = copy.deepcopy(model.module).to(torch.bfloat16)
    with torch.inference_mode(), dropping.keep(copied, kept, 16):
        rough = copied(images.to(torch.bfloat16))
    assert (rough.double() - exact).abs().max() < 0.05 * exact.abs().max()


def test_a_compiled_model_is_cut_as_well() -> None:
    family = EVERY["timm_vit"]
    model, images, kept = family.model(), family.images(), kept_of(2, 16, 5)
    expected = answers(model, images, kept)
    compiled = fs.wrap(torch.compile(model.module, backend="eager"))
    with torch.inference_mode():
        compiled.logits(images)
    assert torch.equal(answers(compiled, images, kept), expected)


# --- What is refused ---


class Overlapping(nn.Module):
    """A stem whose patches see their neighbours."""

    def __init__(self, stem: nn.Module) -> None:
        super().__init__()
        self.stem, self.smooth = stem, nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.stem(self.smooth(images))


class Bypass(nn.Module):
    """What the patches hold reaches the logits around the blocks, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = timm_vit(num_classes=0)
        self.head = nn.Linear(24, 5)

    def forward(self, images: Tensor) -> Tensor:
        beside = self.inner.patch_embed(images).mean(1)
        return self.head(self.inner(images) + beside)


class Columns(nn.Module):
    """Tokens from top to bottom, then to the right."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = timm_vit()

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images.mT)


class Flat(nn.Module):
    """A head that needs a token of every patch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = timm_vit(num_classes=0)
        self.head = nn.Linear(17 * 24, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.inner.forward_features(images).flatten(1))


class Direct(nn.Module):
    """Calls its blocks so that no hook sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = timm_vit()

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.inner._pos_embed(self.inner.patch_embed(images))
        for block in self.inner.blocks:
            tokens = block.forward(tokens)
        return self.inner.forward_head(self.inner.norm(tokens))


def overlapping() -> nn.Module:
    module = timm_vit()
    module.patch_embed.proj = Overlapping(module.patch_embed.proj)
    return module


ODD = {
    "overlapping": (overlapping, "still sees patches that were dropped"),
    "bypass": (Bypass, "still sees patches that were dropped"),
    "columns": (Columns, "still sees patches that were dropped"),
    "flat": (Flat, "place in the sequence"),
    "direct": (Direct, "does not call its first block 'inner.blocks.0' as a module"),
}


@pytest.mark.parametrize("name", list(ODD))
def test_what_would_be_wrong_is_refused_by_its_cause(name: str) -> None:
    build, why = ODD[name]
    model, images = Family(build).model(), Family(build).images()
    with refused("fill='drop'", why, "choose another fill"):
        found(model, images)


@pytest.mark.parametrize("name", ["windows", "convolutions", "cross_covariance"])
def test_what_is_no_stack_of_blocks_is_refused_by_its_kind(name: str) -> None:
    build, why = UNADAPTABLE[name]
    model = fs.wrap(seeded(build))
    with refused("fill='drop'", why.split(",")[0], "choose another fill"):
        fs.evaluate(
            fs.wrap(model.module, patch_size=8),
            randn(2, 3, 32, 32),
            "gradient",
            fill="drop",
            units="patches",
        )


def test_blocks_that_cannot_be_called_are_refused() -> None:
    model = fs.wrap(seeded(timm_vit), attention=[timm_model("vit_tiny_patch16_224").blocks[0].attn])
    with refused("its blocks were not found", "choose another fill"):
        found(model, randn(2, 3, 32, 32))
