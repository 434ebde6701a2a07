"""One small registry for everything that has a name: methods, metrics, fills, model sources.

A name may carry options in text, ``auc(step=5)``: the same in Python, YAML and on the command
line. Other packages add entries through entry points.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from itertools import islice
from keyword import iskeyword
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

from faithscope.errors import FaithscopeError, shown, unknown, warn

T = TypeVar("T")

RESERVED = frozenset({"all", "registered"})
"""What stands for several names, and so is none itself."""
_NAME = re.compile(r"\w[\w.-]{0,99}")
MOST_ITEMS = 20_000
"""More than any list that people give: one without an end is not read for ever."""


class Registry(Generic[T]):
    """Names to things, filled by `register` and by the entry points of other packages.

    >>> numbers = Registry[int]("number")
    >>> numbers.register("one", 1)
    1
    >>> numbers["one"]
    1
    """

    def __init__(
        self,
        kind: str,
        group: str | None = None,
        *,
        variants: Mapping[str, Registry[T]] | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self.variants = dict(variants or {})
        """The same of other modalities, where a name may have another implementation."""
        self._items: dict[str, T] = {}
        self._notes: dict[str, tuple[str, str]] = {}
        self._plugins_loaded = False
        self._broken: dict[str, str] = {}

    def register(self, name: str, item: T, *, summary: str = "", example: str = "") -> T:
        """Add `item` under `name`, which can be taken only once; say what it is, for lists."""
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in RESERVED:
            raise FaithscopeError(
                f"The name of a {self.kind} is one word of letters, digits, '_', '.' and '-', "
                f"and not {' or '.join(sorted(RESERVED))}, got {shown(name)}."
            )
        if name in self._items:
            raise FaithscopeError(
                f"The {self.kind} '{name}' is already registered: choose another name."
            )
        self._items[name] = item
        self._notes[name] = summary, example
        return item

    def note(self, name: str) -> tuple[str, str]:
        """What an entry is, and an example of it; of another package's nothing is known."""
        return self._notes.get(name, ("From a plugin.", ""))

    def of(self, modality: str) -> Registry[T]:
        """The same of a modality: this one, or one of its variants."""
        return self.variants.get(modality, self)

    def __getitem__(self, name: str) -> T:
        self._load_plugins()
        if not isinstance(name, str):
            raise FaithscopeError(f"The name of a {self.kind} is text, got {shown(name)}.")
        if name in self._broken:
            raise FaithscopeError(
                f"The {self.kind} '{name}' of another package cannot be loaded "
                f"({self._broken[name]}): fix or uninstall that package."
            )
        if name not in self._items:
            raise unknown(self.kind, name, self._items)
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._items))

    def __contains__(self, name: object) -> bool:
        self._load_plugins()
        return isinstance(name, str) and name in self._items

    def values(self) -> list[T]:
        """Everything registered, in the order it was registered."""
        self._load_plugins()
        return list(self._items.values())

    def _load_plugins(self) -> None:
        if self._plugins_loaded or self.group is None:
            return
        self._plugins_loaded = True
        for point in entry_points(group=self.group):
            if point.name in self._items:
                continue
            try:
                loaded = point.load()  # importing may register by itself, through a decorator
            except Exception as error:  # of somebody else's code: it must not take ours down
                reason = f"{type(error).__name__}: {error}"
                self._broken[point.name] = reason
                warn(f"The {self.kind} '{point.name}' of another package is left out ({reason}).")
                continue
            if point.name not in self._items:
                self._items[point.name] = loaded


_HOMES = {
    "fill": ("faithscope.perturb", "FILLS"),
    "method": ("faithscope.methods", "METHODS"),
    "metric": ("faithscope.metrics", "METRICS"),
    "model source": ("faithscope.models.sources", "SOURCES"),
    "data source": ("faithscope.data.sources", "SOURCES"),
    "text source": ("faithscope.data.text_sources", "TEXT_SOURCES"),
}
"""Where the registries are; a request, which looks into some, imports nothing heavy itself."""


def registry(kind: str) -> Registry[Any]:
    """The registry of a kind, with everything that fills it imported."""
    module, name = _HOMES[kind]
    found: Registry[Any] = getattr(import_module(module), name)
    return found


def registries() -> dict[str, Registry[Any]]:
    """Every registry, by what its entries are called, with everything that fills it imported."""
    found = [registry(kind) for kind in _HOMES]
    found += [variant for held in found for variant in held.variants.values()]
    return {held.kind: held for held in found}


_TRUTH = {"true": True, "false": False}
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_BARE = re.compile(
    r"(=\s*)([1-9]\d*x[1-9]\d*|[A-Za-z_]\w*\.\w+|\d+\.(?![eE]\d)[A-Za-z_]\w*|\w+(?:\.\w+){2,})"
    rf"(?=\s*[,)])|{_QUOTED}",
    re.ASCII,
)
"""Rows and columns, and a path to a module, need no quotes though Python would want them."""
_NUMBER = re.compile(rf"\b(\w+)(\s*=\s*)(\d+(?:\.\d+)?)(?=\s*[,)])|{_QUOTED}", re.ASCII)
"""An option and a number."""


