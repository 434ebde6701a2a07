"""Tests on an imitation of Apple's GPU; `test_apple.py` runs them in a process of their own."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import apple
import faithscope as fs
from conftest import NORMALISED, randn, tiny_vit
from faithscope.methods import METHODS
from faithscope.models import device as devices
from faithscope.perturb import FILLS, to_pixels
from faithscope.probes.perturb import ask, worker
from families import refused

IMAGES = randn(3, 3, 16, 16, seed=2, dtype=torch.float32)
MAPS = {"pixels": randn(3, 16, 16, seed=5), "patches": randn(3, 4, 4, seed=6)}


@pytest.fixture(autouse=True)
def _without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {"mps", apple.NAME})
    monkeypatch.setattr(torch, "inference_mode", apple.inference_mode)
    devices._say_once.cache_clear()


def model(place: str = apple.NAME, **options: object) -> fs.Model:
    module = tiny_vit(dtype=torch.float32, **options)
    return fs.wrap(module, name="tiny", **NORMALISED, output="sigmoid").to(place)


def refuses(call) -> bool:
    try:
        call()
    except (TypeError, RuntimeError):
        return True
    return False


def test_the_imitation_has_the_limits_of_the_device() -> None:
    values = torch.ones(2, device=apple.NAME)
    assert values.device.type == apple.NAME and (values + 1).tolist() == [2, 2]
    assert (values * 2.5).dtype == torch.float32
    assert refuses(values.double) and refuses(lambda: values.to("cpu", torch.float64))
    assert refuses(lambda: torch.zeros(2, dtype=torch.float64, device=apple.NAME))
    assert refuses(lambda: torch.zeros(2, dtype=torch.float64).to(apple.NAME))
    assert refuses(lambda: values + torch.ones(2)) and refuses(values.numpy)
    assert refuses(lambda: torch.special.ndtri(values / 2))
    assert values.cpu().double().dtype == torch.float64


@pytest.mark.filterwarnings("ignore:The device")
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_gives_the_maps_of_the_cpu(method: str) -> None:
    found = fs.explain(model(), IMAGES, method)
    expected = fs.explain(model("cpu"), IMAGES, method)
    assert isinstance(found, Tensor) and isinstance(expected, Tensor)
    assert found.device.type == "cpu" and found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_relevance_leaves_the_model_where_it_was() -> None:
    held = model()
    before = [*held.module.parameters(), *held.module.buffers()]
    fs.explain(held, IMAGES, "lrp")
    after = [*held.module.parameters(), *held.module.buffers()]
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert held.device.type == apple.NAME and held.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:The device")
@pytest.mark.parametrize(
    ("fill", "units"),
    [
        (fill.name, units)
        for fill in FILLS.values()
        for units in ("pixels", "patches")
        if units == "patches" or not fill.drops
    ],
)
def test_scores_are_those_of_the_cpu(fill: str, units: str) -> None:
    options = {"fill": fill, "units": units, "maps": MAPS, "precision": "fp32", "random_draws": 1}
    is_first = (fill, units) == ("mean", "pixels")
    asked = ("all", "registered") if is_first else ((), ("saco", "auc(step=50)"))
    one, other = (
        fs.evaluate(model(place), IMAGES.double(), *asked, **options, k="auto" if is_first else 3)
        for place in (apple.NAME, "cpu")
    )
    assert one.manifest.machine.threads == torch.get_num_threads()
    assert {row["device"] for row in one.tables["tasks"].to_pylist()} == {f"{apple.NAME}:0"}
    for method in one.methods:
        for metric in one.metrics:
            np.testing.assert_allclose(
                one.values(method, metric), other.values(method, metric), atol=1e-5
            )


@pytest.mark.parametrize("fill", ["mean", "black", "noise", "blur", "inpaint"])
@pytest.mark.parametrize("k", [3, "auto"])
@pytest.mark.parametrize("units", ["pixels", "patches"])
def test_a_gpu_with_float64_is_waited_for_once_a_shard(monkeypatch, fill, k, units) -> None:
    """The ranks are planned on the CPU; what else is copied is copied while the GPU goes on."""
    waits: dict[str, list[str]] = {}

    def noted(module: object, name: str) -> None:
        call = getattr(module, name)

        def wrapped(*args: object, **options: object) -> object:
            apple.WAITS.clear()
            made = call(*args, **options)
            waits.setdefault(name, []).extend(apple.WAITS)
            return made

        monkeypatch.setattr(module, name, wrapped)

    monkeypatch.setattr(apple, "HAS_LIMITS", False)
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {"mps"})
    for module in (devices, ask):
        monkeypatch.setattr(module, "COPIES_ALONE", {apple.NAME})
    noted(worker, "ask_shard")
    noted(worker, "shard_tables")
    options = {"maps": MAPS, "fill": fill, "k": k, "units": units, "target": "label"}
    options |= {"random_draws": 0, "precision": "fp32", "labels": [0, 1, 2]}
    one, other = (fs.evaluate(model(place), IMAGES, **options) for place in (apple.NAME, "cpu"))
    looks = [name for name in waits["ask_shard"] if name == "_local_scalar_dense"]
    assert len(waits["ask_shard"]) - len(looks) == 1 and waits["shard_tables"] == []
    assert bool(looks) == (fill == "inpaint")
    for method in one.methods:
        found, expected = (run.values(method, "aopc") for run in (one, other))
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The device")
def test_a_method_that_fails_on_an_image_and_whole_numbers_cost_no_more_than_elsewhere() -> None:
    middle = float(IMAGES.sum((1, 2, 3)).median())

    def moody(module: object, images: Tensor, target: Tensor) -> Tensor:
        if len(images) > 1 or float(images.sum()) >= middle:
            raise ValueError("in a mood")
        return (images[:, 0] > 0).to(torch.int64)

    results = [
        fs.evaluate(model(place), IMAGES, moody, "saco", random_draws=0, labels=[0, 1, 2])
        for place in (apple.NAME, "cpu")
    ]
    one, other = (result.values("moody", "saco") for result in results)
    np.testing.assert_array_equal(one, other)
    assert 0 < np.isnan(one).sum() < 3


@pytest.mark.filterwarnings("ignore:The device")
def test_the_cost_is_forecast_and_precision_is_the_model_s_own() -> None:
    prepared = fs.prepare(model(), IMAGES, ["gradient", "lrp"], "saco", k=4, random_draws=1)
    assert prepared.plan.protocol["precision"] == "fp32"
    assert prepared.forecast().seconds > 0
    half = fs.evaluate(model(), IMAGES, "gradient", "aopc", precision="fp16", random_draws=0)
    assert half.manifest.protocol["precision"] == "fp16"


@pytest.mark.filterwarnings("ignore:The device")
def test_a_model_by_name_runs_there() -> None:
    asked = ("bundled:cifar10_vit", "bundled:cifar10", "gradient", "aopc(steps=2)")
    options = {"limit": 1, "random_draws": 0}
    one, other = (fs.evaluate(*asked, **options, device=place) for place in (apple.NAME, "cpu"))
    metric = one.metrics[0]
    np.testing.assert_allclose(
        one.values("gradient", metric), other.values("gradient", metric), atol=1e-4
    )


def test_what_the_cpu_does_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            fs.explain(model(), IMAGES, ["lrp", "gradient"])
            fs.evaluate(model(), IMAGES, "gradient", "saco", random_draws=0)
        fs.explain(model("cpu"), IMAGES, "lrp")
    about = [str(one.message) for one in said if "float64" in str(one.message)]
    assert about == [
        "The device 'apple' has no float64: relevance (LRP), random draws, ranks and sums are "
        "computed on the CPU."
    ]


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    with refused("The device 'apple' has no float64: use precision='auto' here, or device='cpu'"):
        fs.evaluate(model(), IMAGES, "gradient", precision="fp64")
    with refused("is in float64, which the device 'apple' does not have", "module.float()"):
        fs.wrap(tiny_vit()).to(apple.NAME)
    with refused("tf32"):
        fs.evaluate(model(), IMAGES, "gradient", precision="tf32")


def test_maps_and_numbers_of_that_device_are_taken() -> None:
    maps = randn(2, 4, 4, seed=1, dtype=torch.float32)
    found = to_pixels(maps.to(apple.NAME), (8, 8))
    assert found.device.type == apple.NAME
    torch.testing.assert_close(found.cpu(), to_pixels(maps, (8, 8)))
    salience, drop = randn(5, seed=2, dtype=torch.float32), randn(5, seed=3, dtype=torch.float32)
    assert fs.saco(salience.to(apple.NAME), drop.to(apple.NAME)) == fs.saco(salience, drop)
    given = {"mine": maps.repeat(2, 1, 1)[:3].to(apple.NAME)}
    result = fs.evaluate(model(), IMAGES, (), "saco", maps=given, random_draws=0)
    expected = fs.evaluate(model("cpu"), IMAGES, (), "saco", maps={"mine": given["mine"].cpu()})
    np.testing.assert_allclose(result.values("mine", "saco"), expected.values("mine", "saco"))
