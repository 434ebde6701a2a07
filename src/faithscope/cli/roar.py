"""`faithscope roar`: mask what measures point to, retrain, and see how much is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.options import takes_request
from faithscope.cli.pack import pack_to, unpack_to
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
    one_thread,
    only_with,
    path_option,
    place_option,
    say_cost,
    with_ray,
)
from faithscope.errors import FaithscopeError
from faithscope.request import Given, Place, Retrain, as_path, as_place, check_request
from faithscope.request.remote import RemotePath

if TYPE_CHECKING:
    from faithscope.api import Prepared

DEMO: Mapping[str, Any] = {
    "data": "bundled:babi1",
    "methods": ("attention", "input_x_gradient(signed=false)"),
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
BOTH = {None: ("roar", "recursive"), True: ("recursive",), False: ("roar",)}


@app.command(
    epilog=examples(
        "faithscope roar --demo",
        "faithscope roar --data 'babi:data/babi(task=1)' --seeds 5 --recursive",
        "faithscope roar --data reviews.csv --model hf:roberta-base \\",
        "    --measures 'gradient,integrated_gradients(steps=20)' --levels 10,50,90 --dry-run",
        "faithscope roar --data cifar10:DIR --model 'vit(depth=6)' --epochs 20 --no-recursive",
    )
)
@takes_request(Retrain)
def roar(
    context: typer.Context,
    asked: dict[str, Any],
    demo: Annotated[
        bool,
        typer.Option("--demo", help="The synthetic problem and a small bAbI-1, in two minutes."),
    ] = False,
    recursive: Annotated[
        bool | None,
        typer.Option("--recursive/--no-recursive", help="Only Recursive ROAR, or only ROAR."),
    ] = None,
    dry_run: DryRun = False,
    pack: Annotated[
        Any,
        place_option(metavar="RUN", help="The same as `faithscope pack RUN`."),
    ] = None,
    unpack: Annotated[
        list[Path] | None,
        path_option(
            metavar="FILE",
            help="The same as `faithscope unpack FILE`; repeatable.",
        ),
    ] = None,
    states: Annotated[
        bool, typer.Option("--states", help="With --pack: include unfinished trainings (large).")
    ] = False,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Measure how faithful explanations are: mask, retrain.

    ROAR and Recursive ROAR: models are trained again without the tokens, or the pixels, that
    measures call important.
    """
    from faithscope.cli.console import note, waiting

    out = as_place(asked["out"], "--out") if "out" in asked else None
    if demo:
        only_with(context, "--demo", ("demo", "out", "device", "as_json"))
        with one_thread():
            device = asked.get("device", "auto")
            return run_demo(as_path(out or "faithscope-roar-demo", "--out"), device, as_json)
    if pack is not None:
        only_with(context, "--pack", ("pack", "out", "states", "as_json"))
        return pack_to(pack, _here(out), states, as_json)
    if unpack:
        only_with(context, "--unpack", ("unpack", "out", "as_json"))
        return unpack_to(unpack, _here(out), as_json)
    if states:
        raise FaithscopeError("--states has no effect without --pack: leave it out.")
    if "data" not in asked:
        raise FaithscopeError("roar needs --data, for example bundled:babi1, or --demo.")
    if recursive is not None:
        if "procedures" in asked:
            raise FaithscopeError("--recursive and --procedures mean the same: use one of them.")
        asked["procedures"] = BOTH[recursive]
    request = check_request(Retrain, asked)
    if out is not None and not dry_run:
        make_folder(out)
    with keeping(out), waiting(with_ray(request, f"reading {request.data}")):
        from faithscope.api import prepare_request

        prepared = prepare_request(request)
    if out is None:
        prepared = prepared.at(Path("runs") / _folder(prepared))
    if dry_run:
        return say_cost(prepared, as_json=as_json)
    prepared.is_begun()
    assert prepared.out is not None
    make_folder(prepared.out)
    note(_size(prepared))
    with keeping(prepared.out):
        show(prepared, as_json, yes)


