"""`faithscope explain`: what each method says about one image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.options import takes_request
from faithscope.cli.shared import (
    BUNDLED_MODEL,
    Json,
    app,
    examples,
    make_folder,
    note_left_out,
    path_argument,
    path_option,
)
from faithscope.errors import FaithscopeError
from faithscope.request import Given, Perturb, check_request

if TYPE_CHECKING:
    from torch import Tensor

    from faithscope.models import Model
    from faithscope.result import Result

PICTURES = (".png", ".pdf", ".svg")
STORY_DRAWS = 10
"""Draws of random attribution in a story: one draw on one image may be lucky."""
OPTIONS = (
    *("model", "methods", "output", "k", "fill", "units", "upsample", "random_draws", "seed"),
    *("checkpoint", "pretrained", "device", "trust_remote_code"),
)


@app.command(
    epilog=examples(
        "faithscope explain cat.jpg --methods rollout,gradient --out cat.png",
        "faithscope explain cat.jpg --methods rollout,gradient --story --out cat.pdf",
    )
)
@takes_request(
    Perturb,
    only=OPTIONS,
    defaults={"model": BUNDLED_MODEL, "methods": ("all",), "random_draws": STORY_DRAWS},
)
def explain(
    context: typer.Context,
    image: Annotated[
        Path,
        path_argument(metavar="IMAGE", help="An image file, or bundled:cifar10:N."),
    ],
    asked: dict[str, Any],
    target: Annotated[
        int | None,
        typer.Option(metavar="INT", help="The class to explain. [default: the predicted one]"),
    ] = None,
    out: Annotated[
        Path | None,
        path_option(
            metavar="FILE.png",
            help="The picture, .png, .pdf or .svg. [default: IMAGE-explained.png or "
            "IMAGE-story.png here]",
        ),
    ] = None,
    story: Annotated[
        bool,
        typer.Option(
            "--story",
            help="Draw how the scores come about: salience of each group of units, confidence "
            "without it alone and cumulatively, SaCo and AOPC, and the range of random draws.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Draw the maps of one image, each with its SaCo, or its story."""
    from faithscope.cli.console import print_json, run_with_progress, say_files, waiting

    typed = context.get_parameter_source("random_draws")
    if typed is not None and typed.name == "COMMANDLINE" and not story:
        raise FaithscopeError("--random-draws needs --story: add it, or leave it out.")
    path = out or Path(f"{image.stem.replace(':', '-')}-{'story' if story else 'explained'}.png")
    if path.suffix.lower() not in PICTURES:
        raise FaithscopeError(f"'{path}' is not a picture: name a file .png, .pdf or .svg.")
    make_folder(path.parent)
    request = check_request(
        Perturb,
        {
            **asked,
            "data": str(image),
            "metrics": ("saco", "aopc") if story else ("saco",),
            "target": "predicted" if target is None else target,
            **({} if story else {"random_draws": 0}),
        },
    )
    with waiting(f"loading {request.model}"):
        from faithscope.api import prepare_request
        from faithscope.probes.perturb.probe import load_named_model, with_code, with_model

        loaded = load_named_model(request, allow_code=True)
        inputs = _read_input(image, loaded)
        given = Given(model=loaded, data=inputs)
        prepared = prepare_request(*with_code(with_model(request), given))
    result = run_with_progress(prepared)
    note_left_out(result.left_out)
    methods = result.manifest.plan.request.methods or ()
    classes = _named_classes(loaded, inputs, result)
    scores = _story_numbers(result) if story else _sacos(result)
    if as_json:
        names = ("saco", "aopc") if story else ("saco",)
        print_json(
            {
                "image": str(image),
                "model": loaded.name,
                **classes,
                **{name: {method: row[name] for method, row in scores.items()} for name in names},
                "flags": {method: row["flag"] for method, row in scores.items() if row["flag"]},
                **({"story": scores} if story else {}),
                "left_out": [held.model_dump() for held in result.left_out],
                "protocol": result.manifest.protocol,
                "picture": str(path),
            }
        )
    else:
        _tell(classes, scores)
    with waiting("drawing"):
        if story:
            from faithscope.report.story import draw_story

            maps = _maps(loaded, inputs, methods, result, [0], units=request.units)
            draw_story(loaded, inputs, maps, result, path)
        else:
            draw(loaded, inputs, methods, result, path, [0])
    if not as_json:
        say_files({"picture": path})


