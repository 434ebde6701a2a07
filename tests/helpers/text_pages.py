"""Summaries of ROAR runs made of numbers alone, for tests of the page on text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roar_runs import make_roar

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "studies")]  # as for scripts, which import siblings

import summarise  # noqa: E402
import summarise_roar  # noqa: E402

GRADIENTS = ("gradient", "input_x_gradient", "integrated_gradients", "random")
PAPERS = ("attention", *GRADIENTS)


def summary(folder: Path, name: str, **options: Any) -> None:
    """A run made of numbers, summarised under a name of the page."""
    run = folder / "runs" / name
    made = make_roar(**{"measures": PAPERS, **options})
    made.save(run)
    (run / "command.txt").write_text(f"faithscope run studies/{name}.yaml --yes\n# 3 s\n")
    (folder / f"{name}.json").write_text(summarise.written(summarise_roar.summarise(run)))


@contextmanager
def rewritten(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """A summary, to be changed and written again."""
    file = folder / f"{name}.json"
    study = json.loads(file.read_text())
    yield study
    file.write_text(json.dumps(study))


def all_runs(folder: Path) -> Path:
    """Summaries of every kind of run that the page knows."""
    once = {"procedures": ("recursive",)}
    summary(folder, "roar_babi1", measures=(*PAPERS, "mutual_information"))
    summary(folder, "roar_babi2", seeds=3, levels=(0, 10, 20, 30, 40, 100), shift=0.1, **once)
    summary(folder, "roar_sst", metric="macro_f1", noise=0.03)
    summary(
        folder,
        "roar_sst_minilm",
        measures=GRADIENTS,
        seeds=2,
        model="hf:/a/place/of/mine/minilm",
        levels=(*range(0, 81, 10), 100),
        **once,
    )
    summary(folder, "roar_imdb", seeds=2, levels=(0, 10, 30, 50, 70, 90, 100), **once)
    summary(folder, "roar_babi1_count", strategy="count", seeds=3, levels=(0, 1, 2, 3), **once)
    summary(folder, "roar_sst_count", strategy="count", metric="macro_f1", **once)
    base = {
        "data": {
            "metric": "micro_f1",
            "sizes": {"train": 7875, "validation": 1967, "test": 9824},
            "mean_length": 16.2,
            "majority": {"class": "entailment", "score": 0.343},
        },
        "parameters": 100,
        "recipe": {"epochs": 25},
        "epoch": 3,
        "validation": [0.5, 0.6],
        "scores": {"micro_f1": 0.612},
        "seconds": 12.0,
        "device": "a GPU",
        "note": "The training part is not at hand.",
        "command": "python studies/roar_bases.py SNLI=snli:data/snli",
    }
    (folder / "roar_bases.json").write_text(json.dumps({"SNLI": base}))
    return folder
