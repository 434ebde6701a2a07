"""Maps that were given: in whatever shape and from wherever they come, one for each image."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faithscope.data import Batch, IndexedImages, as_tensor
from faithscope.data.maps import by_sample, map_files, photo_box, read_maps, without_ending
from faithscope.data.tensors import kind_of
from faithscope.errors import FaithscopeError, check_encodable
from faithscope.models import Model
from faithscope.models.device import as_float64
from faithscope.perturb import resample, to_grids
from faithscope.request import as_path

NAMED = 3
"""How many images without a map are named."""


@dataclass(frozen=True, eq=False)
class GivenMaps:
    """The maps of one name, by the position of their image: one tensor, or one or a file each."""

    name: str
    values: Tensor | Sequence[Tensor | Path | None]

    @property
    def what(self) -> str:
        """What begins a sentence about them."""
        return f"The maps '{self.name}'"

    def take(self, batch: Batch, model: Model) -> Tensor:
        """The maps of a batch, [S, h, w]: in the grid they have, those of photos cut as these are.

        A map of a photo is never enlarged: how coarse maps become pixels is the protocol's choice.
        """
        if isinstance(self.values, Tensor):
            photos = {*batch.photos}
            photo = photos.pop() if len(photos) == 1 else None
            return self._fitted(_taken(self.values, batch.positions), batch, model, photo)
        if model.modality == "text":
            each = zip(batch.positions, batch.samples, strict=True)
            rows = [self._one(position, sample).reshape(-1) for position, sample in each]
            if {len(row) for row in rows} == {batch.images.shape[-1]}:
                return torch.stack(rows)[:, None]
        found = []
        for one in batch.split(1):
            photo = one.photos[0] if one.photos else None
            values = self._one(one.positions[0], one.samples[0])
            found.append(self._fitted(values, one, model, photo))
        shapes = {tuple(held.shape): place for place, held in reversed([*enumerate(found)])}
        if len(shapes) > 1:
            some = (
                f"{shape[1]}×{shape[2]} for '{batch.samples[place]}'"
                for shape, place in list(shapes.items())[:2]
            )
            raise FaithscopeError(
                f"{self.what} are of several resolutions, {' and '.join(some)}: give each "
                "resolution a name of its own."
            )
        return torch.cat(found)

    def _one(self, position: int, sample: str) -> Tensor:
        """The map of one image, with the axis of a batch."""
        held = self.values[position]
        if held is None:
            raise FaithscopeError(f"{self.what} have none for '{sample}': give it one.")
        made = read_maps(held) if isinstance(held, Path) else held
        return _real(made) if made.ndim == 4 and len(made) == 1 else _real(made)[None]

    def _fitted(
        self, values: Tensor, batch: Batch, model: Model, photo: tuple[int, int] | None
    ) -> Tensor:
        size = (batch.images.shape[-2], batch.images.shape[-1])
        grid = model.grid(*size)
        if model.modality == "text":
            return self._of_texts(values, batch, size[1])
        whole, whose = (
            (self.values.shape, self.what)
            if isinstance(self.values, Tensor)
            else ((), f"{self.what} of '{batch.samples[0]}'")
        )
        maps = to_grids(
            values,
            len(values),
            size,
            grid,
            whose,
            photo=photo,
            whole=whole,
            tokens=model.token_counts(*size),
        )
        shape = tuple(maps.shape[1:])
        if photo is None or shape != photo or shape in (size, grid):
            return maps
        top, left, bottom, right = photo_box(model, photo)
        own = (max(1, round(bottom - top)), max(1, round(right - left)))
        is_coarse = own[0] < size[0] and own[1] < size[1]
        return resample(maps, (top, left, bottom, right), own if is_coarse else size)

    def _of_texts(self, values: Tensor, batch: Batch, units: int) -> Tensor:
        """One number for each unit of texts that have equally many: [S, 1, n].

        What is given for all texts as one tensor is padded on the right with 0 or NaN.
        """
        found = values.reshape(len(values), -1)
        rest = found[:, units:]
        padded = isinstance(self.values, Tensor) and found.shape[1] > units
        if found.shape[1] != units and not (padded and not rest.nan_to_num(0).any()):
            raise FaithscopeError(
                f"{self.what} have {found.shape[1]} numbers for '{batch.samples[0]}': expected "
                f"{units}, one for each of its units ({' '.join(batch.words[0])})."
            )
        return found[:, None, :units]

    def digest(self) -> str:
        """A hash of all of them: gigabytes of many images, so without copies."""
        digest = hashlib.blake2b(digest_size=16)
        for held in [self.values] if isinstance(self.values, Tensor) else self.values:
            if isinstance(held, Path):
                digest.update(held.name.encode("utf-8", "replace"))
                digest.update(_content(held))
            elif held is None:
                digest.update(b"none")
            else:
                if held is not self.values:  # else one tensor alone: its bytes say all
                    digest.update(str(list(held.shape)).encode())
                content = held.detach().cpu().contiguous().view(torch.uint8).numpy()
                digest.update(content.data)
        return digest.hexdigest()


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise FaithscopeError(
            f"The map '{file}' cannot be read ({error.strerror}): check the path."
        ) from None


def open_maps(maps: Mapping[str, Any]) -> dict[str, Any]:
    """What was given by name, with files read; a folder waits until the images are known."""
    opened = {}
    for name, values in maps.items():
        name = str(name)
        check_encodable("The name of maps", name)
        if not name:
            raise FaithscopeError("The maps '' have no name: give one, maps={'mine': …}.")
        if isinstance(values, str | Path):
            path = as_path(values, "maps")
            values = path if path.is_dir() else read_maps(path)
        opened[name] = values
    return opened


def fit_maps(opened: Mapping[str, Any], data: IndexedImages) -> dict[str, GivenMaps]:
    """The maps of every image of the data; one that can be used and has none is an error."""
    given = {}
    for name, values in opened.items():
        held = GivenMaps(name, _values(name, values, data))
        if not isinstance(held.values, Tensor):
            _check_missing(held, data, values if isinstance(values, Path) else None)
        given[name] = held
    return given


def _values(name: str, values: Any, data: IndexedImages) -> Tensor | list[Tensor | Path | None]:
    what, count, noun = f"The maps '{name}'", len(data), data.noun.removesuffix("s")
    sizes = f"[{count}, height, width]"
    if noun == "text":
        sizes = "a list of arrays with one number for each unit"
    if isinstance(values, Path):
        return [*map_files(values, data.sample_names, what)]
    if isinstance(values, Mapping):
        named = {str(key): [held] for key, held in values.items()}
        found = by_sample(named, data.sample_names, what)
        return [None if held is None else _each(what, held) for held in found]
    try:
        if noun == "text" and isinstance(values, list | tuple):  # never padded
            raise _no_array(what, values)
        whole = _real(as_tensor(values))
    except FaithscopeError:
        if not isinstance(values, list | tuple):
            raise _no_array(what, values) from None
        if len(values) != count:
            raise FaithscopeError(
                f"{what} are {len(values)}: expected {count} maps, one for each {noun}, None for "
                "one that cannot be read."
            ) from None
        return [None if held is None else _each(what, held) for held in values]
    if count == 1 and whole.ndim == 2 and len(whole) != 1:
        whole = whole[None]
    if not 2 <= whole.ndim <= 4 or len(whole) != count:
        of_shap = "; of values of shap fs.from_shap makes maps" if whole.ndim == 5 else ""
        raise FaithscopeError(
            f"{what} have shape {list(whole.shape)}: expected {count} map{'s' * (count != 1)}, "
            f"{sizes}{of_shap}."
        )
    longest = getattr(data, "most_units", 0)
    if noun == "text" and whole.shape[-1] != longest:
        raise FaithscopeError(
            f"{what} have {whole.shape[-1]} numbers for each text: expected {longest}, one for "
            "each unit of the longest, with 0 or NaN behind shorter ones; special tokens have none."
        )
    return whole


def _each(what: str, held: Any) -> Tensor | Path:
    """One map of several: an array, or the path of a file."""
    if isinstance(held, str | Path):
        return as_path(held, "maps")
    try:
        return as_tensor(held).detach()
    except FaithscopeError:
        raise _no_array(what, held) from None


def _no_array(what: str, values: Any) -> FaithscopeError:
    return FaithscopeError(
        f"{what} must be a tensor or array of real numbers, one for each image, or a folder, got "
        f"{kind_of(values)}."
    )


def _real(maps: Tensor) -> Tensor:
    maps = maps.detach()
    return maps if maps.is_floating_point() else as_float64(maps)


def _check_missing(maps: GivenMaps, data: IndexedImages, folder: Path | None) -> None:
    """Name the first images that have no map; those that cannot be read need none."""
    missing: list[str] = []
    for position, held in enumerate(maps.values):
        if held is None:
            read = data.read_batches([position])
            missing += [sample for batch in read for sample in batch.samples]
            if len(missing) >= NAMED:
                break
    if missing:
        some = ", ".join(f"'{sample}'" for sample in missing)
        raise FaithscopeError(
            f"{maps.what} have none for {some}{' …' * (len(missing) >= NAMED)}: give every image "
            f"that can be read a map, called as it is{_looked_for(folder, missing[0])}."
        )


def _looked_for(folder: Path | None, sample: str) -> str:
    """Which files would have been taken."""
    names = dict.fromkeys((without_ending(sample), sample))
    files = " or ".join(f"'{folder / name}.npy'" for name in names) if folder else ""
    return files and f", such as {files}"


def _taken(maps: Tensor, positions: Sequence[int]) -> Tensor:
    """Pick maps by position, without a copy where the positions follow each other."""
    first, last = positions[0], positions[-1]
    consecutive = last - first + 1 == len(positions) and list(positions) == sorted(positions)
    return maps[first : last + 1] if consecutive else maps[list(positions)]


def digests(maps: Iterable[GivenMaps]) -> dict[str, str]:
    """Hashes of given maps, by what a plan calls them."""
    held = list(maps)
    with ThreadPoolExecutor() as pool:
        return {
            f"maps {one.name}": found
            for one, found in zip(held, pool.map(GivenMaps.digest, held), strict=True)
        }
