"""The engine: how many passes, the same scores however they are packed, and no trace left."""

import hashlib
import os
import random
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import faithscope as fs
from conftest import randn, tiny_vit, toy
from faithscope import evaluation
from faithscope.perturb import FILLS

SIZES = [(10, 10), (7, 9)]
BATCH_SIZES = [1, 7, 64, 1000]


def eleven_maps(count, height, width):
    return {f"map {i}": randn(count, height, width, seed=100 + i) for i in range(11)}


def given(model, images, maps, **options):
    return fs.evaluate(model, images, methods=(), maps=maps, random_draws=0, **options)


def values(result):
    """[methods, metrics, samples]."""
    return np.array([[result.values(m, k) for k in result.metrics] for m in result.methods])


def same(left, right, tolerance=1e-9):
    np.testing.assert_allclose(values(left), values(right), rtol=0, atol=tolerance)


class Recorder:
    """Every row that goes through a module's forward, by hash."""

    def __init__(self, module):
        self.rows, self.batches = [], []
        module.register_forward_pre_hook(self)

    def __call__(self, module, args):
        self.batches.append(len(args[0]))
        self.rows += [hashlib.blake2b(row.numpy().tobytes()).digest() for row in args[0]]


# --- How many passes ---


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_eleven_maps_and_five_metrics_cost_288_distinct_passes_an_image(size, batch_size):
    module = toy(*size)
    seen = Recorder(module)
    result = given(module, randn(3, 3, *size), eleven_maps(3, *size), batch_size=batch_size)
    assert len(seen.rows) == len(set(seen.rows)) == 3 * 288
    assert result.manifest["cost"]["response_passes"] == 3 * 288
    assert max(seen.batches) <= batch_size


def test_batches_are_as_few_and_as_full_as_can_be():
    module = toy()
    seen = Recorder(module)
    given(module, randn(3, 3, 10, 10), eleven_maps(3, 10, 10), batch_size=100)
    intact, *perturbed = seen.batches
    assert (intact, sum(perturbed)) == (3, 3 * 287)
    assert set(perturbed) == {95, 96} and len(perturbed) == 9


def test_an_automatic_k_never_costs_more_than_the_forecast():
    module, images = toy(), randn(3, 3, 10, 10)
    peaked, flat = (4 * randn(3, 10, 10)).exp(), torch.special.ndtr(randn(3, 10, 10, seed=1))
    maps = {**eleven_maps(3, 10, 10), "peaked": peaked, "flat": flat}
    plan = fs.prepare(module, images, methods=(), maps=maps, random_draws=0, k="auto")
    most = plan.passes_per_image
    seen = Recorder(module)
    result = plan.run()
    assert len(set(result.scores["k"].to_pylist())) > 1
    assert len(seen.rows) == len(set(seen.rows)) <= 3 * most


def test_spans_that_few_units_make_equal_are_run_once():
    module = toy(1, 5)
    seen = Recorder(module)
    result = given(module, randn(2, 3, 1, 5), {"mine": randn(2, 1, 5)}, k=5)
    assert len(seen.rows) == len(set(seen.rows)) == 2 * (2 + 11)
    assert not any(result.scores["flag"].to_pylist())


def test_a_sample_with_fewer_units_than_k_uses_what_it_has():
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(2), toy(2, 2))
    images = [randn(3, 2, 3), randn(3, 8, 8)]
    result = fs.evaluate(pool, images, methods="gradient", metrics="saco", random_draws=0)
    rows = {row["sample"]: (row["k"], row["flag"]) for row in result.scores.to_pylist()}
    assert rows == {"0": (6, "few_units"), "1": (10, "")}


def test_progress_is_told_pass_by_pass():
    told = []
    given(toy(), randn(2, 3, 10, 10), eleven_maps(2, 10, 10), advance=told.append, batch_size=50)
    assert sum(told) == 2 * 288 and max(told) <= 50


# --- The same scores however they are packed ---


@pytest.fixture(scope="module")
def case(vit):
    images = randn(7, 3, 16, 16)
    maps = {"pixels": randn(7, 16, 16, seed=1), "patches": randn(7, 4, 4, seed=2)}
    return vit, images, maps


def everything(model, images, maps, **options):
    return fs.evaluate(model, images, metrics="registered", maps=maps, random_draws=2, **options)


@pytest.fixture(scope="module")
def reference(case):
    return everything(*case)


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_scores_do_not_depend_on_the_batch_size(case, reference, batch_size):
    same(everything(*case, batch_size=batch_size), reference)


@pytest.mark.parametrize("fill", list(FILLS))
def test_no_fill_depends_on_the_batch_size(case, fill):
    results = [everything(*case, fill=fill, batch_size=size) for size in (3, 1000)]
    same(*results)


