"""From whatever people give to a request: values made plain, mistakes explained in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError

from faithscope.errors import FaithscopeError, shown, unknown
from faithscope.registry import MOST_ITEMS, registry
from faithscope.request.option import Option, options, python_names
from faithscope.request.paths import as_path, as_place
from faithscope.request.requests import Request

R = TypeVar("R", bound=Request)


def check_request(kind: type[R], values: Mapping[str, Any], *, of: str = "option") -> R:
    """Make a request; an error about a name or value says which are valid.

    Args:
        kind: `Perturb` or `Retrain`.
        values: by the names of fields; those that are left out have their defaults.
        of: what a name that is not known is called, "option" or "key of a study".
    """
    known = options(kind)
    for name in values:
        if name not in known:
            raise unknown(of, str(name), python_names(kind))
    given: dict[str, Any] = {
        name: str((as_place if name == "out" else as_path)(value, known[name].name or name))
        if known[name].is_path and value is not None
        else _in_its_form(kind.model_fields[name].annotation, plain(value))
        for name, value in values.items()
    }
    try:
        request = kind(**given)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        if name not in given:
            raise FaithscopeError(f"'{name}' is missing: give {known[name].says}.") from None
        raise complaint(
            name, known[name], kind.model_fields[name].annotation, given[name]
        ) from None
    for name, option in known.items():
        value = getattr(request, name)
        if option.choices and value is not None and value != "auto":
            known_as = registry(option.choices)
            valid = {*known_as, *(held for one in known_as.variants.values() for held in one)}
            if value not in valid:
                raise unknown(option.noun, str(value), sorted(valid))
    return request


def plain(value: Any) -> Any:
    """A value in Python's own types: numbers of NumPy, lists and paths are taken for what they are.

    >>> plain([1, (2, "a")])
    (1, (2, 'a'))
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return str(as_path(value))
    if isinstance(value, bytes | bytearray | memoryview):  # no list of numbers
        return shown(value)
    try:
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # a number or an array of NumPy
            return plain(value.tolist())
        if isinstance(value, Mapping):
            return {str(key): plain(held) for key, held in value.items()}
        if isinstance(value, Iterable):
            return tuple(plain(held) for held in islice(value, MOST_ITEMS))
    except Exception:  # of somebody's own object, or a list that holds itself
        return shown(value)
    return value


def complaint(name: str, option: Option, annotation: Any, value: Any) -> FaithscopeError:
    """The sentence for a value that an option does not take."""
    valid = words(annotation)
    if option.noun and valid:
        asked = value if isinstance(value, tuple) else (value,)
        wrong = [one for one in asked if not isinstance(one, str) or one not in valid]
        if not wrong:
            return FaithscopeError(f"There is no {option.noun}: give {' or '.join(valid)}.")
        one = wrong[0]
        return unknown(option.noun, one if isinstance(one, str) else shown(one), valid)
    given = list(value) if isinstance(value, tuple) else value
    return FaithscopeError(f"{option.name or name} must be {option.says}, got {shown(given)}.")


def words(annotation: Any) -> tuple[str, ...]:
    """The words that a type allows, wherever they stand in it."""
    if get_origin(annotation) is Literal:
        return tuple(held for held in get_args(annotation) if isinstance(held, str))
    return tuple(dict.fromkeys(word for part in get_args(annotation) for word in words(part)))


def takes(annotation: Any, kind: type) -> bool:
    """Whether a type allows a kind of value, whatever else it allows.

    >>> takes(int | tuple[str, ...], tuple), takes(tuple[int, ...], int)
    (True, False)
    """
    origin = get_origin(annotation)
    if origin is tuple or annotation is tuple:
        return kind is tuple
    if origin is Literal:
        return kind is str
    if origin is None:
        return bool(annotation is kind)
    return any(takes(part, kind) for part in get_args(annotation))


def _in_its_form(annotation: Any, value: Any) -> Any:
    """One value where a list is meant, as a list; a list of one where a value is meant, as it."""
    listed = takes(annotation, tuple)
    if listed and not isinstance(value, tuple) and value is not None:
        alone = any(takes(annotation, kind) for kind in (int, float, str, bool))
        return value if alone else (value,)
    return value
