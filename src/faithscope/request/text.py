"""Options as the command line has them: text, which one reader turns into values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faithscope.registry import split_specs
from faithscope.request.check import takes
from faithscope.request.requests import Request


def read_texts(kind: type[Request], texts: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options that were given as text; what is none (a flag) stays as it is."""
    return {
        name: _read(kind.model_fields[name].annotation, text) if isinstance(text, str) else text
        for name, text in texts.items()
    }


def _read(annotation: Any, text: str) -> Any:
    if takes(annotation, tuple):
        numbers = takes(annotation, int)
        parts = tuple(_word(part, annotation) for part in split_specs(text) or [""])
        single = numbers and "," not in text
        return parts[0] if single and len(parts) == 1 else parts
    return _word(text, annotation)


def _word(text: str, annotation: Any) -> Any:
    """A number where one is allowed and it is one; what else is allowed is checked elsewhere."""
    kinds = [kind for kind in (int, float) if _somewhere(annotation, kind)]
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _somewhere(annotation: Any, kind: type) -> bool:
    from typing import get_args

    return annotation is kind or any(_somewhere(part, kind) for part in get_args(annotation))
