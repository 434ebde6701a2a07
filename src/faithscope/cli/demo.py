"""`faithscope demo`: the main job on the bundled model and images."""

from __future__ import annotations

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
    path_option,
    saying,
)
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


@app.command(epilog=examples("faithscope demo", "faithscope demo --images 100 --out more"))
def demo(
    out: Annotated[Path, path_option(metavar="DIR", help="Where to write.")] = Path(
        "faithscope-demo"
    ),
    images: Annotated[int, typer.Option(metavar="N", help="How many bundled images to use.")] = 25,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed for all random draws.")] = 0,
) -> None:
    """Evaluate the bundled model in about a minute."""
    from faithscope.cli.console import (
        note,
        run_with_progress,
        say,
        say_files,
        say_lines,
        show_result,
        waiting,
    )

    make_folder(out)
    asked = {"model": BUNDLED_MODEL, "data": BUNDLED_DATA, "methods": DEMO_METHODS}
    request = check_request(Perturb, {**asked, "random_draws": DEMO_DRAWS, "seed": seed})
    with saying(lambda: "nothing is kept of a demo that is stopped"):
        with waiting(f"loading {BUNDLED_MODEL}"):
            from faithscope.api import prepare_request
            from faithscope.data import load_data
            from faithscope.models import load_model

            model = load_model(BUNDLED_MODEL)
            data = load_data(BUNDLED_DATA, model, limit=images)
            prepared = prepare_request(request, Given(model=model, data=data))
        forecast = forecast_of(prepared)
        note(
            f"{len(DEMO_METHODS)} methods, {DEMO_DRAWS} random draws per pixel and per patch, "
            f"{len(prepared.plan.metrics)} metrics\n{forecast}"
        )
        result = run_with_progress(prepared, forecast)
    files: dict[str, Place] = {"tables": result.save(out / "run")}
    show_result(result)
    with waiting("drawing"):
        from faithscope.data.images import choose_subset
        from faithscope.report.page import write_page

        everything = next(data.batches(len(data))).images
        places = choose_subset(len(everything), DEMO_PICTURES, None)
        picture = out / "heatmaps.png"
        draw(model, everything, DEMO_METHODS, result, picture, places)
        files["heat-maps"] = picture
        files["report"] = write_page(result, out / "report.html")
    say("\nWritten", "bold")
    say_files(files)
    say("\nNext", "bold")
    say_lines(
        "faithscope explain YOUR.jpg --story",
        f"faithscope evaluate --model {BUNDLED_MODEL} --data {BUNDLED_DATA} --fill blur",
    )