@pytest.mark.parametrize("shard", [1, 3])
def test_scores_do_not_depend_on_the_shards(case, reference, monkeypatch, shard):
    monkeypatch.setattr(evaluation, "SHARD", shard)
    result = everything(*case)
    assert result.manifest["cost"]["shard"] == shard
    assert result.samples["sample"].to_pylist() == reference.samples["sample"].to_pylist()
    assert result.manifest["data"]["fingerprint"] == reference.manifest["data"]["fingerprint"]
    same(result, reference)


@pytest.mark.parametrize("fill", ["mean", "noise"])
def test_scores_follow_their_images_whatever_the_order(case, fill):
    model, images, maps = case
    order = [4, 2, 6, 0, 1, 5, 3]
    straight = everything(model, images, maps, fill=fill)
    shuffled = everything(model, images[order], {m: v[order] for m, v in maps.items()}, fill=fill)
    np.testing.assert_allclose(values(shuffled), values(straight)[..., order], rtol=0, atol=1e-9)


def test_the_same_call_gives_the_same_bits(case, reference):
    again = everything(*case)
    assert again.scores.equals(reference.scores)
    assert again.responses.equals(reference.responses)
    assert again.samples.equals(reference.samples)


def test_another_seed_draws_other_random_maps_and_changes_nothing_else(case, reference):
    other = everything(*case, seed=1)
    for method in reference.methods:
        equal = np.array_equal(other.values(method, "aopc"), reference.values(method, "aopc"))
        assert equal is (not method.startswith("random"))


# --- Out of memory ---


class Cramped(nn.Module):
    """Runs out of memory above so many inputs."""

    def __init__(self, module, most, error=torch.OutOfMemoryError, message="CUDA out of memory"):
        super().__init__()
        self.module, self.most, self.error = module, most, error(message)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if len(x) > self.most:
            raise self.error
        return self.module(x)


@pytest.mark.parametrize(
    "error",
    [
        (torch.OutOfMemoryError, "CUDA out of memory"),
        (MemoryError, ""),
        (RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried to allocate …"),
    ],
    ids=lambda error: error[0].__name__,
)
def test_a_batch_that_does_not_fit_is_halved_and_the_scores_stay(error):
    images, maps = randn(3, 3, 10, 10), eleven_maps(3, 10, 10)
    result = given(Cramped(toy(), 20, *error), images, maps, batch_size=128)
    same(result, given(toy(), images, maps, batch_size=128))
    cost = result.manifest["cost"]
    assert cost["batch_size"] == 128
    assert cost["batch_halvings"] >= 3
    assert cost["response_passes"] == 3 * 288


def test_a_smaller_batch_is_remembered():
    module = Cramped(toy(), 20)
    given(module, randn(3, 3, 10, 10), eleven_maps(3, 10, 10), batch_size=128)
    assert module.calls < 3 * 288 / 10 + 10


def test_a_single_image_that_does_not_fit_is_an_error_that_says_so():
    with pytest.raises(fs.FaithscopeError, match="single image"):
        given(Cramped(toy(), 0), randn(3, 3, 10, 10), eleven_maps(3, 10, 10))


class FailsOnCall(nn.Module):
    """Raises on its n-th call, counting from 1; a dropout and a batch norm to be left alone."""

    def __init__(self, call, error):
        super().__init__()
        self.body = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(3, dtype=torch.float64), toy())
        self.call, self.error = call, error

    def forward(self, x):
        self.call -= 1
        if self.call == 0:
            raise self.error
        return self.body(x)


def test_other_errors_of_the_model_are_not_swallowed():
    module = FailsOnCall(3, RuntimeError("a bug in the model"))
    with pytest.raises(RuntimeError, match="a bug in the model"):
        given(module, randn(3, 3, 10, 10), eleven_maps(3, 10, 10), batch_size=64)


class NotANumber(nn.Module):
    """Answers NaN, as an overflow in half precision does, where the first pixel was replaced."""

    def __init__(self):
        super().__init__()
        self.module = toy()

    def forward(self, x):
        first = x[:, 0, 0, 0]
        return self.module(x) * torch.where(first == 1, 1.0, torch.nan)[:, None]


def test_a_model_that_answers_nan_gives_no_score_and_a_flag():
    images, maps = randn(2, 3, 10, 10), randn(2, 10, 10)
    images[:, 0, 0, 0] = 1
    maps[0, 0, 0], maps[1] = 9, 0  # the most salient; and a constant map, also in need of an answer
    result = given(NotANumber(), images, {"mine": maps}, metrics="registered")
    assert np.isnan(values(result)).all()
    flags = result.scores.to_pylist()
    assert {row["flag"] for row in flags if row["sample"] == "0"} == {"nan_response"}
    assert {row["flag"] for row in flags if row["sample"] == "1"} == {"degenerate,nan_response"}


# --- Memory ---


