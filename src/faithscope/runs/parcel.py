"""A run as a parcel: one tar archive, to carry it to another machine and resume there.

    parcel.json    first: the plan, how far the run is, and size and hash of every file that follows

Only what unfinished tasks need is packed: the rows of finished tasks and the artifacts still to be
read. Of a finished run its tables are packed, and no artifacts. Nothing in an archive is trusted:
only names that a run's file can have, none twice, and not more bytes than the index says.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import re
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import Field, ValidationError

from faithscope.errors import FaithscopeError
from faithscope.hashing import digest
from faithscope.request.paths import Place
from faithscope.runs.cards import Typed, Whole
from faithscope.runs.files import (
    as_json,
    clear_half_written,
    replace_file,
    sealed,
    unsealed,
    writing,
)
from faithscope.runs.lock import locked
from faithscope.runs.plan import FORMAT, Plan, differences
from faithscope.runs.run import Run, is_run, load_run, save_run
from faithscope.runs.scheduler import State, look
from faithscope.runs.store import SCRATCH, Store, clear_abandoned, read_plan
from faithscope.runs.tables import SCHEMAS
from faithscope.runs.task import Task

INDEX = "parcel.json"
COMMAND = "command.txt"
"""Where a person may note how the run was made; a summary quotes it (studies/summarise_roar.py)."""
_TABLES = "|".join(SCHEMAS)
_MEMBER = re.compile(
    rf"manifest\.json|{re.escape(COMMAND)}|({_TABLES})\.parquet|"
    rf"tasks/[\w.-]+\.json|tasks/[\w.-]+/({_TABLES})\.parquet|"
    r"artifacts/(\w[\w.-]*/)?[\w.-]+\.safetensors|states/[\w.-]+\.safetensors",
    re.ASCII,
)
"""Every name that a run's file can have: whatever else is in an archive is refused."""
_LARGEST_INDEX = 1 << 26
_CHUNK = 1 << 20
_OVERHEAD = 4096
"""Bytes that an archive may have per file beside its content: headers and padding."""


class Entry(Typed):
    """A file of a parcel."""

    size: Whole
    hash: str


class Index(Typed):
    """What a parcel holds, as it says itself."""

    format: int = FORMAT
    plan: dict[str, Any]
    tasks: Whole
    finished: Annotated[int, Field(ge=0)]
    files: dict[str, Entry]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(entry.size for entry in self.files.values())


class Parcel(Typed):
    """An archive that was written: where, how large, and how far its run is."""

    file: str
    size: Whole
    tasks: Whole
    finished: Whole


class Unpacked(Typed):
    """A run that came out of parcels: how far it is, and the seeds to ask for."""

    folder: str
    tasks: Whole
    finished: Whole
    seeds: tuple[int, ...] = ()
    is_whole: bool
    """Whether its tables are there, too, so that it can be reported."""


def pack_run(
    root: Place, to: Path, tasks: Callable[[Plan], Sequence[Task]], *, states: bool = False
) -> Parcel:
    """Pack a run that was stopped, or is finished, into one archive.

    Args:
        root: the folder of the run. Nobody may be writing to it.
        to: the archive; an earlier one of the same run is replaced in one step.
        tasks: gives the tasks of a plan, where those are known without data.
        states: take along how far tasks in progress are, too. That is large: weights and an
            optimiser's moments of every model. Without it such a task begins anew.
    """
    plan = _planned(root)
    if isinstance(root, Path) and to.resolve().is_relative_to(root.resolve()):
        raise FaithscopeError(f"A run cannot be packed into itself ('{to}'): choose another file.")
    known = tasks(plan)
    with locked(root, reads=True):
        store = Store(root, plan, looks_on=True)
        cards = sorted(store.finished_tasks())
        own = known or [Task(name, "shard") for name in cards]
        state = look(store, own)
        if is_run(root) and not cards:
            _check_whole(root)
        names = _names(store, state, states)
        _check_target(to, plan, len(state.done))
        with writing(to.parent):
            to.parent.mkdir(parents=True, exist_ok=True)
            clear_half_written(to)
            _write(to, root, plan, names, len(own), len(state.done))
    return Parcel(file=str(to), size=to.stat().st_size, tasks=len(own), finished=len(state.done))


