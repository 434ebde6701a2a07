"""The folder of a run, written to by one process, for one plan.

    run/plan.json                    what is being run; another request is refused
    run/tasks/ID/TABLE.parquet       the rows of a finished task, and after them ...
    run/tasks/ID.json                ... its card, with the hash of each of its files
    run/artifacts/NAME.safetensors   what tasks leave for others
    run/states/ID.safetensors        how far an unfinished task is
    run/TABLE.parquet                the whole tables, and after them ...
    run/manifest.json                ... what the run is, with their hashes

Every file is put into place in one step and its hash is kept, so after a kill at any moment a file
is whole, old or absent, and a damaged one is found, named and made again. What a kill left half
written goes when the folder is opened the next time. A disk that does not answer changes nothing:
what cannot be read now may be whole.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout
from pydantic import Field
from safetensors import SafetensorError, safe_open

from faithscope.errors import FaithscopeError
from faithscope.runs.cards import Typed
from faithscope.runs.checks import check_rows
from faithscope.runs.files import (
    Tensors,
    as_json,
    digest,
    read_checked,
    read_parquet,
    read_tensors,
    reason,
    replace_file,
    sealed,
    tensor_file,
    unsealed,
    write_parquet,
)
from faithscope.runs.plan import Plan, check_same
from faithscope.runs.run import Run, is_run, load_run, save_run
from faithscope.runs.tables import SCHEMAS
from faithscope.runs.task import Tables, Task

DAMAGED = (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError)
"""What reading a file ends in that is cut, changed or gone; any other OSError is the disk's."""
IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)
FOLDERS = ("tasks", "artifacts", "states")
SCRATCH = ".scratch"
"""The lock of a temporary folder: one that nobody holds is of a process that was killed."""
_HALF_WRITTEN = re.compile(r"\.(plan\.json|manifest\.json|report\.html|\w+\.parquet)\.[0-9a-f]{8}")


class StoreError(FaithscopeError):
    """Files cannot be read or written, which may pass."""


class Card(Typed):
    """What is known of a finished task: its input, and the hashes of what it wrote."""

    task: str
    kind: str
    plan: str = ""
    """The mark of the plan."""
    input: str = ""
    tables: dict[str, str] = Field(default_factory=dict)
    artifacts: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Done:
    """A finished task: its card and its rows."""

    card: Card
    tables: Tables


