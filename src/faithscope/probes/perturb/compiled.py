"""The model as a program that torch.compile makes of it; the user's own module stays as it is."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, said
from faithscope.models import Model
from faithscope.models.memory import is_out_of_memory

BACKEND = "inductor"
MOST_PROGRAMS = 64
"""Of one class of models in a process; beyond torch's own 8 it would run uncompiled, in silence."""


@dataclass(eq=False)
class Compiled:
    """Gives the logits of a model by a program, made when it is first called in a process.

    One program is made for each shape of a batch. Kernels are not chosen by timing them where that
    moves the last bits, and there are no CUDA graphs, which overwrite earlier answers.
    """

    model: Model
    """Of a copy of the module that shares its weights: the compiler writes marks on what it sees,
    modules and parameters."""
    seconds: float = 0.0
    """What the first call took, nearly all of it compiling."""
    _run: Callable[[Any], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Another process makes its own program."""
        return {**vars(self), "seconds": 0.0, "_run": None}

    @property
    def is_made(self) -> bool:
        """Whether there is a program in this process."""
        return self._run is not None

    def __call__(self, inputs: Any) -> Tensor:
        """Run the program on [B, C, H, W]; a model that cannot be compiled is refused."""
        began = time.perf_counter()
        try:
            run = self._run or _compile(self.model)
            with _many_programs():
                logits = run(inputs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.model.logits(inputs)  # an error of the model's own is raised as ever
            why = said(getattr(error, "inner_exception", error))
            raise FaithscopeError(
                f"{self.model.name} cannot be compiled ({why}): leave compile out, or install what "
                "torch.compile needs, a C++ compiler and, for a GPU, Triton."
            ) from error
        if self._run is None:
            self._run, self.seconds = run, time.perf_counter() - began
        return logits


def _compile(model: Model) -> Callable[[Any], Tensor]:
    import torch._inductor.config as inductor  # takes a second, which only few need

    options: dict[str, Any] = {}
    if BACKEND == "inductor" and hasattr(inductor, "deterministic"):  # not in older torch
        options["deterministic"] = True
    module: Any = torch.compile(
        model.module, dynamic=False, backend=BACKEND, options=options or None
    )
    return replace(model, module=module).logits


def _many_programs() -> AbstractContextManager[object]:
    import torch._dynamo.config as dynamo

    names = "recompile_limit", "fail_on_recompile_limit_hit"
    if not hasattr(dynamo, names[0]):  # in older torch
        names = "cache_size_limit", "fail_on_cache_limit_hit"
    patched: AbstractContextManager[object] = dynamo.patch(
        dict(zip(names, (MOST_PROGRAMS, True), strict=True))
    )
    return patched


def compiled(model: Model, module: nn.Module) -> Compiled:
    """A model to be compiled, of its own module or of a copy in another precision."""
    module = getattr(module, "_orig_mod", module)  # one that is compiled already
    tensors: dict[int, Any] = {id(held): held.detach() for held in module.buffers()}
    for held in module.parameters():
        tensors[id(held)] = nn.Parameter(held.detach(), requires_grad=False)
    try:
        shared = copy.deepcopy(module, tensors).eval()
    except Exception as error:  # of somebody's own module
        raise FaithscopeError(
            f"{model.name} cannot be copied, which compile needs ({said(error)}): leave it out."
        ) from error
    return Compiled(replace(model, module=shared))
