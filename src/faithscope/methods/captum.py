"""Attribution classes of captum, by name (``captum:Saliency``) or as objects (``Saliency(net)``).

A class is used as it is if it needs nothing but the model and a target; what else it requires may
be given as options, ``captum:Occlusion(sliding_window_shapes=(3, 8, 8))``, and is named if it is
missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, choose, shortened, unknown
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import Method
from faithscope.methods.peers import (
    check_same,
    left_alone,
    live,
    one_by_one,
    own_randomness,
    written,
)
from faithscope.models import Model

_GIVEN = {"self", "forward_func", "model", "inputs", "target", "kwargs"}
_DRAWING = {"GradientShap", "LayerGradientShap", "LimeBase", "NoiseTunnel"}
"""Classes that draw for all images of a batch together; so that no map depends on its batch, each
image is explained alone."""
_FROM_MANY = ("GradientShap", "DeepLiftShap")
"""Classes whose baselines [N, …] are a sample, all of it for every image."""
_FOR_EACH = ("baselines", "feature_mask", "additional_forward_args")
"""Tensors that captum takes for one image or for each image of a batch."""


class _Logits(nn.Module):
    """The user's module, giving bare logits: some captum classes want a module, not a function."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.module = model.module
        self._model = [model]  # in a list, so that it is not registered as a part

    def forward(self, inputs: Tensor) -> Tensor:
        return self._model[0].logits(inputs)


def captum_method(name: str, options: Mapping[str, Any]) -> Method:
    """Make a method of a captum class, refusing one whose other arguments are not given."""
    import captum.attr

    classes = {
        key: value
        for key, value in vars(captum.attr).items()
        if inspect.isclass(value) and hasattr(value, "attribute") and not inspect.isabstract(value)
    }
    wanted = name.removeprefix("captum:")
    if wanted not in classes:
        raise unknown("captum class", wanted, classes)
    cls: Any = classes[wanted]
    of_class, of_call = _parameters(cls.__init__), _parameters(cls.attribute)
    _check_options(name, {**of_class, **of_call}, options, f"{name}({{}}=…)")

    def make(model: Model, options: Mapping[str, Any]) -> Any:
        made = {key: value for key, value in options.items() if key in of_class}
        return cls(_Logits(model), **made)

    shown = {key: written(value) for key, value in options.items()}
    return _method(name, cls, of_call, make, shown, lambda model: None)


