"""ROAR and Recursive ROAR from end to end: mask what a measure points to, retrain, test.

`prepare_roar` turns what a user asks for into a `Roar`, which can say what it will cost and can be
run. Packs of trainings are run wave by wave (retrain/jobs.py); each is kept in the run's folder
(retrain/store.py), so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

import faithscope
from faithscope.data.text import TextData, TokenData
from faithscope.data.text_sources import describe, load_text
from faithscope.errors import FaithscopeError
from faithscope.methods.text import TokenEvidence, TokenMethod, resolve_measures
from faithscope.methods.words import random_scores, word_information, word_scores
from faithscope.perturb.tokens import mask_tokens
from faithscope.results.folder import is_begun
from faithscope.results.result import FORMAT
from faithscope.retrain.jobs import (
    MOST_SEEDS,
    PROCEDURES,
    Job,
    Jobs,
    Pack,
    jobs_of,
    reads_model,
)
from faithscope.retrain.learner import Learner, Weights
from faithscope.retrain.learners import check_model, check_recipe, load_learner
from faithscope.retrain.result import ROAR_SCHEMAS, RoarResult, load_roar
from faithscope.retrain.sparsity import sparsity
from faithscope.retrain.store import (
    KEEP_EVERY,
    Inputs,
    Masks,
    RoarStore,
    pack_size_of,
    tensor_digest,
)

EXAMPLES = 3
"""Test texts whose masks and scores are kept for people to look at."""
CACHE_BYTES = 1 << 30
"""Scores of the models of the intact texts that are held in memory: all levels of ROAR use them."""
TIMED_BATCHES = 8
"""Batches of a training that a forecast is made from."""

Scores = Mapping[str, Tensor]
"""Scores [N, T] by split."""
Cards = Mapping[Job, Mapping[str, Any]]
"""What came out of finished trainings, in the order of the jobs."""
Report = Callable[["Progress"], None]


@dataclass(frozen=True)
class Forecast:
    """What a run will cost: trainings still to do, packs, seconds measured on a few batches."""

    trainings: int
    finished: int
    packs: int
    seconds: float
    again: int = 0
    """Finished trainings that are done once more, because what others need of them is gone."""

    @property
    def duration(self) -> str:
        """The seconds in words."""
        if self.seconds >= 5400:
            return f"{self.seconds / 3600:.1f} h"
        return f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"

    def __str__(self) -> str:
        again = f", {self.again:,} of them to be trained again" if self.again else ""
        there = f" ({self.finished:,} are finished{again})" if self.finished else ""
        return (
            f"{self.trainings:,} trainings{there} in {self.packs:,} "
            f"pack{'s' * (self.packs != 1)}, roughly {self.duration}"
        )


@dataclass(frozen=True)
class Progress:
    """Where a run is: what it does, in which pack, and how many trainings are behind it."""

    doing: str
    """ "explaining MEASURE" or "training"."""
    pack: str
    pack_jobs: int
    epoch: int
    epochs: int
    done: float
    """Trainings, those of this pack by the share of their epochs."""
    total: int


@dataclass(eq=False)
class Roar:
    """A request that has been checked, ready to be run."""

    texts: TextData
    data: TokenData
    learner: Learner
    measures: Mapping[str, TokenMethod]
    jobs: Jobs
    out: Path | None
    pack_size: int
    clip: bool = True
    specials: bool = True
    keep_every: float = KEEP_EVERY
    keep_weights: bool = False
    left_out: tuple[str, ...] = ()
    """Measures of "all" that the model cannot give, a sentence each."""

    @cached_property
    def packs(self) -> list[Pack]:
        """The trainings in the order they are run."""
        return self.jobs.packs(self.pack_size)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every token and label, and of what the words start from."""
        tensors = {
            f"{name} {part}": held
            for name, tokens in self.data.splits
            for part, held in vars(tokens).items()
            if held is not None
        }
        if self.data.vectors is not None:
            known = self.data.vectors.vectors
            rows = [known[word] for word in self.data.words if word in known]
            tensors["vectors"] = torch.from_numpy(np.array(rows))
        names = {"classes": list(self.data.classes), "words": list(self.data.words)}
        return tensor_digest(tensors, {"names": json.dumps(names)})

    def plan(self) -> dict[str, Any]:
        """Everything that decides the numbers."""
        return {
            "faithscope": FORMAT,
            "kind": "roar",
            "data": {"name": self.data.name, "fingerprint": self.fingerprint},
            "model": {
                "name": self.learner.name,
                "recipe": asdict(self.learner.recipe),
                "fingerprint": getattr(self.learner, "fingerprint", ""),
            },
            "protocol": self._protocol(),
            "pack_size": self.pack_size,
        }

    def _protocol(self) -> dict[str, Any]:
        jobs = self.jobs
        return {
            "strategy": jobs.strategy,
            "levels": list(jobs.levels),
            "procedures": list(jobs.procedures),
            "measures": list(jobs.measures),
            "seeds": list(jobs.seeds),
            "specials": self.specials,
        }

    def at(self, out: str | Path) -> Roar:
        """The same, kept in a folder; trained in the packs that are there, if any are."""
        root = Path(out)
        return replace(self, out=root, pack_size=pack_size_of(root) or self.pack_size)

    @property
    def finished_jobs(self) -> int:
        """Trainings that are finished and kept."""
        there = 0 if self.out is None else len(list(self.out.glob("jobs/*.json")))
        return min(there, len(self.jobs))

    @property
    def is_finished(self) -> bool:
        """Whether the whole run is kept, undamaged."""
        if self.out is None:
            return False
        try:
            load_roar(self.out)
        except FaithscopeError:
            return False
        return True

    @property
    def is_anything_kept(self) -> bool:
        """Whether a training, or some epochs of one, are kept to go on with."""
        states = () if self.out is None else self.out.glob("packs/*/state.safetensors")
        return self.finished_jobs > 0 or any(states)

    def check_folder(self) -> bool:
        """Whether this run was begun in its folder; a folder of another run is refused."""
        return self.out is not None and is_begun(self.out, self.plan())

    def forecast(self) -> Forecast:
        """Train the first pack and explain it on a few batches, and multiply."""
        finished, left = self._progress()
        if not left:
            return Forecast(len(self.jobs), len(self.jobs), len(self.packs), 0.0)
        pack = self.packs[0].jobs
        few, share = _few(self.data, TIMED_BATCHES * self.learner.recipe.batch_size)
        training = self.learner.begin([few] * len(pack), [job.seed for job in pack])
        training.run_epoch()  # what is only done once must not be multiplied
        with _timed() as epoch:
            training.run_epoch()
        per_training = epoch() * self.learner.recipe.epochs / len(pack)
        models = [trained.weights for trained in training.finish()]
        seconds = per_training * len(self.jobs)
        for label, count in _explained(self.jobs).items():
            with _timed() as explaining:
                self._explain(self.measures[label], models, [few] * len(pack), pack)
            seconds += explaining() / len(pack) * count
        seconds *= left / len(self.jobs) / share
        again = left - (len(self.jobs) - finished)
        return Forecast(len(self.jobs), finished, len(self.packs), seconds, again)

    def _progress(self) -> tuple[int, int]:
        """How many trainings are finished, and how many a run would do now."""
        if self.out is None:
            return 0, len(self.jobs)
        if self.is_finished:
            return len(self.jobs), 0
        store = RoarStore(self.out, self.jobs, looks_on=True)
        return len(store.cards()), sum(len(pack.jobs) for pack in store.packs_to_run(self.packs))

    def run(self, progress: Report | None = None) -> RoarResult:
        """Run every training that is not finished yet, and collect them all.

        Without a folder everything is kept in a temporary one, and gone if the run is stopped.
        """
        if self.out is None:
            with tempfile.TemporaryDirectory(prefix="faithscope-") as folder:
                return self._run_in(Path(folder), progress)
        return self._run_in(self.out, progress)

    def _run_in(self, root: Path, progress: Report | None) -> RoarResult:
        options: dict[str, Any] = {
            "keep_every": self.keep_every,
            "keep_weights": self.keep_weights,
        }
        with RoarStore.open(root, self.plan(), self.jobs, **options) as store:
            if self.keep_weights and (gone := store.without_weights()):
                warnings.warn(
                    f"The weights of {gone:,} finished trainings in '{root}' were not kept and are "
                    "not brought back: to have them all, give another folder.",
                    stacklevel=3,
                )
            result = store.finished()
            if result is None:
                self._run(store, progress or (lambda _: None))
                result = self._collect(store)
                store.finish(result)
            elif result.manifest["protocol"]["clip"] != self.clip:  # changes no training
                result = result.with_clip(self.clip)
                store.amend(result)
        return result

    def _run(self, store: RoarStore, progress: Report) -> None:
        """Wave by wave: decide what all packs of a wave mask, then train them.

        What they mask is bits, so during nearly all of a run its folder holds no other weights
        than those of the intact texts and of the wave in training.
        """
        masker = _Masker(self, store)
        todo = store.packs_to_run(self.packs)
        done = len(self.jobs) - sum(len(pack.jobs) for pack in todo)
        for _, wave in groupby(todo, key=lambda pack: pack.wave):
            packs = list(wave)
            for pack in packs:
                if not store.has_inputs(pack):
                    tell = self._teller(pack, done, progress)
                    store.write_inputs(pack, masker.inputs(pack, tell))
            store.drop_weights(packs)
            for pack in packs:
                self._run_pack(store, pack, self._teller(pack, done, progress))
                done += len(pack.jobs)

    def _teller(self, pack: Pack, done: int, progress: Report) -> Callable[..., None]:
        epochs, count = self.learner.recipe.epochs, len(pack.jobs)

        def tell(doing: str, epoch: int = 0) -> None:
            trained = done + count * epoch / epochs
            progress(Progress(doing, pack.id, count, epoch, epochs, trained, len(self.jobs)))

        return tell

    def _run_pack(self, store: RoarStore, pack: Pack, tell: Callable[..., None]) -> None:
        inputs = store.inputs(pack)
        if inputs is None:
            raise _damaged_meanwhile(f"What the pack '{pack.id}' masks")
        data = [masked(self.data, inputs.masks[job.id]) for job in pack.jobs]
        training = self.learner.begin(data, [job.seed for job in pack.jobs])
        kept, seconds = store.kept(pack, inputs), 0.0
        if kept is not None:
            training.load_state(kept.state)
            seconds = kept.seconds
        tell("training", training.epoch)
        while not training.is_done:
            with _timed() as taken:
                training.run_epoch()
            seconds += taken()
            if store.is_time_to_keep():
                store.keep(pack, inputs, training.state, seconds)
            tell("training", training.epoch)
        with _timed() as taken:
            trained = training.finish()
        notes = {"device": self.learner.device, "machine": _device_name(self.learner.device)}
        store.write_jobs(pack, inputs, trained, seconds + taken(), notes)

    def _explain(
        self,
        item: TokenMethod,
        models: Sequence[Weights],
        data: Sequence[TokenData],
        jobs: Sequence[Job],
    ) -> list[Scores]:
        """The scores of all splits of each model's data."""
        seeds = [job.seed for job in jobs]
        found: list[dict[str, Tensor]] = [{} for _ in models]
        for name, _ in self.data.splits:
            tokens = [getattr(one, name) for one in data]
            for held, scores in zip(
                found, self.learner.explain(models, tokens, item, seeds), strict=True
            ):
                held[name] = scores
        return list(found)

    def _collect(self, store: RoarStore) -> RoarResult:
        """Make the tables from the cards of all jobs."""
        cards = store.cards()
        for job in self.jobs.jobs:
            if job not in cards:
                raise _damaged_meanwhile(f"The training '{job.id}'")
        about = describe(self.texts, self.data)
        notes = [*about["notes"], *self.left_out, *_too_short(self.data, self.jobs)]
        sections = {
            "data": {**about, "notes": notes},
            "model": {"name": self.learner.name, "recipe": asdict(self.learner.recipe)},
            "protocol": {**self._protocol(), "clip": self.clip},
        }
        here = _device_name(self.learner.device)
        return _tables(self.jobs, cards, self._examples(cards), sections, self.pack_size, here)

    def _examples(self, cards: Cards) -> list[dict[str, Any]]:
        """The first test texts: what every measure masked of them, level by level."""
        test, seed, examples = self.data.test, self.jobs.seeds[0], []
        for measure in self.jobs.measures:
            for procedure in self.jobs.procedures:
                curve = self.jobs.curve(measure, procedure, seed)
                for index in range(min(EXAMPLES, len(test))):
                    main, auxiliary = _written(self.data, index)
                    levels = [
                        {"k": k, **cards[job]["examples"][index]}
                        for k, job in curve.items()
                        if k > 0
                    ]
                    examples.append(
                        {
                            "split": "test",
                            "index": index,
                            "words": main,
                            "eligible": test.eligible[index].nonzero().flatten().tolist(),
                            "label": self.data.classes[int(test.labels[index])],
                            "auxiliary": auxiliary,
                            "measure": measure,
                            "procedure": procedure,
                            "seed": seed,
                            "levels": levels,
                        }
                    )
        return examples


