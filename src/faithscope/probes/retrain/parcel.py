"""A ROAR run as a parcel: a few files of limited size, to carry it to another machine.

    parcel/run-PLAN-TOKEN.tar.gz.000, .001, …  what the run needs to go on, cut into parts
    parcel/parcel.json                         written last: plan, progress, size and hash of parts

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
from faithscope.probes.retrain.collect import join_results
from faithscope.probes.retrain.jobs import Jobs, jobs_of
from faithscope.probes.retrain.result import load_roar
from faithscope.probes.retrain.store import COMMAND, RESULT_FILES, RoarStore, pack_size_of
from faithscope.result import FORMAT
from faithscope.runs.files import replace_file, write_file
from faithscope.runs.folder import differences, digest, locked, writing

INDEX = "parcel.json"
PART_MEGABYTES = 15.0
"""How large a part is at most, if nothing else is asked for."""
LEAST_MEGABYTES, MOST_MEGABYTES = 0.01, 1e9
_PART = re.compile(r"run-[0-9a-f]{8}(-[0-9a-f]{8})?\.tar\.gz\.\d{3,}", re.ASCII)
_MEMBER = re.compile(
    r"jobs/[\w.-]+\.(json|safetensors)|packs/\d+-\d+/(inputs|state)\.safetensors|"
    + "|".join(map(re.escape, (*RESULT_FILES, COMMAND))),
    re.ASCII,
)
"""Every name that a run's file can have: whatever else is in an archive is refused."""
_CHUNK = 1 << 20
_MOST_TEXT = 1 << 26
"""Bytes of a file that is read at once: cards, examples and manifests are far smaller."""
_LONGEST_NAME = 255
_FILE_BYTES = 4096
"""What a small file takes on a disk, at most."""


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
    content: int
    """Bytes of these files."""
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
        """Name and content of each file of the run; a name that is none of a run's is refused.

        Headers are read one by one, and nothing is known here but a plain file and a long name: of
        what else an archive can hold (links, sparse files, sizes in a second header) no part is
        even looked at.
        """
        seen: set[str] = set()
        left = self.content
        with (
            io.BufferedReader(_Reader([self.folder / part.name for part in self.parts])) as parts,
            gzip.GzipFile(fileobj=parts, mode="rb") as archive,
        ):
            while (header := self._header(archive)) is not None:
                name, size = header
                if name in seen:
                    raise self._strange(name)
                seen.add(name)
                left -= size
                if left < 0 or len(seen) > self.members:
                    raise self._broken(
                        f"it holds more than {self.members} files of {self.content:,} bytes in all"
                    )
                held = _Content(archive, size)
                yield name, io.BufferedReader(held)
                held.skip()
                _exactly(archive, -size % tarfile.BLOCKSIZE)
            rest = archive.read(tarfile.RECORDSIZE + 1)  # to its end, which has a checksum
            if len(rest) > tarfile.RECORDSIZE or rest.strip(b"\0"):
                raise tarfile.ReadError("something follows the last file")
        if len(seen) != self.members or left:
            raise self._broken(
                f"it holds {len(seen)} files of {self.content - left:,} bytes and not "
                f"{self.members} of {self.content:,}"
            )

    def _header(self, archive: gzip.GzipFile) -> tuple[str, int] | None:
        """Name and size of the file that follows; None at the end."""
        long_name = None
        while True:
            block = archive.read(tarfile.BLOCKSIZE)
            if block == bytes(tarfile.BLOCKSIZE):
                return None
            found = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            name = found.name if long_name is None else long_name
            is_long = found.type == tarfile.GNUTYPE_LONGNAME and long_name is None
            if is_long and 0 < found.size <= _LONGEST_NAME:
                text = _exactly(archive, tarfile.BLOCKSIZE)[: found.size]
                long_name = text.rstrip(b"\0").decode()
            elif found.type != tarfile.REGTYPE or found.size < 0 or not _MEMBER.fullmatch(name):
                raise self._strange(name)
            else:
                return name, found.size

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Say in a sentence that an archive is none, though its parts are as they were packed."""
        try:
            yield
        except FaithscopeError:
            raise
        except (
            *(tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError),
            *(RecursionError, OverflowError, MemoryError),
        ) as error:
            raise self._broken("its archive cannot be read") from error

    def _broken(self, why: str) -> FaithscopeError:
        return FaithscopeError(
            f"The parcel '{self.folder}' cannot be used: {why}. Copy or pack it again."
        )

    def _strange(self, name: str) -> FaithscopeError:
        return self._broken(f"it holds {name[:100]!r}, which is no file of a ROAR run")

    def _index(self) -> bytes:
        about = {
            "faithscope": FORMAT,
            "kind": "roar parcel",
            "plan": self.plan,
            "trainings": self.trainings,
            "finished": self.finished,
            "members": self.members,
            "content": self.content,
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
    is_whole: bool
    """Whether its tables are there, too, so that it can be reported."""


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
        to: The folder of the parcel, outside the run; other files in it are left alone.
        part_megabytes: How large a file may be (a megabyte is a million bytes).
        states: Take along how far packs in training are, too. That is large: weights and an
            optimiser's moments of every model. Without it such a pack begins its training anew.
    """
    root, to = Path(root), Path(to)
    if not LEAST_MEGABYTES <= part_megabytes <= MOST_MEGABYTES:
        raise FaithscopeError(
            f"A part must have at least {LEAST_MEGABYTES:g} MB and at most {MOST_MEGABYTES:,.0f}, "
            f"got {part_megabytes:g}."
        )
    limit = int(part_megabytes * 1e6)
    plan, jobs = _planned(root)
    if to.resolve().is_relative_to(root.resolve()):
        raise FaithscopeError(f"A run cannot be packed into itself ('{to}'): give another folder.")
    with locked(root):
        store = RoarStore(root, jobs)
        files = store.portable(jobs.packs(plan["pack_size"]), states=states)
        finished = sum(file.parent.name == "jobs" and file.suffix == ".json" for file in files)
        own = f"run-{_hash(plan)[:8]}"
        before = _check_target(to, plan, finished)
        stem = f"{own}-{secrets.token_hex(4)}.tar.gz"
        with writing(to):
            to.mkdir(parents=True, exist_ok=True)
            try:
                content, parts = _write_parts(to, stem, limit, root, files)
                parcel = Parcel(to, plan, len(jobs), finished, len(files), content, parts)
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
            before |= {file.name for file in to.glob(f"{own}-*") if _PART.fullmatch(file.name)}
            _remove(to / name for name in before - {part.name for part in parts})  # and of kills
    return parcel


