"""Relevance and gradients of a model's parts: rules on paper, sums kept, autograd in one go.

Models are compared with themselves: their attention and norms are swapped for functions that know
nothing of faithscope (helpers/plain.py), and one call of autograd does the rest.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from timm.layers import GluMlp, RmsNorm, SwiGLUPacked, apply_rot_embed_cat
from timm.models.vision_transformer import ResPostBlock
from torch import Tensor, nn

import faithscope as fs
from conftest import randn
from faithscope.methods.attention import gradient_rollout
from faithscope.methods.evidence import NEEDS, Evidence
from faithscope.methods.named_layer import grad_cam
from faithscope.methods.relevance import (
    STABILISER,
    add_relevance,
    clone_relevance,
    divide,
    linear_relevance,
    product_relevance,
)
from faithscope.methods.trace import gather
from faithscope.models.tape import Tape
from families import DEPTH, FAMILIES, Family, eva, images_of, refused, seeded, timm_vit
from plain import chosen_logit, conservative_maps, watched
from sweeps import Noted

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
both_rules = pytest.mark.parametrize("rules", ["original", "conserving"])


def some_families(*names: str):
    return pytest.mark.parametrize("family", [FAMILIES[name] for name in names], ids=names)


def tensors(*shape: int) -> st.SearchStrategy[Tensor]:
    """Multiples of 1/4, exact zeros and opposites among them."""
    count = int(np.prod(shape))
    values = st.lists(st.integers(-8, 8), min_size=count, max_size=count)
    return values.map(lambda v: torch.tensor(v, dtype=torch.float64).reshape(shape) / 4)


def assert_close(ours: Tensor, expected, tolerance: float = 1e-12) -> None:
    """Compare on the scale of the largest value expected."""
    expected = torch.as_tensor(expected, dtype=ours.dtype)
    scale = max(float(expected.abs().max()), 1e-300)
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance * scale)


def by_sample(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1)


# Division


def test_division_is_stabilised_upwards_whatever_the_sign():
    one = torch.ones(4, dtype=torch.float64)
    total = torch.tensor([2.0, -2.0, 1e-9, -3e-9], dtype=torch.float64)
    expected = [1 / (2 + 1e-9), 1 / (-2 + 1e-9), 1 / 2e-9, -1 / 2e-9]
    assert_close(divide(one, total), expected, 1e-15)


def test_division_by_exactly_zero_is_zero():
    total = torch.tensor([0.0, -0.0], dtype=torch.float64)
    assert torch.equal(divide(torch.tensor([3.0, -3.0]).double(), total).abs(), total.abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_division_by_the_stabilisers_opposite_is_by_the_stabiliser(dtype: torch.dtype):
    total = torch.tensor([-STABILISER], dtype=dtype)
    assert divide(torch.ones(1, dtype=dtype), total).item() == pytest.approx(1e9, rel=1e-6)


# Linear layers


X = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
W = torch.tensor([[1.0, 3.0], [1.0, -1.0], [-2.0, -4.0]], dtype=torch.float64)
"""Contributions w x: (2, -3), (2, 1), (-4, 4): only positive ones receive relevance."""


def test_a_linear_layer_shares_relevance_by_positive_contributions():
    relevance = torch.tensor([[10.0, 3.0, 100.0]], dtype=torch.float64)
    ours = linear_relevance(X, W, relevance, "conserving")
    assert_close(ours, [[10 + 3 * 2 / 3, 3 * 1 / 3 + 100]], 2e-9)


def test_the_original_rule_gives_both_signs_of_inputs_all_the_relevance():
    relevance = torch.tensor([[10.0, 3.0, 100.0]], dtype=torch.float64)
    ours = linear_relevance(X, W, relevance, "original")
    assert_close(ours, [[10 + 3, 3 + 100]], 2e-9)


linear_layers = given(x=tensors(3, 4), w=tensors(5, 4), relevance=tensors(3, 5))


def contributions(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """What positive and what negative inputs add to each output: [batch, out]."""
    each = x[:, None] * w
    positive = each.clamp(min=0)
    return (positive * (x > 0)[:, None]).sum(-1), (positive * (x < 0)[:, None]).sum(-1)


@linear_layers
def test_a_conserving_linear_layer_keeps_the_sum_of_each_sample(x, w, relevance):
    found = linear_relevance(x, w, relevance, "conserving")
    plus, minus = contributions(x, w)
    reached = plus + minus > 0  # an output without positive contributions has nobody to hand it to
    # Contributions are multiples of 1/16: the stabiliser takes no more than 16e-9 of relevance.
    lost = (by_sample(found) - by_sample(relevance * reached)).abs()
    assert (lost <= 1.7e-8 * by_sample(relevance.abs())).all()


@linear_layers
def test_the_original_rule_keeps_the_sum_of_each_part_apart(x, w, relevance):
    found = linear_relevance(x, w, relevance, "original")
    for part, reached in zip((x > 0, x < 0), contributions(x, w), strict=True):
        lost = (by_sample(found * part) - by_sample(relevance * (reached > 0))).abs()
        assert (lost <= 1.7e-8 * by_sample(relevance.abs())).all()


@linear_layers
def test_a_linear_layer_gives_nothing_to_inputs_that_are_zero_and_takes_tokens_one_by_one(
    x, w, relevance
):
    for rules in ("original", "conserving"):
        found = linear_relevance(x, w, relevance, rules)
        assert (found[x == 0] == 0).all()
        tokens = linear_relevance(x[None], w, relevance[None], rules)
        assert_close(tokens[0], found)


# Sums


def test_the_original_rule_of_a_sum_shares_in_proportion():
    a, b = torch.tensor([[[3.0, 1.0, 1.0]]]).double(), torch.tensor([[[1.0, -3.0, -1.0]]]).double()
    relevance = torch.tensor([[[8.0, 2.0, 5.0]]]).double()
    to_a, to_b = add_relevance(a, b, relevance, "original")
    assert_close(to_a, [[[6, -1, 0]]], 2e-9)  # 1 - 1 is exactly 0: nobody gets that relevance
    assert_close(to_b, [[[2, 3, 0]]], 2e-9)


def test_the_conserving_rule_of_a_sum_rescales_both_operands_to_the_whole():
    a, b = torch.tensor([[[3.0, 1.0]]]).double(), torch.tensor([[[1.0, -3.0]]]).double()
    relevance = torch.tensor([[[8.0, 14.0]]]).double()
    # In proportion, (6, -7) and (2, 21): the whole, 22, is shared 1 : 23, though 6 - 7 is negative.
    to_a, to_b = add_relevance(a, b, relevance, "conserving")
    assert_close(to_a, [[[-6 * 22 / 24, 7 * 22 / 24]]], 1e-8)
    assert_close(to_b, [[[2 * 22 / 24, 21 * 22 / 24]]], 1e-8)


adds = given(a=tensors(3, 2, 3), b=tensors(3, 2, 3), relevance=tensors(3, 2, 3))


@adds
def test_a_conserving_sum_keeps_the_sum_of_each_sample_and_shares_it_by_size(a, b, relevance):
    sums = torch.stack([by_sample(part) for part in add_relevance(a, b, relevance, "original")])
    assume(((sums == 0) | (sums.abs() > 0.01)).all())  # else the stabiliser takes what it likes
    assume((sums != 0).any(0).all())
    whole = by_sample(relevance)
    found = torch.stack([by_sample(part) for part in add_relevance(a, b, relevance, "conserving")])
    assert ((found.sum(0) - whole).abs() <= 1e-6 * whole.abs()).all()
    shares = sums.abs() / sums.abs().sum(0)
    assert ((found - shares * whole).abs() <= 1e-6 * whole.abs()).all()


@adds
def test_sums_in_a_batch_are_shared_as_one_by_one(a, b, relevance):
    # The published program took sums over the whole batch.
    scale = torch.tensor([1.0, 10.0, -100.0], dtype=torch.float64)[:, None, None]
    for rules in ("original", "conserving"):
        together = add_relevance(a, b, relevance * scale, rules)
        for one in range(3):
            part = slice(one, one + 1)
            alone = add_relevance(a[part], b[part], relevance[part] * scale[part], rules)
            for whole, single in zip(together, alone, strict=True):
                assert_close(whole[part], single, 1e-10)


# Copies and products


@given(x=tensors(2, 3), one=tensors(2, 3), other=tensors(2, 3))
def test_a_tensor_used_twice_gets_the_relevance_of_both_uses_unless_it_is_zero(x, one, other):
    found = clone_relevance(x, one, other)
    assert_close(found, (one + other) * (x != 0), 1e-8)
    assert (found[x == 0] == 0).all()


def test_the_factors_of_a_product_get_half_each():
    a, b = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[3.0], [0.5]]).double()
    to_a, to_b = product_relevance(a, b, a @ b, torch.tensor([[8.0]]).double())
    assert_close(to_a, [[3.0, 1.0]], 1e-9)  # 3 and 1 of the product 4 are each term's, times 8 / 2
    assert_close(to_b, [[3.0], [1.0]], 1e-9)


@given(a=tensors(2, 3, 2), b=tensors(2, 2, 4), relevance=tensors(2, 3, 4))
def test_the_factors_of_a_product_share_its_sum_equally(a, b, relevance):
    product = a @ b
    to_a, to_b = product_relevance(a, b, product, relevance)
    half = by_sample(relevance * (product != 0)) / 2
    scale = by_sample(relevance.abs())
    # Products are multiples of 1/16: the stabiliser takes no more than 16e-9 of relevance.
    assert ((by_sample(to_a) - half).abs() <= 1.7e-8 * scale).all()
    assert ((by_sample(to_b) - half).abs() <= 1.7e-8 * scale).all()


# Pixels


def convolved(x: Tensor, weight: Tensor, relevance: Tensor, rules: str, *, pixels: bool) -> Tensor:
    """Relevance [B, C, H, W] of what a convolution in patches was given."""
    tape = Tape()
    root = tape.root(x)
    with tape:
        made = nn.functional.conv2d(root, weight, stride=weight.shape[-2:])
    grid = relevance.mT.unflatten(-1, made.shape[-2:])
    return Noted(tape, rules, "this test").run(made, grid, root, pixels=pixels)


def test_pixels_share_by_how_far_each_is_from_its_worst_value():
    weight = torch.tensor([[[[1.0, -2.0]]]]).double()
    images = torch.tensor([[[[0.5, -1.0]]], [[[0.0, 8.0]]]]).double()
    relevance = torch.tensor([[[9.0]], [[9.0]]]).double()
    # First image: w x - w⁺ low - w⁻ high = (0.5 + 1, 2 + 1); second: (0 - 0, -16 + 16) are both 0,
    # by its own bounds 0 and 8.
    found = convolved(images, weight, relevance, "original", pixels=True).sum(1)
    assert_close(found, [[[3.0, 6.0]], [[0.0, 0.0]]], 1e-8)


@given(x=tensors(3, 2, 4, 4), w=tensors(5, 2, 2, 2), relevance=tensors(3, 4, 5))
def test_pixels_get_all_the_relevance_that_patches_had(x, w, relevance):
    low = x.amin((1, 2, 3), keepdim=True).expand_as(x)
    high = x.amax((1, 2, 3), keepdim=True).expand_as(x)
    patches = nn.functional.unfold(x, 2, stride=2).mT
    flat = w.flatten(1)
    room = (patches[:, :, None] * flat).sum(-1)
    room = room - nn.functional.unfold(low, 2, stride=2).mT @ flat.clamp(min=0).T
    room = room - nn.functional.unfold(high, 2, stride=2).mT @ flat.clamp(max=0).T
    found = convolved(x, w, relevance, "original", pixels=True).sum(1)
    lost = (by_sample(found) - by_sample(relevance * (room > 0))).abs()
    assert (lost <= 1.7e-8 * by_sample(relevance.abs())).all()
    assert found.shape == (3, 4, 4)


@given(x=tensors(3, 2, 4, 4), w=tensors(5, 2, 2, 2), relevance=tensors(3, 4, 5))
def test_a_convolution_in_patches_is_a_linear_layer_of_each_patch(x, w, relevance):
    patches = nn.functional.unfold(x, 2, stride=2).mT
    for rules in ("original", "conserving"):
        expected = linear_relevance(patches, w.flatten(1), relevance, rules)
        found = convolved(x, w, relevance, rules, pixels=False)
        assert_close(nn.functional.unfold(found, 2, stride=2).mT, expected, 1e-12)


def test_where_only_patches_have_positions_only_they_share_with_them():
    module = seeded(lambda: timm_vit(no_embed_class=True, reg_tokens=2))
    evidence = evidence_of(module, images_of((32, 32)))
    stem, entered = evidence.tape("stem"), evidence.tensor("entered")
    relevance = randn(*entered.shape)
    descent = Noted(stem, "conserving", "this test")
    descent.run(entered, relevance, stem.roots[0], pixels=True)
    (projection,) = (node for node in stem.nodes if node.kind == "convolution")
    patches = projection.output.flatten(2).mT
    positions = module.pos_embed.expand_as(patches)
    expected, _ = add_relevance(patches.detach(), positions, relevance[:, 3:], "conserving")
    assert_close(descent.relevance(projection.output).flatten(2).mT, expected, 1e-10)


# The sweep


def evidence_of(module: nn.Module, images: Tensor, target: int = 1) -> Evidence:
    chosen = torch.full((len(images),), target)
    module.requires_grad_(False)
    return gather(fs.wrap(module), images, chosen, frozenset(NEEDS), keys=[])


@every_family
def test_conserved_relevance_sums_to_one_at_every_block_boundary(family: Family):
    evidence = evidence_of(family.module(), family.images(3))
    sweep = evidence.sweep("conserving")
    ones = torch.ones(3, dtype=torch.float64)
    for index in reversed(range(DEPTH + 1)):
        relevance = sweep.descend(index)
        assert relevance.shape == evidence.tensors("stream")[index].shape
        torch.testing.assert_close(by_sample(relevance), ones, rtol=0, atol=1e-6)


@both_rules
def test_a_sweep_goes_down_once_and_refuses_to_go_up_again(rules: str):
    evidence = evidence_of(seeded(timm_vit), images_of((32, 32)))
    sweep = evidence.sweep(rules)
    last = sweep.attention(2)
    assert sweep.attention(2) is last
    assert sweep.attention(0).shape == last.shape
    assert sweep.reached == 0
    assert evidence.sweep(rules) is sweep
    with refused("last first"):
        sweep.attention(2)


# Blocks and heads of other parts, step by step


def no_norm(x: Tensor) -> Tensor:
    return x


def relevance_of_block(block, x: Tensor, relevance: Tensor, rules: str, rotate=no_norm):
    """Relevance of what enters a block of timm's, and of its attention, by the rules above."""
    attention, mlp, post = block.attn, block.mlp, isinstance(block, ResPostBlock)
    before1, before2 = (no_norm, no_norm) if post else (block.norm1, block.norm2)
    after1, after2 = (block.norm1, block.norm2) if post else (no_norm, no_norm)
    bias = attention.qkv.bias
    if bias is None:
        bias = torch.cat([attention.q_bias, attention.k_bias, attention.v_bias])
    entered = before1(x)
    joint = nn.functional.linear(entered, attention.qkv.weight, bias)
    heads = joint.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = rotate(heads[0]), rotate(heads[1]), heads[2]
    product = query @ key.mT
    chances = (product * attention.scale).softmax(-1)
    mixed = chances @ value
    flat = mixed.transpose(1, 2).flatten(2)
    branch1 = after1(attention.proj(flat))
    middle = x + branch1
    normed = before2(middle)
    wide = mlp.fc1(normed)
    if isinstance(mlp, GluMlp):
        gate, values = wide.chunk(2, dim=-1)
        inner = mlp.act(gate) * values
    else:
        inner = mlp.act(wide)
    branch2 = after2(mlp.fc2(inner))

    to_middle, to_branch2 = add_relevance(middle, branch2, relevance, rules)
    to_wide = linear_relevance(inner, mlp.fc2.weight, to_branch2, rules)
    if isinstance(mlp, GluMlp):
        to_wide = torch.cat([to_wide / 2, to_wide / 2], dim=-1)
    to_normed = linear_relevance(normed, mlp.fc1.weight, to_wide, rules)
    to_x, to_branch1 = add_relevance(
        x, branch1, clone_relevance(middle, to_middle, to_normed), rules
    )
    to_flat = linear_relevance(flat, attention.proj.weight, to_branch1, rules)
    to_mixed = to_flat.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    cam, to_value = product_relevance(chances, value, mixed, to_mixed)
    to_query, to_key = product_relevance(query, key.mT, product, cam)
    parts = torch.stack([to_query, to_key.mT, to_value]).permute(1, 3, 0, 2, 4).flatten(2)
    to_entered = linear_relevance(entered, attention.qkv.weight, parts, rules)
    return clone_relevance(x, to_x, to_entered), cam


