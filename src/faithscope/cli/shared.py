"""The application: how errors are shown, the options that commands share, small helpers.

Only typer and the request are imported in this package. What is heavy is imported inside a
command, so that help answers at once.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from faithscope.errors import FaithscopeError, printable, unknown
from faithscope.request import Place, Request, as_path, as_place
from faithscope.request.remote import RemotePath
from faithscope.version import __version__

if TYPE_CHECKING:
    from faithscope.api import Prepared
    from faithscope.result import Result
    from faithscope.runs.cards import Left
    from faithscope.runs.scheduler import Forecast

SOMETHING_WRONG, ERROR, SOME_FAILED, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143
"""The exit codes beside 0. 1: `compare` or `doctor` found something, or the answer was no; 2: one
sentence says why nothing came of it; 3: some runs of a study, or some tasks of a run on Ray,
failed, and the others are finished."""
BUNDLED_MODEL, BUNDLED_DATA = "bundled:cifar10_vit", "bundled:cifar10"
ORDER = (
    *("demo", "evaluate", "run", "explain", "roar", "report", "compare"),
    *("pack", "unpack", "list", "doctor"),
)
LONG_SECONDS = 15 * 60
"""Work that takes longer asks first, where there is somebody to ask."""
SHORTER = {
    "perturb": "--limit N or fewer --methods",
    "retrain": "fewer --seeds, --levels, --measures or --epochs",
}
"""What makes a run shorter."""


class NoPath(Exception):
    """An argument that cannot be a path; of a ValueError typer would make its own sentence."""


def typed_path(text: str) -> Path:
    """A path as it was typed, with `~` expanded; what cannot be one is refused."""
    try:
        return as_path(text)
    except FaithscopeError as error:
        raise NoPath(str(error)) from None


def typed_place(text: str) -> Place:
    """The place of a run or its page as it was typed, a path or an address."""
    try:
        return as_place(text)
    except FaithscopeError as error:
        raise NoPath(str(error)) from None


path_option = partial(typer.Option, parser=typed_path)
path_argument = partial(typer.Argument, parser=typed_path)
place_option = partial(typer.Option, parser=typed_place)
place_argument = partial(typer.Argument, parser=typed_place)


class Commands(TyperGroup):
    """The commands, with their errors shown in one line instead of a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order in which one meets them."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command; for an unknown one say what may have been meant."""
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            raise unknown("command", cmd_name, self.list_commands(ctx))
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An error that is not ours keeps its traceback."""
        try:
            return super().invoke(ctx)
        except (FaithscopeError, NoPath) as error:
            _remove_empty()
            typer.echo(f"error: {error}", err=True)
            if is_partial(error):
                typer.echo(f"resume: {shlex.join(['faithscope', *sys.argv[1:]])}", err=True)
                raise typer.Exit(SOME_FAILED) from None
            raise typer.Exit(ERROR) from None
        except OSError as error:
            if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO):
                raise
            with suppress(OSError):
                typer.echo(f"error: The output cannot be written ({error.strerror}).", err=True)
            raise typer.Exit(ERROR) from None
        except MemoryError:
            typer.echo("error: Memory ran out: ask for less, or free some.", err=True)
            raise typer.Exit(ERROR) from None
        except KeyboardInterrupt as stop:
            raise stopped(stop) from None


def is_partial(error: Exception) -> bool:
    """Whether some tasks of a run failed, and the others are finished and kept."""
    if "faithscope.runs.scheduler" not in sys.modules:
        return False
    from faithscope.runs.scheduler import TasksFailed

    return isinstance(error, TasksFailed)


def examples(*lines: str) -> str:
    """What a command's help shows at its end."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # importing rich for the help alone costs more than everything else
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("faithscope demo"),
)


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    return f"warning: {printable(str(message))}\n"


def main() -> None:
    """Run the command line."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before we began
            setattr(sys, name, open(os.devnull, "w"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ↑ shows ?, not a traceback
    warnings.formatwarning = _one_line
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # download bars of other libraries
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a line per attempt without a network
    listen()
    try:
        app(prog_name="faithscope")
    except SystemExit as end:
        if end.code:
            leave(end.code)
        raise


# Being stopped


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: it ends work as Ctrl-C does."""


SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_LEFT: list[Callable[[], str]] = [lambda: "before the end"]
"""Says what is left of the work; the last one counts."""


def listen() -> None:
    """Let every signal that asks for an end do what Ctrl-C does; a second one ends at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        for held in SIGNALS:
            signal.signal(held, lambda number, _: os._exit(exit_code(number)))
        ended = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
        if _is_importing(frame):  # a module that is loaded halfway swallows it, or breaks the rest
            os._exit(stopped(ended).exit_code)
        raise ended

    def exit_code(number: int) -> int:
        return INTERRUPTED if number == signal.SIGINT else TERMINATED

    for held in SIGNALS:
        if signal.getsignal(held) is not signal.SIG_IGN:  # as under nohup
            signal.signal(held, stop)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def leave(code: Any) -> None:
    """Do not wait for a thread that reads from a slow disk or a loader that hangs."""
    others = [held for held in threading.enumerate() if held is not threading.main_thread()]
    if any(not held.daemon for held in others):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else ERROR)


def stopped(stop: KeyboardInterrupt) -> typer.Exit:
    """Say how a command was ended and what is left of its work."""
    by_signal = isinstance(stop, Terminated)
    with suppress(OSError):  # with its terminal
        typer.echo(f"{'terminated' if by_signal else 'interrupted'}: {_LEFT[-1]()}", err=True)
    return typer.Exit(TERMINATED if by_signal else INTERRUPTED)


@contextmanager
def saying(left: Callable[[], str]) -> Iterator[None]:
    """Say this of what is left of the work inside, if it is stopped."""
    _LEFT.append(left)
    try:
        yield
    except KeyboardInterrupt as stop:
        raise stopped(stop) from None
    finally:
        _LEFT.pop()


def keeping(out: Place | None, cells: Iterable[str] = ("",)) -> AbstractContextManager[None]:
    """Say what is kept in the folder of a run, or in those of a study's cells, if it is stopped."""
    was_there = isinstance(out, Path) and out.is_dir()

    def left() -> str:
        if isinstance(out, Path) and was_there and not out.is_dir():
            return f"the folder {out} is gone, with what was in it"
        try:
            return _kept(out, cells)
        except OSError:
            return f"what is finished is kept in {out}; run the same command to resume"

    return saying(left)


def _kept(out: Place | None, cells: Iterable[str]) -> str:
    """What is left in the folders of runs, in words."""
    if out is None:
        return "nothing is kept without --out"
    folders = [out / cell for cell in cells]
    runs = [folder for folder in folders if (folder / "manifest.json").exists()]
    others = [folder for folder in folders if folder not in runs]
    tasks = sum(len(list(folder.glob("tasks/*.json"))) for folder in others)
    counts = {"finished run": len(runs), "finished task": tasks}
    parts = [f"{count:,} {what}{'s' * (count != 1)}" for what, count in counts.items() if count]
    if any(state for folder in others for state in folder.glob("states/[!.]*")):
        parts.append("the last epochs of unfinished tasks")
    if not parts:
        return "nothing had been begun"
    is_one = len(parts) == 1 and parts[0].startswith("1 ")
    some = ", ".join([*parts[:-2], " and ".join(parts[-2:])])
    resume = "" if len(runs) == len(folders) else "; run the same command to resume"
    return f"{some} {'is' if is_one else 'are'} kept in {out}{resume}"


