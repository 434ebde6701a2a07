"""Maps from files: read, found by the names of images, and cut as a model cuts its photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from faithscope.data.decoding import preprocess
from faithscope.data.files import EXTENSIONS
from faithscope.data.tensors import as_tensor, why_unread
from faithscope.errors import FaithscopeError
from faithscope.models import Model

ARRAYS, TORCH, PICTURES = (".npy", ".npz"), (".pt", ".pth"), (".png", ".tif", ".tiff")
MAP_FILES = (*ARRAYS, *TORCH, *PICTURES)
"""How the file of a map may end."""

Box = tuple[float, float, float, float]
"""Top, left, bottom and right of a part of a photo, in its pixels."""
T = TypeVar("T")


# Files


def read_maps(file: Path) -> Tensor:
    """The numbers of a file, without running any code in it."""
    if not file.is_file():
        raise FaithscopeError(f"There is no file or folder of maps '{file}': check the path.")
    kind = file.suffix.lower()
    if kind not in MAP_FILES:
        raise FaithscopeError(
            f"'{file}' is no file of maps: those end with {', '.join(MAP_FILES)}."
        )
    try:
        if kind in TORCH:
            held = torch.load(file, map_location="cpu", weights_only=True)
        else:
            held = _array(file) if kind in ARRAYS else _grey(file)
        return as_tensor(_only(held))
    except FaithscopeError as error:
        reason = error.reason
    except Exception as error:  # a header can say anything, and its reader fail in any way
        reason = why_unread(error)
    raise FaithscopeError(
        f"The maps in '{file}' cannot be read ({reason}): write one array of numbers with "
        "numpy.save or torch.save, or a grey picture."
    )


def _array(file: Path) -> Any:
    held = np.load(file, allow_pickle=False)
    if isinstance(held, np.ndarray):
        return held
    with held:
        return dict(held)


def _only(held: Any) -> Any:
    """One array, or that of a file that names its arrays."""
    if not isinstance(held, Mapping):
        return held
    if len(held) != 1:
        raise ValueError(f"it holds {len(held)} arrays, {', '.join(map(str, held))}"[:200])
    return next(iter(held.values()))


def _grey(file: Path) -> np.ndarray:
    with Image.open(file) as opened:
        values = np.asarray(opened)
        if opened.mode in ("1", "L", "F") or opened.mode.startswith("I"):
            return values
    if opened.mode == "RGB" and (values == values[..., :1]).all():
        return values[..., 0]
    raise ValueError(f"a picture of mode {opened.mode} shows colours, not values")


def map_files(folder: Path, samples: Sequence[str], what: str) -> list[Path | None]:
    """The file of each image, called as it is, with its own ending or that in its place."""
    try:
        files = sorted(
            file
            for file in folder.rglob("*")
            if file.suffix.lower() in MAP_FILES and file.is_file()
        )
    except OSError as error:
        raise FaithscopeError(
            f"The folder '{folder}' cannot be searched ({error.strerror}): give another."
        ) from None
    if not files:
        raise FaithscopeError(
            f"The folder '{folder}' holds no maps: looked for {', '.join(MAP_FILES)}."
        )
    by_name: dict[str, list[Path]] = {}
    for file in files:
        by_name.setdefault(file.relative_to(folder).with_suffix("").as_posix(), []).append(file)
    return by_sample(by_name, samples, what)


def by_sample(
    named: Mapping[str, Sequence[T]], samples: Sequence[str], what: str
) -> list[T | None]:
    """What goes by the name of each image, or by that without its ending; None where nothing does.

    >>> by_sample({"a": [1], "b.png": [2]}, ["a.jpg", "b.png", "c.png"], "The numbers")
    [1, 2, None]
    """
    found: list[T | None] = []
    taken: dict[str, str] = {}
    others = {sample if sample in named else without_ending(sample) for sample in samples}
    for sample in samples:
        name, short = sample if sample in named else without_ending(sample), without_ending(sample)
        if name != short and short in named and short not in others:
            raise FaithscopeError(
                f"{what} have 2 for '{sample}', one called as it is and one called '{short}': keep "
                "one."
            )
        held = named.get(name, ())
        if len(held) > 1:
            raise FaithscopeError(
                f"{what} have {len(held)} for '{sample}' ({', '.join(map(str, held))}): keep one."
            )
        if held and taken.setdefault(name, sample) != sample:
            raise FaithscopeError(
                f"{what} have one '{name}' for two images, '{taken[name]}' and '{sample}': call "
                f"theirs '{taken[name]}…' and '{sample}…', with the image's own ending."
            )
        found.append(held[0] if held else None)
    return found


def without_ending(sample: str) -> str:
    """The name of an image without the ending of its file."""
    kind = Path(sample).suffix
    return sample.removesuffix(kind) if kind.lower() in EXTENSIONS else sample


# Photos

_BOXES: WeakKeyDictionary[Model, dict[tuple[int, int], Box]] = WeakKeyDictionary()
"""The part of a photo that a model sees, by the photo's size."""


