"""Explaining a batch: gather what the methods need, once per number format, and let them read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import HALF, Evidence
from faithscope.methods.layout import Inputs
from faithscope.methods.method import Method, as_maps
from faithscope.methods.relevance import Rules
from faithscope.methods.text import token_evidence
from faithscope.methods.trace import PASSES_OF_METHODS, gather
from faithscope.models import Model, TokenInputs, converted, undisturbed
from faithscope.models.device import device_for, float64_device, without_autocast
from faithscope.models.formats import COARSE, FORMATS, format_of, kernels
from faithscope.models.fused import repeatable
from faithscope.models.memory import OUT_OF_MEMORY, halve, inputs_that_fit, power_of_two
from faithscope.perturb import to_grids

Draw = tuple[Method, int]

EXPLAIN_BATCH = 32
"""Images that are explained together, where a GPU's memory does not say how many."""
_MOST = 512
"""On a GPU: more of them, or more inputs of a step of integrated gradients, are not faster."""


@dataclass(frozen=True, eq=False)
class Explained:
    """The maps of some images, one tensor for each (method, draw) pair, and how they were made."""

    maps: list[Tensor]
    batch_size: int
    """The one that fitted into memory."""
    halvings: int = 0
    overflowed: tuple[tuple[int, str], ...] = ()
    """Images and methods whose gradients overflowed in half precision: explained again without."""


_ONE_AT_A_TIME = threading.RLock()
"""Hooks, checkpoints and converted weights of two threads must not meet in one model."""


def choose_explain_batch(model: Model, images: Inputs, methods: Sequence[Draw]) -> int:
    """Choose once how many inputs are explained together, or make a step of a path of gradients.

    On a CUDA GPU the memory that eight take is measured, and half of what is free is used; they
    are 32 elsewhere, and where these methods fail, which will be heard of when they are used.
    """
    if images.device.type != "cuda" or not methods:
        return EXPLAIN_BATCH
    few = images[[0] * 8]
    target = torch.zeros(len(few), dtype=torch.int64, device=images.device)
    keys = ["0"] * len(few)
    explain = partial(explain_batch, model, few, target, methods, keys=keys, batch_size=len(few))
    try:
        return power_of_two(inputs_that_fit(images.device, explain, len(few)), 8, _MOST)
    except Exception:  # of whatever the model and the methods are
        return EXPLAIN_BATCH


def explain_images(
    model: Model,
    images: Inputs,
    target: Tensor | None,
    methods: Sequence[Draw],
    *,
    keys: Sequence[str],
    seed: int = 0,
    batch_size: int = EXPLAIN_BATCH,
) -> Explained:
    """Explain images batch by batch; a batch for which memory runs out is halved.

    What overflows in half precision is explained again in the model's own type.
    """
    parts: list[list[Tensor]] = []
    overflowed: list[tuple[int, str]] = []
    done, halvings = 0, 0
    while done < len(images):
        part = slice(done, done + batch_size)
        given = images[part], None if target is None else target[part]
        about: dict[str, Any] = {"keys": keys[part], "seed": seed, "batch_size": batch_size}
        try:
            maps = explain_batch(model, *given, methods, **about)
            lost = _overflow(model, *given, methods, maps, **about)
        except OUT_OF_MEMORY as error:
            batch_size = halve(min(batch_size, len(images) - done), error)
            halvings += 1
            continue
        parts.append(maps)
        overflowed += [(done + place, label) for place, label in lost]
        done += batch_size
    joined = [torch.cat(column) for column in zip(*parts, strict=True)]
    return Explained(joined, batch_size, halvings, tuple(overflowed))


def _overflow(
    model: Model,
    images: Inputs,
    target: Tensor | None,
    methods: Sequence[Draw],
    maps: list[Tensor],
    *,
    keys: Sequence[str],
    **about: Any,
) -> list[tuple[int, str]]:
    """Explain again, in the model's own type, what is not finite in half precision.

    The new maps are put in the place of the old ones; gives the images and methods they are of.
    """
    found = []
    for number, (method, draw) in enumerate(methods):
        if method.precision not in COARSE:
            continue
        places = (~maps[number].isfinite().flatten(1).all(1)).nonzero().flatten()
        if not len(places):
            continue
        here = places.to(images.device)
        own = None if target is None else target[here]
        some, again = [keys[place] for place in places], [(replace(method, precision=""), draw)]
        (exact,) = explain_batch(model, images[here], own, again, keys=some, **about)
        maps[number][places] = exact
        cured = exact.isfinite().flatten(1).all(1)  # else half precision is not to blame
        found += [(place, method.label) for place in places[cured].tolist()]
    return found


