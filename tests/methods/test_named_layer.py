"""Grad-CAM of a layer by its name: the definition, layouts of feature maps, and what is refused."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from timm.models.nest import Nest
from torch import Tensor, nn

import faithscope as fs
from faithscope.models.layers import Unfit, as_feature_map, propose_layer


class Net(nn.Module):
    """A small convolutional network; its activation overwrites what the convolution gave."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.BatchNorm2d(6), nn.Conv2d(6, 5, 3, padding=1))
        self.act = nn.ReLU(inplace=True)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(5, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.act(self.body(self.act(self.stem(images)))).mean((2, 3)))


def images(side: int = 32, count: int = 2) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(3)).double()


def by_hooks(module: nn.Module, layer: str, inputs: Tensor, target: int, axes: str) -> Tensor:
    """Grad-CAM as it is usually written: hooks that keep a layer's output and its gradient."""
    kept: dict[str, Tensor] = {}

    def forward(_: nn.Module, __: object, output: object) -> Tensor:
        kept["value"] = output[0] if isinstance(output, tuple) else output
        kept["value"].retain_grad()
        return (kept["value"].clone(), *output[1:]) if isinstance(output, tuple) else output.clone()

    handle = module.get_submodule(layer).register_forward_hook(forward)
    output = module(inputs.clone().requires_grad_(True))
    (output if isinstance(output, Tensor) else output.logits)[:, target].sum().backward()
    handle.remove()
    value, gradient = kept["value"].detach(), kept["value"].grad
    if axes == "tokens":
        side = round(value.shape[1] ** 0.5)
        shape = (len(value), side, side, -1)
        value, gradient = (held[:, -(side**2) :].reshape(shape) for held in (value, gradient))
    if axes != "first":
        value, gradient = (held.permute(0, 3, 1, 2) for held in (value, gradient))
    return (gradient.mean((2, 3), keepdim=True) * value).sum(1).relu()


def seeded(make, **options) -> nn.Module:
    torch.manual_seed(0)
    return make(**options).double().eval()


def swin() -> nn.Module:
    """Two stages, of 16 × 16 and 8 × 8 cells, and windows of 8 × 8."""
    sizes = {"img_size": 64, "window_size": 8, "embed_dim": 24, "num_classes": 4}
    shape = {"depths": (1, 1), "num_heads": (2, 2)}
    return seeded(lambda: timm.create_model("swin_tiny_patch4_window7_224", **sizes, **shape))


def hugging_face_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ViTConfig(**sizes, intermediate_size=32, image_size=32, patch_size=8, num_labels=4)
    return seeded(lambda: ViTForImageClassification(config))


@pytest.mark.parametrize(
    ("make", "layer", "side", "axes"),
    [
        (Net, "body", 32, "first"),
        (Net, "stem", 32, "first"),
        (swin, "layers.1", 64, "last"),
        (swin, "layers.0.blocks.0", 64, "last"),
        (hugging_face_vit, "vit.layers.0", 32, "tokens"),
        (lambda: timm.create_model("test_resnet", num_classes=4), "layer4", 64, "first"),
        (
            lambda: timm.create_model("test_vit", img_size=64, num_classes=4),
            "blocks.1",
            64,
            "tokens",
        ),
    ],
)
def test_a_layer_is_weighted_by_its_mean_gradient(make, layer, side, axes):
    module, inputs = seeded(make), images(side)
    method = fs.method("grad_cam", layer=layer)
    maps = fs.methods.explain_batch(
        fs.wrap(module), inputs, torch.tensor([1, 1]), [(method, 0)], keys=["a", "b"]
    )[0]
    expected = by_hooks(module, layer, inputs, 1, axes)
    assert expected.abs().max() > 0
    torch.testing.assert_close(maps, expected, rtol=1e-10, atol=1e-14)


def test_of_a_linear_head_on_the_mean_it_is_cam():
    module, inputs = seeded(Net), images()
    found = fs.methods.explain_batch(
        fs.wrap(module),
        inputs,
        torch.tensor([2, 2]),
        [(fs.method("grad_cam", layer="body", clamp=False), 0)],
        keys=["a", "b"],
    )[0]
    features = module.body(module.stem(inputs).relu())
    alive = (features > 0).double()  # the activation behind it stops the gradient elsewhere
    weights = module.head.weight[2][:, None, None] * alive.mean((2, 3), keepdim=True) / 256
    torch.testing.assert_close(found, (weights * features).sum(1).detach(), rtol=1e-10, atol=1e-14)