@dataclass(eq=False)
class Store:
    """The files of one run; without `is_lasting` only artifacts are, since nobody comes back.

    One that `looks_on` changes nothing: what is damaged is left there, and not spoken of. With a
    `refusal`, which says why, it cannot be written to, and a finished run is there to be read.
    """

    root: Path
    plan: Plan | None = None
    """Whose files they are: what is of another one is not of this run, whatever it is called."""
    is_lasting: bool = True
    looks_on: bool = False
    refusal: FaithscopeError | None = None
    hashes: dict[str, str] = field(default_factory=dict)
    """Of artifacts, by name, as the cards of their makers have them."""

    def __post_init__(self) -> None:
        self.mark = "" if self.plan is None else self.plan.mark

    @staticmethod
    @contextmanager
    def open(root: Path | None, plan: Plan) -> Iterator[Store]:
        """Begin a run in a folder, or resume the one that is there if it is the same.

        A finished run is read where nothing can be written, too.
        """
        if root is None:
            with scratch() as folder:
                yield Store(folder, is_lasting=False)
            return
        with locked(root, reads=True) as refusal:
            if refusal is None:
                begin(root, plan)
                clear_away(root)
            elif not is_run(root) or not check_folder(root, plan):
                raise refusal
            yield Store(root, plan, looks_on=refusal is not None, refusal=refusal)

    # Tasks

    def done(self, task: Task) -> Done | None:
        """A task that is finished; None if it is not, or one of its files is damaged."""
        file = self._card_file(task.id)
        try:
            if not file.exists():
                return None
            card = Card.model_validate_json(as_json(unsealed(file.read_bytes())))
            if card.task != task.id or card.plan != self.mark:
                raise ValueError("its card is of another task or run")
            tables = {}
            for name, expected in card.tables.items():
                content = read_checked(self._table_file(task.id, name), expected)
                tables[name] = read_parquet(content, SCHEMAS[name])
                if self.plan is not None:
                    check_rows(self.plan, name, tables[name])
        except DAMAGED as error:
            self._damaged(f"The task '{task.id}' of '{self.root}'", reason(error))
            self.remove(task)
            return None
        except OSError as error:
            raise unreadable(file, error) from error
        self.hashes |= card.artifacts
        return Done(card, tables)

    def write(self, task: Task, card: Card, tables: Tables) -> Card:
        """Keep a finished task: its rows, then its card; how far it was is not needed any more."""
        if not self.is_lasting:
            return card
        with self._writing():
            hashes = {
                name: write_parquet(self._table_file(task.id, name), table)
                for name, table in tables.items()
            }
            card = card.model_copy(update={"tables": hashes})
            self.write_card(card)
            self._state_file(task.id).unlink(missing_ok=True)
        return card

    def read_table(self, card: Card, table: str) -> pa.Table | None:
        """The rows of a finished task in one table, None if it has none."""
        if table not in card.tables:
            return None
        file = self._table_file(card.task, table)
        try:
            return read_parquet(read_checked(file, card.tables[table]), SCHEMAS[table])
        except DAMAGED:
            raise self._lost(file) from None
        except OSError as error:
            raise unreadable(file, error) from error

    def write_card(self, card: Card) -> None:
        """Say that a task is finished."""
        if not self.is_lasting:
            return
        with self._writing():
            (self.root / "tasks").mkdir(exist_ok=True)
            card = card.model_copy(update={"plan": self.mark})
            replace_file(self._card_file(card.task), sealed(card.model_dump(mode="json")))

    def remove(self, task: Task) -> None:
        """Forget a task, so that it is done again."""
        if not self.looks_on:
            with self._writing():
                self._card_file(task.id).unlink(missing_ok=True)
            shutil.rmtree(self.root / "tasks" / task.id, ignore_errors=True)

    def finished_tasks(self) -> set[str]:
        """The names of the tasks that are said to be finished."""
        return {file.stem for file in (self.root / "tasks").glob("*.json")}

    # Artifacts

    def has_artifact(self, name: str) -> bool:
        """Whether an artifact is there, as it was written."""
        file = self._artifact_file(name)
        try:
            if not file.exists():
                return False
            read_checked(file, self.hashes.get(name))
        except DAMAGED as error:
            self._discard(file, error)
            return False
        except OSError as error:
            raise unreadable(file, error) from error
        return True

    def is_spoilt(self, name: str) -> bool:
        """Whether an artifact is there, but not as it was written; one that is gone is not."""
        file = self._artifact_file(name)
        try:
            if file.exists():
                read_checked(file, self.hashes.get(name))
        except DAMAGED as error:
            self._damaged(f"'{file}'", reason(error))
            return True
        except OSError as error:
            raise unreadable(file, error) from error
        return False

    def has_tensor(self, name: str, start: str) -> bool:
        """Whether an artifact is there with a tensor called so, or so at its start."""
        try:
            with safe_open(self._artifact_file(name), "pt") as file:
                return any(held.startswith(start) for held in file.keys())
        except (OSError, SafetensorError):
            return False

    def read_artifact(self, name: str) -> tuple[Tensors, Mapping[str, str]]:
        """The tensors of an artifact and what they say of themselves."""
        file = self._artifact_file(name)
        try:
            return read_tensors(read_checked(file, self.hashes.get(name)))
        except DAMAGED:
            raise self._lost(file) from None
        except OSError as error:
            raise unreadable(file, error) from error

    def write_artifact(self, name: str, tensors: Tensors, about: Mapping[str, str]) -> str:
        """Keep an artifact; gives its hash, for the card of its maker."""
        content = tensor_file(tensors, about)
        with self._writing():
            file = self._artifact_file(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, content)
        self.hashes[name] = digest(content)
        return self.hashes[name]

    def drop_artifact(self, name: str) -> None:
        """Forget an artifact that nobody needs any more."""
        with self._writing():
            self._artifact_file(name).unlink(missing_ok=True)

    # How far an unfinished task is

    def read_state(
        self, task: Task, about: Mapping[str, str]
    ) -> tuple[Tensors, dict[str, str]] | None:
        """The kept state of a task, if it is of this very input."""
        file = self._state_file(task.id)
        try:
            if not file.exists():
                return None
            tensors, said = read_tensors(file.read_bytes())
            known = {**about, "plan": self.mark}
            if any(said.get(key) != value for key, value in known.items()):
                raise ValueError("it is of another input or run")
        except DAMAGED as error:
            self._discard(file, error)
            return None
        except OSError as error:
            raise unreadable(file, error) from error
        return tensors, said

    def write_state(self, task: Task, tensors: Tensors, about: Mapping[str, str]) -> None:
        """Keep how far a task is."""
        if not self.is_lasting:
            return
        with self._writing():
            self._state_file(task.id).parent.mkdir(exist_ok=True)
            content = tensor_file(tensors, {**about, "plan": self.mark})
            replace_file(self._state_file(task.id), content)

    # The whole run

    def finished(self) -> Run | None:
        """The run, if it is whole; damaged tables are named, and to be made again."""
        if not self.is_lasting or not is_run(self.root):
            return None
        try:
            return load_run(self.root)
        except FaithscopeError as error:
            cause = error.__context__
            if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                raise unreadable(self.root, cause) from cause
            if self.refusal is not None:
                raise FaithscopeError(
                    f"The result in '{self.root}' is damaged ({error.reason}) and cannot be made "
                    "again there, where nothing can be written: copy the folder, and run the same "
                    "command with the copy."
                ) from None
            self._damaged(f"The result in '{self.root}'", error.reason)
            if not self.looks_on:  # until it is made again, it is not finished
                with self._writing():
                    (self.root / "manifest.json").unlink(missing_ok=True)
            return None

    def finish(self, run: Run, *, keeps_tasks: bool) -> Run:
        """Write the whole run; then the files of its tasks go, if they are not to be kept."""
        if not self.is_lasting:
            return run
        with self._writing():
            run = save_run(run, self.root)
        shutil.rmtree(self.root / "states", ignore_errors=True)
        if not keeps_tasks:
            shutil.rmtree(self.root / "tasks", ignore_errors=True)
        return run

    def _lost(self, file: Path) -> StoreError:
        if not self.root.exists():
            return gone(self.root)
        return StoreError(f"'{file}' was damaged during the run: run the same command again.")

    def _damaged(self, what: str, why: str) -> None:
        if not self.looks_on:
            warnings.warn(f"{what} is damaged ({why}): it is computed again.", stacklevel=3)

    def _discard(self, file: Path, error: Exception) -> None:
        self._damaged(f"'{file}'", reason(error))
        if not self.looks_on:
            with self._writing():
                file.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say in a sentence what is wrong with the folder.

        One that was removed must not come to life again without its plan.
        """
        try:
            if self.is_lasting and not (self.root / "plan.json").exists():
                raise gone(self.root)
            yield
        except OSError as error:
            raise cannot_write(self.root, error, is_lasting=self.is_lasting) from error

    def _card_file(self, task: str) -> Path:
        return self.root / "tasks" / f"{task}.json"

    def _table_file(self, task: str, table: str) -> Path:
        return self.root / "tasks" / task / f"{table}.parquet"

    def _artifact_file(self, name: str) -> Path:
        return self.root / "artifacts" / f"{name}.safetensors"

    def _state_file(self, task: str) -> Path:
        return self.root / "states" / f"{task}.safetensors"


@contextmanager
def locked(
    root: Path, *, reads: bool = False, name: str = ".lock"
) -> Iterator[FaithscopeError | None]:
    """Make the folder and keep every other process from writing to it.

    With `reads`, a folder that is there and cannot be written to is no error: gives what it is.
    """
    lock = FileLock(root / name)
    refusal = None
    try:
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        raise FaithscopeError(
            f"Another run is writing to '{root}': wait for it, or choose another folder."
        ) from None
    except FaithscopeError as error:
        if not (reads and os.path.isdir(root)):
            raise
        refusal = error
    try:
        yield refusal
    finally:
        lock.release()


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder for a run that is not kept; those of killed ones go first."""
    try:
        clear_abandoned(Path(tempfile.gettempdir()), "faithscope-*")
        made = tempfile.TemporaryDirectory(prefix="faithscope-", ignore_cleanup_errors=True)
    except OSError as error:
        raise FaithscopeError(
            f"No temporary folder can be made ({error.strerror}): set TMPDIR to one with room, or "
            "keep the run in a folder (out=…)."
        ) from None
    with made as folder, locked(Path(folder), name=SCRATCH):
        yield Path(folder)


