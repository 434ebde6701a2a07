"""How fast are explanations, what do they share, and how much memory do they take?

Explains the same random images by several methods: in batches of 1 and of 32, together (one traced
pass serves all) and each method by itself. Measured in turn, in one process. Passes are counted on
the model; on a GPU the peak memory of each line is given, weights included.

    python benchmarks/explain.py                                      # vit_tiny, CPU, 1 thread
    python benchmarks/explain.py --model vit_large_patch16_224 --device cuda --batches 1 32 64
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import timm
import torch
from torch import Tensor

import faithscope as fs
from faithscope.api import EXPLAIN_BATCH
from faithscope.methods import Method, explain_batch, resolve_methods
from faithscope.models import PassCounter


def main() -> None:
    """Measure, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--methods", default="all")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--images", type=int, help="images of each line; default: one batch")
    parser.add_argument("--threads", type=int, help="1 on a CPU, the library's choice on a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--alone", action="store_true", help="also each method by itself")
    options = parser.parse_args()
    if options.threads or options.device == "cpu":
        torch.set_num_threads(options.threads or 1)
    torch.manual_seed(0)
    model = fs.wrap(timm.create_model(options.model).eval().to(options.device), name=options.model)
    methods = resolve_methods(options.methods.split(","))
    size = model.input_size or (224, 224)
    print(f"{options.model}, {len(methods)} methods, {options.device}", flush=True)
    print(f"{'what':34} {'batch':>5} {'maps/s':>9} {'images/s':>9} {'passes/image':>13} {'GiB':>6}")
    lines = []
    for batch in options.batches:
        images = torch.randn(options.images or batch, 3, *size, device=options.device)
        groups = {"together": methods}
        if options.alone:
            groups |= {method.label: [method] for method in methods}
        for name, group in groups.items():
            line = measure(model, images, group, batch)
            lines.append({"what": name, "batch": batch, **line})
            print(
                f"{name:34} {batch:5} {line['maps_per_second']:9.2f} "
                f"{line['images_per_second']:9.2f} {line['passes_per_image']:13.1f} "
                f"{line['peak_gib']:6.2f}",
                flush=True,
            )
        if options.alone:
            own = [line for line in lines if line["batch"] == batch]
            ratio = sum(line["seconds"] for line in own[1:]) / own[0]["seconds"]
            print(f"one by one / together, batch {batch}: {ratio:.2f}", flush=True)
    cuda = options.device.startswith("cuda")
    machine = torch.cuda.get_device_name() if cuda else platform.machine()
    print(
        json.dumps(
            {**vars(options), "lines": lines, "machine": machine, "torch": torch.__version__}
        )
    )


def measure(model: fs.Model, images: Tensor, methods: list[Method], batch: int) -> dict[str, float]:
    """Explain all images in batches of this size, after one to warm up."""
    pairs = [(method, 0) for method in methods]
    target = torch.zeros(len(images), dtype=torch.int64, device=images.device)

    def explain(part: slice) -> None:
        keys = [str(place) for place in range(len(images))][part]
        inputs = max(batch, EXPLAIN_BATCH)  # of a forward pass of integrated gradients
        explain_batch(model, images[part], target[part], pairs, keys=keys, batch_size=inputs)

    explain(slice(0, min(batch, len(images)) if images.is_cuda else 1))
    counter = PassCounter()
    if images.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    with counter.watch(model.module):
        for start in range(0, len(images), batch):
            explain(slice(start, start + batch))
    if images.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() / 2**30 if images.is_cuda else 0.0
    return {
        "seconds": seconds,
        "maps_per_second": len(images) * len(methods) / seconds,
        "images_per_second": len(images) / seconds,
        "passes_per_image": counter.count / len(images),
        "peak_gib": peak,
    }


if __name__ == "__main__":
    main()