def explain_batch(
    model: Model,
    images: Inputs,
    target: Tensor | None,
    methods: Sequence[Draw],
    *,
    keys: Sequence[str],
    seed: int = 0,
    batch_size: int = 64,
) -> list[Tensor]:
    """Explain one batch by several (method, random draw) pairs, sharing what they need.

    Evidence is gathered once for each format that methods are made in. Without a target the
    predicted class is explained, as the model predicts it in its own type. What needs float64 runs
    on the CPU if the images' device has none, and all maps are there then.

    Returns:
        One tensor of maps per pair, [B, H, W] or coarser [B, h, w], detached.
    """
    maps: dict[int, Tensor] = {}
    with (
        _ONE_AT_A_TIME,
        torch.inference_mode(False),
        without_autocast(images.device.type),
        undisturbed(model.module),
    ):
        for precision, group in _by_format(model, methods).items():
            dtype = FORMATS[precision]
            if not group and target is not None:
                continue
            chosen = [methods[place] for place in group]
            needs = frozenset[str]().union(*(method.needs for method, _ in chosen))
            place = device_for(dtype, images.device)
            # a traced pass runs blocks again, where no graph can be told of beforehand
            fused = dtype in HALF and not needs - PASSES_OF_METHODS
            with _in_type(model, dtype), kernels(precision), repeatable(place, fused=fused):
                evidence = gather(
                    model,
                    images.to(place),
                    None if target is None else target.to(place),
                    needs,
                    keys=keys,
                    seed=seed,
                    batch_size=batch_size,
                )
                target = evidence.target
                with evidence.checks.gathered():
                    maps |= zip(group, _explain(evidence, chosen), strict=True)
    home = float64_device(images.device)
    return [maps[index].to(home) for index in range(len(methods))]


def _in_type(model: Model, dtype: torch.dtype) -> AbstractContextManager[None]:
    """The model as it is, or converted; one of mixed types is never touched without need."""
    return nullcontext() if dtype == model.dtype else converted(model.module, dtype)


def _by_format(model: Model, methods: Sequence[Draw]) -> dict[str, list[int]]:
    """Which methods are explained in which format; the model's own comes first."""
    groups: dict[str, list[int]] = {format_of(model.dtype): []}
    for place, (method, _) in enumerate(methods):
        groups.setdefault(method.format(model), []).append(place)
    return groups


def _explain(evidence: Evidence, methods: Sequence[Draw]) -> list[Tensor]:
    for method, _ in methods:
        if "relevance" in method.needs and not method.by_layer:
            _announce(evidence, method)
    rows = _walk_layers(evidence, [method for method, _ in methods if method.by_layer])
    maps = []
    for method, draw in methods:
        if method.by_layer:
            made = evidence.to_map(rows[method.label])
        elif method.by_token:
            made = evidence.to_map(method(token_evidence(replace(evidence, draw=draw), method)))
        else:
            made = method.function(replace(evidence, draw=draw), **method.arguments)
        maps.append(_checked_shape(as_maps(made, method.label), evidence, method))
    return maps


def _announce(evidence: Evidence, method: Method) -> None:
    """Let relevance that goes through all blocks come with what else is read of them."""
    rules = {**method.defaults, **method.options}.get("rules")
    if isinstance(rules, str) and rules in get_args(Rules):
        evidence.sweep(rules).all_the_way = True


def _walk_layers(evidence: Evidence, methods: Sequence[Method]) -> dict[str, Tensor]:
    """Take every layer method through the blocks together, last block first."""
    rows = {method.label: evidence.readout for method in methods}
    # what relevance runs whole need not be run in part for the others before
    methods = sorted(methods, key=lambda method: "relevance" not in method.needs)
    for layer in evidence.layers() if methods else ():
        for method in methods:
            made = method.function(rows[method.label], layer, **method.arguments)
            rows[method.label] = _checked_row(made, evidence, method)
    return rows


def _checked_row(row: Any, evidence: Evidence, method: Method) -> Tensor:
    """What a step over the blocks gave; what is no row of tokens is refused."""
    expected = list(evidence.readout.shape)
    if not isinstance(row, Tensor) or list(row.shape) != expected:
        kind = list(row.shape) if isinstance(row, Tensor) else type(row).__name__
        raise FaithscopeError(
            f"The step of the method '{method.label}' must return the next row, a tensor "
            f"{expected}, got {kind}."
        )
    return row


def _checked_shape(maps: Tensor, evidence: Evidence, method: Method) -> Tensor:
    """One map per image, of the image's size or coarser; exactly as declared, but of "any" size."""
    batch, (height, width) = len(evidence.inputs), evidence.inputs.shape[-2:]
    size, grid = (height, width), evidence.model.grid(height, width)
    what = f"The maps that the method '{method.label}' returned"
    if isinstance(evidence.inputs, TokenInputs) and maps.shape not in (
        (batch, 1, width),
        (batch, width),
    ):
        raise FaithscopeError(
            f"{what} have shape {list(maps.shape)}: expected a number for each unit, "
            f"[{batch}, {width}], or for each token, {list(evidence.inputs.ids.shape)}."
        )
    if method.granularity == "any":
        tokens = evidence.model.token_counts(*size)
        asked = method.is_random  # whose grid is written in its name
        return to_grids(maps, batch, size, grid, what, tokens=tokens, is_asked=asked)
    if tuple(maps.shape) not in [(batch, *held) for held in (size, grid) if held]:
        allowed = " or ".join(str([batch, *held]) for held in (size, grid) if held)
        raise FaithscopeError(f"{what} have shape {list(maps.shape)}; expected {allowed}.")
    return maps
