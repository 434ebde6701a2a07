"""Scores of bAbI-1's base models and fully masked models for many seeds, not only five.

python studies/roar_seeds.py 'babi:data/babi(task=1)' --out studies/results/roar_babi1_seeds.json

All seeds are trained together as one pack, so on a GPU 64 cost little more than five.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from faithscope.data.text import TokenData
from faithscope.data.text_sources import load_text
from faithscope.probes.retrain.bilstm import BiLSTMLearner
from faithscope.probes.retrain.learner import Learner, Trained


def all_masked(data: TokenData) -> TokenData:
    """The data with every maskable token masked."""
    parts = data.splits
    return data.with_ids(
        {name: part.ids.masked_fill(part.eligible, data.mask_id) for name, part in parts}
    )


def ends(learner: BiLSTMLearner, data: TokenData, seeds: int) -> tuple[list[float], list[float]]:
    """Test accuracy and best validation accuracy of every seed."""
    done = trained(learner, [data] * seeds, range(seeds))
    return [t.scores["accuracy"] for t in done], [max(t.validation) for t in done]


def trained(learner: Learner, data: Sequence[TokenData], seeds: Sequence[int]) -> list[Trained]:
    """Train a model for each data set and seed as one pack, and print the progress."""
    training = learner.begin(data, seeds)
    start, epochs = time.perf_counter(), learner.recipe.epochs
    while not training.is_done:
        training.run_epoch()
        if training.epoch % 10 == 0 or training.epoch == 1:
            left = (time.perf_counter() - start) * (epochs / training.epoch - 1)
            where = f"epoch {training.epoch} of {epochs}, {left:.0f} s left"
            known = getattr(training, "validation", [])  # of models that are trained as one
            mean = f": mean validation {sum(known[-1]) / len(seeds):.3f}" if known else ""
            print(f"  {where}{mean}", flush=True)
    return training.finish()


def main() -> None:
    """Train both kinds and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    texts = load_text(given.data)
    learner = BiLSTMLearner(texts.kind, device=given.device)
    data = learner.encode(texts)
    start = time.perf_counter()
    base, base_validation = ends(learner, data, given.seeds)
    masked, masked_validation = ends(learner, all_masked(data), given.seeds)
    on_gpu = given.device.startswith("cuda")
    found = {
        "command": shlex.join(["python", "studies/roar_seeds.py", *sys.argv[1:]]),
        "machine": torch.cuda.get_device_name() if on_gpu else "CPU",
        "seconds": round(time.perf_counter() - start, 1),
        "epochs": learner.recipe.epochs,
        "base": base,
        "base_validation": base_validation,
        "masked": masked,
        "masked_validation": masked_validation,
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