@dataclass(eq=False)
class _Masker:
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
            with _timed() as taken:
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
        return data, self.roar._explain(item, weights, data, parents)

    def _of_bases(self, item: TokenMethod) -> dict[int, Scores]:
        """The scores that the models of the intact texts give, for all seeds."""
        label = item.label
        if label not in self.cache:
            found: dict[int, Scores] = {}
            bases, size = self.roar.jobs.bases, self.roar.pack_size
            for start in range(0, len(bases), size):
                some = bases[start : start + size]
                weights = [self.store.model(base)[0] for base in some]
                scores = self.roar._explain(item, weights, [self.roar.data] * len(some), some)
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


def join_results(
    jobs: Jobs,
    cards: Cards,
    manifests: Sequence[Mapping[str, Any]],
    examples: Sequence[Mapping[str, Any]],
    pack_size: int,
) -> RoarResult | None:
    """The result of all seeds, from results of some that differ in nothing else; or None.

    Args:
        jobs: The trainings of all seeds.
        cards: What came out of them.
        manifests: Of the results that are joined.
        examples: Of the one that has the first seed.
        pack_size: How many were trained together at most, in all of them.
    """
    told = [_same_for_all_seeds(manifest) for manifest in manifests]
    if len(cards) < len(jobs) or any(one != told[0] for one in told):
        return None
    sections = {
        **told[0],
        "protocol": {**manifests[0]["protocol"], "seeds": list(jobs.seeds)},
    }
    return _tables(jobs, cards, examples, sections, pack_size, manifests[0]["machine"]["device"])