def test_options_work_with_a_layer():
    module = fs.wrap(seeded(Net))
    maps = fs.explain(
        module, images(), ["grad_cam(layer=body)", "grad_cam(layer=body, clamp=false)"]
    )
    clamped, signed = maps.values()
    assert clamped.shape == (2, 32, 32) and clamped.min() >= 0 > signed.min()


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("bodi", "Unknown layer of Net 'bodi': did you mean 'body'?"),
        ("act", "it runs 2 times in a forward pass"),
        ("unused", "it runs 0 times in a forward pass"),
        ("head", "its output, [1, 4], is no grid of vectors"),
    ],
)
def test_a_layer_that_cannot_be_read_is_refused_by_name(layer, words):
    with pytest.raises(fs.FaithscopeError) as caught:
        fs.explain(fs.wrap(seeded(Net)), images(), f"grad_cam(layer={layer})")
    assert words in str(caught.value)


def test_a_layer_that_cannot_be_read_is_left_out_with_its_name_once():
    methods = ["gradient", "grad_cam(layer=head)"]
    (line,) = fs.evaluate(fs.wrap(seeded(Net)), images(), methods, "saco", k=2).warnings()
    start = "grad_cam(layer=head) is left out: it cannot read the layer 'head' of Net: its output"
    assert line.startswith(start)


def test_a_wrong_name_of_a_layer_is_an_error_also_in_a_list():
    with pytest.raises(fs.FaithscopeError, match="did you mean 'body'"):
        fs.evaluate(fs.wrap(seeded(Net)), images(), ["gradient", "grad_cam(layer=bodi)"], "saco")
    with pytest.raises(fs.FaithscopeError, match="did you mean 'body'"):
        fs.explain(fs.wrap(seeded(Net)), images(), ["gradient", "grad_cam(layer=bodi)"])


@pytest.mark.parametrize("layer", ["0", "1.0", "1.1.0", "1.10", "2.conv"])
def test_layers_that_are_numbered_need_no_quotes(layer):
    made = fs.method(f"grad_cam(layer={layer}, clamp=false)")
    assert made.options == {"layer": layer, "clamp": False}
    assert fs.method(made.label).options == made.options  # a label is read as what it says
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(3))
    net(images().float())
    assert fs.explain(net, images().float(), "grad_cam(layer=0)").shape == (2, 32, 32)


def test_a_last_block_of_which_only_the_class_token_is_read_is_refused():
    with pytest.raises(fs.FaithscopeError, match="the head reads only its class token"):
        fs.explain(fs.wrap(hugging_face_vit()), images(), "grad_cam(layer=vit.layers.1)")


def test_a_layer_that_the_logit_ignores_is_refused():
    class Aside(Net):
        def forward(self, images: Tensor) -> Tensor:
            self.body(self.stem(images))
            return self.head(images.mean((2, 3)).repeat(1, 2)[:, :5])

    with pytest.raises(fs.FaithscopeError, match="the logit does not depend on it"):
        fs.explain(fs.wrap(seeded(Aside)), images(), "grad_cam(layer=body)")


@pytest.mark.parametrize(("make", "side", "layer"), [(Net, 32, "body"), (swin, 64, "layers")])
def test_without_a_layer_a_model_without_a_stack_is_told_one_that_runs(make, side, layer):
    model = fs.wrap(seeded(make))
    assert propose_layer(model, images(side)) == layer
    with pytest.raises(fs.FaithscopeError) as caught:
        fs.explain(model, images(side), "grad_cam")
    proposed = f"grad_cam(layer={layer})"
    assert str(caught.value).startswith(
        f"The method 'grad_cam' needs a layer of {model.name}, as {proposed}"
    )
    assert fs.explain(model, images(side), proposed).isfinite().all()
    result = fs.evaluate(model, images(side), ["gradient", "grad_cam", "rollout"], "saco", k=2)
    hinted, plain = result.warnings()
    assert hinted.startswith("grad_cam is left out: the model")
    assert (
        hinted.endswith(f"; {proposed} would run.")
        and f"{proposed} would run." in result._repr_html_()
    )
    assert plain.startswith("rollout is left out: the model") and "would run" not in plain


