"""What does a fill cost an image, and how exact is `inpaint`?

CPU time of one random image of 224×224, the least of some runs: what a fill makes once an image
(the field of `noise` and `blur`), and what `inpaint` solves for every hole. Its error is the
largest of a pixel against a residual of 1e-12 in float64; the spread of the image is 1.

    OMP_NUM_THREADS=1 python benchmarks/fills.py
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator

import torch
from overhead import seconds
from torch import Tensor
from torch.nn.functional import interpolate

from faithscope.perturb import FILLS
from faithscope.perturb.fills import FillContext
from faithscope.perturb.inpaint import interpolate_missing


def main() -> None:
    """Print a line for every fill and for every hole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.machine()}, one thread")
    size, generator = options.size, torch.Generator().manual_seed(0)
    image = torch.randn(1, 3, size, size, generator=generator)
    context = FillContext(keys=("image",), seed=0, mean=(0.5,) * 3, std=(0.5,) * 3)
    for name in ("mean", "noise", "blur"):
        fill = FILLS.of("image")[name]
        took = least(lambda fill=fill: fill.field(image, context), options.rounds)
        print(f"{name}, once an image: {1e3 * took:.1f} ms")
    for what, hole in holes(size, generator):
        mask = hole[None, None]
        took = least(lambda mask=mask: interpolate_missing(image, mask), options.rounds)
        exact = interpolate_missing(image.double(), mask, tolerance=1e-12, max_iterations=20_000)
        error = (interpolate_missing(image, mask) - exact).abs().max()
        print(f"inpaint, {what}: {1e3 * took:.1f} ms, error {error:.4f}", flush=True)


def holes(size: int, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Removed pixels: the highest of a map of pixels, of a smooth map of patches, of squares."""
    pixels = torch.rand(size, size, generator=generator)
    patches = torch.rand(1, 1, size // 16, size // 16, generator=generator)
    smooth = interpolate(patches, (size, size), mode="bilinear")[0, 0]
    squares = interpolate(patches, (size, size), mode="nearest")[0, 0]
    maps = {"scattered": pixels, "by a smooth map of patches": smooth, "in squares of 16": squares}
    for name, values in maps.items():
        for share in (0.1, 0.5, 0.9) if values is not squares else (0.9,):
            yield f"{share:.0%} {name}", values >= values.quantile(1 - share)


def least(call: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the fastest of some calls."""
    return min(seconds(call, time.process_time) for _ in range(rounds))


if __name__ == "__main__":
    main()
