"""Which methods run on which models: every model of a list × every method, and the table of it.

python docs/model_table.py list           # choose the models anew and write docs/model_list.json
python docs/model_table.py run            # every model × method, and the table in docs/models.md
python docs/model_table.py run --only 'timm:.*siglip' --out some.jsonl    # some, and no table
python docs/model_table.py table          # the table from what the last run wrote

A run writes one line of JSON per model to --out (runs/model_table.jsonl) and goes on where it was
stopped. The rule by which models are listed is in model_list.py. A cell has run if the method
gave finite maps of the right shape for two random images; it is refused if it ended in a
FaithscopeError, whose sentence is kept; anything else is a crash, which is a bug.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from filling import ROOT, fill_blocks, table

GROUPS = {
    "gradients": ("gradient", "input_x_gradient", "integrated_gradients(steps=2)"),
    "Grad-CAM": ("grad_cam",),
    "attention": ("raw_attention", "rollout", "transformer_mm", "attcat"),
    "LRP": ("lrp", "partial_lrp", "transformer_attribution", "conservative_lrp"),
}
METHODS = tuple(method for methods in GROUPS.values() for method in methods)
GIVEN = "given maps"
"""The cell that says whether `fs.evaluate` scores given maps; not counted as a method."""
PAGE = ROOT / "docs" / "models.md"
OUT = ROOT / "runs" / "model_table.jsonl"
LAYER = re.compile(r", as (\w+\(layer=[^)]+\)),")
"""What a refusal of grad_cam or raw_attention proposes, and the cell then runs."""
CRASHED = ("these images cannot be explained (", "fails on every image (")
"""What fs.explain says of an error that is not a refusal."""

Row = dict[str, Any]


# One model


def examine(entry: Row, seconds: int) -> Row:
    """Run every method on one model; each cell is "ran" or begins with "refused" or "crashed"."""
    import torch
    from model_list import build, images_of

    torch.set_num_threads(1)
    began = time.process_time()
    signal.signal(signal.SIGALRM, _ring)
    signal.alarm(seconds)
    cells: dict[str, str] = {}
    try:
        model = build(entry)
        images = images_of(entry, model)
        for method in METHODS:
            cells[method] = _attempt(_explain, model, images, method)
            proposed = LAYER.search(cells[method])
            if proposed:
                again = _attempt(_explain, model, images, proposed[1])
                cells[method] = f"ran: {proposed[1]}" if again == "ran" else again
        cells[GIVEN] = _attempt(_evaluate, model, images)
    except (Exception, OutOfTime) as error:
        cells |= dict.fromkeys([m for m in (*METHODS, GIVEN) if m not in cells], _crash(error))
    finally:
        signal.alarm(0)
    return {**entry, "cells": cells, "seconds": round(time.process_time() - began, 1)}


class OutOfTime(BaseException):
    """A model took longer than it may; no code between here and there may catch it."""


def _ring(*_: Any) -> None:
    raise OutOfTime


def _attempt(run: Callable[..., None], *arguments: Any) -> str:
    from faithscope import FaithscopeError

    try:
        run(*arguments)
        return "ran"
    except FaithscopeError as error:
        crashed = any(words in str(error) for words in CRASHED)
        return f"{'crashed' if crashed else 'refused'}: {error}"
    except Exception as error:
        return _crash(error)


def _crash(error: BaseException) -> str:
    return f"crashed: {type(error).__name__}: {error}"


def _explain(model: Any, images: Any, method: str) -> None:
    import faithscope as fs

    maps = fs.explain(model, images, method)
    assert maps.shape == (2, *images.shape[-2:]), f"maps of shape {list(maps.shape)}"
    assert maps.isfinite().all(), "maps that are not finite"


def _evaluate(model: Any, images: Any) -> None:
    import faithscope as fs

    given = {"mine": images.mean(dim=1)}
    result = fs.evaluate(
        model, images, maps=given, metrics="saco", k=2, random_draws=1, batch_size=2
    )
    scores = [row for row in result.scores.to_pylist() if row["method"] == "mine"]
    assert len(scores) == 2 and not any(row["flag"] for row in scores), scores


# All of them


def read(file: Path) -> list[Row]:
    """The lines of a run so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(entries: Sequence[Row], out: Path, *, workers: int = 2, seconds: int = 600) -> list[Row]:
    """Examine the models that `out` does not hold yet; returns the rows of all of them."""
    done = {row["model"] for row in read(out)}
    todo = [entry for entry in entries if entry["model"] not in done]
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    with pool, out.open("a") as file:
        tasks = {pool.submit(examine, entry, seconds): entry for entry in todo}
        for count, task in enumerate(as_completed(tasks), 1):
            row = task.result()
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            passed = time.monotonic() - began
            left = passed / count * (len(todo) - count)
            ran = sum(ok(cell) for method, cell in row["cells"].items() if method != GIVEN)
            print(
                f"{count}/{len(todo)} {row['model']}: {ran} of {len(METHODS)} in "
                f"{row['seconds']:.0f} s; {60 * count / passed:.1f} models a minute, "
                f"{left / 60:.0f} minutes left",
                flush=True,
            )
    wanted = {entry["model"] for entry in entries}
    return [row for row in read(out) if row["model"] in wanted]


