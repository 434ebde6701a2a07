"""`faithscope roar --pack` and `--unpack`: a run in small files, to go on with elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from faithscope.cli.shared import check_run
from faithscope.errors import FaithscopeError

if TYPE_CHECKING:
    from faithscope.probes.retrain.parcel import Unpacked


def pack_to(run: Path, out: Path | None, part_size: float, states: bool, as_json: bool) -> None:
    """Pack a run, and say how it is unpacked."""
    from faithscope.cli.console import print_json, say, say_lines, waiting

    check_run(run)
    whole = run if run.name not in ("", "..") else run.resolve()
    folder = out or whole.with_name(f"{whole.name}.parcel")
    with waiting("packing"):
        from faithscope.probes.retrain.parcel import pack_run

        parcel = pack_run(run, folder, part_megabytes=part_size, states=states)
    sizes = parcel.sizes
    unpack = shlex.join(["faithscope", "roar", "--unpack", str(folder), "--out", str(run)])
    if as_json:
        return print_json(
            {
                "run": str(run),
                "parcel": str(folder),
                "trainings": parcel.trainings,
                "finished": parcel.finished,
                "files": len(sizes),
                "bytes": sum(sizes),
                "largest": max(sizes),
                "unpack": unpack,
            }
        )
    say(
        f"packed {_progress(parcel.finished, parcel.trainings)} of {run} into {len(sizes)} files "
        f"of {folder}, {_megabytes(sum(sizes))}, the largest {_megabytes(max(sizes))}; elsewhere "
        "unpack them with"
    )
    say_lines(unpack)


def unpack_to(folders: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """Unpack a run, or several into one, and say how it goes on."""
    from faithscope.cli.console import print_json, say, waiting

    if out is None:
        raise FaithscopeError("--unpack needs --out, the folder in which the run is to go on.")
    for folder in folders:
        check_run(folder)
    with waiting("unpacking"):
        from faithscope.probes.retrain.parcel import unpack_run

        found = unpack_run(folders, out)
    if as_json:
        return print_json(
            {
                "run": str(out),
                "trainings": found.trainings,
                "finished": found.finished,
                "seeds": list(found.seeds),
                "report": found.is_whole,
                "next": _next(found, len(folders) > 1),
            }
        )
    say(
        f"unpacked {_progress(found.finished, found.trainings)} into {out}; "
        f"{_next(found, len(folders) > 1)}"
    )


def _next(run: Unpacked, is_joined: bool) -> str:
    """What to do with a run that was unpacked."""
    folder = shlex.quote(str(run.root))
    if run.is_whole:
        return f"finished: faithscope report {folder}"
    options = f"--seeds {_seeds(run.seeds)} --out {folder}" if is_joined else f"--out {folder}"
    if run.finished == run.trainings:
        return (
            f"only its tables are missing: the command that made the run makes them with {options}"
        )
    again = (
        "; trainings whose weights are gone, and that others need, are trained again"
        if is_joined
        else ""
    )
    return f"the command that made the run goes on with {options}{again}"


def _seeds(seeds: Sequence[int]) -> str:
    """Seeds as --seeds takes them: a number alone would be how many.

    >>> _seeds([0, 2]), _seeds([3])
    ('0,2', '3,')
    """
    return f"{seeds[0]}," if len(seeds) == 1 else ",".join(map(str, seeds))


def _progress(finished: int, trainings: int) -> str:
    return f"{finished:,} of {trainings:,} finished trainings"


def _megabytes(size: int) -> str:
    """Bytes, for people.

    >>> _megabytes(15_000_000), _megabytes(2_300)
    ('15.0 MB', '0.002 MB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e6:.3f} MB"
