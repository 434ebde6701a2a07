"""What the jobs of a pack mask: explain their parents, and rank the units (tokens, pixels)."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithscope.data.tensors import as_tensor
from faithscope.data.text import SPLITS
from faithscope.errors import FaithscopeError, shown
from faithscope.methods import Method
from faithscope.perturb import units_to_mask
from faithscope.probes.retrain.jobs import Job, Jobs, Pack
from faithscope.probes.retrain.learner import (
    Encoded,
    Learner,
    Masks,
    Scores,
    Weights,
    explained_together,
)
from faithscope.probes.retrain.modality import Modality

CACHE_BYTES = 1 << 30
"""Scores of the models of the intact data that are held in memory: all levels of ROAR use them."""

RANKED_TOGETHER = 1 << 24
"""Scores that are ranked in one go, on the learner's device."""
Model = tuple[Weights, Masks]
"""A trained model, and what was masked of its data."""
Tell = Callable[[str], None]
"""Told what is going on."""


@dataclass(frozen=True, eq=False)
class Masked:
    """What one job masks, and the scores that decided it (None where none did)."""

    job: Job
    masks: Masks
    scores: Scores | None


@dataclass(frozen=True, eq=False)
class Explained:
    """The jobs of a pack that a measure was asked for together, and the seconds that took."""

    measure: str | None
    jobs: Sequence[Masked]
    seconds: float


