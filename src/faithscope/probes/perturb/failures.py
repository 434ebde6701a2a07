"""A model or a method that raises costs the image it raises on, not the run.

A batch that fails is run again one by one, so that what fails is found and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from faithscope.data import Skipped
from faithscope.errors import FaithscopeError, said, warn
from faithscope.methods import Trial
from faithscope.methods.layout import Inputs
from faithscope.models import Model, cannot_run
from faithscope.models.memory import halve, is_out_of_memory

UNKNOWN, FAILED = -1, -2
"""What stands in the place of a predicted class: the model answered NaN, or it raised."""
FATAL = ("CUDA error", "device-side assert", "cuDNN error", "HIP error")
"""After these a device answers nothing any more."""


@dataclass(frozen=True, eq=False)
class Failure:
    """What failed: the model on a sample, or on perturbed inputs of one map, or a method."""

    sample: str
    method: str
    """"" if the sample is lost to all methods."""
    error: Exception
    by_method: bool = False
    """Whether it was the method itself that raised."""

    @property
    def why(self) -> str:
        """The error in one line."""
        who = "the method" if self.by_method else "the model"
        return f"{who} raised {said(self.error)}"


def refuse_fatal(error: Exception) -> None:
    """Raise an error that is not of one image: ours, of memory, or of a device that is lost."""
    if isinstance(error, FaithscopeError) or str(error).startswith("DataLoader worker"):
        raise error  # torch tells of a dead worker by a signal, wherever this thread is
    if is_out_of_memory(error):
        halve(1, error)
    if any(words in str(error) for words in FATAL):
        raise FaithscopeError(
            f"The device failed ({said(error)}): what is finished is kept with out=…; run the same "
            "command again to resume."
        ) from error


def warn_of_moods(who: str, error: Exception) -> None:
    """Say that something raised on a batch, but on none of its inputs alone."""
    warn(
        f"The {who} raised {said(error)} on a batch, but on none of its inputs alone: they were "
        "run one by one."
    )


def check_some_work(
    model: Model, images: Inputs, failures: Sequence[Failure], columns: Sequence[str], samples: int
) -> None:
    """Stop if everything of a method, or of all, failed on the first images [S, C, H, W]."""
    lost = {failure.sample: failure for failure in failures if not failure.method}
    for column in columns:
        own = {failure.sample: failure for failure in failures if failure.method == column}
        if len({*lost, *own}) < samples:
            continue
        first = next(iter([*own.values(), *lost.values()]))
        if first.by_method:
            raise fails_everywhere(column, first.error, model.modality)
        raise cannot_run(model, images, first.error) from first.error


def fails_everywhere(method: str, error: Exception, noun: str) -> FaithscopeError:
    """Say that a method fails on every image or text; a lost device is raised itself."""
    refuse_fatal(error)
    reason = f"The method '{method}' fails on every {noun} ({said(error)})"
    found = FaithscopeError(f"{reason}: fix it, or leave it out.", reason=reason)
    found.__cause__ = error
    return found


def all_refused(trial: Trial, noun: str) -> dict[str, FaithscopeError]:
    """Why methods cannot be run, by label: what the model refuses, and what fails everywhere."""
    failed = {label: fails_everywhere(label, error, noun) for label, error in trial.failed.items()}
    return {**trial.refused, **failed}


def nothing_usable(skipped: Sequence[Skipped], noun: str) -> FaithscopeError:
    """An error: of all samples none can be used."""
    if not skipped:
        return FaithscopeError(f"There are no {noun}: give at least one.")
    only = f"The only {noun.removesuffix('s')}"
    count = only if len(skipped) == 1 else f"None of the {len(skipped)} {noun}"
    could = "cannot be used" if len(skipped) == 1 else "can be used; the first"
    return FaithscopeError(f"{count} {could}, '{skipped[0].sample}': {skipped[0].reason}.")


def refuse_skipped(skipped: Sequence[Skipped], noun: str) -> None:
    """What `strict` asks for: the first sample that cannot be read as an error."""
    if skipped:
        raise FaithscopeError(
            f"The {noun} '{skipped[0].sample}' would be left out ({skipped[0].reason}), which "
            "strict forbids: replace or remove it, or leave strict out."
        )


def refuse_failures(failures: Sequence[Failure], noun: str) -> None:
    """What `strict` asks for: the first failure as an error."""
    if failures:
        first = failures[0]
        method = f" of '{first.method}'" if first.method else ""
        raise FaithscopeError(
            f"The {noun} '{first.sample}'{method} would be left out ({first.why}), which strict "
            "forbids: fix that, or leave strict out."
        ) from first.error


def those_that_run(model: Model, images: Inputs) -> Inputs:
    """The images [S, C, H, W] that a model can be run on, found one by one; none is an error."""
    found, last = list[int](), None
    for place in range(len(images)):
        try:
            with torch.inference_mode():
                model.logits(images[place : place + 1].to(model.dtype))
            found.append(place)
        except Exception as error:
            refuse_fatal(error)
            last = error
    if not found:
        assert last is not None
        raise cannot_run(model, images, last) from last
    return images[found]
