"""Odd values of every kind a person may give: strategies that several fuzz tests share.

`values()` is anything at all; `paths()`, `names()`, `arrays()` and `numbers()` are odd ones of
their kind. Objects are made anew for every case, since some can be read only once.
"""

from __future__ import annotations

import decimal
import fractions
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import nn

import faithscope as fs


class Raising:
    """Whatever is asked of it, it raises."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("odd")

    __repr__ = __str__ = __len__ = __iter__ = __getitem__ = __array__ = _raise  # type: ignore
    __fspath__ = __float__ = __int__ = __index__ = __bool__ = __eq__ = _raise  # type: ignore
    __hash__ = object.__hash__


class RaisingRepr:
    """It cannot be shown."""

    def __repr__(self) -> str:
        raise ValueError("odd")


class Attributes:
    """It has every attribute, and each is odd."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Raising()


class Path(str):
    """Text of another type."""


def _itself() -> list[Any]:
    held: list[Any] = []
    held.append(held)
    return held


def _deep() -> list[Any]:
    held: list[Any] = []
    for _ in range(3000):
        held = [held]
    return held


NUMBERS = [
    0,
    1,
    -1,
    2,
    3.7,
    -0.0,
    2**31,
    2**63,
    2**64,
    -(2**70),
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
    True,
    False,
    1j,
    fractions.Fraction(1, 3),
    decimal.Decimal("1.5"),
]
TEXTS = [
    "",
    " ",
    "x",
    "all",
    "registered",
    "auto",
    "-1",
    "1e5",
    "nan",
    "a" * 300,
    "a" * 100_000,
    "a/" * 3000,
    "a\0b",
    "\ud800",
    "\udcff",
    "\x1b[31mred\n",
    "\u202e",
    "(",
    ")",
    "a(b",
    "a(b=c",
    "saco(k=x)",
    "saco(k=5",
    "saco" + "(" * 200,
    "x" + "(a=" * 500 + ")" * 500,
    "../../etc",
    "~",
    "~nosuchuser/x",
    "/dev/null/x",
    "/proc/self/mem",
    "captum:",
    "captum:X(a=1)",
    "bundled:",
    ":x",
    "array:",
    "array:/dev/null",
    "file:x",
    "cifar10:/dev/null",
    "imagenet:a\0b",
    "babi:(task=9)",
    "{}",
    "<script>",
    "é" * 200,
    "%s%n{0}",
]
OBJECTS: list[Callable[[], Any]] = [
    lambda: None,
    lambda: ...,
    lambda: NotImplemented,
    object,
    lambda: object,
    lambda: int,
    lambda: len,
    lambda: id,
    lambda: lambda *args, **options: None,
    lambda: lambda: 1 / 0,
    lambda: [],
    lambda: (),
    lambda: {},
    set,
    lambda: [None],
    lambda: [[], {}],
    lambda: {"a": 1},
    lambda: {1: 2},
    lambda: {"": None},
    lambda: {"\ud800": 3},
    lambda: {("a",): []},
    lambda: {"saco"},
    lambda: ["saco", 3],
    lambda: [b"saco"],
    lambda: b"saco",
    lambda: bytearray(b"ab"),
    lambda: memoryview(b"ab"),
    lambda: b"",
    lambda: range(3),
    lambda: range(10**12),
    lambda: iter([1, 2]),
    lambda: (i for i in range(3)),
    lambda: (1 // 0 for _ in range(3)),
    itertools.count,
    lambda: itertools.repeat("saco"),
    lambda: itertools.cycle([torch.zeros(1, 3, 4, 4)]),
    _itself,
    _deep,
    Raising,
    RaisingRepr,
    Attributes,
    lambda: Raising,
    lambda: [Raising()],
    lambda: {"mine": Raising()},
    lambda: Path("saco"),
    lambda: pathlib.Path("no such file"),
    lambda: pathlib.Path("a\0b"),
    lambda: pathlib.PurePosixPath("x"),
    lambda: pathlib.Path("/dev/null"),
    lambda: np.str_("saco"),
    lambda: np.array("saco"),
    lambda: np.array(["saco", "aopc"]),
    lambda: np.array([["saco"]]),
    lambda: nn.Identity(),
    lambda: nn.Linear(2, 2),
    lambda: torch.device("cpu"),
    lambda: torch.float32,
    lambda: torch.Generator(),
    lambda: open,
    lambda: fs,
    lambda: fs.FaithscopeError("odd"),
    lambda: ValueError,
    lambda: fs.metric("saco"),
    lambda: fs.method("gradient"),
    lambda: fs.measure("gradient"),
    lambda: fs.Given(),
]


def _array(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    drawn = np.asarray(np.random.default_rng(seed).normal(size=shape) * 3)
    if kind == "datetime64[D]":
        return drawn.astype("int64").astype(kind)
    if kind == "structured":
        return np.zeros(shape, dtype=[("a", "i4"), ("b", "f8")])
    if kind == "object":
        return drawn.astype(object)
    if kind.startswith(("u", "b")):
        drawn = np.abs(drawn)
    return drawn.astype(kind)


KINDS = (
    "f8 >f8 f4 >f4 f2 g i1 u1 >i2 u2 i4 u4 i8 u8 ? F D S3 U3 O datetime64[D] structured".replace(
        " g ", " longdouble "
    )
    .replace(" ? ", " bool ")
    .replace(" F ", " c8 ")
    .replace(" D ", " c16 ")
    .replace(" O ", " object ")
    .split()
)
LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "plain": lambda held: held,
    "fortran": np.asfortranarray,
    "backwards": lambda held: np.ascontiguousarray(held[::-1])[::-1] if held.ndim else held,
    "strided": lambda held: np.repeat(held, 2, axis=-1)[..., ::2] if held.ndim else held,
    "read-only": lambda held: np.broadcast_to(held, held.shape),
    "masked": lambda held: np.ma.masked_array(held, mask=False),
    "list": lambda held: held.tolist(),
    "tensor": torch.as_tensor,
    "sparse": lambda held: torch.as_tensor(held).to_sparse(),
    "meta": lambda held: torch.as_tensor(held).to("meta"),
    "grad": lambda held: torch.as_tensor(held).requires_grad_(),
    "transposed": lambda held: torch.as_tensor(held).mT.contiguous().mT,
    "inference": lambda held: _inference(torch.as_tensor(held)),
    "half": lambda held: torch.as_tensor(held).half(),
    "bfloat16": lambda held: torch.as_tensor(held).bfloat16(),
    "float8": lambda held: torch.as_tensor(held).to(torch.float8_e4m3fn),
    "quantised": lambda held: torch.quantize_per_tensor(
        torch.as_tensor(held).float(), 0.1, 0, torch.qint8
    ),
    "nested": lambda held: torch.nested.nested_tensor([torch.as_tensor(held)]),
    "parameter": lambda held: nn.Parameter(torch.as_tensor(held)),
    "conjugated": lambda held: torch.as_tensor(held).to(torch.complex64).conj(),
}


def _inference(held: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return held.clone()


def laid_out(held: np.ndarray, layout: str) -> Any:
    """An array in another layout, or as it is where the two do not go together."""
    try:
        return LAYOUTS[layout](held)
    except (TypeError, RuntimeError, IndexError, ValueError):
        return held


@st.composite
def arrays(
    draw: st.DrawFn, shapes: list[tuple[int, ...]] | None = None, *, kinds: tuple[str, ...] = ()
) -> Any:
    """Arrays and tensors of every type and layout, of these shapes."""
    shape = draw(st.sampled_from(shapes or [(), (0,), (1,), (2,), (5,), (2, 3), (0, 4), (2, 1, 3)]))
    held = _array(draw(st.sampled_from(kinds or tuple(KINDS))), shape, draw(st.integers(0, 9)))
    if held.dtype.kind == "f" and held.size and draw(st.booleans()):
        odd = draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e300, -1e300, 1e-310]))
        with np.errstate(over="ignore"):
            held.flat[0] = odd
    return laid_out(held, draw(st.sampled_from(sorted(LAYOUTS))))


def numbers() -> SearchStrategy[Any]:
    """Numbers where others are meant."""
    return st.sampled_from(NUMBERS) | st.sampled_from(NUMBERS).map(_numpy)


def _numpy(value: Any) -> Any:
    try:
        return np.asarray(value)[()]
    except (TypeError, ValueError, OverflowError):
        return value


def names() -> SearchStrategy[str]:
    """Texts where names are meant."""
    return st.sampled_from(TEXTS) | st.text(max_size=20)


def paths() -> SearchStrategy[Any]:
    """What may be given for a path."""
    return names() | names().map(lambda name: pathlib.Path(name)) | st.binary(max_size=5)


def objects() -> SearchStrategy[Any]:
    """Objects of every kind, made anew."""
    return st.sampled_from(OBJECTS).map(lambda make: make())


def values() -> SearchStrategy[Any]:
    """Anything at all."""
    plain = objects() | numbers() | names() | arrays()
    return plain | st.lists(plain, max_size=3) | st.dictionaries(names(), plain, max_size=2)


ENDINGS = (".png", ".jpg", ".JPEG", ".webp", ".bmp", ".gif", ".tif", ".ppm")
"""Of files that are taken for images."""