def _here(out: Place | None) -> Path | None:
    return None if out is None else as_path(out, "--out")


def _folder(prepared: Prepared) -> str:
    return f"roar-{_plain(prepared.plan.model.name)}-{_plain(prepared.plan.data.name)}"


def show(prepared: Prepared, as_json: bool, yes: bool) -> None:
    """Run, show the result, write its page, and say what was written."""
    from faithscope.cli.console import print_json, say, say_files, show_result, waiting

    result = carry_out(prepared, yes=yes)
    if as_json:
        print_json(as_data(result))
    else:
        show_result(result)
        say()
    assert prepared.out is not None
    files = {"result": prepared.out}
    out = prepared.out
    if isinstance(out, RemotePath) or os.access(out, os.W_OK):  # a finished run may only be read
        with waiting("drawing"):
            files["report"] = result.report(prepared.out / "report.html")
    say_files(files, stderr=as_json)


def _size(prepared: Prepared) -> str:
    """What is run, in a line."""
    plan, known = prepared.plan, prepared.planned.known
    assert plan.recipe is not None
    measures = [card.label for card in plan.methods if not card.is_random]
    sizes = " / ".join(f"{size:,}" for size in known.data.splits.sizes.values())
    epochs = plan.recipe.epochs
    data = f"{plan.data.name} ({sizes} {known.data.splits.sample}s)"
    return (
        f"{plan.model.name} on {data}, {', '.join(measures)} and random, "
        f"{epochs} epoch{'s' * (epochs != 1)}, {known.model.device}"
    )


def run_demo(out: Path, device: str, as_json: bool) -> None:
    """The synthetic problem, whose truth is known, then a small bAbI-1 with what comes with it."""
    from faithscope.cli.console import (
        note,
        print_json,
        say,
        say_files,
        say_lines,
        show_result,
        show_synthetic,
        waiting,
    )

    make_folder(out)
    with waiting("loading"):
        from faithscope.api import prepare_request
        from faithscope.cli.synthetic import synthetic_problem
        from faithscope.data.text_sources import load_text
        from faithscope.models import choose_device
        from faithscope.probes.retrain.bilstm import BiLSTMLearner
        from faithscope.probes.retrain.learner import Recipe
        from faithscope.report.lines import draw_synthetic
        from faithscope.report.plots import write_figures

        data = load_text(DEMO["data"])
        learner = BiLSTMLearner(
            data.kind,
            device=str(choose_device(device)),
            recipe=Recipe(**DEMO_TRAINING),
            pack_size=DEMO_PACK,
        )
        request = check_request(Retrain, {**DEMO, "out": out / "run"})
        prepared = prepare_request(request, Given(model=learner, data=data))
        prepared.is_begun()
    with waiting("the synthetic problem"):
        known = synthetic_problem(*DEMO_ROWS)
        figure = draw_synthetic(known.curves, out / "synthetic.png")
    if not as_json:
        show_synthetic(known)
    note(_size(prepared))
    with keeping(prepared.out):
        result = carry_out(prepared)
    if not as_json:
        say("\nA small bAbI-1: where is Mary?", "bold")
        show_result(result)
    with waiting("drawing"):
        page = result.report(out / "report.html")
        write_figures({"": result}, out / "figures")
    files: dict[str, Place] = {
        "report": page,
        "synthetic": figure,
        "figures": out / "figures",
        "run": out / "run",
    }
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
        "faithscope roar --data YOUR.csv --dry-run",
        "faithscope roar --data 'babi:FOLDER(task=1)' --seeds 5 --recursive",
    )


def _plain(name: str) -> str:
    """A name as part of a folder's.

    >>> _plain("hf:my/model"), _plain("babi-1")
    ('hf-my-model', 'babi-1')
    """
    return re.sub(r"[^\w.=-]+", "-", name).strip("-.")
