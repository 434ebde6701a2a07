"""Objects of other packages as methods: captum here; pytorch-grad-cam and shap where installed."""

from __future__ import annotations

import captum.attr
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import faithscope as fs
from faithscope.methods import Method
from faithscope.methods.text import TokenEvidence
from families import images_of, refused, seeded, state_of, timm_vit, unsettled

SIZE = (32, 32)


def cnn() -> nn.Module:
    """Its last convolution has a grid of 8×8, its first one of 32×32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(8, 5),
    )


@pytest.fixture
def vit() -> nn.Module:
    return seeded(timm_vit)


@pytest.fixture
def net() -> nn.Module:
    return seeded(cnn, torch.float32)


def granularities(result: fs.Result) -> dict[str, tuple[str, str | None]]:
    """How fine the maps of each method were, and the random method it is tested against."""
    cards = result.manifest.methods
    return {
        label: (card.granularity, card.matched_random)
        for label, card in cards.items()
        if not card.is_random
    }


# Objects of captum


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (captum.attr.Saliency, {}),
        (captum.attr.InputXGradient, {}),
        (captum.attr.IntegratedGradients, {"n_steps": 5}),
        (captum.attr.DeepLift, {}),
        (captum.attr.Occlusion, {"sliding_window_shapes": (3, 8, 8), "strides": (3, 8, 8)}),
        (captum.attr.FeatureAblation, {"feature_mask": torch.arange(3)[:, None, None]}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*hooks")
def test_an_object_gives_what_captum_gives(vit, kind, options):
    images = images_of(SIZE)
    ours = fs.explain(vit, images, fs.method(kind(vit), **options), target=1)
    inputs = images.clone().requires_grad_(True)
    theirs = kind(vit).attribute(inputs, target=1, **options).sum(1).detach()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "wrap", [lambda net: net, lambda net: net.forward, lambda net: net.__call__]
)
def test_an_object_alone_is_a_method(vit, wrap):
    images = images_of(SIZE)
    ours = fs.explain(vit, images, captum.attr.InputXGradient(wrap(vit)))
    torch.testing.assert_close(ours, fs.explain(vit, images, "input_x_gradient"))


def test_a_function_or_a_wrapper_of_the_module_may_be_explained(vit):
    images = images_of(SIZE)
    scaled = nn.Sequential(vit, nn.Softmax(-1))
    for forward in (lambda inputs: vit(inputs).softmax(-1), scaled, fs.wrap(vit).logits):
        assert fs.explain(vit, images, captum.attr.Saliency(forward)).shape == (2, *SIZE)


def test_two_objects_of_one_class_have_labels_of_their_own(vit):
    attr = captum.attr
    methods = [
        attr.Saliency(vit),
        attr.Saliency(vit),
        attr.IntegratedGradients(vit),
        attr.IntegratedGradients(vit, multiply_by_inputs=False),
        fs.method(attr.NoiseTunnel(attr.Saliency(vit)), nt_samples=2, abs=False),
    ]
    result = fs.evaluate(vit, images_of(SIZE), methods, "saco", random_draws=1)
    tunnel = "NoiseTunnel(attribution_method=Saliency, nt_samples=2, abs=false)"
    integrated = "IntegratedGradients(multiply_by_inputs=false)"
    expected = ["Saliency", "Saliency 2", "IntegratedGradients", integrated, tunnel]
    assert list(granularities(result)) == expected
    assert set(granularities(result).values()) == {("pixel", "random")}
    np.testing.assert_array_equal(
        result.values("Saliency", "saco"), result.values("Saliency 2", "saco")
    )
    twice = attr.Saliency(vit)
    with refused("'Saliency' is named twice"):
        fs.explain(vit, images_of(SIZE), [twice, twice])


def test_functions_of_one_name_have_labels_of_their_own(vit):
    methods = [lambda _, images, __: images.sum(1), lambda _, images, __: -images.sum(1)]
    maps = fs.explain(vit, images_of(SIZE), methods)
    assert list(maps) == ["<lambda>", "<lambda> 2"]
    assert torch.equal(maps["<lambda>"], -maps["<lambda> 2"])


def test_a_layer_of_captum_has_the_grid_of_the_layer(net):
    method = captum.attr.LayerGradCam(net, net[4])
    result = fs.evaluate(net, images_of(SIZE, 2, torch.float32), method, "saco")
    assert granularities(result) == {"LayerGradCam(layer=4)": ("8×8", "random(grid=8x8)")}


def test_slips_with_captum_are_told(net):
    images = images_of(SIZE, 2, torch.float32)
    for methods in (
        captum.attr.Saliency(fs.wrap(net)),
        [captum.attr.Saliency(fs.wrap(net)), "lrp"],
    ):
        with refused("'Saliency' was made with a faithscope Model", "Saliency(model.module)"):
            fs.evaluate(net, images, methods, "saco")
    for methods in (captum.attr.Saliency, ["gradient", captum.attr.Saliency]):
        with refused("give an object, Saliency(net), or 'captum:Saliency'"):
            fs.evaluate(net, images, methods, "saco")


def test_an_object_for_another_module_is_refused(vit, net):
    images = images_of(SIZE)
    for other in (net, net.forward, vit.head, fs.wrap(net).logits):
        method = captum.attr.Saliency(other)
        with refused("'Saliency' explains another module", "VisionTransformer"):
            fs.explain(vit, images, method)
        with refused("'Saliency' explains another module", "VisionTransformer"):
            fs.evaluate(vit, images, [method], "saco")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda net: captum.attr.Occlusion(net), ["'Occlusion' needs sliding_window_shapes"]),
        (lambda net: captum.attr.FeaturePermutation(net), ["mixes the images of a batch"]),
        (lambda net: captum.attr.LayerActivation(net, net[4]), ["takes no target class"]),
        (lambda net: captum.attr.LayerGradCam(net, net[8]), ["'LayerGradCam' gave", "not one map"]),
        (
            lambda net: fs.method(captum.attr.Saliency(net), steps=3),
            ["option of 'Saliency'", "abs"],
        ),
    ],
)
def test_objects_that_need_more_are_refused_naming_it(net, make, words):
    with refused(*words):
        fs.explain(net, images_of(SIZE, 2, torch.float32), make(net))


@pytest.mark.filterwarnings("ignore:.*hooks")
def test_objects_leave_the_model_and_the_generators_as_they_were():
    module = unsettled(seeded(timm_vit))
    before, drawn = state_of(module), torch.random.get_rng_state()
    attr = captum.attr
    baselines = torch.zeros(2, 3, *SIZE)
    shap = fs.method(attr.GradientShap(module), baselines=baselines)
    fs.evaluate(module, images_of(SIZE), [attr.DeepLift(module), shap], "saco", random_draws=1)
    assert state_of(module) == before
    assert torch.equal(torch.random.get_rng_state(), drawn)


# What captum draws


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("KernelShap", {"units": "patches", "n_samples": 20}),
        ("GradientShap", {"baselines": torch.zeros(2, 3, *SIZE)}),
    ],
)
def test_what_captum_draws_depends_on_the_seed_and_the_image_alone(vit, name, options):
    images, method = images_of(SIZE, 3), fs.method(f"captum:{name}", **options)
    together = fs.explain(vit, images, method, target=1)
    alone = [fs.explain(vit, image[None], method, target=1) for image in images.flip(0)]
    torch.testing.assert_close(together, torch.cat(alone).flip(0))
    assert not torch.allclose(together, fs.explain(vit, images, method, target=1, seed=1))


# Tensors among the options


def test_two_baselines_are_two_methods(vit):
    images = images_of(SIZE)
    black, white = (
        fs.method("captum:IntegratedGradients", baselines=torch.full((1, 3, *SIZE), value))
        for value in (0.0, 1.0)
    )
    assert black.label.startswith("captum:IntegratedGradients(baselines=tensor[1×3×32×32]#")
    again = fs.method("captum:IntegratedGradients", baselines=torch.zeros(1, 3, *SIZE))
    assert black.label == again.label != white.label
    result = fs.evaluate(vit, images, [black, white], "saco", random_draws=1)
    assert list(granularities(result)) == [black.label, white.label]
    card = result.manifest.methods[black.label]
    assert card.options["baselines"] in black.label
    assert card.options["baselines"].startswith("tensor[1×3×32×32]#")


@pytest.mark.parametrize(
    "shape", [(1, 3, *SIZE), (3, *SIZE), (1, 1, *SIZE), SIZE, (1, 3, 1, 1), (3, 1, 1)]
)
@pytest.mark.parametrize("as_array", [False, True])
def test_baselines_of_any_shape_that_fits_an_image(vit, shape, as_array):
    images, baselines = images_of(SIZE, 3), torch.rand(shape)  # not in the model's type
    method = fs.method(
        "captum:IntegratedGradients",
        baselines=baselines.numpy() if as_array else baselines,
        n_steps=3,
    )
    whole = baselines.double().expand(images.shape)
    explainer = captum.attr.IntegratedGradients(vit)
    theirs = explainer.attribute(images, baselines=whole, target=1, n_steps=3).sum(1).detach()
    torch.testing.assert_close(fs.explain(vit, images, method, target=1), theirs)


def test_tensors_for_certain_images_are_refused(vit):
    for name, option in [
        ("IntegratedGradients", "baselines"),
        ("FeatureAblation", "feature_mask"),
        ("Saliency", "additional_forward_args"),
    ]:
        with refused(option, f"'captum:{name}'", "2 certain images", "[1, 3, 32, 32]"):
            fs.method(f"captum:{name}", **{option: torch.zeros(2, 3, *SIZE)})
        with refused(option, f"'{name}'", "2 certain images"):
            explainer = getattr(captum.attr, name)(vit)
            fs.method(explainer, **{option: torch.zeros(2, 3, *SIZE)})
    with refused("baselines of 'captum:DeepLift' have shape [1, 3, 16, 16]", "[3, 32, 32]"):
        method = fs.method("captum:DeepLift", baselines=torch.zeros(1, 3, 16, 16))
        fs.explain(vit, images_of(SIZE), method)


# Patches as features


def test_ablating_patches_is_what_it_says(vit):
    images = images_of(SIZE, 3)
    maps = fs.explain(
        vit, images, "captum:FeatureAblation(units=patches)", target=1, units="patches"
    )
    assert maps.shape == (3, 4, 4)
    whole = vit(images)[:, 1]
    for row, column in [(0, 0), (1, 3), (3, 2)]:
        ablated = images.clone()
        ablated[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
        torch.testing.assert_close(maps[:, row, column], (whole - vit(ablated)[:, 1]).detach())


@pytest.mark.parametrize("name", ["Lime", "KernelShap", "ShapleyValueSampling", "FeatureAblation"])
def test_patches_are_the_features_of_a_method(vit, name):
    if name == "Lime":
        pytest.importorskip("sklearn")
    method = f"captum:{name}(units=patches)"
    result = fs.evaluate(vit, images_of(SIZE), method, "saco", random_draws=1)
    assert granularities(result) == {method: ("patch", "random_patch")}


def test_shapley_values_of_patches_sum_to_what_is_explained(vit):
    images = images_of(SIZE)
    method = fs.method(captum.attr.ShapleyValueSampling(vit), units="patches", n_samples=3)
    maps = fs.explain(vit, images, method, target=1, units="patches")
    gap = (vit(images) - vit(torch.zeros_like(images)))[:, 1].detach()
    torch.testing.assert_close(maps.sum((1, 2)), gap.float())  # captum adds up in float32


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fs.method("captum:KernelShap(units=pixels)"), ["KernelShap's units", "patches"]),
        (lambda: fs.method("captum:Saliency(units=patches)"), ["option of 'captum:Saliency'"]),
        (
            lambda: fs.method("captum:Lime", units="patches", feature_mask=torch.zeros(1, 1, 1, 1)),
            ["units and the feature_mask"],
        ),
    ],
)
def test_units_that_do_not_fit_are_refused(make, words):
    with refused(*words):
        make()


def test_patches_need_a_model_of_patches(net):
    with refused("captum:KernelShap(units=patches)", "needs whole patches"):
        fs.evaluate(net, images_of(SIZE, 2, torch.float32), "captum:KernelShap(units=patches)")


# What functions give


def test_channels_of_maps_are_summed(vit):
    images = images_of(SIZE)
    for shape in ((2, 3, *SIZE), (2, 1, *SIZE), (2, *SIZE, 3)):
        held = torch.randn(shape, dtype=torch.float64)
        maps = fs.explain(vit, images, lambda *_, held=held: held)
        torch.testing.assert_close(maps, held.sum(3 if shape[-1] == 3 else 1))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "must be an array of numbers, got None"),
        ("map", "must be an array of numbers, got 'map'"),
        ({}, "must be an array of numbers, got dict"),
        (torch.zeros(3, *SIZE), "[3, 32, 32]"),
        (torch.zeros(2, 2, 3, *SIZE), "[2, 2, 3, 32, 32]"),
        (torch.zeros(()), "shape []"),
    ],
)
def test_what_is_no_map_is_refused_by_the_methods_name(vit, made, words):
    def mine(*_: object) -> object:
        return made

    for call in (fs.explain, fs.evaluate):
        with refused("'mine'", words):
            call(vit, images_of(SIZE), mine)


@pytest.mark.parametrize("made", [None, "row", torch.zeros(2, 5), torch.zeros(17)])
def test_what_is_no_row_of_tokens_is_refused_by_the_methods_name(vit, made):
    step = Method("mine", lambda row, layer: made, "patch", frozenset({"attention"}), by_layer=True)
    with refused("The step of the method 'mine'", "17], got"):
        fs.explain(vit, images_of(SIZE), step)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "What the measure 'mine' gives must be an array of numbers, got None"),
        ("score", "got 'score'"),
        (torch.zeros(2, 3, 5), "The measure 'mine' gave scores of shape [2, 3, 5]"),
    ],
)
def test_what_are_no_scores_of_tokens_is_refused_by_the_measures_name(made, words):
    mine = Method("mine", lambda evidence: made, "token", modality="text")
    with refused(words):
        mine(TokenEvidence(attention=torch.zeros(2, 3)))


# Values of shap


def values_of(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Explanation:
    """What shap's explainers give when they are called."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


