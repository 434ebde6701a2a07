"""Fine-tuning an encoder for ROAR: one model at a time against packs whose steps are CUDA graphs.

    python benchmarks/finetune.py --model hf:minilm --data sst:data/sst            # on a GPU
    python benchmarks/finetune.py --model hf:minilm --data sst:data/sst --device cpu --steps 5

"one at a time" is what one writes first: the module in float32, AdamW (fused), a loop over batches
padded to their longest text. "pack of N" is what `fs.roar` does: every model has a stream of its
own and its step is recorded once for each width of a batch. Recording is timed apart: a run of many
trainings does it once. The losses of the first epoch's steps are compared with those of the same
steps taken kernel by kernel.
"""

from __future__ import annotations

import argparse
import platform
import time
from itertools import islice

import torch
import transformers
from torch import Tensor
from torch.nn import functional

from faithscope.data.text import TokenData
from faithscope.data.text_sources import load_text
from faithscope.probes.retrain.finetune import FinetuneLearner, make_optimizer, warm_up_and_decay

WARM = 10
"""Steps before the clock starts, one at a time."""


def wait(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def one_at_a_time(learner: FinetuneLearner, data: TokenData, steps: int) -> float:
    """Seconds of a step, straightforward."""
    module = learner.checkpoint.build(0).to(learner.device).train()
    optimizer = make_optimizer(module, learner.recipe)
    size = learner.recipe.batch_size
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    started = 0.0
    for number in range(WARM + steps):
        if number == WARM:
            wait(learner.device)
            started = time.perf_counter()
        index = order[number * size % (len(order) - size) :][:size]
        ids = data.train.ids[index]
        mask = ids != data.pad_id
        width = int(mask.sum(1).max())
        ids, mask = (part[:, :width].to(learner.device) for part in (ids, mask.long()))
        labels = data.train.labels[index].to(learner.device)
        loss = functional.cross_entropy(module(input_ids=ids, attention_mask=mask).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = learner.recipe.learning_rate * warm_up_and_decay(number, WARM + steps)
        optimizer.step()
    wait(learner.device)
    return (time.perf_counter() - started) / steps


def packed(
    learner: FinetuneLearner, data: TokenData, models: int, steps: int, *, records: bool = True
) -> tuple[float, Tensor, int]:
    """Seconds of a step of all models, their losses [steps, models], and how many shapes came."""
    training = learner.begin([data] * models, list(range(models)))
    for one in training.members:
        one.bench.lane.records = records and one.bench.lane.is_fast
    rounds = [zip(*(one.steps() for one in training.members), strict=True) for _ in "ab"]
    first = [[step() for step in group] for group in islice(rounds[0], steps)]  # records
    wait(learner.device)
    started = time.perf_counter()
    for group in islice(rounds[1], steps):
        for step in group:
            step()
    wait(learner.device)
    took = (time.perf_counter() - started) / steps
    losses = torch.stack([torch.stack(group) for group in first]).cpu()
    training.run_epoch()
    training.finish()
    return took, losses, len(training.members[0].bench.lane.recorded)


def main() -> None:
    """Time all ways, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="hf:ID or folder")
    parser.add_argument("--data", required=True, help="as for faithscope roar")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", type=int, nargs="+", default=[1, 4, 8, 12])
    parser.add_argument("--steps", type=int, default=150)
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no GPU: run it where one is, or say --device cpu.")
    texts = load_text(given.data)
    learner = FinetuneLearner(given.model, texts, device=given.device)
    data = learner.encode(texts)
    place = torch.cuda.get_device_name() if given.device.startswith("cuda") else platform.machine()
    print(
        f"{given.model}, {learner.parameters(data):,} parameters, batches of "
        f"{learner.recipe.batch_size} on {data.name} ({len(data.train):,} texts of at most "
        f"{data.train.ids.shape[1]} tokens); packs of {learner.pack_size} fit; {given.device} "
        f"({place}), torch {torch.__version__}, transformers {transformers.__version__}",
        flush=True,
    )
    slow = one_at_a_time(learner, data, given.steps)
    print(f"one at a time: {1000 * slow:.2f} ms a step", flush=True)
    _, expected, _ = packed(learner, data, 1, given.steps, records=False)
    for models in given.models:
        took, losses, shapes = packed(learner, data, models, given.steps)
        apart = (losses[:, 0] - expected[:, 0]).abs().max()
        print(
            f"pack of {models}: {1000 * took:.2f} ms a step, {1000 * took / models:.2f} a model, "
            f"{slow * models / took:.1f} times as fast; {shapes} shapes; losses of {given.steps} "
            f"steps apart by {apart:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
