"""What the jobs of a pack mask: explain the models they go on from, and rank their tokens."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from faithscope.data.text import TokenData
from faithscope.errors import FaithscopeError
from faithscope.methods.text import TokenEvidence, TokenMethod
from faithscope.methods.words import random_scores, word_information, word_scores
from faithscope.perturb.tokens import mask_tokens
from faithscope.probes.retrain.jobs import Job, Pack, reads_model
from faithscope.probes.retrain.sparsity import sparsity
from faithscope.probes.retrain.store import Inputs, Masks, RoarStore

if TYPE_CHECKING:
    from faithscope.probes.retrain.roar import Roar

EXAMPLES = 3
"""Test texts whose masks and scores are kept for people to look at."""
CACHE_BYTES = 1 << 30
"""Scores of the models of the intact texts that are held in memory: all levels of ROAR use them."""

Scores = Mapping[str, Tensor]
"""Scores [N, T] by split."""


@dataclass(eq=False)
class Masker:
    """Decides what the jobs of a pack mask, explaining each model as rarely as can be."""

    roar: Roar
    store: RoarStore
    cache: OrderedDict[str, dict[int, Scores]] = field(default_factory=OrderedDict)
    """Scores of the models of the intact texts, by measure and seed; the latest used are last."""

    def inputs(self, pack: Pack, tell: Callable[[str], None]) -> Inputs:
        """The masks of every job of a pack, and what is worth noting of them."""
        masks: dict[str, Masks] = {}
        notes: dict[str, dict[str, Any]] = {}
        for jobs in self._alike(pack):
            item = None if jobs[0].measure is None else self.roar.measures[jobs[0].measure]
            if item is not None and reads_model(item):
                tell(f"explaining {item.label}")
            with timed() as taken:
                parents, scores = self._evidence(item, jobs)
            for job, data, found in zip(jobs, parents, scores, strict=True):
                masks[job.id] = self._mask(job, data, found)
                notes[job.id] = {
                    "explaining": taken() / len(jobs),
                    **self._noted(job, found, masks[job.id]),
                }
        return Inputs(masks, notes)

    def _alike(self, pack: Pack) -> list[list[Job]]:
        """The jobs of a pack that are explained together."""
        groups: dict[tuple[Any, ...], list[Job]] = {}
        for job in pack.jobs:
            chained = job.parent is not None and job.parent.k > 0
            groups.setdefault((job.measure, chained), []).append(job)
        return list(groups.values())

    def _evidence(
        self, item: TokenMethod | None, jobs: Sequence[Job]
    ) -> tuple[list[TokenData], Sequence[Scores | None]]:
        """For each job the texts to go on masking, and the scores of their tokens."""
        intact = [self.roar.data] * len(jobs)
        if item is None:
            return intact, [None] * len(jobs)
        if not reads_model(item):
            return intact, [self._model_free(item, job.seed) for job in jobs]
        parents = [job.parent for job in jobs if job.parent is not None]
        if parents[0].k == 0:
            scores = self._of_bases(item)
            return intact, [scores[job.seed] for job in jobs]
        models = [self.store.model(parent) for parent in parents]
        data = [masked(self.roar.data, positions) for _, positions in models]
        weights = [held for held, _ in models]
        return data, self.roar.explain(item, weights, data, parents)

    def _of_bases(self, item: TokenMethod) -> dict[int, Scores]:
        """The scores that the models of the intact texts give, for all seeds."""
        label = item.label
        if label not in self.cache:
            found: dict[int, Scores] = {}
            bases, size = self.roar.jobs.bases, self.roar.pack_size
            for start in range(0, len(bases), size):
                some = bases[start : start + size]
                weights = [self.store.model(base)[0] for base in some]
                scores = self.roar.explain(item, weights, [self.roar.data] * len(some), some)
                found |= {base.seed: held for base, held in zip(some, scores, strict=True)}
            self.cache[label] = found
        self.cache.move_to_end(label)
        found = self.cache[label]
        while len(self.cache) > 1 and _bytes(self.cache) > CACHE_BYTES:
            self.cache.popitem(last=False)
        return found

    def _model_free(self, item: TokenMethod, seed: int) -> Scores:
        data = self.roar.data
        splits = dict(data.splits)
        uniform = random_scores(list(splits.values()), seed) if item.is_random else [None] * 3
        scores = {}
        for (name, tokens), drawn in zip(splits.items(), uniform, strict=True):
            told = word_scores(tokens.ids, self._information) if item.needs else None
            scores[name] = item(TokenEvidence(word_scores=told, uniform=drawn))
        return scores

    @cached_property
    def _information(self) -> Tensor:
        """What the words of the intact training texts tell of the class: [V]."""
        data, train = self.roar.data, self.roar.data.train
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

    def _noted(self, job: Job, scores: Scores | None, masks: Masks) -> dict[str, Any]:
        """Sparsity, from the first step of each measure and seed; examples, from the first seed."""
        roar, notes = self.roar, dict[str, Any]()
        if scores is not None and job.k == roar.jobs.levels[1]:
            part = roar.data.validation
            notes["sparsity"] = sparsity(
                scores["validation"], part.lengths, part.eligible, specials=roar.specials
            )
        if job.seed == roar.jobs.seeds[0]:
            test = roar.data.test
            notes["examples"] = [
                {
                    "masked": masks["test"][index].nonzero().flatten().tolist(),
                    "scores": []
                    if scores is None
                    else scores["test"][index, : int(test.lengths[index])].tolist(),
                }
                for index in range(min(EXAMPLES, len(test)))
            ]
        return notes


def _check_scores(job: Job, eligible: Tensor, scores: Tensor) -> None:
    """Refuse scores that cannot be ranked, naming the training they come from."""
    if not bool((eligible & ~scores.isfinite()).any()):
        return
    if job.parent is None:
        raise FaithscopeError(
            f"Scores of {job.measure} with seed {job.seed} are NaN or infinite: mend the measure."
        )
    raise FaithscopeError(
        f"Scores of {job.measure} are NaN or infinite for the model '{job.parent.id}' (level "
        f"{job.parent.k}, seed {job.parent.seed}), whose training has probably diverged: give a "
        "lower learning rate, and another folder."
    )


def masked(data: TokenData, masks: Masks) -> TokenData:
    """The data with the tokens at these positions replaced by the mask token."""
    ids = {name: part.ids.masked_fill(masks[name], data.mask_id) for name, part in data.splits}
    return data.with_ids(ids)


def _bytes(cache: Mapping[str, Mapping[int, Scores]]) -> int:
    return sum(
        scores.numel() * scores.element_size()
        for by_seed in cache.values()
        for splits in by_seed.values()
        for scores in splits.values()
    )


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Seconds of a block: call what is given, after it."""
    started = time.perf_counter()
    stopped: list[float] = []
    try:
        yield lambda: (stopped or [time.perf_counter()])[0] - started
    finally:
        stopped.append(time.perf_counter())
