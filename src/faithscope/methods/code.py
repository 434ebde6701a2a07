"""Methods from a person's own Python file, `FILE.py:name`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from faithscope.errors import FaithscopeError
from faithscope.methods.evidence import Evidence
from faithscope.methods.method import METHODS, Method, function_options, resolve_methods
from faithscope.registry import check_options
from faithscope.request.code import Code


def code_method(code: Code) -> Method:
    """The method that a name stands for: a Method, or a function (module, images, target) -> maps.

    The function's keyword-only arguments are its options; one that the file registers is the method
    it was registered as.
    """
    found = code.load()
    known = next((held for held in METHODS.values() if held.function is found), None)
    if isinstance(found, Method) or known is not None:
        made = (known or found).with_options(**code.options)
        return replace(made, name=code.place, fingerprint=code.digest)
    if not callable(found):
        raise FaithscopeError(
            f"'{code}' is of type {type(found).__name__}: a method is a function (module, images, "
            "target) -> maps, or a Method."
        )
    valid = function_options(found)
    check_options("method", code.place, code.options, valid)
    given = partial(found, **code.options) if code.options else found
    (inner,) = resolve_methods([given])

    def call(evidence: Evidence, **_: Any) -> Tensor:
        return inner.function(evidence, **inner.arguments)

    changed = {name: value for name, value in code.options.items() if value != valid[name]}
    return replace(
        inner,
        name=code.place,
        function=call,
        options={**inner.options, **changed},
        fingerprint=code.digest,
    )
