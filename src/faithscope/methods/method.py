"""What an explanation method is: the evidence it needs, and a short function of that evidence.

A method never runs the model by itself unless it must (integrated gradients, captum, a user's own
function); what several methods need is gathered once, by `explain_batch` in evidence.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, choose
from faithscope.models import AttentionView, Model
from faithscope.registry import Registry, as_list, check_options, format_spec, parse_spec

NEEDS = ("gradient", "attention")
GRANULARITIES = ("pixel", "patch", "any")

METHODS: Registry[Method] = Registry("method", group="faithscope.methods")


@dataclass(frozen=True, eq=False)
class Layer:
    """One block of the ViT, seen by a layer method; evidence is recomputed when it is asked for."""

    index: int
    depth: int
    view: AttentionView
    tokens: Tensor
    returned: Tensor

    @cached_property
    def attention(self) -> Tensor:
        """Attention probabilities [B, heads, N, N], checked against what the block returned."""
        with torch.no_grad():
            return self.view.probabilities(self.tokens, self.returned)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known about one batch of images; only what the methods in use need is there.

    Shapes: images [B, C, H, W]; target int64 [B]; gradient = d logit_target / d images.
    """

    model: Model
    images: Tensor
    target: Tensor
    keys: Sequence[str]
    seed: int = 0
    draw: int = 0
    batch_size: int = 64
    gradient: Tensor | None = None
    trace: tuple[tuple[Tensor, Tensor], ...] | None = None

    def layers(self) -> Iterator[Layer]:
        """The blocks, last first; no more than one block's attention needs to exist at a time."""
        if self.trace is None:
            raise FaithscopeError("A method that reads layers must declare needs=('attention',).")
        vit = self.model.require_vit("Reading layers")
        for index in reversed(range(len(self.trace))):
            yield Layer(index, len(self.trace), vit.attentions[index], *self.trace[index])

    def input_gradient(self) -> Tensor:
        """Gradient of the target logit, for methods that declare needs=('gradient',)."""
        if self.gradient is None:
            raise FaithscopeError("A method that reads gradients must declare needs=('gradient',).")
        return self.gradient


@dataclass(frozen=True)
class Method:
    """An explanation method and its traits.

    `function` maps Evidence to maps [B, H, W] (granularity "pixel") or [B, h, w] ("patch"); with
    `by_layer` it is instead a step (row [B, N], Layer) -> row over the blocks, last first.
    """

    name: str
    function: Callable[..., Tensor]
    granularity: str = "any"
    needs: frozenset[str] = frozenset()
    by_layer: bool = False
    is_random: bool = False
    in_papers: bool = False
    summary: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name with its options, as it stands in tables."""
        return format_spec(self.name, self.options)

    def with_options(self, **options: Any) -> Method:
        """The same method with these options; one that it does not have is refused."""
        valid = {
            parameter.name: parameter.default
            for parameter in inspect.signature(self.function).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        check_options("method", self.name, options, valid)
        merged = {**self.options, **options}
        changed = {key: value for key, value in merged.items() if value != valid[key]}
        return replace(self, options=changed)


F = TypeVar("F", bound=Callable[..., Tensor])


def register_method(
    name: str,
    *,
    granularity: str,
    needs: Iterable[str] = (),
    is_random: bool = False,
    in_papers: bool = False,
) -> Callable[[F], F]:
    """Decorate a function of Evidence as a method; its keyword-only arguments are its options."""
    return _register(name, granularity, needs, False, is_random, in_papers)


def layer_method(name: str, *, in_papers: bool = False) -> Callable[[F], F]:
    """Decorate a step over the ViT's blocks as a method.

    The step takes the row of the product so far, [B, N], starting as the token(s) the head reads,
    and one `Layer`, and returns the next row. Blocks come last first, so that every product of
    attention matrices needs only this one row. The patch columns of the last row are the map.
    """
    return _register(name, "patch", ("attention",), True, False, in_papers)


def _register(
    name: str,
    granularity: str,
    needs: Iterable[str],
    by_layer: bool,
    is_random: bool,
    in_papers: bool,
) -> Callable[[F], F]:
    choose("granularity", granularity, GRANULARITIES)
    needed = frozenset(choose("evidence", need, NEEDS) for need in needs)

    def decorate(function: F) -> F:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        METHODS.register(
            name,
            Method(name, function, granularity, needed, by_layer, is_random, in_papers, summary),
        )
        return function

    return decorate


def method(name: str, **options: Any) -> Method:
    """Make a method from its name (or text like ``rollout(start_layer=1)``) and options.

    >>> from faithscope.methods import method
    >>> method("rollout", start_layer=1).label
    'rollout(start_layer=1)'
    """
    name, in_text = parse_spec(name)
    options = {**in_text, **options}
    if name.startswith("captum:"):
        from faithscope.methods.captum import captum_method

        return captum_method(name, options)
    return METHODS[name].with_options(**options)


MethodLike = str | Method | Callable[[nn.Module, Tensor, Tensor], Tensor]


def callable_method(function: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Method:
    """Wrap a user's ``function(module, images, target) -> maps``."""

    def call(evidence: Evidence) -> Tensor:
        maps: Any = function(evidence.model.module, evidence.images, evidence.target)
        try:
            return torch.as_tensor(maps, device=evidence.images.device).detach()
        except (TypeError, ValueError, RuntimeError):
            raise FaithscopeError(
                f"The method '{name}' gave {type(maps).__name__}, not a tensor or array of maps."
            ) from None

    name = getattr(function, "__name__", type(function).__name__)
    return Method(name, call, summary="your own function")


def resolve_methods(methods: MethodLike | Iterable[MethodLike]) -> list[Method]:
    """Turn names, objects and functions into methods.

    "all" are the papers' methods that are registered, "registered" is everything.
    """
    resolved: list[Method] = []
    for item in as_list("method", methods, (str, Method)):
        if isinstance(item, Method):
            resolved.append(item)
        elif isinstance(item, str) and item in ("all", "registered"):
            known = METHODS.values()
            resolved += [entry for entry in known if entry.in_papers or item == "registered"]
        elif isinstance(item, str):
            resolved.append(method(item))
        elif callable(item):
            resolved.append(callable_method(item))
        else:
            raise FaithscopeError(f"A method is a name, a Method or a function, got {item!r}.")
    labels = [item.label for item in resolved]
    for label in labels:
        if labels.count(label) > 1 and not isinstance(methods, str):
            raise FaithscopeError(f"The method '{label}' is named twice: name it once.")
    return resolved
