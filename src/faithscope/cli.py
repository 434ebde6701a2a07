"""The command line: demo, evaluate, explain, list, doctor.

Only typer is imported here. What is heavy is imported inside a command, so that help answers at
once.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from faithscope import __version__
from faithscope.errors import FaithscopeError, choose, unknown
from faithscope.registry import split_specs

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from faithscope.evaluation import Evaluation, Forecast
    from faithscope.models import Model
    from faithscope.results import Result
    from faithscope.studies import Cell

BUNDLED_MODEL, BUNDLED_DATA = "bundled:cifar10_vit", "bundled:cifar10"
DEMO_METHODS = (
    "integrated_gradients",
    "rollout",
    "attcat",
    "transformer_mm",
    "transformer_attribution",
)
DEMO_DRAWS = 2
PICTURES = (".png", ".pdf", ".svg")
DEMO_PICTURES = 4
LONG_SECONDS = 15 * 60
"""Work that takes longer asks first, where there is somebody to ask."""


class Commands(TyperGroup):
    """The commands, with their errors told in one line instead of a traceback."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command; for an unknown one say what may have been meant."""
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            raise unknown("command", cmd_name, self.list_commands(ctx))
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An error that is not ours keeps its traceback."""
        try:
            return super().invoke(ctx)
        except FaithscopeError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("interrupted: what was not finished is not saved", err=True)
            raise typer.Exit(130) from None


def _examples(*lines: str) -> str:
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # importing rich for the help alone costs more than everything else
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_examples("faithscope demo"),
)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ↑ shows ?, not a traceback
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # download bars of other libraries
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a line per attempt without a network
    app(prog_name="faithscope")


ModelName = Annotated[
    str, typer.Option("--model", metavar="NAME", help="timm:…, hf:…, torchvision:… or bundled:…")
]
Methods = Annotated[
    str,
    typer.Option(
        metavar="A,B(OPTION=1),…", help="Methods; 'all' are the papers', 'registered' every one."
    ),
]
Checkpoint = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Weights: safetensors or a torch state dict.")
]
Pretrained = Annotated[
    bool, typer.Option("--pretrained/--no-pretrained", help="Fetch the library's own weights.")
]
K = Annotated[str, typer.Option("--k", metavar="N|auto", help="SaCo's number of groups.")]
Fill = Annotated[
    str, typer.Option(metavar="NAME", help="What replaces removed units; see `list fills`.")
]
Units = Annotated[str, typer.Option(metavar="pixels|patches", help="What is ranked and removed.")]
Upsample = Annotated[
    str, typer.Option(metavar="bilinear|nearest", help="How patch maps become pixel maps.")
]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, all else to stderr.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"faithscope {__version__}")
        raise typer.Exit


@app.callback()
def faithscope(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Does this explanation tell the truth about this model?"""


@app.command(epilog=_examples("faithscope demo", "faithscope demo --images 100 --out more"))
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.")] = Path(
        "faithscope-demo"
    ),
    images: Annotated[int, typer.Option(metavar="N", help="How many bundled images to use.")] = 25,
    seed: Seed = 0,
) -> None:
    """Measure five explanations of the bundled model in about a minute."""
    from faithscope.console import (
        note,
        run_with_progress,
        say,
        say_files,
        say_lines,
        show_result,
        waiting,
    )

    _make_folder(out)
    with waiting(f"loading {BUNDLED_MODEL}"):
        from faithscope.data import load_data
        from faithscope.evaluation import prepare
        from faithscope.models import load_model

        model = load_model(BUNDLED_MODEL)
        data = load_data(BUNDLED_DATA, model, limit=images)
        evaluation = prepare(model, data, DEMO_METHODS, random_draws=DEMO_DRAWS, seed=seed)
    forecast = _forecast(evaluation)
    note(
        f"{len(DEMO_METHODS)} methods, {DEMO_DRAWS} random draws per pixel and per patch, "
        f"{len(evaluation.job.metrics)} metrics\n{forecast}"
    )
    result = run_with_progress(evaluation, forecast)
    files = {"tables": result.save(out / "run")}
    show_result(result)
    with waiting("drawing"):
        from faithscope.data.images import choose_subset
        from faithscope.report import write_page

        everything = next(data.batches(len(data))).images
        places = choose_subset(len(everything), DEMO_PICTURES, None)
        picture = out / "heatmaps.png"
        _draw(model, everything, DEMO_METHODS, result, picture, places)
        files["heat-maps"] = picture
        files["report"] = write_page(result, out / "report.html", pictures=[picture])
    say("\nWritten", "bold")
    say_files(files)
    say("\nNext", "bold")
    say_lines(
        "faithscope explain YOUR.jpg --methods registered",
        f"faithscope evaluate --model {BUNDLED_MODEL} --data {BUNDLED_DATA} --fill blur",
    )


