"""Training steps as CUDA graphs: what was launched kernel by kernel is launched in one stroke.

The kernels of a small model are shorter than their launch, so a GPU waits for Python. A graph
holds the kernels of one step for one shape of the batch, with the addresses they read and write:
weights, moments and inputs must stay where they are, and random numbers come from a state that the
graph moves on. The steps of several models, each on a stream of its own, then run beside each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from faithscope.errors import said, warn
from faithscope.models.memory import is_out_of_memory

Step = Callable[..., Tensor]
"""Tensors of a batch -> its loss, having changed what is trained."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A step of one shape: where it reads its batch, and where it leaves the loss."""

    graph: torch.cuda.CUDAGraph
    batch: tuple[Tensor, ...]
    loss: Tensor


@dataclass(eq=False)
class Lane:
    """One model's place on a device: a stream, a random state, and the steps that are recorded.

    On a CPU a step is simply taken.
    """

    device: torch.device
    step: Step
    recorded: dict[tuple[torch.Size, ...], Recorded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = self._generator.clone_state()
        self.is_fast = self.records = self.device.type == "cuda"
        if self.is_fast:
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    @property
    def _generator(self) -> torch.Generator:
        """What dropout draws from."""
        if self.device.type != "cuda":
            return torch.default_generator
        index = self.device.index
        return torch.cuda.default_generators[
            torch.cuda.current_device() if index is None else index
        ]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is launched inside is on this lane's stream and draws from its random state."""
        generator = self._generator
        if not self.is_fast:
            outside = generator.get_state()
            generator.set_state(self._random.get_state())
            try:
                yield
            finally:
                self._random.set_state(generator.get_state())
                generator.set_state(outside)
            return
        state = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self._random)
        try:
            # the gradients of fused attention are not the same every time
            with torch.cuda.stream(self.stream), sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            generator.graphsafe_set_state(state)

    def begin(self) -> None:
        """From here on this lane works, on what everybody did so far."""
        if self.is_fast:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def end(self) -> None:
        """From here on everybody sees what this lane did."""
        if self.is_fast:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def seed(self, key: int) -> None:
        """Let dropout draw from this key."""
        self._random.manual_seed(key)

    def take(self, *batch: Tensor) -> Tensor:
        """Take a step on a batch that is on the device; gives the loss."""
        key = tuple(part.shape for part in batch)
        if self.records and key not in self.recorded:
            try:
                self.recorded[key] = self._record(batch)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self.records = False
                self.recorded.clear()
                warn(f"Models are trained kernel by kernel, slower: no CUDA graph ({said(error)}).")
        if not self.records:
            return self.step(*batch)
        held = self.recorded[key]
        for place, part in zip(held.batch, batch, strict=True):
            place.copy_(part)
        held.graph.replay()
        return held.loss.clone()

    def _record(self, batch: tuple[Tensor, ...]) -> Recorded:
        """Record a step; nothing is computed yet."""
        places = tuple(torch.empty_like(part) for part in batch)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            loss = self.step(*places)
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        return Recorded(graph, places, loss)
