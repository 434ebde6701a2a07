"""What methods of other packages (captum.py, cams.py) have in common.

Their objects are made by users for their own modules, draw from the global generators, clear
gradients and leave things behind when they fail. Here an object explains the module that is
evaluated or is refused, and the module and the generators are afterwards as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.models import Model
from faithscope.rng import stream_keys


@dataclass(frozen=True, eq=False)
class Live:
    """An option that is an object, and how it is written in labels and manifests."""

    value: Any
    text: str

    def __repr__(self) -> str:
        return self.text


def written(value: Any, module: nn.Module | None = None) -> Any:
    """An option as it may stand in a label: plain, or an object that knows how it is written.

    A tensor is its shape and a hash of its content, so that two of them have two labels; a part of
    `module` is its name there.

    >>> written(torch.zeros(1, 3))
    tensor[1×3]#e6c6ced0
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return type(value)(written(held, module) for held in value)
    if isinstance(value, Tensor | np.ndarray):
        tensor = as_tensor(value).detach()
        shape = "×".join(map(str, tensor.shape))
        return Live(tensor, f"tensor[{shape}]#{_digest(tensor)}")
    if isinstance(value, nn.Module) and module is not None:
        names = (name for name, part in module.named_modules() if part is value and name)
        return Live(value, next(names, type(value).__name__))
    return Live(value, str(getattr(value, "__name__", type(value).__name__)))


def live(value: Any) -> Any:
    """The object behind what is written, as it was given."""
    if isinstance(value, tuple | list):
        return type(value)(map(live, value))
    return value.value if isinstance(value, Live) else value


def _digest(tensor: Tensor) -> str:
    flat = tensor.cpu().contiguous().reshape(-1)
    digest = hashlib.blake2b(f"{tensor.dtype}|{list(tensor.shape)}".encode(), digest_size=4)
    digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def check_same(model: Model, explained: Any, name: str) -> None:
    """Refuse an object that explains another module; of a function nobody knows what it runs."""
    owner = getattr(explained, "__self__", explained)
    owner = owner.module if isinstance(owner, Model) else owner
    if isinstance(owner, nn.Module) and all(part is not model.module for part in owner.modules()):
        raise FaithscopeError(
            f"'{name}' explains another module ({type(owner).__name__}) than the one that is "
            f"evaluated, {model.name}: make it with that module."
        )


@contextmanager
def left_alone(module: nn.Module) -> Iterator[None]:
    """Put back what others leave on a module: attributes, replaced parts, cleared gradients."""
    before = [(child, set(vars(child)), dict(child._modules)) for child in module.modules()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        for child, names, parts in before:
            for name in set(vars(child)) - names:
                delattr(child, name)
            if any(child._modules.get(name) is not part for name, part in parts.items()):
                child._modules.update(parts)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed the global generators that others draw from, and put them back as they were."""
    before = np.random.get_state()  # noqa: NPY002 - they use this one
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002


def one_by_one(explain: Callable[[Evidence], Tensor], evidence: Evidence) -> Tensor:
    """Explain each image alone, by a seed of its own: what is drawn depends on no batch."""
    seeds = stream_keys(evidence.keys, seed=evidence.seed, purpose="peers").tolist()
    maps = [
        explain(
            replace(
                evidence,
                inputs=evidence.inputs[place : place + 1],
                embedded=evidence.embedded[place : place + 1],
                target=evidence.target[place : place + 1],
                keys=evidence.keys[place : place + 1],
                seed=seed,
            )
        )
        for place, seed in enumerate(seeds)
    ]
    return torch.cat(maps)