def test_the_outputs_of_shap_are_picked_by_class():
    values, target = values_of(2, 3, 8, 8, 5), torch.tensor([4, 1])
    expected = torch.stack([values[0, ..., 4], values[1, ..., 1]])
    by_class = [held.numpy() for held in values.unbind(-1)]
    indexes = torch.tensor([[4, 2], [0, 1]])
    ranked = torch.stack([values[0, ..., [4, 2]], values[1, ..., [0, 1]]])
    for given in (values, values.numpy(), Explanation(values.numpy()), by_class, (ranked, indexes)):
        assert torch.equal(fs.from_shap(given, target), expected)
    for single in (values[..., 1], values[..., 1:2], [values[..., 1].numpy()]):
        assert torch.equal(fs.from_shap(single), values[..., 1])
    assert torch.equal(fs.from_shap(values, 1), values[..., 1])


@pytest.mark.parametrize("axis", [1, 3])
def test_values_of_shap_are_maps(vit, axis):
    values = values_of(2, 3, *SIZE, 5).movedim(1, axis)
    maps = {"shap": fs.from_shap(values, 2), "mine": values.sum(axis)[..., 2]}
    result = fs.evaluate(vit, images_of(SIZE), maps=maps, metrics="saco")
    np.testing.assert_array_equal(result.values("shap", "saco"), result.values("mine", "saco"))


