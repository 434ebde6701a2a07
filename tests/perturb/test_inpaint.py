"""The kernels that fill missing pixels on a GPU do what the operations of torch do."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

IN_THE_INTERPRETER = """
import torch
from faithscope.perturb import inpaint
from faithscope.perturb.inpaint import Grid, _grids
from faithscope.perturb.inpaint_kernel import KernelGrid

torch.set_num_threads(1)
drawn = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, generator=drawn)


def equal(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


def grids(kind, hole):
    return _grids(hole, kind)


for size, share in (((13, 70), 0.7), ((8, 4), 0.5), ((3, 8), 0.5)):
    hole = (torch.rand(2, 1, *size, generator=drawn) < share).float()
    hole[:, :, : size[0] // 2, : size[1] // 2] = 1  # what is left at lower resolutions, too
    (plain, *below), (kernel, *kernels) = grids(Grid, hole), grids(KernelGrid, hole)
    known, missing = (1 - hole) * normal(2, 2, *size), hole * normal(2, 2, *size)
    one, other = hole * normal(2, 2, *size), hole * normal(2, 2, *size)
    equal(kernel.total(one), plain.total(one))
    equal(kernel.square(one), plain.square(one))
    equal(kernel.target(known), plain.target(known))
    equal(kernel.lack(missing, one), plain.lack(missing, one))
    if below:
        coarse = normal(2, 2, *below[0].hole.shape[-2:])
        equal(kernel.doubled(coarse), plain.doubled(coarse))
    equal(kernel.cycle(missing, kernels), plain.cycle(missing, below))
    for got, expected in zip(
        kernel.corrected(missing, one, kernels, is_scattered=False),
        plain.corrected(missing, one, below, is_scattered=False),
    ):
        equal(got, expected)
    ratio = normal(2, 2, 1, 1)
    for got, expected in zip(kernel.turned(missing, ratio, one), plain.turned(missing, ratio, one)):
        equal(got, expected)
    ours, theirs = ([part.clone() for part in (one, other)] for _ in "ab")
    equal(kernel.step(*ours, missing, one, ratio), plain.step(*theirs, missing, one, ratio))
    for got, expected in zip(ours, theirs):
        equal(got, expected)
    print("equal", *size)

many = normal(2, 3, 40, 60)  # more than a program adds up
equal(KernelGrid.total(many), Grid.total(many))

images, mask = normal(2, 2, 9, 20), torch.rand(2, 1, 9, 20, generator=drawn) < 0.8
filled = {}
for kind in (Grid, KernelGrid):
    inpaint._kind_of_grid = lambda _: kind
    inpaint._parts = lambda hole, _: [(slice(None), False)]
    filled[kind] = inpaint.interpolate_missing(images, mask, tolerance=1e-6)
equal(filled[KernelGrid], filled[Grid])
print("filled")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not made for this platform")
def test_the_kernels_equal_the_operations_of_torch():
    """In Triton's interpreter: whole tiles and parts of them, odd sides, nothing below."""
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    sizes = ["equal 13 70", "equal 8 4", "equal 3 8"]
    assert done.stdout.split("\n")[:-1] == [*sizes, "filled"]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not made for this platform")
def test_where_kernels_cannot_be_made_the_operations_of_torch_are_used():
    from faithscope.perturb import inpaint

    inpaint._kernels.cache_clear()
    with pytest.warns(UserWarning, match="filled without kernels of Triton, slower: "):
        assert inpaint._kernels(torch.device("cpu")) is inpaint.Grid  # no GPU for Triton, either
    inpaint._kernels.cache_clear()


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not made for this platform")
def test_kernels_are_tried_again_where_memory_was_full(monkeypatch):
    from faithscope.perturb import inpaint
    from faithscope.perturb.inpaint_kernel import KernelGrid

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    inpaint._kernels.cache_clear()
    monkeypatch.setattr(inpaint, "_solved", full)
    with pytest.raises(torch.OutOfMemoryError):
        inpaint._kernels(torch.device("cpu"))
    monkeypatch.setattr(inpaint, "_solved", lambda *_: None)
    assert inpaint._kernels(torch.device("cpu")) is KernelGrid
    inpaint._kernels.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_fills_what_a_cpu_fills():
    from faithscope.perturb.inpaint import interpolate_missing

    images, mask = torch.randn(8, 3, 150, 224), torch.rand(8, 1, 150, 224) < 0.7
    expected = interpolate_missing(images, mask)
    found = interpolate_missing(images.cuda(), mask.cuda())
    alone = interpolate_missing(images[:1].cuda(), mask[:1].cuda())
    assert (found.cpu() - expected).abs().max() < 0.01
    assert torch.equal(found[:1], alone)
