"""How fast are explanations, what do they share, and how much memory do they take?

Explains the same random images by several methods: in batches of 1 and of 32, together (one traced
pass serves all) and each method by itself. Measured in turn, in one process. Passes are counted on
the model; on a GPU the peak memory of each line is given, weights included. With --count the work
is counted, too, in one more batch: floating-point operations of matrix products, in those of one
forward pass of an image; operations that touch memory, and how much, of a batch.

    python benchmarks/explain.py                                      # vit_tiny, CPU, 1 thread
    python benchmarks/explain.py --methods lrp,partial_lrp,transformer_attribution --count
    python benchmarks/explain.py --model vit_large_patch16_224 --device cuda --batches 1 32 64
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from typing import Any

import torch
from overhead import random_model
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import faithscope as fs
from faithscope.methods import Method, explain_batch, resolve_methods
from faithscope.methods.explain import EXPLAIN_BATCH, choose_explain_batch
from faithscope.models import PassCounter

VIEWS = frozenset(
    """
    view _unsafe_view detach expand transpose permute t select unbind slice squeeze unsqueeze alias
    split split_with_sizes as_strided lift_fresh
    """.split()
)
"""Operations that only look at memory otherwise."""


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
    parser.add_argument("--count", action="store_true", help="also the work that is done")
    parser.add_argument("--explain-precision", default="auto", help="as of fs.explain")
    options = parser.parse_args()
    if options.threads or options.device == "cpu":
        torch.set_num_threads(options.threads or 1)
    torch.manual_seed(0)
    model = random_model(options.model, options.device)
    methods = [
        method.made_in(options.explain_precision, model)
        for method in resolve_methods(options.methods.split(","))
    ]
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
            if options.count:
                work = count(model, images[:batch], group)
                lines[-1] |= work
                print(
                    f"{'':34} {batch:5} {work['forwards']:9.2f} forwards/image "
                    f"{work['operations']:6.0f} operations {work['gigabytes']:8.2f} GB "
                    f"{line['cpu_seconds']:7.2f} s of CPU time",
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
    # of a forward pass of integrated gradients
    inputs = max(batch, choose_explain_batch(model, images, pairs))

    def explain(part: slice) -> None:
        _explain(model, images[part], methods, inputs)

    explain(slice(0, min(batch, len(images)) if images.is_cuda else 1))
    counter = PassCounter()
    if images.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started, spent = time.perf_counter(), time.process_time()
    with counter.watch(model.module):
        for start in range(0, len(images), batch):
            explain(slice(start, start + batch))
    if images.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() / 2**30 if images.is_cuda else 0.0
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - spent,
        "maps_per_second": len(images) * len(methods) / seconds,
        "images_per_second": len(images) / seconds,
        "passes_per_image": counter.count / len(images),
        "peak_gib": peak,
    }


def _explain(model: fs.Model, images: Tensor, methods: list[Method], inputs: int) -> None:
    pairs, keys = [(method, 0) for method in methods], [str(place) for place in range(len(images))]
    target = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    explain_batch(model, images, target, pairs, keys=keys, batch_size=inputs)


def count(model: fs.Model, images: Tensor, methods: list[Method]) -> dict[str, float]:
    """The work of explaining a batch, which is explained twice."""
    inputs = max(len(images), EXPLAIN_BATCH)
    with sdpa_kernel(SDPBackend.MATH):  # whose matrix products can be counted
        with FlopCounterMode(display=False) as bare, torch.no_grad():
            model.module(images)
        with FlopCounterMode(display=False) as whole:
            _explain(model, images, methods, inputs)
        with Operations() as seen:
            _explain(model, images, methods, inputs)
    return {
        "forwards": whole.get_total_flops() / bare.get_total_flops(),
        "operations": seen.count,
        "gigabytes": seen.bytes / 1e9,
    }


class Operations(TorchDispatchMode):
    """Counts operations that are no mere views, and the bytes of what they read and write."""

    count = bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::") not in VIEWS:
            held = [tensor for tensor in tree_leaves((args, kwargs, made)) if _is_tensor(tensor)]
            self.count += 1
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in held)
        return made


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


if __name__ == "__main__":
    main()
