"""What do Ray's workers cost beside the same tasks in one process?

`load` evaluates tiny images, so that whatever is not the model shows; `graph` trains thousands of
tiny models, each of which waits for another; `gpus` lets several workers share one GPU. Each runs
the same plan in one process and on Ray, one after the other, compares the tables bit by bit and
prints one line of JSON. On a CPU a worker, and the process beside it, have one thread.

    python benchmarks/scale.py load                    # 20,000 images × 5 methods, 2 workers
    python benchmarks/scale.py graph                   # 2,000 trainings, 2 workers
    python benchmarks/scale.py gpus --share 0.25       # ViT-B/16 on a GPU, four workers

What the papers' tables would take is reckoned from these:

    python benchmarks/scale.py tasks                   # a GPU: a task of the ImageNet table
    python benchmarks/scale.py rows                    # what the driver does with the rows of one
    python benchmarks/scale.py waves                   # Recursive ROAR on 1, 8, 64 and 512 GPUs
"""

from __future__ import annotations

import argparse
import json
import pickle
import platform
import resource
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

import faithscope as fs
from faithscope.probes.retrain.jobs import jobs_of
from faithscope.runs import ray as on_ray
from faithscope.runs.scheduler import Scheduler

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

METHODS = ("raw_attention", "rollout", "gradient", "attcat", "transformer_mm")


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*JOBS])
    parser.add_argument("--images", type=int, help="[default: 20,000 for load, 1,024 for gpus]")
    parser.add_argument("--trainings", type=int, default=2000)
    parser.add_argument("--workers", type=int, help="[default: 2 on a CPU, 1 / share on a GPU]")
    parser.add_argument("--share", type=float, default=0.25, help="of a GPU, for each worker")
    parser.add_argument("--model", default="vit_base_patch16_224")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = JOBS[options.what](options, Path(folder))
    machine = {
        "processor": platform.processor() or platform.machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "ray": ray.__version__,
    }
    print(json.dumps({"what": options.what, **found, **machine}))


def load(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """CPU seconds per pass of a worker and of one process; the driver's cost and memory."""
    count, workers = options.images or 20_000, options.workers or 2
    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=8, patch_size=2, embed_dim=64, depth=1, num_heads=2, num_classes=10
    )
    images = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    plan: dict[str, Any] = {"metrics": "all", "random_draws": 1, "batch_size": 512, "pictures": 0}
    asked = {"methods": METHODS, "labels": torch.zeros(count, dtype=torch.int64), **plan}
    fs.evaluate(model, images[:64], **{**asked, "labels": asked["labels"][:64]})  # to warm up
    prepared = fs.prepare(model, images, **asked, out=folder / "local")
    with Watch() as alone:
        expected = prepared.run()
    passes, tasks = expected.manifest.cost.response_passes, len(prepared.planned.tasks)
    print(f"one process: {alone.cpu:.1f} CPU s, {alone.wall:.1f} s, {passes:,} passes", flush=True)
    few = {**asked, "labels": asked["labels"][:256]}
    fs.evaluate(model, images[:256], **few, on="ray", workers=workers)  # to start the workers
    prepared = fs.prepare(model, images, **asked, out=folder / "ray", on="ray", workers=workers)
    with OnRay(prepared.crew) as many:
        result = prepared.run()
    check(expected, result, ("scores", "responses", "maps", "samples"))
    ratio = (many.workers / passes) / (alone.cpu / passes)
    print(
        f"{workers} workers: {many.workers:.1f} CPU s, {many.watch.wall:.1f} s; a pass takes a "
        f"worker {ratio:.3f} of what it takes one process",
        flush=True,
    )
    return {
        "images": count,
        "passes": passes,
        "tasks": tasks,
        "cpu_us_per_pass_local": round(1e6 * alone.cpu / passes, 3),
        "cpu_us_per_pass_worker": round(1e6 * many.workers / passes, 3),
        "ratio": round(ratio, 4),
        "wall_local": round(alone.wall, 1),
        "wall_ray": round(many.watch.wall, 1),
        "driver_ms_per_task": round(1e3 * many.watch.cpu / tasks, 2),
        "driver_mib": many.watch.memory_at(0.1, 0.5, 0.9),
        "table_kib_per_task": round(size(folder / "ray") / 1024 / tasks, 1),
    }


