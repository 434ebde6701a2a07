"""The public call `explain`: maps of images or texts, without a probe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor, nn

from faithscope.data import Batch, ImageData, class_numbers, load_data
from faithscope.data.labels import class_by_name
from faithscope.errors import FaithscopeError, said, warn
from faithscope.methods import Method, MethodLike, explain_images, resolve_methods, try_methods
from faithscope.methods.explain import EXPLAIN_BATCH, choose_explain_batch
from faithscope.methods.layout import Inputs
from faithscope.models import Model, as_model, cannot_run, undisturbed
from faithscope.models.device import placed, say_what_the_cpu_does
from faithscope.perturb import to_units
from faithscope.probes.perturb.failures import all_refused
from faithscope.probes.perturb.resolve import for_modality, made_in, with_units
from faithscope.probes.refusals import leave_out
from faithscope.request import Perturb, check_request, renamed
from faithscope.runs.progress import following
from faithscope.runs.scheduler import Progress, Report
from faithscope.verdicts.sentences import left_out, overflow_note

ModelLike = Model | nn.Module | str
Units = Literal["auto", "pixels", "patches", "tokens", "words"]


class Options(TypedDict, total=False):
    """What `explain` takes beside a model, data and methods, for type checkers."""

    target: Tensor | int | str | None
    units: Units
    upsample: Literal["bilinear", "nearest"]
    side: Literal["both", "first", "second"]
    seed: int
    output: Literal["auto", "softmax", "sigmoid"]
    explain_precision: str
    strict: bool
    progress: Report | bool | None


@overload
def explain(
    model: ModelLike, data: Any, methods: Literal["all", "registered"], **options: Unpack[Options]
) -> dict[str, Tensor]: ...
@overload
def explain(
    model: ModelLike, data: Any, methods: MethodLike, **options: Unpack[Options]
) -> Tensor: ...
@overload
def explain(
    model: ModelLike, data: Any, methods: Iterable[MethodLike], **options: Unpack[Options]
) -> dict[str, Tensor]: ...
@renamed(images="data")
def explain(
    model: ModelLike,
    data: Any,
    methods: MethodLike | Iterable[MethodLike],
    *,
    target: Tensor | int | str | None = None,
    units: Units = "auto",
    upsample: Literal["bilinear", "nearest"] = "bilinear",
    side: Literal["both", "first", "second"] = "both",
    seed: int = 0,
    output: Literal["auto", "softmax", "sigmoid"] = "auto",
    explain_precision: str = "auto",
    strict: bool = False,
    progress: Report | bool | None = None,
) -> Any:
    """Explain images or texts by one method or several, sharing the passes they need.

    Args:
        model: a Model, a torch module or a name.
        data: images [B, C, H, W], float, normalised for the model, or whatever `fs.load_data`
            takes: a name, a path, PIL images, a data set, a loader. All must have one shape, and
            one that cannot be read is an error: maps and images go together. For a text model,
            texts: a string, a list, a file, a data set or tokens.
        methods: a name, a Method or a function; a list (or "all") gives a dict by label, without
            those that the model does not allow, which are warned of.
        target: class to explain, an int, a name or [B]; None is the predicted class.
        units: "pixels" -> maps [B, H, W]; "patches" -> [B, h, w]; of texts "tokens" or "words" ->
            a list of maps, one number for each unit of each text. "auto" is pixels, or tokens.
        side: of pairs of texts, the side that is explained.
        upsample: how patch maps become pixel maps, "bilinear" or "nearest".
        seed: of random methods.
        output: how logits become probabilities; "sigmoid" for a module with one logit, of which
            target 1 explains z and target 0 explains -z.
        explain_precision: of the passes that maps are made from, as in `evaluate`.
        strict: stop with an error where a method would be left out.
        progress: None draws a bar where somebody is watching, of many images; False is silent; a
            function is called with how many are explained.

    Returns:
        Maps in the model's type (at least float32), those of LRP and random ones in float64; on the
        model's device, or on the CPU if that has no float64 (Apple's GPUs).
    """
    model = as_model(model)
    shown_as = {"units": units, "side": side, "upsample": upsample, "output": output}
    about = {"model": model.name, "data": "given", "seed": seed, "strict": strict}
    options = {**about, "explain_precision": explain_precision, **shown_as}
    request = for_modality(check_request(Perturb, options), model)
    model = with_units(model.with_output(request.output), request)
    say_what_the_cpu_does(model.device)
    chosen = made_in(request, model, resolve_methods(methods, model.modality))
    if not chosen:
        raise FaithscopeError("There are no methods: give a name, a list of names or 'all'.")
    held = load_data(data, model)
    if isinstance(target, str) and model.classes:
        target = class_by_name(target, model)
    goals = None if target is None else class_numbers("target", target)
    if len(held):  # of a loader nobody may know
        _check_targets(goals, len(held), _noun(held))
    made = _Maps(model, request, chosen, goals, EXPLAIN_BATCH)
    is_long = len(held) > EXPLAIN_BATCH
    with following(f"{_noun(held)}s", progress if is_long else False) as report:
        for batch in _batches_to_explain(held):
            report(Progress("explaining", "", len(made.places), len(held)))
            made.add(batch, is_long=is_long)
    _check_targets(goals, len(made.places), _noun(held))
    by_label = made.by_label()
    single = callable(methods) or not isinstance(methods, Iterable)
    if single or (isinstance(methods, str) and methods not in ("all", "registered")):
        return by_label[made.methods[0].label]
    return by_label


@dataclass(eq=False)
class _Maps:
    """The maps of the samples explained so far, those of a batch together."""

    model: Model
    request: Perturb
    methods: list[Method]
    goals: Tensor | None
    """The classes to explain: one for all samples, or one for each."""
    size: int
    """How many samples are explained together."""
    places: list[int] = field(default_factory=list)
    """The positions of the samples in the data."""
    parts: list[list[Tensor]] = field(default_factory=list)

    def add(self, batch: Batch, *, is_long: bool) -> None:
        """Explain a batch; of the first one methods that the model refuses are left out."""
        done, count = len(self.places), len(batch.images)
        images = placed(batch.images, self.model.device)
        own = [*batch.positions] if batch.words else [*range(done, done + count)]
        goal = self._goal(own)
        if not done and is_long:
            wanted = [(method, 0) for method in self.methods]
            self.size = choose_explain_batch(self.model, images, wanted)
        try:
            maps = self._explained(batch, images, goal)
        except FaithscopeError as error:
            if done:
                raise
            self.methods = self._allowed(batch, images, error)
            maps = self._explained(batch, images, goal)
        shape, grid, request = (images.shape[-2], images.shape[-1]), None, self.request
        if request.units == "patches":
            grid = self.model.require_grid(images, "units='patches'")
        self.parts.append(
            [to_units(one, request.units, shape, grid, request.upsample) for one in maps]
        )
        self.places += own

    def _goal(self, own: Sequence[int]) -> Tensor | None:
        """The classes to explain of the samples at these positions."""
        if self.goals is None:
            return None
        has_each = self.goals.ndim and max(own) < len(self.goals)
        goal = self.goals[own] if has_each else self.goals
        goal = goal if goal.ndim else goal.expand(len(own))
        _check_targets(goal, len(own), self.model.modality)
        return goal.to(self.model.device)

    def _explained(self, batch: Batch, images: Inputs, goal: Tensor | None) -> list[Tensor]:
        """The maps of a batch by each method."""
        model, pairs = self.model, [(method, 0) for method in self.methods]
        seed, size = self.request.seed, self.size
        try:
            made = explain_images(
                model, images, goal, pairs, keys=batch.keys, seed=seed, batch_size=size
            )
        except FaithscopeError:
            raise
        except Exception as error:
            _check_fit(model, images, goal)
            labels = ", ".join(method.label for method in self.methods)
            raise FaithscopeError(
                f"{labels}: these {model.modality}s cannot be explained ({said(error)}): choose "
                "other methods, or fs.evaluate, which leaves out what fails."
            ) from error
        for label, count in Counter(label for _, label in made.overflowed).items():
            warn(overflow_note(label, count, model.modality))
        self.size = made.batch_size
        return made.maps

    def _allowed(self, batch: Batch, images: Inputs, error: FaithscopeError) -> list[Method]:
        """The methods that the model allows, with a warning of the others."""
        model, request = self.model, self.request
        trial = try_methods(model, images, self.methods, keys=batch.keys, seed=request.seed)
        refused = all_refused(trial, model.modality)
        if not refused:
            raise error
        kept, left = leave_out(self.methods, refused, asked=(), strict=request.strict)
        for line in left_out(left):
            warn(line)
        return kept

    def by_label(self) -> dict[str, Any]:
        """By method: of images one tensor; of texts a list, in the order of the texts."""
        found: dict[str, Any] = {}
        for number, method in enumerate(self.methods):
            parts = [part[number] for part in self.parts]
            if self.model.modality == "text":
                each = [maps[0] for part in parts for maps in part]
                found[method.label] = [each[at] for at in np.argsort(self.places)]
            else:
                found[method.label] = torch.cat(parts)
        return found


def _batches_to_explain(data: ImageData) -> Iterator[Batch]:
    """Images batch by batch, in their order: all of one shape, none left out."""
    first: list[int] | None = None
    for batch in data.batches(EXPLAIN_BATCH):
        for left in batch.skipped:
            raise FaithscopeError(
                f"The {_noun(data)} '{left.sample}' cannot be explained: {left.reason}; take it "
                "out, or use fs.evaluate, which leaves it out."
            )
        shape = [] if batch.words else list(batch.images.shape[1:])
        if first is not None and shape != first and len(batch.images):
            raise FaithscopeError(
                f"The images have several shapes, {first} and {shape}, so that their maps are not "
                "one tensor: explain those of one shape at a time."
            )
        if len(batch.images):
            first = shape
            yield batch
    if first is None:
        raise FaithscopeError(f"There are no {_noun(data)}s: give at least one.")


def _noun(data: ImageData) -> str:
    """What one sample of a data set is."""
    return str(getattr(data, "noun", "images")).removesuffix("s")


def _check_targets(goals: Tensor | None, count: int, noun: str) -> None:
    if goals is not None and goals.ndim and goals.shape != (count,):
        raise FaithscopeError(
            f"target must be a class or one class for each of the {count} {noun}s, got shape "
            f"{list(goals.shape)}."
        )


def _check_fit(model: Model, images: Inputs, target: Tensor | None) -> None:
    """Say so if it is the images or the target that do not fit the model."""
    from faithscope.probes.perturb.respond import check_classes

    with undisturbed(model.module), torch.no_grad():
        try:
            classes = model.logits(images[:1].to(model.dtype)).shape[1]
        except FaithscopeError:
            raise
        except Exception as error:
            raise cannot_run(model, images, error) from error
    if target is not None:
        check_classes(target, classes)
