"""A Ray cluster of several nodes on this machine, and what befalls runs on it.

Workers are other processes: what is given to a run is sent to them, and what is defined here they
import. Nothing in this module is imported by pytest alone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import faithscope as fs
from bags import BagLearner, BagTraining, _content, bag_texts
from faithscope.data.text import TokenData
from faithscope.runs import store

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TABLES = ("scores", "responses", "maps", "samples", "trainings", "sparsity", "examples")
NODES, CPUS = 2, 2


# Clusters


def free_port() -> int:
    """A port that nobody listens to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


class Machines:
    """A head without CPUs and two nodes with two each, to which this process is connected."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        ray._private.utils.set_sigterm_handler = lambda _: None  # a node would take pytest's
        head = {"num_cpus": 0, "dashboard_port": free_port()}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add() for _ in range(NODES)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=CPUS)

    def replace(self, place: int) -> None:
        """Take a node away as if its plug was pulled, and bring another.

        Its processes end with the thread that started them.
        """
        self.cluster.remove_node(self.nodes[place], allow_graceful=False)
        self.nodes[place] = self.add()

    def shutdown(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()

    def on(self, workers: int | None = 2, **options: Any) -> dict[str, Any]:
        """The options of a run on these machines."""
        return {"on": "ray", "address": self.address, "workers": workers, **options}

    def free(self) -> None:
        """Let other processes have what the idle workers of this one hold."""
        from faithscope.runs import ray

        ray._RELEASED[0] = 0.0
        ray._dismiss_idle()

    def workers(self) -> list[int]:
        """The processes of the workers that are alive."""
        from ray.util.state import list_actors

        held = list_actors(self.address, filters=[("state", "=", "ALIVE")])
        return [actor.pid for actor in held if actor.class_name == "RayWorker"]


# Runs


def images(count: int = 150, seed: int = 0) -> Tensor:
    """Images of 4×4 pixels: three tasks, of which the last is small."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 4, 4, generator=drawn, dtype=torch.float64)


def linear(seed: int = 0) -> nn.Module:
    """A softmax-linear model of them."""
    layer = nn.Linear(48, 4).double()
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=drawn)
    return nn.Sequential(nn.Flatten(), layer).eval()


def evaluate(out: Path | None = None, **options: Any) -> fs.Result:
    """Evaluate it by one method and one metric."""
    asked = {"methods": "gradient", "metrics": "saco", "k": 4, "random_draws": 1, **options}
    model, data = asked.pop("model", None), asked.pop("data", None)
    return fs.evaluate(
        linear() if model is None else model,
        images() if data is None else data,
        batch_size=asked.pop("batch_size", 64),
        out=out,
        **asked,
    )


def retrain(out: Path | None = None, learner: Any = None, **options: Any) -> fs.Result:
    """Retrain bags of words: a graph of 13 tasks or so."""
    asked = {"measures": "gradient", "seeds": 2, "levels": [30, 60], "keep_every": 0, **options}
    data = asked.pop("data", None) or bag_texts(40, 16)
    return fs.roar(data, learner or BagLearner(pack_size=2), out=out, **asked)


def assert_same_tables(one: fs.Result, other: fs.Result) -> None:
    """Bit by bit, but for the time it took; NaN is equal to NaN."""
    for name in TABLES:
        left, right = (
            result.get_table(name).select(
                [held for held in result.get_table(name).column_names if held != "seconds"]
            )
            for result in (one, other)
        )
        assert left.schema == right.schema
        assert repr(left.to_pylist()) == repr(right.to_pylist()), name
    assert one.manifest.data == other.manifest.data
    assert one.manifest.plan.content() == other.manifest.plan.content()


# What befalls them


@contextmanager
def meanwhile(work: Callable[[], Any]) -> Iterator[None]:
    """Do something in a thread; what goes wrong there is raised in the end."""
    wrong: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if wrong:
        raise wrong[0]


