"""Why a model has no single roll-out: what kind of attention it has instead, if any.

Found from the structure of a module: which of its parts make queries and keys, how wide their input
is, whether they see windows, and what else stands between the softmax and the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor, nn

JOINT = re.compile(
    r"(.*_)?(qkvs?|wqkv|qk|in_proj|queries_keys_values|pwise)(_proj|_bias)?", re.IGNORECASE
)
"""Names of layers that make queries, keys and values, or the first two, at once."""
QUERY = re.compile(r"(.*_)?(q|wq|query|queries)(_proj)?", re.IGNORECASE)
KEY = re.compile(r"(.*_)?(k|wk|kv|key|key_value|keys_values)(_proj)?", re.IGNORECASE)
CHANNELS = re.compile(r"XCA|CrossCovariance|Channel")
"""Classes whose attention is between channels."""
WINDOWS = ("window_size", "window_area", "ws", "partition_size", "block_size", "mask_unit_attn")
"""Attributes of a module that attends within windows, where they are neither 0 nor None."""


@dataclass(frozen=True)
class Part:
    """A part of a model that makes queries and keys, and how many channels it reads."""

    name: str
    module: nn.Module
    width: int


def describe_hierarchy(module: nn.Module) -> str | None:
    """The reason why the attention of a module is no stack over one grid; None if it may be.

    >>> describe_hierarchy(nn.Conv2d(3, 8, 3))
    'it has no attention between positions'
    """
    parts = list(attention_parts(module))
    if not parts:
        return "it has no attention between positions"
    odd = [describe_attention(part.module) for part in parts]
    reason = next(filter(None, odd), None)
    if not all(odd):  # what holds for some (DaViT's every second) is not the reason of a hierarchy
        reason = _describe_stages(module, parts) or reason
    if reason is None and _shrinks_before(module, parts[0]):
        return (
            "it attends only in its last stages, behind others without queries and keys, so there "
            "is no single roll-out over its patches"
        )
    return reason


def describe_stages(module: nn.Module, attentions: Iterable[nn.Module]) -> str | None:
    """The reason why these parts of a module are no stack over one grid; None if they may be."""
    chosen = set(map(id, attentions))
    return _describe_stages(
        module, [part for part in attention_parts(module) if id(part.module) in chosen]
    )


def describe_attention(part: nn.Module) -> str | None:
    """What makes attention one without a matrix of probabilities between positions; None if not."""
    names = {name for name, _ in (*part.named_children(), *part.named_parameters(recurse=False))}
    kind = type(part).__name__
    if names & {"proj_l", "proj_w", "talking_head1", "talking_head2"}:
        return "its attention mixes heads before and after the softmax (talking heads)"
    if CHANNELS.search(kind):
        return "its attention is between channels (cross-covariance), not between positions"
    if names & {"lambda_q1", "lambda_a"}:
        return "its attention is the difference of two (differential attention)"
    if "gating_param" in names:
        return "its attention is mixed with a second one, of positions, by a gate"
    if names & {"kernel_func", "w_g", "crpe"} or "Linear" in kind:
        return "its attention is linear, without a matrix of probabilities between positions"
    return None


def _describe_stages(module: nn.Module, parts: list[Part]) -> str | None:
    widths = [width for width, _ in groupby(parts, key=lambda part: part.width)]
    distinct = sorted(set(widths))
    if len(distinct) < 2:
        return None
    if len(widths) > len(distinct):
        return (
            f"its attention runs over {len(distinct)} sets of tokens side by side, of "
            f"{_and(distinct)} channels, so there is no single roll-out"
        )
    where = " in windows," if any(map(in_windows, _around(module, parts))) else ""
    return (
        f"its attention is computed{where} in {len(distinct)} stages of different grids, of "
        f"{_and(distinct)} channels, so there is no single roll-out"
    )


def attention_parts(module: nn.Module) -> Iterator[Part]:
    """The parts that make queries and keys, in the order they are defined."""
    for name, child in module.named_modules():
        if isinstance(child, nn.MultiheadAttention):
            yield Part(name, child, child.embed_dim)
            continue
        made = {key: _width(layer) for key, layer in child.named_children()}
        joint = [width for key, width in made.items() if width and JOINT.fullmatch(key)]
        query = [width for key, width in made.items() if width and QUERY.fullmatch(key)]
        keyed = any(width and KEY.fullmatch(key) for key, width in made.items())
        if joint or (query and keyed):
            yield Part(name, child, (joint or query)[0])


def _width(layer: nn.Module) -> int:
    """How many channels the first linear layer or convolution reads; 0 if there is none."""
    for child in layer.modules():
        for size in ("in_features", "in_channels"):
            if isinstance(getattr(child, size, None), int):
                return int(getattr(child, size))
    return 0


def _around(module: nn.Module, parts: list[Part]) -> Iterator[nn.Module]:
    """Those parts and the modules right around them, where windows are cut."""
    for part in parts:
        yield part.module
        yield module.get_submodule(part.name.rpartition(".")[0])


def in_windows(part: nn.Module) -> bool:
    """Whether a module cuts its tokens into windows."""
    for name in WINDOWS:
        value = getattr(part, name, None)
        if isinstance(value, Tensor | nn.Module):
            continue
        if isinstance(value, tuple | list) and any(value):
            return True
        if isinstance(value, int) and value:
            return True
    return "Window" in type(part).__name__


def _shrinks_before(module: nn.Module, part: Part) -> bool:
    """Whether several strided convolutions, a stem and stages, stand before the first attention."""
    strided = 0
    for name, child in module.named_modules():
        if name == part.name:
            break
        strided += isinstance(child, nn.Conv2d) and max(child.stride) > 1
    return strided > 2


def _and(numbers: list[int]) -> str:
    """Numbers as a sentence lists them.

    >>> _and([96, 192, 384])
    '96, 192 and 384'
    """
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
