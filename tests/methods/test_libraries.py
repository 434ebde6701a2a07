"""The same weights in timm, Hugging Face and torchvision get the same explanations."""

import copy
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from timm.layers import SwiGLU, SwiGLUPacked
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import (
    ParallelScalingBlock,
    ParallelThingsBlock,
    VisionTransformer,
)
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

import faithscope as fs
from faithscope.methods import METHODS
from families import (
    CLASSES,
    DEPTH,
    HEADS,
    TIMM,
    ClipTower,
    InDict,
    Probe,
    eva,
    hf,
    images_of,
    seeded,
    timm_vit,
)

READING_PARTS = [
    method.name for method in METHODS.values() if method.in_papers and method.needs - {"gradient"}
]
REGISTERED = [method.name for method in METHODS.values() if not method.is_random]

TARGETS = torch.tensor([0, 1, 3])

# Relevance runs in float64 whatever the model: only the weights of both libraries must be equal.
IN_FLOAT64 = {"lrp", "partial_lrp", "transformer_attribution"}

both_units = pytest.mark.parametrize("units", ["pixels", "patches"])
both_types = pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float64, 1e-9)],
    ids=["float32", "float64"],
)

HUGGING_FACE = [
    (r".*\.(cls_token|distillation_token)$", lambda m: m[1].replace("distillation", "dist")),
    (r".*position_embeddings$", "pos_embed"),
    (r".*patch_embeddings\.projection", "patch_embed.proj"),
    (r".*layers?\.(\d+)\.", r"blocks.\1."),
    (r"\.layernorm_before", ".norm1"),
    (r"\.layernorm_after", ".norm2"),
    (r"\.attention\.(attention\.)?(q_proj|query)", ".attn.qkv[0]"),
    (r"\.attention\.(attention\.)?(k_proj|key)", ".attn.qkv[1]"),
    (r"\.attention\.(attention\.)?(v_proj|value)", ".attn.qkv[2]"),
    (r"\.attention\.(o_proj|output\.dense)", ".attn.proj"),
    (r"\.intermediate\.dense", ".mlp.fc1"),
    (r"\.output\.dense", ".mlp.fc2"),
    (r"^(vit|deit)\.layernorm", "norm"),
    (r"^(cls_)?classifier", "head"),
    (r"^distillation_classifier", "head_dist"),
]
TORCHVISION = [
    (r"class_token", "cls_token"),
    (r"conv_proj", "patch_embed.proj"),
    (r"encoder\.pos_embedding", "pos_embed"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_", ".norm"),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj", ".attn.proj"),
    (r"\.mlp\.0", ".mlp.fc1"),
    (r"\.mlp\.3", ".mlp.fc2"),
    (r"encoder\.ln", "norm"),
    (r"heads\.head", "head"),
]


def with_weights_of(
    source: nn.Module, module: nn.Module, names: list[tuple[str, Any]]
) -> nn.Module:
    """Give a module the weights of a timm model, whose names are made of its own."""
    state, converted = source.state_dict(), {}
    for key in module.state_dict():
        name = key
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        name, _, part = name.replace("]", "").partition("[")
        if part:
            index, _, kind = part.partition(".")
            converted[key] = state[f"{name}.{kind}"].chunk(3)[int(index)]
        else:
            converted[key] = state[name]
    module.load_state_dict(converted)
    return module.to(next(source.parameters()).dtype).eval()


def in_hugging_face(source: nn.Module, kind: str = "ViT", model: str = "", **options: Any):
    # Its own default of 1e-12 is another model than timm's.
    module = hf(kind, model, layer_norm_eps=1e-6, **options)
    return with_weights_of(source, module, HUGGING_FACE)


def in_torchvision(source: nn.Module, size: int = 32, patch: int = 8) -> nn.Module:
    module = TorchvisionViT(
        size, patch, DEPTH, HEADS, hidden_dim=24, mlp_dim=48, num_classes=CLASSES
    )
    return with_weights_of(source, module, TORCHVISION)


@cache
def pair(name: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, Tensor]:
    """A timm model, the same weights in another library, and images for both."""
    build, convert, size = PAIRS[name]
    source = seeded(build, dtype)
    return source, convert(source), images_of(size, 3, dtype)


