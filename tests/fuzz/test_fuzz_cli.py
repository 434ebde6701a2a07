"""Every command with odd arguments: an answer or one line, and nothing that a terminal obeys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import odd_command
from fuzzing import cases
from questions import evaluated, retrained

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")
PATHS = (
    "",
    ".",
    "~nosuchuser",
    "~nosuchuser/x",
    "x" * 300,
    "a/" * 3000,
    "\udcff\udcfe",
    "\x1b[31m",
)
PLACES = (
    *PATHS,
    "none",
    "none/x",
    "/dev/null",
    "/dev/null/x",
    "/dev/full",
    "FILE",
    "RUN",
    "ROAR",
    "PACK",
)
WORDS = (
    "",
    "0",
    "-1",
    "1",
    "x",
    "9" * 30,
    "1e400",
    "nan",
    "inf",
    "٣",
    "１",
    "\x1b]0;x\x07",
    "a,b",
    "(",
    "x(",
)
WORDS += (
    "all",
    "saco",
    "saco(k=5)",
    "saco<0",
    "saco>nan",
    "worse",
    "model",
    "fill",
    "\u202e",
    "\udcff",
)
COMMANDS: dict[str, tuple[tuple[str, ...], int, tuple[str, ...], tuple[str, ...]]] = {
    # options that take a path, how many paths without an option, options that take a word, flags
    "evaluate": (
        ("--from", "--out", "--report", "--checkpoint"),
        0,
        (
            *tuple("--model --data --methods --metrics --k --limit --random-draws --seed".split()),
            "--maps",
            "--tolerance",
            "--batch-size",
            "--device",
            "--fill",
        ),
        ("--json",),
    ),
    "run": (("--out",), 1, ("--set", "--limit", "--device"), ("--dry-run", "--json")),
    "explain": (("--out",), 1, ("--target", "--k", "--methods"), ("--story", "--json")),
    "roar": (
        ("--out", "--pack", "--unpack"),
        0,
        ("--data", "--model", "--measures", "--seeds", "--levels", "--epochs", "--learning-rate"),
        ("--dry-run", "--recursive", "--states", "--json"),
    ),
    "report": (("--out", "--figures", "--tables"), 1, (), ()),
    "compare": (("--csv",), 2, ("--methods", "--metrics", "--allow", "--fail-if"), ("--json",)),
    "pack": (("--out",), 1, (), ("--states", "--json")),
    "unpack": (("--out",), 1, (), ("--json",)),
    "list": ((), 1, (), ("--json",)),
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Things that some arguments name."""
    root = tmp_path_factory.mktemp("there")
    evaluated(root / "run")
    retrained(root / "roar", seeds=1)
    (root / "file").write_text("text")
    odd_command("pack", root / "roar", "--out", root / "roar.tar.gz")
    return {
        "RUN": str(root / "run"),
        "ROAR": str(root / "roar"),
        "FILE": str(root / "file"),
        "PACK": str(root / "roar.tar.gz"),
    }


@pytest.mark.parametrize("command", COMMANDS)
@cases(4)
@given(data=st.data())
def test_odd_arguments(
    there: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    command: str,
    data: st.DataObject,
) -> None:
    paths, count, words, flags = COMMANDS[command]
    places = st.sampled_from(PLACES).map(lambda name: there.get(name, name))
    arguments = [data.draw(places) for _ in range(count)]
    for option in (
        data.draw(st.lists(st.sampled_from([*paths, *words]), max_size=3)) if paths else ()
    ):
        value = data.draw(places if option in paths else st.sampled_from(WORDS))
        arguments += [option, value]
    arguments += data.draw(st.lists(st.sampled_from(flags), max_size=2)) if flags else []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        odd_command(command, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("\x1b[31m",),
        ("--nonsense",),
        ("report",),
        ("list", "\udcff"),
        ("demo", "--images", "x"),
        ("demo", "--images", "0", "--out", "x"),
        ("demo", "--seed", "-1", "--out", "x"),
        ("compare", "RUN", "RUN", "--csv", ""),
        ("compare", "RUN", "RUN", "--csv", "/dev/full/x"),
        ("compare", "RUN", "RUN", "--csv", "FILE/x"),
        ("evaluate", "--from", "RUN", "--report", ""),
        ("evaluate", "--from", "RUN", "--report", "FILE/x.html"),
        ("evaluate", "--from", "RUN", "--out", "~nosuchuser/x"),
        ("report", "RUN", "--figures", "FILE"),
        ("report", "RUN", "--out", "/dev/full"),
    ],
)
def test_one_by_one(
    there: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    odd_command(*(there.get(name, name) for name in arguments))
    assert not [file for file in tmp_path.iterdir() if file.name.startswith("~")]


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


ARRAYS = {
    "objects": lambda file: np.save(file, np.array([{}], dtype=object), allow_pickle=True),
    "records": lambda file: np.save(file, np.zeros(3, dtype=[("a", "f4"), ("b", "i8")])),
    "a number": lambda file: np.save(file, np.float64(3)),
    "words": lambda file: np.save(file, np.array(["a"])),
    "complex": lambda file: np.save(file, np.zeros((2, 4, 4), complex)),
    "empty": lambda file: np.save(file, np.zeros((0, 4, 4))),
    "huge": lambda file: file.write_bytes(
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 9999999999), }\n")
    ),
    "negative": lambda file: file.write_bytes(
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 4, 4), }\n")
    ),
    "deep": lambda file: file.write_bytes(npy("(" * 60_000)),
    "no file": lambda file: None,
    "nothing": lambda file: file.write_bytes(b""),
    "a zip": lambda file: file.write_bytes(b"PK\x03\x04" + b"\x00" * 50),
    "a pickle": lambda file: file.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR."),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_odd_files_of_maps(tmp_path: Path, what: str) -> None:
    file = tmp_path / "maps.npy"
    ARRAYS[what](file)
    names = ("--model", "bundled:cifar10_vit", "--data", "bundled:cifar10", "--limit", "2")
    options = ("--metrics", "saco", "--random-draws", "0", "--k", "2", "--maps", f"mine={file}")
    result = odd_command("evaluate", *names, *options)
    assert result.exit_code == 2