Json = Annotated[
    bool, typer.Option("--json", help="Print JSON to stdout, everything else to stderr.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before long work.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it will cost, and do nothing.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"faithscope {__version__}")
        raise typer.Exit


@app.callback()
def faithscope(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Does this explanation tell the truth about this model?"""


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for models this small: more gain little, and lose much on busy cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def forecast_of(prepared: Prepared) -> Forecast:
    """What a run will cost, measured."""
    from faithscope.cli.console import waiting

    with waiting("measuring what it will cost"):
        return prepared.forecast()


def note_left_out(methods: Iterable[Left]) -> None:
    """Name the methods that the model does not allow, before anything is run."""
    from faithscope.cli.console import note
    from faithscope.verdicts.sentences import left_out

    for line in left_out(methods):
        note(line)


def cost_data(forecast: Forecast) -> dict[str, Any]:
    """What a run will cost for a program to read."""
    return {**vars(forecast), "left_out": [held.model_dump() for held in forecast.left_out]}


def say_cost(prepared: Prepared, *, as_json: bool) -> None:
    """What `--dry-run` prints of one run."""
    from faithscope.cli.console import print_json, say

    prepared.is_begun()  # a folder that holds another run is refused
    cost = forecast_of(prepared)
    say(str(cost), stderr=as_json)
    note_left_out(cost.left_out)
    if as_json:
        folder = None if prepared.out is None else str(prepared.out)
        print_json({**cost_data(cost), "folder": folder})


def with_ray(request: Request, doing: str) -> str:
    """What is going on before a run begins: it takes a moment until Ray is there."""
    if request.on == "local":
        return doing
    return f"{'connecting to' if request.address else 'starting'} Ray, {doing}"


def carry_out(prepared: Prepared, *, yes: bool = True, silent: bool = False) -> Result:
    """Run with progress, after saying what it costs."""
    from faithscope.cli.console import note, run_with_progress

    begun, forecast = prepared.is_begun(), None
    if prepared.crew is not None:
        note(str(prepared.crew))
    if not silent:
        forecast = forecast_of(prepared)
        note(str(forecast))
        note_left_out(forecast.left_out)
        if begun:
            note(f"resuming the run in {prepared.out}")
        else:
            ask(forecast, yes, SHORTER[prepared.request.kind])
    return run_with_progress(prepared, forecast)


def ask(forecast: Forecast, yes: bool, shorter: str) -> None:
    """Ask before long work, where there is somebody to ask."""
    if yes or forecast.seconds < LONG_SECONDS or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    try:
        goes_on = typer.confirm("Continue?", default=True, err=True)
    except typer.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise abort.__context__ from None
        goes_on = False  # nobody is there any more
    if not goes_on:
        typer.echo(f"stopped before any work; {shorter} make it shorter", err=True)
        raise typer.Exit(SOMETHING_WRONG)


def only_with(context: typer.Context, mode: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that have no effect beside `mode`."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise FaithscopeError(f"{parameter.opts[0]} has no effect with {mode}: leave it out.")


def check_run(folder: Place) -> None:
    """Refuse a folder that is not there at once, before anything heavy is imported."""
    try:
        there = folder.is_dir()
    except OSError as error:
        if isinstance(folder, RemotePath):
            raise FaithscopeError(
                f"'{folder}' cannot be read ({error.strerror}): check the address, the network and "
                "your credentials."
            ) from None
        there = False  # whose folder may not be looked into
    if not there:
        raise FaithscopeError(f"There is no folder '{folder}': give the folder of a run.")


_MADE = list[Path]()
"""The folders that this command made, inner ones first."""


def make_folder(folder: Place) -> None:
    """Make a folder to write to, before the work rather than after it.

    One with a finished run, or with a study's, may be there only to be read.
    """
    try:
        if isinstance(folder, RemotePath):
            return folder.check_reachable()
        _MADE.extend(held for held in (folder, *folder.parents) if not held.exists())
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FaithscopeError(
            f"The folder '{folder}' cannot be made ({error.strerror}): choose another."
        ) from None
    if not os.access(folder, os.W_OK) and not holds_runs(folder):
        raise FaithscopeError(f"The folder '{folder}' cannot be written to: choose another.")


def _remove_empty() -> None:
    """Remove the folders that were made for what a failed command did not write."""
    while _MADE:
        with suppress(OSError):  # it holds something, or is gone
            _MADE.pop(0).rmdir()


def holds_runs(folder: Path) -> bool:
    """Whether a folder is that of a finished run, or of a study with one."""
    return any(file for name in ("", "*/") for file in folder.glob(f"{name}manifest.json"))


def as_data(result: Result) -> dict[str, Any]:
    """A result for a program to read."""
    curves = {"curves": result.curves().to_pylist()} if result.procedures else {}
    return {
        "headline": result.headline(),
        "verdicts": result.verdicts(),
        "warnings": result.warnings(),
        "left_out": [held.model_dump() for held in result.left_out],
        "summary": result.summary().to_pylist(),
        **curves,
        "manifest": result.manifest.content(),
    }