def test_the_map_is_matched_with_random_maps_of_its_own_grid():
    model = fs.wrap(seeded(Net))
    result = fs.evaluate(model, images(), "grad_cam(layer=body)", "saco", random_draws=1)
    methods = {row["method"] for row in result.scores.to_pylist()}
    assert methods == {"grad_cam(layer=body)", "random", "random(grid=16x16)"}


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((2, 8, 7, 7), (224, 224), (8, 7, 7)),
        ((2, 7, 7, 8), (224, 224), (8, 7, 7)),
        ((2, 7, 14, 8), (224, 448), (8, 7, 14)),
        ((2, 49, 8), (224, 224), (8, 7, 7)),
        ((2, 50, 8), (224, 224), (8, 7, 7)),
        ((2, 98, 8), (448, 224), (8, 14, 7)),
        ((2, 8, 4, 5), (121, 161), (8, 4, 5)),
    ],
)
def test_layouts_of_feature_maps(shape, size, expected):
    values = torch.arange(torch.Size(shape).numel()).double().reshape(shape)
    inputs = torch.zeros(2, 3, *size)
    found = as_feature_map(fs.wrap(nn.Identity()), values, inputs)
    assert found.shape == (2, *expected)
    by_hand = values[:, -expected[1] * expected[2] :] if values.ndim == 3 else values
    if shape[1] != 8:
        by_hand = by_hand.reshape(2, *expected[1:], 8).permute(0, 3, 1, 2)
    assert torch.equal(found, by_hand)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 8, 8, 8), "either the first or the last could be the channels"),
        ((2, 8, 1, 1), "is no grid of vectors"),
        ((2, 8, 3, 9), "is no grid of vectors"),
        ((2, 53, 8), "is no grid of vectors"),
        ((3, 8, 7, 7), "has no row for each image"),
    ],
)
def test_what_is_no_feature_map(shape, words):
    with pytest.raises(Unfit, match=words):
        as_feature_map(fs.wrap(nn.Identity()), torch.zeros(shape), torch.zeros(2, 3, 224, 224))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "layer", "side"), [(Net, "body", 32), (swin, "layers.1", 64)])
def test_pytorch_grad_cam_gives_the_same_up_to_its_scaling(make, layer, side):
    package = pytest.importorskip("pytorch_grad_cam")
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    module, inputs = seeded(make).float(), images(side).float()
    if make is Net:  # what a ReLU in place overwrites, that package reads overwritten
        module.act = nn.ReLU()
    turn = None if make is Net else (lambda held: held.permute(0, 3, 1, 2))
    with package.GradCAM(module, [module.get_submodule(layer)], reshape_transform=turn) as cam:
        theirs = torch.from_numpy(cam(inputs, [ClassifierOutputTarget(1)] * 2))
    ours = fs.explain(fs.wrap(module), inputs, f"grad_cam(layer={layer})", target=1)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1] > 0.999


# Raw attention of a named module


def last_stage_by_hand(module: nn.Module, layer: str, inputs: Tensor) -> Tensor:
    """Attention of a Swin's window that is the whole grid, from its own weights."""
    attn, kept = module.get_submodule(layer), {}
    handle = attn.register_forward_pre_hook(lambda _, args: kept.update(tokens=args[0]))
    module(inputs)
    handle.remove()
    batch, count, _ = kept["tokens"].shape
    qkv = attn.qkv(kept["tokens"]).reshape(batch, count, 3, attn.num_heads, -1)
    query, key, _ = qkv.permute(2, 0, 3, 1, 4)
    scores = query @ key.mT * attn.scale + attn._get_rel_pos_bias()
    side = round(count**0.5)
    return scores.softmax(-1).mean((1, 2)).reshape(batch, side, side).detach()


def test_raw_attention_of_a_last_stage_whose_window_is_its_grid():
    module, inputs, layer = swin(), images(64), "layers.1.blocks.0.attn"
    model = fs.wrap(module)
    with pytest.raises(fs.FaithscopeError, match=r"raw_attention\(layer=layers.1.blocks.0.attn\)"):
        fs.explain(model, inputs, "raw_attention")
    method = fs.method("raw_attention", layer=layer)
    maps = fs.methods.explain_batch(model, inputs, None, [(method, 0)], keys=["a", "b"])[0]
    expected = last_stage_by_hand(module, layer, inputs)
    assert expected.shape[1:] == (8, 8) and expected.std() > 0
    torch.testing.assert_close(maps, expected, rtol=1e-10, atol=1e-14)


def davit() -> nn.Module:
    sizes = {"embed_dims": (16, 32), "num_heads": (2, 2), "depths": (1, 1), "window_size": 8}
    return timm.create_model("davit_tiny", num_classes=4, **sizes)


