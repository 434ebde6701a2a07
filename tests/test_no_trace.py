"""Whatever happens, the model and the process are left exactly as they were found."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import faithscope as fs
from conftest import eleven_maps, randn, score_maps, tiny_vit, toy
from faithscope.perturb import FILLS
from families import state_of, unsettled


class FailsOnCall(nn.Module):
    """Raises from its n-th call on, counting from 1; dropout and batch norm are to stay."""

    def __init__(self, call, error):
        super().__init__()
        self.body = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(3, dtype=torch.float64), toy())
        self.call, self.error = call, error

    def forward(self, x):
        self.call -= 1
        if self.call <= 0 and self.error is not None:
            raise self.error
        return self.body(x)


@pytest.fixture
def odd_flags():
    """Kernel flags that are not the defaults, to see that they come back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_the_model_is_left_exactly_as_found(odd_flags, precision):
    module = unsettled(tiny_vit(dtype=torch.float32, proj_drop_rate=0.5))
    before = state_of(module, but=":call")
    images = randn(2, 3, 16, 16, dtype=torch.float32)
    fs.evaluate(module, images, methods=["rollout", "gradient"], precision=precision)
    assert state_of(module, but=":call") == before


@pytest.mark.parametrize("call", [1, 2, 4], ids=["intact", "explaining", "perturbed"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_model_is_left_exactly_as_found_after_an_error(odd_flags, call, error):
    module = unsettled(FailsOnCall(call, error("stop")))
    before = state_of(module, but=":call")
    with pytest.raises((error, fs.FaithscopeError)):
        fs.evaluate(module, randn(3, 3, 10, 10), methods="gradient", batch_size=64)
    assert module.call <= 0
    assert state_of(module, but=":call") == before


def test_a_forecast_leaves_the_model_as_found():
    module = unsettled(FailsOnCall(-1, None))
    before = state_of(module, but=":call")
    plan = fs.prepare(module, randn(3, 3, 10, 10), methods="gradient")
    assert plan.forecast().cost == {"images": 3, "model passes": 3 * (2 + 4 * 26)}
    assert state_of(module, but=":call") == before


def global_random_state():
    _, keys, *rest = np.random.get_state()
    return torch.random.get_rng_state().tolist(), keys.tolist(), rest, random.getstate()


@pytest.mark.parametrize("fill", list(FILLS))
def test_global_random_state_is_not_touched(vit, fill):
    before = global_random_state()
    asked = {"fill": fill, "units": "patches" if FILLS[fill].drops else "pixels"}
    result = fs.evaluate(vit, randn(2, 3, 16, 16), methods="registered", metrics="saco", **asked)
    result.summary()
    assert global_random_state() == before


def test_other_errors_of_the_model_are_not_swallowed():
    module = FailsOnCall(3, RuntimeError("a bug in the model"))
    with pytest.raises(fs.FaithscopeError, match=r"cannot run images .* a bug in the model"):
        score_maps(module, randn(3, 3, 10, 10), eleven_maps(3, 10, 10), batch_size=64)
