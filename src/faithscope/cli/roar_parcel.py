"""`faithscope roar --pack` and `--unpack`: a run in small files, to go on with elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from faithscope.cli.shared import check_run
from faithscope.errors import FaithscopeError


def pack_to(run: Path, out: Path | None, part_size: float, states: bool) -> None:
    """Pack a run, and say how it is unpacked."""
    from faithscope.console import say, say_lines, waiting

    check_run(run)
    whole = run if run.name not in ("", "..") else run.resolve()
    folder = out or whole.with_name(f"{whole.name}.parcel")
    with waiting("packing"):
        from faithscope.retrain.parcel import pack_run

        parcel = pack_run(run, folder, part_megabytes=part_size, states=states)
    sizes = parcel.sizes
    say(
        f"packed {_progress(parcel.finished, parcel.trainings)} of {run} into {len(sizes)} files "
        f"of {folder}, {_megabytes(sum(sizes))}, the largest {_megabytes(max(sizes))}; elsewhere "
        "unpack them with"
    )
    say_lines(shlex.join(["faithscope", "roar", "--unpack", str(folder), "--out", str(run)]))


def unpack_to(folders: Sequence[Path], out: Path | None) -> None:
    """Unpack a run, or several into one, and say how it goes on."""
    from faithscope.console import say, waiting

    if out is None:
        raise FaithscopeError("--unpack needs --out, the folder in which the run is to go on.")
    for folder in folders:
        check_run(folder)
    with waiting("unpacking"):
        from faithscope.retrain.parcel import unpack_run

        found = unpack_run(folders, out)
    seeds = f" --seeds {','.join(map(str, found.seeds))}" if len(folders) > 1 else ""
    say(
        f"unpacked {_progress(found.finished, found.trainings)} into {out}; the command that made "
        f"the run goes on with{seeds} --out {shlex.quote(str(out))}"
    )


def _progress(finished: int, trainings: int) -> str:
    return f"{finished:,} of {trainings:,} finished trainings"


def _megabytes(size: int) -> str:
    """Bytes, for people.

    >>> _megabytes(15_000_000), _megabytes(2_300)
    ('15.0 MB', '0.002 MB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e6:.3f} MB"
