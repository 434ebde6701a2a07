"""A ROAR run that survives: finished trainings, and how far the unfinished ones are.

    run/plan.json                   what is being run; another request is refused
    run/packs/ID/inputs.safetensors what the texts of a pack's jobs look like, masked
    run/packs/ID/state.safetensors  the pack after its last kept epoch
    run/jobs/ID.json                what came out of a finished job, written after ...
    run/jobs/ID.safetensors         ... its masked positions and its weights
    run/manifest.json               written last, with the tables of the result

Every file is put into place in one step and carries a hash of what it holds, so after a kill at
any moment a file is whole, old or absent, and a damaged one is found, said and computed again.
The weights of a job are kept until it is decided, and kept, what every job that needs them masks;
those of the intact texts for good; `keep_weights` keeps all.
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from faithscope.data.text import SPLITS
from faithscope.errors import FaithscopeError
from faithscope.probes.retrain.jobs import Job, Jobs, Pack
from faithscope.probes.retrain.learner import Trained, Weights
from faithscope.probes.retrain.result import ROAR_SCHEMAS, RoarResult, load_roar
from faithscope.runs.files import replace_file
from faithscope.runs.folder import begin, digest, locked, writing

KEEP_EVERY = 5.0
"""Seconds after which the state of a pack in training is worth another file."""
KEEP_SHARE = 0.05
"""How much of a training's time keeping its state may take: those of large packs are kept less."""
RESULT_FILES = (*(f"{name}.parquet" for name in ROAR_SCHEMAS), "examples.json", "manifest.json")
"""What `RoarResult.save` writes."""
COMMAND = "command.txt"
"""Where a person may note how the run was made; a summary quotes it (studies/summarise_roar.py)."""

Masks = Mapping[str, Tensor]
"""The masked positions of one job: bool [N, T] by split."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a pack is trained on: masks by job, and what was learnt on the way to them."""

    masks: Mapping[str, Masks]
    notes: Mapping[str, Mapping[str, Any]]
    """By job: explaining seconds; of some jobs sparsity and examples."""
    digest: str = ""
    """Of the masks: a state of the training goes with them."""


@dataclass(frozen=True, eq=False)
class Kept:
    """How far the training of a pack is: its state, and the seconds that took."""

    state: dict[str, Tensor]
    seconds: float


