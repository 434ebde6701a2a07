"""A ROAR run as a parcel: a few files of limited size, to carry it to another machine.

    parcel/run-1a2b3c4d.tar.gz.000, .001, …  what the run needs to go on, cut into parts
    parcel/parcel.json                       written last: plan, progress, size and hash of parts

`pack_run` takes only what the trainings still to do need, so a parcel is much smaller than its
run: what came out of finished trainings, what begun packs are trained on, and the weights that are
still to be explained. Of a finished run it takes what came out, and no weights. `unpack_run` gives
a folder in which the same command goes on, or joins runs of several seeds into one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from faithscope.errors import FaithscopeError
from faithscope.methods.text import resolve_measures
from faithscope.results.files import replace_file, write_file
from faithscope.results.folder import differences, digest, locked, writing
from faithscope.results.result import FORMAT
from faithscope.retrain.jobs import Jobs, jobs_of
from faithscope.retrain.store import RESULT_FILES, RoarStore

INDEX = "parcel.json"
PART_MEGABYTES = 15.0
"""How large a part is at most, if nothing else is asked for."""
LEAST_MEGABYTES = 0.01
_PART = re.compile(r"run-[0-9a-f]{8}\.tar\.gz\.\d{3,}", re.ASCII)
_MEMBER = re.compile(
    r"jobs/[\w.-]+\.(json|safetensors)|packs/\d+-\d+/(inputs|state)\.safetensors|"
    + "|".join(map(re.escape, RESULT_FILES)),
    re.ASCII,
)
"""Every name that a run's file can have: whatever else is in an archive is refused."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Part:
    """A file of a parcel."""

    name: str
    size: int
    hash: str


