"""Do the tables of a run hold what its plan says? Asked once, when they are read.

A hash says that a file is what was written, not that it was written by us: rows without a value,
of unknown names, given twice or missing would be a wrong number or a traceback somewhere later.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from faithscope.errors import FaithscopeError
from faithscope.request import Perturb, Retrain
from faithscope.runs.plan import Plan
from faithscope.runs.saved import Rows, parts_of, read_rows
from faithscope.runs.tables import SCHEMAS

OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "scores": ("training", "sample", "procedure", "k", "fill", "upsample", "flag"),
    "maps": ("k",),
    "spans": ("k",),
    "examples": ("auxiliary",),
    "tasks": (
        *("method", "seconds", "explaining", "passes", "explanation_passes"),
        *("halvings", "parameters"),
    ),
}
"""Columns that say nothing of some rows; all others do of every row."""
NEEDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "perturb": {
        "scores": ("sample",),
        "tasks": ("seconds", "explaining", "passes", "explanation_passes", "halvings"),
    },
    "retrain": {"scores": ("training", "procedure")},
}
"""But not in this kind of run."""
LEAST = {"label": -1, "target": -1, "predicted": -2, "top1": -2}
"""Where there is no class, or the model raised; all other whole numbers are 0 or more."""
Axes = Mapping[str, Any]
"""The values that a column may hold, in the order in which they are counted."""
SECONDS = ("seconds", "explaining")
PICTURES = ("png", "jpeg", "text", "plain", "signed", "constant", "nan")


def check_rows(plan: Plan, name: str, table: pa.Table) -> None:
    """Refuse rows that no run of a plan has, with a ValueError: nulls, unknown names, odd numbers.

    A part of a table, as a task leaves it, can be asked, too.
    """
    optional = {*OPTIONAL.get(name, ())} - {*NEEDED[plan.kind].get(name, ())}
    for field in SCHEMAS[name]:
        column, where = table[field.name], f"'{field.name}' of {name}"
        if column.null_count and field.name not in optional:
            raise ValueError(f"{where} is empty in some rows")
        if pa.types.is_list(field.type) and pc.list_flatten(column).null_count:
            raise ValueError(f"{where} has gaps in some rows")
        least = LEAST.get(field.name, 0)
        if pa.types.is_integer(field.type) and (pc.min(column).as_py() or 0) < least:
            raise ValueError(f"{where} is negative in some rows")
        if field.name in SECONDS and not _all(
            pc.and_(pc.less(column, 1e12), pc.greater_equal(column, 0))
        ):
            raise ValueError(f"{where} is no time in some rows")
        known = _known(plan, name, field.name)
        odd = set() if known is None else set(pc.unique(column).to_pylist()) - {*known, None}
        if odd:
            raise ValueError(f"{where} holds {min(map(str, odd))[:60]!r}, which is unknown")
    if name in _FITS and not _FITS[name](plan, table):
        raise ValueError(f"columns of {name} do not fit together")


def check_tables(plan: Plan, tables: Mapping[str, Rows]) -> None:
    """Refuse tables that are not those of a whole run: with rows missing or given twice, too.

    Scores of trainings may be left out, since they are made of them.
    """
    held = {name: tables.get(name, schema.empty_table()) for name, schema in SCHEMAS.items()}
    for name, rows in tables.items():
        for part in parts_of(rows):
            check_rows(plan, name, part)
    if isinstance(plan.request, Perturb):
        _check_images(plan, held)
        return
    request, labels = plan.request, [card.label for card in plan.methods]
    seeds: Any = request.seeds
    kinds = {"procedure": request.procedures, "measure": labels, "seed": seeds}
    tests = pc.unique(read_rows(held["trainings"], "metric")["metric"]).to_pylist()
    if plan.given.get("metric", next(iter(tests), "")) not in tests:
        raise ValueError("the trainings are not tested by their metric")
    axes = {**kinds, "k": request.levels or (), "metric": tests}
    _check_grid("trainings", held, axes, math.prod(map(len, axes.values())))
    if "scores" in tables:
        axes = {"procedure": request.procedures, "method": labels, "training": seeds}
        metrics = [card.label for card in plan.metrics]
        scored = sum(
            not (card.is_random and metric.against == "zero")
            for card in plan.methods
            for metric in plan.metrics
        )
        count = scored * len(request.procedures) * len(seeds)
        _check_grid("scores", held, {**axes, "metric": metrics}, count)


def check_collected(plan: Plan, tables: Mapping[str, Rows]) -> None:
    """The same of what tasks have left behind, before anything is made of it."""
    try:
        check_tables(plan, tables)
    except ValueError as error:
        raise FaithscopeError(
            f"The finished tasks do not make a whole run ({error}): remove the folder 'tasks' of "
            "the run, and run the same command again."
        ) from None


def _check_images(plan: Plan, tables: Mapping[str, Rows]) -> None:
    """Every sample has a row, every map of it, too, and a score by every metric."""
    samples = read_rows(tables["samples"], "sample")["sample"].cast(pa.string()).combine_chunks()
    if not len(samples) or pc.count_distinct(samples).as_py() < len(samples):
        raise ValueError("samples are missing or given twice")
    draws = range(max(card.draws for card in plan.methods))
    labels = [card.label for card in plan.methods]
    axes: Axes = {"sample": samples, "method": labels, "draw": draws}
    count = len(samples) * sum(card.draws for card in plan.methods)
    metrics = [card.label for card in plan.metrics]
    _check_grid("scores", tables, {**axes, "metric": metrics}, count * len(metrics))
    for _ in _places(tables["pictures"], {"sample": samples}):
        pass
    maps, responses = tables["maps"], tables["responses"]
    if not maps.num_rows and not responses.num_rows:  # only the scores were kept
        return
    _check_grid("maps", tables, axes, count)
    missing, units = np.zeros(math.prod(map(len, axes.values())), dtype=bool), 0
    for part, places in _places(maps, axes, "finite", "units"):
        missing[places[part["finite"].to_numpy()]] = True  # of others there may be none
        units = max(units, pc.max(part["units"]).as_py() or 0)
    for part, places in _places(responses, axes, "stop"):
        missing[places] = False
        if (pc.max(part["stop"]).as_py() or 0) > units:
            raise ValueError("responses are of more units than there are")
    if missing.any():
        raise ValueError("responses are missing")


def _check_grid(name: str, tables: Mapping[str, Rows], axes: Axes, count: int) -> None:
    """No place of a grid has two rows, and so many have one."""
    if tables[name].num_rows == count:
        seen = np.zeros(math.prod(map(len, axes.values())), dtype=bool)
        for _, places in _places(tables[name], axes):
            seen[places] = True
        if np.count_nonzero(seen) == count:
            return
    raise ValueError(f"rows of {name} are missing or given twice")


def _places(rows: Rows, axes: Axes, *others: str) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """Where every row stands in a grid, part by part, with the columns of these and of others.

    A name that is none of an axis is a ValueError.
    """
    every = {name: pa.array(values) for name, values in axes.items()}
    for part in parts_of(rows, *axes, *others):
        places = np.zeros(part.num_rows, dtype=np.int64)
        for name, known in every.items():
            names, used = _encoded(part[name])
            found = pc.index_in(names.cast(known.type), value_set=known).fill_null(-1)
            own = found.to_numpy(zero_copy_only=False).astype(np.int64)[used]
            if (own < 0).any():
                odd = str(names[used[own.argmin()]].as_py())
                raise ValueError(f"'{name}' holds {odd[:60]!r}, unknown")
            places = places * len(known) + own
        yield part, places


def _encoded(column: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """The names in a column, and which of them every row has."""
    held = column.combine_chunks()
    if not pa.types.is_dictionary(held.type):
        held = held.dictionary_encode()
    return held.dictionary, held.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _known(plan: Plan, table: str, column: str) -> Collection[Any] | None:
    """What a column may hold; None if that is anything."""
    labels = [card.label for card in plan.methods]
    known: dict[str, Any] = {"method": labels, "measure": labels}
    if table == "failures":
        known = {"method": ["", *labels]}
    if table == "pictures":
        known = {"method": ["", *labels], "kind": PICTURES}
    if table != "trainings":  # they are tested by metrics of their own
        known["metric"] = [card.label for card in plan.metrics]
    if isinstance(plan.request, Retrain):
        seeds, levels = plan.request.seeds, plan.request.levels
        known |= {"procedure": plan.request.procedures, "seed": seeds, "training": seeds}
        known |= {"k": levels, "strategy": (plan.request.strategy,)}
        known |= {"kind": ("count", "relative")} if table == "sparsity" else {}
    found: Collection[Any] | None = known.get(column)
    return found


def _all(truths: pa.ChunkedArray) -> bool:
    """Whether all are true that are known."""
    return bool(pc.all(truths, min_count=0).as_py())


def _are_draws(plan: Plan, table: pa.Table) -> bool:
    """A method has only so many draws."""
    draws = {card.label: card.draws for card in plan.methods}
    names, used = _encoded(table["method"])
    most = np.array([draws.get(name, 0) for name in names.to_pylist()], dtype=np.int64)[used]
    return bool((table["draw"].to_numpy() < most).all())


def _are_spans(plan: Plan, table: pa.Table) -> bool:
    """A span does not end before its start."""
    return _all(pc.less_equal(table["start"], table["stop"]))


def _have_pixels(plan: Plan, table: pa.Table) -> bool:
    """A map has a byte for every pixel or word; an image is a file, a text is its words."""
    size = pc.multiply(table["height"].cast("int64"), table["width"].cast("int64"))
    fits = pc.equal(pc.binary_length(table["content"]).cast("int64"), size)
    texts = table.filter(pc.equal(table["kind"].cast("string"), "text"))
    pairs = zip(texts["width"].to_pylist(), texts["content"].to_pylist(), strict=True)
    are_texts = all(len(words_of(content)[0]) == width for width, content in pairs)
    return are_texts and _all(pc.or_(fits, pc.equal(table["method"].cast("string"), "")))


def words_of(content: bytes) -> tuple[list[str], int | None]:
    """The units of a kept text, and where those of a second text begin; a ValueError if it is none.

    >>> words_of(b'{"words": ["good", "film"], "second": null}')
    (['good', 'film'], None)
    """
    held = json.loads(content)
    known = held if isinstance(held, dict) else {}
    words, second = known.get("words"), known.get("second")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("a text of pictures has no words")
    if second is not None and second not in range(len(words)):
        raise ValueError("a text of pictures has no second text")
    return words, second


def _have_words(plan: Plan, table: pa.Table) -> bool:
    """What is masked, and what could be, are words of the text, which all or none have a score."""
    columns = (table[name].to_pylist() for name in ("words", "eligible", "masked", "scores"))
    return all(
        {*eligible, *masked} <= {*range(len(words))} and len(scores) in (0, len(words))
        for words, eligible, masked, scores in zip(*columns, strict=True)
    )


_FITS = {
    "scores": _are_draws,
    "maps": _are_draws,
    "responses": lambda plan, table: _are_draws(plan, table) and _are_spans(plan, table),
    "spans": _are_spans,
    "pictures": _have_pixels,
    "examples": _have_words,
}
"""Whether columns of a table fit together."""
