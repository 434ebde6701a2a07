"""Responding: pack perturbed inputs into batches, run them, keep what is needed of each answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.layout import Inputs
from faithscope.models.device import placed
from faithscope.models.dropping import Dropping
from faithscope.models.memory import halve, inputs_that_fit, is_out_of_memory, power_of_two
from faithscope.models.tokens import TokenInputs
from faithscope.perturb import Fill
from faithscope.probes.perturb.failures import FAILED, UNKNOWN, refuse_fatal, warn_of_moods
from faithscope.probes.perturb.precision import Forward

Advance = Callable[[int], None]
MOST_NUMBERS = 1 << 27
"""In a batch of many small inputs on a GPU: more of them are not faster."""
FEW_FILLED, MOST_FILLED = 32, 1.06
"""Batches of so few rows are not made smaller; how many times the rows asked for may be run."""
Ask = Callable[["Rows", int], tuple[Tensor, Tensor]]
"""Runs rows of which so many units each are removed: log-probabilities and predicted class."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The inputs to run: which sample, whose ranks, and which ranks are replaced. All int64 [R]."""

    sample: Tensor
    map: Tensor
    start: Tensor
    stop: Tensor

    @staticmethod
    def intact(count: int) -> Rows:
        """Every sample once, with nothing replaced."""
        nothing = torch.zeros(count, dtype=torch.int64)
        return Rows(torch.arange(count), nothing, nothing, nothing)

    @staticmethod
    def join(parts: list[Rows]) -> Rows:
        """Rows one after the other."""
        columns = ("sample", "map", "start", "stop")
        return Rows(*(torch.cat([getattr(part, column) for part in parts]) for column in columns))

    def __len__(self) -> int:
        return len(self.sample)

    def to(self, device: torch.device) -> Rows:
        """The same rows on another device."""
        columns = torch.stack([self.sample, self.map, self.start, self.stop])
        return Rows(*placed(columns, device))

    def __getitem__(self, part: slice | Tensor) -> Rows:
        return Rows(self.sample[part], self.map[part], self.start[part], self.stop[part])


@dataclass(frozen=True)
class Equal:
    """A run of rows, from `start` to `stop`, of which equally many units are removed."""

    start: int
    stop: int
    removed: int


@dataclass(frozen=True, eq=False)
class Subject:
    """The images or texts of a shard, ready to be perturbed, all on the model's device.

    Shapes: images [S, C, H, W] in the response dtype; field broadcastable to it; ranks int32
    [maps, n] with n units laid out as `shape`.
    """

    images: Inputs
    field: Tensor
    ranks: Tensor
    shape: tuple[int, int]

    def removed(self, rows: Rows) -> Tensor:
        """Which units each row lacks, bool [R, n]."""
        ranks = self.ranks[rows.map]
        return (ranks >= rows.start[:, None]) & (ranks < rows.stop[:, None])

    def lengths(self, rows: Rows) -> Tensor:
        """By how much each row gets shorter if its units leave: patches, or tokens; int64 [R]."""
        if not isinstance(self.images, TokenInputs):
            return rows.stop - rows.start
        own = rows.to(self.images.device)
        tokens = self.images.by_unit(torch.ones_like(self.images.ids))
        return (self.removed(own) * tokens[own.sample]).sum(1).cpu()