def resident():
    """Bytes of memory this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_memory_does_not_grow_with_the_number_of_images():
    """Batches of 3 MB pass through: if one tensor of each were kept, 20 of them would be 63 MB."""
    alive, held, yielded = [], [], []

    def stream():
        for seed in range(40):
            images = randn(32, 3, 64, 64, seed=seed)
            yielded.append(weakref.ref(images))
            alive.append(sum(ref() is not None for ref in yielded))
            held.append(resident())
            yield images

    result = fs.evaluate(toy(64, 64), stream(), "random", "saco", k=2, random_draws=1)
    assert result.samples.num_rows == 40 * 32
    assert max(alive) <= 5
    assert np.median(held[30:]) - np.median(held[10:20]) < 40e6


def test_images_from_a_loader_score_as_the_same_images_in_a_tensor():
    images, labels = randn(10, 3, 10, 10), torch.arange(10) % 4
    whole = fs.evaluate(toy(), images, methods="gradient", labels=labels)
    batches = list(zip(images.split(4), labels.split(4), strict=True))
    same(fs.evaluate(toy(), iter(batches), methods="gradient"), whole)


# --- No trace left ---


def state_of(module):
    return {
        "training": [child.training for child in module.modules()],
        "gradients": [p.requires_grad for p in module.parameters()],
        "grads": [p.grad is None for p in module.parameters()],
        "hooks": [
            (len(child._forward_hooks), len(child._forward_pre_hooks), len(child._backward_hooks))
            for child in module.modules()
        ],
        "weights": {k: v.clone() for k, v in module.state_dict().items()},
        "flags": (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def assert_as_found(module, before):
    after = state_of(module)
    weights = before.pop("weights"), after.pop("weights")
    assert after == before
    torch.testing.assert_close(*weights, rtol=0, atol=0)


@pytest.fixture
def odd_flags():
    """Kernel flags that are not the defaults, to see that they come back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


def unusual(module):
    """A module in a state that nobody would guess: part training, part frozen, a hook."""
    module.train()
    list(module.modules())[-1].eval()
    next(module.parameters()).requires_grad_(False)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_the_model_is_left_exactly_as_found(odd_flags, precision):
    module = unusual(tiny_vit(dtype=torch.float32, proj_drop_rate=0.5))
    before = state_of(module)
    images = randn(2, 3, 16, 16, dtype=torch.float32)
    fs.evaluate(module, images, methods=["rollout", "gradient"], precision=precision)
    assert_as_found(module, before)


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_model_is_left_exactly_as_found_after_an_error(odd_flags, call, error):
    module = unusual(FailsOnCall(call, error("stop")))
    before = state_of(module)
    with pytest.raises((error, fs.FaithscopeError)):
        given(module, randn(3, 3, 10, 10), eleven_maps(3, 10, 10), batch_size=64)
    assert_as_found(module, before)


def test_a_forecast_leaves_the_model_as_found():
    module = unusual(FailsOnCall(-1, None))
    before = state_of(module)
    plan = fs.prepare(module, randn(3, 3, 10, 10), methods="gradient")
    assert plan.forecast().passes == 3 * plan.passes_per_image
    assert_as_found(module, before)


def global_random_state():
    numpys = np.random.get_state()[1]  # noqa: NPY002 - the very state that must not change
    return torch.random.get_rng_state().tolist(), numpys.tolist(), random.getstate()


@pytest.mark.parametrize("fill", list(FILLS))
def test_global_random_state_is_not_touched(vit, fill):
    before = global_random_state()
    result = fs.evaluate(vit, randn(2, 3, 16, 16), methods="registered", metrics="saco", fill=fill)
    result.summary()
    assert global_random_state() == before


# --- Precision ---


@pytest.mark.parametrize(("precision", "error"), [("fp64", 1e-9), ("fp32", 1e-5), ("bf16", 0.05)])
def test_a_precision_is_as_exact_as_its_name_says(vit, precision, error):
    images, maps = randn(3, 3, 16, 16, dtype=torch.float32), {"mine": randn(3, 16, 16)}
    metrics = ["aopc", "deletion"]
    exact = given(vit, images.double(), maps, metrics=metrics)
    module = tiny_vit(dtype=torch.float32)
    result = given(module, images, maps, metrics=metrics, precision=precision)
    assert result.manifest["protocol"]["precision"] == precision
    same(result, exact, error)
    if precision != "fp64":
        assert np.abs(values(result) - values(exact)).max() > error / 1e4


def test_auto_is_the_models_own_precision_on_a_cpu(vit):
    images, maps = randn(2, 3, 16, 16), {"mine": randn(2, 16, 16)}
    for module, name in ((vit, "fp64"), (tiny_vit(dtype=torch.float32), "fp32")):
        assert given(module, images, maps).manifest["protocol"]["precision"] == name


