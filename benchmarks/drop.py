"""How much faster is `fill="drop"` than `fill="mean"`, and both than bare forwards?

Maps are given, patches are the units, and the five metrics are asked for, so that ranking,
perturbing, running and scoring are timed. The three are measured in turn, in one process; ratios
are of their medians. On a CPU, CPU time is measured.

    python benchmarks/drop.py                                  # vit_tiny, CPU, 1 thread
    python benchmarks/drop.py --model vit_base_patch16_224 --device cuda --images 256
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import timm
import torch
from overhead import bare_forwards, calls, random_model, seconds

import faithscope as fs


def main() -> None:
    """Measure, print a line per round and the ratios, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--maps", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="1 on a CPU, the library's choice on a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    if options.threads or options.device == "cpu":
        torch.set_num_threads(options.threads or 1)
    generator = torch.Generator().manual_seed(0)
    model = random_model(options.model, options.device)
    size = model.input_size or (224, 224)
    images = torch.randn(options.images, 3, *size, generator=generator)
    grid = model.require_grid(images, "The benchmark")
    maps = {
        f"map{index}": torch.rand(options.images, *grid, generator=generator)
        for index in range(options.maps)
    }

    def evaluate(fill: str) -> fs.Result:
        return fs.evaluate(
            model,
            images,
            maps=maps,
            random_draws=0,
            fill=fill,
            units="patches",
            precision=options.precision,
        )

    manifests = {fill: evaluate(fill).manifest for fill in ("mean", "drop")}
    passes = manifests["mean"].cost.response_passes
    assert passes == manifests["drop"].cost.response_passes
    request = manifests["mean"].plan.request
    batch, precision = request.batch_size, request.precision
    given = calls(model, images, options.maps, passes, batch)
    bare = bare_forwards(model, given, precision)
    bare()
    print(f"{options.model}, {passes} passes, batch {batch}, {precision}", flush=True)
    sides: dict[str, Callable[[], object]] = {"bare": bare}
    sides |= {fill: partial(evaluate, fill) for fill in manifests}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    on_gpu = options.device.startswith("cuda")
    clock = time.perf_counter if on_gpu else time.process_time
    for number in range(options.rounds):
        for name, call in sides.items():
            taken[name].append(seconds(call, clock))
        rates = ", ".join(f"{name} {passes / held[-1]:,.1f}/s" for name, held in taken.items())
        print(f"round {number + 1}: {rates}", flush=True)
    median = {name: statistics.median(every) for name, every in taken.items()}
    faster = median["mean"] / median["drop"]
    print(
        f"drop: {faster:.2f} times the rate of mean, {median['bare'] / median['drop']:.2f} of bare"
    )
    print(
        json.dumps(
            {
                **vars(options),
                "passes": passes,
                "batch": batch,
                "precision": precision,
                "drop_over_mean": round(faster, 4),
                **{f"{name}_per_second": round(passes / median[name], 1) for name in median},
                "machine": torch.cuda.get_device_name() if on_gpu else platform.machine(),
                "torch": torch.__version__,
                "timm": timm.__version__,
                "faithscope": fs.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
