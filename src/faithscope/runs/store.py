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

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from filelock import FileLock, Timeout
from pydantic import Field
from safetensors import SafetensorError, safe_open

from faithscope.errors import FaithscopeError, warn
from faithscope.hashing import digest
from faithscope.models.tensor_files import Tensors, read_tensors, tensor_file
from faithscope.request.paths import Place
from faithscope.runs.cards import Typed
from faithscope.runs.checks import check_rows
from faithscope.runs.files import (
    StoreError,
    as_json,
    cannot_write,
    check_digest,
    each,
    read_checked,
    read_if_there,
    read_parquet,
    reading,
    reason,
    remove_tree,
    replace_file,
    sealed,
    unreadable,
    unsealed,
    write_parquet,
    writing,
)
from faithscope.runs.lock import Lock, locked
from faithscope.runs.plan import Plan, check_same
from faithscope.runs.run import Run, is_run, load_run, save_run
from faithscope.runs.saved import Rows, write_rows
from faithscope.runs.tables import SCHEMAS, joined, passed_on
from faithscope.runs.task import Tables, Task

DAMAGED = (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError)
"""What reading a file ends in that is cut, changed or gone; any other OSError is the disk's."""
PLAN_SEEN = 10.0
"""Seconds for which the plan at an address is believed to be there; a look has its price."""
FOLDERS = ("tasks", "artifacts", "states")
SCRATCH = ".scratch"
"""The lock of a temporary folder: one that nobody holds is of a process that was killed."""
_HALF_WRITTEN = re.compile(r"\.(plan\.json|manifest\.json|report\.html|\w+\.parquet)\.[0-9a-f]{8}")


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

    root: Place
    plan: Plan | None = None
    """Whose files they are: what is of another one is not of this run, whatever it is called."""
    is_lasting: bool = True
    looks_on: bool = False
    refusal: FaithscopeError | None = None
    lock: Lock = field(default_factory=Lock)
    """Held by the one that opened the folder; others of its run leave artifacts and states."""
    hashes: dict[str, str] = field(default_factory=dict)
    """Of artifacts, by name, as the cards of their makers have them."""

    def __post_init__(self) -> None:
        self.mark = "" if self.plan is None else self.plan.mark
        self._seen = -PLAN_SEEN
        self._cards: dict[str, bytes | None] | None = None
        self._left: set[str] | None = None

    @staticmethod
    @contextmanager
    def open(root: Place | None, plan: Plan) -> Iterator[Store]:
        """Begin a run in a folder, or resume the one that is there if it is the same.

        A finished run is read where nothing can be written, too.
        """
        if root is None:
            with scratch() as folder:
                yield Store(folder, is_lasting=False)
            return
        with locked(root, reads=True) as lock:
            if (refusal := lock.refusal) is None:
                begin(root, plan)
                clear_away(root)
            elif not is_run(root) or not check_folder(root, plan):
                raise refusal
            yield Store(root, plan, looks_on=refusal is not None, refusal=refusal, lock=lock)

    # Tasks

    def done(self, task: Task) -> Done | None:
        """A task that is finished; None if it is not, or one of its files is damaged."""
        file = self._card_file(task.id)
        try:
            if (content := self._read_card(task.id)) is None:
                return None
            card = Card.model_validate_json(as_json(unsealed(content)))
            if card.task != task.id or card.plan != self.mark:
                raise ValueError("its card is of another task or run")
            hashes = card.tables

            def read(name: str) -> pa.Table:
                held = read_checked(self._table_file(task.id, name), hashes[name])
                table = read_parquet(held, SCHEMAS[name])
                if self.plan is not None:
                    check_rows(self.plan, name, table)
                return table

            tables = dict(zip(hashes, each(self.root, read, hashes), strict=True))
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

            def write(name: str) -> str:
                return write_parquet(self._table_file(task.id, name), [tables[name]])

            hashes = dict(zip(tables, each(self.root, write, tables), strict=True))
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
            content = sealed(card.model_dump(mode="json"))
            replace_file(self._card_file(card.task), content)
            if self._cards is not None:
                self._cards[card.task] = content
            if self._left is not None:
                self._left |= card.artifacts.keys()

    def remove(self, task: Task) -> None:
        """Forget a task, so that it is done again."""
        if not self.looks_on:
            with self._writing():
                self._card_file(task.id).unlink(missing_ok=True)
            remove_tree(self.root / "tasks" / task.id)
            if self._cards is not None:
                self._cards.pop(task.id, None)

    def finished_tasks(self) -> set[str]:
        """The names of the tasks that are said to be finished."""
        with reading(self.root):
            return {file.stem for file in (self.root / "tasks").glob("*.json")}

    def _read_card(self, task: str) -> bytes | None:
        """The card of a task, if there is one: at an address all of them are read at once.

        Only the holder of the lock writes cards, and whoever looks on does so for a moment.
        """
        if isinstance(self.root, Path):
            return read_if_there(self._card_file(task))
        if self._cards is None:
            files = list((self.root / "tasks").glob("*.json"))
            contents = each(self.root, read_if_there, files)
            self._cards = dict(zip([file.stem for file in files], contents, strict=True))
        return self._cards.get(task)

    # Artifacts

    def has_artifact(self, name: str) -> bool:
        """Whether an artifact is there, as it was written."""
        file = self._artifact_file(name)
        try:
            if (content := read_if_there(file)) is None:
                return False
            check_digest(file, content, self.hashes.get(name))
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
            if (content := read_if_there(file)) is not None:
                check_digest(file, content, self.hashes.get(name))
        except DAMAGED as error:
            self._damaged(f"'{file}'", reason(error))
            return True
        except OSError as error:
            raise unreadable(file, error) from error
        return False

    def has_tensor(self, name: str, start: str) -> bool:
        """Whether an artifact is there with a tensor called so, or so at its start."""
        file = self._artifact_file(name)
        if isinstance(file, Path):
            try:
                with safe_open(file, "pt") as held:
                    return any(name.startswith(start) for name in held.keys())
            except (OSError, SafetensorError):
                return False
        with reading(file):
            content = read_if_there(file)
        try:
            return content is not None and any(
                name.startswith(start) for name in read_tensors(content)[0]
            )
        except ValueError:
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
        if self._left is not None:
            self._left.add(name)
        return self.hashes[name]

    def drop_artifact(self, name: str) -> None:
        """Forget an artifact that nobody needs any more."""
        if self._may_be_left(name):
            with self._writing():
                self._artifact_file(name).unlink(missing_ok=True)

    def _may_be_left(self, name: str) -> bool:
        """Whether an artifact can be there: at an address they are listed once.

        Of what tasks leave afterwards, here or elsewhere, their cards tell.
        """
        if isinstance(self.root, Path):
            return True
        if self._left is None:
            with reading(self.root):
                files = self.root.glob("artifacts/**/*.safetensors")
                start = len(str(self._artifact_file(""))) - len(".safetensors")
                self._left = {str(file)[start : -len(".safetensors")] for file in files}
        was_left = name in self._left
        self._left.discard(name)
        return was_left

    # How far an unfinished task is

    def read_state(
        self, task: Task, about: Mapping[str, str]
    ) -> tuple[Tensors, dict[str, str]] | None:
        """The kept state of a task, if it is of this very input."""
        file = self._state_file(task.id)
        try:
            if (content := read_if_there(file)) is None:
                return None
            tensors, said = read_tensors(content)
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

    def join(self, table: str, parts: Iterable[pa.Table]) -> Rows:
        """The rows of all tasks in one table, which is written while they are read."""
        found = passed_on(table, parts)
        if not self.is_lasting or not isinstance(self.root, Path):
            return joined([*found])
        with self._writing():
            return write_rows(self.root / f"{table}.parquet", found)[1]

    def finish(self, run: Run, *, keeps_tasks: bool) -> Run:
        """Write the whole run; then the files of its tasks go, if they are not to be kept."""
        if not self.is_lasting:
            return run
        self._seen = -PLAN_SEEN
        with self._writing():
            run = save_run(run, self.root)
        remove_tree(self.root / "states")
        if not keeps_tasks:
            remove_tree(self.root / "tasks")
        return run

    def _lost(self, file: Place) -> StoreError:
        with reading(self.root):
            if not (self.root / "plan.json" if self.is_lasting else self.root).exists():
                return gone(self.root)
        return StoreError(f"'{file}' was damaged during the run: run the same command again.")

    def _damaged(self, what: str, why: str) -> None:
        if not self.looks_on:
            warn(f"{what} is damaged ({why}): it is computed again.")

    def _discard(self, file: Place, error: Exception) -> None:
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
            self.lock.check()
            if self.is_lasting and time.monotonic() - self._seen >= PLAN_SEEN:
                if not (self.root / "plan.json").exists():
                    raise gone(self.root)
                if not isinstance(self.root, Path):
                    self._seen = time.monotonic()
            yield
        except OSError as error:
            raise cannot_write(self.root, error, is_lasting=self.is_lasting) from error

    def _card_file(self, task: str) -> Place:
        return self.root / "tasks" / f"{task}.json"

    def _table_file(self, task: str, table: str) -> Place:
        return self.root / "tasks" / task / f"{table}.parquet"

    def _artifact_file(self, name: str) -> Place:
        return self.root / "artifacts" / f"{name}.safetensors"

    def _state_file(self, task: str) -> Place:
        return self.root / "states" / f"{task}.safetensors"


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


