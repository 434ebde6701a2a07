"""The application: how errors are told, the options that commands share, small helpers.

Only typer is imported in this package. What is heavy is imported inside a command, so that help
answers at once.
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
    from faithscope.probes.perturb.evaluation import Evaluation, Forecast
    from faithscope.probes.retrain.roar import Forecast as RoarForecast
    from faithscope.result import Result

BUNDLED_MODEL, BUNDLED_DATA = "bundled:cifar10_vit", "bundled:cifar10"
ORDER = ("demo", "evaluate", "run", "explain", "roar", "report", "compare", "list", "doctor")
LONG_SECONDS = 15 * 60
"""Work that takes longer asks first, where there is somebody to ask."""


class Commands(TyperGroup):
    """The commands, with their errors told in one line instead of a traceback."""

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
            typer.echo("interrupted: what was not finished is not saved", err=True)
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


ModelName = Annotated[
    str, typer.Option("--model", metavar="NAME", help="timm:…, hf:…, torchvision:… or bundled:…")
]
Methods = Annotated[
    str,
    typer.Option(
        metavar="A,B(OPTION=1),…", help="Methods; 'all' are the papers', 'registered' every one."
    ),
]
Checkpoint = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Weights: safetensors or a torch state dict.")
]
Pretrained = Annotated[
    bool, typer.Option("--pretrained/--no-pretrained", help="Fetch the library's own weights.")
]
K = Annotated[str, typer.Option("--k", metavar="N|auto", help="SaCo's number of groups.")]
Fill = Annotated[
    str, typer.Option(metavar="NAME", help="What replaces removed units; see `list fills`.")
]
Units = Annotated[str, typer.Option(metavar="pixels|patches", help="What is ranked and removed.")]
Upsample = Annotated[
    str, typer.Option(metavar="bilinear|nearest", help="How patch maps become pixel maps.")
]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, all else to stderr.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before long work.")]
Limit = Annotated[
    int | None, typer.Option(metavar="N", help="Use N images, spread evenly over the data.")
]


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


def forecast_of(evaluation: Evaluation) -> Forecast:
    """What an evaluation will cost, measured."""
    from faithscope.cli.console import waiting

    with waiting("measuring what it will cost"):
        return evaluation.forecast()


def ask(
    forecast: Forecast | RoarForecast, yes: bool, shorter: str = "--limit N or fewer --methods"
) -> None:
    """Ask before long work, where there is somebody to ask."""
    if yes or forecast.seconds < LONG_SECONDS or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm("Go on?", default=True, err=True):
        typer.echo(f"stopped before any work; {shorter} make it shorter", err=True)
        raise typer.Exit(1)


def check_run(folder: Path) -> None:
    """Refuse a folder that is not there at once, before anything heavy is imported."""
    try:
        there = folder.is_dir()
    except OSError:  # a name too long to be one
        there = False
    if not there:
        raise FaithscopeError(f"There is no folder '{folder}': give that of a run.")


def make_folder(folder: Path) -> None:
    """Make a folder to write to, before the work rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FaithscopeError(
            f"The folder '{folder}' cannot be made ({error.strerror}): give another."
        ) from None
    if not os.access(folder, os.W_OK):
        raise FaithscopeError(f"The folder '{folder}' cannot be written to: give another.")


def number_or_word(text: str) -> int | str:
    """Read a whole number where there is one; what else is allowed is checked by who uses it."""
    try:
        return int(text)
    except ValueError:
        return text


def as_data(result: Result) -> dict[str, Any]:
    """A result for a program to read."""
    return {
        "headline": result.headline(),
        "verdicts": result.verdicts(),
        "summary": result.summary().to_pylist(),
        "manifest": result.manifest,
    }
