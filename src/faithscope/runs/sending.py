"""Objects on their way to another process: models, methods and data, whole or refused."""

from __future__ import annotations

import io
from dataclasses import fields
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from ray import cloudpickle

from faithscope.errors import FaithscopeError, said
from faithscope.models import Model
from faithscope.request import Given
from faithscope.request.code import imported_files

Sent = NDArray[np.uint8]
"""An object as bytes; an array, because Ray lets all processes of a machine share those."""
ADVICE = {
    "model": "give it by name ('timm:NAME', 'hf:FOLDER', with checkpoint=FILE for its weights)",
    "data": "give it by name (a folder, 'array:FILE.npy', 'hf:ID')",
    "methods": "define it at the top of a module that the workers can import, or give maps=…",
    "metrics": "define it at the top of a module that the workers can import",
    "labels": "give numbers, as a list, an array or a tensor",
    "maps": "give arrays or tensors",
    "target": "give numbers, as a list, an array or a tensor",
}
"""How what cannot be sent is named instead."""


class _Pickler(cloudpickle.Pickler):
    """Sends a Model together with its module, so that its views stay views into that."""

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, Model):
            names = (field.name for field in fields(item) if field.name != "_hashed")
            return _model, (type(item), {name: getattr(item, name) for name in names})
        return super().reducer_override(item)  # type: ignore[no-untyped-call]


_PICKLE = ModuleType("pickle")
_PICKLE.Pickler = _Pickler  # type: ignore[attr-defined]


def _model(kind: type[Model], held: dict[str, Any]) -> Model:
    return kind(**held)


def packed(item: Any) -> Sent:
    """An object as bytes, its tensors with it; whatever error says that it cannot be."""
    for module in imported_files():  # which a worker cannot import by name
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    buffer = io.BytesIO()
    torch.save(item, buffer, pickle_module=_PICKLE)
    return np.frombuffer(buffer.getbuffer(), np.uint8)


def unpacked(content: Sent) -> Any:
    """The object; what was on some GPU is on the one that this process has, if it has one."""
    gpu = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")

    def place(storage: Any, location: str) -> Any:
        return storage.to(device=gpu) if location.startswith("cuda") else storage

    buffer = io.BytesIO(memoryview(content))  # type: ignore[arg-type]
    return torch.load(buffer, map_location=place, weights_only=False)


def refuse_unsendable(given: Given, error: Exception) -> NoReturn:
    """Say which object cannot be sent, and how to name it instead."""
    for what, advice in ADVICE.items():
        held = getattr(given, what)
        for name, item in held.items() if isinstance(held, dict) else ((what, held),):
            try:
                packed(item)
            except Exception as found:
                of = f"The {what[:-1]} '{name}'" if isinstance(held, dict) else f"The {what}"
                raise FaithscopeError(
                    f"{of} cannot be sent to the workers on Ray ({said(found)}): {advice}."
                ) from None
    raise FaithscopeError(
        f"What was given cannot be sent to the workers on Ray ({said(error)}): give names."
    ) from None