def graph(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a task costs where there is next to nothing to do in it, and tasks wait for others."""
    from bags import BagLearner, bag_texts

    workers, levels = options.workers or 2, list(range(10, 100, 10))
    seeds = options.trainings // (1 + 2 * len(levels))  # the intact text, and two measures
    learner = BagLearner(pack_size=1)
    asked: dict[str, Any] = {
        "measures": "gradient",
        "seeds": seeds,
        "levels": levels,
        "procedures": "recursive",
    }
    prepared = fs.prepare_roar(bag_texts(), learner, **asked, out=folder / "local")
    tasks = len(prepared.planned.tasks)
    with Watch() as alone:
        expected = prepared.run()
    trainings = expected.manifest.cost.trainings
    print(f"one process: {alone.cpu:.1f} CPU s, {alone.wall:.1f} s, {trainings:,} trainings")
    far: dict[str, Any] = {"on": "ray", "workers": workers}
    fs.roar(bag_texts(), learner, **{**asked, "seeds": 2}, **far)  # to start the workers
    prepared = fs.prepare_roar(bag_texts(), learner, **asked, out=folder / "ray", **far)
    with OnRay(prepared.crew) as many:
        result = prepared.run()
    check(expected, result, ("scores", "trainings", "sparsity"))
    print(f"{workers} workers: {many.workers:.1f} CPU s, {many.watch.wall:.1f} s", flush=True)
    return {
        "trainings": trainings,
        "tasks": tasks,
        "wall_local": round(alone.wall, 1),
        "wall_ray": round(many.watch.wall, 1),
        "cpu_ms_per_task_local": round(1e3 * alone.cpu / tasks, 2),
        "cpu_ms_per_task_worker": round(1e3 * many.workers / tasks, 2),
        "driver_ms_per_task": round(1e3 * many.watch.cpu / tasks, 2),
        "driver_mib": many.watch.memory_at(0.1, 0.5, 0.9),
    }


def gpus(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Several workers on one GPU beside one process on it."""
    count, workers = options.images or 1024, options.workers or round(1 / options.share)
    torch.manual_seed(0)
    model = timm.create_model(options.model, num_classes=1000).eval().cuda()
    images = torch.randn(count, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    asked: dict[str, Any] = {
        "methods": ["rollout", "gradient"],
        "metrics": "saco,aopc,log_odds,comprehensiveness".split(","),
        "pictures": 0,
    }
    prepared = fs.prepare(model, images, **asked, out=folder / "local")
    with Watch() as alone:
        expected = prepared.run()
    passes = expected.manifest.cost.response_passes
    print(f"one process: {alone.wall:.1f} s, {passes / alone.wall:,.0f} passes/s", flush=True)
    chosen = expected.manifest.plan.request
    asked |= {"batch_size": chosen.batch_size, "precision": chosen.precision}
    far: dict[str, Any] = {"on": "ray", "workers": workers, "gpus_per_worker": options.share}
    fs.evaluate(model, images[: 64 * workers], **asked, **far)  # to start the workers
    prepared = fs.prepare(model, images, **asked, out=folder / "ray", **far)
    with OnRay(prepared.crew) as many:
        result = prepared.run()
    check(expected, result, ("scores", "responses", "maps", "samples"))
    rate = passes / many.watch.wall
    print(f"{workers} workers: {many.watch.wall:.1f} s, {rate:,.0f} passes/s", flush=True)
    return {
        "model": options.model,
        "images": count,
        "passes": passes,
        "workers": workers,
        "gpus_per_worker": options.share,
        "passes_per_second_local": round(passes / alone.wall),
        "passes_per_second_ray": round(rate),
        "hosts": list(result.manifest.machine.hosts),
    }


def tasks(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds of 64 images by all methods and metrics, one draw of each random attribution."""
    found = {}
    for name in ("vit_base_patch16_224", "vit_large_patch16_224"):
        torch.manual_seed(0)
        model = fs.wrap(
            timm.create_model(name, num_classes=1000).eval().cuda(),
            mean=(0.5,) * 3,
            std=(0.5,) * 3,
            name=name,
        )
        images = torch.randn(128, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        labels = torch.zeros(128, dtype=torch.int64)
        fs.evaluate(model, images[:8], "all", labels=labels[:8], random_draws=1)  # to warm up
        result = fs.evaluate(model, images, "all", labels=labels, random_draws=1)
        last = result.get_table("tasks").to_pylist()[-1]
        found[name] = {part: round(last[part], 2) for part in ("seconds", "explaining")}
        print(name, found[name], flush=True)
    return found


def rows(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What the driver does with a task of all methods: to take its rows, and to write them."""
    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=8, patch_size=2, embed_dim=64, depth=1, num_heads=2, num_classes=10
    )
    images, spent = torch.randn(256, 3, 8, 8), []
    keep = Scheduler.keep

    def timed(self: Scheduler, task: Any, outcome: Any) -> Any:
        started = time.thread_time()
        pickle.loads(pickle.dumps(outcome.tables, 5))
        kept = keep(self, task, outcome)
        spent.append(time.thread_time() - started)
        return kept

    Scheduler.keep = timed  # type: ignore[method-assign]
    labels = torch.zeros(256, dtype=torch.int64)
    fs.evaluate(model, images, "all", labels=labels, random_draws=1, pictures=0, out=folder / "run")
    each = sum(spent) / len(spent)
    kib = size(folder / "run") / 1024 / len(spent)
    return {"driver_ms_per_task": round(1e3 * each, 1), "table_kib_per_task": round(kib)}


MEASURED = {
    "bAbI-1": (45, 505 / 440),
    "bAbI-2": (64, 1773 / 141),
    "SST": (64, 361 / 440),
    "IMDB": (40, 1015 / 54),
    "SST, MiniLM-L6": (1, 4122 / 114),
}
"""Models in a pack, and seconds of a training, as in docs/reproduction_text.md."""


def waves(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Hours of complete tables, level by level, with each level spread over the GPUs."""
    found = {}
    for name, (pack, seconds) in MEASURED.items():
        names = ["gradient", "input_x_gradient", "integrated_gradients"]
        names += [] if pack == 1 else ["attention"]  # which encoders do not give
        measures = {**dict.fromkeys(names, True), "random": False}
        levels, both = tuple(range(0, 110, 10)), ("roar", "recursive")
        packs = jobs_of(measures, tuple(range(5)), levels, both, "relative").packs(pack)
        hours = {gpus: level_by_level(packs, seconds, gpus) / 3600 for gpus in (1, 8, 64, 512)}
        found[name] = {
            "trainings": sum(len(held.jobs) for held in packs),
            "packs": len(packs),
            "seconds": round(seconds, 2),
            "hours": {gpus: round(value, 2) for gpus, value in hours.items()},
        }
        print(name, found[name], flush=True)
    return found


def level_by_level(packs: Any, seconds: float, gpus: int) -> float:
    """Seconds if every level waits for the one before it, its packs on the emptiest GPU each."""
    total = 0.0
    for wave in sorted({pack.wave for pack in packs}):
        loads = [0.0] * gpus
        for pack in sorted((p for p in packs if p.wave == wave), key=lambda p: -len(p.jobs)):
            loads[loads.index(min(loads))] += len(pack.jobs) * seconds
        total += max(loads)
    return total


def size(folder: Path) -> int:
    """Bytes of the tables of a run."""
    return sum(file.stat().st_size for file in folder.glob("*.parquet"))


def check(expected: fs.Result, found: fs.Result, tables: tuple[str, ...]) -> None:
    """Both must hold the same bits; only what took time may differ."""
    for name in tables:
        one, other = (timeless(result.get_table(name)) for result in (expected, found))
        if one != other:
            raise SystemExit(f"{name}: the tables differ")
    print(f"equal bit by bit: {', '.join(tables)}", flush=True)


def timeless(table: pa.Table) -> list[bytes]:
    """The bytes of the columns of a table but for seconds; a NaN is equal to itself."""
    names = [name for name in table.column_names if name != "seconds"]
    columns = (table[name].combine_chunks() for name in names)
    return [
        buffer.to_pybytes()
        for column in columns
        for buffer in (
            column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        ).buffers()
        if buffer is not None
    ]


@dataclass
class Watch:
    """CPU time, wall time and memory of this process."""

    cpu: float = 0.0
    wall: float = 0.0
    memory: list[float] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._started, self._cpu = time.perf_counter(), time.process_time()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.2):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.memory.append(pages * resource.getpagesize() / 2**20)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.wall = time.perf_counter() - self._started
        self.cpu = time.process_time() - self._cpu

    def memory_at(self, *shares: float) -> list[int]:
        """MiB after these shares of the time."""
        return [round(self.memory[int(share * (len(self.memory) - 1))]) for share in shares]


@dataclass
class OnRay:
    """The driver, watched, and the CPU time of workers that were started before."""

    crew: Any
    watch: Watch = field(default_factory=Watch)
    workers: float = 0.0

    def __enter__(self) -> OnRay:
        self._actors = [*self.crew.actors, *on_ray._IDLE.get(self.crew.kind, ())]
        self._before = self._times()
        self.watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.__exit__()
        self.workers = self._times() - self._before

    def _times(self) -> float:
        """CPU seconds of all workers."""
        calls = [a.__ray_call__.remote(lambda _: time.process_time()) for a in self._actors]
        return float(sum(ray.get(calls)))


JOBS = {
    "load": load,
    "graph": graph,
    "gpus": gpus,
    "tasks": tasks,
    "rows": rows,
    "waves": waves,
}

if __name__ == "__main__":
    main()
