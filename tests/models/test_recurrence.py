"""The recurrence for many models is PyTorch's LSTM, forwards and backwards, loop and kernel."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from conftest import randn
from faithscope.models.recurrence import GATES, recur

FULL = (4, 4, 4, 4, 4)
FALLING = (5, 5, 3, 2, 2, 1)


def reordered(tensor):
    """From PyTorch's gates i, f, g, o to ours, along the first axis."""
    named = dict(zip("ifgo", tensor.chunk(4), strict=True))
    return torch.cat([named[gate] for gate in GATES])


def lstm(size, hidden, seed):
    with torch.random.fork_rng(devices=[]):
        module = nn.LSTM(size, hidden).to(torch.float64)
    for place, parameter in enumerate(module.parameters()):
        parameter.data.copy_(randn(*parameter.shape, seed=10 * seed + place))
    return module


def ours(modules, x, counts):
    """Hidden states [G, N, H] from the parameters of G PyTorch LSTMs."""
    weights = [[reordered(p) for p in m.parameters()] for m in modules]
    w_in, w_hidden, b_in, b_hidden = (torch.stack(parts) for parts in zip(*weights, strict=True))
    gates = torch.baddbmm((b_in + b_hidden)[:, None], x, w_in.transpose(1, 2))
    return recur(gates, w_hidden, counts)


def theirs(modules, x, counts):
    packed = [PackedSequence(part, torch.tensor(counts)) for part in x]
    return torch.stack([m(part)[0].data for m, part in zip(modules, packed, strict=True)])


def gradients(run, modules, x, counts, weight):
    """States and the gradients of their weighted sum: of the inputs and of every parameter."""
    x = x.clone().requires_grad_()
    states = run(modules, x, counts)
    wanted = [x, *(p for m in modules for p in m.parameters())]
    return states, torch.autograd.grad((states * weight).sum(), wanted)


falling = st.lists(st.integers(1, 5), min_size=1, max_size=6).map(
    lambda sizes: tuple(sorted(sizes, reverse=True))
)


class TestAgainstPyTorch:
    @given(falling, st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
    def test_states_and_all_gradients(self, counts, groups, size, hidden, seed):
        self.check(counts, groups, size, hidden, seed)

    @pytest.mark.parametrize("counts", [FULL, FALLING, (3,), (1, 1, 1)])
    def test_full_and_falling_counts(self, counts):
        self.check(counts, 3, 6, 8, 0)

    def test_large_values_saturate(self):
        self.check(FALLING, 1, 3, 4, 0, scale=1e4)

    def check(self, counts, groups, size, hidden, seed, scale=1.0):
        modules = [lstm(size, hidden, seed + place) for place in range(groups)]
        x = scale * randn(groups, sum(counts), size, seed=seed)
        weight = randn(groups, sum(counts), hidden, seed=seed + 1)
        states, found = gradients(ours, modules, x, counts, weight)
        expected_states, expected = gradients(theirs, modules, x, counts, weight)
        close = {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(states, expected_states, **close)
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other, **close)


class TestGradient:
    @pytest.mark.parametrize("counts", [FULL, FALLING])
    def test_is_the_limit_of_differences(self, counts):
        gates = randn(2, sum(counts), 12).requires_grad_()
        weight = randn(2, 12, 3, seed=1).requires_grad_()
        assert torch.autograd.gradcheck(lambda g, w: recur(g.clone(), w, counts), (gates, weight))

    def test_of_the_gates_alone(self):
        """Explaining needs no gradient of the weights."""
        weight = randn(2, 12, 3, seed=1)
        found = []
        for needs in (True, False):
            gates = randn(2, sum(FALLING), 12).requires_grad_()
            hidden = recur(gates.clone(), weight.requires_grad_(needs), FALLING)
            found.append(torch.autograd.grad(hidden.sum(), gates)[0])
        assert torch.equal(*found)

    def test_does_not_depend_on_the_other_models(self):
        gates, weight = randn(3, sum(FALLING), 12), randn(3, 12, 3, seed=1)
        together = recur(gates.clone(), weight, FALLING)
        for place in range(3):
            one = slice(place, place + 1)
            alone = recur(gates[one].clone(), weight[one], FALLING)
            torch.testing.assert_close(together[one], alone, rtol=0, atol=1e-14)


class TestMemory:
    def test_gates_are_consumed(self):
        gates = randn(1, sum(FALLING), 8)
        before = gates.clone()
        recur(gates, randn(1, 8, 2, seed=1), FALLING)
        assert "consumed" in recur.__doc__ and not torch.equal(gates, before)

    def test_autograd_notices_gates_that_are_still_needed(self):
        """exp's gradient needs its result: an error is right, a wrong number is not."""
        x = randn(1, sum(FALLING), 8).requires_grad_()
        hidden = recur(x.exp(), randn(1, 8, 2, seed=1), FALLING)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            hidden.sum().backward()

    def test_the_gradient_that_comes_in_is_left_alone(self):
        """A sum hands the same gradient to both of its parts."""
        gates, other = randn(1, sum(FULL), 8).requires_grad_(), torch.zeros(1, sum(FULL), 2)
        other = other.to(torch.float64).requires_grad_()
        given = randn(1, sum(FULL), 2, seed=2)
        before = given.clone()
        hidden = recur(gates.clone(), randn(1, 8, 2, seed=1), FULL)
        torch.autograd.backward(hidden + other, given)
        assert torch.equal(given, before) and torch.equal(other.grad, before)


IN_THE_INTERPRETER = """
import torch
from faithscope.models import lstm_kernel
from faithscope.models.recurrence import recur

torch.set_num_threads(1)
falling = (18, 17, 16, 3, 1)
for groups, size, counts in (
    (2, 16, (19, 19, 19)), (1, 32, (5, 5)), (2, 16, falling), (1, 128, (17, 2))
):
    generator = torch.Generator().manual_seed(size)
    gates = torch.randn(groups, sum(counts), 4 * size, generator=generator)
    weight = torch.randn(groups, 4 * size, size, generator=generator) / size**0.5
    given = torch.randn(groups, sum(counts), size, generator=generator)
    leaf = gates.clone().requires_grad_()
    expected = recur(leaf.clone(), weight, counts)
    [expected_gradient] = torch.autograd.grad((expected * given).sum(), leaf)
    hidden, *kept = lstm_kernel.forward(gates.clone(), weight, counts)
    gradient = lstm_kernel.backward(given.clone(), weight, counts, *kept)
    torch.testing.assert_close(hidden, expected.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-5)
    print("equal", size, *counts)
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not made for this platform")
def test_the_kernel_equals_the_loop():
    """In Triton's interpreter.

    Rows that do not fill a block and that fill more than one, texts that are over while others go
    on, weights that are kept and such that are read again.
    """
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "equal 16 19 19 19",
        "equal 32 5 5",
        "equal 16 18 17 16 3 1",
        "equal 128 17 2",
    ]
