"""Models: what the adapters find in unmodified models, what they refuse, where models come from."""

import copy
import json
import math
import pickle
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import faithscope as fs
from faithscope.methods.trace import gather
from faithscope.models import BUNDLE, AttentionView, Model
from families import (
    CLASSES,
    DEPTH,
    FAMILIES,
    HEADS,
    UNADAPTABLE,
    Family,
    hf,
    images_of,
    refused,
    seeded,
    timm_vit,
)

load_model = partial(fs.load_model, device="cpu")
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
TINY = "timm:vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)"


# What the adapters find


@every_family
def test_wrap_reads_the_facts_off_the_module(family: Family):
    model = fs.wrap(family.module())
    assert model.input_size == family.size
    assert model.patch_size == family.patch
    assert model.grid(*family.size) == family.grid
    assert len(model.vit.attentions) == DEPTH
    assert model.vit.prefix_tokens == family.prefix
    assert model.vit.hint in (family.readout, None)  # what the head reads is found, not believed


def recomputed(model: Model, images: Tensor) -> list[Tensor]:
    """The attention that faithscope sees, first block first."""
    target = torch.zeros(len(images), dtype=torch.int64)
    needs = frozenset({"attention"})
    evidence = gather(model, images, target, needs, keys=["a", "b"], seed=0, batch_size=8)
    return [layer.attention for layer in evidence.layers()][::-1]


def by_the_library(module: nn.Module, images: Tensor) -> list[Tensor]:
    """The attention that the model's own library computes, on a copy that is told to show it."""
    module, seen = copy.deepcopy(module), []
    if isinstance(module, transformers.PreTrainedModel):
        module.set_attn_implementation("eager")
        with torch.no_grad():
            return list(module(images, output_attentions=True).attentions)
    for child in module.modules():
        if isinstance(child, nn.MultiheadAttention):
            child.register_forward_pre_hook(
                lambda mha, args: seen.append(
                    mha.forward(*args, need_weights=True, average_attn_weights=False)[1]
                )
            )
        elif hasattr(child, "fused_attn"):
            child.fused_attn = False
            child.attn_drop.register_forward_hook(lambda _, args, output: seen.append(output))
    with torch.no_grad():
        module(images)
    return seen


