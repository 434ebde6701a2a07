"""ROAR and Recursive ROAR from end to end: mask what a measure points to, retrain, test.

`prepare_roar` turns what a user asks for into a `Roar`, which can say what it will cost and can be
run. Packs of trainings are run wave by wave (jobs.py), on what masking.py masks; each is kept in
the run's folder (store.py), so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithscope.data.text import TextData, TokenData
from faithscope.data.text_sources import describe, load_text
from faithscope.errors import FaithscopeError
from faithscope.methods.text import TokenMethod, resolve_measures
from faithscope.probes.retrain.collect import (
    Cards,
    explained,
    made_here,
    package_versions,
    result_of,
)
from faithscope.probes.retrain.jobs import (
    MOST_SEEDS,
    PROCEDURES,
    Job,
    Jobs,
    Pack,
    jobs_of,
    reads_model,
)
from faithscope.probes.retrain.learner import Learner, Weights
from faithscope.probes.retrain.learners import check_model, check_recipe, load_learner
from faithscope.probes.retrain.masking import EXAMPLES, Masker, Scores, masked, timed
from faithscope.probes.retrain.result import RoarResult, load_roar
from faithscope.probes.retrain.store import KEEP_EVERY, RoarStore, pack_size_of, tensor_digest
from faithscope.result import FORMAT
from faithscope.runs.folder import is_begun

TIMED_BATCHES = 8
"""Batches of a training that a forecast is made from."""

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
        with timed() as epoch:
            training.run_epoch()
        per_training = epoch() * self.learner.recipe.epochs / len(pack)
        models = [trained.weights for trained in training.finish()]
        seconds = per_training * len(self.jobs)
        for label, count in explained(self.jobs).items():
            with timed() as explaining:
                self.explain(self.measures[label], models, [few] * len(pack), pack)
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
        masker = Masker(self, store)
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
            with timed() as taken:
                training.run_epoch()
            seconds += taken()
            if store.is_time_to_keep():
                store.keep(pack, inputs, training.state, seconds)
            tell("training", training.epoch)
        with timed() as taken:
            trained = training.finish()
        notes = {
            "device": self.learner.device,
            "machine": _device_name(self.learner.device),
            "versions": package_versions(),
        }
        store.write_jobs(pack, inputs, trained, seconds + taken(), notes)

    def explain(
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
        made = made_here(_device_name(self.learner.device))
        return result_of(self.jobs, cards, self._examples(cards), sections, self.pack_size, made)

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


def _damaged_meanwhile(what: str) -> FaithscopeError:
    return FaithscopeError(
        f"{what} was damaged while the run went on: give the same command once more."
    )


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


def _device_name(device: str) -> str:
    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return platform.processor() or device
