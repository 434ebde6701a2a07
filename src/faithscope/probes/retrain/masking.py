"""What the jobs of a pack mask: explain their parents, and rank the tokens."""

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
from faithscope.data.text import SPLITS, TokenData
from faithscope.errors import FaithscopeError, shown
from faithscope.methods import Method
from faithscope.methods.text import TokenEvidence
from faithscope.methods.words import random_scores, word_information, word_scores
from faithscope.perturb.tokens import mask_tokens
from faithscope.probes.retrain.jobs import Job, Jobs, Pack
from faithscope.probes.retrain.learner import Learner, Weights

CACHE_BYTES = 1 << 30
"""Scores of the models of the intact texts that are held in memory: all levels of ROAR use them."""

Masks = Mapping[str, Tensor]
"""The masked positions of one job: bool [N, T] by split."""
Scores = Mapping[str, Tensor]
"""Scores [N, T] by split."""
Model = tuple[Weights, Masks]
"""A trained model, and what was masked of its texts."""


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

    data: TokenData
    learner: Learner
    measures: Mapping[str, Method]
    pack_size: int
    cache: OrderedDict[tuple[str, tuple[int, ...]], dict[int, Scores]] = field(
        default_factory=OrderedDict
    )
    """Scores of the models of the intact texts, by measure, group and seed; the latest used are
    last."""

    def mask(
        self, jobs: Jobs, pack: Pack, model: Callable[[Job], Model], tell: Callable[[str], None]
    ) -> list[Explained]:
        """The masks of every job of a pack; `model` gives what came out of a finished job."""
        found = []
        for alike in _alike(pack):
            label = alike[0].measure
            item = None if label is None else self.measures[label]
            if item is not None and item.reads_model:
                tell(f"explaining {item.label}")
            with timed() as taken:
                parents, scores = self._evidence(jobs, item, alike, model)
            masked = [
                Masked(job, self._mask(job, data, held), held)
                for job, data, held in zip(alike, parents, scores, strict=True)
            ]
            found.append(Explained(label, masked, taken()))
        return found

    def _evidence(
        self,
        all_jobs: Jobs,
        item: Method | None,
        jobs: Sequence[Job],
        model: Callable[[Job], Model],
    ) -> tuple[list[TokenData], Sequence[Scores | None]]:
        """For each job the texts to mask further, and the scores of their tokens."""
        intact = [self.data] * len(jobs)
        if item is None:
            return intact, [None] * len(jobs)
        if not item.reads_model:
            return intact, [self._model_free(item, job.seed) for job in jobs]
        parents = [job.parent for job in jobs if job.parent is not None]
        if parents[0].k == 0:
            scores = self._of_bases(all_jobs, item, model)
            return intact, [scores[job.seed] for job in jobs]
        models = [model(parent) for parent in parents]
        data = [masked_data(self.data, positions) for _, positions in models]
        weights = [held for held, _ in models]
        return data, self.explain(item, weights, data, [parent.seed for parent in parents])

    def _of_bases(
        self, jobs: Jobs, item: Method, model: Callable[[Job], Model]
    ) -> dict[int, Scores]:
        """The scores that the models of the intact texts give, for all seeds planned together."""
        key = item.label, jobs.seeds
        if key not in self.cache:
            found: dict[int, Scores] = {}
            for start in range(0, len(jobs.bases), self.pack_size):
                some = jobs.bases[start : start + self.pack_size]
                weights, seeds = [model(base)[0] for base in some], [base.seed for base in some]
                scores = self.explain(item, weights, [self.data] * len(some), seeds)
                found |= dict(zip(seeds, scores, strict=True))
            self.cache[key] = found
        self.cache.move_to_end(key)
        found = self.cache[key]
        while len(self.cache) > 1 and _bytes(self.cache) > CACHE_BYTES:
            self.cache.popitem(last=False)
        return found

    def explain(
        self,
        item: Method,
        models: Sequence[Weights],
        data: Sequence[TokenData],
        seeds: Sequence[int],
    ) -> list[Scores]:
        """The scores of all splits of each model's data."""
        found: list[dict[str, Tensor]] = [{} for _ in models]
        for name, _ in self.data.splits:
            tokens = [getattr(one, name) for one in data]
            scores = self.learner.explain(models, tokens, item, seeds)
            if not isinstance(scores, Sequence) or len(scores) != len(models):
                raise FaithscopeError(
                    f"{item.label} must give a list of scores for {len(models)} models, the "
                    f"learner '{self.learner.name}' gave {shown(scores)}."
                )
            for held, own in zip(found, scores, strict=True):
                held[name] = self._checked(item, own)
        return list(found)

    def _checked(self, item: Method, scores: Any) -> Tensor:
        """Scores as floating-point numbers, whatever a measure or learner of one's own gives."""
        made = as_tensor(scores, f"What {item.label} gives").detach().cpu()
        return made if made.is_floating_point() else made.to(torch.float64)

    def _model_free(self, item: Method, seed: int) -> Scores:
        splits = dict(self.data.splits)
        uniform = random_scores(list(splits.values()), seed) if item.is_random else [None] * 3
        scores = {}
        for (name, tokens), drawn in zip(splits.items(), uniform, strict=True):
            known = word_scores(tokens.ids, self._information) if item.needs else None
            evidence = TokenEvidence(word_scores=known, uniform=drawn)
            scores[name] = self._checked(item, item(evidence))
        return scores

    @cached_property
    def _information(self) -> Tensor:
        """What the words of the intact training texts tell of the class: [V]."""
        data, train = self.data, self.data.train
        inside = torch.arange(train.ids.shape[1]) < train.lengths[:, None]
        special = set(train.ids[inside & ~train.eligible].tolist())
        return word_information(train, len(data.words), len(data.classes), {data.pad_id, *special})

    def _mask(self, job: Job, data: TokenData, scores: Scores | None) -> Masks:
        masks = {}
        for name, tokens in data.splits:
            if scores is None:  # everything, or nothing
                ids = tokens.ids.masked_fill(tokens.eligible & (job.k > 0), data.mask_id)
            else:
                _check_scores(job, tokens.eligible, scores[name])
                ids = mask_tokens(
                    tokens.ids,
                    tokens.eligible,
                    scores[name],
                    job.k,
                    strategy=job.strategy,
                    mask_id=data.mask_id,
                )
            masks[name] = tokens.eligible & (ids == data.mask_id)
        return masks


def _alike(pack: Pack) -> list[list[Job]]:
    """The jobs of a pack that are explained together."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in pack.jobs:
        chained = job.parent is not None and job.parent.k > 0
        groups.setdefault((job.measure, chained), []).append(job)
    return list(groups.values())


def _check_scores(job: Job, eligible: Tensor, scores: Tensor) -> None:
    """Refuse scores that cannot be ranked, naming the training they come from."""
    if scores.shape != eligible.shape:
        raise FaithscopeError(
            f"{job.measure} must give one score for each token, {list(eligible.shape)}, and gave "
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


def masked_data(data: TokenData, masks: Masks) -> TokenData:
    """The data with the tokens at these positions replaced by the mask token."""
    ids = {name: part.ids.masked_fill(masks[name], data.mask_id) for name, part in data.splits}
    return data.with_ids(ids)


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


def packed_model(weights: Weights | None, masks: Masks) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What a training leaves behind: what it masked and, if they are needed, its weights."""
    tensors, about = packed_masks({"masked": masks})
    if weights is not None:
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
        raise ValueError("it is of other texts")
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
