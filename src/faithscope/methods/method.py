"""What an explanation method is: the evidence it needs, and a short function of that evidence.

A method never runs the model by itself unless it must (integrated gradients, captum, a user's own
function); what several methods need is gathered once (trace.py) and shared (explain.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError, choose, shown
from faithscope.methods.evidence import NEEDS, TOKEN_NEEDS, Evidence
from faithscope.methods.layout import Inputs
from faithscope.models import Model, TextModel, TokenInputs
from faithscope.models.device import as_float64
from faithscope.models.formats import COARSE, FORMATS, check_format, format_of
from faithscope.models.layers import find_layer
from faithscope.registry import (
    Registry,
    as_list,
    check_options,
    format_spec,
    listed,
    parse_spec,
)
from faithscope.request.code import as_code

GRANULARITIES = ("pixel", "patch", "token", "any")
MODALITIES = ("image", "text")
PRECISIONS = ("fp64", "fp32")
"""What relevance may be computed in; less than fp64 is flagged, its rules are ill-conditioned."""

Needs = Iterable[str] | Callable[..., Iterable[str]]
Granularity = str | Callable[..., str]
"""A trait, or a function of the options that gives it."""

OF_INPUT = frozenset({"gradient", "path_gradient"})
"""What can be read without looking inside a model: gradients at the image, or on a way to it."""

Propose = Callable[[Model, Tensor], str | None]
"""Which layer of a model a method should be given, which it needs where there is no ViT."""

MEASURES: Registry[Method] = Registry("measure", group="faithscope.measures")
METHODS: Registry[Method] = Registry(
    "method", group="faithscope.methods", variants={"text": MEASURES}
)
"""Methods by name: of images and, among its variants, of text. Some names are in both."""


@dataclass(frozen=True)
class Method:
    """An explanation method and its traits.

    `function` maps Evidence to maps [B, H, W] (granularity "pixel"), [B, h, w] ("patch") or what
    `perturb.to_grids` reads ("any"); with `by_token` it maps TokenEvidence to scores of tokens
    [B, T]; with `by_layer` it is instead a step (row [B, N], Layer) -> row over the blocks, last
    first.
    """

    name: str
    function: Callable[..., Tensor]
    granularity: str = "any"
    needs: frozenset[str] = frozenset()
    by_layer: bool = False
    by_token: bool = False
    is_random: bool = False
    in_papers: bool = False
    modality: str = "image"
    summary: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    traits: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda options: {}
    propose: Propose | None = None
    suits: Callable[[Model], None] = lambda model: None
    """Refuses a model that it is not for."""
    fingerprint: str = ""
    """A hash of the file that it comes from, if that is somebody's own."""
    in_half: bool = False
    """Whether it may be made in half precision; on a CUDA GPU it is, unless asked otherwise."""
    precision: str = ""
    """The format that its evidence is made in, if that is not the model's own (`made_in`)."""

    @property
    def label(self) -> str:
        """The name with its options, as it stands in tables."""
        return format_spec(self.name, self.options)

    @property
    def defaults(self) -> dict[str, Any]:
        """Every option and its default: the function's keyword-only arguments, and precision."""
        own = function_options(self.function)
        return {**own, "precision": "fp64"} if "relevance" in self.needs else own

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """The values of those options that have but a few: the function's Literal arguments."""
        try:
            hints = get_type_hints(self.function)
        except (NameError, TypeError):  # a function of somebody else's
            hints = {}
        found = {
            name: get_args(hints[name])
            for name in function_options(self.function)
            if get_origin(hints.get(name)) is Literal
        }
        return {**found, "precision": PRECISIONS} if "relevance" in self.needs else found

    @property
    def arguments(self) -> dict[str, Any]:
        """The options that the function takes; in what it runs is not its business."""
        runs = "relevance" in self.needs
        return {k: v for k, v in self.options.items() if not (runs and k == "precision")}

    @property
    def is_imprecise(self) -> bool:
        """Whether relevance was asked for in less than float64."""
        return "relevance" in self.needs and self.options.get("precision", "fp64") != "fp64"

    def made_in(self, precision: str, model: Model) -> Method:
        """The same method with the format that `precision`, "auto" or a name, means for it.

        Relevance has an option of its own. "auto" is half precision on a CUDA GPU where the method
        allows it, else the model's own type; tf32 and half precision are for such methods alone.
        """
        choose("explain_precision", precision, ("auto", *FORMATS))
        if precision == "tf32":
            check_format(precision, model.device, option="explain_precision")
        if not self.reads_model or "relevance" in self.needs:
            return self
        halves, own = self.in_half and self.needs <= OF_INPUT, own_format(model)
        if precision == "auto":
            precision = "fp16" if halves and own == "fp32" and model.device.type == "cuda" else own
        elif precision in COARSE and not halves:
            precision = own
        return replace(self, precision="" if precision == own else precision)

    def format(self, model: Model) -> str:
        """What its evidence is made in: the model's own type, but float64 for relevance."""
        if "relevance" in self.needs:
            return str(self.options.get("precision", "fp64"))
        return self.precision or own_format(model)

    @property
    def reads_model(self) -> bool:
        """Whether its scores change with the weights of the model."""
        by_word = self.by_token and self.needs <= {"statistics"}
        return not self.is_random and not by_word

    def __call__(self, evidence: Any) -> Tensor:
        """The maps of a batch, or its scores by token [B, T]; what are none is refused."""
        kind = METHODS.of(self.modality).kind
        made = as_maps(self.function(evidence, **self.arguments), self.label, kind)
        expected = getattr(evidence, "tokens", None)
        if expected is not None and made.shape != expected:
            raise FaithscopeError(
                f"The {kind} '{self.label}' gave scores of shape {list(made.shape)}: expected one "
                f"for each token, {list(expected)}."
            )
        return made

    def check_layer(self, model: Model) -> None:
        """Refuse a layer that the model does not have: a slip, where others are what it lacks."""
        if self.propose is not None and self.options.get("layer"):
            find_layer(model, self.options["layer"])

    def check(self, model: Model, images: Inputs) -> None:
        """Refuse a model, and images [..., H, W] or texts, that lack what the method needs."""
        by = f"The method '{self.label}'"
        self.suits(model)
        if "statistics" in self.needs:
            reason = "only retraining has the training split that is read"
            raise FaithscopeError(
                f"{by} cannot be run, since {reason}: use fs.roar (faithscope roar).", reason=reason
            )
        if self.needs - OF_INPUT:
            vit = model.require_vit(by)
            model.require_grid(images, by)
            if self.needs - OF_INPUT - {"attention", "attention_gradient"}:
                vit.require_blocks(by)
        elif self.granularity == "patch":
            model.require_grid(images, by)

    def advised(self, model: Model, images: Inputs, error: FaithscopeError) -> FaithscopeError:
        """A refusal; it names a layer of the model if that is all the method needs to run."""
        if self.propose is None or self.options.get("layer") or not isinstance(images, Tensor):
            return error
        layer = self.propose(model, images)
        if layer is None:
            return error
        other = self.with_options(layer=layer).label
        return FaithscopeError(
            f"The method '{self.label}' needs a layer of {model.name}, as {other}, since "
            f"{error.reason}.",
            reason=f"{error.reason}; {other} would run",
        )

    def with_options(self, **options: Any) -> Method:
        """The same method with these options; one that it does not have is refused."""
        valid = self.defaults
        check_options(METHODS.of(self.modality).kind, self.name, options, valid)
        if options.get("steps", 1) < 1:
            kind = METHODS.of(self.modality).kind
            raise FaithscopeError(f"The option 'steps' of {kind} '{self.name}' must be at least 1.")
        for option, choices in self.choices.items():
            if option in options:
                choose(f"value of {self.name}'s {option}", options[option], choices)
        merged = {**self.options, **options}
        changed = {key: value for key, value in merged.items() if value != valid[key]}
        return replace(self, options=changed, **self.traits({**valid, **merged}))