def _check_whole(root: Place) -> None:
    """Refuse a damaged result whose tasks are not kept: there would be nothing to pack."""
    try:
        load_run(root)
    except FaithscopeError as error:
        raise FaithscopeError(
            f"The result in '{root}' is damaged ({error.reason}): run its command again, then pack."
        ) from None


def _names(store: Store, state: State, states: bool) -> list[str]:
    """The files with which a run is resumed elsewhere, or read there if it is finished."""
    root = store.root
    names = [COMMAND] if (root / COMMAND).is_file() else []
    for task, card in state.done.items():
        names.append(f"tasks/{task}.json")
        names += [f"tasks/{task}/{name}.parquet" for name in card.tables]
    if (run := store.finished()) is not None:
        return [*names, *run.manifest.files, "manifest.json"]
    artifacts = dict.fromkeys(name for task in state.todo for name in task.reads)
    names += [f"artifacts/{name}.safetensors" for name in artifacts if store.has_artifact(name)]
    if states:
        kept = [f"states/{task.id}.safetensors" for task in state.todo]
        names += [name for name in kept if (root / name).exists()]
    return names


def _write(
    to: Path, root: Place, plan: Plan, names: Sequence[str], tasks: int, finished: int
) -> None:
    entries = {}
    for name in names:
        content = (root / name).read_bytes()
        entries[name] = Entry(size=len(content), hash=digest(content))
    index = Index(plan=plan.content(), tasks=tasks, finished=finished, files=entries)
    first = sealed(index.model_dump(mode="json"))
    temporary = to.with_name(f".{to.name[:100]}.{secrets.token_hex(4)}")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=1) as archive:
            for name in (INDEX, *names):
                content = first if name == INDEX else (root / name).read_bytes()
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        temporary.replace(to)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _planned(root: Place) -> Plan:
    try:
        plan = read_plan(root)
    except FaithscopeError:
        plan = None
    if plan is None and is_run(root):  # saved from memory: there is nothing to resume
        return load_run(root).manifest.plan
    if plan is None:
        inside = sorted(file.parent for file in root.glob("*/plan.json"))  # of a study
        here = f", such as '{inside[0]}'" if inside else ""
        raise FaithscopeError(
            f"'{root}' holds no run (its plan.json is missing, damaged or of something else): give "
            f"the folder of one run{here}."
        )
    return plan


def _check_target(to: Path, plan: Plan, finished: int) -> None:
    """Refuse to replace anything but an earlier parcel of the same run."""
    if not to.exists():
        return
    try:
        with _reading(to) as (_, there):
            same, more = there.plan == plan.content(), there.finished > finished
    except FaithscopeError:
        raise FaithscopeError(
            f"'{to}' exists already and is not a parcel: choose another file."
        ) from None
    if not same or more:
        what = "with more of this run" if same else "of another run"
        raise FaithscopeError(f"'{to}' holds a parcel {what}: choose another file.")