def clear_away(root: Place) -> None:
    """Remove what a kill left half written; at an address a file comes in one step."""
    if not isinstance(root, Path):
        return
    left = [file for file in root.iterdir() if _HALF_WRITTEN.fullmatch(file.name)]
    for folder in FOLDERS:
        left += (root / folder).rglob(".*.*.*")
    for file in left:
        with suppress(OSError):
            file.unlink()


def gone(root: Place) -> StoreError:
    """The sentence for a folder that was removed while a run was writing to it."""
    return StoreError(
        f"The folder '{root}' is gone, with what was finished in it: put it back and run the same "
        "command to resume, or run it to begin anew."
    )


def begin(root: Place, plan: Plan) -> None:
    """Write what will be run; refuse a folder of another run, naming what differs."""
    if not check_folder(root, plan):
        with writing(root):
            if (root / "plan.json").exists():  # of a run of which nothing was finished
                for folder in FOLDERS:
                    remove_tree(root / folder)
            replace_file(root / "plan.json", sealed(plan.content()))


def check_folder(root: Place, plan: Plan) -> bool:
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
    with reading(root):
        has_tasks = there is None and (root / "tasks").exists()
    if has_tasks:
        raise FaithscopeError(
            f"'{root}' holds finished tasks but no plan.json that says what they are of: choose "
            "another folder, or remove it."
        )
    return False