Build, Convert = Callable[[], nn.Module], Callable[[nn.Module], nn.Module]
PAIRS: dict[str, tuple[Build, Convert, tuple[int, int]]] = {
    "hugging_face": (timm_vit, in_hugging_face, (32, 32)),
    "torchvision": (timm_vit, in_torchvision, (32, 32)),
    "torchvision_patch4": (
        lambda: timm_vit(patch_size=4, img_size=24),
        lambda source: in_torchvision(source, 24, 4),
        (24, 24),
    ),
    "hugging_face_wide": (
        lambda: timm_vit(img_size=(32, 48)),
        lambda source: in_hugging_face(source, image_size=(32, 48)),
        (32, 48),
    ),
    "hugging_face_tall": (
        lambda: timm_vit(img_size=(40, 24), patch_size=(4, 8)),
        lambda source: in_hugging_face(source, image_size=(40, 24), patch_size=(4, 8)),
        (40, 24),
    ),
    "hugging_face_no_qkv_bias": (
        lambda: timm_vit(qkv_bias=False),
        lambda source: in_hugging_face(source, qkv_bias=False),
        (32, 32),
    ),
    "hugging_face_distilled": (
        lambda: VisionTransformerDistilled(**TIMM),
        lambda source: in_hugging_face(source, "DeiT", "DeiTForImageClassificationWithTeacher"),
        (32, 32),
    ),
}
every_pair = pytest.mark.parametrize("name", PAIRS)


