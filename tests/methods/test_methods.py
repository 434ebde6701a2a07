"""Methods: equal to autograd, to themselves in batches and in any company; no traces; cost."""

import importlib.metadata
from copy import deepcopy
from functools import cache

import captum.attr
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils._python_dispatch import TorchDispatchMode

import faithscope as fs
from faithscope.methods import METHODS, explain_images, relevance, rerun, resolve_methods
from faithscope.methods.trace import gather
from faithscope.models import PassCounter
from faithscope.perturb import to_pixels
from families import (
    DEPTH,
    FAMILIES,
    Family,
    images_of,
    refused,
    seeded,
    state_of,
    timm_vit,
    unsettled,
)

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
both_types = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64], ids=["float32", "float64"]
)


# Against the definitions, in every family


def gradient_by_hand(module: nn.Module, images: Tensor, target: int) -> Tensor:
    inputs = images.clone().requires_grad_(True)
    logits = module(inputs)
    getattr(logits, "logits", logits)[:, target].sum().backward()
    module.zero_grad()
    return inputs.grad


@every_family
def test_gradient_methods_are_what_autograd_gives(family: Family):
    module, images = family.module(), family.images()
    maps = fs.explain(module, images, ["gradient", "input_x_gradient"], target=3)
    expected = gradient_by_hand(module, images, 3)
    torch.testing.assert_close(maps["gradient"], expected.square().sum(1).sqrt())
    torch.testing.assert_close(maps["input_x_gradient"], (images * expected).sum(1))


@every_family
def test_integrated_gradients_are_complete(family: Family):
    module, images = family.module(), family.images()
    model = fs.wrap(module)
    method = fs.method("integrated_gradients", steps=100)
    with torch.no_grad():
        change = model.logits(images)[:, 2] - model.logits(torch.zeros_like(images))[:, 2]
    total = fs.explain(model, images, method, target=2).sum((1, 2))
    torch.testing.assert_close(total, change, rtol=0, atol=1e-7)


def test_a_pooled_head_is_explained_by_the_mean_over_patches():
    family = FAMILIES["timm_pooled"]
    module, images = family.module(), family.images()
    target = torch.zeros(2, dtype=torch.int64)
    needs = frozenset({"attention"})
    evidence = gather(fs.wrap(module), images, target, needs, keys=[], seed=0, batch_size=4)
    last = next(evidence.layers()).attention.mean(1)
    maps = fs.explain(module, images, "raw_attention", units="patches")
    torch.testing.assert_close(maps.flatten(1), last.mean(1))


@every_family
def test_every_method_runs_on_every_family_in_both_units(family: Family):
    model, images = fs.wrap(family.module()), family.images()
    for units, shape in (("pixels", family.size), ("patches", family.grid)):
        maps = fs.explain(model, images, "registered", units=units)
        assert set(maps) == set(METHODS)
        for name, values in maps.items():
            assert values.shape == (2, *shape)
            assert values.dtype == torch.float64
            assert values.isfinite().all()
            if name != "grad_cam":  # all of its map may be clamped at 0
                assert (values.flatten(1).std(1) > 0).all()


VARIANTS = [
    *METHODS,
    "rollout(start_layer=1)",
    "grad_cam(clamp=false)",
    "grad_cam(minmax=true)",
    "attcat(stream=output)",
    "attcat(attention=readout)",
    "gradient_rollout(gradient=false)",
    "gradient_rollout(pairing=published)",
    "gradient_rollout(discard=0)",
    "attention(layers=last)",
    "attention(gradient=true)",
    "attention(layers=last, gradient=true)",
    "attention(gradient=true, aggregate=normalised)",
    "attention(gradient=true, aggregate=sum, clamp=mean)",
    "conservative_lrp(at=patches)",
    "conservative_lrp(at=pixels)",
    "conservative_lrp(norm=mean_std)",
    "conservative_lrp(norm=none)",
    "conservative_lrp(activation=ratio)",
    "integrated_gradients(rule=riemann_trapezoid, steps=5)",
    "lrp(rules=conserving)",
    "partial_lrp(rules=conserving)",
    "partial_lrp(gradient=true)",
    "transformer_attribution(rules=original)",
    "transformer_attribution(gradient=false)",
    "transformer_attribution(start_layer=1)",
]
"""Every method, and what its options make of it."""