# What came of it


def ok(cell: str) -> bool:
    """Whether a cell has run."""
    return cell.startswith("ran")


def counted(rows: Iterable[Row], methods: Sequence[str] = METHODS) -> tuple[int, int]:
    """How many cells have run, of how many."""
    cells = [row["cells"][method] for row in rows for method in methods]
    return sum(map(ok, cells)), len(cells)


def refusals(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Refused and crashed cells, model by model, under what they say without names."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for method, cell in row["cells"].items():
            if not ok(cell):
                found[plain(cell, row)].append(f"{row['model']} {method}")
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def plain(cell: str, row: Row) -> str:
    """A sentence without the names of method, model and modules, to count alike ones together."""
    text = cell.replace(row["model"], "MODEL")
    text = re.sub(r"The method '[^']*'", "METHOD", text)
    return re.sub(r"\d+", "#", text)


def summary(rows: Sequence[Row]) -> str:
    """Counts and reasons, to read."""
    from model_list import KINDS

    lines = []
    kinds: dict[str, list[Row]] = {"all": list(rows)}
    for kind, said in KINDS.items():
        kinds[said] = [row for row in rows if row["kind"] == kind]
    for said, part in kinds.items():
        if not part:
            continue
        ran, of = counted(part)
        lines.append(f"{said}: {len(part)} models, {ran} of {of} cells ran ({ran / of:.1%})")
        for group, methods in GROUPS.items():
            ran, of = counted(part, methods)
            lines.append(f"  {group}: {ran} of {of} ({ran / of:.1%})")
        ran, of = counted(part, (GIVEN,))
        lines.append(f"  {GIVEN}: {ran} of {of}")
    lines.append("")
    for reason, cells in refusals(rows).items():
        models = Counter(cell.split(" ")[0] for cell in cells)
        lines.append(f"{len(cells)} cells, {len(models)} models: {reason}")
        lines += [f"    {model} ({count})" for model, count in models.items()]
    return "\n".join(lines)


def blocks(rows: Sequence[Row]) -> dict[str, str]:
    """The generated parts of docs/models.md."""
    from model_list import KINDS

    ran, of = counted(rows)
    counts = [
        f"{len(rows)} models, {of:,} cells: {ran:,} run ({ran / of:.0%}), "
        f"{of - ran:,} are refused with the reason."
    ]
    heads = ["family", "models", *GROUPS, GIVEN]
    parts = []
    for kind, said in KINDS.items():
        families: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row["kind"] == kind:
                families[row["family"]].append(row)
        lines = [
            [name, str(len(part)), *(_cell(part, methods) for methods in columns())]
            for name, part in sorted(families.items())
        ]
        ran, of = counted([row for part in families.values() for row in part])
        share = f"{ran} of {of} cells" if of else "none"
        parts.append(f"**{said[0].upper()}{said[1:]}** ({share})\n\n{table(heads, lines)}")
    return {"model counts": "\n".join(counts), "model table": "\n\n".join(parts)}


def columns() -> Iterator[tuple[str, ...]]:
    """The methods of each column of the table."""
    yield from GROUPS.values()
    yield (GIVEN,)


def _cell(rows: Sequence[Row], methods: Sequence[str]) -> str:
    ran, of = counted(rows, methods)
    layer = any(row["cells"][method].startswith("ran: ") for row in rows for method in methods)
    text = "yes" if ran == of else "—" if not ran else f"{ran} of {of}"
    return "with `layer=`" if layer and ran == of else text


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("list", "run", "table"))
    parser.add_argument("--only", help="a regular expression that names must contain")
    parser.add_argument("--out", type=Path, default=OUT, help="a file of one line per model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=600, help="the most that a model may take")
    chosen = parser.parse_args(arguments)
    from model_list import LIST, choose

    if chosen.command == "list":
        LIST.write_text(json.dumps(choose(), indent=1, ensure_ascii=False) + "\n")
        return 0
    entries = json.loads(LIST.read_text())["models"]
    if chosen.only:
        entries = [entry for entry in entries if re.search(chosen.only, entry["model"])]
    if chosen.command == "run":
        rows = run(entries, chosen.out, workers=chosen.workers, seconds=chosen.seconds)
    else:
        rows = read(chosen.out)
    print(summary(rows))
    if not chosen.only:
        PAGE.write_text(fill_blocks(PAGE.read_text(), blocks(rows).__getitem__))
    return int(any("crashed" in reason for reason in refusals(rows)))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
