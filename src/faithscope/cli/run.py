"""`faithscope run`: a study, every combination of its models, data and fills, or of ROAR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.shared import Device, Json, Limit, Yes, app, as_data, ask, examples
from faithscope.errors import FaithscopeError

if TYPE_CHECKING:
    from faithscope.probes.perturb.evaluation import Evaluation
    from faithscope.result import Result
    from faithscope.studies import Cell


@app.command(
    epilog=examples(
        "faithscope run studies/demo.yaml --dry-run",
        "faithscope run studies/demo.yaml --set fills=[mean,black] --limit 10",
    )
)
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="What to measure.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to keep the runs. [default: runs/STUDY here]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it will cost, and do nothing.")
    ] = False,
    limit: Limit = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the study; repeatable."),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Run a study: every combination of its models, data, fills …; goes on if it was stopped."""
    from faithscope.cli.console import (
        note,
        print_json,
        run_with_progress,
        say,
        show_result,
        show_sensitivity,
        waiting,
    )

    with waiting("reading the study"):
        from faithscope.probes.perturb.evaluation import Forecast
        from faithscope.studies.run import forecast_study, run_study
        from faithscope.studies.study import Study, load_study

        wanted = load_study(
            study, {**_changes(changes), **({} if limit is None else {"limit": limit})}
        )
    folder = out or Path("runs") / wanted.name
    if not isinstance(wanted, Study):
        from faithscope.cli.roar import run_cells

        return run_cells(wanted, folder, device=device, dry_run=dry_run, as_json=as_json, yes=yes)
    with waiting("measuring what it will cost"):
        costs = forecast_study(wanted, device)
    for cell, cost in costs:
        note(f"{cell.label}: {cost}")
    images, passes = (sum(getattr(c, part) for _, c in costs) for part in ("images", "passes"))
    total = Forecast(images, 0, passes, sum(cost.seconds for _, cost in costs))
    say(f"{len(costs)} runs, {passes:,} model passes, about {total.duration}", stderr=as_json)
    if dry_run:
        if as_json:
            print_json({cell.label: vars(cost) for cell, cost in costs})
        return
    ask(total, yes)

    def run_cell(cell: Cell, evaluation: Evaluation, where: Path) -> Result:
        note(f"\n{cell.label}")
        result = run_with_progress(evaluation, None, where)
        if not as_json:
            show_result(result)
        return result

    done = run_study(wanted, folder, device=device, run=run_cell)
    moved = done.sensitivity().to_pylist()
    if as_json:
        cells = {label: as_data(result) for label, result in done.results.items()}
        print_json({"cells": cells, "sensitivity": moved})
    elif moved:
        show_sensitivity(moved)
    say(f"\nkept in {folder}", stderr=as_json)


def _changes(texts: list[str] | None) -> dict[str, Any]:
    """Read KEY=VALUE, the value as YAML."""
    import yaml

    from faithscope.studies.study import read_yaml

    changes = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        try:
            changes[key.strip()] = read_yaml(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            equals = ""
        if not equals:
            raise FaithscopeError(f"--set takes KEY=VALUE, got '{text}': for example --set k=5.")
    return changes