def rotation_of(module: nn.Module, images: Tensor):
    """What a model with rotary positions does to queries and keys of patches."""
    if getattr(module, "rope", None) is None:
        return no_norm
    rope = module._pos_embed(module.patch_embed(images))[1]
    return lambda part: torch.cat(
        [part[:, :, :1], apply_rot_embed_cat(part[:, :, 1:], rope)], dim=2
    )


BLOCKS = {
    "plain": timm_vit,
    "post_norm": lambda: timm_vit(block_fn=ResPostBlock),
    "rms_norm": lambda: timm_vit(norm_layer=RmsNorm),
    "query_and_key_rotated": lambda: eva(use_rot_pos_emb=True),
    "rotated_and_gated": lambda: eva(use_rot_pos_emb=True, swiglu_mlp=True),
    "gated": lambda: timm_vit(mlp_layer=SwiGLUPacked),
}


@both_rules
@pytest.mark.parametrize("build", BLOCKS.values(), ids=BLOCKS)
def test_relevance_goes_through_blocks_of_other_parts_as_step_by_step(build, rules: str):
    module, images = seeded(build), images_of((32, 32))
    evidence = evidence_of(module, images)
    sweep, rotate = evidence.sweep(rules), rotation_of(module, images)
    relevance = sweep.relevance
    for index in reversed(range(len(module.blocks))):
        x = evidence.tensors("stream")[index]
        expected, cam = relevance_of_block(module.blocks[index], x, relevance, rules, rotate)
        relevance = sweep.descend(index)
        assert_close(relevance, expected, 1e-10)
        assert_close(sweep.cam, cam, 1e-10)