def _same_for_all_seeds(manifest: Mapping[str, Any]) -> dict[str, Any]:
    protocol = {key: value for key, value in manifest["protocol"].items() if key != "seeds"}
    model = {key: manifest["model"][key] for key in ("name", "recipe")}
    return {"data": manifest["data"], "model": model, "protocol": protocol}


def _tables(
    jobs: Jobs,
    cards: Cards,
    examples: Sequence[Mapping[str, Any]],
    sections: Mapping[str, Mapping[str, Any]],
    pack_size: int,
    here: str,
) -> RoarResult:
    """The result that cards make; `here` stands for a machine that a card does not name."""
    about = {"data": sections["data"]["name"], "model": sections["model"]["name"]}
    trainings = [
        {
            **about,
            "job": job.id,
            "measure": measure,
            "procedure": procedure,
            "strategy": job.strategy,
            "k": k,
            "seed": seed,
            "metric": metric,
            "value": value,
            "epoch": cards[job]["epoch"],
            "seconds": cards[job]["seconds"],
        }
        for (measure, procedure, seed), curve in jobs.curves.items()
        for k, job in curve.items()
        for metric, value in cards[job]["scores"].items()
    ]
    shares = [
        {
            **about,
            "measure": job.measure,
            "seed": job.seed,
            "kind": kind,
            "x": int(x),
            "value": value,
        }
        for job, card in cards.items()
        for kind, values in card.get("sparsity", {}).items()
        for x, value in values.items()
    ]
    return RoarResult(
        pa.Table.from_pylist(trainings, schema=ROAR_SCHEMAS["trainings"]),
        pa.Table.from_pylist(shares, schema=ROAR_SCHEMAS["sparsity"]),
        examples,
        _manifest(jobs, cards, sections, pack_size, here),
    )


