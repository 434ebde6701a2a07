"""The application: how errors are shown, the options that commands share, small helpers.

Only typer and the request are imported in this package. What is heavy is imported inside a
command, so that help answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from faithscope.errors import FaithscopeError, unknown
from faithscope.version import __version__

if TYPE_CHECKING:
    from faithscope.api import Prepared
    from faithscope.result import Result
    from faithscope.runs.scheduler import Forecast

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
        except FaithscopeError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("interrupted: nothing had been begun", err=True)
            raise typer.Exit(130) from None


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


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ↑ shows ?, not a traceback
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # download bars of other libraries
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a line per attempt without a network
    app(prog_name="faithscope")


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


def forecast_of(prepared: Prepared) -> Forecast:
    """What a run will cost, measured."""
    from faithscope.cli.console import waiting

    with waiting("measuring what it will cost"):
        return prepared.forecast()


def carry_out(prepared: Prepared, *, yes: bool = True, silent: bool = False) -> Result:
    """Run with progress, after saying what it costs; Ctrl-C says what is kept."""
    from faithscope.cli.console import note, run_with_progress

    begun, forecast = prepared.is_begun(), None
    if not silent:
        forecast = forecast_of(prepared)
        note(str(forecast))
        if begun:
            note(f"resuming the run in {prepared.out}")
        else:
            ask(forecast, yes, SHORTER[prepared.request.kind])
    try:
        return run_with_progress(prepared, forecast)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {_kept(prepared)}", err=True)
        raise typer.Exit(130) from None


def _kept(prepared: Prepared) -> str:
    """What a run that was stopped leaves behind, in words."""
    if prepared.out is None:
        return "nothing is kept without --out"
    tasks = len(list(prepared.out.glob("tasks/*.json")))
    states = any(prepared.out.glob("states/*"))
    if not tasks and not states:
        return "nothing had been begun"
    some = f"{tasks:,} finished task{'s' * (tasks != 1)}"
    more = " and the last epochs of unfinished ones" if states else ""
    return f"{some}{more} are kept in {prepared.out}; run the same command to resume"


def ask(forecast: Forecast, yes: bool, shorter: str) -> None:
    """Ask before long work, where there is somebody to ask."""
    if yes or forecast.seconds < LONG_SECONDS or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm("Continue?", default=True, err=True):
        typer.echo(f"stopped before any work; {shorter} make it shorter", err=True)
        raise typer.Exit(1)


def only_with(context: typer.Context, mode: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that have no effect beside `mode`."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise FaithscopeError(f"{parameter.opts[0]} has no effect with {mode}: leave it out.")


def check_run(folder: Path) -> None:
    """Refuse a folder that is not there at once, before anything heavy is imported."""
    try:
        there = folder.is_dir()
    except OSError:  # a name too long to be one
        there = False
    if not there:
        raise FaithscopeError(f"There is no folder '{folder}': give the folder of a run.")


def make_folder(folder: Path) -> None:
    """Make a folder to write to, before the work rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FaithscopeError(
            f"The folder '{folder}' cannot be made ({error.strerror}): choose another."
        ) from None
    if not os.access(folder, os.W_OK):
        raise FaithscopeError(f"The folder '{folder}' cannot be written to: choose another.")


def as_data(result: Result) -> dict[str, Any]:
    """A result for a program to read."""
    curves = {"curves": result.curves().to_pylist()} if result.procedures else {}
    return {
        "headline": result.headline(),
        "verdicts": result.verdicts(),
        "warnings": result.warnings(),
        "summary": result.summary().to_pylist(),
        **curves,
        "manifest": result.manifest.content(),
    }