@every_family
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_recomputed_attention_is_the_librarys_own(family: Family, dtype: torch.dtype):
    module, images = family.module(dtype), family.images(dtype=dtype)
    ours, theirs = recomputed(fs.wrap(module), images), by_the_library(module, images)
    # Hugging Face's eager softmax runs in float32, whatever the model's type.
    exact = dtype == torch.float64 and not isinstance(module, transformers.PreTrainedModel)
    tokens = family.prefix + math.prod(family.grid)
    assert len(ours) == len(theirs) == DEPTH
    for mine, library in zip(ours, theirs, strict=True):
        assert mine.shape == (2, HEADS, tokens, tokens)
        torch.testing.assert_close(mine, library, rtol=0, atol=1e-12 if exact else 1e-6)
        torch.testing.assert_close(mine.sum(-1), torch.ones_like(mine[..., 0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.startswith("hf_")])
def test_attention_can_be_read_whichever_kernel_hugging_face_runs(name: str):
    family, maps = FAMILIES[name], []
    for kernel in ("sdpa", "eager"):
        module = family.module()
        module.set_attn_implementation(kernel)
        maps.append(fs.explain(module, family.images(), "rollout"))
    torch.testing.assert_close(*maps, rtol=0, atol=1e-6)


def test_attention_can_be_read_with_fused_kernels_on_or_off():
    family, maps = FAMILIES["timm_vit"], []
    for fused in (True, False):
        module = family.module()
        for block in module.blocks:
            block.attn.fused_attn = fused
        maps.append(fs.explain(module, family.images(), "rollout"))
    torch.testing.assert_close(*maps, rtol=0, atol=1e-12)


# What cannot be adapted


@pytest.mark.parametrize("name", UNADAPTABLE)
def test_attention_of_an_unknown_make_is_refused_by_name_and_the_rest_works(name: str):
    build, named = UNADAPTABLE[name]
    module = seeded(build)
    size = fs.wrap(module).input_size or (32, 32)
    images = images_of(size)
    for method in ("raw_attention", "rollout"):
        with refused(named):
            fs.explain(module, images, method)
        with refused(named):
            fs.evaluate(module, images, method, "saco")
    given = {"mine": images.abs().sum(1)}
    result = fs.evaluate(module, images, ["gradient"], "saco", maps=given, random_draws=1)
    assert np.isfinite(result.scores["value"].to_numpy()).all()
    assert {"gradient", "mine"} < set(result.methods)


class OwnAttention(nn.Module):
    """An attention module of nobody's make: its scores are divided by a temperature of its own."""

    def __init__(self, dim: int, heads: int, temperature: float = 2.0) -> None:
        super().__init__()
        self.heads, self.temperature = heads, temperature
        self.to_queries, self.to_keys, self.to_values = (nn.Linear(dim, dim) for _ in range(3))

    def split(self, tokens: Tensor) -> tuple[Tensor, ...]:
        layers = (self.to_queries, self.to_keys, self.to_values)
        return tuple(
            layer(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in layers
        )

    def forward(self, tokens: Tensor) -> Tensor:
        queries, keys, values = self.split(tokens)
        attention = (queries @ keys.mT / self.temperature).softmax(-1)
        return (attention @ values).transpose(1, 2).flatten(2)


class OwnViT(nn.Module):
    """A ViT with one block, a class token and no attribute that a library would use."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 8, 8)
        self.start = nn.Parameter(torch.zeros(1, 1, 24))
        self.mixer = OwnAttention(24, HEADS)
        self.out = nn.Linear(24, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.stem(images).flatten(2).mT
        tokens = torch.cat([self.start.expand(len(tokens), -1, -1), tokens], dim=1)
        return self.out((tokens + self.mixer(tokens))[:, 0])


def paid_to_patches(module: OwnViT, images: Tensor) -> Tensor:
    """What the first token pays the patches, mean over heads: [B, 4, 4]."""
    first = module.start.expand(len(images), -1, -1)
    tokens = torch.cat([first, module.stem(images).flatten(2).mT], dim=1)
    queries, keys, _ = module.mixer.split(tokens)
    chances = (queries @ keys.mT / module.mixer.temperature).softmax(-1)
    return chances.mean(1)[:, 0, 1:].reshape(-1, 4, 4).detach()


def test_ones_own_model_needs_to_say_where_its_attention_is_and_no_more():
    module, images = seeded(OwnViT), images_of((32, 32))
    with refused("attention=[…]"):
        fs.explain(module, images, "rollout")
    expected = paid_to_patches(module, images)
    for fields in ({}, {"prefix_tokens": 1, "readout": "class", "patch_size": 8}):
        model = fs.wrap(module, attention=[module.mixer], **fields)
        maps = fs.explain(model, images, "raw_attention", units="patches")
        torch.testing.assert_close(maps, expected, rtol=0, atol=1e-12)


class Sealed(torch.autograd.Function):
    """Attention as a kernel of one's own: nobody sees what happens inside."""

    @staticmethod
    def forward(ctx, queries: Tensor, keys: Tensor, values: Tensor, temperature: float) -> Tensor:
        chances = (queries @ keys.mT / temperature).softmax(-1)
        ctx.save_for_backward(queries, keys, values, chances)
        ctx.temperature = temperature
        return chances @ values

    @staticmethod
    def backward(ctx, gradient: Tensor):
        queries, keys, values, chances = ctx.saved_tensors
        slope = gradient @ values.mT
        scores = chances * (slope - (slope * chances).sum(-1, keepdim=True)) / ctx.temperature
        return scores @ keys, scores.mT @ queries, chances.mT @ gradient, None


@torch.jit.script
def compiled(queries: Tensor, keys: Tensor, values: Tensor, temperature: float) -> Tensor:
    return (queries @ keys.mT / temperature).softmax(-1) @ values


HIDDEN = {"autograd_function": Sealed.apply, "compiled": compiled}


class HiddenAttention(OwnAttention):
    kernel = "autograd_function"

    def forward(self, tokens: Tensor) -> Tensor:
        mixed = HIDDEN[self.kernel](*self.split(tokens), self.temperature)
        return mixed.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("kernel", HIDDEN)
def test_attention_that_nobody_can_see_is_read_by_a_view_of_ones_own_if_that_is_right(kernel: str):
    module, plain, images = seeded(OwnViT), seeded(OwnViT), images_of((32, 32))
    module.mixer.__class__ = HiddenAttention
    module.mixer.kernel = kernel
    torch.testing.assert_close(module(images), plain(images))
    hidden = fs.wrap(module, attention=[module.mixer])
    reads, why = {  # what Python computes can be seen, but no gradient flows through it
        "compiled": ("raw_attention", "no softmax over tokens was seen"),
        "autograd_function": ("transformer_mm", "no gradients reach its attention"),
    }[kernel]
    with refused("'mixer'", why):
        fs.explain(hidden, images, reads)
    methods = ["raw_attention", "rollout", "grad_cam", "transformer_mm"]
    expected = fs.explain(fs.wrap(plain, attention=[plain.mixer]), images, methods, target=1)
    view = AttentionView("mixer", module.mixer, 1 / 2, module.mixer.split)
    maps = fs.explain(fs.wrap(module, attention=[view]), images, methods, target=1)
    for method in methods:
        torch.testing.assert_close(maps[method], expected[method], rtol=0, atol=1e-12)
    other_scale = replace(view, scale=1 / 3)
    swapped = replace(view, qkv=lambda tokens: module.mixer.split(tokens)[::-1])
    with_output = replace(view, project=lambda mixed: mixed * 1.01)
    for wrong in (other_scale, swapped, with_output):
        with refused("'mixer'", "faithscope does not know"):
            fs.explain(fs.wrap(module, attention=[wrong]), images, "raw_attention")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prefix_tokens": 0}, ["'blocks.0.attn'", "17", "0 prefix", "prefix_tokens=…"]),
        ({"patch_size": 4}, ["8×8 patches", "patch_size=…"]),
        ({"patch_size": 5}, ["patches of 5×5", "32×32"]),
        ({"readout": "max"}, ["readout 'max'", "class, mean"]),
        ({"attention": [nn.Linear(2, 2)]}, ["0 of its 1 attention modules"]),
    ],
)
def test_fields_that_contradict_the_model_are_refused(fields, words):
    with refused(*words):
        fs.explain(fs.wrap(seeded(timm_vit), **fields), images_of((32, 32)), "rollout")