class RoarStore:
    """The folder of one run, open for writing by one process.

    One that `looks_on` changes nothing: what is damaged is left there, and not spoken of.
    """

    def __init__(
        self,
        root: Path,
        jobs: Jobs,
        *,
        keep_every: float = KEEP_EVERY,
        keep_weights: bool = False,
        looks_on: bool = False,
    ) -> None:
        self.root = root
        self.jobs = jobs
        self.keep_every = keep_every
        self.keep_weights = keep_weights
        self.looks_on = looks_on
        self._trained = False
        self._last_kept = time.monotonic()
        self._keeping = 0.0

    @staticmethod
    @contextmanager
    def open(
        root: Path,
        plan: Mapping[str, Any],
        jobs: Jobs,
        *,
        keep_every: float = KEEP_EVERY,
        keep_weights: bool = False,
    ) -> Iterator[RoarStore]:
        """Begin a run in a folder, or go on with the one that is there if it is the same."""
        with locked(root):
            begin(root, plan)
            for leftover in (*root.glob("jobs/.*.*.*"), *root.glob("packs/*/.*.*.*")):
                leftover.unlink(missing_ok=True)  # of a kill while writing
            yield RoarStore(root, jobs, keep_every=keep_every, keep_weights=keep_weights)

    def finished(self) -> RoarResult | None:
        """The result, if the run is whole; damaged tables are said, and to be made again."""
        if not (self.root / "manifest.json").exists():
            return None
        try:
            return load_roar(self.root)
        except FaithscopeError:
            warnings.warn(
                f"The result in '{self.root}' is damaged: its tables are made again from its "
                "trainings.",
                stacklevel=3,
            )
            return None

    def finish(self, result: RoarResult) -> None:
        """Write the whole result; the states of packs are then not needed any more."""
        result.save(self.root)
        shutil.rmtree(self.root / "packs", ignore_errors=True)
        if self.keep_weights or not self._trained:  # of tables alone: what others kept stays
            return
        with writing(self.root):
            for job in self.jobs.jobs:
                if job.k > 0 and self.jobs.children[job]:  # trained again beside a lost one
                    self._job_file(job, "safetensors").unlink(missing_ok=True)

    def amend(self, result: RoarResult) -> None:
        """Write the manifest of a whole result anew."""
        with writing(self.root):
            content = json.dumps(result.manifest, indent=1).encode()
            replace_file(self.root / "manifest.json", content)

    def without_weights(self) -> int:
        """How many finished jobs have no weights any more."""
        finished = [job for job in self.jobs.jobs if self._job_file(job, "json").exists()]
        return sum(not self._holds_weights(job) for job in finished)

    def _holds_weights(self, job: Job) -> bool:
        try:
            with safe_open(self._job_file(job, "safetensors"), "pt") as file:
                return any(name.startswith("weights.") for name in file.keys())
        except (OSError, SafetensorError):
            return False

    def packs_to_run(self, packs: Sequence[Pack]) -> list[Pack]:
        """The packs with an unfinished job, and those whose lost weights such packs need."""
        return self._to_run(packs)[0]

    def portable(self, packs: Sequence[Pack], *, states: bool = False) -> list[Path]:
        """The files with which a run goes on elsewhere, or is read there if it is whole.

        Without `states` a pack in training begins anew there, on the texts that are kept.
        """
        finished = [job for job in self.jobs.jobs if self.card(job) is not None]
        files = [self._job_file(job, "json") for job in finished]
        if (self.root / COMMAND).is_file():
            files.append(self.root / COMMAND)
        if self.finished() is not None:
            return [*files, *(self.root / name for name in RESULT_FILES)]
        wanted, explained = self._to_run(packs)
        for job in finished:
            if job in explained and self._has_model(job):
                files.append(self._job_file(job, "safetensors"))
        for pack in wanted:
            if self.inputs(pack) is not None:
                folder = self._pack_folder(pack)
                files.append(folder / "inputs.safetensors")
                if states and (folder / "state.safetensors").exists():
                    files.append(folder / "state.safetensors")
        return files

    def _to_run(self, packs: Sequence[Pack]) -> tuple[list[Pack], set[Job]]:
        """The packs that must be run, and the jobs whose models are explained for them."""
        wanted: list[Pack] = []
        explained: set[Job] = set()
        for pack in reversed(packs):
            unfinished = [job for job in pack.jobs if self.card(job) is None]
            lost = [job for job in pack.jobs if job in explained and not self._has_model(job)]
            if unfinished or lost:
                wanted.append(pack)
                if self.inputs(pack) is None:
                    for job in pack.jobs:
                        explained |= set(self.jobs.explained_for(job))
        return wanted[::-1], explained

    # Jobs

    def cards(self) -> dict[Job, dict[str, Any]]:
        """What came out of every finished job."""
        found = ((job, self.card(job)) for job in self.jobs.jobs)
        return {job: card for job, card in found if card is not None}

    def card(self, job: Job) -> dict[str, Any] | None:
        """What came out of a finished job; None if it is not finished or its file is damaged."""
        file = self._job_file(job, "json")
        if not file.exists():
            return None
        try:
            held = json.loads(file.read_text(encoding="utf-8"))
            card: dict[str, Any] = held["card"]
            if digest(_canonical(card)) != held["hash"]:
                raise ValueError("its hash differs")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._damaged(file, error)
            return None
        return card

    def model(self, job: Job) -> tuple[Weights, Masks]:
        """The weights of a finished job and what was masked of its texts."""
        return read_model(self._job_file(job, "safetensors"))

    def write_jobs(
        self,
        pack: Pack,
        inputs: Inputs,
        trained: Sequence[Trained],
        seconds: float,
        notes: Mapping[str, Any],
    ) -> None:
        """Keep the finished jobs of a pack; then its state is not needed any more.

        A job that a pack repeats, because another one of it was damaged, keeps its first card.
        """
        self._trained = True
        with writing(self.root):
            (self.root / "jobs").mkdir(exist_ok=True)
            for job, model in zip(pack.jobs, trained, strict=True):
                tensors = _packed(inputs.masks[job.id])
                if self._keeps_weights(job):
                    tensors |= {f"weights.{name}": held for name, held in model.weights.items()}
                shapes = {split: list(mask.shape) for split, mask in inputs.masks[job.id].items()}
                content = tensor_file(tensors, {"shapes": json.dumps(shapes)})
                replace_file(self._job_file(job, "safetensors"), content)
                if self.card(job) is not None:
                    continue
                card = {
                    "job": job.id,
                    "scores": dict(model.scores),
                    "validation": list(model.validation),
                    "epoch": model.epoch,
                    "seconds": seconds / len(pack.jobs),
                    "pack": pack.id,
                    "parameters": sum(held.numel() for held in model.weights.values()),
                    **inputs.notes[job.id],
                    **notes,
                }
                card = json.loads(json.dumps(card))  # as it will be read
                held = {"card": card, "hash": digest(_canonical(card))}
                replace_file(self._job_file(job, "json"), json.dumps(held, indent=1).encode())
            shutil.rmtree(self._pack_folder(pack), ignore_errors=True)

    def _keeps_weights(self, job: Job) -> bool:
        return self.keep_weights or job.k == 0 or bool(self.jobs.children[job])

    def drop_weights(self, packs: Sequence[Pack]) -> None:
        """Forget the models that these packs, whose inputs are kept, were the last to need."""
        if self.keep_weights:
            return
        begun = {job for pack in packs for job in pack.jobs}
        for parent in {job.parent for job in begun}:
            if parent is None or parent.k == 0:
                continue
            below = self.jobs.children[parent]
            if all(job in begun or self._job_file(job, "json").exists() for job in below):
                with writing(self.root):
                    self._job_file(parent, "safetensors").unlink(missing_ok=True)

    def has_inputs(self, pack: Pack) -> bool:
        """Whether it is kept what a pack is trained on; a damaged file is found when it is read."""
        return (self._pack_folder(pack) / "inputs.safetensors").exists()

    def _has_model(self, job: Job) -> bool:
        file = self._job_file(job, "safetensors")
        if not file.exists():
            return False
        try:
            read_tensors(file)
        except (OSError, ValueError) as error:
            self._damaged(file, error)
            return False
        return True

    # Packs

    def inputs(self, pack: Pack) -> Inputs | None:
        """What a pack that was begun is trained on."""
        file = self._pack_folder(pack) / "inputs.safetensors"
        if not file.exists():
            return None
        try:
            tensors, about = read_tensors(file)
            shapes = json.loads(about["shapes"])
            masks = {
                job.id: {
                    split: _unpack(tensors[f"{job.id}.{split}"], shapes[split]) for split in SPLITS
                }
                for job in pack.jobs
            }
            return Inputs(masks, json.loads(about["notes"]), tensor_digest(tensors, {}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._damaged(file, error)
            return None

    def write_inputs(self, pack: Pack, inputs: Inputs) -> None:
        """Keep what a pack is trained on, so that nothing is explained twice."""
        tensors = {
            f"{job}.{split}": _packed_bits(mask)
            for job, masks in inputs.masks.items()
            for split, mask in masks.items()
        }
        one = next(iter(inputs.masks.values()))
        shapes = {split: list(mask.shape) for split, mask in one.items()}
        about = {"shapes": json.dumps(shapes), "notes": json.dumps(inputs.notes)}
        with writing(self.root):
            folder = self._pack_folder(pack)
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / "inputs.safetensors", tensor_file(tensors, about))
        self._last_kept = time.monotonic()

    def kept(self, pack: Pack, inputs: Inputs) -> Kept | None:
        """How far the training of a pack on these inputs was kept."""
        file = self._pack_folder(pack) / "state.safetensors"
        if not file.exists():
            return None
        try:
            state, about = read_tensors(file)
            if about["inputs"] != inputs.digest:
                raise ValueError("it is of other texts")
            return Kept(state, float(about["seconds"]))
        except (OSError, ValueError, KeyError) as error:
            self._damaged(file, error)
            return None

    def keep(
        self,
        pack: Pack,
        inputs: Inputs,
        state: Callable[[], Mapping[str, Tensor]],
        seconds: float,
    ) -> None:
        """Keep a pack after an epoch; to get the state, from a GPU, is a part of what it costs."""
        started = time.monotonic()
        about = {"inputs": inputs.digest, "seconds": repr(seconds)}
        with writing(self.root):
            file = self._pack_folder(pack) / "state.safetensors"
            replace_file(file, tensor_file(state(), about))
        self._last_kept = time.monotonic()
        self._keeping = self._last_kept - started

    def is_time_to_keep(self) -> bool:
        """Whether the last kept state is old enough for another one to be worth its time."""
        if self.keep_every == 0:
            return True
        waited = time.monotonic() - self._last_kept
        return waited >= max(self.keep_every, self._keeping / KEEP_SHARE)

    def _damaged(self, file: Path, error: Exception) -> None:
        if self.looks_on:
            return
        warnings.warn(f"'{file}' is damaged ({error}): it is computed again.", stacklevel=3)
        file.unlink(missing_ok=True)

    def _job_file(self, job: Job, ending: str) -> Path:
        return self.root / "jobs" / f"{job.id}.{ending}"

    def _pack_folder(self, pack: Pack) -> Path:
        return self.root / "packs" / pack.id


def pack_size_of(root: Path) -> int | None:
    """The pack size that was chosen for the run in a folder, if there is one."""
    try:
        chosen = json.loads((root / "plan.json").read_text(encoding="utf-8"))["pack_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return chosen if isinstance(chosen, int) and chosen > 0 else None


def tensor_file(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """The content of a safetensors file that carries its own hash."""
    tensors = {name: held.detach().contiguous().clone() for name, held in tensors.items()}
    content: bytes = save(tensors, {**about, "hash": tensor_digest(tensors, about)})
    return content


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file that `tensor_file` made and what it says of them, or a ValueError."""
    content = path.read_bytes()
    try:
        tensors = {name: held.clone() for name, held in load(content).items()}  # aligned
        size = int.from_bytes(content[:8], "little")
        about: dict[str, str] = json.loads(content[8 : 8 + size])["__metadata__"]
        held = about["hash"]
    except (SafetensorError, KeyError, UnicodeDecodeError) as error:
        raise ValueError("it cannot be read") from error
    if held != tensor_digest(tensors, {key: about[key] for key in about if key != "hash"}):
        raise ValueError("its hash differs")
    return tensors, about


def read_model(path: Path) -> tuple[Weights, Masks]:
    """The weights in the file of a finished job, if they were kept, and what it masked."""
    tensors, about = read_tensors(path)
    shapes = json.loads(about["shapes"])
    weights = {name[8:]: held for name, held in tensors.items() if name.startswith("weights.")}
    masks = {split: _unpack(tensors[f"masked.{split}"], shapes[split]) for split in SPLITS}
    return weights, masks


def tensor_digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """A hash of names, types, shapes, contents and remarks."""
    parts = [_canonical(dict(about))]
    for name in sorted(tensors):
        held = tensors[name]
        content = held.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        parts.append(f"{name} {held.dtype} {list(held.shape)} {digest(content)}".encode())
    return digest(b"\n".join(parts))


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _packed(masks: Masks) -> dict[str, Tensor]:
    return {f"masked.{split}": _packed_bits(mask) for split, mask in masks.items()}


def _packed_bits(mask: Tensor) -> Tensor:
    """Truth values, eight to a byte."""
    return torch.from_numpy(np.packbits(mask.numpy().reshape(-1)))


def _unpack(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """What `_packed_bits` packed, in its shape.

    >>> _unpack(_packed_bits(torch.tensor([[True, False, True]])), (1, 3))
    tensor([[ True, False,  True]])
    """
    rows, columns = shape
    if len(bits) != -(-rows * columns // 8):
        raise ValueError("it is of other texts")
    values = np.unpackbits(bits.numpy(), count=rows * columns)
    return torch.from_numpy(values.astype(bool)).reshape(rows, columns)