def unpack_run(parcels: str | Path | Iterable[str | Path], root: str | Path) -> Unpacked:
    """Unpack a parcel into a new folder, where the command that made the run goes on.

    The folder is there when everything is in it, or not at all. Several parcels whose plans differ
    in nothing but seeds become one run of all their seeds, for seeds trained on several machines
    and collected by one command; so they were trained in packs of the same size. What came out of
    finished trainings is joined, and if all are finished their tables are, too; what packs in
    training had begun is left out, because a pack of the joined run has other jobs in it, and links
    of chains that are lost with it are trained again. So join finished runs.
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
    _check_room(root, found)
    temporary = root.absolute().with_name(f".{root.name[:100]}.{secrets.token_hex(4)}")
    try:
        with writing(root):
            temporary.mkdir(parents=True)
            texts = []
            for parcel in found:
                with parcel.reading():
                    if len(found) == 1:
                        _extract(parcel, temporary)
                    else:
                        texts.append(_extract_beside(parcel, temporary, seeds[0]))
            finished = len(list(temporary.glob("jobs/*.json")))
            write_file(temporary / "plan.json", json.dumps(plan, indent=1).encode())
            if texts:
                _join(temporary, texts)
            is_whole = (temporary / "manifest.json").exists()
            if root.exists():
                root.rmdir()
            temporary.rename(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    per_seed = found[0].trainings // len(found[0].seeds)
    return Unpacked(root, per_seed * len(seeds), finished, tuple(seeds), is_whole)


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
            *(int(about["members"]), int(about["content"]), parts),
        )
        named = all(_PART.fullmatch(part.name) for part in parts)
        counted = parcel.seeds and all(isinstance(seed, int) for seed in parcel.seeds)
        is_right = _hash(about) == held["hash"] and named and counted and parcel.content >= 0
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
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
        if plan["kind"] != "roar" or plan["faithscope"] != FORMAT or pack_size_of(root) is None:
            raise ValueError("it is of another kind")
        protocol = plan["protocol"]
        steps = (protocol[name] for name in ("seeds", "levels", "procedures", "strategy"))
        return plan, jobs_of(resolve_measures(protocol["measures"]), *steps)
    except FaithscopeError:  # a measure of one's own, for example, that is not registered here
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        inside = sorted(file.parent for file in root.glob("*/plan.json"))  # of a study
        here = f", such as '{inside[0]}'" if inside else ""
        raise FaithscopeError(
            f"'{root}' holds no ROAR run (its plan.json is missing, damaged or of something else): "
            f"give a folder that `faithscope roar --out` wrote{here}."
        ) from None


def _check_target(to: Path, plan: Mapping[str, Any], finished: int) -> set[str]:
    """Refuse a folder whose parcel is worth keeping; the parts of the one that is replaced."""
    if not (to / INDEX).exists():
        return set()
    try:
        there = read_parcel(to)
    except FaithscopeError:
        raise FaithscopeError(
            f"'{to}' holds a {INDEX} that cannot be read, so it cannot be told what else is there: "
            "give another folder."
        ) from None
    if there.plan != plan or there.finished > finished:
        what = "of another run" if there.plan != plan else "with more trainings of this run"
        raise FaithscopeError(f"'{to}' holds a parcel {what}: give another folder.")
    return {part.name for part in there.parts}


def _write_parts(
    to: Path, stem: str, limit: int, root: Path, files: Sequence[Path]
) -> tuple[int, tuple[Part, ...]]:
    """The bytes that went into the archive, and the parts it was cut into."""
    writer, content = _Writer(to, stem, limit), 0
    with (
        writer,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=writer, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        for file in files:
            member = tarfile.TarInfo(file.relative_to(root).as_posix())
            with file.open("rb") as held:
                member.size = os.fstat(held.fileno()).st_size
                archive.addfile(member, held)
            content += member.size
    return content, tuple(writer.parts)


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


class _Content(io.RawIOBase):
    """So many bytes of an archive."""

    def __init__(self, archive: gzip.GzipFile, size: int) -> None:
        self._archive, self._left = archive, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        some = _exactly(self._archive, min(len(buffer), self._left))
        self._left -= len(some)
        buffer[: len(some)] = some
        return len(some)

    def skip(self) -> None:
        while self._left:
            self._left -= len(_exactly(self._archive, min(self._left, _CHUNK)))


def _exactly(archive: gzip.GzipFile, size: int) -> bytes:
    found = archive.read(size)
    if len(found) < size:
        raise EOFError("it ends too early")
    return found


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
    held: dict[frozenset[int], Parcel] = {}
    for parcel in parcels:
        twin = held.setdefault(frozenset(parcel.seeds), parcel)
        if twin is not parcel:
            named = ", ".join(map(str, sorted(parcel.seeds)))
            raise FaithscopeError(
                f"'{twin.folder}' and '{parcel.folder}' both hold seed{'s' * (',' in named)} "
                f"{named}: nothing to join; unpack the one with more finished trainings."
            )
    if not others:
        return dict(first.plan)
    rest = {seed for parcel in parcels for seed in parcel.seeds} - {first.seeds[0]}
    seeds = [first.seeds[0], *sorted(rest)]
    return {**first.plan, "protocol": {**first.plan["protocol"], "seeds": seeds}}


def _without_seeds(plan: Mapping[str, Any]) -> dict[str, Any]:
    protocol = {key: value for key, value in plan["protocol"].items() if key != "seeds"}
    return {**plan, "protocol": protocol}


def _extract(parcel: Parcel, folder: Path) -> None:
    """Put the files of a parcel into a folder."""
    for name, source in parcel.files():
        _put(folder / name, source)


def _extract_beside(parcel: Parcel, folder: Path, first_seed: int) -> dict[str, bytes]:
    """Put what came out of finished trainings beside that of other parcels; other texts are given.

    Weights of finished jobs are put there, too; what belongs to packs is not.
    """
    texts: dict[str, bytes] = {}
    for name, source in parcel.files():
        file = folder / name
        if name in ("manifest.json", "examples.json", COMMAND):
            texts[name] = _text(parcel, name, source)
        elif name.startswith("jobs/") and name.endswith(".json"):
            content = _text(parcel, name, source)
            card = _card(parcel, name, content)
            if name.endswith(f"-s{first_seed}.json") and "examples" not in card:
                continue  # of a run in which another seed was the first: to be trained again
            if file.exists() and _numbers(card) != _numbers(_card(parcel, name, file.read_bytes())):
                raise FaithscopeError(
                    f"The training '{file.stem}' of '{parcel.folder}' came out otherwise than in "
                    "another parcel: give only one parcel for each seed."
                )
            _put(file, io.BytesIO(content))
        elif name.startswith("jobs/"):
            _put(file, source)
    return texts


def _put(file: Path, source: IO[bytes]) -> None:
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as held:
        shutil.copyfileobj(source, held, _CHUNK)


def _text(parcel: Parcel, name: str, source: IO[bytes]) -> bytes:
    content = source.read(_MOST_TEXT + 1)
    if len(content) > _MOST_TEXT:
        raise parcel._broken(f"{name} is larger than any such file")
    return content


def _join(root: Path, texts: Sequence[Mapping[str, bytes]]) -> None:
    """Write the commands of all parcels, and their tables in one if all are finished."""
    commands = dict.fromkeys(held[COMMAND].strip() for held in texts if COMMAND in held)
    if commands:
        write_file(root / COMMAND, b"\n".join(commands) + b"\n")
    try:
        manifests = [json.loads(held["manifest.json"]) for held in texts]
        examples = json.loads(texts[0]["examples.json"])
        plan, jobs = _planned(root)
        store = RoarStore(root, jobs, looks_on=True)
        result = join_results(jobs, store.cards(), manifests, examples, plan["pack_size"])
        if result is not None:
            result.save(root)
            load_roar(root)
    except (FaithscopeError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        _remove(root / name for name in RESULT_FILES)  # the command makes them


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


def _check_room(root: Path, parcels: Sequence[Parcel]) -> None:
    """Refuse what the disk cannot hold before anything is written: an index can say anything."""
    place = root.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    needed = sum(parcel.content + _FILE_BYTES * parcel.members for parcel in parcels)
    with writing(root):
        free = shutil.disk_usage(place).free
    if needed > free:
        raise FaithscopeError(
            f"'{root}' needs {needed / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} left: make "
            "room or give a folder elsewhere."
        )


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _hash(about: Mapping[str, Any]) -> str:
    return digest(json.dumps(about, sort_keys=True).encode())