def _sacos(result: Result) -> dict[str, dict[str, Any]]:
    """SaCo and flag of each method."""
    return {
        row["method"]: {"saco": row["value"], "flag": row["flag"]}
        for row in result.scores.to_pylist()
    }


def _story_numbers(result: Result) -> dict[str, dict[str, Any]]:
    """Scores, groups and curve of each method."""
    from faithscope.report.story import read_story

    return {method: row.as_data() for method, row in read_story(result).items()}


def _tell(classes: Mapping[str, Mapping[str, Any]], scores: Mapping[str, dict[str, Any]]) -> None:
    """Print the classes and the scores."""
    from faithscope.cli.console import say, show_scores, show_story

    for what, named in classes.items():
        if what == "predicted" or named != classes["predicted"]:
            say(f"{what}: {named['name']}, {named['probability']:.1%}")
    if "draws" in next(iter(scores.values())):
        show_story(
            {
                "method": method,
                "random": scores[row["random"]]["draws"] if row["random"] else {},
                **{name: row[name] for name in ("saco", "aopc", "flag")},
            }
            for method, row in scores.items()
        )
    else:
        show_scores(
            {"method": method, "value": row["saco"], **row} for method, row in scores.items()
        )
    say("SaCo lies between -1 and 1; random salience averages 0, but not on one image.", "dim")


def _read_input(image: Path, model: Model) -> Tensor:
    """Read one image file as the model's input [1, C, H, W]."""
    from faithscope.data import load_data

    if image.is_dir():
        raise FaithscopeError(
            f"'{image}' is a folder: name one image, or use `faithscope evaluate --data {image}`."
        )
    batch = next(load_data(str(image), model).batches(1))  # which may be a name
    if batch.skipped:
        raise FaithscopeError(f"'{image}' cannot be used: {batch.skipped[0].reason}.")
    images: Tensor = batch.images
    return images


def _named_classes(model: Model, images: Tensor, result: Result) -> dict[str, dict[str, Any]]:
    """The predicted class of the one image and, if another was asked for, the explained one."""
    import torch

    from faithscope.models import undisturbed
    from faithscope.models.model import log_probabilities

    with undisturbed(model.module), torch.no_grad():
        logits = model.logits(images.to(model.device))
    probabilities = log_probabilities(logits, model.output)[0].exp().tolist()
    sample = result.samples.to_pylist()[0]
    if sample["predicted"] < 0:
        raise FaithscopeError(f"{model.name} answers NaN for this image: there is no class.")
    return {
        what: {
            "class": sample[column],
            "name": model.class_name(sample[column]),
            "probability": probabilities[sample[column]],
        }
        for what, column in (("predicted", "predicted"), ("explained", "target"))
    }


def draw(
    model: Model,
    images: Tensor,
    methods: Iterable[str],
    result: Result,
    path: Path,
    places: list[int],
) -> None:
    """Draw the images at some places of a result, their maps, and the scores the result holds."""
    from faithscope.report.figures import draw_explanations

    samples = result.samples.take(places).to_pylist()
    protocol = result.manifest.protocol
    maps = _maps(model, images, methods, result, places)
    draw_explanations(
        model,
        images[places],
        maps,
        path,
        titles=[_caption(model, sample) for sample in samples],
        scores={method: result.values(method, "saco")[places].tolist() for method in maps},
        subtitle=f"{model.name}: SaCo with K = {protocol['k']}, fill {protocol['fill']}",
    )


def _maps(
    model: Model,
    images: Tensor,
    methods: Iterable[str],
    result: Result,
    places: list[int],
    *,
    units: Any = "pixels",
) -> dict[str, Tensor]:
    """The maps that were scored of the images at some places of a result, made again."""
    import torch

    from faithscope import api

    protocol = result.manifest.protocol
    maps = api.explain(
        model,
        images[places],
        list(methods),
        target=torch.tensor(result.samples.take(places)["target"].to_pylist()),
        units=units,
        upsample=protocol["upsample"],
        seed=protocol["seed"],
    )
    assert isinstance(maps, dict)  # since a list of methods was asked for
    return maps


def _caption(model: Model, sample: Mapping[str, Any]) -> str:
    """What is explained and how sure the model is of it; the true class first if it is another."""
    said = f"{model.class_name(sample['target'])} ({math.exp(sample['log_p0']):.0%})"
    if sample["label"] in (-1, sample["target"]):
        return said
    return f"{model.class_name(sample['label'])} → {said}"
