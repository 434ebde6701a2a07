"""The whole job: how many images a second does `evaluate(methods="all", metrics="all")` take?

The eleven methods, one draw of each random attribution, the five metrics; beside it the default
run, which has three draws, and what of the time went into explaining. Random weights and images:
speed does not depend on them. `--quantus` times the curve of one map in eight steps by Quantus'
PixelFlipping and by `evaluate`, in the same run (Quantus must be installed).

    python benchmarks/whole.py                                          # vit_tiny, CPU, 1 image
    python benchmarks/whole.py --model vit_base_patch16_224 --device cuda --images 256
    python benchmarks/whole.py --model vit_large_patch16_224 --device cuda --images 128
    python benchmarks/whole.py --model vit_base_patch16_224 --device cuda --images 64 --quantus
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from overhead import random_model
from torch import Tensor

import faithscope as fs
from faithscope.models import Model

STEPS = 8
"""Quantus wants a number that divides that of the pixels."""


def main() -> None:
    """Measure, print a line each and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--explain-precision", default="auto")
    parser.add_argument("--quantus", action="store_true")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    model = random_model(options.model, options.device)
    size = model.input_size or (224, 224)
    images = torch.randn(options.images, 3, *size, generator=torch.Generator().manual_seed(0))
    found = quantus(model, images) if options.quantus else whole(model, images, options)
    place = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(json.dumps({**vars(options), **found, "machine": place, "torch": torch.__version__}))


def clock(device: str) -> float:
    """Seconds: of a CPU those that this process had of it, whatever else it does."""
    return time.perf_counter() if device.startswith("cuda") else time.process_time()


def whole(model: Model, images: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Rates of the whole job with one draw of random attribution, and with the default three."""
    found = {}
    asked = {"methods": "all", "metrics": "all", "explain_precision": options.explain_precision}
    for draws in (1, 3):
        if options.device == "cuda":
            fs.evaluate(model, images, random_draws=draws, **asked)  # to warm up
        started = clock(options.device)
        result = fs.evaluate(model, images, random_draws=draws, **asked)
        taken, cost = clock(options.device) - started, result.manifest.cost
        explaining = cost.explain_seconds or 0
        found[f"images_per_second_{draws}"] = round(len(images) / taken, 3)
        formats = {card.precision for card in result.manifest.methods.values()} - {""}
        print(
            f"{draws} draw{'s' * (draws > 1)}: {len(images) / taken:.2f} images/s, "
            f"{cost.response_passes} passes, {cost.explanation_passes} to explain, which took "
            f"{explaining:.1f} of {cost.seconds:.1f} s (formats besides the model's: {formats})",
            flush=True,
        )
    return found


def quantus(model: Model, images: Tensor) -> dict[str, float]:
    """Image-steps a second of one curve by Quantus and by ours."""
    from quantus import PixelFlipping

    device = str(model.device)
    maps = torch.rand(len(images), *images.shape[-2:], generator=torch.Generator().manual_seed(1))
    flipping = PixelFlipping(
        features_in_step=maps[0].numel() // STEPS,
        perturb_baseline="mean",
        normalise=False,
        disable_warnings=True,
    )
    target = torch.zeros(len(images), dtype=torch.int64)

    def theirs() -> None:
        flipping(
            model=model.module,
            x_batch=images.numpy(),
            y_batch=target.numpy(),
            a_batch=maps[:, None].numpy(),
            device=device,
            channel_first=True,
        )

    def ours(compiled: bool) -> None:
        fs.evaluate(
            *(model, images),
            maps={"map": maps},
            metrics=f"deletion(steps={STEPS})",
            random_draws=0,
            target=0,
            compile=compiled,
        )

    calls: dict[str, Callable[[], None]] = {"quantus": theirs, "ours": lambda: ours(False)}
    calls["compiled"] = lambda: ours(True)
    rates = {}
    for name, call in calls.items():
        if device.startswith("cuda"):
            call()
        started = clock(device)
        call()
        rates[name] = round(len(images) * STEPS / (clock(device) - started), 2)
        ratio = f", {rates[name] / rates['quantus']:.1f} times" * (name != "quantus")
        print(f"{name}: {rates[name]} image-steps/s{ratio}", flush=True)
    return rates


if __name__ == "__main__":
    main()