@pytest.mark.parametrize(
    ("values", "target", "words"),
    [
        (values_of(2, 3, 8, 8, 5), None, ["5 outputs", "give target=…"]),
        (values_of(2, 3, 8, 8, 5), 5, ["5 outputs", "class 5 of image 0"]),
        (values_of(2, 3, 8, 8, 5), [1], ["2 images", "[1]"]),
        (values_of(2, 3, 8, 8, 5), "cat", ["target must be class numbers"]),
        ((values_of(2, 3, 8, 8, 2), torch.tensor([[1, 2], [1, 3]])), 2, ["class 2 of image 1"]),
        ((values_of(2, 3, 8, 8, 2), torch.tensor([1, 2])), 2, ["indexes", "[2]", "[2, 2]"]),
        (values_of(2, 8, 8), None, ["[2, 8, 8]", "[B, H, W, C, outputs]"]),
        ([], None, ["got shape [0]"]),
        (None, None, ["values of shap", "got None"]),
        ("values", None, ["values of shap", "'values'"]),
    ],
)
def test_values_of_shap_that_do_not_fit_are_refused(values, target, words):
    with refused(*words):
        fs.from_shap(values, target)


# pytorch-grad-cam, the real one


def by_patch(tokens: Tensor) -> Tensor:
    return tokens[:, 1:].reshape(len(tokens), 4, 4, -1).permute(0, 3, 1, 2)