@dataclass(eq=False)
class Responder:
    """Runs rows through the model; remembers the batch size that fits in memory.

    A row on which the model raises has NaN and the class `FAILED`; one that it answers with NaN
    has NaN and the class `UNKNOWN`.
    """

    forward: Forward
    fill: Fill
    batch_size: int
    advance: Advance = lambda _: None
    dropping: Dropping | None = None
    """How units leave the model's input, for a fill that drops them."""
    passes: int = 0
    halvings: int = 0
    classes: int = 0
    failures: dict[int, Exception] = field(default_factory=dict)
    """By their number, the rows of the last call on which the model raised."""

    def intact(self, images: Inputs, target: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run intact images; without a target, each one's own prediction is the target.

        Shapes: images [S, C, H, W], target [S], on the CPU -> log-probability [S], predicted class
        [S].
        """
        rows = Rows.intact(len(images)).to(images.device)
        there = None if target is None else placed(target, images.device)

        def ask(part: Rows, _: int) -> tuple[Tensor, Tensor]:
            return self.forward.answer(images[part.sample], self.batch_size)

        runs = [Equal(0, len(rows), 0)]
        log_p, top1 = self._run(rows, runs, ask, there, check=target)
        return log_p.clone(), top1.clone()

    def perturbed(self, subject: Subject, rows: Rows, target: Tensor) -> tuple[Tensor, Tensor]:
        """Run perturbed inputs. Shapes: R rows, target [S] -> log-probability [R], top-1 [R]."""
        units = subject.ranks.shape[1]

        def ask(part: Rows, removed: int) -> tuple[Tensor, Tensor]:
            mask = subject.removed(part)
            inputs: Any = subject.images[part.sample]
            dropping = self.dropping
            if dropping is None or (removed == units and not dropping.alone):
                field = subject.field[part.sample]
                replaced = self.fill.replaced(inputs, mask, field, subject.shape)
                return self.forward.answer(replaced, self.batch_size)
            kept = mask.to(torch.uint8).argsort(dim=1, stable=True)[:, : units - removed]
            with dropping.keep(self.forward.module, kept, units):
                return self.forward.answer(inputs)

        device = subject.images.device
        if not self.fill.drops:
            runs = [Equal(0, len(rows), 0)]
            log_p, top1 = self._run(rows.to(device), runs, ask, target)
            return log_p.clone(), top1.clone()
        order, runs = equal_runs(subject.lengths(rows))
        log_p, top1 = self._run(rows[order].to(device), runs, ask, target)
        self.failures = {int(order[row]): error for row, error in self.failures.items()}
        back = placed(order.argsort(), device)
        return log_p[back], top1[back]

    def _run(
        self,
        rows: Rows,
        runs: Sequence[Equal],
        ask: Ask,
        target: Tensor | None,
        check: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run rows in their order, in batches that hold nothing but rows of one run each.

        `check` are classes, on the CPU, that must be some of the model's.
        """
        kept: list[tuple[Tensor, Tensor]] = []
        self.failures = {}
        with self.forward.mode():
            for run in runs:
                done = run.start
                while done < run.stop:
                    left, full = run.stop - done, self.batch_size
                    if self.forward.program is None:
                        full = balanced(left, full)
                    size = min(left, full)
                    part = rows[done : done + size]
                    try:
                        kept.append(self._answers(part, run, ask, target, check))
                    except Exception as error:
                        if is_out_of_memory(error):
                            self.batch_size = halve(full, error)
                            self.halvings += 1
                            continue
                        refuse_fatal(error)
                        before = len(self.failures)
                        kept += self._one_by_one(done, part, run, ask, target, check)
                        if len(self.failures) == before:
                            warn_of_moods("model", error)
                    done += size
                    self.passes += size
                    self.advance(size)
            log_p, top1 = (torch.cat(column) for column in zip(*kept, strict=True))
        return log_p, top1

    def _one_by_one(
        self,
        first: int,
        part: Rows,
        run: Equal,
        ask: Ask,
        target: Tensor | None,
        check: Tensor | None,
    ) -> list[tuple[Tensor, Tensor]]:
        """The rows from the `first` on singly, to find those on which the model raises."""
        kept = []
        for place in range(len(part)):
            row = part[place : place + 1]
            try:
                kept.append(self._answers(row, run, ask, target, check))
            except Exception as error:
                refuse_fatal(error)
                self.failures[first + place] = error
                kind = torch.promote_types(self.forward.dtype, torch.float32)
                nothing = torch.full((1,), torch.nan, dtype=kind, device=row.sample.device)
                kept.append((nothing, torch.full_like(row.sample, FAILED)))
        return kept

    def _answers(
        self, part: Rows, run: Equal, ask: Ask, target: Tensor | None, check: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        log_p, top1 = ask(part, run.removed)
        self.classes = log_p.shape[1]
        best = log_p.gather(1, top1[:, None])[:, 0]  # NaN if any answer is, for argmax finds that
        known = top1.where(~best.isnan(), UNKNOWN)
        if target is None:
            return best, known
        chosen = target[part.sample]
        if check is not None:
            check_classes(check, log_p.shape[1])
        return log_p.gather(1, chosen[:, None])[:, 0], known


def check_classes(chosen: Tensor, classes: int) -> None:
    """Refuse a target that is not a class of the model."""
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= classes:
        raise FaithscopeError(
            f"The class {low if low < 0 else high} is not a class of the model: its classes are "
            f"0 to {classes - 1}."
        )


def equal_runs(removed: Tensor) -> tuple[Tensor, list[Equal]]:
    """The order in which rows of equal length lie together, the longest first, and their runs.

    Shapes: removed int64 [R], how many units leave each row -> order int64 [R].

    >>> order, runs = equal_runs(torch.tensor([4, 1, 4]))
    >>> order.tolist(), [(run.start, run.stop, run.removed) for run in runs]
    ([1, 0, 2], [(0, 1, 1), (1, 3, 4)])
    """
    order = removed.argsort(stable=True)
    counts, sizes = torch.unique_consecutive(removed[order], return_counts=True)
    stops = sizes.cumsum(0)
    each = zip((stops - sizes).tolist(), stops.tolist(), counts.tolist(), strict=True)
    return order, [Equal(*run) for run in each]


def balanced(count: int, most: int) -> int:
    """The size of the next batch when `count` rows go into as few, equal batches as fit.

    >>> [balanced(287, 256), balanced(143, 256)]
    [144, 143]
    """
    return math.ceil(count / math.ceil(count / most))


def economical(size: int, intact: int, perturbed: int) -> int:
    """A batch size for batches that are all filled up, as those of a compiled model are.

    It is halved until filling up adds little to the `intact` and `perturbed` rows of a shard.

    >>> [economical(512, 64, 64 * (1 + 26 * maps)) for maps in (1, 3, 11)]
    [64, 256, 512]
    """
    asked = intact + perturbed
    while size > FEW_FILLED:
        batches = math.ceil(intact / size) + math.ceil(perturbed / size)
        if batches * size <= MOST_FILLED * asked:
            break
        size //= 2
    return size


def choose_batch_size(forward: Forward, images: Inputs, numbers: int) -> int:
    """Choose a batch size once: by memory on a CUDA GPU, by input size elsewhere.

    On a CUDA GPU the activations of eight inputs are measured, and half of what is free is used.
    On a CPU the activations of a batch should stay in the caches of its threads: 130,000 values of
    images each, or a million of texts, which are embedded already, make about 2,000 tokens of a
    small Transformer. On an Apple GPU, which does not tell how much memory was used at most, a
    batch holds about four million values. `numbers` is how many one input has.

    Shapes: images [B, C, H, W] on the model's device.
    """
    if images.device.type == "cpu":
        cached = 1 << 20 if isinstance(images, TokenInputs) else 1 << 17
        return power_of_two(cached * torch.get_num_threads() // numbers, 8, 256)
    if images.device.type != "cuda":
        return power_of_two((1 << 22) // numbers, 8, 256)
    few = images.to(forward.dtype)[[0] * 8]
    with forward.mode():
        fitting = inputs_that_fit(images.device, lambda: forward.logits(few), len(few))
    most = max(512, power_of_two(MOST_NUMBERS // numbers, 1, 4096))
    return power_of_two(fitting, 1, most)