def unpack_run(
    parcels: Sequence[Path], root: Path, join: Callable[[Plan, Sequence[Run]], Run]
) -> Unpacked:
    """Unpack a parcel into a new folder, where the command that made the run resumes it.

    The folder is there when everything is in it, or not at all. Several parcels whose plans differ
    in nothing but seeds become one run of all their seeds; each keeps its own groups of seeds, so
    nothing that was begun is lost. If all are finished, `join` makes their tables one.
    """
    if not hasattr(tarfile, "data_filter"):
        raise FaithscopeError("Unpacking needs Python 3.11.4 or later: update Python.")
    if not parcels:
        raise FaithscopeError("There is no parcel to unpack: give at least one file.")
    indices = [_read_index(file) for file in parcels]
    plans = [_read_plan(file, index) for file, index in zip(parcels, indices, strict=True)]
    plan = _joined(parcels, plans)
    with writing(root):
        _check_new(root)
    _check_room(root, indices)
    temporary = root.absolute().with_name(f".{root.name[:100]}.{secrets.token_hex(4)}")
    try:
        with writing(root), locked(temporary, name=SCRATCH):
            clear_abandoned(temporary.parent, f".{glob.escape(root.name[:100])}.????????")
            parts = [temporary / f"part-{place}" for place in range(len(parcels))]
            for file, part in zip(parcels, parts, strict=True):
                _extract(file, part)
            is_whole = _merge(parts, temporary / "run", plan, join)
            if root.exists():
                root.rmdir()
            (temporary / "run").rename(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Unpacked(
        folder=str(root),
        tasks=sum(index.tasks for index in indices),
        finished=sum(index.finished for index in indices),
        seeds=tuple(seed for group in plan.groups for seed in group),
        is_whole=is_whole,
    )


def _merge(
    parts: Sequence[Path], run: Path, plan: Plan, join: Callable[[Plan, Sequence[Run]], Run]
) -> bool:
    """Make one folder of what parcels held; whether its tables are there, too."""
    if len(parts) == 1:
        replace_file(parts[0] / "plan.json", sealed(plan.content()))
        parts[0].rename(run)
        return is_run(run)
    run.mkdir()
    commands = dict.fromkeys(
        (part / COMMAND).read_bytes().strip() for part in parts if (part / COMMAND).exists()
    )
    if commands:
        (run / COMMAND).write_bytes(b"\n".join(commands) + b"\n")
    replace_file(run / "plan.json", sealed(plan.content()))
    if is_whole := all(is_run(part) for part in parts):
        runs = sorted(map(load_run, parts), key=lambda held: held.manifest.plan.groups)
        save_run(join(plan, runs), run)
    for part in parts:
        for folder in ("tasks", "artifacts", "states"):
            for file in sorted((part / folder).rglob("*")):
                if file.is_file():
                    target = run / file.relative_to(part)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    file.rename(target)
    return is_whole


@contextmanager
def _reading(file: Path) -> Iterator[tuple[tarfile.TarFile, Index]]:
    """An archive open behind its index; what goes wrong is explained in one sentence."""
    try:
        with file.open("rb") as held, gzip.GzipFile(fileobj=held, mode="rb") as packed:
            bounded = _Bounded(packed, _LARGEST_INDEX)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                index = _index(archive)
                bounded.left = index.size + _OVERHEAD * (len(index.files) + 20)
                yield archive, index
    except FaithscopeError:
        raise
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise _broken(file, "it is no archive, or damaged") from None
        raise FaithscopeError(
            f"The parcel '{file}' cannot be read ({error.strerror}): check the path."
        ) from None
    except (tarfile.TarError, zlib.error, EOFError, ValueError, RecursionError, MemoryError) as e:
        raise _broken(file, str(e) if type(e) is ValueError else "it is damaged") from None


def _index(archive: tarfile.TarFile) -> Index:
    """The first member of an archive."""
    member = archive.next()
    if member is None or member.name != INDEX or not member.isreg() or member.size > _LARGEST_INDEX:
        raise ValueError(f"it does not begin with {INDEX}")
    content = archive.extractfile(member)
    assert content is not None
    held = unsealed(content.read())
    if held.get("format") != FORMAT:
        raise ValueError("it was packed by another version of faithscope")
    try:
        index = Index.model_validate_json(as_json(held))
    except ValidationError:
        raise ValueError(f"its {INDEX} is not what it should be") from None
    for name in index.files:
        if not _MEMBER.fullmatch(name) or ".." in name:
            raise ValueError(f"it holds {name[:100]!r}, which is no file of a run")
    return index


def _read_index(file: Path) -> Index:
    with _reading(file) as (_, index):
        return index


def _read_plan(file: Path, index: Index) -> Plan:
    try:
        return Plan.read(index.plan)
    except (ValueError, KeyError, TypeError):
        raise _broken(file, "its plan is not what it should be") from None


def _extract(file: Path, folder: Path) -> None:
    """Put the files of a parcel into a folder, each as its index says."""
    folder.mkdir()
    with _reading(file) as (archive, index):
        left = dict(index.files)
        while (member := archive.next()) is not None:
            entry = left.pop(member.name, None)
            is_plain = member.isreg() and not member.issparse()
            if entry is None or not is_plain or member.size != entry.size:
                raise ValueError(f"{member.name[:100]!r} is not what its index says")
            tarfile.data_filter(member, str(folder))
            content = archive.extractfile(member)
            assert content is not None
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("w+b") as held:
                shutil.copyfileobj(content, held, _CHUNK)
                held.seek(0)
                found = hashlib.file_digest(held, lambda: hashlib.blake2b(digest_size=16))
            if found.hexdigest() != entry.hash:
                raise ValueError(f"{member.name!r} is damaged")
        if left:
            raise ValueError(f"{next(iter(left))!r} is missing")


class _Bounded(io.RawIOBase):
    """A stream of which no more than so many bytes are read."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, left: int) -> None:
        self.stream, self.left = stream, left

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content = self.stream.read(size if size >= 0 else _CHUNK)
        self.left -= len(content)
        if self.left < 0:
            raise ValueError("it holds more than its index says")
        return content


def _joined(parcels: Sequence[Path], plans: Sequence[Plan]) -> Plan:
    """The plan of all seeds."""
    if len(plans) == 1:
        return plans[0]
    first = plans[0]
    for file, other in zip(parcels[1:], plans[1:], strict=True):
        if differing := list(differences(first.without_seeds(), other.without_seeds())):
            raise FaithscopeError(
                f"The runs in '{parcels[0]}' (there) and '{file}' (here) cannot be joined, "
                f"because they differ in more than their seeds ({'; '.join(differing[:3])}): "
                "unpack them one by "
                "one."
            )
    groups = sorted((group for plan in plans for group in plan.groups), key=lambda g: g[0])
    seeds = [seed for group in groups for seed in group]
    if not seeds:
        raise FaithscopeError("Only runs of seeds can be joined: unpack the others one by one.")
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise FaithscopeError(
            f"The parcels share seed {twice[0]}: only runs of other seeds can be joined; unpack "
            "the one with more finished trainings."
        )
    request = first.request.model_copy(update={"seeds": tuple(seeds)})
    return first.model_copy(update={"request": request, "groups": tuple(groups)})


def _check_new(root: Path) -> None:
    is_link = root.is_symlink()
    if is_link or root.exists():
        if is_link or not root.is_dir() or any(root.iterdir()):
            raise FaithscopeError(
                f"'{root}' exists already and is not an empty folder: choose a new one to unpack "
                "into."
            )
        if root.resolve() == Path.cwd():
            raise FaithscopeError("You cannot unpack into the folder you are in: choose a new one.")


def _check_room(root: Path, indices: Sequence[Index]) -> None:
    """Refuse what the disk cannot hold before anything is written: an index can say anything."""
    place = root.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    needed = sum(index.size + _OVERHEAD * len(index.files) for index in indices)
    with writing(root):
        free = shutil.disk_usage(place).free
    if needed > free:
        raise FaithscopeError(
            f"'{root}' needs {needed / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} left: make "
            "room or choose a folder elsewhere."
        )


def _broken(file: Path, why: str) -> FaithscopeError:
    return FaithscopeError(f"The parcel '{file}' cannot be used: {why}. Copy or pack it again.")
