r"""Check loaders: read a data set, train one model on its intact texts, write the results.

python studies/roar_bases.py \
  'bAbI-3=babi:data/babi(task=3, train=data/babi/qa3_train.txt)' 'SNLI=snli:data/snli' \
  --out studies/results/roar_bases.json

Names already in --out are kept, those given are made again. If SNLI's folder has no training part,
its dev part is used instead: the first 80 % of the pairs train, the rest validate (split between
two premises, so that none is on both sides), and the note says so.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from summarise import written

from faithscope.data.text import TextData
from faithscope.data.text_sources import describe, load_text
from faithscope.errors import FaithscopeError
from faithscope.probes.retrain.learners import load_learner

TRAIN_SHARE = 0.8
KEPT = ("name", "metric", "sizes", "mean_length", "vocabulary", "majority", "truncated", "notes")
SNLI_FILES = ("s1", "s2", "labels")


def load(spec: str, limit: int | None = None) -> tuple[TextData, str]:
    """The data of a name, and a note on what replaces unavailable parts."""
    kind, _, place = spec.partition(":")
    path, bracket, options = place.partition("(")
    folder = Path(path)
    if kind != "snli" or not (folder / "s1.dev").exists() or any(folder.glob("s1.train*")):
        data = load_text(spec, limit=limit)
        return data, " ".join(data.notes)
    with tempfile.TemporaryDirectory() as name:
        train, validation = divide_dev(folder, Path(name))
        data = load_text(f"{kind}:{name}{bracket}{options}", limit=limit)
    note = (
        f"The training part is not at hand: the first {train:,} pairs of the dev part train, the "
        f"other {validation:,} validate; the test part is the official one."
    )
    return data, " ".join([note, *data.notes])


def divide_dev(folder: Path, target: Path) -> tuple[int, int]:
    """Write SNLI's dev part as a training and a dev part, the test part as it is; return sizes."""
    columns = [(folder / f"{name}.dev").read_text().splitlines() for name in SNLI_FILES]
    cut = premise_boundary(columns[0])
    for name, lines in zip(SNLI_FILES, columns, strict=True):
        for split, part in (("train", lines[:cut]), ("dev", lines[cut:])):
            (target / f"{name}.{split}").write_text("\n".join(part) + "\n")
        (target / f"{name}.test").write_bytes((folder / f"{name}.test").read_bytes())
    return cut, len(columns[0]) - cut


def premise_boundary(premises: Sequence[str], share: float = TRAIN_SHARE) -> int:
    """Where to cut: the first change of premise from the share on.

    >>> premise_boundary(["a", "a", "b", "b", "b", "c"], share=0.5)
    5
    """
    start = int(share * len(premises))
    changes = (i for i in range(max(start, 1), len(premises)) if premises[i] != premises[i - 1])
    return next(changes, start)


def train_one(data: TextData, *, epochs: int | None, device: str) -> dict[str, Any]:
    """The data that a loader returned, and the scores of one model with seed 0."""
    learner: Any = load_learner("bilstm", data, epochs=epochs, device=device)
    tokens = learner.encode(data)
    about = describe(data, tokens)
    start = time.perf_counter()
    training = learner.begin([tokens], [0])
    while not training.is_done:
        training.run_epoch()
        print(f"{data.name}: epoch {training.epoch} of {learner.recipe.epochs}", flush=True)
    (done,) = training.finish()
    on_gpu = learner.device.startswith("cuda")
    return {
        "data": {key: about[key] for key in KEPT},
        "vectors": None if data.vectors is None else {"size": data.vectors.size},
        "parameters": learner.parameters(tokens),
        "recipe": asdict(learner.recipe),
        "epoch": done.epoch,
        "validation": list(done.validation),
        "scores": dict(done.scores),
        "seconds": round(time.perf_counter() - start, 1),
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "versions": {"torch": torch.__version__.partition("+")[0]},
    }


def main(arguments: Iterable[str] | None = None) -> None:
    """Train a model for every name; write the file after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", nargs="+", metavar="NAME=SPEC")
    parser.add_argument("--limit", type=int, help="use only this many texts of each split")
    parser.add_argument("--epochs", type=int, help="by default the paper's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    command = shlex.join(["python", "studies/roar_bases.py", *given])
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for item in options.data:
        name, equals, spec = item.partition("=")
        if not equals:
            parser.error(f"'{item}' is not of the form NAME=SPEC, such as 'SNLI=snli:data/snli'")
        try:
            data, note = load(spec, options.limit)
        except FaithscopeError as error:
            parser.error(str(error))
        made = train_one(data, epochs=options.epochs, device=options.device)
        found[name] = {**made, "note": note, "command": command}
        options.out.write_text(written(found))
        score = made["scores"][data.metric]
        print(f"{name}: test {data.metric} {score:.4f}, {made['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
