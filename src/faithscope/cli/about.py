"""`faithscope list` and `faithscope doctor`: what there is, and whether all of it works."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from faithscope.cli.shared import SOMETHING_WRONG, Json, app, examples
from faithscope.errors import choose


@app.command("list", epilog=examples("faithscope list metrics", "faithscope list measures --json"))
def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[methods|metrics|fills|models|data|measures|texts|all]", help="What to list."
        ),
    ] = "all",
    as_json: Json = False,
) -> None:
    """List methods, metrics, fills, models and data, with options."""
    from faithscope.cli.console import print_json, show_entries, waiting

    with waiting("looking"):
        from faithscope.cli.listing import KINDS, catalogue, title, traits

        choose("kind of thing", what, [*KINDS, "all"])
        found = {kind: held for kind, held in catalogue().items() if what in (kind, "all")}
    if as_json:
        print_json(found)
        return
    for kind, entries in found.items():
        show_entries(kind, [(title(entry), entry["summary"], traits(entry)) for entry in entries])


@app.command(epilog=examples("faithscope doctor", "faithscope doctor --run --json"))
def doctor(
    run: Annotated[
        bool, typer.Option("--run", help="Run the bundled model, too, on the device it would use.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the installation, and say how to fix what is wrong."""
    from faithscope.cli.console import note, print_json, show_check, waiting
    from faithscope.cli.doctor import examine

    checks, pending = [], examine(run)
    while True:
        with waiting("checking"):
            check = next(pending, None)
        if check is None:
            break
        checks.append(check)
        if not as_json:
            show_check(**asdict(check))
    if as_json:
        print_json([asdict(check) for check in checks])
    if not run:
        note("devices and the bundled model were not tried: faithscope doctor --run")
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(SOMETHING_WRONG)
