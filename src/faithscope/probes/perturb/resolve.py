"""What a request means for the model and the data at hand, or why it cannot be had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor

from faithscope.data import (
    ImageData,
    in_random_order,
    load_data,
)
from faithscope.data.labels import class_by_name
from faithscope.data.text_samples import TextSamples
from faithscope.errors import FaithscopeError
from faithscope.methods import Method, resolve_methods
from faithscope.methods.bilstm import as_read_by
from faithscope.metrics import Metric, SaCo, resolve_metrics
from faithscope.models import Model, TextModel, as_model, load_model
from faithscope.models.text_model import UNITS as TEXT_UNITS
from faithscope.perturb import DEFAULTS, FILLS, UNITS
from faithscope.request import Given, Perturb
from faithscope.request.code import named_code, refuse_code

OF_A_NAME = ("checkpoint", "pretrained", "device", "trust_remote_code")
"""Options that say how a model is got by its name."""
OF_ONE = {
    "side": ("text", "pairs of texts"),
    "upsample": ("image", "maps of images"),
    "compile": ("image", "models of images"),
}
"""Options that only images or only texts have."""


def check_fill(request: Perturb) -> None:
    """Refuse to drop pixels, for a sequence is made of patches, and to compile for every length."""
    if request.fill not in FILLS or not FILLS[request.fill].drops:
        return
    if request.compile:
        raise FaithscopeError(
            f"compile makes a program for inputs of one size, and fill='{request.fill}' runs "
            "sequences of many lengths: leave compile out, or choose another fill."
        )
    if request.units == "pixels":
        raise FaithscopeError(
            f"fill='{request.fill}' takes whole patches out of the model's sequence: ask for "
            "units='patches', or choose another fill."
        )


def one_k(request: Perturb) -> int | str:
    """The protocol's K: the first of several."""
    return request.k[0] if isinstance(request.k, tuple) else request.k


def chosen_methods(request: Perturb, given: Given, modality: str = "image") -> list[Method]:
    """The methods; none, if nothing was said and maps are given."""
    named = (() if given.maps else ("all",)) if request.methods is None else request.methods
    refuse_code(name for name in named if name not in given.methods)
    wanted = [given.methods.get(name, name) for name in named]
    return resolve_methods(wanted, modality)


def for_modality(request: Perturb, model: Model) -> Perturb:
    """The request with what "auto" means for images or texts; what is for the other is refused."""
    of_texts = model.modality == "text"
    fill = DEFAULTS[model.modality] if request.fill == "auto" else request.fill
    units = ("tokens" if of_texts else "pixels") if request.units == "auto" else request.units
    known = FILLS.of(model.modality)
    if fill not in known:
        raise FaithscopeError(
            f"The fill '{fill}' is not for {model.modality}s, which {model.name} reads: choose "
            f"{', '.join(known)}."
        )
    if (units in TEXT_UNITS) != of_texts:
        valid = TEXT_UNITS if of_texts else UNITS
        raise FaithscopeError(
            f"units='{units}' is not for {model.modality}s, which {model.name} reads: choose "
            f"{' or '.join(valid)}."
        )
    for option, (modality, things) in OF_ONE.items():
        usual = Perturb.model_fields[option].default
        if modality != model.modality and getattr(request, option) != usual:
            raise FaithscopeError(
                f"{option} is for {things}, and {model.name} reads {model.modality}s: leave it out."
            )
    request = request.model_copy(update={"fill": fill, "units": units})
    if not of_texts:
        check_fill(request)
    return request


def made_in(request: Perturb, model: Model, methods: Sequence[Method]) -> list[Method]:
    """The methods as the model is read, in the format that was asked for."""
    return [
        method.made_in(request.explain_precision, model) for method in as_read_by(model, methods)
    ]


def with_target(request: Perturb, model: Model) -> Perturb:
    """The request with the number of a class that it names."""
    target = request.target
    if isinstance(target, int) or target in ("predicted", "label") or target.startswith("given:"):
        return request
    return request.model_copy(update={"target": class_by_name(target, model, "predicted", "label")})


def with_units(model: Model, request: Perturb) -> Model:
    """A text model that reads the units and the side that are asked for."""
    if isinstance(model, TextModel):
        return model.with_units(request.units, request.side)
    return model


def chosen_metrics(request: Perturb, given: Given) -> list[Metric]:
    """The metrics; of several K's, those that have one once for each."""
    chosen = resolve_metrics([given.metrics.get(name, name) for name in request.metrics])
    if not isinstance(request.k, tuple) or len(request.k) == 1:
        return chosen
    spread: list[Metric] = []
    for metric in chosen:
        if isinstance(metric, SaCo) and metric.k is None:
            spread += [replace(metric, k=k) for k in request.k]
        else:
            spread.append(metric)
    labels = [metric.label for metric in spread]
    for label in labels:
        if labels.count(label) > 1:
            raise FaithscopeError(f"'{label}' is asked for twice: give every k once.")
    return spread


def load_named_model(request: Perturb, *, allow_code: bool = False) -> Model:
    """The model that a request names; one in a Python file only if somebody typed that name."""
    if not allow_code:
        refuse_code([request.model])
    return load_model(
        request.model,
        pretrained=request.pretrained,
        checkpoint=request.checkpoint,
        device=request.device,
        trust_remote_code=request.trust_remote_code,
        output=request.output,
    )


def with_model(request: Perturb) -> Perturb:
    """The same request beside its model, which is loaded already."""
    return request.model_copy(
        update={name: Perturb.model_fields[name].default for name in OF_A_NAME}
    )


def with_code(request: Perturb, given: Given) -> tuple[Perturb, Given]:
    """The same, with the Python code that it names, typed by somebody, as objects beside it."""
    names = [name for name in request.methods or () if name not in given.methods]
    own = {name: resolve_methods(name)[0] for name in named_code(names)}
    methods = {**given.methods, **own}
    if given.model is not None or not named_code([request.model]):
        return request, replace(given, methods=methods)
    model = load_named_model(request, allow_code=True)
    return with_model(request), replace(given, model=model, methods=methods)


def read_model(request: Perturb, given: Given) -> Model:
    """The model that was given, or the one that is named."""
    if given.model is None:
        return load_named_model(request)
    _only_by_name(request, OF_A_NAME)
    return as_model(given.model).with_output(request.output)


def read_data(request: Perturb, given: Given, model: Model) -> ImageData:
    """The samples as the model reads them; in random order if a tolerance ends the run."""
    wanted = request.data if given.data is None else given.data
    data: ImageData = load_data(wanted, model, labels=given.labels, limit=request.limit)
    if isinstance(data, TextSamples) and FILLS.of("text")[request.fill].drops:
        data = data.that_keep_some()
    return data if request.tolerance is None else in_random_order(data, request.seed)


def _only_by_name(request: Perturb, names: Iterable[str]) -> None:
    """Refuse options that say how a model is got by name, where it was given as an object."""
    for name in names:
        if getattr(request, name) != Perturb.model_fields[name].default:
            raise FaithscopeError(
                f"{name} goes with a model by name: leave it out beside an object, or give a name."
            )


def given_target(request: Perturb, given: Given, count: int, noun: str) -> str | int | Tensor:
    """The class to watch: as the request says, or one for each sample."""
    if given.target is None:
        return request.target
    target: Tensor = given.target
    if count and target.shape != (count,):
        raise FaithscopeError(
            f"target must be 'predicted', 'label', a class or one class for each of the {count} "
            f"{noun}s, got shape {list(target.shape)}."
        )
    return target
