"""Attribution classes of captum by name: ``captum:Saliency``, ``captum:DeepLift`` and so on.

A class is used as it is if it needs nothing but the model and a target; what else it requires may
be given as options, ``captum:Occlusion(sliding_window_shapes=(3, 8, 8))``, and is named if it is
missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, unknown
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import Method
from faithscope.models import Model

_GIVEN = {"self", "forward_func", "model", "inputs", "target", "kwargs"}


class _Logits(nn.Module):
    """The user's module, giving bare logits: some captum classes want a module, not a function."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.module = model.module
        self._model = [model]  # in a list, so that it is not registered as a part

    def forward(self, inputs: Tensor) -> Tensor:
        return self._model[0].logits(inputs)


@contextmanager
def _tidied(module: nn.Module) -> Iterator[None]:
    """Take off what captum (LRP, DeepLift) leaves on the modules if it fails half-way."""
    before = [(child, set(vars(child))) for child in module.modules()]
    try:
        yield
    finally:
        for child, names in before:
            for name in set(vars(child)) - names:
                delattr(child, name)


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Seed the global generators that captum draws from, and put them back as they were."""
    before = np.random.get_state()  # noqa: NPY002 - captum uses this one
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002


def captum_method(name: str, options: dict[str, Any]) -> Method:
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
    signatures = [inspect.signature(part) for part in (cls.__init__, cls.attribute)]
    known = {key for signature in signatures for key in signature.parameters} - _GIVEN
    for option in options:
        if option not in known:
            raise unknown(f"option of '{name}'", option, known)
    missing = [
        parameter.name
        for signature in signatures
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_KEYWORD
        and parameter.name not in _GIVEN
        and parameter.name not in options
    ]
    if missing:
        raise FaithscopeError(
            f"'{name}' needs {', '.join(missing)} beside a model and a target: give it as "
            f"{name}({missing[0]}=…), or call captum yourself and pass maps={{…}}."
        )
    if wanted == "FeaturePermutation":
        raise FaithscopeError(
            f"'{name}' mixes the images of a batch, so its maps would depend on the batch: choose "
            "another method."
        )
    if "target" not in signatures[1].parameters:
        raise FaithscopeError(
            f"'{name}' takes no target class: call captum yourself and pass maps={{…}}."
        )

    def attribute(evidence: Evidence, **options: Any) -> Tensor:
        made, call = (
            {key: value for key, value in options.items() if key in signature.parameters}
            for signature in signatures
        )
        images = evidence.images.clone().requires_grad_(True)
        try:
            with _tidied(evidence.model.module), _own_randomness(evidence.seed):
                explainer = cls(_Logits(evidence.model), **made)
                attributions = explainer.attribute(images, target=evidence.target, **call)
        except (FaithscopeError, RuntimeError, IndexError):
            raise  # memory, images or targets that do not fit the model: whoever asked knows more
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise FaithscopeError(
                f"'{name}' cannot explain {evidence.model.name} ({reason}): choose another method."
            ) from error
        if not isinstance(attributions, Tensor) or attributions.ndim < 2:
            kind = type(attributions).__name__
            raise FaithscopeError(f"'{name}' gave {kind}, not one map: change its options.")
        return attributions.sum(dim=1)

    return Method(
        name,
        attribute,
        granularity="pixel",
        summary=f"captum's {wanted}, signed sum over channels",
        options=options,
    )
