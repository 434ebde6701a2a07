"""`faithscope roar`: mask what measures for text point to, retrain, and see how much is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.roar_parcel import pack_to, unpack_to
from faithscope.cli.shared import Device, Json, Yes, app, ask, examples, make_folder
from faithscope.errors import FaithscopeError
from faithscope.registry import split_specs

if TYPE_CHECKING:
    from faithscope.probes.retrain.result import RoarResult
    from faithscope.probes.retrain.roar import Roar
    from faithscope.studies.roar import RoarStudy

DEMO_DATA = "bundled:babi1"
DEMO: Mapping[str, Any] = {
    "measures": ("attention", "input_x_gradient"),
    "seeds": 3,
    "levels": (10, 30, 60),
}
"""Enough for curves that say something after two minutes."""
DEMO_TRAINING: Mapping[str, Any] = {"epochs": 16, "batch_size": 50, "learning_rate": 5e-3}
"""Faster than the paper's 100 epochs at 0.001, and enough for texts this short."""
DEMO_PACK = 12
"""Models trained together: all of a wave."""
DEMO_ROWS = (20_000, 10_000)
"""Rows of the synthetic problem to fit on and to test on."""
NOTHING_BEGUN = "interrupted: nothing had been begun"
PACKING = ("part_size", "states")
"""Options that go with --pack alone."""
SHORTER = "fewer --seeds, --levels, --measures or --epochs"


@app.command(
    epilog=examples(
        "faithscope roar --demo",
        "faithscope roar --dataset 'babi:data/babi(task=1)' --seeds 5 --recursive",
        "faithscope roar --dataset reviews.csv --model hf:roberta-base \\",
        "    --measures 'gradient,integrated_gradients(scaling=paper)' --levels 10,50,90 --dry-run",
        "faithscope roar --pack runs/babi1          # carry it elsewhere, unpack it and go on",
        "faithscope roar --unpack runs/babi1.parcel --out runs/babi1",
    )
)
def roar(
    context: typer.Context,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="The synthetic problem and a small bAbI-1, in two minutes."),
    ] = False,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            "--data",
            metavar="NAME",
            help="babi:DIR(task=1), sst:DIR, imdb:DIR, snli:DIR, mimic:DIR(subset=anemia), hf:ID, "
            "bundled:babi1 or your own .csv, .tsv, .jsonl; see `list texts`.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(metavar="bilstm|hf:ID", help="What is trained.")] = "bilstm",
    measures: Annotated[
        str,
        typer.Option(
            metavar="A,B(OPTION=1),…",
            help="Measures; 'all' are the paper's, 'registered' every one; see `list measures`.",
        ),
    ] = "all",
    seeds: Annotated[
        str,
        typer.Option(metavar="N|A,B,…", help="How many seeds, or which: '3' are 0,1,2; '3,' is 3."),
    ] = "5",
    recursive: Annotated[
        bool | None,
        typer.Option(
            "--recursive/--no-recursive", help="Only Recursive ROAR, or only ROAR. [default: both]"
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="How much to mask. [default: 10,20,…,90 percent, or 1,…,10]"
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option(metavar="relative|count", help="Levels in percent, or in tokens.")
    ] = "relative",
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Of a training. [default: the paper's]")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Texts per step. [default: the paper's]")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="X", help="Of Adam. [default: the paper's]")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Use N texts of each split, spread over it.")
    ] = None,
    clip: Annotated[
        bool, typer.Option("--clip/--no-clip", help="Keep a seed's RACU within ±100 %.")
    ] = True,
    specials: Annotated[
        bool,
        typer.Option("--specials/--no-specials", help="Count special tokens in sparsity."),
    ] = True,
    keep_weights: Annotated[
        bool, typer.Option("--keep-weights", help="Keep the weights of every model.")
    ] = False,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Every training is kept here; goes on if it was stopped. [default: "
            "runs/roar-MODEL-DATA, faithscope-roar-demo]",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it will cost, and do nothing.")
    ] = False,
    pack: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Pack a run that was stopped or is finished into small files, to go on elsewhere.",
        ),
    ] = None,
    unpack: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Unpack such files into --out; repeat it to join runs of other seeds.",
        ),
    ] = None,
    part_size: Annotated[
        float, typer.Option(metavar="MB", help="Of --pack: how large a file may be.")
    ] = 15.0,
    states: Annotated[
        bool, typer.Option("--states", help="Of --pack: trainings that have begun, too (large).")
    ] = False,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Retrain models without the tokens that measures call important (ROAR, Recursive ROAR)."""
    from faithscope.cli.console import note, print_json, say, waiting

    if demo:
        _only(context, "demo", ("out", "device", "as_json"))
        with _one_thread():
            return run_demo(out or Path("faithscope-roar-demo"), device, as_json)
    if pack is not None:
        _only(context, "pack", ("out", "part_size", "states", "as_json"))
        return pack_to(pack, out, part_size, states, as_json)
    if unpack:
        _only(context, "unpack", ("out", "as_json"))
        return unpack_to(unpack, out, as_json)
    _only(context, "", tuple(name for name in context.params if name not in PACKING))
    if dataset is None:
        raise FaithscopeError("roar needs --dataset, for example bundled:babi1, or --demo.")
    number = _numbers("seeds", seeds)
    both = {None: ("roar", "recursive"), True: ("recursive",), False: ("roar",)}
    if out is not None and not dry_run:
        make_folder(out)
    with _nothing_begun(), waiting(f"reading {dataset}"):
        from faithscope.probes.retrain.roar import prepare_roar

        named = split_specs(measures)
        request = prepare_roar(
            dataset,
            model,
            measures=named[0] if len(named) == 1 else named,
            seeds=number[0] if len(number) == 1 and "," not in seeds else number,
            levels=None if levels is None else _numbers("levels", levels),
            procedures=both[recursive],
            strategy=strategy,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            limit=limit,
            device=device,
            out=out,
            clip=clip,
            specials=specials,
            keep_weights=keep_weights,
        )
    request = request.at(out or Path("runs") / f"roar-{_plain(model)}-{_plain(request.data.name)}")
    if dry_run:
        cost = _forecast(request)
        say(str(cost), stderr=as_json)
        if as_json:
            print_json({**vars(cost), "folder": str(request.out)})
        return
    request.check_folder()
    note(_size(request))
    for left_out in request.left_out:
        note(left_out)
    result = carry_out(request, yes=yes)
    show(result, request, as_json)


def carry_out(request: Roar, *, yes: bool = True, silent: bool = False) -> RoarResult:
    """Run a request with progress, after saying what it costs; Ctrl-C says what is kept."""
    from faithscope.cli.console import note
    from faithscope.cli.console_roar import run_roar

    try:
        begun = request.check_folder()
        if request.is_finished:
            note(f"the run in {request.out} is finished: nothing to do")
            return request.run()
        forecast = None if silent else _forecast(request)
        if forecast is not None:
            note(str(forecast))
        if begun:
            note(f"going on with the run in {request.out}")
        elif forecast is not None:
            ask(forecast, yes, SHORTER)
        return run_roar(request, forecast)
    except KeyboardInterrupt:
        if not request.is_anything_kept:
            typer.echo(NOTHING_BEGUN, err=True)
            raise typer.Exit(130) from None
        count = request.finished_jobs
        kept = f"{count:,} finished training{'s' * (count != 1)}"
        typer.echo(
            f"interrupted: {kept} and the last epochs of the others are kept in {request.out}; the "
            "same command goes on from there",
            err=True,
        )
        raise typer.Exit(130) from None


@contextmanager
def _nothing_begun() -> Iterator[None]:
    """Say so if Ctrl-C comes before there is anything to keep."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(NOTHING_BEGUN, err=True)
        raise typer.Exit(130) from None


