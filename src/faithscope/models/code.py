"""Models from a person's own Python file, `FILE.py:name`."""

from __future__ import annotations

import inspect

from torch import nn

from faithscope.errors import FaithscopeError
from faithscope.models.model import Model
from faithscope.registry import check_options
from faithscope.request.code import Code


def built(code: Code) -> Model | nn.Module:
    """The model that a name stands for: itself, or what a function (or class) of that name gives.

    The function is called with the options in brackets alone.
    """
    found = code.load()
    if isinstance(found, Model | nn.Module):
        check_options("model", code.place, code.options, {})
        return found
    if not callable(found):
        raise _no_model(code, found)
    _check_arguments(code, found)
    try:
        made = found(**code.options)
    except FaithscopeError:
        raise
    except Exception as error:
        raise code.failed(f"'{code}' failed", error) from error
    if not isinstance(made, Model | nn.Module):
        raise _no_model(code, made)
    return made


def _check_arguments(code: Code, function: object) -> None:
    """Refuse options that a function does not take, and say which ones it lacks."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a function of C, which does not say what it takes
        return
    takes = signature.parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in takes):
        check_options("model", code.place, code.options, dict.fromkeys(signature.parameters))
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for one in takes:
        if one.default is one.empty and one.kind not in several and one.name not in code.options:
            raise FaithscopeError(
                f"'{code}' needs '{one.name}': give it in brackets, {code.place}({one.name}=…), or "
                "give it a default."
            )


def _no_model(code: Code, found: object) -> FaithscopeError:
    return FaithscopeError(
        f"'{code}' gives an object of type {type(found).__name__}: a model is a torch module or "
        "what fs.wrap gives, or a function that returns one."
    )
