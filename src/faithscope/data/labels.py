"""Labels: the classes of a data set as the model numbers them, by name or by number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.data.decoding import Unusable
from faithscope.data.tensors import as_tensor
from faithscope.errors import FaithscopeError, shown, unknown
from faithscope.models import Model


def fit_labels(
    numbers: Sequence[int], names: Sequence[str] | None, model: Model
) -> tuple[int, ...] | None:
    """The data's class numbers as the model's; None where they do not fit or one is missing.

    By name where both name their classes; by number where the model names none but has as many
    classes, or where the data names none.
    """
    if any(number < 0 for number in numbers):
        return None
    own = class_names(model)
    if names is None or (own and [*map(plain_name, own)] == [*map(plain_name, names)]):
        return tuple(numbers)
    if own is None:
        return tuple(numbers) if class_count(model) == len(names) else None
    known = _places(own)
    labels = {number: known.get(plain_name(names[number])) for number in set(numbers)}
    fitting = {number: label for number, label in labels.items() if label is not None}
    return tuple(fitting[number] for number in numbers) if len(fitting) == len(labels) else None


def _places(names: Sequence[str]) -> dict[str, int]:
    """Class names to numbers, without the names that two classes share."""
    count = Counter(map(plain_name, names))
    return {plain_name(name): at for at, name in enumerate(names) if count[plain_name(name)] == 1}


def class_names(model: Model) -> tuple[str, ...] | None:
    """The model's class names; Hugging Face's LABEL_0, LABEL_1, … are none."""
    if model.classes is None or all(re.fullmatch(r"LABEL_\d+", name) for name in model.classes):
        return None
    return model.classes


def class_count(model: Model) -> int | None:
    """How many classes the model has, as it declares or as its last linear layer shows."""
    if model.classes is not None:
        return len(model.classes)
    declared = getattr(model.module, "num_classes", None)
    if isinstance(declared, int):
        return declared
    heads = [part for part in model.module.modules() if isinstance(part, nn.Linear)]
    return heads[-1].out_features if heads else None


def wnid_labels(wnids: Sequence[str], model: Model) -> dict[str, int] | None:
    """Number WordNet ids as the model does: ImageNet-1k's order, by name, or in sorted order."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    standard = {wnid: place for place, wnid in enumerate(info.label_names())}
    count = class_count(model)
    if count == len(standard) and all(wnid in standard for wnid in wnids):
        return {wnid: standard[wnid] for wnid in wnids}
    own = class_names(model)
    if own is None:
        return {wnid: place for place, wnid in enumerate(wnids)} if count == len(wnids) else None
    known, labels = _places(own), dict[str, int]()
    for wnid in wnids:
        text = info.label_name_to_description(wnid) if wnid in standard else wnid
        names = [plain_name(name) for name in (wnid, text, text.partition(",")[0])]
        found = {known[name] for name in names if name in known}
        if len(found) != 1:
            return None
        labels[wnid] = found.pop()
    return labels if len(set(labels.values())) == len(labels) else None


def named_labels(values: Sequence[str], model: Model) -> tuple[int, ...] | None:
    """Labels from class names, where the model has names too."""
    if class_names(model) is None:
        return None
    names = sorted(set(values))
    place = {name: at for at, name in enumerate(names)}
    return fit_labels([place[value] for value in values], names, model)


def class_by_name(name: str, model: Model, *words: str) -> int:
    """The number of a class that is watched or explained, by its name; `words` would do, too."""
    own = model.classes or ()
    known = _places(own)
    if plain_name(name) not in known:
        raise unknown("target", name, (*words, *own))
    return known[plain_name(name)]


def label_by_name(model: Model) -> Callable[[Any], int] | None:
    """The model's number of a class by its name, one at a time; None if it names no classes."""
    own = class_names(model)
    if own is None:
        return None
    known = _places(own)

    def label(name: Any) -> int:
        found = known.get(plain_name(name)) if isinstance(name, str) else None
        if found is None:
            raise Unusable(f"its label {shown(name)} is no class of {model.name}")
        return found

    return label


def class_numbers(what: str, values: Any) -> Tensor:
    """Turn one class number or several into int64 on the CPU; refuse what is not one."""
    try:
        given = as_tensor(values).cpu()
        numbers = given.detach().to(torch.int64)
    except FaithscopeError:
        given = numbers = torch.tensor(-1)
    wrong = (numbers != given).any() or (numbers < 0).any()  # NaN and infinity differ, too
    if wrong or given.dtype == torch.bool:
        raise FaithscopeError(f"{what} must be class numbers, whole and from 0 upwards.")
    return numbers


def plain_name(name: str) -> str:
    """A class name without regard to capitals and underscores."""
    return name.lower().replace("_", " ").strip()
