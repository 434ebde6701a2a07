"""The tasks of retraining: decide what a pack of models masks (*mask*), then train it (*train*).

All packs of a wave are masked before the first of them is trained: what they mask is bits, so
during nearly all of a run its folder holds no other weights than those of the intact texts and of
the wave in training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import groupby

from faithscope.probes.retrain.jobs import Job, Jobs, Pack, jobs_of
from faithscope.request import Retrain
from faithscope.runs.plan import Plan
from faithscope.runs.task import Artifact, Task


def jobs_by_group(plan: Plan) -> dict[tuple[int, ...], Jobs]:
    """The trainings of each group of seeds that is planned by itself."""
    request = plan.request
    assert isinstance(request, Retrain)
    measures = {card.label: card.reads_model for card in plan.methods}
    choices = (request.levels, request.procedures, request.strategy)
    return {seeds: jobs_of(measures, seeds, *choices) for seeds in plan.groups}


def retrain_tasks(plan: Plan) -> list[Task]:
    """Every task of a plan, wave by wave."""
    assert isinstance(plan.request, Retrain)
    tasks = []
    for seeds, jobs in jobs_by_group(plan).items():
        packs = jobs.packs(plan.pack_size)
        home = {job: train_id(seeds, pack) for pack in packs for job in pack.jobs}
        explained: set[tuple[str, Job]] = set()
        for _, wave in groupby(packs, key=lambda pack: pack.wave):
            alike = list(wave)
            for pack in alike:
                tasks.append(_mask_task(seeds, jobs, pack, home, explained))
            for pack in alike:
                tasks.append(_train_task(seeds, jobs, pack, keep_all=plan.request.keep_weights))
    return tasks


def _mask_task(
    seeds: Sequence[int],
    jobs: Jobs,
    pack: Pack,
    home: dict[Job, str],
    explained: set[tuple[str, Job]],
) -> Task:
    parents = list(dict.fromkeys(p for job in pack.jobs for p in jobs.explained_for(job)))
    cost: dict[str, float] = {}
    for job in pack.jobs:
        for parent in jobs.explained_for(job):
            key = str(job.measure), parent
            if key not in explained:  # models of the intact texts are explained once
                explained.add(key)
                unit = f"explaining {job.measure}"
                cost[unit] = cost.get(unit, 0.0) + 1
    return Task(
        f"mask-{group_name(seeds)}-{pack.id}",
        "mask",
        {"seeds": list(seeds), "pack": pack.id},
        needs=tuple(dict.fromkeys(home[parent] for parent in parents)),
        reads=tuple(weights_name(parent) for parent in parents),
        makes=(Artifact(masks_name(seeds, pack)),),
        cost=cost,
    )


def _train_task(seeds: Sequence[int], jobs: Jobs, pack: Pack, *, keep_all: bool) -> Task:
    return Task(
        train_id(seeds, pack),
        "train",
        {"seeds": list(seeds), "pack": pack.id},
        needs=(f"mask-{group_name(seeds)}-{pack.id}",),
        reads=(masks_name(seeds, pack),),
        makes=tuple(
            # what a model of a leaf masked is small and stays; weights that are explained go
            Artifact(weights_name(job), keep_all or job.k == 0 or not jobs.children[job])
            for job in pack.jobs
        ),
        cost={"trainings": float(len(pack.jobs))},
    )


def keeps_weights(jobs: Jobs, job: Job, keep_all: bool) -> bool:
    """Whether the weights of a model are needed: by others, by people, or to judge the masks."""
    return keep_all or job.k == 0 or bool(jobs.children[job])


def train_id(seeds: Sequence[int], pack: Pack) -> str:
    """The name of the task that trains a pack."""
    return f"train-{group_name(seeds)}-{pack.id}"


def masks_name(seeds: Sequence[int], pack: Pack) -> str:
    """The name of what a pack masks."""
    return f"masks/{group_name(seeds)}-{pack.id}"


def weights_name(job: Job) -> str:
    """The name of what a training leaves behind."""
    return f"models/{job.id}"


def group_name(seeds: Sequence[int]) -> str:
    """Seeds as part of a file's name.

    >>> group_name([0, 1, 2]), group_name([4]), group_name([4, 1])
    ('s0-2', 's4', 's4.1')
    """
    first, last = seeds[0], seeds[-1]
    if list(seeds) == list(range(first, last + 1)):
        return f"s{first}" if first == last else f"s{first}-{last}"
    text = ".".join(map(str, seeds))
    if len(text) > 40:
        text = f"{text[:20]}.{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
    return f"s{text}"