def test_tf32_on_a_cpu_is_refused(vit):
    with pytest.raises(fs.FaithscopeError, match="CUDA"):
        given(vit, randn(1, 3, 16, 16), {"mine": randn(1, 16, 16)}, precision="tf32")


# --- Targets and labels ---

IMAGES, MAPS = randn(5, 3, 10, 10), {"mine": randn(5, 10, 10, seed=1)}
LABELS = torch.tensor([0, 1, 2, 3, 0])


def targets(result):
    return result.samples["target"].to_pylist()


def test_the_target_is_the_prediction_a_class_a_class_each_or_the_label():
    module = toy()
    predicted = module(IMAGES).argmax(-1)
    assert targets(given(module, IMAGES, MAPS)) == predicted.tolist()
    assert targets(given(module, IMAGES, MAPS, target=2)) == [2] * 5
    assert targets(given(module, IMAGES, MAPS, target=LABELS)) == LABELS.tolist()
    by_label = given(module, IMAGES, MAPS, target="label", labels=LABELS)
    assert targets(by_label) == LABELS.tolist()
    same(by_label, given(module, IMAGES, MAPS, target=LABELS, labels=LABELS))


def test_the_probability_watched_is_that_of_the_target():
    result = given(toy(), IMAGES, MAPS, target=LABELS)
    expected = toy()(IMAGES).log_softmax(-1).gather(1, LABELS[:, None])[:, 0]
    np.testing.assert_allclose(result.samples["log_p0"], expected.detach(), atol=1e-12)


def test_auc_counts_hits_of_the_label_if_there_is_one_else_of_the_prediction():
    module = toy()
    predicted = module(IMAGES).argmax(-1)
    wrong = (predicted + 1) % 4
    by_prediction, by_right, by_wrong = (
        given(module, IMAGES, MAPS, metrics="auc", labels=labels)
        for labels in (None, predicted, wrong)
    )
    same(by_prediction, by_right, 0)
    assert (values(by_wrong) < values(by_right)).all()
    accuracies = [r.manifest["data"]["accuracy"] for r in (by_prediction, by_right, by_wrong)]
    assert accuracies == [None, 1.0, 0.0]


@pytest.mark.parametrize("target", [4, -1, torch.tensor([0, 1, 2, 3, 4])])
def test_a_target_that_is_no_class_of_the_model_is_refused(target):
    with pytest.raises(fs.FaithscopeError, match="class"):
        given(toy(), IMAGES, MAPS, target=target)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "label"}, "needs labels"),
        ({"target": "labels"}, "did you mean 'label'"),
        ({"target": torch.tensor([1, 2])}, "each of the 5 images"),
        ({"labels": [1, 2]}, "each of the 5 images"),
    ],
)
def test_targets_and_labels_that_do_not_fit_are_refused(options, said):
    with pytest.raises(fs.FaithscopeError, match=said):
        given(toy(), IMAGES, MAPS, **options)


# --- Units ---


def test_patches_are_removed_whole(vit):
    inputs = []
    module = tiny_vit()
    module.register_forward_pre_hook(lambda _, args: inputs.append(args[0].clone()))
    images = randn(1, 3, 16, 16)
    result = given(module, images, {"mine": randn(1, 4, 4)}, metrics="saco", units="patches", k=16)
    changed = (torch.cat(inputs)[1:] != images).any(1)
    assert changed.sum(dim=(1, 2)).tolist() == [16] * 16
    assert changed.reshape(16, 4, 4, 4, 4).any(4).any(2).sum(dim=(1, 2)).tolist() == [1] * 16
    assert result.manifest["protocol"]["units"] == "patches"


def test_a_pixel_map_in_units_of_patches_is_the_sum_inside_each_patch(vit):
    images, maps = randn(2, 3, 16, 16), randn(2, 16, 16)
    summed = maps.reshape(2, 4, 4, 4, 4).sum((2, 4))
    result = given(vit, images, {"pixels": maps, "summed": summed}, units="patches")
    np.testing.assert_allclose(*values(result), rtol=0, atol=1e-12)


@pytest.mark.parametrize("upsample", ["bilinear", "nearest"])
def test_a_patch_map_in_units_of_pixels_is_upsampled(vit, upsample):
    images, maps = randn(2, 3, 16, 16), randn(2, 4, 4)
    options = {"align_corners": False} if upsample == "bilinear" else {}
    large = nn.functional.interpolate(maps[:, None], size=(16, 16), mode=upsample, **options)[:, 0]
    result = given(vit, images, {"patches": maps, "pixels": large}, upsample=upsample)
    np.testing.assert_allclose(*values(result), rtol=0, atol=1e-12)
    cards = result.manifest["methods"]
    assert [cards[m]["granularity"] for m in ("patches", "pixels")] == ["patch", "pixel"]