def test_attention_modules_may_be_given_in_the_order_of_the_blocks_only():
    module = seeded(timm_vit)
    attention = [block.attn for block in module.blocks]
    fs.explain(fs.wrap(module, attention=attention), images_of((32, 32)), "rollout")
    with refused("another order", "first block first"):
        fs.explain(fs.wrap(module, attention=attention[::-1]), images_of((32, 32)), "rollout")


def test_the_fingerprint_follows_the_weights():
    one, same, other = seeded(timm_vit), seeded(timm_vit), seeded(timm_vit)
    with torch.no_grad():
        other.blocks[1].mlp.fc1.weight[0, 0] += 1e-9
    assert fs.wrap(one).fingerprint == fs.wrap(same).fingerprint != fs.wrap(other).fingerprint
    model = fs.wrap(one)
    before = model.fingerprint
    assert model.fingerprint == before
    with torch.no_grad():
        one.head.weight.mul_(3)
    assert model.fingerprint != before


# Where models come from


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 410, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_timm_models_are_prepared_as_timm_does(photo: Image.Image):
    model = load_model("timm:vit_tiny_patch16_224(depth=1)", pretrained=False)
    config = timm.data.resolve_model_data_config(model.module)
    expected = timm.data.create_transform(**config, is_training=False)(photo)
    torch.testing.assert_close(model.transform(photo), expected, rtol=0, atol=0)
    assert model.input_size == (224, 224)
    assert model.patch_size == (16, 16)
    assert (model.mean, model.std) == (config["mean"], config["std"])
    assert not model.module.training