@both_rules
def test_relevance_goes_through_an_attention_pool_as_step_by_step(rules: str):
    module, images = seeded(lambda: timm_vit(global_pool="map")), images_of((32, 32))
    evidence = evidence_of(module, images)
    pool, tokens = module.attn_pool, module.norm(evidence.tensors("stream")[-1])[:, 1:]
    joint = pool.kv(tokens).unflatten(-1, (2, pool.num_heads, -1)).permute(2, 0, 3, 1, 4)
    key, value = joint.unbind(0)
    query = (
        pool.q(pool.latent)
        .unflatten(-1, (pool.num_heads, -1))
        .transpose(1, 2)
        .expand(2, -1, -1, -1)
    )
    product = query @ key.mT
    chances = (product * pool.scale).softmax(-1)
    mixed = chances @ value
    flat = mixed.transpose(1, 2).flatten(2)
    pooled = pool.proj(flat)
    normed = pool.norm(pooled)
    wide = pool.mlp.fc1(normed)
    inner = pool.mlp.act(wide)
    branch = pool.mlp.fc2(inner)
    left = (pooled + branch)[:, 0]

    start = nn.functional.one_hot(torch.ones(2).long(), 5).double()
    relevance = linear_relevance(module.fc_norm(left), module.head.weight, start, rules)
    relevance = (left * divide(relevance, left))[:, None]
    to_pooled, to_branch = add_relevance(pooled, branch, relevance, rules)
    to_wide = linear_relevance(inner, pool.mlp.fc2.weight, to_branch, rules)
    to_normed = linear_relevance(normed, pool.mlp.fc1.weight, to_wide, rules)
    to_pooled = clone_relevance(pooled, to_pooled, to_normed)
    to_flat = linear_relevance(flat, pool.proj.weight, to_pooled, rules)
    to_mixed = to_flat.unflatten(-1, (pool.num_heads, -1)).transpose(1, 2)
    cam, to_value = product_relevance(chances, value, mixed, to_mixed)
    _, to_key = product_relevance(query, key.mT, product, cam)  # its query is a constant
    parts = torch.stack([to_key.mT, to_value]).permute(1, 3, 0, 2, 4).flatten(2)
    expected = linear_relevance(tokens, pool.kv.weight, parts, rules)
    found = evidence.sweep(rules).relevance
    assert (found[:, 0] == 0).all()  # it looks at the patches alone
    assert_close(found[:, 1:], expected, 1e-10)


