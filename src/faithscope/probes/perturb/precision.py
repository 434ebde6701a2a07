"""In which number format the perturbed inputs are run, and whether it can be trusted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, choose
from faithscope.methods.layout import Inputs
from faithscope.models import Model
from faithscope.models.device import without_autocast
from faithscope.models.formats import FORMATS, check_format, format_of, kernels
from faithscope.models.model import log_probabilities
from faithscope.probes.perturb.compiled import Compiled, compiled

TRUST = 0.02
"""Largest difference of a log-probability between fp16 and fp32 that "auto" accepts."""


@dataclass(frozen=True, eq=False)
class Forward:
    """The model ready to be run in one precision; the user's own module stays as it is."""

    precision: str
    dtype: torch.dtype
    module: nn.Module
    """What is run: the user's own module, or a copy in another type."""
    logits: Callable[[Inputs], Tensor]
    device_type: str = "cpu"
    output: str = "softmax"
    deviation: float | None = None

    @property
    def program(self) -> Compiled | None:
        """What runs the module if it is compiled."""
        return self.logits if isinstance(self.logits, Compiled) else None

    def answer(self, inputs: Inputs, rows: int = 0) -> tuple[Tensor, Tensor]:
        """Log-probability of every class [B, classes], and the predicted class [B].

        The class is that of the highest logit: sigmoids of high logits are all 1. A program is made
        for batches of one size: fewer inputs than `rows` are filled up by repeating the last.
        """
        count = len(inputs)
        if self.program is not None and count < rows:
            inputs = inputs[torch.arange(rows, device=inputs.device).clamp_max(count - 1)]
        logits = self.logits(inputs)[:count]
        return log_probabilities(logits, self.output), logits.argmax(-1)

    @contextmanager
    def mode(self) -> Iterator[None]:
        """Inference mode with the float32 kernels this precision asks for, restored afterwards."""
        with (
            kernels(self.precision),
            torch.inference_mode(),
            without_autocast(self.device_type),
        ):
            yield


def prepare_forward(model: Model, precision: str, sample: Inputs | None = None) -> Forward:
    """Make the model ready to run in `precision`.

    "auto" is the model's own type on a CPU and on an Apple GPU. On a CUDA GPU a float32 model is
    tried in fp16 on `sample` [B, C, H, W]: if every log-probability of the predicted class stays
    finite and within `TRUST` of fp32, fp16 is used, else tf32. The deviation found is kept for the
    protocol.
    """
    choose("precision", precision, ("auto", *FORMATS))
    if precision != "auto":
        return _forward(model, precision)
    own = format_of(model.dtype)
    if model.device.type != "cuda" or own != "fp32" or sample is None:
        return _forward(model, own)
    exact, fast = _forward(model, "fp32"), _forward(model, "fp16")
    deviation = _deviation(exact, fast, sample.to(model.device))
    chosen = fast if deviation <= TRUST else _forward(model, "tf32")
    return replace(chosen, deviation=deviation)


def compiled_forward(model: Model, forward: Forward) -> Forward:
    """The same, run by a program that torch.compile makes of the module."""
    return replace(forward, logits=compiled(model, forward.module))


def exact_forward(model: Model) -> Forward:
    """The model in its own type, or in fp32 if that is coarser."""
    own = format_of(model.dtype)
    return _forward(model, own if own == "fp64" else "fp32")


def _forward(model: Model, precision: str) -> Forward:
    check_format(precision, model.device)
    dtype = FORMATS[precision]
    if dtype == model.dtype:
        kind = model.device.type
        return Forward(precision, dtype, model.module, model.logits, kind, model.output)
    try:
        module = copy.deepcopy(model.module).to(dtype).eval()
    except (RuntimeError, TypeError) as error:
        raise FaithscopeError(
            f"{model.name} cannot be copied to {precision}: use precision='auto', or convert it "
            "yourself."
        ) from error

    copied = replace(model, module=module)
    return Forward(precision, dtype, module, copied.logits, model.device.type, model.output)


def _deviation(exact: Forward, fast: Forward, sample: Inputs) -> float:
    with exact.mode():
        reference, predicted = exact.answer(sample.to(exact.dtype))
    with fast.mode():
        tried, _ = fast.answer(sample.to(fast.dtype))
    off = (tried - reference).gather(1, predicted[:, None]).abs().max()
    return float(off) if torch.isfinite(tried).all() else float("inf")