def parse_spec(
    text: str, words: Callable[[str], Container[str]] = lambda name: ()
) -> tuple[str, dict[str, Any]]:
    """Split ``name(option=value, …)`` into the name and its options.

    Values are Python literals; a bare word is a string, and so are a size and a path to a module;
    but true and false are what they say. `words` gives the options of a name that are
    text, as which their numbers are taken too.

    >>> parse_spec("saco(weight=ratio, k=5)")
    ('saco', {'weight': 'ratio', 'k': 5})
    >>> parse_spec("attention(layers=last, gradient=true)")
    ('attention', {'layers': 'last', 'gradient': True})
    >>> parse_spec("random(grid=7x7)")
    ('random', {'grid': '7x7'})
    >>> parse_spec("grad_cam(layer=layers.3)")
    ('grad_cam', {'layer': 'layers.3'})
    >>> parse_spec("grad_cam(layer=0.10)", lambda name: {"layer"})
    ('grad_cam', {'layer': '0.10'})
    >>> parse_spec("captum:Saliency")
    ('captum:Saliency', {})
    """
    if not isinstance(text, str):
        raise FaithscopeError(f"A name is text, got {shown(text)}.")
    name, bracket, rest = text.strip().partition("(")
    if not bracket:
        return name, {}
    complaint = FaithscopeError(f"'{text}' is not of the form name(option=value, …).")
    rest = _BARE.sub(lambda held: f"{held[1]}'{held[2]}'" if held[2] else held[0], rest)
    texts = words(name.strip())
    rest = _NUMBER.sub(
        lambda held: f"{held[1]}{held[2]}'{held[3]}'" if held[1] in texts else held[0], rest
    )
    try:
        call = ast.parse(f"_({rest}", mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise complaint from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise complaint
    options = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in options:
            raise complaint
        try:
            options[keyword.arg] = (
                _TRUTH.get(keyword.value.id, keyword.value.id)
                if isinstance(keyword.value, ast.Name)
                else ast.literal_eval(keyword.value)
            )
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise complaint from None
    return name.strip(), options


def format_spec(name: str, options: Mapping[str, Any]) -> str:
    """Write a name and its options as the text `parse_spec` reads.

    >>> format_spec("saco", {"weight": "ratio"})
    'saco(weight=ratio)'
    """
    if not options:
        return name
    inside = ", ".join(f"{key}={_written(value)}" for key, value in options.items())
    return f"{name}({inside})"


def _written(value: Any) -> Any:
    """Quote a string unless it is a bare word that `parse_spec` reads as the same string."""
    if isinstance(value, bool):
        return str(value).lower()
    held = _BARE.match(f"={value})")
    bare = (
        not isinstance(value, str)
        or (held is not None and held[2] == value)
        or (
            value.isascii()
            and value.isidentifier()
            and not iskeyword(value)
            and value not in _TRUTH
        )
    )
    return value if bare else repr(value)


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON can hold them; functions, which it cannot, are left out.

    >>> plain_options({"k": 5, "function": len})
    {'k': 5}
    """
    return {
        name: value if isinstance(value, bool | int | float | str) or value is None else str(value)
        for name, value in options.items()
        if not callable(value)
    }


def split_specs(text: str) -> list[str]:
    """Split a comma-separated list of specs, leaving commas inside brackets alone.

    >>> split_specs("saco(k=5, weight=ratio),aopc")
    ['saco(k=5, weight=ratio)', 'aopc']
    """
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def as_list(kind: str, given: Any, one: type | tuple[type, ...]) -> list[Any]:
    """Take one thing (an instance of `one`, or a function) or several; give a list.

    >>> as_list("metric", "saco", str), as_list("metric", ("saco", "auc"), str)
    (['saco'], ['saco', 'auc'])
    """
    if isinstance(given, one) or callable(given):
        return [given]
    if isinstance(given, bytes | bytearray) or not isinstance(given, Iterable):
        a = "An" if kind[0] in "aeiou" else "A"
        raise FaithscopeError(f"{a} {kind} is a name, an object or a function, got {shown(given)}.")
    return listed(given, f"{kind}s")


def listed(given: Any, what: str) -> list[Any]:
    """The items of something that can be read one by one and has an end.

    >>> listed(range(3), "numbers")
    [0, 1, 2]
    """
    try:
        items = list(islice(iter(given), MOST_ITEMS + 1))
    except Exception:  # of somebody's own iterator, or an array of no axes
        raise FaithscopeError(f"The {what} cannot be read one by one: {shown(given)}.") from None
    if len(items) > MOST_ITEMS:
        raise FaithscopeError(f"More than {MOST_ITEMS:,} {what} were given: give a list.")
    return items


def check_whole(name: str, value: Any, least: int) -> int | None:
    """A whole number that is large enough, or None where nothing was said.

    >>> check_whole("limit", 3, 1)
    3
    """
    if value is None:
        return None
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise FaithscopeError(f"{name} must be at least {least}, got {shown(value)}.")
    return int(value)


_KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a word"),
}


def check_options(kind: str, name: str, given: Mapping[str, Any], valid: Mapping[str, Any]) -> None:
    """Refuse an option that `name` does not have, or a value of another kind than its default."""
    for option in given:
        if option not in valid:
            if not valid:
                raise FaithscopeError(f"The {kind} '{name}' takes no options, got '{option}'.")
            raise unknown(f"option of {kind} '{name}'", option, valid)
        kind_of_value = _KINDS.get(type(valid[option]))
        if kind_of_value is None:
            continue
        types, words = kind_of_value
        value = given[option]
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            raise FaithscopeError(
                f"The option '{option}' of {kind} '{name}' is {words}, got {shown(value)}."
            )