def test_unknown_rules_are_refused_by_name():
    with refused("'strict'", "conserving, original"):
        fs.explain(seeded(timm_vit), images_of((32, 32)), "lrp(rules=strict)")


# Gradients, by autograd through attention that is written out here


@every_family
def test_attention_and_its_gradient_are_what_autograd_gives(family: Family):
    module, images = family.module(), family.images(2)
    evidence = evidence_of(module, images)
    with watched(module) as seen:
        chosen_logit(module, images.requires_grad_(), 1).backward()
    for layer in evidence.layers():
        assert_close(layer.attention, seen.of_block(layer.index).detach(), 1e-10)
        assert_close(layer.attention_gradient, seen.gradients()[layer.index], 1e-10)


@every_family
def test_the_stream_and_its_gradient_are_what_autograd_gives(family: Family):
    module, images = family.module(), family.images(2)
    evidence = evidence_of(module, images)
    with watched(module) as seen:
        chosen_logit(module, images.requires_grad_(), 1).backward()
    for layer in evidence.layers():
        for side, place in (("input", layer.index), ("output", layer.index + 1)):
            assert_close(layer.stream(side), seen.stream[place].detach(), 1e-10)
            assert_close(layer.stream_gradient(side), seen.stream[place].grad, 1e-10)


@some_families("timm_registers", "timm_pooled", "hf_deit_teacher", "torchvision_vit")
def test_gradients_are_the_change_of_the_logit_under_small_changes(family: Family):
    module, images = family.module(), family.images(1)
    evidence = evidence_of(module, images)
    step = 1e-5

    def slope(what: str, direction: Tensor, place: int) -> Tensor:
        """How fast the logit changes along a direction, by central differences."""

        def logit_at(size: float) -> Tensor:
            def nudge(values: Tensor, at: int) -> Tensor:
                return values + size * direction if at == place else values

            with watched(module, **{what: nudge}):
                return chosen_logit(module, images.clone().requires_grad_(), 1).detach()

        return (logit_at(step) - logit_at(-step)) / (2 * step)

    for layer in evidence.layers():
        for what, gradient in (
            ("attention", layer.attention_gradient),
            ("tokens", layer.stream_gradient()),
        ):
            direction = randn(*gradient.shape, seed=layer.index)
            found = slope(what, direction, layer.index)
            torch.testing.assert_close(found, (gradient * direction).sum(), rtol=1e-6, atol=1e-8)


