"""What is known of an option beside its type and default: what people read, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from faithscope.errors import FaithscopeError

if TYPE_CHECKING:
    from pydantic import BaseModel

Role = Literal["protocol", "plan", "running"]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """The declaration of one option; Python, command line, YAML, manifest and page follow it.

    Args:
        help: what `--help` says.
        says: completes "NAME must be …" for a value of the wrong kind.
        noun: what a value is called where a word is not one of the valid ones.
        metavar: the value as `--help` shows it.
        name: another name in Python and on the command line, where the papers have their own word.
        aliases: names by which it goes, too, in YAML.
        also: another spelling on the command line.
        axis: whether a list of values in a study makes one run each.
        role: "protocol" decides what a number means, "plan" its last bit at most, "running" none.
        choices: the kind of registry that holds its values.
        differs: whether two compared runs may differ in it: "alone" (in no other such option),
            "freely" or "never".
        by_hand: whether it may only be given in Python or typed on the command line, never by a
            file.
        is_path: whether a value is the path of a file or folder.
        modality: "image" or "text" if it has a meaning for those alone.
        meanings: what a value means, for the reader of a page; "" stands for any other value,
            {sample} for what a sample is called, {summary} for what a fill does.
    """

    help: str
    says: str = ""
    noun: str = ""
    metavar: str = ""
    name: str = ""
    aliases: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    axis: bool = False
    role: Role = "protocol"
    choices: str = ""
    differs: Literal["alone", "freely", "never"] = "alone"
    by_hand: bool = False
    is_path: bool = False
    modality: Literal["", "image", "text"] = ""
    meanings: Mapping[str, str] = field(default_factory=dict)

    def meaning(self, value: object) -> str:
        """What a value means to a reader."""
        return self.meanings.get(str(value), self.meanings.get("", ""))


def options(request: type[BaseModel]) -> dict[str, Option]:
    """The options of a request by the names of their fields, in the order they are declared."""
    return {
        name: held
        for name, field in request.model_fields.items()
        for held in field.metadata
        if isinstance(held, Option)
    }


def python_names(request: type[BaseModel]) -> dict[str, str]:
    """The names of the fields by what the options are called in Python and on the command line."""
    return {option.name or name: name for name, option in options(request).items()}


def renamed(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function take arguments by their former names, too."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            for old, new in names.items():
                if old in options:
                    if new in options:
                        raise FaithscopeError(
                            f"'{old}' and '{new}' mean the same: use one of them."
                        )
                    options[new] = options.pop(old)
            return function(*args, **options)

        return call

    return decorate