@app.command(
    epilog=_examples(
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
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Use N images, spread evenly over the data.")
    ] = None,
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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before long work.")] = False,
) -> None:
    """Measure how faithful explanations are to the model they explain."""
    from faithscope.console import (
        note,
        run_with_progress,
        waiting,
    )

    for folder in (out, report and report.parent):
        if folder is not None:
            _make_folder(folder)
    if source is not None:
        from faithscope.results import load_result

        _only(context, "--from", ("source", "metrics", "out", "report", "as_json"))
        if out is not None and any(
            (out / name).exists() for name in ("plan.json", "manifest.json")
        ):
            raise FaithscopeError(f"'{out}' holds a run already: give --out another folder.")
        result = load_result(source).rescore(split_specs(metrics))
        files = {} if out is None else {"result": result.save(out)}
        return _show(result, files, report, as_json)
    if model is None or data is None:
        raise FaithscopeError("evaluate needs --model and --data, or --from a finished run.")
    given = _read_maps(maps or [])
    with waiting(f"loading {model}"):
        from faithscope.data import load_data
        from faithscope.evaluation import prepare
        from faithscope.models import load_model
        from faithscope.results.store import shards_in

        loaded = load_model(model, pretrained=pretrained, checkpoint=checkpoint, device=device)
        evaluation = prepare(
            loaded,
            load_data(data, loaded, limit=limit),
            None if methods is None else split_specs(methods),
            split_specs(metrics),
            maps=given,
            target=_number_or_word(target),
            k=_number_or_word(k),
            fill=fill,
            units=units,
            upsample=upsample,
            ties=ties,
            group=group,
            random_draws=random_draws,
            seed=seed,
            precision=precision,
            batch_size=_number_or_word(batch_size),
        )
    forecast = _forecast(evaluation)
    note(str(forecast))
    if out is not None and (done := shards_in(out)):
        note(f"going on with the run in {out}: {done} shards of at most {evaluation.shard} images")
    else:
        _ask(forecast, yes)
    result = run_with_progress(evaluation, forecast, out)
    _show(result, {} if out is None else {"result": out}, report, as_json)


def _only(context: typer.Context, option: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that have no effect beside this one."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise FaithscopeError(
                f"--{name.replace('_', '-')} has no effect with {option}, whose run is done: leave "
                "it out, or write options into --metrics, as in 'saco(k=5)'."
            )


def _show(result: Result, files: dict[str, Path], report: Path | None, as_json: bool) -> None:
    """Show a result, write its page, and say what was written."""
    from faithscope.console import print_json, say_files, show_result, show_skipped

    if as_json:
        print_json(_as_data(result))
    else:
        show_result(result)
    show_skipped(result)
    if report is not None:
        files["report"] = result.report(report)
    say_files(files, stderr=as_json)


@app.command(
    epilog=_examples(
        "faithscope run studies/demo.yaml --dry-run",
        "faithscope run studies/demo.yaml --set fills=[mean,black] --limit 10",
    )
)
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="What to measure.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to keep the runs. [default: runs/STUDY here]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it will cost, and do nothing.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Use N images, spread evenly over the data.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the study; repeatable."),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before long work.")] = False,
) -> None:
    """Run a study: every combination of its models, data, fills …; goes on if it was stopped."""
    from faithscope.console import (
        note,
        print_json,
        run_with_progress,
        say,
        show_result,
        show_sensitivity,
        waiting,
    )

    with waiting("reading the study"):
        from faithscope.evaluation import Forecast
        from faithscope.studies.run import forecast_study, run_study
        from faithscope.studies.study import load_study

        wanted = load_study(
            study, {**_changes(changes), **({} if limit is None else {"limit": limit})}
        )
    folder = out or Path("runs") / wanted.name
    with waiting("measuring what it will cost"):
        costs = forecast_study(wanted, device)
    for cell, cost in costs:
        note(f"{cell.label}: {cost}")
    images, passes = (sum(getattr(c, part) for _, c in costs) for part in ("images", "passes"))
    total = Forecast(images, 0, passes, sum(cost.seconds for _, cost in costs))
    say(f"{len(costs)} runs, {passes:,} model passes, about {total.duration}", stderr=as_json)
    if dry_run:
        if as_json:
            print_json({cell.label: vars(cost) for cell, cost in costs})
        return
    _ask(total, yes)

    def run_cell(cell: Cell, evaluation: Evaluation, where: Path) -> Result:
        note(f"\n{cell.label}")
        result = run_with_progress(evaluation, None, where)
        if not as_json:
            show_result(result)
        return result

    done = run_study(wanted, folder, device=device, run=run_cell)
    moved = done.sensitivity().to_pylist()
    if as_json:
        cells = {label: _as_data(result) for label, result in done.results.items()}
        print_json({"cells": cells, "sensitivity": moved})
    elif moved:
        show_sensitivity(moved)
    say(f"\nkept in {folder}", stderr=as_json)


