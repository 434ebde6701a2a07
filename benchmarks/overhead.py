"""How much slower is `evaluate` than bare forwards of the same number and batch size?

Maps are given, so that only ranking, perturbing, running and scoring are timed. Both sides are
measured in turn, in one process, on the same machine; the ratio is of their medians.

    python benchmarks/overhead.py                                  # vit_tiny, CPU, 1 thread
    python benchmarks/overhead.py --model vit_base_patch16_224 --device cuda --images 256
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable

import timm
import torch
from torch import Tensor

import faithscope as fs


def main() -> None:
    """Measure, print a line per round and the ratio, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--maps", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="1 on a CPU, the library's choice on a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--fill", default="mean")
    options = parser.parse_args()
    if options.threads or options.device == "cpu":
        torch.set_num_threads(options.threads or 1)
    generator = torch.Generator().manual_seed(0)
    module = timm.create_model(options.model).eval().to(options.device)
    model = fs.wrap(module, mean=(0.5,) * 3, std=(0.5,) * 3, name=options.model)
    size = model.input_size or (224, 224)
    images = torch.randn(options.images, 3, *size, generator=generator)
    maps = {
        f"map{index}": torch.rand(options.images, *size, generator=generator)
        for index in range(options.maps)
    }

    def evaluate() -> fs.Result:
        return fs.evaluate(
            model,
            images,
            maps=maps,
            random_draws=0,
            fill=options.fill,
            precision=options.precision,
        )

    manifest = evaluate().manifest
    request = manifest.plan.request
    passes, batch, precision = (
        manifest.cost.response_passes,
        request.batch_size,
        request.precision,
    )
    bare = bare_forwards(module, images, passes, batch, precision)
    bare()
    print(f"{options.model}, {passes} passes, batch {batch}, {precision}", flush=True)
    ours, theirs = [], []
    for number in range(options.rounds):
        theirs.append(seconds(bare))
        ours.append(seconds(evaluate))
        print(
            f"round {number + 1}: bare {passes / theirs[-1]:,.1f}/s, "
            f"evaluate {passes / ours[-1]:,.1f}/s",
            flush=True,
        )
    slow, fast = statistics.median(ours), statistics.median(theirs)
    print(f"evaluate / bare: {slow / fast:.3f} (rate {fast / slow:.1%} of bare forwards)")
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(
        json.dumps(
            {
                **vars(options),
                "passes": passes,
                "batch": batch,
                "precision": precision,
                "ratio": round(slow / fast, 4),
                "evaluate_per_second": round(passes / slow, 1),
                "bare_per_second": round(passes / fast, 1),
                "machine": device,
                "torch": torch.__version__,
            }
        )
    )


def bare_forwards(
    module: torch.nn.Module, images: Tensor, passes: int, batch: int, precision: str
) -> Callable[[], None]:
    """The same number of forwards, same batch size and precision, nothing else."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}.get(precision)
    runner = module if dtype is None else copy.deepcopy(module).to(dtype)
    device = next(module.parameters()).device
    inputs = images.to(device, dtype or torch.float32).repeat(batch // len(images) + 1, 1, 1, 1)
    inputs = inputs[:batch].contiguous()
    sizes = [batch] * (passes // batch) + ([passes % batch] if passes % batch else [])

    def run() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        with torch.inference_mode():
            for size in sizes:
                runner(inputs[:size])
        if device.type == "cuda":
            torch.cuda.synchronize()
        torch.set_float32_matmul_precision(before)

    return run


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
