"""`faithscope report`: a page to look at, figures and tables for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from faithscope.cli.shared import (
    app,
    check_run,
    examples,
    make_folder,
    path_option,
    place_argument,
    place_option,
)
from faithscope.request import Place


@app.command(
    epilog=examples(
        "faithscope report run",
        "faithscope report runs/demo --out demo.html --figures figures --tables tables",
    )
)
def report(
    run: Annotated[
        Any,
        place_argument(
            metavar="RUN",
            help="A finished run, over images or of ROAR, or the folder of a study.",
        ),
    ],
    out: Annotated[
        Any,
        place_option(metavar="FILE.html", help="The page. [default: report.html in RUN]"),
    ] = None,
    figures: Annotated[
        Path | None,
        path_option(metavar="DIR", help="Also write every figure, as PDF and PNG."),
    ] = None,
    tables: Annotated[
        Path | None,
        path_option(
            metavar="DIR",
            help="Also write the tables, as Markdown, LaTeX and CSV.",
        ),
    ] = None,
) -> None:
    """Write an HTML report of a run or a study, in one file."""
    from faithscope.cli.console import say_files, waiting

    check_run(run)
    with waiting("reading the run"):
        from faithscope.studies import load_results

        runs = load_results(run)
    page = out or run / "report.html"
    for folder in (page.parent, figures, tables):
        if folder is not None:
            make_folder(folder)
    files: dict[str, Place] = {}
    with waiting("drawing"):
        files["page"] = runs.report(page)
        if figures is not None:
            runs.write_figures(figures)
            files["figures"] = figures
        if tables is not None:
            runs.write_tables(tables)
            files["tables"] = tables
    say_files(files)