def photo_box(model: Model, size: tuple[int, int]) -> Box:
    """The part of a photo of this size that the model's preprocessing shows it.

    The preprocessing is asked, whatever it is made of: it is given pictures that are black, white,
    and that rise from one side to the other. Where a rising one comes out as a straight line, that
    line says which part of the photo the input is; whatever else it does is refused.
    """
    known = _BOXES.setdefault(model, {})
    if size not in known:
        known[size] = _find_box(model, size)
    return known[size]


def _find_box(model: Model, size: tuple[int, int]) -> Box:
    height, width = size
    black, white = (_seen(model, np.full(size, level)) for level in (0, 255))
    spread = white - black
    if float(spread.min()) < 0.9 * float(spread.max()):
        raise _unknown(model, "it fills a part of the input itself")
    ends = list[tuple[float, float]]()
    for along, across in ((height, width), (width, height)):
        ramp = 255 * (np.arange(along) + 0.5) / along
        dither = (4 * np.arange(across) / across) % 1  # in the mean finer than 256 levels
        picture = np.floor(ramp[:, None] + dither)
        is_down = not ends
        level = (_seen(model, picture if is_down else picture.T) - black) / spread
        ends.append(_ends(model, level if is_down else level.T, along))
    (top, bottom), (left, right) = ends
    return top, left, bottom, right


def _seen(model: Model, levels: np.ndarray) -> np.ndarray:
    """What a grey picture becomes: the mean over channels, in float64."""
    grey = Image.fromarray(levels.astype(np.uint8)).convert("RGB")
    return preprocess(model, grey).cpu().double().mean(0).numpy()


def _ends(model: Model, level: np.ndarray, length: int) -> tuple[float, float]:
    """Where along an axis of `length` photo pixels the input begins and ends.

    Level [n, ·] of input pixel i is the share of the axis before its centre, a + b·i.
    """
    count = len(level)
    along = level.mean(1)
    inner = np.arange(count)[count // 4 : count - count // 4]  # beyond, a kernel may be cut off
    if len(inner) < 2:
        raise _unknown(model, "its input is too small to tell")
    slope, start = np.polyfit(inner, along[inner], 1)
    edge = 0.5 / length
    line = (start + slope * np.arange(count)).clip(edge, 1 - edge)
    off = np.abs(level - line[:, None]).max()
    if slope <= 0 or off > 2 / 255 + 1 / length:
        raise _unknown(model, "it does more than cut and scale them")
    first, last = (length * (start + slope * (at - 0.5)) for at in (0, count))
    near = 0.1 + length / 1000  # by how much rounding to 256 levels may be off
    first = 0.0 if abs(first) < near else float(first)
    last = float(length) if abs(last - length) < near else float(last)
    if first < 0 or last > length:
        raise _unknown(model, "it shows more than they hold")
    return first, last


def _unknown(model: Model, why: str) -> FaithscopeError:
    return FaithscopeError(
        f"What {model.name} sees of a photo cannot be read off its preprocessing ({why}): give "
        "maps of the size of its input."
    )
