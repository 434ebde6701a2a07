"""Files of tensors that carry their own hash, so that they are known to be what was written."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from faithscope.hashing import canonical, digest

Tensors = Mapping[str, Tensor]


def tensor_file(tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """The content of a safetensors file that carries its own hash."""
    tensors = {name: held.detach().contiguous().clone() for name, held in tensors.items()}
    content: bytes = save(tensors, {**about, "hash": tensor_digest(tensors, about)})
    return content


def read_tensors(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file that `tensor_file` made and what it says of them, or a ValueError."""
    try:
        tensors = {name: held.clone() for name, held in load(content).items()}  # aligned
        size = int.from_bytes(content[:8], "little")
        about: dict[str, str] = json.loads(content[8 : 8 + size])["__metadata__"]
        held = about.pop("hash")
    except (SafetensorError, KeyError, UnicodeDecodeError) as error:
        raise ValueError("it cannot be read") from error
    if held != tensor_digest(tensors, about):
        raise ValueError("its hash differs")
    return tensors, about


def tensor_digest(tensors: Tensors, about: Mapping[str, str]) -> str:
    """A hash of names, types, shapes, contents and remarks."""
    parts = [canonical(dict(about))]
    for name in sorted(tensors):
        held = tensors[name]
        content = held.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        parts.append(f"{name} {held.dtype} {list(held.shape)} {digest(content)}".encode())
    return digest(b"\n".join(parts))
