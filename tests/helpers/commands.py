"""Commands run in this process, and a file of texts for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from faithscope.cli import app
from faithscope.probes.retrain import bilstm
from fuzzing import answered

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
GOOD, BAD, PLAIN = (
    "great lovely fine".split(),
    "awful dull poor".split(),
    "a the film was it".split(),
)


def run(*arguments: object, code: int = 0) -> Any:
    """Run a command in this process; an error that is not ours is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    assert not CONTROL.search(result.stdout + result.stderr)
    return result


def fails(*arguments: object) -> str:
    """Run a command that must be refused: one sentence on stderr, nothing on stdout, exit 2."""
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def interrupted(*arguments: object, packs: int) -> Any:
    """Stop a command after so many packs."""
    real, begun = bilstm.BiLSTMLearner.begin, []

    def begin(*given: Any) -> Any:
        begun.append(1)
        if len(begun) > packs + 1:  # the first is the forecast's
            raise KeyboardInterrupt
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bilstm.BiLSTMLearner, "begin", begin)
        return run(*arguments, code=130)


def rows(count: int = 60) -> list[tuple[str, str]]:
    """Texts of twelve words; one of them tells the class."""
    draw = np.random.default_rng(0)
    made = []
    for number in range(count):
        words = [*draw.choice(PLAIN, 11), draw.choice(GOOD if number % 2 else BAD)]
        made.append((" ".join(draw.permutation(words)), "good" if number % 2 else "bad"))
    return made


def csv(file: Path, content: list[tuple[str, str]]) -> Path:
    file.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in content))
    return file


def odd_command(*arguments: object) -> Any:
    """Run a command that may be refused: an answer, or one line on stderr that says why not."""
    result = answered(
        CliRunner().invoke, app, [str(argument) for argument in arguments], standalone_mode=True
    )
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        raise AssertionError(f"{type(error).__name__} of {arguments}") from error
    allowed = (0, 1, 2) if arguments[0] in ("compare", "doctor") else (0, 2)
    assert result.exit_code in allowed, (result.exit_code, arguments)
    assert not CONTROL.search(result.stdout + result.stderr), (arguments, result.output)
    if result.exit_code == 2:
        *_, last = result.stderr.splitlines()
        assert last.lower().startswith("error: ") and len(last) < 1100, (arguments, result.stderr)
    return result