def _forecast(request: Roar) -> Any:
    from faithscope.cli.console import waiting

    request.check_folder()
    with waiting("measuring what it will cost"):
        return request.forecast()


def _size(request: Roar) -> str:
    """What is run, in a line."""
    data, jobs, epochs = request.data, request.jobs, request.learner.recipe.epochs
    measures = [name for name in jobs.measures if name != "random"]
    return (
        f"{request.learner.name} on {data.name} ({len(data.train):,} / {len(data.validation):,} / "
        f"{len(data.test):,} texts), {', '.join(measures)} and random, "
        f"{epochs} epoch{'s' * (epochs != 1)}, {request.learner.device}"
    )


def show(result: RoarResult, request: Roar, as_json: bool) -> None:
    """Show a result, write its page, and say what was written."""
    from faithscope.cli.console import print_json, say, say_files, waiting
    from faithscope.cli.console_roar import show_roar

    if as_json:
        print_json(as_data(result))
    else:
        show_roar(result)
        say()
    assert request.out is not None
    with waiting("drawing"):
        page = result.report(request.out / "report.html")
    say_files({"result": request.out, "report": page}, stderr=as_json)


def as_data(result: RoarResult) -> dict[str, Any]:
    """A ROAR result for a program to read."""
    return {
        "headline": result.headline(),
        "warnings": result.warnings(),
        "racu": result.racu().to_pylist(),
        "curves": result.curves().to_pylist(),
        "manifest": dict(result.manifest),
    }