def _manifest(
    jobs: Jobs,
    cards: Cards,
    sections: Mapping[str, Mapping[str, Any]],
    pack_size: int,
    here: str,
) -> dict[str, Any]:
    devices = dict.fromkeys(card["device"] for card in cards.values())
    # cards of earlier versions do not name it
    machines = dict.fromkeys(card.get("machine", here) for card in cards.values())
    training = sum(card["seconds"] for card in cards.values())
    explaining: dict[str, float] = defaultdict(float)
    for job, card in cards.items():
        if job.measure is not None:
            explaining[job.measure] += card["explaining"]
    model = sections["model"]
    packages = ("torch", "numpy", "scipy", "transformers")
    return {
        "format": FORMAT,
        "kind": "roar",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": dict(sections["data"]),
        "model": {
            "name": model["name"],
            "parameters": next(iter(cards.values()))["parameters"],
            "recipe": model["recipe"],
            "device": ", ".join(devices),
        },
        "protocol": dict(sections["protocol"]),
        "cost": {
            "seconds": training + sum(explaining.values()),
            "trainings": len(jobs),
            "training_seconds": training,
            "explaining_seconds": {measure: explaining[measure] for measure in jobs.measures},
            "explained": _explained(jobs),
            "packs": len(jobs.packs(pack_size)),
            "pack_size": pack_size,
        },
        "machine": {
            "device": ", ".join(machines),
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
        "versions": {
            "faithscope": faithscope.__version__,
            **{name: version(name) for name in packages},
        },
    }


def _explained(jobs: Jobs) -> dict[str, int]:
    """How many models each measure explains."""
    found: dict[str, set[str]] = {}
    for job in jobs.jobs:
        if job.measure is not None and job.parent is not None:
            found.setdefault(job.measure, set()).add(job.parent.id)
    return {measure: len(parents) for measure, parents in found.items()}


def prepare_roar(
    data: TextData | str | Path,
    model: Learner | str = "bilstm",
    *,
    measures: str | TokenMethod | Iterable[str | TokenMethod] = "all",
    seeds: int | Iterable[int] = 5,
    levels: Iterable[int] | None = None,
    procedures: str | Iterable[str] = PROCEDURES,
    strategy: str = "relative",
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    limit: int | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    clip: bool = True,
    specials: bool = True,
    keep_every: float = KEEP_EVERY,
    keep_weights: bool = False,
) -> Roar:
    """Check a request and encode its texts; nothing is trained yet.

    Args:
        data: The texts, or the name of a data set (as `load_text` takes).
        model: What is trained on them: "bilstm", "hf:ID or folder" or a learner of one's own.
        measures: Names or objects; "all" are the paper's. `random` is always among them, and a
            measure that is in "all" but that the model cannot give is left out.
        seeds: Which seeds, or how many from 0.
        levels: Percent of tokens to mask (10, 20, …, 90), or numbers of them (1 to 10).
        procedures: "roar", "recursive" or both.
        strategy: Whether levels are "relative" or a "count" of tokens.
        epochs: How long a model named by text is trained; by default as long as the paper.
        batch_size: Texts per step of its training, if not the paper's.
        learning_rate: Of its training, if not the paper's.
        limit: Use only so many texts of each split, where data is a name.
        device: Where a model named by text is trained; "auto" is a GPU if there is one.
        out: The run's folder; the same request goes on there with what it finds.
        clip: Whether each seed's RACU is kept within -1 and 1, as the paper's program does.
        specials: Whether sparsity counts special tokens, as the paper's program does.
        keep_every: Seconds between the states of a training that are kept; 0 keeps every epoch.
        keep_weights: Keep the weights of every model, not only of those that are explained.
    """
    numbers = range(seeds) if isinstance(seeds, int) else list(islice(seeds, MOST_SEEDS + 1))
    steps = None if levels is None else list(levels)
    plan = (numbers, steps, procedures, strategy)
    jobs_of(resolve_measures(measures), *plan)  # what is wrong is said before data is read
    changes = check_recipe(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
    if isinstance(model, str):
        check_model(model)
        texts = _as_data(data, limit)
        learner = load_learner(model, texts, device=device, **changes)
    elif changes:
        raise FaithscopeError(
            f"{', '.join(changes)} cannot be given beside a learner, which has its own recipe."
        )
    else:
        texts, learner = _as_data(data, limit), model
    chosen, left_out = _measures(measures, learner)
    jobs = jobs_of(chosen, *plan)
    tokens = learner.encode(texts)
    _check(tokens)
    _check_lengths(tokens, jobs)
    root = None if out is None else Path(out)
    size = (None if root is None else pack_size_of(root)) or learner.pack_size  # same packs
    by_label = {item.label: item for item in chosen}
    by_label |= {
        label: resolve_measures(label)[0] for label in jobs.measures if label not in by_label
    }
    return Roar(
        texts,
        tokens,
        learner,
        by_label,
        jobs,
        root,
        max(1, size),
        clip=clip,
        specials=specials,
        keep_every=keep_every,
        keep_weights=keep_weights,
        left_out=tuple(left_out),
    )


def _measures(
    measures: str | TokenMethod | Iterable[str | TokenMethod], learner: Learner
) -> tuple[list[TokenMethod], list[str]]:
    """The measures, and of "all" or "registered" which the model cannot give, a sentence each."""
    asked = resolve_measures(measures)
    lenient = isinstance(measures, str) and measures in ("all", "registered")
    chosen, left_out = [], []
    for item in asked:
        try:
            if reads_model(item):
                learner.check(item)
            chosen.append(item)
        except FaithscopeError as error:
            if not lenient:
                raise
            why = str(error).rpartition(": ")[0] or str(error).rstrip(".")  # without the advice
            left_out.append(f"{item.label} is left out of '{measures}': {why}.")
    return chosen, left_out


def _as_data(data: TextData | str | Path, limit: int | None) -> TextData:
    if not isinstance(data, TextData):
        return load_text(data, limit=limit)
    if limit is not None:
        raise FaithscopeError("limit goes with data by name: give the texts that are to be used.")
    return data


def _check(data: TokenData) -> None:
    for name, tokens in data.splits:
        if not len(tokens):
            raise FaithscopeError(
                f"The {name} split of '{data.name}' has no texts: ROAR needs train, validation and "
                "test."
            )
        if not bool(tokens.eligible.any()):
            raise FaithscopeError(
                f"The {name} split of '{data.name}' has no token that can be masked: give texts "
                "with words in them."
            )


def _check_lengths(data: TokenData, jobs: Jobs) -> None:
    """Refuse texts of which no level masks a token but the one that masks them all."""
    longest = max(int(tokens.eligible.sum(1).max()) for _, tokens in data.splits)
    highest = max(k for k in jobs.levels if k < 100)
    if jobs.strategy == "relative" and longest * highest < 100:
        words = f"{longest} token{'s' * (longest > 1)}"
        raise FaithscopeError(
            f"The texts of '{data.name}' have at most {words}, of which {highest} % is less than "
            "one: give longer texts, or mask by count."
        )


def _too_short(data: TokenData, jobs: Jobs) -> list[str]:
    """Say how many texts keep all their tokens at every level below 100 %."""
    highest = max(k for k in jobs.levels if k < 100)
    counts = torch.cat([tokens.eligible.sum(1) for _, tokens in data.splits])
    short = int((counts * highest < 100).sum()) if jobs.strategy == "relative" else 0
    if not short:
        return []
    some = "1 text is" if short == 1 else f"{short:,} of {len(counts):,} texts are"
    return [f"{some} so short that {highest} % of the tokens is less than one: nothing is masked."]


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


def _damaged_meanwhile(what: str) -> FaithscopeError:
    return FaithscopeError(
        f"{what} was damaged while the run went on: give the same command once more."
    )


def masked(data: TokenData, masks: Masks) -> TokenData:
    """The data with the tokens at these positions replaced by the mask token."""
    ids = {name: part.ids.masked_fill(masks[name], data.mask_id) for name, part in data.splits}
    return data.with_ids(ids)


def _few(data: TokenData, count: int) -> tuple[TokenData, float]:
    """About `count` training texts from everywhere, the same share of the others, and the share."""
    share = min(1.0, count / len(data.train))
    parts = {}
    for name, tokens in data.splits:
        rows = torch.linspace(0, len(tokens) - 1, max(1, round(share * len(tokens)))).long()
        held = {part: v[rows] for part, v in vars(tokens).items() if v is not None}
        parts[name] = replace(tokens, **held)
    few = replace(data, train=parts["train"], validation=parts["validation"], test=parts["test"])
    return few, share


def _written(data: TokenData, index: int) -> tuple[list[str], list[str] | None]:
    """The words of a test text, and of the one that comes with it."""
    test = data.test
    length = int(test.lengths[index])
    main, rest = test.ids[index, :length].tolist(), test.ids[index, length:].tolist()
    if test.auxiliary is not None and test.auxiliary_lengths is not None:
        rest = test.auxiliary[index, : int(test.auxiliary_lengths[index])].tolist()
    special = {data.pad_id, *test.ids[index, :length][~test.eligible[index, :length]].tolist()}
    words = [data.words[token] for token in rest if token not in special]
    return [data.words[token] for token in main], words or None


def _bytes(cache: Mapping[str, Mapping[int, Scores]]) -> int:
    return sum(
        scores.numel() * scores.element_size()
        for by_seed in cache.values()
        for splits in by_seed.values()
        for scores in splits.values()
    )


def _device_name(device: str) -> str:
    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return platform.processor() or device


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    """Seconds of a block: call what is given, after it."""
    started = time.perf_counter()
    stopped: list[float] = []
    try:
        yield lambda: (stopped or [time.perf_counter()])[0] - started
    finally:
        stopped.append(time.perf_counter())