def is_worked_on(root: Place) -> bool:
    """Whether something in the folder of a run would be lost if another one began there."""
    patterns = ("tasks/*.json", "states/[!.]*", "artifacts/**/*.safetensors")
    with reading(root):
        return is_run(root) or any(file for pattern in patterns for file in root.glob(pattern))


def sees_run(root: Place, plan: Plan | None) -> bool:
    """Whether the folder of a run is seen from here; without a plan, a temporary one."""
    if plan is None:
        return (root / SCRATCH).exists()
    there = read_plan(root)
    return there is not None and there.content() == plan.content()


def begun_plan(root: Place) -> Plan | None:
    """The plan of a run of which something is there, None if there is none."""
    there = read_plan(root)
    return there if there is not None and is_worked_on(root) else None


def read_plan(root: Place) -> Plan | None:
    """The plan of the run in a folder, None if there is none; refuse one that cannot be read."""
    file = root / "plan.json"
    try:
        content = read_if_there(file)
        return None if content is None else Plan.read(unsealed(content))
    except DAMAGED as error:
        raise FaithscopeError(
            f"'{file}' is damaged or of another version of faithscope ({reason(error)}), so what "
            "was run there is unknown: put it back, or choose another folder."
        ) from None
    except OSError as error:
        raise unreadable(file, error) from None
