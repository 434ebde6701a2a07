"""`faithscope explain`: what each method says about one image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.shared import (
    BUNDLED_MODEL,
    Checkpoint,
    Device,
    Fill,
    Json,
    K,
    Methods,
    ModelName,
    Pretrained,
    Seed,
    Units,
    Upsample,
    app,
    examples,
    make_folder,
    number_or_word,
)
from faithscope.errors import FaithscopeError
from faithscope.registry import split_specs

if TYPE_CHECKING:
    from torch import Tensor

    from faithscope.models import Model
    from faithscope.results import Result

PICTURES = (".png", ".pdf", ".svg")


@app.command(epilog=examples("faithscope explain cat.jpg --methods rollout,gradient --out cat.png"))
def explain(
    image: Annotated[
        Path, typer.Argument(metavar="IMAGE", help="An image file, or bundled:cifar10:N.")
    ],
    model: ModelName = BUNDLED_MODEL,
    methods: Methods = "all",
    target: Annotated[
        int | None,
        typer.Option(metavar="INT", help="The class to explain. [default: the predicted one]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="The picture. [default: IMAGE-explained.png here]"),
    ] = None,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = True,
    k: K = "10",
    fill: Fill = "mean",
    units: Units = "pixels",
    upsample: Upsample = "bilinear",
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Draw what each method says about one image, with its SaCo."""
    from faithscope.console import (
        print_json,
        run_with_progress,
        say,
        say_files,
        show_scores,
        waiting,
    )

    path = out or Path(f"{image.stem.replace(':', '-')}-explained.png")
    if path.suffix.lower() not in PICTURES:
        raise FaithscopeError(f"'{path}' is no picture: name a file .png, .pdf or .svg.")
    make_folder(path.parent)
    chosen = split_specs(methods)
    with waiting(f"loading {model}"):
        from faithscope.evaluation import prepare
        from faithscope.models import load_model

        loaded = load_model(model, pretrained=pretrained, checkpoint=checkpoint, device=device)
        inputs = _read_input(image, loaded)
        evaluation = prepare(
            loaded,
            inputs,
            chosen,
            "saco",
            target="predicted" if target is None else target,
            k=number_or_word(k),
            fill=fill,
            units=units,
            upsample=upsample,
            random_draws=0,
            seed=seed,
        )
    result = run_with_progress(evaluation)
    classes = _named_classes(loaded, inputs, result)
    scores = {row["method"]: row for row in result.scores.to_pylist()}
    if as_json:
        print_json(
            {
                "image": str(image),
                "model": loaded.name,
                **classes,
                "saco": {method: row["value"] for method, row in scores.items()},
                "flags": {method: row["flag"] for method, row in scores.items() if row["flag"]},
                "protocol": result.manifest["protocol"],
                "picture": str(path),
            }
        )
    else:
        for what, named in classes.items():
            if what == "predicted" or named != classes["predicted"]:
                say(f"{what}: {named['name']}, {named['probability']:.1%}")
        show_scores(scores.values())
        say("SaCo lies between -1 and 1; random salience averages 0, but not on one image.", "dim")
    with waiting("drawing"):
        draw(loaded, inputs, chosen, result, path, [0])
    if not as_json:
        say_files({"picture": path})


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
    return batch.images


def _named_classes(model: Model, images: Tensor, result: Result) -> dict[str, dict[str, Any]]:
    """The predicted class of the one image and, if another was asked for, the explained one."""
    import torch

    from faithscope.models import undisturbed

    with undisturbed(model.module), torch.no_grad():
        probabilities = model.logits(images.to(model.device)).softmax(-1)[0].tolist()
    sample = result.samples.to_pylist()[0]
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
    import torch

    from faithscope import api
    from faithscope.report import draw_explanations

    samples = result.samples.take(places).to_pylist()
    protocol = result.manifest["protocol"]
    shown = images[places]
    maps = api.explain(
        model,
        shown,
        list(methods),
        target=torch.tensor([sample["target"] for sample in samples]),
        upsample=protocol["upsample"],
        seed=protocol["seed"],
    )
    assert isinstance(maps, dict)  # since a list of methods was asked for
    draw_explanations(
        model,
        shown,
        maps,
        path,
        titles=[_caption(model, sample) for sample in samples],
        scores={method: result.values(method, "saco")[places].tolist() for method in maps},
        subtitle=f"{model.name}: SaCo with K = {protocol['k']}, fill {protocol['fill']}",
    )


def _caption(model: Model, sample: Mapping[str, Any]) -> str:
    """What is explained and how sure the model is of it; the true class first if it is another."""
    said = f"{model.class_name(sample['target'])} ({math.exp(sample['log_p0']):.0%})"
    if sample["label"] in (-1, sample["target"]):
        return said
    return f"{model.class_name(sample['label'])} → {said}"