UNITS = ("pixels", "patches")

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def fine(method: fs.Method) -> str:
    """The units in which a method's map is as it was made."""
    pixels = method.granularity == "pixel" or method.options.get("at") == "pixels"
    return "pixels" if pixels else "patches"


def explain_variants(module: nn.Module, images: Tensor, **options) -> dict[str, Tensor]:
    """Maps of all variants, explained together, each in its own units."""
    methods = [fs.method(text) for text in VARIANTS]
    maps = {units: fs.explain(module, images, methods, units=units, **options) for units in UNITS}
    labels = dict(zip(VARIANTS, methods, strict=True))
    return {text: maps[fine(method)][method.label] for text, method in labels.items()}


@cache
def together_and_alone(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Maps of four images, in one batch and one by one, each for a class of its own."""
    module, images = FAMILIES[name].module(), FAMILIES[name].images(4)
    target = torch.tensor([0, 1, 2, 4])
    together = explain_variants(module, images, target=target)
    one_by_one = [
        explain_variants(module, images[[index]], target=target[[index]]) for index in range(4)
    ]
    return together, {text: torch.cat([maps[text] for maps in one_by_one]) for text in VARIANTS}


@every_variant
@pytest.mark.parametrize(
    "name",
    ["timm_vit", "timm_pooled", "timm_distilled", "hf_vit", "hf_deit_teacher", "torchvision_vit"],
)
def test_a_batch_gives_what_one_by_one_gives(name: str, variant: str):
    together, alone = (maps[variant].flatten(1) for maps in together_and_alone(name))
    if variant in ("grad_cam", "grad_cam(minmax=true)"):  # may all be clamped at 0, NaN if scaled
        assert torch.equal(together.isnan(), alone.isnan())
        together, alone = together.nan_to_num(), alone.nan_to_num()
    else:
        assert (alone.abs().amax(1) > 0).all()
    assert ((together - alone).abs().amax(1) <= 1e-10 * alone.abs().amax(1)).all()


@every_variant
@both_types
@pytest.mark.parametrize("name", ["timm_vit", "hf_vit", "torchvision_vit"])
def test_a_map_is_the_same_to_the_bit_in_any_company(name: str, dtype: torch.dtype, variant: str):
    images = FAMILIES[name].images(2)
    module, method = FAMILIES[name].module(dtype), fs.method(variant)
    alone = fs.explain(module, images, method, target=1, units=fine(method))
    in_company = company(name, dtype)[variant]
    assert alone.dtype == in_company.dtype
    assert torch.equal(alone.nan_to_num(7), in_company.nan_to_num(7))


@cache
def company(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    family = FAMILIES[name]
    return explain_variants(family.module(dtype), family.images(2), target=1)


def test_maps_are_the_same_to_the_bit_in_any_order():
    family = FAMILIES["timm_vit"]
    methods = [fs.method(text) for text in VARIANTS]
    backwards = fs.explain(family.module(), family.images(2), methods[::-1], target=1)
    for method, maps in zip(methods, company("timm_vit", torch.float64).values(), strict=True):
        if fine(method) == "pixels":
            assert torch.equal(backwards[method.label], maps)
        else:
            expected = to_pixels(maps, family.size)
            assert torch.equal(backwards[method.label].nan_to_num(7), expected.nan_to_num(7))


def tied_classes() -> tuple[nn.Module, Tensor]:
    """A model and an image whose classes 0 and 1 tie in float32, but not in float64."""
    module, image = seeded(timm_vit, torch.float32), images_of((32, 32), 1, torch.float32)
    with torch.no_grad():
        module.head.bias.copy_(torch.tensor([4096.0, 4096.0, 0, 0, 0]))
        first, second = deepcopy(module).double()(image.double())[0, :2]
        module.head.bias[1] += (first - second).float()
    assert module(image).argmax() == 0
    assert deepcopy(module).double()(image.double()).argmax() == 1
    return module, image


@pytest.mark.parametrize("method", ["lrp", "partial_lrp", "transformer_attribution"])
def test_without_a_target_relevance_explains_the_models_own_prediction_in_any_company(method: str):
    module, image = tied_classes()
    expected = fs.explain(module, image, method, target=0)
    assert not torch.equal(expected, fs.explain(module, image, method, target=1))
    assert torch.equal(fs.explain(module, image, [method, "rollout"])[method], expected)
    assert torch.equal(fs.explain(module, image, method), expected)


def test_attention_methods_do_not_depend_on_the_class_and_the_others_do():
    family = FAMILIES["timm_vit"]
    module, images = family.module(), family.images()
    one, other = (fs.explain(module, images, "registered", target=target) for target in (0, 1))
    independent = {name for name in one if torch.equal(one[name], other[name])}
    assert independent >= {"raw_attention", "rollout", "random", "random_patch"}
    assert not independent & {"gradient", "input_x_gradient", "integrated_gradients"}


def test_without_a_target_the_predicted_class_is_explained():
    family = FAMILIES["timm_vit"]
    module, images = family.module(), family.images(4)
    predicted = module(images).argmax(-1)
    expected = fs.explain(module, images, "gradient", target=predicted)
    torch.testing.assert_close(fs.explain(module, images, "gradient"), expected, rtol=0, atol=0)


def test_maps_come_in_the_models_own_precision_whatever_the_images():
    family = FAMILIES["timm_vit"]
    for dtype in (torch.float32, torch.float64):
        module = family.module(dtype)
        for images in (family.images(), family.images().float(), family.images().numpy()):
            maps = fs.explain(module, images, ["gradient", "rollout", "integrated_gradients"])
            assert {values.dtype for values in maps.values()} == {dtype}


def test_patch_maps_are_upsampled_and_pixel_maps_are_summed():
    family = FAMILIES["timm_wide"]
    module, images = family.module(), family.images()
    coarse = fs.explain(module, images, "rollout", units="patches")
    nearest = fs.explain(module, images, "rollout", upsample="nearest")
    assert torch.equal(nearest, coarse.repeat_interleave(8, 1).repeat_interleave(8, 2))
    fine = fs.explain(module, images, "gradient")
    summed = fs.explain(module, images, "gradient", units="patches")
    torch.testing.assert_close(summed, fine.unfold(1, 8, 8).unfold(2, 8, 8).sum((3, 4)))


@pytest.mark.parametrize(("grid", "size"), [((4, 4), (32, 32)), ((3, 5), (24, 50))])
def test_upsampling_is_torchs_but_leaves_no_rounding_in_the_flat_borders(grid, size):
    maps = images_of(grid, 4)[:, 0]
    ours = to_pixels(maps, size)
    theirs = interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    flat = size[0] // grid[0] // 2
    for border in (ours[:, :flat], ours[:, -flat:], ours.mT[:, :flat], ours.mT[:, -flat:]):
        assert torch.equal(border, border[:, :1].expand_as(border))


def test_upsampled_constant_maps_are_constant_to_the_last_bit():
    values = images_of((10, 10), 1)[0, 0].reshape(-1, 1, 1)
    upsampled = to_pixels(values.expand(-1, 3, 7), (50, 70))
    assert torch.equal(upsampled, values.expand_as(upsampled))


# The user's model is left as it was found


TRACED = ["registered", "captum:Saliency", "captum:DeepLift"]


@every_family
@both_types
@pytest.mark.filterwarnings("ignore:.*hooks")
def test_the_model_is_left_as_it_was_found(family: Family, dtype: torch.dtype):
    module = unsettled(family.module(dtype))
    before = state_of(module)
    fs.explain(module, family.images(), TRACED)
    assert state_of(module) == before
    fs.evaluate(module, family.images(), ["rollout", "gradient", "lrp"], "saco", random_draws=1)
    assert state_of(module) == before


@every_family
@pytest.mark.parametrize(
    "method", ["rollout", "gradient", "integrated_gradients", "attcat", "lrp", *TRACED[1:]]
)
@pytest.mark.filterwarnings("ignore:.*hooks")
def test_the_model_is_left_as_it_was_found_when_its_second_block_fails(family: Family, method: str):
    module = unsettled(family.module(torch.float32))  # of which relevance makes float64

    def fail(*_: object) -> None:
        raise ZeroDivisionError("in block 2")

    fs.wrap(module).vit.attentions[1].module.register_forward_pre_hook(fail)
    before = state_of(module)
    with refused("in block 2"):
        fs.explain(module, family.images(), method, target=0)
    with refused("in block 2"):
        fs.evaluate(module, family.images(), method, "saco")
    assert state_of(module) == before


class Picky(nn.Module):
    """Half-way through a convolutional net: lets captum set itself up, then fails."""

    def forward(self, features: Tensor) -> Tensor:
        raise ZeroDivisionError("in the middle")


@pytest.mark.parametrize("method", ["DeepLift", "LRP", "GuidedBackprop", "Deconvolution"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_captum_leaves_nothing_behind_when_it_fails(method: str):
    net = [nn.Conv2d(3, 4, 3), nn.ReLU(), Picky(), nn.ReLU(), nn.Flatten(), nn.Linear(3600, 5)]
    module = seeded(lambda: nn.Sequential(*net))
    before = state_of(module)
    with pytest.raises((ZeroDivisionError, fs.FaithscopeError)):
        fs.explain(module, images_of((32, 32)), f"captum:{method}", target=0)
    assert state_of(module) == before


def test_a_model_in_training_mode_is_explained_as_in_use():
    dropout = {"drop_rate": 0.5, "attn_drop_rate": 0.5, "drop_path_rate": 0.5}
    module, images = seeded(lambda: timm_vit(**dropout)), images_of((32, 32))
    settled = fs.explain(module, images, "registered", target=0)
    training = fs.explain(module.train(), images, "registered", target=0)
    for name in settled:
        torch.testing.assert_close(training[name], settled[name], rtol=0, atol=0)


# What it costs


def passes(module: nn.Module, images: Tensor, methods, **options) -> int:
    counter = PassCounter()
    with counter.watch(module):
        fs.explain(module, images, methods, **options)
    return counter.count


@every_family
def test_one_traced_forward_serves_all_methods_that_share_it(family: Family):
    module, images = family.module(), family.images(3)
    sharing = ["raw_attention", "rollout", "rollout(start_layer=1)", "gradient", "input_x_gradient"]
    assert passes(module, images, sharing, target=0) == 3
    assert passes(module, images, sharing) == 3  # the traced forward predicts the class, too
    assert passes(module, images, ["random", "random_patch"], target=0) == 0
    assert passes(module, images, "integrated_gradients(steps=7)", target=0) == 21


TRACED_TOGETHER = [
    "raw_attention",
    "rollout",
    "grad_cam",
    "transformer_mm",
    "attcat",
    "gradient_rollout",
    "gradient_rollout(pairing=published)",
    "attention(layers=last)",
    "attention(gradient=true)",
    "attention(layers=last, gradient=true)",
    "conservative_lrp",
    "conservative_lrp(at=pixels)",
]
RELEVANT = ["lrp", "partial_lrp", "transformer_attribution"]


@every_family
def test_one_traced_pass_serves_all_methods_of_attention_gradients_and_tokens(family: Family):
    for dtype in (torch.float32, torch.float64):
        assert passes(family.module(dtype), family.images(3), TRACED_TOGETHER, target=0) == 3


@every_family
def test_all_methods_cost_one_traced_pass_and_fifty_of_integrated_gradients(family: Family):
    assert passes(family.module(), family.images(2), "all", target=0) == 2 * (1 + 50)
    # Relevance reads a pass in float64, of which a model in float32 has none yet.
    in_float32 = family.module(torch.float32)
    assert passes(in_float32, family.images(2), "all", target=0) == 2 * (1 + 50 + 1)
    assert passes(in_float32, family.images(2), RELEVANT, target=0) == 2


def count_sweeps(monkeypatch, module: nn.Module, images: Tensor, methods) -> tuple[int, int]:
    """How many sweeps were begun, and how many blocks were run once more for them."""
    counts = {"__post_init__": 0, "run_on_tape": 0}

    def spy(owner: object, name: str):
        original = getattr(owner, name)

        def counted(*args, **options):
            counts[name] += 1
            return original(*args, **options)

        return counted

    with monkeypatch.context() as patched:
        for owner, name in ((relevance.Sweep, "__post_init__"), (rerun, "run_on_tape")):
            patched.setattr(owner, name, spy(owner, name))
        fs.explain(module, images, methods, target=0)
    return counts["__post_init__"], counts["run_on_tape"]


@pytest.mark.parametrize(
    ("methods", "sweeps", "blocks"),
    [
        (["lrp", "partial_lrp", "transformer_attribution(rules=original)"], 1, DEPTH),
        (["transformer_attribution", "lrp(rules=conserving)"], 1, DEPTH),
        (RELEVANT, 2, DEPTH),
        ("all", 2, DEPTH),
        (["lrp", "transformer_attribution(start_layer=1)"], 2, DEPTH),
        (["lrp(rules=conserving)", "partial_lrp", "transformer_attribution"], 2, DEPTH),
        (["partial_lrp", "partial_lrp(gradient=true)"], 1, 1),
        ("transformer_attribution(start_layer=1)", 1, DEPTH - 1),
        (TRACED_TOGETHER, 0, 0),
    ],
)
@pytest.mark.parametrize("name", ["timm_vit", "hf_deit_teacher"])
def test_methods_share_one_run_of_each_block_and_one_sweep_per_rules_however_many_images(
    monkeypatch, name: str, methods, sweeps: int, blocks: int
):
    module = FAMILIES[name].module()
    for count in (1, 5):
        images = FAMILIES[name].images(count)
        assert count_sweeps(monkeypatch, module, images, methods) == (sweeps, blocks)


class OperationCounter(TorchDispatchMode):
    """Counts every operation that torch carries out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_there_is_no_loop_over_images_or_heads():
    # Integrated gradients, as many passes as it has steps, are cut into batches by captum.
    methods = [text for text in VARIANTS if "integrated" not in text and "random" not in text]
    counts = {}
    for heads, images in ((2, 2), (2, 6), (6, 2)):
        module = seeded(lambda: timm_vit(num_heads=heads))  # noqa: B023 - called at once
        pairs = [(method, 0) for method in resolve_methods(methods)]
        given, target = images_of((32, 32), images), torch.zeros(images, dtype=torch.int64)
        keys = [str(place) for place in range(images)]
        with OperationCounter() as counter:
            explain_images(fs.wrap(module), given, target, pairs, keys=keys)
        counts[heads, images] = counter.count
    assert counts[2, 2] == counts[2, 6] == counts[6, 2]
    assert counts[2, 2] > 1000


def test_the_passes_of_explanations_are_in_the_manifest():
    family = FAMILIES["timm_vit"]
    methods = ["rollout", "gradient", "integrated_gradients(steps=7)"]
    result = fs.evaluate(family.module(), family.images(3), methods, "saco", random_draws=1)
    assert result.manifest.cost.explanation_passes == 3 * (1 + 7)


# Relevance is made in float64


@every_family
def test_relevance_of_a_float32_model_is_that_of_the_same_model_in_float64(family: Family):
    module, images = family.module(torch.float32), family.images(dtype=torch.float32)
    ours = fs.explain(module, images, RELEVANT, target=1)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    theirs = fs.explain(module.double(), images.double(), RELEVANT, target=1)
    for name in RELEVANT:
        assert ours[name].dtype == torch.float64
        assert (ours[name] - theirs[name]).abs().max() <= 1e-9 * theirs[name].abs().max()


@pytest.mark.parametrize("method", RELEVANT)
def test_relevance_runs_in_float32_if_that_is_asked_for(method: str):
    family = FAMILIES["timm_vit"]
    asked = fs.method(method, precision="fp32")
    for dtype in (torch.float32, torch.float64):
        module = family.module(torch.float32).to(dtype)  # its weights are exact in both
        maps = fs.explain(module, family.images(), [method, asked], target=1)
        precise, rough = maps[method], maps[asked.label]
        assert asked.label == f"{method}(precision=fp32)"
        assert (precise.dtype, rough.dtype) == (torch.float64, torch.float32)
        error = ((rough - precise).abs().max() / precise.abs().max()).item()
        assert 1e-9 < error < 0.1  # off by rounding: neither the same nor something else


def test_a_float32_pass_serves_rough_relevance_and_the_other_methods_of_a_float32_model():
    family = FAMILIES["timm_vit"]
    module, images = family.module(torch.float32), family.images(3)
    rough = ["lrp(precision=fp32)", "rollout", "gradient"]
    assert passes(module, images, rough, target=0) == 3
    assert passes(module, images, [*rough, "lrp"], target=0) == 6


@both_types
def test_scores_of_relevance_in_float32_are_flagged(dtype: torch.dtype):
    family = FAMILIES["timm_vit"]
    methods = ["lrp(precision=fp32)", "lrp", "partial_lrp(precision=fp32)", "rollout"]
    result = fs.evaluate(family.module(dtype), family.images(), methods, "saco")
    flagged = {row["method"]: "low_precision" in row["flag"] for row in result.scores.to_pylist()}
    rough = {name for name in flagged if flagged[name]}
    assert rough == {"lrp(precision=fp32)", "partial_lrp(precision=fp32)"}


@pytest.mark.parametrize("method", RELEVANT)
def test_a_precision_that_is_none_is_refused_by_name(method: str):
    with refused("precision", "'fp16'", "fp32, fp64"):
        fs.method(method, precision="fp16")
    with refused("'half'", "fp32, fp64"):
        fs.method(f"{method}(precision=half)")


def test_methods_that_read_no_relevance_have_no_precision():
    with refused("'precision'"):
        fs.method("rollout(precision=fp64)")


# Random attribution


@pytest.mark.parametrize("method", ["random", "random_patch"])
def test_random_maps_belong_to_the_image_and_the_seed(method: str):
    family = FAMILIES["timm_vit"]
    module, images = family.module(), family.images(4)
    maps = fs.explain(module, images, method, seed=5)
    again = fs.explain(module, images.flip(0), method, seed=5).flip(0)
    alone = fs.explain(module, images[2:3], method, seed=5)
    twins = fs.explain(module, images[[1, 1]], method, seed=5)
    assert torch.equal(maps, again)
    assert torch.equal(maps[2:3], alone)
    assert torch.equal(twins[0], twins[1])
    assert torch.equal(twins[0], maps[1])
    assert not torch.equal(maps[0], maps[1])
    assert not torch.equal(maps, fs.explain(module, images, method, seed=6))


def test_random_maps_are_uniform_and_leave_global_randomness_alone():
    family = FAMILIES["timm_vit"]
    state = torch.get_rng_state()
    values = fs.explain(family.module(), family.images(20), "random").flatten()
    assert torch.equal(torch.get_rng_state(), state)
    assert 0 <= values.min() < values.max() < 1
    counts = torch.histc(values, 10, 0, 1)
    expected = len(values) / 10
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-squared, 9 df, p = 0.001


def test_random_draws_differ_from_each_other():
    family = FAMILIES["timm_vit"]
    result = fs.evaluate(family.module(), family.images(), [], "aopc", random_draws=3)
    for method in ("random", "random_patch"):
        rows = result.scores.to_pylist()
        values = [row["value"] for row in rows if row["method"] == method]
        assert len(values) == len(set(values)) == 2 * 3


# captum by name


@pytest.mark.parametrize(
    ("text", "made", "options"),
    [
        ("Saliency", captum.attr.Saliency, {}),
        ("Saliency(abs=False)", captum.attr.Saliency, {"abs": False}),
        ("InputXGradient", captum.attr.InputXGradient, {}),
        ("DeepLift", captum.attr.DeepLift, {}),
        ("IntegratedGradients(n_steps=5)", captum.attr.IntegratedGradients, {"n_steps": 5}),
        (
            "Occlusion(sliding_window_shapes=(3, 8, 8), strides=(3,8,8))",
            captum.attr.Occlusion,
            {"sliding_window_shapes": (3, 8, 8), "strides": (3, 8, 8)},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*hooks")
def test_captum_classes_by_name_give_what_captum_gives(text: str, made, options):
    module, images = seeded(timm_vit), images_of((32, 32))
    ours = fs.explain(module, images, f"captum:{text}", target=1)
    inputs = images.clone().requires_grad_(True)
    theirs = made(module).attribute(inputs, target=1, **options).sum(1).detach()
    torch.testing.assert_close(ours, theirs)


def test_captum_options_may_be_given_in_python():
    module, images = seeded(timm_vit), images_of((32, 32))
    baselines = torch.zeros(1, 3, 32, 32, dtype=torch.float64)
    method = fs.method("captum:IntegratedGradients", baselines=baselines, n_steps=50)
    ours = fs.explain(module, images, ["integrated_gradients", method], target=1)
    torch.testing.assert_close(*ours.values())


def test_captum_classes_work_on_hugging_face_models():
    family = FAMILIES["hf_vit"]
    maps = fs.explain(
        family.module(), family.images(), ["captum:InputXGradient", "input_x_gradient"], target=0
    )
    torch.testing.assert_close(*maps.values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "captum:Occlusion",
            ["sliding_window_shapes", "captum:Occlusion(sliding_window_shapes=…)"],
        ),
        ("captum:LayerGradCam", ["needs layer", "maps={…}"]),
        ("captum:GradientShap", ["needs baselines"]),
        ("captum:NoiseTunnel", ["needs attribution_method"]),
        ("captum:Salience", ["captum class 'Salience'", "did you mean 'Saliency'", "Valid:"]),
        ("captum:Saliency(absolute=True)", ["absolute", "did you mean 'abs'", "Valid: abs"]),
    ],
)
def test_captum_classes_that_need_more_are_refused_naming_it(text: str, words):
    with refused(*words):
        fs.method(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("captum:LRP", ["captum:LRP", "cannot explain VisionTransformer"]),
        ("captum:IntegratedGradients(return_convergence_delta=True)", ["gave tuple"]),
    ],
)
def test_captum_classes_that_cannot_explain_the_model_are_refused_by_name(text: str, words):
    with refused(*words):
        fs.explain(seeded(timm_vit), images_of((32, 32)), text)


# Methods of one's own


@pytest.fixture
def clean_registry():
    """Forget what a test registers."""
    before = dict(METHODS._items)
    yield
    METHODS._items.clear()
    METHODS._items.update(before)


def brightness(module: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    assert not module.training
    assert target.shape == (len(images),)
    return images.mean(1)


def test_a_function_is_a_method():
    module, images = seeded(timm_vit), images_of((32, 32))
    assert torch.equal(fs.explain(module, images, brightness), images.mean(1))
    as_array = lambda _, images, __: images.mean(1).numpy()  # noqa: E731
    assert torch.equal(fs.explain(module, images, as_array), images.mean(1))
    called = fs.evaluate(module, images, [brightness, "gradient"], "saco")
    given = fs.evaluate(module, images, maps={"brightness": images.mean(1)}, metrics="saco")
    assert called.methods[:2] == ["brightness", "gradient"]
    expected = given.values("brightness", "saco")
    np.testing.assert_allclose(called.values("brightness", "saco"), expected, rtol=0, atol=1e-12)


def test_a_function_may_differentiate_the_model():
    def own_gradient(module: nn.Module, images: Tensor, target: Tensor) -> Tensor:
        inputs = images.clone().requires_grad_(True)
        module(inputs).gather(1, target[:, None]).sum().backward()
        return inputs.grad.norm(dim=1)

    module, images = seeded(timm_vit), images_of((32, 32))
    maps = fs.explain(module, images, [own_gradient, "gradient"])
    torch.testing.assert_close(*maps.values())
    result = fs.evaluate(module, images, [own_gradient, "gradient"], "saco")
    np.testing.assert_allclose(
        result.values("own_gradient", "saco"), result.values("gradient", "saco")
    )


@pytest.mark.usefixtures("clean_registry")
def test_a_method_is_registered_by_decorator_with_its_options():
    @fs.register_method("power", granularity="pixel", needs=("gradient",))
    def power(evidence: fs.Evidence, *, exponent: float = 1.0) -> Tensor:
        """The gradient raised to a power."""
        return evidence.input_gradient().abs().sum(1) ** exponent

    module, images = seeded(timm_vit), images_of((32, 32))
    plain, squared = (fs.explain(module, images, name) for name in ("power", "power(exponent=2)"))
    torch.testing.assert_close(squared, plain**2)
    assert "power" in fs.explain(module, images, "registered")
    result = fs.evaluate(module, images, ["power(exponent=2)"], "saco")
    assert result.methods[0] == "power(exponent=2)"
    with refused("'power'", "already registered"):
        fs.register_method("power", granularity="pixel")(power)


@pytest.mark.usefixtures("clean_registry")
def test_a_layer_method_walks_the_blocks_last_first():
    seen = []

    @fs.layer_method("walk")
    def walk(row: Tensor, layer: object) -> Tensor:
        """Nothing but the mean attention of every block."""
        seen.append(layer.index)
        return (row[:, None] @ layer.attention.mean(1))[:, 0]

    module, images = seeded(timm_vit), images_of((32, 32))
    maps = fs.explain(module, images, "walk", units="patches")
    assert seen == [2, 1, 0]
    assert maps.shape == (2, 4, 4)


@pytest.mark.usefixtures("clean_registry")
def test_a_method_of_another_package_is_found_through_its_entry_point(monkeypatch, tmp_path):
    (tmp_path / "someones_package.py").write_text(
        "import faithscope as fs\n"
        "from faithscope.methods import Method\n"
        "@fs.register_method('by_decorator', granularity='pixel')\n"
        "def by_decorator(evidence):\n"
        "    return evidence.images.sum(1)\n"
        "as_object = Method('as_object', lambda evidence: evidence.images.mean(1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        importlib.metadata.EntryPoint(name, f"someones_package:{name}", "faithscope.methods")
        for name in ("by_decorator", "as_object")
    ]
    monkeypatch.setattr("faithscope.registry.entry_points", lambda group: points)
    monkeypatch.setattr(METHODS, "_plugins_loaded", False)
    module, images = seeded(timm_vit), images_of((32, 32))
    maps = fs.explain(module, images, ["by_decorator", "as_object"])
    torch.testing.assert_close(maps["by_decorator"], 3 * maps["as_object"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fs.method("rollout", start=1), ["'start'", "did you mean 'start_layer'"]),
        (lambda: fs.method("gradient", power=2), ["takes no options", "'power'"]),
        (lambda: fs.method("rollout(start_layer=1"), ["name(option=value, …)"]),
        (lambda: fs.method("rollout(1)"), ["name(option=value, …)"]),
        (lambda: fs.method("rollout(start_layer=f(1))"), ["name(option=value, …)"]),
        (
            lambda: fs.register_method("x", granularity="voxel"),
            ["granularity", "any, patch, pixel"],
        ),
        (
            lambda: fs.register_method("x", granularity="pixel", needs=["grad"]),
            ["evidence 'grad'", "attention, attention_gradient"],
        ),
    ],
)
def test_options_and_traits_are_checked_when_they_are_given(make, words):
    with refused(*words):
        make()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("rollout(start_layer=3)", ["start_layer", "0 to 2", "got 3"]),
        ("rollout(start_layer=first)", ["'start_layer'", "a whole number", "got 'first'"]),
        ("transformer_attribution(start_layer=3)", ["start_layer", "0 to 2", "got 3"]),
        ("attention(layers=first)", ["'first'", "all, last"]),
        ("attention(aggregate=mean)", ["'mean'", "auto, normalised, product, sum"]),
        ("attention(gradient=true, clamp=head)", ["'head'", "did you mean 'heads'"]),
        ("attcat(stream=middle)", ["'middle'", "input, output"]),
        ("attcat(attention=paid)", ["'paid'", "readout, received"]),
        ("gradient_rollout(discard=1.5)", ["discards", "got 1.5"]),
        ("gradient_rollout(pairing=reversed)", ["'reversed'", "aligned, published"]),
        ("conservative_lrp(at=image)", ["'image'", "patches, pixels, tokens"]),
        ("conservative_lrp(norm=mean)", ["'mean'", "mean_std, none, std"]),
        ("conservative_lrp(activation=relu)", ["'relu'", "derivative, ratio"]),
        ("partial_lrp(rules=ours)", ["'ours'", "conserving, original"]),
        ("integrated_gradients(steps=0)", ["steps", "at least 1"]),
        ("integrated_gradients(rule=simpson)", ["'simpson'", "gausslegendre, riemann_left"]),
    ],
)
def test_values_of_options_are_checked(method: str, words):
    with refused(*words):
        fs.explain(seeded(timm_vit), images_of((32, 32)), method)


def crooked(module: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    return images[:, 0, :5]


def empty_handed(module: nn.Module, images: Tensor, target: Tensor) -> None:
    return None


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (crooked, ["'crooked'", "5, 32]", "32, 32]", "by patch"]),
        (empty_handed, ["'empty_handed'", "None"]),
    ],
)
def test_maps_of_the_wrong_shape_are_refused_by_the_methods_name(method, words):
    with refused(*words):
        fs.explain(seeded(timm_vit), images_of((32, 32)), method)
    with refused(*words):
        fs.evaluate(seeded(timm_vit), images_of((32, 32)), method)


def test_captum_draws_by_our_seed_and_leaves_global_randomness_alone():
    from faithscope.methods.peers import own_randomness

    before = torch.random.get_rng_state(), str(np.random.get_state())
    draws = []
    for seed in (1, 1, 2**40):
        with own_randomness(seed):
            draws.append((float(torch.rand(())), float(np.random.rand())))
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert str(np.random.get_state()) == before[1]
