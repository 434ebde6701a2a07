"""The columns of maps of a run: what the model allows, given maps, and random ones to match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from faithscope.data import Batch
from faithscope.errors import FaithscopeError
from faithscope.methods import METHODS, Method, try_methods
from faithscope.methods import method as method_of
from faithscope.models import Model
from faithscope.models.device import placed
from faithscope.perturb import granularity_of
from faithscope.probes.perturb.ask import Column
from faithscope.probes.perturb.failures import all_refused
from faithscope.probes.perturb.maps import GivenMaps
from faithscope.probes.refusals import leave_out
from faithscope.registry import Registry
from faithscope.request import Perturb
from faithscope.runs.cards import Left


@dataclass(frozen=True)
class Chosen:
    """The methods that are run, the columns they make, and what is left out."""

    methods: tuple[Method, ...]
    columns: tuple[Column, ...]
    left_out: tuple[Left, ...]


def choose_columns(
    model: Model,
    example: Batch,
    methods: Sequence[Method],
    given: Mapping[str, GivenMaps],
    request: Perturb,
) -> Chosen:
    """One column per method, per given map and per draw of random attribution.

    Methods and given maps are tried on the first image of `example` that can be explained: what the
    model refuses is left out, and every grid that is found has a random attribution of its own.
    """
    _check_names(methods, given, METHODS.of(model.modality))
    images = example.images
    size = (images.shape[-2], images.shape[-1])
    grid = model.grid(*size)
    first = next(example.split(1))
    trial = try_methods(
        model, placed(images, model.device), methods, keys=example.keys, seed=request.seed
    )
    shapes = dict(trial.shapes)
    for name, maps in given.items():
        shapes[name] = (*maps.take(first, model).shape[1:],)
    kept, left_out = leave_out(
        methods,
        all_refused(trial, model.modality),
        asked=("all",) if request.methods is None else request.methods,
        strict=request.strict,
        others=bool(given),
    )

    def granularity(label: str, declared: str = "any") -> str:
        if declared != "any" or model.modality == "text":
            return "token" if model.modality == "text" else declared
        return granularity_of(shapes[label], size, grid) if label in shapes else ""

    columns = [
        Column(held.label, 0, held, granularity(held.label, held.granularity))
        for held in kept
        if not held.is_random
    ]
    columns += [Column(name, granularity=granularity(name)) for name in given]
    baselines = {held.label: held for held in kept if held.is_random}
    if request.random_draws:
        usual = ["token"] if model.modality == "text" else ["pixel", "patch"]
        for found in dict.fromkeys([*usual, *(held.granularity for held in columns)]):
            if found and (found != "patch" or grid is not None):
                label = matched_label(found)
                baselines.setdefault(label, method_of(label, modality=model.modality))
    for label, method in baselines.items():
        if any(label == column.label for column in columns):
            raise _is_of_random(label)
        own = granularity(label, method.granularity)
        columns += [
            Column(label, draw, method, own) for draw in range(max(1, request.random_draws))
        ]
    if not columns:
        raise FaithscopeError("There is nothing to evaluate: give methods=… or maps=….")
    return Chosen(tuple(kept), tuple(columns), left_out)


def matched_label(granularity: str) -> str:
    """The random attribution of a granularity.

    >>> [matched_label(size) for size in ("pixel", "patch", "7×7")]
    ['random', 'random_patch', 'random(grid=7x7)']
    """
    usual = {"pixel": "random", "patch": "random_patch", "token": "random"}
    return usual.get(granularity) or f"random(grid={granularity.replace('×', 'x')})"


def _check_names(
    methods: Sequence[Method], given: Mapping[str, GivenMaps], known: Registry[Method]
) -> None:
    """A name stands for one thing; where no methods are run, maps may be called as one."""
    run = {held.label for held in methods if not held.is_random}
    for label in given:
        if label in known and known[label].is_random:
            raise _is_of_random(label)
        if label in run or (methods and label in known):
            raise FaithscopeError(f"'{label}' names both a method and given maps: rename the maps.")


def _is_of_random(label: str) -> FaithscopeError:
    return FaithscopeError(f"'{label}' is the name of random attribution: rename your own.")
