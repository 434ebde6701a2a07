"""Responding: pack perturbed inputs into batches, run them, keep what is needed of each answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.models.memory import halve, is_out_of_memory
from faithscope.perturb import Fill, unit_mask_to_pixels
from faithscope.probes.perturb.failures import FAILED, UNKNOWN, refuse_fatal, warn_of_moods
from faithscope.probes.perturb.precision import Forward

Advance = Callable[[int], None]


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
        moved = (part.to(device) for part in (self.sample, self.map, self.start, self.stop))
        return Rows(*moved)

    def __getitem__(self, part: slice) -> Rows:
        return Rows(self.sample[part], self.map[part], self.start[part], self.stop[part])


@dataclass(frozen=True, eq=False)
class Subject:
    """The images of a shard, ready to be perturbed, all on the model's device.

    Shapes: images [S, C, H, W] in the response dtype; field broadcastable to it; ranks int32
    [maps, n] with n units laid out as `shape`.
    """

    images: Tensor
    field: Tensor
    ranks: Tensor
    shape: tuple[int, int]


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
    passes: int = 0
    halvings: int = 0
    classes: int = 0
    failures: dict[int, Exception] = field(default_factory=dict)
    """By their number, the rows of the last call on which the model raised."""

    def intact(self, images: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run intact images; without a target, each one's own prediction is the target.

        Shapes: images [S, C, H, W], target [S] -> log-probability [S], predicted class [S].
        """
        rows = Rows.intact(len(images)).to(images.device)
        return self._run(rows, lambda part: images[part.sample], target, check=target is not None)

    def perturbed(self, subject: Subject, rows: Rows, target: Tensor) -> tuple[Tensor, Tensor]:
        """Run perturbed inputs. Shapes: R rows, target [S] -> log-probability [R], top-1 [R]."""
        size = (subject.images.shape[-2], subject.images.shape[-1])

        def make(part: Rows) -> Tensor:
            ranks = subject.ranks[part.map]
            mask = (ranks >= part.start[:, None]) & (ranks < part.stop[:, None])
            pixels = unit_mask_to_pixels(mask, subject.shape, size)
            return self.fill.apply(subject.images[part.sample], pixels, subject.field[part.sample])

        return self._run(rows.to(subject.images.device), make, target)

    def _run(
        self,
        rows: Rows,
        make: Callable[[Rows], Tensor],
        target: Tensor | None,
        check: bool = False,
    ) -> tuple[Tensor, Tensor]:
        kept: list[tuple[Tensor, Tensor]] = []
        done = 0
        self.failures = {}
        with self.forward.mode():
            while done < len(rows):
                size = balanced(len(rows) - done, self.batch_size)
                part = rows[done : done + size]
                try:
                    kept.append(self._answers(make(part), part, target, check))
                except Exception as error:
                    if is_out_of_memory(error):
                        self.batch_size = halve(size, error)
                        self.halvings += 1
                        continue
                    refuse_fatal(error)
                    before = len(self.failures)
                    kept += self._one_by_one(done, part, make, target, check)
                    if len(self.failures) == before:
                        warn_of_moods("model", error)
                done += size
                self.passes += size
                self.advance(size)
            log_p, top1 = (torch.cat(column) for column in zip(*kept, strict=True))
        return log_p.clone(), top1.clone()

    def _one_by_one(
        self,
        first: int,
        part: Rows,
        make: Callable[[Rows], Tensor],
        target: Tensor | None,
        check: bool,
    ) -> list[tuple[Tensor, Tensor]]:
        """The rows from the `first` on singly, to find those on which the model raises."""
        kept = []
        for place in range(len(part)):
            row = part[place : place + 1]
            try:
                kept.append(self._answers(make(row), row, target, check))
            except Exception as error:
                refuse_fatal(error)
                self.failures[first + place] = error
                kind = torch.promote_types(self.forward.dtype, torch.float32)
                nothing = torch.full((1,), torch.nan, dtype=kind, device=row.sample.device)
                kept.append((nothing, torch.full_like(row.sample, FAILED)))
        return kept

    def _answers(
        self, inputs: Tensor, part: Rows, target: Tensor | None, check: bool
    ) -> tuple[Tensor, Tensor]:
        log_p, top1 = self.forward.answer(inputs)
        self.classes = log_p.shape[1]
        best = log_p.gather(1, top1[:, None])[:, 0]  # NaN if any answer is, for argmax finds that
        known = top1.where(~best.isnan(), UNKNOWN)
        if target is None:
            return best, known
        chosen = target[part.sample]
        if check:
            check_classes(chosen, log_p.shape[1])
        return log_p.gather(1, chosen[:, None])[:, 0], known


def check_classes(chosen: Tensor, classes: int) -> None:
    """Refuse a target that is not a class of the model."""
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= classes:
        raise FaithscopeError(
            f"The class {low if low < 0 else high} is not a class of the model: its classes are "
            f"0 to {classes - 1}."
        )


def balanced(count: int, most: int) -> int:
    """The size of the next batch when `count` rows go into as few, equal batches as fit.

    >>> [balanced(287, 256), balanced(143, 256)]
    [144, 143]
    """
    return math.ceil(count / math.ceil(count / most))


def choose_batch_size(forward: Forward, images: Tensor, most: int = 512) -> int:
    """Choose a batch size once: by memory on a CUDA GPU, by input size elsewhere.

    On a CUDA GPU the activations of eight inputs are measured, and half of what is free is used.
    On a CPU a batch holds about four million input values, what its caches like; on an Apple GPU,
    too, which does not tell how much memory was used at most.

    Shapes: images [B, C, H, W] on the model's device.
    """
    if images.device.type != "cuda":
        return _power_of_two((1 << 22) // images[0].numel(), 8, 256)
    few = images[:1].to(forward.dtype).expand(8, -1, -1, -1)
    torch.cuda.reset_peak_memory_stats(images.device)
    before = torch.cuda.memory_allocated(images.device)
    with forward.mode():
        forward.logits(few)
    used = torch.cuda.max_memory_allocated(images.device) - before
    free, _ = torch.cuda.mem_get_info(images.device)
    return _power_of_two(int(free / 2 / max(1, used / 8)), 1, most)


def _power_of_two(wanted: int, least: int, most: int) -> int:
    return max(least, min(most, 1 << max(0, wanted.bit_length() - 1)))
