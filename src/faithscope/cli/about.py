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
        from faithscope.cli.catalog import CATALOGUES, title, traits

        choose("kind of thing", what, [*CATALOGUES, "all"])
        kinds = [kind for kind in CATALOGUES if what in (kind, "all")]
        found = {kind: CATALOGUES[kind]() for kind in kinds}
    if as_json:
        print_json(found)
        return
    for kind, entries in found.items():
        show_entries(kind, [(title(entry), entry["summary"], traits(entry)) for entry in entries])


@app.command(epilog=examples("faithscope doctor", "faithscope doctor --json"))
def doctor(as_json: Json = False) -> None:
    """Check the installation, and say how to fix what is wrong."""
    from faithscope.cli.console import print_json, show_check, waiting
    from faithscope.cli.doctor import examine

    checks, pending = [], examine()
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
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(SOMETHING_WRONG)