F = TypeVar("F", bound=Callable[..., Tensor])


def own_format(model: Model) -> str:
    """What a model is explained in: its own type; in float32 if that is half precision.

    Without a scale its gradients would vanish.
    """
    return format_of(torch.promote_types(model.dtype, torch.float32))


def register_method(
    name: str,
    *,
    granularity: Granularity = "",
    needs: Needs = (),
    modality: str = "image",
    by_token: bool | None = None,
    is_random: bool = False,
    in_papers: bool = False,
    in_half: bool = False,
    propose: Propose | None = None,
) -> Callable[[F], F]:
    """Decorate a function of Evidence as a method; its keyword-only arguments are its options.

    `granularity` and `needs` may be functions of the options, where these change them. A method of
    the modality "text" is a function of TokenEvidence that scores tokens, unless by_token=False.
    `propose` names the layer that a method with the option `layer` should be given where there is
    no ViT. With `in_half`, it must run the model by `Evidence.read` and divide by its `scale`.
    """
    choose("modality", modality, MODALITIES)
    size: Any = granularity
    if isinstance(granularity, str) and not granularity:
        size = "token" if modality == "text" else "any"
    by_token = modality == "text" if by_token is None else by_token
    reads: Literal["batch", "token"] = "token" if by_token else "batch"
    return _register(name, size, needs, reads, is_random, in_papers, modality, propose, in_half)


