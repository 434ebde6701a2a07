"""Training Vision Transformers for ROAR: one model at a time against packs of several.

    python benchmarks/roar_images.py                      # on a GPU: 1 (plain), 8 and 24 together
    python benchmarks/roar_images.py --models 4 8 --device cpu --dim 64 --depth 2 --images 512
    python benchmarks/roar_images.py --data array:cifar10.npz --epochs 20 --end   # where they end

"one at a time" is what one writes first: timm's module, autocast, AdamW, batches by index, the
same shifts and flips; it starts from the same weights and sees the same batches as the first model
of a pack, and their first losses are compared. On a CPU, CPU time is measured, with one thread.
`--data` takes any labelled images (the default are random pixels in the shape of CIFAR-10, for the
speed alone).
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

import numpy as np
import timm
import torch
from torch import Tensor
from torch.nn import functional

from faithscope.data.labelled_images import ImageSplits, load_labelled
from faithscope.models.vit_pack import initial
from faithscope.probes.retrain.learner import Recipe
from faithscope.probes.retrain.pixels import PixelData
from faithscope.probes.retrain.vit import (
    MOST_NORM,
    SMOOTHING,
    ViTLearner,
    ViTOptions,
    ViTTraining,
    _moved,
)

WARM, COMPARED = 10, 20
"""Steps before the clock starts, and steps whose losses are compared."""


def made_up(images: int, classes: int = 10) -> ImageSplits:
    """Random pixels in the shape of CIFAR-10."""
    draw = np.random.default_rng(0)

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        pixels = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        return pixels, np.arange(count) % classes

    parts = {"train": images, "validation": max(64, images // 10), "test": max(64, images // 5)}
    return load_labelled({name: split(count) for name, count in parts.items()})


def wait(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def clock(device: str) -> float:
    """Seconds: of a CPU those that this process had of it, whatever else it does."""
    return time.perf_counter() if device.startswith("cuda") else time.process_time()


def timed(device: str, steps: int, step: Callable[[int], Tensor]) -> tuple[float, list[float]]:
    """Seconds of a step after a few to warm up, and the first losses of the first model."""
    losses = [step(at).reshape(-1)[0].clone() for at in range(WARM)]
    wait(device)
    start = clock(device)
    losses += [step(WARM + at).reshape(-1)[0].clone() for at in range(steps)]
    wait(device)
    took = (clock(device) - start) / steps
    return took, torch.stack(losses).tolist()[:COMPARED]


def one_at_a_time(
    learner: ViTLearner, data: PixelData, steps: int, *, compiled: bool = False
) -> tuple[float, list[float]]:
    """The straightforward way."""
    training = learner.begin([data], [0])
    rows, moves = training.draws(0)
    shape, device = training.shape, training.device
    module = shape.module()
    module.load_state_dict(initial(shape, 0))
    module.to(device).train()
    forward = torch.compile(module) if compiled else module
    named = dict(module.named_parameters())
    heavy = [named[name] for name in shape.halves()[0]]
    light = [named[name] for name in shape.halves()[1]]
    groups = [
        {"params": heavy, "weight_decay": learner.recipe.weight_decay},
        {"params": light, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, fused=device.type == "cuda")
    images, (mean, std) = training.images["train"][0], training.colours

    def step(at: int) -> Tensor:
        batch = at % len(rows)
        picked = rows[batch, 0]
        chosen, inside = _moved(images[picked][None], moves[batch])
        x = torch.where(inside, (chosen / 255 - mean) / std, 0.0)[0]
        with torch.autocast(device.type, learner.dtype, enabled=device.type == "cuda"):
            logits = forward(x)
        targets = training.targets[picked]
        loss = functional.cross_entropy(logits.float(), targets, label_smoothing=SMOOTHING)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*heavy, *light], MOST_NORM)
        for group in optimizer.param_groups:
            group["lr"] = training._rate(at)
        optimizer.step()
        return loss.detach()

    return timed(learner.device, steps, step)


def packed(
    learner: ViTLearner, data: PixelData, models: int, steps: int
) -> tuple[float, list[float]]:
    """A pack of models, each with a seed of its own."""
    training = learner.begin([data] * models, list(range(models)))
    rows, moves = training.draws(0)

    def step(at: int) -> Tensor:
        batch = at % len(rows)
        return training.step(rows[batch], moves[batch], training._rate(at))

    started = time.perf_counter()
    step(0)
    wait(learner.device)
    print(f"  first step, with compiling: {time.perf_counter() - started:.1f} s", flush=True)
    training = again(training, learner, data)
    return timed(learner.device, steps, step)


def again(training: ViTTraining, learner: ViTLearner, data: PixelData) -> ViTTraining:
    """The same pack as it began."""
    fresh = learner.begin([data] * len(training.seeds), training.seeds)
    with torch.no_grad():
        for name, value in training.parameters.items():
            value.copy_(fresh.parameters[name])
    training.optimizer.state.clear()
    return training


def bench_speed(learner: ViTLearner, data: PixelData, packs: list[int], steps: int) -> None:
    """All ways, one after the other."""
    slow, theirs = one_at_a_time(learner, data, steps)
    print(f"one at a time, plain: {1000 * slow:.2f} ms a step", flush=True)
    if learner.device.startswith("cuda"):
        other, _ = one_at_a_time(learner, data, steps, compiled=True)
        print(f"one at a time, compiled: {1000 * other:.2f} ms a step", flush=True)
    for models in packs:
        if learner.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        took, ours = packed(learner, data, models, steps)
        each = took / models
        apart = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
        memory = ""
        if learner.device.startswith("cuda"):
            memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
        print(
            f"pack of {models}: {1000 * took:.2f} ms a step, {1000 * each:.2f} a model{memory}; "
            f"{slow / each:.1f} times as fast; losses of {COMPARED} steps apart by {apart:.1e}",
            flush=True,
        )


def bench_end(learner: ViTLearner, data: PixelData, models: int) -> None:
    """Train a pack to its end: how long, and how good."""
    training = learner.begin([data] * models, list(range(models)))
    started = time.perf_counter()
    while not training.is_done:
        training.run_epoch()
        mean = float(np.mean(training.validation[-1]))
        took = time.perf_counter() - started
        print(f"  epoch {training.epoch}: validation {mean:.4f}, {took:.1f} s", flush=True)
    scores = [trained.scores["accuracy"] for trained in training.finish()]
    spread = f"{min(scores):.4f} to {max(scores):.4f}"
    print(f"pack of {models}: test accuracy {np.mean(scores):.4f} ({spread})")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default=None)
    parser.add_argument("--images", type=int, default=50_000, help="of made-up data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", type=int, nargs="+", default=[8, 24])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--end", action="store_true", help="train to the end, the first --models")
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no GPU: run it where one is, or say --device cpu.")
    if given.device == "cpu":
        torch.set_num_threads(1)
    recipe = Recipe(given.epochs, given.batch_size, 1e-3, 0.05)
    options = ViTOptions(dim=given.dim, depth=given.depth)
    learner = ViTLearner(options, device=given.device, recipe=recipe)
    data = learner.encode(
        made_up(given.images) if given.data is None else load_labelled(given.data)
    )
    place = torch.cuda.get_device_name() if given.device.startswith("cuda") else platform.machine()
    print(
        f"{learner.name}, {learner.parameters(data):,} parameters, batches of {given.batch_size} "
        f"on {data.name} ({len(data.train):,} images); {given.device} ({place}), torch "
        f"{torch.__version__}, timm {timm.__version__}, Python {platform.python_version()}"
    )
    if given.end:
        bench_end(learner, data, given.models[0])
    else:
        bench_speed(learner, data, given.models, given.steps)


if __name__ == "__main__":
    main()