def _changes(texts: list[str] | None) -> dict[str, Any]:
    """Read KEY=VALUE, the value as YAML."""
    import yaml

    from faithscope.studies.study import read_yaml

    changes = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        try:
            changes[key.strip()] = read_yaml(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            equals = ""
        if not equals:
            raise FaithscopeError(f"--set takes KEY=VALUE, got '{text}': for example --set k=5.")
    return changes


@app.command(
    epilog=_examples("faithscope explain cat.jpg --methods rollout,gradient --out cat.png")
)
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
    _make_folder(path.parent)
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
            k=_number_or_word(k),
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
        _draw(loaded, inputs, chosen, result, path, [0])
    if not as_json:
        say_files({"picture": path})


@app.command("list", epilog=_examples("faithscope list metrics", "faithscope list --json"))
def list_(
    what: Annotated[
        str, typer.Argument(metavar="[methods|metrics|fills|models|all]", help="What to list.")
    ] = "all",
    as_json: Json = False,
) -> None:
    """List methods, metrics, fills and models, with their options."""
    from faithscope.console import print_json, show_entries, waiting

    with waiting("looking"):
        from faithscope.catalog import CATALOGUES, title, traits

        choose("kind of thing", what, [*CATALOGUES, "all"])
        kinds = [kind for kind in CATALOGUES if what in (kind, "all")]
        found = {kind: CATALOGUES[kind]() for kind in kinds}
    if as_json:
        print_json(found)
        return
    for kind, entries in found.items():
        show_entries(kind, [(title(entry), entry["summary"], traits(entry)) for entry in entries])


@app.command(epilog=_examples("faithscope doctor", "faithscope doctor --json"))
def doctor(as_json: Json = False) -> None:
    """Check that everything needed is here, and say what to do if not."""
    from faithscope.console import print_json, show_check, waiting
    from faithscope.doctor import examine

    checks, pending = [], examine()
    while True:
        with waiting("checking"):
            check = next(pending, None)
        if check is None:
            break
        checks.append(check)
        if not as_json:
            show_check(**asdict(check))
    if as_json:
        print_json([asdict(check) for check in checks])
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _forecast(evaluation: Evaluation) -> Forecast:
    from faithscope.console import waiting

    with waiting("measuring what it will cost"):
        return evaluation.forecast()


def _ask(forecast: Forecast, yes: bool) -> None:
    """Ask before long work, where there is somebody to ask."""
    if yes or forecast.seconds < LONG_SECONDS or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm("Go on?", default=True, err=True):
        typer.echo(
            "stopped before any work; --limit N or fewer --methods make it shorter", err=True
        )
        raise typer.Exit(1)


def _make_folder(folder: Path) -> None:
    """Make a folder to write to, before the work rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FaithscopeError(
            f"The folder '{folder}' cannot be made ({error.strerror}): give another."
        ) from None
    if not os.access(folder, os.W_OK):
        raise FaithscopeError(f"The folder '{folder}' cannot be written to: give another.")


def _number_or_word(text: str) -> int | str:
    """Read a whole number where there is one; what else is allowed is checked by who uses it."""
    try:
        return int(text)
    except ValueError:
        return text


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


def _draw(
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


def _as_data(result: Result) -> dict[str, Any]:
    return {
        "headline": result.headline(),
        "verdicts": result.verdicts(),
        "summary": result.summary().to_pylist(),
        "manifest": result.manifest,
    }


if __name__ == "__main__":
    main()