def test_options_of_a_timm_model_reach_its_size_and_preprocessing(photo: Image.Image):
    model = load_model(TINY, pretrained=False)
    assert model.input_size == (32, 32)
    assert model.patch_size == (8, 8)
    images = model.transform(photo)[None]
    assert images.shape == (1, 3, 32, 32)
    assert fs.explain(model, images, "rollout", units="patches").shape == (1, 4, 4)


def test_a_size_given_for_a_model_of_any_size_leaves_its_patches_alone():
    module = seeded(lambda: timm_vit(dynamic_img_size=True))
    assert fs.wrap(module, input_size=(48, 64)).patch_size == (8, 8)


@pytest.fixture
def hugging_face_folder(tmp_path):
    labels = {index: f"class {index}" for index in range(CLASSES)}
    module = hf("ViT", id2label=labels).eval()
    module.save_pretrained(tmp_path)
    size = {"height": 32, "width": 32}
    processor = transformers.ViTImageProcessor(
        size=size, image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.6, 0.7]
    )
    processor.save_pretrained(tmp_path)
    return tmp_path, module


def test_hugging_face_folders_are_prepared_as_their_processor_does(hugging_face_folder, photo):
    folder, module = hugging_face_folder
    model = load_model(f"hf:{folder}")
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    expected = processor(images=photo, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(model.transform(photo)[None], expected, rtol=0, atol=0)
    torch.testing.assert_close(model.logits(expected), module(expected).logits)
    assert model.mean == (0.1, 0.2, 0.3)
    assert model.class_name(3) == "class 3"
    assert (model.input_size, model.patch_size) == ((32, 32), (8, 8))


def test_hugging_face_folders_need_a_processor_and_a_trained_head(
    hugging_face_folder, tmp_path_factory
):
    folder, module = hugging_face_folder
    (folder / "preprocessor_config.json").rename(folder / "elsewhere.json")
    with refused("comes without an image processor: save one beside the model"):
        load_model(f"hf:{folder}")
    (folder / "elsewhere.json").rename(folder / "preprocessor_config.json")
    module.vit.save_pretrained(folder)
    with pytest.warns(UserWarning, match=r"no trained classifier\.bias, classifier\.weight, which"):
        load_model(f"hf:{folder}")
    whole = tmp_path_factory.mktemp("weights") / "whole.safetensors"
    save_file(module.state_dict(), whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load_model(f"hf:{folder}", checkpoint=whole)
    torch.testing.assert_close(model.module.state_dict(), module.state_dict(), rtol=0, atol=0)


def test_hugging_face_configurations_take_a_checkpoint(hugging_face_folder, tmp_path):
    folder, module = hugging_face_folder
    save_file(module.state_dict(), tmp_path / "other.safetensors")
    model = load_model(f"hf:{folder}", checkpoint=tmp_path / "other.safetensors")
    torch.testing.assert_close(model.module.state_dict(), module.state_dict(), rtol=0, atol=0)


def test_torchvision_models_are_prepared_as_torchvision_does(photo: Image.Image):
    model = load_model("torchvision:vit_b_32", pretrained=False)
    preset = torchvision.models.ViT_B_32_Weights.DEFAULT.transforms()
    torch.testing.assert_close(model.transform(photo), preset(photo), rtol=0, atol=0)
    assert model.input_size == (224, 224)
    assert model.patch_size == (32, 32)
    assert (model.vit.prefix_tokens, len(model.vit.attentions)) == (1, 12)


def test_the_bundled_model_is_as_good_as_its_card_says():
    model = load_model("bundled:cifar10_vit")
    data = fs.load_data("bundled:cifar10", model)
    with torch.no_grad():
        hits = [model.logits(batch.images).argmax(-1) == batch.labels for batch in data.batches(40)]
    assert torch.cat(hits).sum() == 190  # of 200, as recipes/README.md records
    assert len(data) == 200
    assert data.labels.bincount().tolist() == [20] * 10


def test_the_bundled_model_is_small_and_its_card_is_true():
    weights = BUNDLE / "cifar10_vit.safetensors"
    card = json.loads((BUNDLE / "cifar10_vit.json").read_text())
    sample = json.loads((BUNDLE / "cifar10_sample.json").read_text())
    assert weights.stat().st_size <= 12_000_000
    with safe_open(weights, "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float16}
    model = load_model("bundled:cifar10_vit")
    assert card["test_accuracy"] >= 0.93
    assert card["test_images"] == 10_000
    assert list(model.classes) == card["classes"] == sample["classes"]
    assert model.patch_size == (card["timm"]["patch_size"],) * 2 == (4, 4)
    assert model.logits(torch.zeros(1, 3, 32, 32)).shape == (1, card["timm"]["num_classes"])


# Weights with a card


def carded(folder: Path, **changes) -> str:
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    card = {
        "model": "deit_tiny_distilled_patch16_224",
        "timm": {**options, "num_classes": 4},
        "mean": [0.1, 0.2, 0.3],
        "std": [0.5, 0.6, 0.7],
        "classes": ["ant", "bee", "cat", "dog"],
    }
    module = seeded(lambda: timm.create_model(card["model"], **card["timm"]))
    half = {key: value.half() for key, value in module.state_dict().items()}
    save_file(half, folder / "own.safetensors")
    (folder / "own.json").write_text(json.dumps({**card, **changes}))
    return f"file:{folder / 'own.safetensors'}"


def test_weights_with_a_card_bring_architecture_preprocessing_and_classes(tmp_path):
    model = load_model(carded(tmp_path))
    weights = load_file(tmp_path / "own.safetensors")
    for key, value in model.module.state_dict().items():
        torch.testing.assert_close(value, weights[key].float(), rtol=0, atol=0)
    assert (model.input_size, model.patch_size) == ((32, 32), (8, 8))
    assert (model.classes, model.vit.prefix_tokens) == (("ant", "bee", "cat", "dog"), 2)
    assert (model.mean, model.std) == ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    white = model.transform(Image.new("RGB", (40, 90), "white"))
    expected = (1 - torch.tensor(model.mean)) / torch.tensor(model.std)
    torch.testing.assert_close(white, expected.view(3, 1, 1).expand(3, 32, 32))
    random = load_model(carded(tmp_path), pretrained=False).module.head.weight
    assert not torch.equal(random, model.module.head.weight)


def test_a_card_that_is_missing_or_wrong_is_told_in_a_sentence(tmp_path):
    name = carded(tmp_path)
    with refused("takes no options"):
        load_model(f"{name}(depth=3)")
    (tmp_path / "own.json").unlink()
    with refused("no card", "own.json"):
        load_model(name)
    with refused("timm model", "vit_tiny_patch16_224"):
        load_model(carded(tmp_path, model="vit_tiny_patch16_225"))
    with refused("card", "img_size"):
        load_model(carded(tmp_path, timm={}))
    (tmp_path / "own.json").write_text("{")
    with refused("card", "JSON"):
        load_model(name)
    with refused("does not fit", "blocks.2"):
        load_model(carded(tmp_path, timm={"img_size": 32, "patch_size": 8, "depth": 3}))


# Checkpoints


def nested(state: dict[str, Tensor], key: str) -> dict:
    return {"epoch": 3, key: {f"module.{name}": value for name, value in state.items()}}


@pytest.mark.parametrize("form", ["safetensors", "plain", "state_dict", "model"])
def test_a_checkpoint_is_loaded_and_tells_the_number_of_classes(tmp_path, form: str):
    trained = load_model(f"{TINY[:-1]}, num_classes=7)", pretrained=False).module
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pth")
    if form == "safetensors":
        save_file(trained.state_dict(), path)
    else:
        torch.save(
            trained.state_dict() if form == "plain" else nested(trained.state_dict(), form), path
        )
    loaded = load_model(TINY, checkpoint=path).module
    torch.testing.assert_close(loaded.state_dict(), trained.state_dict(), rtol=0, atol=0)
    assert loaded.num_classes == 7


class Exploit:
    """What a malicious checkpoint holds: something to call when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_checkpoint_that_holds_code_is_refused_and_not_run(tmp_path):
    torch.save({"state_dict": Exploit(tmp_path / "ran")}, tmp_path / "evil.pth")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Exploit(tmp_path / "ran"), protocol=2))
    for name in ("evil.pth", "evil.pkl"):
        with refused(name, "cannot be read", "state dict"):
            load_model(TINY, checkpoint=tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: seeded(lambda: timm_vit(depth=1)).state_dict(), ["missing", "blocks.1"]),
        (lambda: seeded(timm_vit).state_dict(), ["unknown", "blocks.2"]),
        (lambda: seeded(lambda: timm_vit(patch_size=4)).state_dict(), ["shape", "pos_embed"]),
        (lambda: [1, 2, 3], ["no state dict"]),
        (lambda: {}, ["no state dict"]),
    ],
    ids=["too_shallow", "too_deep", "other_patches", "a_list", "empty"],
)
def test_a_checkpoint_that_does_not_fit_is_told_in_a_sentence(tmp_path, content, words):
    torch.save(content(), tmp_path / "w.pth")
    with refused("w.pth", *words):
        load_model(TINY, checkpoint=tmp_path / "w.pth")


def test_a_checkpoint_that_is_missing_or_damaged_is_named(tmp_path):
    with refused("There is no checkpoint", "w.pth"):
        load_model(TINY, checkpoint=tmp_path / "w.pth")
    (tmp_path / "w.safetensors").write_bytes(b"no weights")
    with refused("w.safetensors", "cannot be read"):
        load_model(TINY, checkpoint=tmp_path / "w.safetensors")


class Tower(nn.Module):
    """Embeds an image by the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.one * images.mean((2, 3))


@pytest.mark.parametrize("make", [np.eye(3, 3), torch.eye(3), np.eye(3, dtype=np.float32)[::-1]])
def test_class_embeddings_are_tensors_or_arrays(make):
    model = fs.zero_shot(Tower(), make)
    images = torch.rand(2, 3, 8, 8)
    expected = torch.nn.functional.normalize(images.mean((2, 3)), dim=1)
    rows = torch.as_tensor(np.array(make)).to(expected.dtype)
    torch.testing.assert_close(model.logits(images), 100 * expected @ rows.T, check_dtype=False)


def test_what_are_no_embeddings_is_named_by_its_type():
    for given, words in (
        ([[1.0, 2.0]] * 2, "got list."),
        (np.eye(3, dtype=int), "got ndarray int64 [3, 3]."),
        (torch.zeros(4), "got Tensor torch.float32 [4]."),
    ):
        with refused("class_embeddings must be floats [classes, numbers]", words):
            fs.zero_shot(Tower(), given)

    class Whole(Tower):
        def get_image_features(self) -> None: ...

    with refused("Whole holds a text tower", "CLIPVisionModelWithProjection"):
        fs.zero_shot(Whole(), torch.eye(3))


def test_embeddings_that_do_not_fit_the_tower_or_the_names_are_refused():
    images = torch.rand(2, 3, 8, 8)
    with refused("3 numbers", "have 4", "take both from one model"):
        fs.zero_shot(Tower(), torch.rand(5, 4)).logits(images)
    with refused("3 numbers", "have 4", "give class_embeddings.T"):
        fs.zero_shot(Tower(), torch.rand(3, 4)).logits(images)
    with refused("2 names of classes for 3 class_embeddings"):
        fs.zero_shot(Tower(), torch.eye(3), classes=["cat", "dog"])