# Conservative LRP, by one call of autograd through norms that are written out


@some_families("timm_vit", "timm_layer_scale_qk_norm", "timm_pooled", "hf_vit", "torchvision_vit")
@pytest.mark.parametrize(
    "options",
    [{"norm": "mean_std"}, {"norm": "none"}, {"activation": "ratio"}],
    ids=["mean_std", "none", "ratio"],
)
def test_variants_of_conservative_lrp_are_one_gradient_of_theirs(family: Family, options):
    module, images = family.module(), family.images(2)
    expected = conservative_maps(module, images, 1, family, **options)["tokens"]
    method = fs.method("conservative_lrp", **options)
    ours = fs.explain(module, images, method, target=1, units="patches")
    assert_close(ours, expected, 1e-10)
    plain = fs.explain(module, images, "conservative_lrp", target=1, units="patches")
    assert (ours - plain).abs().max() > 1e-3 * plain.abs().max()


# Attention methods


@every_family
def test_the_ablation_familys_corners_are_the_methods_they_are_named_after(family: Family):
    corners = {
        "attention(layers=last)": "raw_attention",
        "attention": "rollout",
        "attention(gradient=true)": "transformer_mm",
    }
    last = "attention(layers=last, gradient=true)"
    module, images = family.module(), family.images()
    maps = fs.explain(
        module, images, [*corners, *corners.values(), last], target=1, units="patches"
    )
    for ours, theirs in corners.items():
        assert torch.equal(maps[fs.method(ours).label], maps[theirs])
    layer = next(evidence_of(module, images).layers())
    rows = (layer.attention * layer.attention_gradient).clamp(min=0).mean(1)
    read = rows[:, family.prefix :].mean(1) if family.readout == "mean" else rows[:, 0]
    expected = read[:, family.prefix :].reshape(-1, *family.grid)
    assert_close(maps[fs.method(last).label], expected)


