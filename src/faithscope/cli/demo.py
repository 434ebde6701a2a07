"""`faithscope demo`: the main job on a bundled model and bundled images or texts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from faithscope.cli.explain import draw
from faithscope.cli.shared import (
    BUNDLED_DATA,
    BUNDLED_MODEL,
    app,
    examples,
    forecast_of,
    make_folder,
    one_thread,
    only_with,
    path_option,
    saying,
)
from faithscope.errors import FaithscopeError
from faithscope.registry import check_whole
from faithscope.request import Given, Perturb, Place, check_request

DEMO_METHODS = (
    "integrated_gradients",
    "rollout",
    "attcat",
    "transformer_mm",
    "transformer_attribution",
)
DEMO_DRAWS = 2
DEMO_PICTURES = 4
DEMO_TEXTS = 200


@dataclass(frozen=True)
class Demo:
    """What is shown: a bundled model and data, random draws by their units, what to try next."""

    model: str
    data: str
    folder: str
    granularity: str
    explain: str
    fill: str


IMAGES = Demo(
    BUNDLED_MODEL,
    BUNDLED_DATA,
    "faithscope-demo",
    "per pixel and per patch",
    "YOUR.jpg --story",
    "blur",
)
TEXTS = Demo(
    "bundled:sst_text",
    "bundled:sst",
    "faithscope-demo-text",
    "per token",
    "'YOUR SENTENCE' --model bundled:sst_text",
    "pad",
)


@app.command(
    epilog=examples(
        "faithscope demo",
        "faithscope demo --images 100 --out more",
        "faithscope demo --text",
    )
)
def demo(
    context: typer.Context,
    text: Annotated[
        bool, typer.Option("--text", help="A text classifier and sentences instead of images.")
    ] = False,
    out: Annotated[
        Path | None,
        path_option(
            metavar="DIR",
            help=f"Where to write. [default: {IMAGES.folder}, with --text {TEXTS.folder}]",
        ),
    ] = None,
    images: Annotated[int, typer.Option(metavar="N", help="How many bundled images to use.")] = 25,
    texts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"With --text: how many bundled sentences to use. [default: {DEMO_TEXTS}]",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed for all random draws.")] = 0,
) -> None:
    """Evaluate a bundled model in about a minute."""
    shown, limit = IMAGES, images
    if text:
        only_with(context, "--text", ("text", "out", "texts", "seed"))
        shown, limit = TEXTS, DEMO_TEXTS if texts is None else texts
    elif texts is not None:
        raise FaithscopeError("--texts needs --text: add it, or leave it out.")
    check_whole("--texts" if text else "--images", limit, 1)
    out = out or Path(shown.folder)
    make_folder(out)
    with one_thread() if text else nullcontext():
        run_demo(shown, limit, out, seed)


def run_demo(shown: Demo, limit: int, out: Path, seed: int) -> None:
    """Evaluate, print, draw and write."""
    from faithscope.cli.console import (
        note,
        run_with_progress,
        say,
        say_files,
        say_lines,
        show_result,
        waiting,
    )

    asked = {"model": shown.model, "data": shown.data, "methods": DEMO_METHODS}
    request = check_request(Perturb, {**asked, "random_draws": DEMO_DRAWS, "seed": seed})
    with saying(lambda: "nothing is kept of a demo that is stopped"):
        with waiting(f"loading {shown.model}"):
            from faithscope.api import prepare_request
            from faithscope.data import load_data
            from faithscope.models import load_model

            model = load_model(shown.model)
            data = load_data(shown.data, model, limit=limit)
            prepared = prepare_request(request, Given(model=model, data=data))
        forecast = forecast_of(prepared)
        note(
            f"{len(DEMO_METHODS)} methods, {DEMO_DRAWS} random draws {shown.granularity}, "
            f"{len(prepared.plan.metrics)} metrics\n{forecast}"
        )
        result = run_with_progress(prepared, forecast)
    files: dict[str, Place] = {"tables": result.save(out / "run")}
    show_result(result)
    with waiting("drawing"):
        from faithscope.cli.texts import draw_some
        from faithscope.data.images import choose_subset
        from faithscope.data.text_samples import TextSamples
        from faithscope.report.page import write_page

        places = choose_subset(len(data), DEMO_PICTURES, None)
        picture = out / "heatmaps.png"
        if isinstance(data, TextSamples):
            draw_some(data, DEMO_METHODS, result, picture, places)
        else:
            everything = next(data.batches(len(data))).images
            draw(model, everything, DEMO_METHODS, result, picture, places)
        files["heat-maps"] = picture
        files["report"] = write_page(result, out / "report.html")
    say("\nWritten", "bold")
    say_files(files)
    say("\nNext", "bold")
    say_lines(
        f"faithscope explain {shown.explain}",
        f"faithscope evaluate --model {shown.model} --data {shown.data} --fill {shown.fill}",
    )
