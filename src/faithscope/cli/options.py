"""Commands whose options come from a request: declared there once, spelled here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_type_hints

import typer

from faithscope.errors import FaithscopeError
from faithscope.request import Option, Request, options, read_texts
from faithscope.request.check import takes, words

ROLES = ("protocol", "plan", "running")


def takes_request(
    kind: type[Request],
    *,
    only: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a request; it gets those that were typed as `asked`.

    Args:
        kind: the request whose fields are options.
        only: some of them, if any are named.
        defaults: values that this command takes where nothing is typed, for `--help` to show.
    """
    fields = {name: held for name, held in options(kind).items() if not only or name in only}
    fields = dict(sorted(fields.items(), key=lambda item: ROLES.index(item[1].role)))
    names = {held.name or name: name for name, held in fields.items()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(function).parameters.items()
            if name != "asked"
        ]
        made = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=_annotation(kind, field, name, defaults or {}),
            )
            for name, field in names.items()
        ]
        first = [p for p in own if p.default is inspect.Parameter.empty]
        rest = [p for p in own if p.default is not inspect.Parameter.empty]

        def call(**given: Any) -> None:
            typed = {field: given.pop(name) for name, field in names.items()}
            known = {field: value for field, value in typed.items() if value is not None}
            try:
                function(asked={**(defaults or {}), **read_texts(kind, known)}, **given)
            except FaithscopeError as error:
                name, _, rest = str(error).partition(" ")
                if name not in names:
                    raise
                raise FaithscopeError(f"--{name.replace('_', '-')} {rest}") from None

        call.__signature__ = inspect.Signature([*first, *made, *rest])  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in (*first, *made, *rest)}
        call.__name__, call.__doc__ = function.__name__, function.__doc__
        return call

    return decorate


def _annotation(kind: type[Request], field: str, name: str, defaults: Mapping[str, Any]) -> Any:
    held, option = kind.model_fields[field], options(kind)[field]
    flag = f"--{name.replace('_', '-')}"
    default = defaults.get(field, held.default)
    if takes(held.annotation, bool):
        spelled = f"{flag}/--no-{flag[2:]}"
        state = "" if not default else " [default: yes]"
        return Annotated[bool | None, typer.Option(spelled, help=f"{option.help}{state}")]
    also = [f"--{alias}" for alias in option.also]
    return Annotated[
        str | None,
        typer.Option(
            flag,
            *also,
            metavar=option.metavar or "|".join(words(held.annotation)),
            help=_help(option, default, required=held.is_required() and field not in defaults),
        ),
    ]


def _help(option: Option, default: Any, *, required: bool) -> str:
    if required or default is None or "[default" in option.help:
        return option.help
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{option.help} [default: {shown}]"