def captum_object(explainer: Any, options: Mapping[str, Any]) -> Method:
    """Make a method of an object that the user has made, and of options of its `attribute`."""
    cls, forward = type(explainer), getattr(explainer, "forward_func", None)
    name, of_call = cls.__name__, _parameters(cls.attribute)
    if isinstance(forward, Model):
        raise FaithscopeError(
            f"'{name}' was made with a faithscope Model, which captum cannot call: make it with "
            f"model.module, {name}(model.module)."
        )
    if (inner := getattr(explainer, "attribution_method", None)) is not None:  # a noise tunnel
        of_call = {**_parameters(type(inner).attribute), **of_call}
    _check_options(name, of_call, options, "fs.method(object, {}=…)")
    module = forward if isinstance(forward, nn.Module) else None
    shown = {**_as_made(explainer), **options}
    shown = {key: written(value, module) for key, value in shown.items()}

    def check(model: Model) -> None:
        check_same(model, forward, name)

    return _method(name, cls, of_call, lambda model, options: explainer, shown, check)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a function takes, by name, but what every class is given."""
    found = inspect.signature(function).parameters
    return {name: held for name, held in found.items() if name not in _GIVEN - {"target"}}


def _check_options(
    name: str, known: Mapping[str, inspect.Parameter], options: Mapping[str, Any], how: str
) -> None:
    """Refuse options that are not known, or do not go together, and a class that needs others."""
    if name.endswith("FeaturePermutation"):
        raise FaithscopeError(
            f"'{name}' mixes the images of a batch, so its maps would depend on the batch: choose "
            "another method."
        )
    names = {*known} - {"target"} | ({"units"} if "feature_mask" in known else set())
    for option, value in options.items():
        if option not in names:
            raise unknown(f"option of '{name}'", option, names)
        if option in _FOR_EACH:
            _check_for_all(name, option, value)
    missing = [
        option
        for option, parameter in known.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and option not in ("target", *options)
    ]
    if missing:
        raise FaithscopeError(
            f"'{name}' needs {', '.join(missing)} beside a model and a target: give it as "
            f"{how.format(missing[0])}, or call captum yourself and pass maps={{…}}."
        )
    if "target" not in known:
        raise FaithscopeError(
            f"'{name}' takes no target class: call captum yourself and pass maps={{…}}."
        )
    if "units" in options:
        choose(f"value of {name}'s units", options["units"], ("patches",))
        if "feature_mask" in options:
            raise FaithscopeError(
                f"The units and the feature_mask of '{name}' say the same: give one of them."
            )


def _check_for_all(name: str, option: str, value: Any) -> None:
    """Refuse a tensor that has a row for each image: images come in batches, and it does not."""
    for held in value if isinstance(value, tuple | list) else [value]:
        shape = list(getattr(held, "shape", ()))
        own_axis = len(shape) == (4 if option != "additional_forward_args" else max(1, len(shape)))
        if own_axis and shape[0] > 1 and not name.endswith(_FROM_MANY):
            raise FaithscopeError(
                f"The {option} {shape} of '{name}' would go with {shape[0]} certain images, but "
                f"images are explained in batches: give one for all, {[1, *shape[1:]]}, or call "
                "captum yourself and pass maps={…}."
            )


def _as_made(explainer: Any) -> dict[str, Any]:
    """How an object was made: what it holds of the arguments of its class, but the defaults."""
    found = {}
    for name, parameter in _parameters(type(explainer).__init__).items():
        held = getattr(explainer, name, getattr(explainer, f"_{name}", parameter.default))
        default = parameter.default
        if held is default or held is None or parameter.kind is parameter.VAR_KEYWORD:
            continue
        plain = isinstance(held, bool | int | float | str)
        if (plain and held != default) or default is parameter.empty:
            found[name] = held
    return found


def _method(
    name: str,
    cls: type,
    of_call: Mapping[str, inspect.Parameter],
    make: Callable[[Model, Mapping[str, Any]], Any],
    options: Mapping[str, Any],
    suits: Callable[[Model], None],
) -> Method:
    by_patch = "units" in options
    at_layer = cls.__name__.startswith(("Layer", "Internal"))
    draws = any(held.__name__ in _DRAWING for held in cls.__mro__)

    def explain(evidence: Evidence, given: Mapping[str, Any]) -> Tensor:
        images = evidence.images.clone().requires_grad_(True)
        call = {
            option: _fitted(name, option, value, images)
            for option, value in given.items()
            if option in of_call
        }
        if by_patch:
            call["feature_mask"] = _patch_mask(evidence.model, images, name)
            if "perturbations_per_eval" in of_call:
                at_once = max(1, evidence.batch_size // len(images))
                call.setdefault("perturbations_per_eval", at_once)
        try:
            with left_alone(evidence.model.module), own_randomness(evidence.seed):
                explainer = make(evidence.model, given)
                found = explainer.attribute(images, target=evidence.target, **call)
        except (FaithscopeError, RuntimeError, IndexError):
            raise  # memory, images or targets that do not fit the model: whoever asked knows more
        except Exception as error:
            why = shortened(" ".join(str(error).split()).rstrip("."), 200)
            cannot = f"cannot explain {evidence.model.name} ({why})"
            raise FaithscopeError(
                f"'{name}' {cannot}: choose another method.", reason=f"captum {cannot}"
            ) from error
        if not isinstance(found, Tensor) or found.ndim != 4:
            kind = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise FaithscopeError(
                f"'{name}' gave {kind}, not one map [B, C, H, W]: change its options."
            )
        if by_patch:  # every pixel of a patch has the value of the patch
            rows, columns = evidence.model.require_grid(images, name)
            return found[:, 0, :: found.shape[2] // rows, :: found.shape[3] // columns]
        return found.sum(dim=1)

    def attribute(evidence: Evidence, **options: Any) -> Tensor:
        suits(evidence.model)
        given = {option: live(value) for option, value in options.items()}
        if draws:
            return one_by_one(lambda one: explain(one, given), evidence)
        return explain(evidence, given)

    return Method(
        name,
        attribute,
        granularity="patch" if by_patch else "any" if at_layer else "pixel",
        summary=f"captum's {cls.__name__}, "
        + ("by patch" if by_patch else "signed sum over channels"),
        options=options,
        suits=suits,
    )


def _patch_mask(model: Model, images: Tensor, name: str) -> Tensor:
    """The number of the patch that each pixel is in, [1, C, H, W]."""
    rows, columns = model.require_grid(images, f"The method '{name}'")
    _, channels, height, width = images.shape
    patches = torch.arange(rows * columns, device=images.device).reshape(rows, columns)
    mask = patches.repeat_interleave(height // rows, 0).repeat_interleave(width // columns, 1)
    return mask.expand(1, channels, height, width).contiguous()  # captum views it


def _fitted(name: str, option: str, value: Any, images: Tensor) -> Any:
    """An option beside images: a tensor on their device, in their type, for one image."""
    if isinstance(value, tuple):
        return tuple(_fitted(name, option, held, images) for held in value)
    if not isinstance(value, Tensor):
        return value
    value = value.to(images.device, images.dtype if value.is_floating_point() else None)
    if option not in ("baselines", "feature_mask"):
        return value
    value = value.reshape(*[1] * (images.ndim - value.ndim), *value.shape)
    try:
        return value.expand(len(value), *images.shape[1:]).contiguous()
    except RuntimeError:
        raise FaithscopeError(
            f"The {option} of '{name}' have shape {list(value.shape)}: an image here is "
            f"{list(images.shape[1:])}."
        ) from None
