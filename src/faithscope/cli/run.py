"""`faithscope run`: a study, every combination of its models, data and other axes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.options import takes_request
from faithscope.cli.shared import (
    SHORTER,
    SOME_FAILED,
    DryRun,
    Json,
    Yes,
    app,
    as_data,
    ask,
    carry_out,
    cost_data,
    examples,
    keeping,
    make_folder,
    note_left_out,
    path_argument,
    place_option,
)
from faithscope.errors import FaithscopeError, shown
from faithscope.request import Perturb, Place

if TYPE_CHECKING:
    from faithscope.api import Prepared
    from faithscope.result import Result


ON_RAY = ("on", "address", "workers", "gpus_per_worker", "cpus_per_worker")


@app.command(
    epilog=examples(
        "faithscope run studies/demo.yaml --dry-run",
        "faithscope run studies/demo.yaml --set fill=[mean,black] --limit 10",
    )
)
@takes_request(Perturb, only=("limit", "device", "strict", "trust_remote_code", *ON_RAY))
def run(
    study: Annotated[Path, path_argument(metavar="STUDY.yaml", help="What to measure.")],
    asked: dict[str, Any],
    out: Annotated[
        Any,
        place_option(
            metavar="DIR",
            help="Where to keep the runs. [default: runs/STUDY here]",
        ),
    ] = None,
    dry_run: DryRun = False,
    allow_code: Annotated[
        bool,
        typer.Option(
            "--allow-code",
            help="Run the Python files that the study names, FILE.py:NAME, if you trust them. A "
            "dry run never does.",
        ),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the study; repeatable."),
    ] = None,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Run a study: every combination of its models, data and fills.

    Run the same command to resume one that was stopped.
    """
    from faithscope.cli.console import (
        note,
        print_json,
        say,
        show_result,
        show_sensitivity,
        waiting,
    )

    with waiting("reading the study"):
        from faithscope.runs.scheduler import Forecast
        from faithscope.studies import forecast_study, load_study, run_study

        device, trusted = asked.pop("device", "auto"), asked.pop("trust_remote_code", False)
        where = {name: asked.pop(name) for name in ON_RAY if name in asked}
        wanted = load_study(study, {**_changes(changes), **asked}).run_on(**where)
        wanted = wanted.trusted() if trusted else wanted
    folder: Place = out or Path("runs") / wanted.name
    wanted = (wanted.allowing_code() if allow_code else wanted).at(folder)
    imports = wanted.code if dry_run else {}
    with keeping(folder, wanted.cells), waiting("measuring what it will cost"):
        measured = wanted.without_code() if dry_run else wanted
        costs = forecast_study(measured, folder, device)
    for label, cost in costs.items():
        note(f"{label}: {cost}")
        note_left_out(cost.left_out)
    for label, names in imports.items():
        note(f"{label}: not measured; it would import {', '.join(names)}")
    total = Forecast(
        _summed([cost.cost for cost in costs.values()]),
        **{part: sum(getattr(cost, part) for cost in costs.values()) for part in PARTS},
    )
    if costs:
        say(f"{len(costs)} run{'s' * (len(costs) != 1)}, {total}", stderr=as_json)
    if dry_run:
        if as_json:
            named = {label: {"imports": names} for label, names in imports.items()}
            print_json({**{label: cost_data(cost) for label, cost in costs.items()}, **named})
        return
    if not total.finished:
        kind = next(iter(wanted.cells.values())).kind
        ask(total, yes, SHORTER[kind])
    make_folder(folder)

    def run_cell(label: str, prepared: Prepared) -> Result:
        note(f"\n{label}")
        try:
            result = carry_out(prepared, silent=True)
        except FaithscopeError as error:
            note(f"failed: {error}")
            raise
        if not as_json:
            show_result(result)
        return result

    with keeping(folder, wanted.cells):
        done = run_study(wanted, folder, device=device, run=run_cell)
    moved = done.sensitivity().to_pylist()
    if as_json:
        cells = {label: as_data(result) for label, result in done.results.items()}
        print_json({"cells": cells, "sensitivity": moved, "failed": done.failed})
    elif moved:
        show_sensitivity(moved, done.results)
    say(f"\nkept in {folder}; faithscope report {folder} makes a page of it", stderr=as_json)
    if done.failed:
        some = f"{len(done.failed)} of {len(costs)} runs failed"
        failed = ", ".join(done.failed)
        note(f"{some} ({failed}): fix the cause and run the same command to resume")
        raise typer.Exit(SOME_FAILED)


PARTS = ("seconds", "tasks", "finished", "again", "compiling")


def _summed(costs: list[Any]) -> dict[str, float]:
    total: dict[str, float] = {}
    for cost in costs:
        for unit, amount in cost.items():
            total[unit] = total.get(unit, 0.0) + amount
    return total


def _changes(texts: list[str] | None) -> dict[str, Any]:
    """Read KEY=VALUE, the value as YAML."""
    from faithscope.studies import read_yaml

    changes = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        try:
            changes[key.strip()] = read_yaml(value)
        except ValueError:
            equals = ""
        if not equals:
            raise FaithscopeError(
                f"--set takes KEY=VALUE, the value as YAML, got {shown(text)}: for example "
                "--set k=5."
            )
    return changes
