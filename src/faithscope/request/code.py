"""What a person names: Python code, `FILE.py:name`, and models with a label, `LABEL=NAME`.

Code is imported only from here, and only for names that somebody typed: in Python, on the command
line, or in a study that was run with --allow-code.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from faithscope.errors import FaithscopeError, said, unknown
from faithscope.registry import format_spec, parse_spec
from faithscope.request.paths import as_path

_CODE = re.compile(r"(?P<file>[^:]+\.py):(?P<name>[A-Za-z_]\w*\s*(\(.*\))?)", re.DOTALL)
_LABELLED = re.compile(r"(?P<label>\w[\w .-]{0,59})=(?P<name>.+)", re.DOTALL)
_IMPORTED: dict[str, ModuleType] = {}
"""Files that were imported, by their path and content."""


@dataclass(frozen=True)
class Code:
    """Something in a Python file, by name, and the options in brackets behind it."""

    file: Path
    name: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return format_spec(self.place, self.options)

    @property
    def place(self) -> str:
        """What it is called in tables: the file without its folder, and the name."""
        return f"{self.file.name}:{self.name}"

    @property
    def digest(self) -> str:
        """A hash of the file, though not of what it imports."""
        try:
            return hashlib.blake2b(self.file.read_bytes(), digest_size=16).hexdigest()
        except OSError as error:
            raise FaithscopeError(
                f"There is no Python file '{self.file}' to read ({error.strerror}): check the path."
            ) from None

    def load(self) -> Any:
        """Run the file, once, and take the object out of it."""
        module = _imported(self.file, self.digest)
        if not hasattr(module, self.name):
            public = [
                name
                for name, held in vars(module).items()
                if not name.startswith("_") and not inspect.ismodule(held)
            ]
            raise unknown(f"name in '{self.file}'", self.name, public)
        return getattr(module, self.name)

    def failed(self, what: str, error: BaseException) -> FaithscopeError:
        """The sentence for an error in the file."""
        return _failed(self.file, what, error)


def as_code(text: Any) -> Code | None:
    """Code by its name; None of any other text.

    >>> as_code("mine/net.py:build(depth=2)").options, as_code("timm:vit_tiny_patch16_224")
    ({'depth': 2}, None)
    """
    found = _CODE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    name, options = parse_spec(found["name"])
    return Code(as_path(found["file"], "The Python file"), name, options)


def split_label(text: str) -> tuple[str, str]:
    """The label of a model, if it has one, and its name.

    >>> split_label("small=timm:vit_tiny_patch16_224(depth=2)")
    ('small', 'timm:vit_tiny_patch16_224(depth=2)')
    >>> split_label("timm:vit_tiny_patch16_224(depth=2)")
    ('', 'timm:vit_tiny_patch16_224(depth=2)')
    """
    found = _LABELLED.fullmatch(text)
    return (found["label"].strip(), found["name"].strip()) if found else ("", text)


def short_name(text: str, most: int = 48) -> str:
    """A text as the name of a file: of a long one its beginning, a hash of it, and its end.

    >>> short_name("timm:vit_tiny_patch16_224"), len(short_name("x" * 99))
    ('timm-vit_tiny_patch16_224', 48)
    """
    plain = re.sub(r"[^\w.=-]+", "-", text).strip("-.")
    if len(plain) <= most:
        return plain
    mark = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=3).hexdigest()
    tail = (most - len(mark) - 2) // 3
    head = most - len(mark) - 2 - tail
    return f"{plain[:head]}-{mark}-{plain[-tail:]}"


def named_code(names: Iterable[str]) -> list[str]:
    """Those of some names, with a label or without, that are code."""
    return [name for name in names if as_code(split_label(name)[1]) is not None]


def refuse_code(names: Iterable[str]) -> None:
    """Refuse code among names that nobody may have typed."""
    for name in named_code(names):
        raise FaithscopeError(
            f"'{name}' is Python code, which runs only where you name it yourself: type it in "
            "Python or on the command line, or run the study that names it with --allow-code."
        )


def imported_files() -> list[ModuleType]:
    """The files that were imported, as modules that no other process can find by name."""
    return list(_IMPORTED.values())


def _imported(file: Path, digest: str) -> ModuleType:
    key = f"{file.absolute()}|{digest}"
    if key not in _IMPORTED:
        _IMPORTED[key] = _import(file, f"{file.stem}_{hashlib.md5(key.encode()).hexdigest()[:8]}")
    return _IMPORTED[key]


def _import(file: Path, name: str) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py
    module = module_from_spec(spec)
    if (folder := str(file.absolute().parent)) not in sys.path:
        sys.path.append(folder)  # at the end: what lies beside the file must hide no package
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed(file, f"'{file}' cannot be imported", error) from error
    return module


def _failed(file: Path, what: str, error: BaseException) -> FaithscopeError:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == file.absolute()]
    if isinstance(error, SyntaxError) and error.filename == str(file.absolute()):
        lines = [error.lineno]
    reason = said(error) if isinstance(error, Exception) else type(error).__name__
    where = f" in line {lines[-1]}" if lines else ""
    return FaithscopeError(f"{what} ({reason}{where}): fix it, and run the same again.")
