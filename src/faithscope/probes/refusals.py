"""One refusal does not end a run: what a model does not allow is left out, and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from faithscope.errors import FaithscopeError
from faithscope.methods import Method
from faithscope.registry import RESERVED
from faithscope.runs.cards import Left


def leave_out(
    methods: Sequence[Method],
    refused: Mapping[str, FaithscopeError],
    *,
    asked: Sequence[str],
    strict: bool,
    others: bool = False,
) -> tuple[list[Method], tuple[Left, ...]]:
    """The methods that a model allows, and those that it refuses, with the reason.

    The first refusal is raised if `strict`, if a single method was asked for by name, or if nothing
    but random attribution would be left, unless there are `others` to run.

    Args:
        methods: in the order they were asked for.
        refused: why a method cannot be run, by its label.
        asked: as it was asked for, "all" and "registered" not spelled out.
        strict: whether nothing may be left out.
        others: whether there is something to run beside the methods, such as given maps.
    """
    kept = [method for method in methods if method.label not in refused]
    left = [method for method in methods if method.label in refused]
    single = len(asked) == 1 and asked[0] not in RESERVED
    nothing = not others and all(method.is_random for method in kept)
    if left and (strict or single or nothing):
        raise refused[left[0].label]
    return kept, tuple(Left(name=held.label, why=refused[held.label].reason) for held in left)
