r"""Do masks reveal the class? Train models that see only the masks of a ROAR run.

python studies/roar_leakage.py runs/roar_babi1 'babi:data/babi(task=1)' \
  --out studies/results/roar_babi1_leakage.json

Every token that a finished run left unmasked becomes the same unknown word, so only the positions
of the masks (and the question, if there is one) can reveal the class. Random masking is the
control: its masks reveal only the length of a text. Models, seeds and recipe are those of the run.
Masks of a measure may also reveal the class by the positions of its words, without using the label.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from roar_seeds import trained

import faithscope as fs
from faithscope.data.text import TokenData
from faithscope.data.text_sources import describe, load_text
from faithscope.data.vocabulary import UNK
from faithscope.errors import FaithscopeError
from faithscope.models.tensor_files import read_tensors
from faithscope.probes.retrain.learners import load_learner
from faithscope.probes.retrain.masking import Masks, unpacked_model
from faithscope.probes.retrain.tasks import jobs_by_group, weights_name

CONTROL = "random"
RECIPE = ("epochs", "batch_size", "learning_rate")


def only_masks(data: TokenData, masks: Masks, unknown: int = UNK) -> TokenData:
    """The data with the masks of a run, and one unknown word for every other token."""
    ids = {
        name: torch.where(masks[name], data.mask_id, part.ids.masked_fill(part.eligible, unknown))
        for name, part in data.splits
    }
    return data.with_ids(ids)


def masks_of(folder: Path, run: fs.Result, measure: str, procedure: str, level: int) -> list[Masks]:
    """The masks of the finished trainings of all seeds; an error if the run no longer has them."""
    jobs = [
        held.curve(measure, procedure, seed)[level]
        for seeds, held in jobs_by_group(run.manifest.plan).items()
        for seed in seeds
    ]
    files = [folder / "artifacts" / f"{weights_name(job)}.safetensors" for job in jobs]
    return [unpacked_model(*read_tensors(file.read_bytes()))[1] for file in files]


def main(arguments: Iterable[str] | None = None) -> None:
    """Train on the masks of every measure; write the file after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a finished run on texts, with its masks")
    parser.add_argument("data", help="its data set")
    parser.add_argument("--measures", nargs="+", help="by default all of the run's")
    parser.add_argument("--level", type=int, default=90)
    parser.add_argument("--procedure", default="recursive", choices=("recursive", "roar"))
    parser.add_argument("--limit", type=int, help="the run's, if it had one")
    parser.add_argument("--epochs", type=int, help="by default the run's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    try:
        run = fs.load_result(options.run)
        texts = load_text(options.data, limit=options.limit)
    except FaithscopeError as error:
        parser.error(str(error))
    if run.manifest.kind != "retrain" or run.manifest.data.texts is None:
        parser.error(f"'{options.run}' is not a ROAR run on texts")
    if not options.out.absolute().parent.is_dir():
        parser.error(f"there is no folder '{options.out.parent}' to write to")
    recipe = {key: getattr(run.manifest.plan.recipe, key) for key in RECIPE}
    if options.epochs is not None:
        recipe["epochs"] = options.epochs
    try:
        name = run.manifest.model.name
        learner: Any = load_learner(name, texts, device=options.device, **recipe)
    except FaithscopeError as error:
        parser.error(str(error))
    data = learner.encode(texts)
    if describe(texts, data)["fingerprint"] != run.manifest.data.fingerprint:
        parser.error(f"'{options.data}' is not what '{options.run}' was made of")
    found: dict[str, Any] = {
        "command": shlex.join(["python", "studies/roar_leakage.py", *given]),
        "data": data.name,
        "metric": data.metric,
        "level": options.level,
        "procedure": options.procedure,
        "seeds": run.replicates,
        "epochs": learner.recipe.epochs,
        "guess": run.trained.card.majority.score,
        "scores": {},
    }
    masks = {}
    for measure in dict.fromkeys([CONTROL, *(options.measures or run.methods)]):
        place = measure, options.procedure, options.level
        try:
            masks[measure] = masks_of(options.run, run, *place)
        except (OSError, ValueError, KeyError):
            parser.error(f"'{options.run}' keeps no masks of {measure} at {options.level} %")
    start = time.perf_counter()
    encoder = getattr(learner, "checkpoint", None)
    unknown = UNK if encoder is None else encoder.tokenizer.unk_token_id
    for measure, own in masks.items():
        parts = [only_masks(data, one, unknown) for one in own]
        print(f"{measure}, one of {len(masks)}:", flush=True)
        done, size = [], learner.pack_size
        for first in range(0, len(parts), size):
            some = slice(first, first + size)
            done += trained(learner, parts[some], run.replicates[some])
        found["scores"][measure] = [model.scores[data.metric] for model in done]
        on_gpu = learner.device.startswith("cuda")
        found["machine"] = torch.cuda.get_device_name() if on_gpu else "CPU"
        found["seconds"] = round(time.perf_counter() - start, 1)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