def assert_same_maps(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    """Every map of one library equals that of the other, relative to its largest value."""
    assert ours.keys() == theirs.keys()
    for method, maps in ours.items():
        left, right = maps.flatten(1).double(), theirs[method].flatten(1).double()
        assert left.isfinite().all(), method
        assert (left.std(1) > 0).any(), method  # equal because they are empty proves nothing
        error = (left - right).abs().amax(1) / left.abs().amax(1).clamp_min(1e-30)
        assert error.max() <= tolerance, f"{method}: {error.max():.1e}"


@every_pair
@both_types
def test_both_libraries_give_the_same_logits(name: str, dtype: torch.dtype, tolerance: float):
    source, other, images = pair(name, dtype)
    with torch.no_grad():
        ours, theirs = source(images), fs.wrap(other).logits(images)
    assert (ours - theirs).abs().max() <= tolerance * ours.abs().max()


@every_pair
@both_types
@both_units
def test_every_method_gives_the_same_maps_in_both_libraries(
    name: str, dtype: torch.dtype, tolerance: float, units: str
):
    source, other, images = pair(name, dtype)
    options = {"target": TARGETS, "units": units}
    assert_same_maps(
        fs.explain(source, images, REGISTERED, **options),
        fs.explain(other, images, REGISTERED, **options),
        tolerance,
    )


def test_relevance_of_float32_models_is_as_equal_as_that_of_float64_ones():
    for name in ("hugging_face", "torchvision"):
        source, other, images = pair(name, torch.float32)
        maps = [
            fs.explain(module, images, sorted(IN_FLOAT64), target=1) for module in (source, other)
        ]
        assert_same_maps(*maps, 1e-6)


def test_another_layer_norm_eps_is_another_model_and_the_maps_tell():
    """The comparison above is sharp enough to see Hugging Face's default of 1e-12."""
    source, _, images = pair("hugging_face", torch.float64)
    other = with_weights_of(source, hf("ViT"), HUGGING_FACE)
    maps = [fs.explain(module, images, "lrp", target=1) for module in (source, other)]
    assert (maps[0] - maps[1]).abs().max() > 1e-9 * maps[0].abs().max()


# The same weights in modules of other parts


def in_probe(source: nn.Module) -> nn.Module:
    """The model without its head, in a module with that head."""
    backbone = copy.deepcopy(source)
    head, backbone.head = backbone.head, nn.Identity()
    return Probe(backbone, head, mean=source.global_pool == "avg")


def renamed(*names: tuple[str, str]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def rename(state: dict[str, Tensor]) -> dict[str, Tensor]:
        for old, new in names:
            state = {re.sub(old, new, key): value for key, value in state.items()}
        return state

    return rename


def biases_apart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's Eva and Beit keep the biases of queries and values, and have none of keys."""
    joint = {key: value.chunk(3) for key, value in state.items() if key.endswith("qkv.bias")}
    rest = {key: value for key, value in state.items() if key not in joint}
    for key, (query, _, value) in joint.items():
        name = key.removesuffix("qkv.bias")
        rest |= {f"{name}q_bias": query, f"{name}v_bias": value}
    return rest


def joined(pattern: str, parts: tuple[str, ...], whole: str, axis: int):
    """Put several linear layers into one: side by side (axis 0), or one after another (axis 1)."""

    def join(state: dict[str, Tensor]) -> dict[str, Tensor]:
        state = dict(state)
        for key in [key for key in state if re.search(pattern + re.escape(parts[0]), key)]:
            name, _, kind = key.rpartition(parts[0])
            values = [state.pop(f"{name}{part}{kind}") for part in parts]
            add = axis == 1 and kind == ".bias"
            state[f"{name}{whole}{kind}"] = sum(values) if add else torch.cat(values, dim=axis)
        return state

    return join


def moved(build: Callable[[], nn.Module], *changes: Any) -> Callable[[nn.Module], nn.Module]:
    """Build another module and give it the weights, changed in these steps."""

    def convert(source: nn.Module) -> nn.Module:
        state, module = source.state_dict(), build().to(next(source.parameters()).dtype)
        for change in changes:
            state = change(state)
        missing, unknown = module.load_state_dict(state, strict=False)
        assert not unknown
        for name in missing:  # biases of relative positions, which are nothing at 0
            assert "position_bias_table" in name
            module.get_parameter(name).data.zero_()
        return module.eval()

    return convert


def without_key_bias(**options: Any) -> nn.Module:
    """A timm model whose keys have no bias, to be moved to models that have none."""
    return Unbiased(**{**TIMM, **options})


class Unbiased(VisionTransformer):
    def forward(self, images: Tensor) -> Tensor:
        for block in self.blocks:
            block.attn.qkv.bias.data[24:48] = 0
        return super().forward(images)


def at_rest(source: nn.Module) -> nn.Module:
    """Rotary positions that rotate by no angle."""
    module = moved(lambda: eva(use_rot_pos_emb=True))(source)
    angles = module.rope.pos_embed
    angles[:, : angles.shape[1] // 2] = 0
    angles[:, angles.shape[1] // 2 :] = 1
    return module


def packed(hidden_features: int, **options: Any) -> nn.Module:
    """An MLP of as many channels behind its gate as one whose layers are apart."""
    return SwiGLUPacked(hidden_features=2 * hidden_features, **options)


CLIP_TO_TIMM = renamed(
    (r"^conv1", "patch_embed.proj"),
    (r"^class_embedding", "cls_token"),
    (r"^positional_embedding", "pos_embed"),
    (r"^ln_pre", "norm_pre"),
    (r"^ln_post", "norm"),
    (r"^resblocks", "blocks"),
    (r"ln_(\d)", r"norm\1"),
    (r"attn\.in_proj_", "attn.qkv."),
    (r"attn\.out_proj", "attn.proj"),
    (r"mlp\.c_fc", "mlp.fc1"),
    (r"mlp\.c_proj", "mlp.fc2"),
    (r"^proj$", "head.weight"),
)


def clip_shapes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        **state,
        "cls_token": state["cls_token"][None, None],
        "pos_embed": state["pos_embed"][None],
        "head.weight": state["head.weight"].T,
        "head.bias": torch.zeros(CLASSES),
    }


BRANCHES = renamed(
    (r"(blocks\.\d+)\.norm1", r"\1.attns.0.norm"),
    (r"(blocks\.\d+)\.attn\.", r"\1.attns.0.attn."),
    (r"(blocks\.\d+)\.norm2", r"\1.ffns.0.norm"),
    (r"(blocks\.\d+)\.mlp\.", r"\1.ffns.0.mlp."),
)
GAP = {"class_token": False, "global_pool": "avg", "fc_norm": False, "pos_embed": "none"}
RELATIVE = {**TIMM, "rel_pos_type": "bias", "init_values": None, "class_token": False}

TWINS: dict[str, tuple[Build, Convert]] = {
    "in_dict": (timm_vit, InDict),
    "data_parallel": (timm_vit, nn.DataParallel),
    "probe": (timm_vit, in_probe),
    "probe_of_the_mean": (lambda: timm_vit(global_pool="avg", fc_norm=False), in_probe),
    "eva": (
        without_key_bias,
        moved(lambda: eva(depth=DEPTH, global_pool="token"), biases_apart),
    ),
    "rotated_by_nothing": (eva, at_rest),
    "beit": (
        lambda: without_key_bias(global_pool="avg", pos_embed="none"),
        moved(lambda: Beit(**TIMM, use_abs_pos_emb=False, use_rel_pos_bias=True), biases_apart),
    ),
    "relative_positions": (
        lambda: timm_vit(**GAP),
        moved(lambda: VisionTransformerRelPos(**RELATIVE)),
    ),
    "one_branch": (
        timm_vit,
        moved(lambda: timm_vit(block_fn=partial(ParallelThingsBlock, num_parallel=1)), BRANCHES),
    ),
    "parallel_scaling": (
        lambda: timm_vit(block_fn=ParallelScalingBlock),
        moved(
            lambda: timm_vit(block_fn=partial(ParallelScalingBlock, fuse_out_proj=True)),
            joined("", ("attn_out_proj", "mlp_out_proj"), "out_proj", 1),
        ),
    ),
    "packed": (
        lambda: timm_vit(mlp_layer=SwiGLU),
        moved(
            lambda: timm_vit(mlp_layer=packed),
            joined("", ("fc1_g", "fc1_x"), "fc1", 0),
        ),
    ),
    "open_clip": (
        ClipTower,
        moved(
            lambda: timm_vit(depth=2, pre_norm=True, norm_layer=nn.LayerNorm),
            CLIP_TO_TIMM,
            clip_shapes,
        ),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_modules_of_other_parts_with_the_same_weights_get_the_same_maps(name: str):
    build, convert = TWINS[name]
    source, images = seeded(build), images_of((32, 32), 3)
    with torch.no_grad():
        expected = source(images)
        other = convert(source)
        torch.testing.assert_close(fs.wrap(other).logits(images), expected)
    methods = [*READING_PARTS, "lrp(rules=conserving)", "partial_lrp(rules=conserving)"]
    maps = [fs.explain(module, images, methods, target=TARGETS) for module in (source, other)]
    # A sum over the branches, one though they are, is stabilised.
    assert_same_maps(*maps, 1e-7 if name == "one_branch" else 1e-9)


# Whichever kernel computes attention


@both_units
@pytest.mark.parametrize(
    ("kind", "model"), [("ViT", ""), ("DeiT", "DeiTForImageClassificationWithTeacher")]
)
def test_hugging_faces_kernels_give_the_same_maps(kind: str, model: str, units: str):
    images, maps = images_of((32, 32), 3, torch.float32), []
    for kernel in ("sdpa", "eager"):
        module = seeded(lambda: hf(kind, model), torch.float32)
        module.set_attn_implementation(kernel)
        maps.append(fs.explain(module, images, REGISTERED, target=TARGETS, units=units))
        assert module.config._attn_implementation == kernel
    # The eager softmax runs in float32 even in a float64 model, and LRP multiplies that noise.
    well, ill = (
        [{k: v for k, v in m.items() if (k in IN_FLOAT64) is sick} for m in maps]
        for sick in (False, True)
    )
    assert_same_maps(*well, 1e-5)
    assert_same_maps(*ill, 1e-3)


@both_types
@both_units
def test_timms_fused_and_plain_attention_give_the_same_maps(
    dtype: torch.dtype, tolerance: float, units: str
):
    images, maps = images_of((32, 32), 3, dtype), []
    for fused in (True, False):
        module = seeded(timm_vit, dtype)
        for block in module.blocks:
            block.attn.fused_attn = fused
        maps.append(fs.explain(module, images, REGISTERED, target=TARGETS, units=units))
        assert all(block.attn.fused_attn is fused for block in module.blocks)
    assert_same_maps(*maps, tolerance)


@pytest.mark.parametrize("size", [(48, 40), (24, 64)])
def test_a_timm_model_of_any_size_is_explained_as_the_model_of_that_size(size: tuple[int, int]):
    """Positions that are interpolated in the forward pass, and ones that were before."""
    elastic = seeded(lambda: timm_vit(dynamic_img_size=True))
    fixed = seeded(lambda: timm_vit(img_size=size))
    images = images_of(size, 3)
    tokens = {}
    handle = elastic.blocks[0].register_forward_pre_hook(lambda _, args: tokens.update(x=args[0]))
    with torch.no_grad():
        elastic(images)
    handle.remove()
    state = {**elastic.state_dict()}
    with torch.no_grad():
        patches = elastic.patch_embed.proj(images).flatten(2).mT
        positions = tokens["x"][:1, 1:] - patches[:1]
    state["pos_embed"] = torch.cat([state["pos_embed"][:, :1], positions], dim=1)
    fixed.load_state_dict(state)
    maps = [fs.explain(module, images, REGISTERED, target=TARGETS) for module in (elastic, fixed)]
    assert_same_maps(*maps, 1e-9)