def nest() -> nn.Module:
    sizes = {"embed_dims": (16, 32), "num_heads": (2, 2), "depths": (1, 2), "num_levels": 2}
    return Nest(img_size=64, num_classes=4, **sizes)


@pytest.mark.parametrize(
    ("make", "layer"),
    [(davit, "stages.1.blocks.0.0.attn"), (nest, "levels.1.transformer_encoder.1.attn")],
)
def test_raw_attention_of_the_last_stage_is_found_also_behind_others_or_in_one_window(make, layer):
    """DaViT's last attention is between channels; NesT has an axis of windows, of length 1."""
    module, inputs = seeded(make), images(64)
    model = fs.wrap(module)
    proposed = re.escape(f"raw_attention(layer={layer})")
    with pytest.raises(fs.FaithscopeError, match=proposed):
        fs.explain(model, inputs, "raw_attention")
    method = fs.method("raw_attention", layer=layer)
    maps = fs.methods.explain_batch(model, inputs, None, [(method, 0)], keys=["a", "b"])[0]
    attn, kept = module.get_submodule(layer), {}
    attn.register_forward_pre_hook(lambda _, args: kept.update(tokens=args[0]))
    module(inputs)
    tokens = kept["tokens"].flatten(1, -2)
    query, key, _ = attn.qkv(tokens).reshape(2, -1, 3, attn.num_heads, 16).permute(2, 0, 3, 1, 4)
    paid = (query @ key.mT * attn.scale).softmax(-1).mean((1, 2)).detach()
    side = round(tokens.shape[1] ** 0.5)
    assert side > 1 and paid.std() > 0
    torch.testing.assert_close(maps, paid.reshape(2, side, side), rtol=1e-10, atol=1e-14)


def test_raw_attention_of_class_attention_is_the_row_of_the_class_token():
    make = {"img_size": 64, "depth": 1, "embed_dim": 24, "num_heads": 2, "num_classes": 4}
    module = seeded(lambda: timm.create_model("cait_xxs24_224", **make))
    inputs, layer = images(64), "blocks_token_only.1.attn"
    maps = fs.methods.explain_batch(
        fs.wrap(module),
        inputs,
        None,
        [(fs.method("raw_attention", layer=layer), 0)],
        keys=["a", "b"],
    )[0]
    attn, kept = module.get_submodule(layer), {}
    attn.register_forward_pre_hook(lambda _, args: kept.update(tokens=args[0]))
    module(inputs)
    tokens = kept["tokens"]
    query = attn.q(tokens[:, :1]).reshape(2, 1, 2, 12).transpose(1, 2)
    key = attn.k(tokens).reshape(2, -1, 2, 12).transpose(1, 2)
    paid = (query @ key.mT * attn.scale).softmax(-1).mean((1, 2))[:, 1:]
    torch.testing.assert_close(maps, paid.reshape(2, 4, 4).detach(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("layers.0.blocks.0.attn", "it looks at windows"),
        ("layers.1.blocks.0.mlp", "no softmax over tokens was seen in it"),
        ("layers.1.blocks.0.atn", "did you mean 'layers.1.blocks.0.attn'?"),
    ],
)
def test_what_is_no_attention_over_its_whole_grid_is_refused(layer, words):
    with pytest.raises(fs.FaithscopeError) as caught:
        fs.explain(fs.wrap(swin()), images(64), f"raw_attention(layer={layer})")
    assert words in str(caught.value)


def test_tokens_in_another_order_than_the_image_are_refused():
    sizes = {"img_size": 64, "embed_dim": 16, "num_heads": 1, "stages": (1, 1, 2)}
    options = {
        "q_pool": 2,
        "q_stride": (2, 2),
        "mask_unit_size": (4, 4),
        "mask_unit_attn": (True,) * 3,
    }
    module = seeded(lambda: timm.models.hiera.Hiera(**sizes, **options, num_classes=4))
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and layer.out_features == 4:
            nn.init.normal_(layer.weight)  # it is initialised to zeros
    model = fs.wrap(module)
    for block in ("blocks.0", "blocks.1"):
        with pytest.raises(fs.FaithscopeError, match="do not follow the image"):
            fs.explain(model, images(64), f"grad_cam(layer={block})")
    assert fs.explain(model, images(64), "grad_cam(layer=blocks.3)").max() > 0
