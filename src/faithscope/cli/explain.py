"""`faithscope explain`: what each method says about one image or text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
    path_option,
    typed_path,
)
from faithscope.errors import FaithscopeError
from faithscope.request import Given, Perturb, check_request, read_texts

if TYPE_CHECKING:
    from torch import Tensor

    from faithscope.models import Model
    from faithscope.report.words import Explained
    from faithscope.result import Result

PICTURES = (".png", ".pdf", ".svg")
PAGE = ".html"
"""Only of texts."""
STORY_DRAWS = 10
"""Draws of random attribution in a story: one draw on one sample may be lucky."""
ONE_SAMPLE = (
    "SaCo lies between -1 and 1{groups}. One score of one sample proves little: random maps "
    "average 0 over many, not on each."
)
OPTIONS = (
    *("model", "methods", "output", "k", "fill", "units", "side", "upsample"),
    *("random_draws", "seed", "explain_precision", "checkpoint", "pretrained", "device"),
    "trust_remote_code",
)


@app.command(
    epilog=examples(
        "faithscope explain cat.jpg --methods rollout,gradient --out cat.png",
        "faithscope explain cat.jpg --methods rollout,gradient --story --out cat.pdf",
        "faithscope explain 'a gripping film' --model bundled:sst_text --out film.html",
    )
)
@takes_request(
    Perturb,
    only=OPTIONS,
    defaults={"model": BUNDLED_MODEL, "methods": ("all",), "random_draws": STORY_DRAWS},
)
def explain(
    context: typer.Context,
    sample: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|TEXT…",
            help="An image file, or bundled:cifar10:N; for a text model a text, two as a pair, or "
            "bundled:sst:N.",
        ),
    ],
    asked: dict[str, Any],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="The class to explain, by number or name. [default: the predicted one]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        path_option(
            metavar="FILE.png",
            help="The picture, .png, .pdf or .svg; of a text also a page, .html. [default: "
            "IMAGE-explained.png or IMAGE-story.png here; of a text none]",
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
    """Show what each method says about one image or text, with its SaCo, or its story."""
    from faithscope.cli.console import print_json, run_with_progress, say_files, waiting

    typed = context.get_parameter_source("random_draws")
    if typed is not None and typed.name == "COMMANDLINE" and not story:
        raise FaithscopeError("--random-draws needs --story: add it, or leave it out.")
    if out is not None:
        _check_suffix(out, (*PICTURES, PAGE))
        make_folder(out.parent)
    request = check_request(
        Perturb,
        {
            **asked,
            "data": sample[0],
            "metrics": ("saco", "aopc") if story else ("saco",),
            **read_texts(Perturb, {"target": target or "predicted"}),
            **({} if story else {"random_draws": 0}),
        },
    )
    with waiting(f"loading {request.model}"):
        from faithscope.api import prepare_request
        from faithscope.models import TextModel
        from faithscope.probes.perturb.resolve import load_named_model, with_code, with_model

        model, shown, note = load_named_model(request, allow_code=True), None, ""
        data: Any
        if isinstance(model, TextModel):
            from faithscope.cli.texts import read_text

            shown = read_text(sample, model, request)
            data = shown.data
            if "k" not in asked:
                few = shown.fewer_groups(request.k)
                note = f" and compares {few} units here, one by one" * (few != request.k)
                request = request.model_copy(update={"k": few})
        else:
            out = out or Path(f"{_stem(sample[0])}-{'story' if story else 'explained'}.png")
            _check_suffix(out, PICTURES)
            data = _read_image(sample, model)
        given = Given(model=model, data=data)
        prepared = prepare_request(*with_code(with_model(request), given))
    result = run_with_progress(prepared)
    note_left_out(result.left_out)
    methods = result.manifest.plan.request.methods or ()
    classes = _named_classes(model, data if shown is None else shown.inputs, result)
    scores = _story_numbers(result) if story else _sacos(result)
    maps = {} if shown is None else make_maps(model, data, methods, result)
    if as_json:
        names = ("saco", "aopc") if story else ("saco",)
        print_json(
            {
                **({"image": sample[0]} if shown is None else shown.as_data(maps)),
                "model": model.name,
                **classes,
                **{name: {method: row[name] for method, row in scores.items()} for name in names},
                "flags": {method: row["flag"] for method, row in scores.items() if row["flag"]},
                **({"story": scores} if story else {}),
                "left_out": [held.model_dump() for held in result.left_out],
                "protocol": result.manifest.protocol,
                "picture": None if out is None else str(out),
            }
        )
    else:
        _tell(classes, scores, [] if shown is None else shown.explained(maps, scores), note)
    if out is None:
        return
    with waiting("drawing"):
        if shown is not None:
            shown.write(out, maps, scores, result, is_story=story)
        elif story:
            from faithscope.report.story import draw_story

            draw_story(model, data, make_maps(model, data, methods, result), result, out)
        else:
            draw(model, data, methods, result, out, [0])
    if not as_json:
        say_files({"page" if out.suffix.lower() == PAGE else "picture": out})


def _check_suffix(path: Path, known: Sequence[str]) -> None:
    """Refuse a file of another format than those that are known."""
    if path.suffix.lower() not in known:
        what = "neither a picture nor a page" if PAGE in known else "not a picture"
        valid = f"{', '.join(known[:-1])} or {known[-1]}"
        raise FaithscopeError(f"'{path}' is {what}: name a file {valid}.")


def _stem(name: str) -> str:
    return typed_path(name).stem.replace(":", "-")


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


def _tell(
    classes: Mapping[str, Mapping[str, Any]],
    scores: Mapping[str, dict[str, Any]],
    explained: Sequence[Explained],
    note: str,
) -> None:
    """Print the classes, the words of a text in the colours of its maps, and the scores."""
    from faithscope.cli.console import say, show_explained, show_scores, show_story

    for what, named in classes.items():
        if what == "predicted" or named != classes["predicted"]:
            say(f"{what}: {named['name']}, {named['probability']:.1%}")
    if explained:
        show_explained(explained)
    if is_story := "draws" in next(iter(scores.values())):
        say()
        show_story(
            {
                "method": method,
                "random": scores[row["random"]]["draws"] if row["random"] else {},
                **{name: row[name] for name in ("saco", "aopc", "flag")},
            }
            for method, row in scores.items()
        )
    elif not explained:
        show_scores(
            {"method": method, "value": row["saco"], **row} for method, row in scores.items()
        )
    more = "" if is_story else " --story shows what random maps reach here."
    say(ONE_SAMPLE.format(groups=note) + more, "dim")


def _read_image(given: Sequence[str], model: Model) -> Tensor:
    """Read one image file as the model's input [1, C, H, W]."""
    from faithscope.data import load_data

    if len(given) > 1:
        raise FaithscopeError(f"{model.name} reads images: give one, got {len(given)}.")
    image = typed_path(given[0])
    if image.is_dir():
        raise FaithscopeError(
            f"'{image}' is a folder: name one image, or use `faithscope evaluate --data {image}`."
        )
    batch = next(load_data(str(image), model).batches(1))  # which may be a name
    if batch.skipped:
        raise FaithscopeError(f"'{image}' cannot be used: {batch.skipped[0].reason}.")
    images: Tensor = batch.images
    return images


