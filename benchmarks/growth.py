"""Do memory and time grow with the number of images of a run that is kept in a folder?

Each size is a run in a process of its own, with a tiny ViT and maps from one method, so that what
is measured is ours: reading images, ranking, perturbing, scoring, writing tables. Memory is the
resident set, sampled ten times a second (Linux): after the first shard, the most while shards
are run, and the most of all, when the tables of all shards are joined for the result.

    OMP_NUM_THREADS=1 python benchmarks/growth.py --sizes 100,1000,5000,20000 --plot growth.svg
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import timm
import torch

import faithscope as fs

MIB = 1 << 20


def main() -> None:
    """Run every size, print a line each and one line of JSON, and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100,1000,5000,20000,50000")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    rows = []
    for size in map(int, options.sizes.split(",")):
        command = [sys.executable, __file__, "--one", str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(" ".join(f"{name} {value:,.1f}" for name, value in rows[-1].items()), flush=True)
    print(json.dumps({"rows": rows, "machine": platform.machine(), "torch": torch.__version__}))
    if options.plot:
        draw(rows, options.plot)


@dataclass(frozen=True)
class Drawn(torch.utils.data.Dataset[torch.Tensor]):
    """Random images, made when they are read, so that they take no memory."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(index))


def measure(images: int) -> dict[str, float]:
    """One run in a temporary folder: seconds, CPU seconds, resident memory in MiB."""
    torch.manual_seed(0)
    small = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}
    module = timm.create_model("vit_tiny_patch16_224", num_classes=10, **small).eval()
    model = fs.wrap(module, mean=(0.5,) * 3, std=(0.5,) * 3, name="tiny")
    resident, ended = list[float](), threading.Event()
    reports = list[int]()

    def watch() -> None:
        page = resource.getpagesize() / MIB
        while not ended.wait(0.1):
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * page)

    def progress(_: Any) -> None:
        reports.append(len(resident))

    with tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=watch, daemon=True).start()
        started, worked = time.perf_counter(), time.process_time()
        fs.evaluate(
            model,
            Drawn(images),
            methods=["rollout"],
            k=5,
            random_draws=1,
            out=Path(folder) / "run",
            progress=progress,
        )
        spent = time.perf_counter() - started, time.process_time() - worked
        ended.set()
    running = resident[reports[0] : reports[-1] + 1]
    return {
        "images": images,
        "seconds": round(spent[0], 2),
        "cpu_seconds": round(spent[1], 2),
        "first_mib": round(running[0], 1),
        "running_mib": round(max(running), 1),
        "end_mib": round(max(resident), 1),
    }


def draw(rows: list[dict[str, float]], file: Path) -> None:
    """CPU seconds and memory against the number of images, both from zero."""
    sizes = [row["images"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.plot(sizes, [row["cpu_seconds"] for row in rows], marker="o")
    left.set(xlabel="images", ylabel="CPU seconds", ylim=(0, None), xlim=(0, None))
    for name, label in (("running_mib", "while shards are run"), ("end_mib", "tables joined")):
        right.plot(sizes, [row[name] for row in rows], marker="o", label=label)
    right.set(xlabel="images", ylabel="resident MiB", ylim=(0, None), xlim=(0, None))
    right.legend()
    for axes in (left, right):
        axes.ticklabel_format(style="plain")
    figure.savefig(file)


if __name__ == "__main__":
    main()