@dataclass(eq=False)
class Masker:
    """Decides what the jobs of a pack mask, explaining each model as rarely as can be."""

    modality: Modality
    data: Encoded
    learner: Learner
    measures: Mapping[str, Method]
    pack_size: int
    cache: OrderedDict[tuple[str, tuple[int, ...]], dict[int, Scores]] = field(
        default_factory=OrderedDict
    )
    """Scores of the models of the intact texts, by measure, group and seed; the latest used are
    last."""
    owed: dict[str, float] = field(default_factory=dict)
    """Seconds of measures that were explained beside another, which is spared them."""

    def mask(
        self, jobs: Jobs, pack: Pack, model: Callable[[Job], Model], tell: Tell
    ) -> list[Explained]:
        """The masks of every job of a pack; `model` gives what came out of a finished job."""
        found = []
        for alike in _alike(pack):
            label = alike[0].measure
            item = None if label is None else self.measures[label]
            with timed() as taken:
                parents, scores = self._evidence(jobs, item, alike, model, tell)
            masked = [
                Masked(job, self._mask(job, data, held), held)
                for job, data, held in zip(alike, parents, scores, strict=True)
            ]
            owed = 0.0 if label is None else self.owed.pop(label, 0.0)
            found.append(Explained(label, masked, taken() + owed))
        return found

    def _evidence(
        self,
        all_jobs: Jobs,
        item: Method | None,
        jobs: Sequence[Job],
        model: Callable[[Job], Model],
        tell: Tell,
    ) -> tuple[list[Encoded], Sequence[Scores | None]]:
        """For each job the data to mask further, and the scores of its units."""
        intact = [self.data] * len(jobs)
        if item is None:
            return intact, [None] * len(jobs)
        if not item.reads_model:
            return intact, [self._model_free(item, job.seed) for job in jobs]
        parents = [job.parent for job in jobs if job.parent is not None]
        if parents[0].k == 0:
            scores = self._of_bases(all_jobs, item, model, tell)
            return intact, [scores[job.seed] for job in jobs]
        models = [model(parent) for parent in parents]
        data = [self.data.masked(positions) for _, positions in models]
        weights = [held for held, _ in models]
        seeds = [parent.seed for parent in parents]
        return data, self.explain([item], weights, data, seeds, tell)[0]

    def _of_bases(
        self, jobs: Jobs, item: Method, model: Callable[[Job], Model], tell: Tell
    ) -> dict[int, Scores]:
        """The scores that the models of the intact data give, for all seeds planned together."""
        key = item.label, jobs.seeds
        if key not in self.cache:
            items = self._beside(item, len(jobs.bases))
            found: list[dict[int, Scores]] = [{} for _ in items]
            with timed() as taken:
                for start in range(0, len(jobs.bases), self.pack_size):
                    some = jobs.bases[start : start + self.pack_size]
                    weights, seeds = [model(base)[0] for base in some], [one.seed for one in some]
                    scores = self.explain(items, weights, [self.data] * len(some), seeds, tell)
                    for held, own in zip(found, scores, strict=True):
                        held |= dict(zip(seeds, own, strict=True))
            self.owed[item.label] = -taken()
            for one, held in zip(items, found, strict=True):
                self.cache[one.label, jobs.seeds] = held
                self.owed[one.label] = self.owed.get(one.label, 0.0) + taken() / len(items)
        self.cache.move_to_end(key)
        scored = self.cache[key]
        while len(self.cache) > 1 and _bytes(self.cache) > CACHE_BYTES:
            self.cache.popitem(last=False)
        return scored

    def _beside(self, item: Method, models: int) -> list[Method]:
        """The measures that are explained with one: those that read the same trace of a model.

        They do not depend on what is asked for first, so that a resumed run gives the same bits.
        """
        sharing = [
            one
            for one in self.measures.values()
            if one.reads_model and "path_gradient" not in one.needs
        ]
        units = sum(part.eligible.numel() for _, part in self.data.splits)
        fits = 4 * units * models * len(sharing) <= CACHE_BYTES
        return sharing if item in sharing and fits else [item]

    def explain(
        self,
        items: Sequence[Method],
        models: Sequence[Weights],
        data: Sequence[Encoded],
        seeds: Sequence[int],
        tell: Tell = lambda _: None,
    ) -> list[list[Scores]]:
        """By measure, the scores of all splits of each model's data."""
        found: list[list[dict[str, Tensor]]] = [[{} for _ in models] for _ in items]
        others = f" and {len(items) - 1} more" * (len(items) > 1)
        for name, _ in self.data.splits:
            for some in self._explained_at_once(len(models)):
                parts = [getattr(one, name) for one in data[some]]
                which = f", model {some.stop} of {len(models)}" * (len(parts) < len(models))
                tell(f"explaining {items[0].label}{others}: {name}{which}")
                made = explained_together(self.learner, models[some], parts, items, seeds[some])
                for item, held, scores in zip(items, found, made, strict=True):
                    if not isinstance(scores, Sequence) or len(scores) != len(parts):
                        raise FaithscopeError(
                            f"{item.label} must give a list of scores for {len(parts)} models, the "
                            f"learner '{self.learner.name}' gave {shown(scores)}."
                        )
                    for one, own in zip(held[some], scores, strict=True):
                        one[name] = self._checked(item, own)
        return [list(held) for held in found]

    def _explained_at_once(self, count: int) -> list[slice]:
        """All models, or one by one where the learner does so anyway: whoever waits is told."""
        size = 1 if getattr(self.learner, "explains_one_by_one", False) else max(1, count)
        return [slice(first, first + size) for first in range(0, count, size)]

    def _checked(self, item: Method, scores: Any) -> Tensor:
        """Scores as floating-point numbers, whatever a measure or learner of one's own gives."""
        made = as_tensor(scores, f"What {item.label} gives").detach().cpu()
        return made if made.is_floating_point() else made.to(torch.float64)

    def _model_free(self, item: Method, seed: int) -> Scores:
        scores = self.modality.model_free(self.learner, self.data, self._statistics, item, seed)
        return {name: self._checked(item, held) for name, held in scores.items()}

    @cached_property
    def _statistics(self) -> Any:
        """What measures without a model read of the training split."""
        return self.modality.statistics(self.data)

    def _mask(self, job: Job, data: Encoded, scores: Scores | None) -> Masks:
        masks = {}
        for name, part in data.splits:
            hidden = data.hidden(name)
            if scores is None and job.k > 0:
                masks[name] = part.eligible.contiguous()
            elif scores is None:  # nothing but what is masked already
                nothing = torch.zeros(part.eligible.shape, dtype=torch.bool)
                masks[name] = nothing if hidden is None else hidden
            else:
                _check_scores(job, part.eligible, scores[name], self.modality.unit)
                masks[name] = self._ranked(job, part.eligible, hidden, scores[name])
        return masks

    def _ranked(self, job: Job, eligible: Tensor, hidden: Tensor | None, scores: Tensor) -> Tensor:
        """What is masked of a split, a few samples at a time."""
        rows = max(1, RANKED_TOGETHER // max(1, eligible.shape[1]))
        found = torch.empty(eligible.shape, dtype=torch.bool)
        for start in range(0, len(found), rows):
            some = slice(start, start + rows)
            device = self.learner.device
            already = None if hidden is None else hidden[some].to(device)
            found[some] = units_to_mask(
                eligible[some].to(device),
                already,
                scores[some].to(device),
                job.k,
                strategy=job.strategy,
            ).cpu()
        return found


def _alike(pack: Pack) -> list[list[Job]]:
    """The jobs of a pack that are explained together."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in pack.jobs:
        chained = job.parent is not None and job.parent.k > 0
        groups.setdefault((job.measure, chained), []).append(job)
    return list(groups.values())


def _check_scores(job: Job, eligible: Tensor, scores: Tensor, unit: str) -> None:
    """Refuse scores that cannot be ranked, naming the training they come from."""
    if scores.shape != eligible.shape:
        raise FaithscopeError(
            f"{job.measure} must give one score for each {unit}, {list(eligible.shape)}, and gave "
            f"{list(scores.shape)}."
        )
    if not bool((eligible & ~scores.isfinite()).any()):
        return
    if job.parent is None:
        raise FaithscopeError(
            f"Scores of {job.measure} with seed {job.seed} are NaN or infinite: fix the measure."
        )
    raise FaithscopeError(
        f"Scores of {job.measure} are NaN or infinite for the model '{job.parent.id}' (level "
        f"{job.parent.k}, seed {job.parent.seed}), whose training has probably diverged: give a "
        "lower learning rate, and another folder."
    )


def _bytes(cache: Mapping[Any, Mapping[int, Scores]]) -> int:
    return sum(
        scores.numel() * scores.element_size()
        for by_seed in cache.values()
        for splits in by_seed.values()
        for scores in splits.values()
    )


# Masks and models as tensors of a file


def packed_masks(masks: Mapping[str, Masks]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The masks of several jobs as tensors of bits, and the shapes by which they are unpacked."""
    tensors = {
        f"{job}.{split}": _packed_bits(mask)
        for job, own in masks.items()
        for split, mask in own.items()
    }
    one = next(iter(masks.values()))
    shapes = {split: list(mask.shape) for split, mask in one.items()}
    return tensors, {"shapes": json.dumps(shapes)}


def unpacked_masks(
    tensors: Mapping[str, Tensor], about: Mapping[str, str], jobs: Sequence[str]
) -> dict[str, Masks]:
    """What `packed_masks` packed, by job."""
    shapes = json.loads(about["shapes"])
    return {
        job: {split: _unpacked(tensors[f"{job}.{split}"], shapes[split]) for split in SPLITS}
        for job in jobs
    }


def packed_model(
    weights: Weights | None, masks: Masks, card: str | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What a training leaves behind: what it masked and, if they are needed, its weights.

    `card` says how these are used by others (models/trained.py).
    """
    tensors, about = packed_masks({"masked": masks})
    if weights is not None:
        about |= {} if card is None else {"card": card}
        tensors |= {f"weights.{name}": held for name, held in weights.items()}
    return tensors, about


def unpacked_model(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> Model:
    """What `packed_model` packed."""
    start = "weights."
    weights = {
        name.removeprefix(start): held for name, held in tensors.items() if name.startswith(start)
    }
    return weights, unpacked_masks(tensors, about, ["masked"])["masked"]


def _packed_bits(mask: Tensor) -> Tensor:
    """Truth values, eight to a byte."""
    return torch.from_numpy(np.packbits(mask.numpy().reshape(-1)))


def _unpacked(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """What `_packed_bits` packed, in its shape.

    >>> _unpacked(_packed_bits(torch.tensor([[True, False, True]])), (1, 3))
    tensor([[ True, False,  True]])
    """
    rows, columns = shape
    if len(bits) != -(-rows * columns // 8):
        raise ValueError("it is of other data")
    values = np.unpackbits(bits.numpy(), count=rows * columns)
    return torch.from_numpy(values.astype(bool)).reshape(rows, columns)


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Seconds of a block: call what is given, after it."""
    started = time.perf_counter()
    stopped: list[float] = []
    try:
        yield lambda: (stopped or [time.perf_counter()])[0] - started
    finally:
        stopped.append(time.perf_counter())