def normalised(maps: Tensor) -> Tensor:
    """From 0 to 1, as that package leaves its maps."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (1e-7 + high - low)


CAMS = ["GradCAM", "HiResCAM", "GradCAMPlusPlus", "XGradCAM", "LayerCAM", "EigenCAM", "ScoreCAM"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMS)
def test_a_cam_gives_what_it_gives_but_in_the_grid_of_its_layer(name):
    cams = pytest.importorskip("pytorch_grad_cam")
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    vit, images = seeded(timm_vit, torch.float32), images_of(SIZE, 3, torch.float32)
    cam = getattr(cams, name)(vit, [vit.blocks[-1].norm1], reshape_transform=by_patch)
    ours = fs.explain(vit, images, cam, target=torch.tensor([1, 0, 4]))
    theirs = torch.as_tensor(cam(images, [ClassifierOutputTarget(held) for held in (1, 0, 4)]))
    torch.testing.assert_close(normalised(ours), theirs, rtol=0, atol=1e-6)
    result = fs.evaluate(vit, images, [cam], "saco", random_draws=1)
    label = f"{name}(layer=blocks.2.norm1)"
    assert granularities(result) == {label: ("patch", "random_patch")}


@pytest.mark.slow
def test_cams_of_a_cnn_have_the_grid_of_their_layers(net):
    cams = pytest.importorskip("pytorch_grad_cam")
    images = images_of(SIZE, 3, torch.float32)
    methods = [
        cams.GradCAM(net, [net[4]]),
        cams.GradCAM(net, [net[4]]),
        cams.GradCAM(net, [net[4], net[5]]),
        cams.GradCAM(net, [net[0], net[4]]),
        cams.FullGrad(net, []),
    ]
    coarse, fine = ("8×8", "random(grid=8x8)"), ("pixel", "random")
    result = fs.evaluate(net, images, methods, "saco", random_draws=1)
    assert granularities(result) == {
        "GradCAM(layer=4)": coarse,
        "GradCAM 2(layer=4)": coarse,
        "GradCAM(layer=4+5)": coarse,
        "GradCAM(layer=0+4)": fine,
        "FullGrad(layer=0+1+4)": fine,
    }
    values = [result.values(label, "saco") for label in ("GradCAM(layer=4)", "GradCAM 2(layer=4)")]
    np.testing.assert_array_equal(*values)


@pytest.mark.slow
def test_a_cam_does_not_depend_on_the_batch(net):
    cams = pytest.importorskip("pytorch_grad_cam")
    images = images_of(SIZE, 3, torch.float32)
    for cam in (cams.GradCAM(net, [net[4]]), cams.RandomCAM(net, [net[4]])):
        together = fs.explain(net, images, cam, target=1)
        alone = torch.cat([fs.explain(net, image[None], cam, target=1) for image in images])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_cam_leaves_the_model_as_it_was_and_sees_no_other_pass():
    cams = pytest.importorskip("pytorch_grad_cam")
    from pytorch_grad_cam.ablation_layer import AblationLayer
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    module, images = unsettled(seeded(cnn, torch.float32)), images_of(SIZE, 2, torch.float32)
    training = [child.training for child in module.modules()]
    held = [
        cams.GradCAM(module, [module[4]]),
        cams.AblationCAM(module, [module[4]], ablation_layer=AblationLayer()),
    ]
    for child, flag in zip(module.modules(), training, strict=True):
        child.training = flag  # which the CAMs switched off
    module[8].weight.grad = torch.ones_like(module[8].weight)
    before, theirs = state_of(module), held[0](images, [ClassifierOutputTarget(1)] * 2)
    module[8].weight.grad = torch.ones_like(module[8].weight)
    kept = [list(cam.activations_and_grads.activations) for cam in held]
    before = state_of(module)
    fs.evaluate(module, images, [*held, "integrated_gradients(steps=2)"], "saco", random_draws=1)
    assert state_of(module) == before
    for cam, passes in zip(held, kept, strict=True):
        assert len(cam.activations_and_grads.activations) == len(passes)
    np.testing.assert_array_equal(held[0](images, [ClassifierOutputTarget(1)] * 2), theirs)


@pytest.mark.slow
def test_a_cam_that_fails_leaves_the_model_as_it_was(net):
    cams = pytest.importorskip("pytorch_grad_cam")

    class Failing(nn.Module):
        def set_next_batch(self, *_: object, **__: object) -> None:
            raise ZeroDivisionError("in the middle")

        def activations_to_be_ablated(self, *_: object) -> np.ndarray:
            return np.arange(4)

    cam = cams.AblationCAM(net, [net[4]], ablation_layer=Failing())
    before = state_of(net)
    with refused("in the middle"):
        fs.explain(net, images_of(SIZE, 2, torch.float32), cam)
    assert state_of(net) == before


@pytest.mark.slow
def test_cams_that_cannot_be_called_are_refused(net, vit):
    cams = pytest.importorskip("pytorch_grad_cam")
    with refused("'GradCAM' explains another module (Sequential)"):
        fs.explain(vit, images_of(SIZE), cams.GradCAM(net, [net[4]]))
    with refused("'FinerCAM' of pytorch-grad-cam", "(module, images, target) -> maps"):
        fs.explain(net, images_of(SIZE), cams.FinerCAM(net, [net[4]]))


# shap, the real one


@pytest.mark.slow
def test_what_is_not_yet_an_object_or_no_method_is_refused(net):
    cams, shap = pytest.importorskip("pytorch_grad_cam"), pytest.importorskip("shap")
    images = images_of(SIZE, 2, torch.float32)
    for given, words in (
        (cams.GradCAM, "GradCAM is a class: give an object of it, GradCAM(…)"),
        (shap.GradientExplainer(net, images), "'GradientExplainer' of shap is no method"),
    ):
        with refused(words):
            fs.evaluate(net, images, [given, "gradient"], "saco")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GradientExplainer", "DeepExplainer"])
@pytest.mark.filterwarnings("ignore")
def test_values_of_shap_s_gradients_are_maps(net, kind):
    shap = pytest.importorskip("shap")
    images = images_of(SIZE, 2, torch.float32)
    background = images_of(SIZE, 6, torch.float32)[2:]
    explainer = getattr(shap, kind)(net, background)
    options = {"rseed": 0, "nsamples": 4} if kind == "GradientExplainer" else {}
    options |= {"check_additivity": False} if kind == "DeepExplainer" else {}
    values = explainer.shap_values(images, **options)
    ranked = explainer.shap_values(images, ranked_outputs=2, **options)
    predicted = net(images).argmax(1)
    first = fs.from_shap(values, predicted)
    torch.testing.assert_close(fs.from_shap(ranked, predicted), first)
    assert first.shape == images.shape
    result = fs.evaluate(net, images, maps={"shap": first}, metrics="saco")
    assert granularities(result) == {"shap": ("pixel", "random")}

    def live(module: nn.Module, images: Tensor, target: Tensor) -> Tensor:
        made = getattr(shap, kind)(module, background)
        return fs.from_shap(made.shap_values(images, **options), target)

    torch.testing.assert_close(fs.explain(net, images, live), first.sum(1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_values_of_shap_s_partitions_are_maps(net):
    shap = pytest.importorskip("shap")
    images = images_of(SIZE, 2, torch.float32)
    pixels = images.permute(0, 2, 3, 1).numpy()

    def predict(pixels: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            inputs = torch.as_tensor(pixels, dtype=torch.float32).permute(0, 3, 1, 2)
            return net(inputs).softmax(-1).numpy()

    masker = shap.maskers.Image("blur(4,4)", pixels[0].shape)
    explainer = shap.Explainer(predict, masker)
    whole = explainer(pixels, max_evals=40, batch_size=20)
    best = explainer(pixels, max_evals=40, batch_size=20, outputs=shap.Explanation.argsort.flip[:1])
    predicted = net(images).argmax(1)
    maps = {"all": fs.from_shap(whole, predicted), "best": fs.from_shap(best)}
    assert maps["best"].shape == (2, *SIZE, 3)
    result = fs.evaluate(net, images, maps=maps, metrics="saco")
    assert granularities(result) == dict.fromkeys(maps, ("pixel", "random"))
    gap = predict(pixels).max(1) - whole.base_values[range(2), predicted]
    np.testing.assert_allclose(maps["best"].sum((1, 2, 3)), gap, atol=1e-5)