def made_up(attention: Tensor, gradient: Tensor, index: int = 0, depth: int = 1):
    """A block with this attention and gradient, [B, heads, N, N], and a class token."""
    return SimpleNamespace(
        attention=attention,
        attention_gradient=gradient,
        index=index,
        depth=depth,
        is_last=index == depth - 1,
        prefix_tokens=1,
    )


def class_row(count: int, tokens: int) -> Tensor:
    row = torch.zeros(count, tokens, dtype=torch.float64)
    row[:, 0] = 1
    return row


def test_grad_cam_of_heads_that_all_speak_against_the_class_is_zero_and_scaled_is_nan():
    attention = randn(2, 3, 5, 5).softmax(-1)
    gradient = randn(2, 3, 5, 5, seed=1)
    gradient[0] = -gradient[0].abs()
    evidence = SimpleNamespace(
        layers=lambda: iter([made_up(attention, gradient)]),
        readout=class_row(2, 5),
        prefix_tokens=1,
        images=None,
        model=SimpleNamespace(require_grid=lambda *_: (2, 2)),
    )
    maps = grad_cam(evidence)
    assert (maps[0] == 0).all()
    assert maps[1].max() > 0
    scaled = grad_cam(evidence, minmax=True)
    assert scaled[0].isnan().all()
    assert (scaled[1].min(), scaled[1].max()) == (0, 1)
    assert (grad_cam(evidence, clamp=False)[0] < 0).all()