def layer_method(
    name: str,
    *,
    needs: Needs = ("attention",),
    in_papers: bool = False,
    modality: str | tuple[str, ...] = MODALITIES,
) -> Callable[[F], F]:
    """Decorate a step over a Transformer's blocks as a method, of images and texts alike.

    The step takes the row of the product so far, [B, N], starting as the token(s) the head reads,
    and one `Layer`, and returns the next row. Blocks come last first, so that every product of
    attention matrices needs only this one row. The patch columns of the last row are the map.
    """

    def decorate(function: F) -> F:
        for one in (modality,) if isinstance(modality, str) else modality:
            size = "token" if one == "text" else "patch"
            _register(name, size, needs, "layer", False, in_papers, one)(function)
        return function

    return decorate


def _register(
    name: str,
    granularity: Granularity,
    needs: Needs,
    reads: Literal["batch", "layer", "token"],
    is_random: bool,
    in_papers: bool,
    modality: str,
    propose: Propose | None = None,
    in_half: bool = False,
) -> Callable[[F], F]:
    known = TOKEN_NEEDS if reads == "token" else NEEDS
    fixed = None if callable(needs) else tuple(as_list("kind of evidence", needs, str))

    def traits(options: Mapping[str, Any]) -> dict[str, Any]:
        try:
            size = granularity(**options) if callable(granularity) else granularity
            reads = (
                listed(needs(**options), "kinds of evidence") if callable(needs) else fixed or ()
            )
        except FaithscopeError:
            raise
        except Exception as error:
            raise FaithscopeError(
                f"The traits of '{name}' cannot be read off its options "
                f"({type(error).__name__}: {error})."
            ) from None
        return {
            "granularity": choose("granularity", size, GRANULARITIES),
            "needs": frozenset(choose("evidence", need, known) for need in reads),
        }

    if not callable(granularity) and not callable(needs):
        traits({})  # what cannot depend on options is checked at once

    def decorate(function: F) -> F:
        if not callable(function):
            raise FaithscopeError(
                f"A {METHODS.of(modality).kind} is a function, got {shown(function)}."
            )
        made = Method(
            name,
            function,
            by_layer=reads == "layer",
            by_token=reads == "token",
            is_random=is_random,
            in_papers=in_papers,
            modality=modality,
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
            traits=traits,
            propose=propose,
            in_half=in_half,
            **traits(function_options(function)),
        )
        METHODS.of(modality).register(name, made)
        return function

    return decorate


