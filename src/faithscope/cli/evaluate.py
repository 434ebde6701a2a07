"""`faithscope evaluate`: measure how faithful explanations are, on any model and data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.options import takes_request
from faithscope.cli.shared import (
    DryRun,
    Json,
    Yes,
    app,
    as_data,
    carry_out,
    examples,
    keeping,
    make_folder,
    only_with,
    place_option,
    say_cost,
    with_ray,
)
from faithscope.errors import FaithscopeError, quoted
from faithscope.request import Given, Perturb, Place, as_path, as_place, check_request

if TYPE_CHECKING:
    from faithscope.result import Result


@app.command(
    epilog=examples(
        "faithscope evaluate --model bundled:cifar10_vit --data bundled:cifar10 --limit 10",
        "faithscope evaluate --model timm:vit_base_patch16_224 --data photos/ \\",
        "    --methods 'all,rollout(start_layer=1)' --metrics saco,aopc --out run",
        "faithscope evaluate --model hf:FOLDER --data texts.csv --units words --dry-run",
    ),
    context_settings={"allow_extra_args": True},  # which a pattern without quotes becomes
)
@takes_request(Perturb)
def evaluate(
    context: typer.Context,
    asked: dict[str, Any],
    maps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Your own maps: one array of all, .npy, .npz or .pt, or a folder with a file for "
            "each image, called as it is (.png, .tif, too); repeatable.",
        ),
    ] = None,
    report: Annotated[
        Any,
        place_option(metavar="FILE.html", help="Write an HTML report."),
    ] = None,
    source: Annotated[
        Any,
        place_option(
            "--from",
            metavar="RUN",
            help="Compute other --metrics of a finished run, no model.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Measure how faithful explanations of images or texts are."""
    from faithscope.cli.console import waiting

    if context.args:
        raise FaithscopeError(
            f"{quoted(context.args[0])} belongs to no option: put a pattern of files in quotes, "
            "--data 'photos/*.jpg'."
        )
    out = as_place(asked["out"], "--out") if "out" in asked else None
    if source is not None:
        only_with(context, "--from", ("source", "metrics", "out", "report", "as_json"))
    for folder in (out, report and report.parent):
        if folder is not None and not dry_run:
            make_folder(folder)
    if source is not None:
        return show(_rescored(source, asked, out), _kept(out), report, as_json)
    if not {"model", "data"} <= asked.keys():
        raise FaithscopeError("evaluate needs --model and --data, or --from a finished run.")
    request = check_request(Perturb, asked)
    given = Given(maps=_named_maps(maps or []))
    with keeping(out):
        with waiting(with_ray(request, f"loading {request.model}")):
            from faithscope.api import prepare_typed

            prepared = prepare_typed(request, given)
        if dry_run:
            return say_cost(prepared, as_json=as_json)
        show(carry_out(prepared, yes=yes), _kept(out), report, as_json)


def _kept(out: Place | None) -> dict[str, Place]:
    return {} if out is None else {"result": out}


def _rescored(source: Place, asked: dict[str, Any], out: Place | None) -> Result:
    """Other metrics of a finished run, kept in a folder of their own."""
    from faithscope.result import load_result
    from faithscope.runs.files import reading

    if out is not None:
        with reading(out):
            taken = any((out / name).exists() for name in ("plan.json", "manifest.json"))
        if taken:
            raise FaithscopeError(f"'{out}' holds a run already: choose another folder for --out.")
    result = load_result(source).rescore(asked.get("metrics", "all"))
    if out is not None:
        result.save(out)
    return result


def show(result: Result, files: dict[str, Place], report: Place | None, as_json: bool) -> None:
    """Show a result, write its page, and say what was written."""
    from faithscope.cli.console import print_json, say_files, show_result, show_skipped, waiting

    if as_json:
        print_json(as_data(result))
    else:
        show_result(result)
    show_skipped(result, are_warned_of=not as_json)
    if report is not None:
        with waiting("drawing"):
            files["report"] = result.report(report)
    say_files(files, stderr=as_json)


def _named_maps(pairs: Iterable[str]) -> dict[str, Path]:
    """Where the maps of each name are, from NAME=PATH."""
    maps: dict[str, Path] = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not (name and equals and file):
            raise FaithscopeError(f"Maps are given as NAME=PATH, got '{pair}'.")
        if name in maps:
            raise FaithscopeError(f"The maps '{name}' are given twice: name them differently.")
        maps[name] = as_path(file, "--maps")
    return maps