def published_rollout(attention: np.ndarray, gradient: np.ndarray | None, discard: float):
    """The published loop over blocks, of one image: [blocks, heads, N, N] -> [N - 1]."""
    count = attention.shape[-1]
    result = np.eye(count)
    for block in range(len(attention)):
        if gradient is None:
            fused = attention[block].mean(0)
        else:
            fused = np.maximum((attention[block] * gradient[block]).mean(0), 0)
        flat = fused.flatten()
        lowest = np.argsort(flat, kind="stable")[: int(flat.size * discard)]
        if gradient is None:
            lowest = lowest[lowest != 0]
        flat[lowest] = 0
        mixed = (flat.reshape(count, count) + np.eye(count)) / 2
        result = mixed / mixed.sum(-1) @ result
    return result[0, 1:] / result[0, 1:].max()


@pytest.mark.parametrize("discard", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_gradient_rollout_is_the_published_loop_of_each_image_alone(discard, with_gradient):
    images, depth, heads, tokens = 4, 3, 2, 7
    scale = 10.0 ** torch.arange(images)[:, None, None, None, None]  # discards would mix otherwise
    attention = randn(images, depth, heads, tokens, tokens).softmax(-1)
    attention[:, :, :, 0, 0] = 1e-3  # the smallest entry, which only the gradient may discard
    gradient = randn(images, depth, heads, tokens, tokens, seed=1) * scale
    row = class_row(images, tokens)
    for index in reversed(range(depth)):
        layer = made_up(attention[:, index], gradient[:, index], index, depth)
        row = gradient_rollout(row, layer, discard=discard, gradient=with_gradient)
    for image in range(images):
        slopes = gradient[image].numpy() if with_gradient else None
        expected = published_rollout(attention[image].numpy(), slopes, discard)
        np.testing.assert_allclose(row[image, 1:], expected, rtol=0, atol=1e-12)
