"""`faithscope evaluate`: measure how faithful explanations are, on any model and data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faithscope.cli.shared import (
    Checkpoint,
    Device,
    Fill,
    Json,
    K,
    Limit,
    Pretrained,
    Seed,
    Units,
    Upsample,
    Yes,
    app,
    as_data,
    ask,
    examples,
    forecast_of,
    make_folder,
    number_or_word,
)
from faithscope.errors import FaithscopeError
from faithscope.registry import split_specs

if TYPE_CHECKING:
    import numpy as np

    from faithscope.result import Result


@app.command(
    epilog=examples(
        "faithscope evaluate --model bundled:cifar10_vit --data bundled:cifar10 --limit 10",
        "faithscope evaluate --model timm:vit_base_patch16_224 --data photos/ \\",
        "    --methods 'all,rollout(start_layer=1)' --metrics saco,aopc --out run",
    )
)
def evaluate(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="timm:…, hf:…, torchvision:… or bundled:…")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A folder, bundled:cifar10, cifar10:DIR, imagenet:DIR, hf:ID, array:FILE; see "
            "`list data`.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B(OPTION=1),…",
            help="Methods; 'all' are the papers', 'registered' every one. "
            "[default: all, or none beside --maps]",
        ),
    ] = None,
    metrics: Annotated[
        str, typer.Option(metavar="A,B(OPTION=1),…", help="Metrics, 'all' or 'registered'.")
    ] = "all",
    maps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE.npy", help="Maps of your own, one for each image used; repeatable."
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    pretrained: Pretrained = True,
    limit: Limit = None,
    k: K = "10",
    fill: Fill = "mean",
    units: Units = "pixels",
    upsample: Upsample = "bilinear",
    ties: Annotated[
        str, typer.Option(metavar="ascending|descending", help="Order of equal salience, by index.")
    ] = "ascending",
    group: Annotated[
        str, typer.Option(metavar="sum|mean", help="Salience of a SaCo group.")
    ] = "sum",
    target: Annotated[
        str, typer.Option(metavar="predicted|label|INT", help="The class to watch.")
    ] = "predicted",
    random_draws: Annotated[
        int, typer.Option(metavar="N", help="Draws of random attribution; 0 leaves it out.")
    ] = 3,
    seed: Seed = 0,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="auto, fp64, fp32, tf32, fp16 or bf16.")
    ] = "auto",
    batch_size: Annotated[
        str, typer.Option(metavar="N|auto", help="Inputs per call of the model.")
    ] = "auto",
    pictures: Annotated[
        int, typer.Option(metavar="N", help="Images kept, small, for the report's gallery.")
    ] = 1000,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the result here, shard by shard; goes on if it was stopped."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page to look at.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="RUN", help="Other --metrics of a finished run, without the model."
        ),
    ] = None,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """Measure how faithful explanations are to the model they explain."""
    from faithscope.cli.console import note, run_with_progress, waiting

    for folder in (out, report and report.parent):
        if folder is not None:
            make_folder(folder)
    if source is not None:
        from faithscope.result import load_result

        _only(context, "--from", ("source", "metrics", "out", "report", "as_json"))
        if out is not None and any(
            (out / name).exists() for name in ("plan.json", "manifest.json")
        ):
            raise FaithscopeError(f"'{out}' holds a run already: give --out another folder.")
        result = load_result(source).rescore(split_specs(metrics))
        files = {} if out is None else {"result": result.save(out)}
        return show(result, files, report, as_json)
    if model is None or data is None:
        raise FaithscopeError("evaluate needs --model and --data, or --from a finished run.")
    given = _read_maps(maps or [])
    with waiting(f"loading {model}"):
        from faithscope.data import load_data
        from faithscope.models import load_model
        from faithscope.probes.perturb.evaluation import prepare
        from faithscope.runs.store import shards_in

        loaded = load_model(model, pretrained=pretrained, checkpoint=checkpoint, device=device)
        evaluation = prepare(
            loaded,
            load_data(data, loaded, limit=limit),
            None if methods is None else split_specs(methods),
            split_specs(metrics),
            maps=given,
            target=number_or_word(target),
            k=number_or_word(k),
            fill=fill,
            units=units,
            upsample=upsample,
            ties=ties,
            group=group,
            random_draws=random_draws,
            seed=seed,
            precision=precision,
            batch_size=number_or_word(batch_size),
            pictures=pictures,
        )
    forecast = forecast_of(evaluation)
    note(str(forecast))
    if out is not None and (done := shards_in(out)):
        note(f"going on with the run in {out}: {done} shards of at most {evaluation.shard} images")
    else:
        ask(forecast, yes)
    result = run_with_progress(evaluation, forecast, out)
    show(result, {} if out is None else {"result": out}, report, as_json)


def _only(context: typer.Context, option: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that have no effect beside this one."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise FaithscopeError(
                f"--{name.replace('_', '-')} has no effect with {option}, whose run is done: leave "
                "it out, or write options into --metrics, as in 'saco(k=5)'."
            )


def show(result: Result, files: dict[str, Path], report: Path | None, as_json: bool) -> None:
    """Show a result, write its page, and say what was written."""
    from faithscope.cli.console import print_json, say_files, show_result, show_skipped

    if as_json:
        print_json(as_data(result))
    else:
        show_result(result)
    show_skipped(result)
    if report is not None:
        files["report"] = result.report(report)
    say_files(files, stderr=as_json)


def _read_maps(pairs: Iterable[str]) -> dict[str, np.ndarray]:
    """Read NAME=FILE.npy, each an array of numbers, without running any code in the files."""
    maps: dict[str, np.ndarray] = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not (name and equals and file):
            raise FaithscopeError(f"Maps are given as NAME=FILE.npy, got '{pair}'.")
        if name in maps:
            raise FaithscopeError(f"The maps '{name}' are given twice: name them differently.")
        maps[name] = _read_array(Path(file).expanduser())
    return maps


def _read_array(file: Path) -> np.ndarray:
    import numpy as np

    if not file.is_file():
        raise FaithscopeError(f"There is no file of maps '{file}': check the path.")
    try:
        values: Any = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        values = None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        raise FaithscopeError(
            f"'{file}' is not an array of numbers: write the maps with numpy.save, as "
            "[images, height, width]."
        )
    return values.astype(np.promote_types(values.dtype, np.float32))  # exact, native byte order