def clear_abandoned(place: Path, pattern: str) -> None:
    """Remove the temporary folders of processes that were killed, and of this user only."""
    for folder in place.glob(pattern):
        with suppress(OSError, Timeout):
            about = folder.lstat()
            is_others = hasattr(os, "getuid") and about.st_uid != os.getuid()
            if is_others or not stat.S_ISDIR(about.st_mode):
                continue
            if (folder / SCRATCH).is_file():
                with FileLock(folder / SCRATCH, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)


def clear_away(root: Path) -> None:
    """Remove what a kill left half written."""
    left = [file for file in root.iterdir() if _HALF_WRITTEN.fullmatch(file.name)]
    for folder in FOLDERS:
        left += (root / folder).rglob(".*.*.*")
    for file in left:
        with suppress(OSError):
            file.unlink()


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Say in a sentence that the disk is full or the folder cannot be written to."""
    try:
        yield
    except Timeout:  # of the lock, which is an OSError, too
        raise
    except OSError as error:
        raise cannot_write(root, error) from error


def cannot_write(root: Path, error: OSError, *, is_lasting: bool = True) -> StoreError:
    """The sentence for what cannot be written."""
    why = error.strerror or type(error).__name__
    if not is_lasting:
        return StoreError(
            f"The temporary folder '{root}' cannot be written to ({why}): make room, set TMPDIR to "
            "another folder, or keep the run in one (out=…)."
        )
    if error.errno in IN_THE_WAY and (error.filename2 or error.filename):
        return StoreError(
            f"'{error.filename2 or error.filename}' is in the way of a run, which cannot be "
            f"written to '{root}' ({why}): remove it, or choose another folder."
        )
    return StoreError(
        f"'{root}' cannot be written to ({why}): make room or choose another folder; what is "
        "finished is kept; run the same command to resume."
    )


def unreadable(file: Path, error: OSError) -> StoreError:
    """The sentence for a file that is there and cannot be read: it may be whole, and stays."""
    why = error.strerror or type(error).__name__
    return StoreError(
        f"'{file}' cannot be read ({why}): repair or remove it, and run the same command again."
    )


def gone(root: Path) -> StoreError:
    """The sentence for a folder that was removed while a run was writing to it."""
    return StoreError(
        f"The folder '{root}' is gone, with what was finished in it: put it back and run the same "
        "command to resume, or run it to begin anew."
    )


def begin(root: Path, plan: Plan) -> None:
    """Write what will be run; refuse a folder of another run, naming what differs."""
    if not check_folder(root, plan):
        with writing(root):
            if (root / "plan.json").exists():  # of a run of which nothing was finished
                for folder in FOLDERS:
                    shutil.rmtree(root / folder, ignore_errors=True)
            replace_file(root / "plan.json", sealed(plan.content()))


def check_folder(root: Path, plan: Plan) -> bool:
    """Whether the run of a plan was begun in a folder; one that holds anything else is refused.

    The plan of another run of which nothing is finished is nothing: it was refused, or stopped.
    """
    there = read_plan(root)
    if there is not None and (there.content() == plan.content() or is_worked_on(root)):
        check_same(there, plan, root)
        return True
    if is_run(root):
        raise FaithscopeError(
            f"'{root}' holds a result already: choose another folder, or remove it."
        )
    if there is None and (root / "tasks").exists():
        raise FaithscopeError(
            f"'{root}' holds finished tasks but no plan.json that says what they are of: choose "
            "another folder, or remove it."
        )
    return False


def is_worked_on(root: Path) -> bool:
    """Whether something in the folder of a run would be lost if another one began there."""
    patterns = ("tasks/*.json", "states/[!.]*", "artifacts/**/*.safetensors")
    return is_run(root) or any(file for pattern in patterns for file in root.glob(pattern))


def sees_run(root: Path, plan: Plan | None) -> bool:
    """Whether the folder of a run is seen from here; without a plan, a temporary one."""
    if plan is None:
        return (root / SCRATCH).exists()
    there = read_plan(root)
    return there is not None and there.content() == plan.content()


def begun_plan(root: Path) -> Plan | None:
    """The plan of a run of which something is there, None if there is none."""
    there = read_plan(root)
    return there if there is not None and is_worked_on(root) else None


def read_plan(root: Path) -> Plan | None:
    """The plan of the run in a folder, None if there is none; refuse one that cannot be read."""
    file = root / "plan.json"
    try:
        if not file.exists():
            return None
        content: Any = unsealed(file.read_bytes())
        return Plan.read(content)
    except DAMAGED as error:
        raise FaithscopeError(
            f"'{file}' is damaged or of another version of faithscope ({reason(error)}), so what "
            "was run there is unknown: put it back, or choose another folder."
        ) from None
    except OSError as error:
        raise unreadable(file, error) from None