def _named_classes(model: Model, inputs: Any, result: Result) -> dict[str, dict[str, Any]]:
    """The predicted class of the one sample and, if another was asked for, the explained one."""
    import torch

    from faithscope.models import undisturbed
    from faithscope.models.model import log_probabilities

    with undisturbed(model.module), torch.no_grad():
        logits = model.logits(inputs.to(model.device))
    probabilities = log_probabilities(logits, model.output)[0].exp().tolist()
    sample = result.samples.to_pylist()[0]
    if sample["predicted"] < 0:
        word = result.manifest.sample
        raise FaithscopeError(f"{model.name} answers NaN for this {word}: there is no class.")
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
    maps = make_maps(model, images[places], methods, result, places, units="pixels")
    draw_explanations(
        model,
        images[places],
        maps,
        path,
        titles=[caption(model, sample) for sample in samples],
        scores={method: result.values(method, "saco")[places].tolist() for method in maps},
        subtitle=f"{model.name}: SaCo with K = {protocol['k']}, fill {protocol['fill']}",
    )


def make_maps(
    model: Model,
    data: Any,
    methods: Iterable[str],
    result: Result,
    places: Sequence[int] = (0,),
    *,
    units: Any = None,
) -> dict[str, Tensor]:
    """The maps that were scored of the samples at some places of a result, made again.

    Of a text they are those of the one text.
    """
    import torch

    from faithscope.explaining import explain

    protocol = result.manifest.protocol
    also = ("upsample", "side", "explain_precision")
    options = {name: protocol[name] for name in also if name in protocol}
    maps: dict[str, Any] = explain(
        model,
        data,
        list(methods),
        target=torch.tensor(result.samples.take(list(places))["target"].to_pylist()),
        units=units or protocol["units"],
        seed=protocol["seed"],
        **options,
    )
    return {label: held[0] if isinstance(held, list) else held for label, held in maps.items()}


def caption(model: Model, sample: Mapping[str, Any]) -> str:
    """What is explained and how sure the model is of it; the true class first if it is another."""
    said = f"{model.class_name(sample['target'])} ({math.exp(sample['log_p0']):.0%})"
    if sample["label"] in (-1, sample["target"]):
        return said
    return f"{model.class_name(sample['label'])} → {said}"