def run_demo(out: Path, device: str, as_json: bool) -> None:
    """The synthetic problem, whose truth is known, then a small bAbI-1 with what comes with it."""
    from faithscope.cli.console import note, print_json, say, say_files, say_lines, waiting
    from faithscope.cli.console_roar import show_roar, show_synthetic

    make_folder(out)
    with waiting("loading"):
        from faithscope.cli.synthetic import synthetic_problem
        from faithscope.data.text_sources import load_text
        from faithscope.models.sources import choose_device
        from faithscope.probes.retrain.bilstm import BiLSTMLearner
        from faithscope.probes.retrain.learner import Recipe
        from faithscope.probes.retrain.roar import prepare_roar
        from faithscope.report import draw_synthetic

        data = load_text(DEMO_DATA)
        learner = BiLSTMLearner(
            data.kind,
            device=str(choose_device(device)),
            recipe=Recipe(**DEMO_TRAINING),
            pack_size=DEMO_PACK,
        )
        request = prepare_roar(data, learner, **DEMO, out=out / "run")
        request.check_folder()
    with waiting("the synthetic problem"):
        known = synthetic_problem(*DEMO_ROWS)
        figure = draw_synthetic(known, out / "synthetic.png")
    if not as_json:
        show_synthetic(known)
    note(_size(request))
    result = carry_out(request)
    if not as_json:
        say("\nA small bAbI-1: where is Mary?", "bold")
        show_roar(result)
    with waiting("drawing"):
        from faithscope.report import write_roar_figures

        page = result.report(out / "report.html")
        write_roar_figures({"": result}, out / "figures")
    files = {"report": page, "synthetic": figure, "figures": out / "figures", "run": out / "run"}
    if as_json:
        curves = {name: curve.tolist() for name, curve in known.curves.items()}
        print_json({"synthetic": {"curves": curves, "orders": known.orders}, **as_data(result)})
        return say_files(files, stderr=True)
    say(
        "\nThree seeds and a small data set decide nothing, least of all where ROAR and Recursive "
        "ROAR disagree: the complete run is in docs/reproduction_text.md."
    )
    say("\nWritten", "bold")
    say_files(files)
    say("\nNext", "bold")
    say_lines(
        "faithscope roar --dataset YOUR.csv --dry-run",
        "faithscope roar --dataset 'babi:FOLDER(task=1)' --seeds 5 --recursive",
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for models this small: more gain little, and lose much on busy cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_cells(
    study: RoarStudy, folder: Path, *, device: str, dry_run: bool, as_json: bool, yes: bool
) -> None:
    """Run a ROAR study, each data set with each model."""
    from faithscope.cli.console import note, print_json, say, waiting
    from faithscope.cli.console_roar import show_roar
    from faithscope.probes.retrain.roar import Forecast

    costs = {}
    for cell in study.cells():
        with waiting(f"reading {cell.data}"):
            request = study.prepare(cell, folder / cell.label, device)
        costs[cell] = _forecast(request)
        note(f"{cell.label}: {costs[cell]}")
    parts = ("trainings", "finished", "packs", "seconds", "again")
    total = Forecast(*(sum(getattr(cost, part) for cost in costs.values()) for part in parts))
    say(f"{len(costs)} run{'s' * (len(costs) != 1)}, {total}", stderr=as_json)
    if dry_run:
        if as_json:
            print_json({cell.label: vars(cost) for cell, cost in costs.items()})
        return
    if not total.finished:
        ask(total, yes, SHORTER)
    make_folder(folder)
    results = {}
    for cell in study.cells():
        note(f"\n{cell.label}")
        with waiting(f"reading {cell.data}"):
            request = study.prepare(cell, folder / cell.label, device)
        results[cell.label] = carry_out(request, silent=True)
        if not as_json:
            show_roar(results[cell.label])
    if as_json:
        print_json({"cells": {label: as_data(result) for label, result in results.items()}})
    say(f"\nkept in {folder}; faithscope report {folder} makes a page of it", stderr=as_json)


def _numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise FaithscopeError(
            f"--{option} takes whole numbers with commas between, got '{text}'."
        ) from None


def _plain(name: str) -> str:
    """A name as part of a folder's.

    >>> _plain("hf:my/model"), _plain("babi-1")
    ('hf-my-model', 'babi-1')
    """
    return re.sub(r"[^\w.=-]+", "-", name).strip("-.")


def _only(context: typer.Context, mode: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that have no effect beside --demo, --pack or --unpack, or without --pack."""
    for parameter in context.command.params:
        name, option = str(parameter.name), parameter.opts[0]
        source = context.get_parameter_source(name)
        if name in (mode, *allowed) or source is None or source.name != "COMMANDLINE":
            continue
        if not mode:
            raise FaithscopeError(f"{option} has no effect without --pack: leave it out.")
        why = ", whose run is fixed: leave --demo out and give --dataset" if mode == "demo" else ""
        raise FaithscopeError(f"{option} has no effect with --{mode}{why or ': leave it out'}.")
