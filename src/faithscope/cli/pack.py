"""`faithscope pack` and `unpack`: a run as one archive, to resume elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.shared import (
    Json,
    app,
    check_run,
    examples,
    path_argument,
    path_option,
    place_argument,
)
from faithscope.errors import FaithscopeError
from faithscope.request import Place

if TYPE_CHECKING:
    from faithscope.runs.parcel import Unpacked


@app.command(epilog=examples("faithscope pack runs/babi1", "faithscope pack run --out run.tar.gz"))
def pack(
    run: Annotated[Any, place_argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[
        Path | None,
        path_option(metavar="FILE.tar.gz", help="The archive. [default: RUN.tar.gz]"),
    ] = None,
    states: Annotated[
        bool, typer.Option("--states", help="Include unfinished trainings (large).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Pack a run into one file, to resume or read it elsewhere."""
    pack_to(run, out, states, as_json)


@app.command(
    epilog=examples(
        "faithscope unpack run.tar.gz --out run",
        "faithscope unpack seeds01.tar.gz seeds23.tar.gz --out run   # runs of other seeds as one",
    )
)
def unpack(
    files: Annotated[
        list[Path],
        path_argument(metavar="FILE.tar.gz", help="Archives that `pack` wrote."),
    ],
    out: Annotated[Path, path_option(metavar="RUN", help="A new folder for the run.")],
    as_json: Json = False,
) -> None:
    """Unpack a run; runs that differ only in their seeds become one."""
    unpack_to(files, out, as_json)


def pack_to(run: Place, out: Path | None, states: bool, as_json: bool) -> None:
    """Pack a run, and say how it is unpacked."""
    from faithscope.cli.console import print_json, say, say_lines, waiting

    check_run(run)
    with waiting("packing"):
        from faithscope.api import pack_run

        parcel = pack_run(run, out, states=states)
    folder = str(run) if isinstance(run, Path) else run.name  # it is unpacked on a machine
    unpack = shlex.join(["faithscope", "unpack", parcel.file, "--out", folder])
    if as_json:
        return print_json({"run": str(run), **parcel.model_dump(), "unpack": unpack})
    done = f"{parcel.finished:,} of {parcel.tasks:,} tasks" if parcel.tasks else "the result"
    say(f"packed {done} of {run} into {parcel.file}, {_megabytes(parcel.size)}; unpack it with")
    say_lines(unpack)


def unpack_to(files: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """Unpack a run, or several into one, and say how it is resumed."""
    from faithscope.cli.console import print_json, say, waiting

    if out is None:
        raise FaithscopeError("Unpacking needs --out, a new folder for the run.")
    for file in files:
        if not file.is_file():
            raise FaithscopeError(f"There is no file '{file}': give an archive that `pack` wrote.")
    with waiting("unpacking"):
        from faithscope.api import unpack_run

        found = unpack_run(files, out)
    following = _next(found, len(files) > 1)
    if as_json:
        return print_json({**found.model_dump(), "next": following})
    done = f"{found.finished:,} of {found.tasks:,} tasks" if found.tasks else "a finished run"
    say(f"unpacked {done} into {out}; {following}")


def _next(run: Unpacked, is_joined: bool) -> str:
    """What to do with a run that was unpacked."""
    folder = shlex.quote(run.folder)
    if run.is_whole:
        return f"next: faithscope report {folder}"
    options = f"--seeds {_seeds(run.seeds)} --out {folder}" if is_joined else f"--out {folder}"
    return f"the command that made the run resumes it with {options}"


def _seeds(seeds: Sequence[int]) -> str:
    """Seeds as --seeds takes them: a number alone would be how many.

    >>> _seeds([0, 2]), _seeds([3])
    ('0,2', '3,')
    """
    return f"{seeds[0]}," if len(seeds) == 1 else ",".join(map(str, seeds))


def _megabytes(size: int) -> str:
    """Bytes, for people.

    >>> _megabytes(15_000_000), _megabytes(2_300)
    ('15.0 MB', '0.002 MB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e6:.3f} MB"
