"""`faithscope compare`: one run against another, pair by pair; fails a job if asked to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.shared import (
    SOMETHING_WRONG,
    Json,
    app,
    check_run,
    examples,
    make_folder,
    path_option,
    place_argument,
)
from faithscope.errors import printable
from faithscope.registry import split_specs

if TYPE_CHECKING:
    from faithscope.verdicts.compare import Differences


@app.command(
    epilog=examples(
        "faithscope compare runs/before runs/after",
        "faithscope compare runs/before runs/after --fail-if worse --fail-if 'saco<-0.05'",
    )
)
def compare(
    first: Annotated[Any, place_argument(metavar="RUN_A", help="The run to compare with.")],
    second: Annotated[Any, place_argument(metavar="RUN_B", help="The run that is judged.")],
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Only these. [default: all of both runs]")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Only these. [default: all of both runs]")
    ] = None,
    allow: Annotated[
        str,
        typer.Option(
            metavar="KEY,KEY,…",
            help="What may differ besides the one thing compared: model, data, fill, k, seed, …",
        ),
    ] = "",
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Exit with 1 if worse, better, different, 'METRIC<NUMBER', 'METRIC>NUMBER' or "
            "'METHOD/METRIC<NUMBER' (mean difference, B - A); repeatable.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        path_option(metavar="FILE.csv", help="Write the table here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two runs, sample by sample or seed by seed.

    In runs of retraining METHOD is a measure or MEASURE/PROCEDURE, METRIC racu, area or end.
    """
    from faithscope.cli.console import print_json, say_files, show_comparison, waiting

    for folder in (first, second):
        check_run(folder)
    with waiting("comparing"):
        from faithscope.api import compare as compare_runs
        from faithscope.verdicts.conditions import failures, parse_condition

        conditions = [parse_condition(text) for text in fail_if or []]
        if csv is not None:
            make_folder(csv.parent)
        found = compare_runs(
            first,
            second,
            methods=None if methods is None else split_specs(methods),
            metrics=None if metrics is None else split_specs(metrics),
            allow=split_specs(allow),
        )
        for condition in conditions:
            condition.check(found)
        failed = failures(found, conditions)
    if as_json:
        print_json({**as_data(found), "failed": failed})
    else:
        show_comparison(found)
    if csv is not None:
        from faithscope.report.table import as_csv
        from faithscope.report.tables import write_table

        write_table(csv, as_csv(found.rows))
        say_files({"table": csv}, stderr=as_json)
    for line in failed:
        typer.echo(f"failed: {printable(line)}", err=True)
    if failed:
        raise typer.Exit(SOMETHING_WRONG)


def as_data(comparison: Differences) -> dict[str, Any]:
    """A comparison for a program to read."""
    return {
        "headline": comparison.headline(),
        "sentences": comparison.sentences(),
        "differs": comparison.differs,
        "notes": comparison.notes,
        f"{comparison.replicate.word}s": {
            "shared": len(comparison.replicates),
            "only_first": comparison.only_first,
            "only_second": comparison.only_second,
        },
        "left_out": {"methods": comparison.lone_methods, "metrics": comparison.lone_metrics},
        "rows": comparison.rows,
    }