def wait_for(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What a function gives, once it gives something."""
    until = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.02)
    return value


def is_first(file: Path) -> bool:
    """Whether nobody was here before, in any process."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass(eq=False)
class FatedLearner(BagLearner):
    """Says which process begins a training, and lets something befall it."""

    folder: Path = Path()
    fate: Callable[[FatedLearner], None] = lambda _: None
    name_of_work: str = ""

    def begin(self, data: Sequence[TokenData], seeds: Sequence[int]) -> BagTraining:
        (self.folder / f"{os.getpid()}.pid").touch()
        self.name_of_work = hashlib.sha256(_content(data[0]) + bytes(seeds)).hexdigest()
        self.fate(self)
        return super().begin(data, seeds)

    @property
    def pids(self) -> list[int]:
        """The processes that have begun something, in this order."""
        files = sorted(self.folder.glob("*.pid"), key=lambda file: file.stat().st_mtime_ns)
        return [int(file.stem) for file in files]


def is_cursed(learner: FatedLearner) -> bool:
    """The first training that begins is cursed, as long as there is a file that says so."""
    if not (learner.folder / "curse").exists():
        return False
    try:
        with (learner.folder / "cursed").open("x") as file:
            file.write(learner.name_of_work)
    except FileExistsError:
        return (learner.folder / "cursed").read_text() == learner.name_of_work
    return True


def raises(learner: FatedLearner) -> None:
    """What is cursed fails."""
    if is_cursed(learner):
        (learner.folder / f"{time.monotonic_ns()}.try").touch()
        raise ValueError("this is cursed")


def kills(learner: FatedLearner) -> None:
    """What is cursed is the end of its process."""
    if is_cursed(learner):
        (learner.folder / f"{time.monotonic_ns()}.try").touch()
        os._exit(1)


def leaves(learner: FatedLearner) -> None:
    """The first one calls sys.exit()."""
    if is_first(learner.folder / "left"):
        sys.exit("enough")


def disk_is_full(learner: FatedLearner) -> None:
    """Where this runs nothing can be written, as long as there is a file that says so."""
    real = store.replace_file

    def write(path: Path, content: bytes) -> None:
        if (learner.folder / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, content)

    if real.__name__ != "write":
        store.replace_file = write


def disk_is_flaky(learner: FatedLearner) -> None:
    """Where this runs every ninth reading and every eleventh writing fails."""
    if store.read_checked.__name__ != "fail":
        store.read_checked = _failing(store.read_checked, 9)
        store.replace_file = _failing(store.replace_file, 11)


def _failing(real: Callable[..., Any], every: int) -> Callable[..., Any]:
    calls = [0]

    def fail(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] % every == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))
        return real(*args)

    return fail


class Greedy(nn.Module):
    """A model for whose larger batches there is no memory, but in the driver's process."""

    def __init__(self, most: int, driver: int) -> None:
        super().__init__()
        self.inner, self.most, self.driver = linear(), most, driver

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most and os.getpid() != self.driver:
            raise torch.OutOfMemoryError("CUDA out of memory, or so")
        return self.inner(x)


# Commands


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "faithscope", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(HERE), *sys.path])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def start(*arguments: object, code: str = "", **more: str) -> subprocess.Popen[str]:
    """A command of faithscope in a process of its own; `code` runs before it."""
    asked = command(*arguments)
    if code:
        asked = [sys.executable, "-c", f"{code}; from faithscope.cli import main; main()"]
        asked += list(map(str, arguments))
    return subprocess.Popen(
        asked,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        cwd=ROOT,
    )


def ended(process: subprocess.Popen[str], code: int = 0, seconds: float = 60) -> tuple[str, str]:
    """What it said; it must end so."""
    try:
        said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == code, said
    return said


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def register_deadly() -> None:
    """A method of which a worker dies, for the last images, as long as a file is there."""

    @fs.register_method("deadly", granularity="pixel")
    def deadly(evidence: Any, *, file: str = "") -> Tensor:
        """Kills."""
        if os.path.exists(file) and len(evidence.images) == 11:
            os._exit(1)
        return evidence.images.abs().sum(1)
