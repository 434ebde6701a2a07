"""Keyed randomness: SplitMix64, bit for bit, and nothing but (seed, purpose, draw, sample)."""

import pytest
import torch
from scipy import stats

from faithscope.rng import keyed_normal, keyed_uniform, stream_keys

MASK = (1 << 64) - 1


def split_mix_64(key, count):
    """The generator as its author (Steele et al. 2014) writes it, in Python integers."""
    numbers = []
    for counter in range(1, count + 1):
        z = (key + counter * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        numbers.append(((z ^ (z >> 31)) >> 11) * 2.0**-53)
    return numbers


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 1234567890123456789])
def test_uniforms_are_split_mix_64_bit_for_bit(key):
    drawn = keyed_uniform(torch.tensor([key]), 50)
    assert drawn.dtype == torch.float64
    assert drawn[0].tolist() == split_mix_64(key, 50)


def test_uniforms_are_uniform_and_normals_are_normal():
    keys = stream_keys([f"image {i}" for i in range(50)], seed=3, purpose="test")
    uniform, normal = keyed_uniform(keys, 1000).flatten(), keyed_normal(keys, 1000).flatten()
    assert uniform.min() >= 0 and uniform.max() < 1
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    assert abs(normal.mean()) < 4 / 50_000**0.5
    assert abs(normal.var() - 1) < 4 * (2 / 50_000) ** 0.5


def test_streams_of_different_samples_are_uncorrelated():
    keys = stream_keys([str(i) for i in range(20)], seed=0, purpose="test")
    correlation = torch.corrcoef(keyed_normal(keys, 4000)) - torch.eye(20)
    assert correlation.abs().max() < 5 / 4000**0.5


def test_a_sample_draws_the_same_whatever_its_batch():
    keys = stream_keys(["a", "b", "c"], seed=0, purpose="test")
    alone = stream_keys(["b"], seed=0, purpose="test")
    assert torch.equal(keyed_normal(keys, 7)[1:2], keyed_normal(alone, 7))
    assert torch.equal(keyed_uniform(keys, 7)[:, :4], keyed_uniform(keys, 4))


def test_seed_purpose_draw_and_sample_each_make_another_stream():
    def key(sample="a", seed=0, purpose="noise", draw=0):
        return stream_keys([sample], seed=seed, purpose=purpose, draw=draw).item()

    assert key() == key()
    assert len({key(), key(sample="b"), key(seed=1), key(purpose="random"), key(draw=1)}) == 5


def test_global_random_state_is_not_touched():
    before = torch.random.get_rng_state()
    keyed_normal(stream_keys(["a"], seed=0, purpose="noise"), 10)
    assert torch.equal(torch.random.get_rng_state(), before)
