"""Every measurement that docs/performance.md asks of a GPU, in parts of at most ten minutes.

    python benchmarks/gpu.py PART [DATA]

The benchmarks of a part run in one process, one after the other, each within its time; nothing else
should run on the GPU. `short` is of everything a little, in eight minutes at most. DATA (data/ by
default) holds sst/ and a folder minilm/ (for `texts` and `short`, which need spaCy, too), and
cifar10_test.npz with images and labels (for `truth`).
"""

from __future__ import annotations

import argparse
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

HERE = Path(__file__).parent
BASE, LARGE = "vit_base_patch16_224", "vit_large_patch16_224"
RELEVANCE = "--count --methods lrp,partial_lrp,transformer_attribution"
FORMATS = "--formats fp32 tf32 fp16 bf16"

PARTS = {
    "short": f"""
        50 overhead.py --images 128 --rounds 1 --model {BASE}
        60 whole.py --images 64 --model {BASE}
        25 overhead.py --images 64 --rounds 1 --model {BASE} --fill inpaint
        90 roar_images.py --models 8 24 --steps 24
        25 drop.py --images 64 --rounds 1 --model {BASE}
        40 overhead.py --texts 2000 --maps 3 --rounds 1
        30 finetune.py --model hf:DATA/minilm --data sst:DATA/sst --models 12 --steps 30
        40 overhead.py --images 64 --rounds 1 --model {BASE} --compile
        30 overhead.py --images 32 --rounds 1 --model {LARGE}
        40 whole.py --images 16 --model {LARGE}
        40 overhead.py --images 64 --rounds 1 --model {BASE} --fill noise blur
    """,
    "speed": f"""
        160 overhead.py --images 256 --model {BASE} {LARGE} --pictures 1000 0
        120 overhead.py --images 256 --rounds 1 --model {BASE} --fill noise blur inpaint
        60 overhead.py --images 128 --rounds 1 --model {BASE} --fill inpaint --patch-maps
        120 overhead.py --images 256 --model {BASE} --compile
        80 overhead.py --images 256 --model vit_tiny_patch16_224
        60 drop.py --images 128 --model {BASE}
    """,
    "whole": f"""
        150 whole.py --images 128 --model {BASE}
        150 whole.py --images 64 --model {LARGE}
        100 whole.py --images 64 --model {BASE} --quantus
        90 explain.py --model {BASE} --batches 32 128 --images 128 {RELEVANCE}
        90 explain.py --model {LARGE} --batches 32 128 --images 128 {RELEVANCE}
    """,
    "texts": """
        250 overhead.py --texts 20000 --maps 3 --rounds 1
        250 finetune.py --model hf:DATA/minilm --data sst:DATA/sst --models 1 8 12
    """,
    "train": f"""
        200 roar_images.py --models 8 24
        60 explain.py --model {BASE} --batches 32 --alone
    """,
    "truth": f"""
        350 precision.py --data array:DATA/cifar10_test.npz --images 1000 {FORMATS}
        200 precision.py --model bundled:sst_text --data bundled:sst --images 200 {FORMATS}
    """,
}  # fmt: skip
"""Seconds at most, and what is run."""


class Late(BaseException):
    """Raised when a benchmark's time is over; nothing that it calls takes it for an error."""


def stop(*_: object) -> None:
    """End the benchmark that is running."""
    raise Late


def run(seconds: int, script: str, arguments: list[str]) -> bool:
    """Run one benchmark as if it were typed, say how long it took, give whether it ended well."""
    sys.argv = [script, "--device", "cuda", *arguments]
    print(f"\n$ python benchmarks/{' '.join(sys.argv)}", flush=True)
    began, is_done = time.perf_counter(), True
    signal.alarm(seconds)
    try:
        runpy.run_path(str(HERE / script), run_name="__main__")
    except Late:
        is_done = False
        print(f"stopped after {seconds} s")
    except (Exception, SystemExit):
        is_done = False
        traceback.print_exc(file=sys.stdout)
    finally:
        signal.alarm(0)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    return is_done


def main() -> None:
    """Run all benchmarks of one part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("data", nargs="?", default="data")
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, stop)
    sys.path.insert(0, str(HERE))  # drop.py shares what overhead.py times
    if torch.cuda.is_available():
        print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    is_whole = True
    for line in PARTS[given.part].replace("DATA", given.data).strip().splitlines():
        seconds, script, *arguments = line.split()
        is_whole &= run(int(seconds), script, arguments)
    sys.exit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