def function_options(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's keyword-only arguments and their defaults."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of C, which does not say what it takes
        return {}
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


class Attributes(Protocol):
    """An object of captum: an attribution class with the user's module or function in it."""

    attribute: Callable[..., Any]


MethodLike = str | Method | Attributes | Callable[..., Any]
"""A name, a method, an object of captum or pytorch-grad-cam, or a function (module, images,
target) -> maps."""


def method(name: str | Attributes, *, modality: str = "image", **options: Any) -> Method:
    """Make a method from its name (or text like ``rollout(start_layer=1)``) and options.

    In the place of a name may stand an object of captum; its options are those of `attribute`.

    >>> from faithscope.methods import method
    >>> method("rollout", start_layer=1).label
    'rollout(start_layer=1)'
    """
    choose("modality", modality, MODALITIES)
    if _is_of_captum(name) and modality == "image":
        from faithscope.methods.captum import captum_object

        return captum_object(name, options)
    _check_modality(name, modality)  # type: ignore[arg-type]  # what is no text is refused below
    name, in_text = parse_spec(name, partial(_texts, modality))  # type: ignore[arg-type]
    options = {**in_text, **options}
    if name.startswith("captum:") and modality == "image":
        from faithscope.methods.captum import captum_method

        return captum_method(name, options)
    if (code := as_code(name)) is not None:
        from faithscope.methods.code import code_method

        return _for(code_method(replace(code, options=options)), modality)
    return METHODS.of(modality)[name].with_options(**options)


def has_method(modality: str, spec: str) -> bool:
    """Whether a modality has a method of this name with these options, whatever their values.

    >>> has_method("text", "gradient(norm=l3)"), has_method("image", "gradient(norm=l3)")
    (True, False)
    """
    try:
        name, options = parse_spec(spec, partial(_texts, modality))
    except FaithscopeError:
        return False
    if name.startswith("captum:"):
        return modality == "image"
    known = METHODS.of(modality)
    return name in known and options.keys() <= known[name].defaults.keys()


def _check_modality(name: str, modality: str) -> None:
    """Refuse a method, or options of it, that another modality has and this one has not."""
    others = [other for other in MODALITIES if has_method(other, name)]
    if not others or modality in others:
        return
    known, (plain, options) = METHODS.of(modality), parse_spec(name, partial(_texts, others[0]))
    foreign = options.keys() - known[plain].defaults.keys() if plain in known else ()
    advice = f"choose {', '.join(known)}, or a function of your own"
    raise FaithscopeError(
        f"The method '{name}' is for {others[0]}s, and the model reads {modality}s: "
        f"{'leave out ' + ', '.join(sorted(foreign)) if foreign else advice}."
    )


def _for(made: Method, modality: str) -> Method:
    """A person's own function explains whatever the model reads."""
    is_own = made.fingerprint and not made.needs
    return replace(made, modality=modality) if is_own else made


def _texts(modality: str, name: str) -> list[str]:
    """The options of a method that are text, such as the name of a layer."""
    known = METHODS.of(modality)
    defaults = known[name].defaults if name in known else {}
    return [option for option, default in defaults.items() if isinstance(default, str)]


def as_maps(made: Any, name: str, kind: str = "method") -> Tensor:
    """What a method gave, as floating-point numbers; what are none is refused."""
    maps = as_tensor(made, f"What the {kind} '{name}' gives").detach()
    return maps if maps.is_floating_point() else as_float64(maps)


def _is_of_captum(item: Any) -> bool:
    """Whether something is an object of captum, or of a class that inherits from one."""
    return _is_of("captum", item) and hasattr(item, "attribute")


def _is_of(package: str, item: Any) -> bool:
    """Whether the class of something, or one that it inherits from, is of a package."""
    return any(held.__module__.partition(".")[0] == package for held in type(item).__mro__)


def live_method(item: Any, modality: str = "image") -> Method:
    """Wrap an object of captum or pytorch-grad-cam, or a function; for texts only functions."""
    if modality != "image":
        return callable_method(item, modality)
    if _is_of_captum(item):
        return method(item)
    if isinstance(item, type):
        name = item.__name__
        captum = item.__module__.partition(".")[0] == "captum"
        way = f", {name}(net), or 'captum:{name}'" if captum else f" of it, {name}(…)"
        raise FaithscopeError(f"{name} is a class: give an object{way}.")
    if _is_of("shap", item):
        raise FaithscopeError(
            f"'{type(item).__name__}' of shap is no method: give its values as "
            "maps={'shap': fs.from_shap(values, target)}, or a function (module, images, target) "
            "that returns fs.from_shap(…)."
        )
    if _is_of("pytorch_grad_cam", item):
        from faithscope.methods.cams import cam_method

        return cam_method(item)
    return callable_method(item)


def _numbered(made: Method, taken: Container[str]) -> Method:
    """The same with a number after its name, from 2 on, where its label is taken."""
    names = (f"{made.name} {number}" for number in count(2))
    return (
        made
        if made.label not in taken
        else next(
            other
            for other in (replace(made, name=name) for name in names)
            if other.label not in taken
        )
    )


def callable_method(function: Callable[..., Any], modality: str = "image") -> Method:
    """Wrap a user's ``function(module, images or texts, target) -> maps``.

    Of texts, `TokenInputs`, it may give a number for each unit, [B, n], or for each token, [B, T].
    """

    def call(evidence: Evidence) -> Tensor:
        text = isinstance(evidence.model, TextModel)
        given = evidence.inputs if text else evidence.images
        made = as_maps(function(evidence.model.module, given, evidence.target), name)
        by_token = isinstance(given, TokenInputs) and made.shape == given.ids.shape
        return evidence.to_map(made) if by_token else made

    name = str(getattr(function, "__name__", type(function).__name__))
    return Method(name, call, modality=modality, summary="your own function")


def resolve_methods(
    methods: MethodLike | Iterable[MethodLike], modality: str = "image"
) -> list[Method]:
    """Turn names, objects and functions into methods of a modality.

    "all" are the papers' methods that are registered, "registered" is everything.
    """
    registry = METHODS.of(modality)
    resolved: list[Method] = []
    objects: list[Any] = []
    alone = _is_of_captum(methods)
    for item in [methods] if alone else as_list(registry.kind, methods, (str, Method)):
        item = _for(item, modality) if isinstance(item, Method) else item
        if isinstance(item, Method) and item.modality == modality:
            resolved.append(item)
        elif isinstance(item, str) and item in ("all", "registered"):
            known = registry.values()
            resolved += [entry for entry in known if entry.in_papers or item == "registered"]
        elif isinstance(item, str):
            resolved.append(method(item, modality=modality))
        elif isinstance(item, Method):
            raise FaithscopeError(
                f"The method '{item.label}' is one of {item.modality}s: here a method for "
                f"{modality}s is needed."
            )
        elif callable(item) or (_is_of_captum(item) and modality == "image"):
            made, taken = live_method(item, modality), {other.label for other in resolved}
            is_new = all(item is not other for other in objects)
            resolved.append(_numbered(made, taken) if is_new else made)
            objects.append(item)
        else:
            raise FaithscopeError(
                f"A {registry.kind} is a name, a Method or a function, got {shown(item)}."
            )
    labels = [item.label for item in resolved]
    for label in labels:
        if labels.count(label) > 1 and not isinstance(methods, str):
            raise FaithscopeError(f"The {registry.kind} '{label}' is named twice: name it once.")
    return resolved
