"""Studies of any content: a study, or one sentence; no code, no hang, nothing endless."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import faithscope as fs
from commands import odd_command
from faithscope.request import KINDS, options
from faithscope.studies import Study
from fuzzing import answered, cases

KEYS = sorted(
    {"kind", "name", "<<", "nonsense", ""}
    | {
        spelled
        for kind in KINDS.values()
        for name, held in options(kind).items()
        for spelled in (name, held.name, *held.aliases)
        if spelled
    }
)
SCALARS = st.sampled_from(
    "5 -5 0 1e-3 1e400 .nan .inf 0x10 0o17 1_000 1:30:00 010 true yes null ~ 2020-01-01 2020-13-45 "
    "!!binary|aGk= !!python/name:os.system !!int|x !!float|x !!bool|x !!set|{a} !!timestamp|x "
    "auto mean gradient saco(k=5) roar relative *a &a|x <<:|*a ''".split()
).map(lambda text: text.replace("|", " ")) | st.text(max_size=8).map(
    lambda text: yaml.safe_dump(text).partition("\n")[0]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda held: f"[{', '.join(held)}]")
        | st.tuples(st.sampled_from(["name", "checkpoint", "x"]), inner).map(
            "{{{0[0]}: {0[1]}}}".format
        )
        | inner.map("&a {}".format)
        | st.just("*a")
    ),
    max_leaves=5,
)
LINES = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=5)
GROUND = st.sampled_from(
    [
        "",
        "model: m:x\ndata: d\n",
        "kind: roar\ndata: bundled:babi1\n",
        "---\n",
        "\ufeff",
        "? [a]\n: 1\n",
    ]
)
"""What comes first, so that some are nearly studies."""


def wholly(ground: str, lines: list[tuple[str, str]]) -> bytes:
    return (ground + "".join(f"{key}: {value}\n" for key, value in lines)).encode(
        "utf-8", "surrogatepass"
    )


def is_answered(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    found = answered(fs.load_study, file)
    assert isinstance(found, Study | fs.FaithscopeError)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study") / "study.yaml"


@cases(60)
@given(ground=GROUND, lines=LINES)
def test_odd_values_of_a_study(file: Path, ground: str, lines: list[tuple[str, str]]) -> None:
    is_answered(file, wholly(ground, lines))


@cases(20)
@given(
    content=st.binary(max_size=60)
    | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.text(alphabet="[]{}&*ab:-?!|>'\"#,% \n", max_size=60).map(str.encode)
)
def test_odd_bytes_as_a_study(file: Path, content: bytes) -> None:
    is_answered(file, content)


@cases(6)
@given(
    width=st.integers(1, 12),
    height=st.integers(1, 40),
    style=st.sampled_from(["[{}]", "{{x: {}}}", "{{<<: {}}}"]),
)
def test_aliases_of_aliases(file: Path, width: int, height: int, style: str) -> None:
    lines = [("k", "&a0 {x: 1}")]
    for level in range(1, height):
        inside = ", ".join([f"*a{level - 1}"] * width)
        inside = f"[{inside}]" if width > 1 and style != "[{}]" else inside
        lines.append((f"k{level}", f"&a{level} " + style.format(inside)))
    is_answered(file, wholly("model: m:x\ndata: d\n", lines))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b"{a: " * 50_000,
        b"- " * 100_000,
        b"? " * 100_000,
        b"a: b\n" * 50_000,
        b"".join(b"k%d: 1\n" % i for i in range(20_000)),
        b"k: &k [5, *k]\n",
        b"? &k [*k]\n: 1\n",
        b"k: 0x" + b"f" * 200_000,
        b"k: " + b"9" * 200_000,
        b"k: '" + b"x" * 200_000 + b"'",
        b"x" * (1 << 20),
        b"a: 1\n---\na: 2\n",
        b"model: m\x00x\n",
        b"\xff\xfem\x00",
        b"model: \x1b[31m\n",
        b"%YAML 9.9\n---\na: 1\n",
        b"model: m:x\ndata: d\nseed: 0x" + b"f" * 20_000,
        b"model: m:x\ndata: d\nbatch_size: 0x" + b"f" * 20_000,
        b"model: m:x\ndata: d\ntolerance: 1e999\n",
    ],
)
def test_a_study_made_to_last(file: Path, content: bytes) -> None:
    is_answered(file, content)


@cases(15)
@given(lines=st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=3))
def test_odd_changes_on_the_command_line(file: Path, lines: list[tuple[str, str]]) -> None:
    file.write_text("model: m:x\ndata: d\n")
    changes = [part for key, value in lines for part in ("--set", f"{key}={value}")]
    odd_command("run", file, "--dry-run", *changes)