@dataclass(frozen=True)
class Parcel:
    """What a parcel holds, as its index says."""

    folder: Path
    plan: Mapping[str, Any]
    trainings: int
    finished: int
    members: int
    """Files of the run that are in it."""
    parts: tuple[Part, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds of its run."""
        return list(self.plan["protocol"]["seeds"])

    @property
    def sizes(self) -> list[int]:
        """Bytes of its files, the index last."""
        return [*(part.size for part in self.parts), len(self._index())]

    def check(self) -> None:
        """Refuse a parcel that is not as it was packed, naming what is wrong."""
        for part in self.parts:
            file = self.folder / part.name
            try:
                hashed, size = hashlib.blake2b(digest_size=16), 0
                with file.open("rb") as held:
                    while some := held.read(_CHUNK):
                        hashed.update(some)
                        size += len(some)
            except OSError:
                raise self._broken(f"{part.name} is missing or cannot be read") from None
            if size != part.size:
                raise self._broken(f"{part.name} has {size:,} bytes and not {part.size:,}")
            if hashed.hexdigest() != part.hash:
                raise self._broken(f"{part.name} is damaged, its hash differs")

    def files(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Name and content of each file of the run; a name that is none of a run's is refused."""
        seen: set[str] = set()
        with (
            io.BufferedReader(_Reader([self.folder / part.name for part in self.parts])) as parts,
            gzip.GzipFile(fileobj=parts, mode="rb") as content,
            tarfile.open(fileobj=content, mode="r|") as archive,
        ):
            for member in archive:
                name, source = member.name, None
                if member.type == tarfile.REGTYPE and _MEMBER.fullmatch(name) and name not in seen:
                    source = archive.extractfile(member)
                if source is None:
                    raise self._broken(f"it holds {name[:100]!r}, which is no file of a ROAR run")
                seen.add(name)
                yield name, source
        if len(seen) != self.members:
            raise self._broken(f"it holds {len(seen)} files and not {self.members}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Say in a sentence that an archive is none, though its parts are as they were packed."""
        try:
            yield
        except FaithscopeError:
            raise
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
            raise self._broken("its archive cannot be read") from error

    def _broken(self, why: str) -> FaithscopeError:
        return FaithscopeError(
            f"The parcel '{self.folder}' cannot be used: {why}. Copy or pack it again."
        )

    def _index(self) -> bytes:
        about = {
            "faithscope": FORMAT,
            "kind": "roar parcel",
            "plan": self.plan,
            "trainings": self.trainings,
            "finished": self.finished,
            "members": self.members,
            "parts": [[part.name, part.size, part.hash] for part in self.parts],
        }
        return json.dumps({"parcel": about, "hash": _hash(about)}, indent=1).encode()


@dataclass(frozen=True)
class Unpacked:
    """A run that came out of parcels: how far it is, and the seeds to ask for."""

    root: Path
    trainings: int
    finished: int
    seeds: tuple[int, ...]


def pack_run(
    root: str | Path,
    to: str | Path,
    *,
    part_megabytes: float = PART_MEGABYTES,
    states: bool = False,
) -> Parcel:
    """Pack a run that was stopped, or is finished, into files of a folder.

    An earlier parcel of the run is replaced in one step, when the new one is whole.

    Args:
        root: The folder of the run. Nobody may be writing to it.
        to: The folder of the parcel; other files in it are left alone.
        part_megabytes: How large a file may be (a megabyte is a million bytes).
        states: Take along how far packs in training are, too. That is large: weights and an
            optimiser's moments of every model. Without it such a pack begins its training anew.
    """
    root, to = Path(root), Path(to)
    if not (math.isfinite(part_megabytes) and part_megabytes >= LEAST_MEGABYTES):
        raise FaithscopeError(
            f"A part must have at least {LEAST_MEGABYTES:g} MB, got {part_megabytes:g}."
        )
    limit = int(part_megabytes * 1e6)
    plan, jobs = _planned(root)
    with locked(root):
        store = RoarStore(root, jobs)
        files = store.portable(jobs.packs(plan["pack_size"]), states=states)
        finished = sum(file.parent.name == "jobs" and file.suffix == ".json" for file in files)
        before = _check_target(to, plan, finished)
        stem = f"run-{secrets.token_hex(4)}.tar.gz"
        with writing(to):
            to.mkdir(parents=True, exist_ok=True)
            try:
                parts = _write_parts(to, stem, limit, root, files)
                parcel = Parcel(to, plan, len(jobs), finished, len(files), parts)
                index = parcel._index()
                if len(index) > limit:
                    raise FaithscopeError(
                        f"{len(parts):,} parts are too many for the file that lists them: give a "
                        "larger part size."
                    )
                replace_file(to / INDEX, index)
            except BaseException:
                _remove(to.glob(f"{stem}.*"))
                raise
            _remove(file for file in before if file.name not in {part.name for part in parts})
    return parcel


def unpack_run(parcels: str | Path | Iterable[str | Path], root: str | Path) -> Unpacked:
    """Unpack a parcel into a new folder, where the command that made the run goes on.

    The folder is there when everything is in it, or not at all. Several parcels whose plans differ
    in nothing but seeds become one run of all their seeds, for seeds trained on several machines
    and collected by one command. What came out of finished trainings is joined, however they were
    packed; what packs in training had begun is left out, because a pack of the joined run has other
    jobs in it, and links of chains that are lost with it are trained again. So join finished runs.
    """
    root = Path(root)
    named = [parcels] if isinstance(parcels, str | Path) else list(parcels)
    found = [read_parcel(folder) for folder in named]
    if not found:
        raise FaithscopeError("There is no parcel to unpack: give at least one folder.")
    found.sort(key=lambda parcel: parcel.seeds[0])
    plan = _joined_plan(found)
    seeds = plan["protocol"]["seeds"]
    with writing(root):
        _check_new(root)
    for parcel in found:
        parcel.check()
    temporary = root.absolute().with_name(f".{root.name[:100]}.{secrets.token_hex(4)}")
    try:
        with writing(root):
            temporary.mkdir(parents=True)
            for parcel in found:
                with parcel.reading():
                    _extract(parcel, temporary, seeds[0] if len(found) > 1 else None)
            finished = len(list(temporary.glob("jobs/*.json")))
            write_file(temporary / "plan.json", json.dumps(plan, indent=1).encode())
            if root.exists():
                root.rmdir()
            temporary.rename(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    per_seed = found[0].trainings // len(found[0].seeds)
    return Unpacked(root, per_seed * len(seeds), finished, tuple(seeds))


def read_parcel(folder: str | Path) -> Parcel:
    """What the index of a parcel says; a copy that was cut off has none."""
    folder = Path(folder)
    try:
        held = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except OSError:
        raise FaithscopeError(
            f"'{folder}' holds no whole parcel, for it has no {INDEX}, which is written last: give "
            "a folder that `faithscope roar --pack` wrote, with all its files."
        ) from None
    except (ValueError, RecursionError):
        raise _damaged_index(folder) from None
    try:
        about = held["parcel"]
        parts = tuple(
            Part(str(name), int(size), str(hash_)) for name, size, hash_ in about["parts"]
        )
        parcel = Parcel(
            *(folder, dict(about["plan"]), int(about["trainings"]), int(about["finished"])),
            *(int(about["members"]), parts),
        )
        named = all(_PART.fullmatch(part.name) for part in parts)
        counted = parcel.seeds and all(isinstance(seed, int) for seed in parcel.seeds)
        is_right = _hash(about) == held["hash"] and named and counted
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged_index(folder) from None
    if about.get("faithscope") != FORMAT or about.get("kind") != "roar parcel":
        raise FaithscopeError(
            f"The parcel '{folder}' was packed by another version of faithscope: unpack it with "
            "that one."
        )
    if not is_right:
        raise _damaged_index(folder)
    return parcel


def _damaged_index(folder: Path) -> FaithscopeError:
    return FaithscopeError(f"The {INDEX} of '{folder}' is damaged: copy or pack it again.")


def _planned(root: Path) -> tuple[dict[str, Any], Jobs]:
    """The plan of a run and its trainings, which need no data to be told."""
    try:
        plan = json.loads((root / "plan.json").read_text(encoding="utf-8"))
        if plan["kind"] != "roar" or plan["faithscope"] != FORMAT or plan["pack_size"] < 1:
            raise ValueError("it is of another kind")
        protocol = plan["protocol"]
        steps = (protocol[name] for name in ("seeds", "levels", "procedures", "strategy"))
        return plan, jobs_of(resolve_measures(protocol["measures"]), *steps)
    except FaithscopeError:  # a measure of one's own, for example, that is not registered here
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise FaithscopeError(
            f"'{root}' holds no ROAR run (its plan.json is missing, damaged or of something else): "
            "give a folder that `faithscope roar --out` wrote."
        ) from None


def _check_target(to: Path, plan: Mapping[str, Any], finished: int) -> list[Path]:
    """Refuse a folder whose parcel is worth keeping; the parts that are there otherwise."""
    if (to / INDEX).exists():
        there = read_parcel(to)
        if there.plan != plan or there.finished > finished:
            what = "of another run" if there.plan != plan else "with more trainings of this run"
            raise FaithscopeError(f"'{to}' holds a parcel {what}: give another folder.")
    try:
        return [file for file in to.iterdir() if _PART.fullmatch(file.name)]
    except OSError:
        return []


def _write_parts(
    to: Path, stem: str, limit: int, root: Path, files: Sequence[Path]
) -> tuple[Part, ...]:
    writer = _Writer(to, stem, limit)
    with (
        writer,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=writer, mtime=0) as content,
        tarfile.open(fileobj=content, mode="w|") as archive,
    ):
        for file in files:
            member = tarfile.TarInfo(file.relative_to(root).as_posix())
            with file.open("rb") as held:
                member.size = os.fstat(held.fileno()).st_size
                archive.addfile(member, held)
    return tuple(writer.parts)


class _Writer(io.RawIOBase):
    """Cuts what is written to it into files."""

    def __init__(self, folder: Path, stem: str, limit: int) -> None:
        self.folder, self.stem, self.limit = folder, stem, limit
        self.parts: list[Part] = []
        self._file: IO[bytes] | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            if self._file is None:
                self._begin()
            assert self._file is not None
            some = view[written : written + self.limit - self._size]
            self._file.write(some)
            self._hash.update(some)
            self._size += len(some)
            written += len(some)
            if self._size == self.limit:
                self._end()
        return written

    def close(self) -> None:
        if not self.closed:
            self._end()
        super().close()

    def _begin(self) -> None:
        self._name = f"{self.stem}.{len(self.parts):03d}"
        self._file = (self.folder / self._name).open("wb")
        self._hash, self._size = hashlib.blake2b(digest_size=16), 0

    def _end(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        with file:
            file.flush()
            os.fsync(file.fileno())
        self.parts.append(Part(self._name, self._size, self._hash.hexdigest()))


class _Reader(io.RawIOBase):
    """Files one after another, as if they were one."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._left = list(files)
        self._file: IO[bytes] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        while self._file is not None or self._left:
            if self._file is None:
                self._file = self._left.pop(0).open("rb")
            some = self._file.read(len(view))
            if some:
                view[: len(some)] = some
                return len(some)
            self._file.close()
            self._file = None
        return 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


def _joined_plan(parcels: Sequence[Parcel]) -> dict[str, Any]:
    """The plan of all seeds, the first of which is the first of a parcel: it has the examples."""
    first, *others = parcels
    for other in others:
        left, right = (_without_seeds(one.plan) for one in (first, other))
        if differing := list(differences(left, right)):
            raise FaithscopeError(
                f"The runs in '{first.folder}' (there) and '{other.folder}' (here) cannot be "
                f"joined, for they differ in more than seeds ({'; '.join(differing[:3])}): unpack "
                "them one by one."
            )
    if not others:
        return dict(first.plan)
    rest = {seed for parcel in parcels for seed in parcel.seeds} - {first.seeds[0]}
    seeds = [first.seeds[0], *sorted(rest)]
    return {**first.plan, "protocol": {**first.plan["protocol"], "seeds": seeds}}


def _without_seeds(plan: Mapping[str, Any]) -> dict[str, Any]:
    protocol = {key: value for key, value in plan["protocol"].items() if key != "seeds"}
    return {**plan, "protocol": protocol}


def _extract(parcel: Parcel, folder: Path, first_seed: int | None) -> None:
    """Put the files of a parcel into a folder; beside those of others if there is a first seed."""
    for name, source in parcel.files():
        file = folder / name
        if first_seed is not None and not name.startswith("jobs/"):
            continue
        if first_seed is not None and name.endswith(".json"):
            content = source.read()
            card = _card(parcel, name, content)
            if name.endswith(f"-s{first_seed}.json") and "examples" not in card:
                continue  # of a run in which another seed was the first: to be trained again
            if file.exists() and _numbers(card) != _numbers(_card(parcel, name, file.read_bytes())):
                raise FaithscopeError(
                    f"The training '{file.stem}' of '{parcel.folder}' came out otherwise than in "
                    "another parcel: give only one parcel for each seed."
                )
            source = io.BytesIO(content)
        if file.exists():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as held:
            shutil.copyfileobj(source, held, _CHUNK)


def _card(parcel: Parcel, name: str, content: bytes) -> dict[str, Any]:
    try:
        card: dict[str, Any] = dict(json.loads(content)["card"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise parcel._broken(f"{name} is damaged") from None
    return card


def _numbers(card: Mapping[str, Any]) -> str:
    """What came out of a training, without the time and place it took."""
    kept = ("scores", "validation", "epoch", "parameters", "sparsity")
    return json.dumps({key: card.get(key) for key in kept}, sort_keys=True)


def _check_new(root: Path) -> None:
    is_link = root.is_symlink()
    if is_link or root.exists():
        if is_link or not root.is_dir() or any(root.iterdir()):
            raise FaithscopeError(
                f"'{root}' is there already and is no empty folder: give a new one to unpack into."
            )
        if root.resolve() == Path.cwd():
            raise FaithscopeError("One cannot unpack into the folder one is in: give a new one.")


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _hash(about: Mapping[str, Any]) -> str:
    return digest(json.dumps(about, sort_keys=True).encode())
