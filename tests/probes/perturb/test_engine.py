"""The engine: no pass more than needed, and the same scores however they are packed."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import faithscope as fs
from conftest import assert_same_scores, eleven_maps, randn, score_cube, score_maps, toy
from faithscope.perturb import FILLS
from faithscope.probes.perturb import probe
from faithscope.probes.perturb.respond import choose_batch_size

SIZES = [(10, 10), (7, 9)]
BATCH_SIZES = [1, 7, 64, 1000]


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
    result = score_maps(module, randn(3, 3, *size), eleven_maps(3, *size), batch_size=batch_size)
    assert len(seen.rows) == len(set(seen.rows)) == 3 * 288
    assert result.manifest.cost.response_passes == 3 * 288
    assert max(seen.batches) <= batch_size


def test_batches_are_as_few_and_as_full_as_can_be():
    module = toy()
    seen = Recorder(module)
    score_maps(module, randn(3, 3, 10, 10), eleven_maps(3, 10, 10), batch_size=100)
    intact, *perturbed = seen.batches
    assert (intact, sum(perturbed)) == (3, 3 * 287)
    assert set(perturbed) == {95, 96} and len(perturbed) == 9


def test_an_automatic_k_never_costs_more_than_the_forecast():
    module, images = toy(), randn(3, 3, 10, 10)
    peaked, flat = (4 * randn(3, 10, 10)).exp(), torch.special.ndtr(randn(3, 10, 10, seed=1))
    maps = {**eleven_maps(3, 10, 10), "peaked": peaked, "flat": flat}
    plan = fs.prepare(module, images, methods=(), maps=maps, random_draws=0, k="auto")
    most = plan.forecast().cost["model passes"]
    seen = Recorder(module)
    result = plan.run()
    assert len(set(result.scores["k"].to_pylist())) > 1
    assert len(seen.rows) == len(set(seen.rows)) <= most


def test_spans_that_few_units_make_equal_are_run_once():
    module = toy(1, 5)
    seen = Recorder(module)
    result = score_maps(module, randn(2, 3, 1, 5), {"mine": randn(2, 1, 5)}, k=5)
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
    score_maps(
        toy(), randn(2, 3, 10, 10), eleven_maps(2, 10, 10), progress=told.append, batch_size=50
    )
    done = [progress.done for progress in told]
    assert done[-1] == told[-1].total == 2 * 288
    assert max(np.diff(done, prepend=0)) <= 50 and min(np.diff(done)) >= 0


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
    assert_same_scores(everything(*case, batch_size=batch_size), reference)


def test_patch_methods_score_the_same_however_they_are_batched(case):
    """Rounding moves a patch map's last bits; the ties of its upsampled border must survive it."""
    model, images, _ = case
    options = dict(methods="rollout", metrics="registered", random_draws=0)
    assert_same_scores(
        *(fs.evaluate(model, images, **options, batch_size=size) for size in (1, 64))
    )


@pytest.mark.parametrize("fill", list(FILLS))
def test_no_fill_depends_on_the_batch_size(case, fill):
    units = "patches" if FILLS[fill].drops else "pixels"
    results = [everything(*case, fill=fill, units=units, batch_size=size) for size in (3, 1000)]
    assert_same_scores(*results)


@pytest.mark.parametrize("shard", [1, 3])
def test_scores_do_not_depend_on_the_shards(case, reference, monkeypatch, shard):
    monkeypatch.setattr(probe, "SHARD", shard)
    result = everything(*case)
    assert result.manifest.plan.shard == shard
    assert result.samples["sample"].to_pylist() == reference.samples["sample"].to_pylist()
    assert result.manifest.data.fingerprint == reference.manifest.data.fingerprint
    assert_same_scores(result, reference)


@pytest.mark.parametrize("fill", ["mean", "noise"])
def test_scores_follow_their_images_whatever_the_order(case, fill):
    model, images, maps = case
    order = [4, 2, 6, 0, 1, 5, 3]
    straight = everything(model, images, maps, fill=fill)
    shuffled = everything(model, images[order], {m: v[order] for m, v in maps.items()}, fill=fill)
    np.testing.assert_allclose(
        score_cube(shuffled), score_cube(straight)[..., order], rtol=0, atol=1e-9
    )


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


def test_a_batch_on_a_cpu_fits_the_caches_of_its_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    sizes = [
        choose_batch_size(None, torch.zeros(1, 3, side, side), 3 * side**2) for side in (4, 32, 224)
    ]
    assert sizes == [256, 64, 8]
