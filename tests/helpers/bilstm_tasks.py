"""Small tasks for BiLSTM-attention: random texts whose label follows from one word."""

import importlib.util
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from faithscope.data.text import TokenData, Tokens
from faithscope.data.vocabulary import CLS, EOS, MASK, PAD, SPECIALS
from faithscope.models import bilstm
from faithscope.models.bilstm import Parameters, Shape
from faithscope.probes.retrain.bilstm import BiLSTMLearner, PackTraining, Setting
from faithscope.probes.retrain.learner import Recipe

CLASSES = 3


def benchmark() -> ModuleType:
    """The benchmark, which has the straightforward model."""
    path = Path(__file__).parents[2] / "benchmarks" / "text.py"
    spec = importlib.util.spec_from_file_location("benchmark_text", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encoded(
    lengths: list[int], *, words: int, generator: torch.Generator, width: int | None = None
) -> Tensor:
    """Random texts between [CLS] and [EOS]; one of a single token is only [CLS]."""
    ids = torch.full((len(lengths), width or max(lengths)), PAD)
    for row, length in zip(ids, lengths, strict=True):
        drawn = torch.randint(MASK, words, (max(length - 2, 0),), generator=generator)
        row[:length] = torch.tensor([CLS, *drawn.tolist(), EOS])[:length]
    return ids


def split(
    lengths: list[int],
    other_lengths: list[int] | None = None,
    *,
    words: int = 20,
    seed: int = 0,
) -> Tokens:
    """Texts of these lengths, wider padded than they need; the label is that of their word 1."""
    generator = torch.Generator().manual_seed(seed)
    ids = encoded(lengths, words=words, generator=generator, width=max(lengths) + 1)
    others = None
    if other_lengths is not None:
        width = max(other_lengths) + 2
        others = encoded(other_lengths, words=words, generator=generator, width=width)
    labels = ids[:, 1] % CLASSES
    counted = None if others is None else torch.tensor(other_lengths)
    return Tokens(ids, torch.tensor(lengths), ids >= MASK, labels, others, counted)


def task(
    count: int = 44,
    *,
    words: int = 20,
    paired: bool = False,
    selection: str = "accuracy",
    **options: object,
) -> TokenData:
    """Three splits of texts of 3 to 9 tokens; 44 are not a multiple of the batch."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for place, size in enumerate((count, 15, 13)):
        lengths = torch.randint(3, 10, (size,), generator=generator).tolist()
        others = torch.randint(2, 7, (size,), generator=generator).tolist() if paired else None
        parts.append(split(lengths, others, words=words, seed=place))
    return TokenData(
        name="random texts",
        kind="babi" if paired else "own",
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        classes=("a", "b", "c"),
        metric="accuracy",
        selection=selection,
        words=(*SPECIALS, *(f"word {place}" for place in range(len(SPECIALS), words))),
        mask_id=MASK,
        pad_id=PAD,
        **options,
    )


def masked(data: TokenData, seed: int) -> TokenData:
    """The same data with about a third of its tokens masked."""
    generator = torch.Generator().manual_seed(seed)
    ids = {}
    for name, part in data.splits:
        hit = torch.rand(part.ids.shape, generator=generator) < 0.3
        ids[name] = torch.where(hit & part.eligible, MASK, part.ids)
    return data.with_ids(ids)


def small_learner(data: TokenData, **changes: object) -> BiLSTMLearner:
    """A learner of small models: 7 numbers per word, 5 per direction; 3 epochs in batches of 10."""
    made = BiLSTMLearner(data.kind, recipe=replace(Recipe(3, 10), **changes))
    made.setting = Setting(made.recipe, 5, 7, made.setting.decays_attention)
    return made


def train(training: PackTraining, epochs: int | None = None) -> PackTraining:
    """Train to the end, or some more epochs."""
    while epochs != 0 and not training.is_done:
        training.run_epoch()
        epochs = None if epochs is None else epochs - 1
    return training


def rows_of(tokens: Tokens, rows: Tensor | slice) -> Tokens:
    """Some texts of a split."""
    parts = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    return replace(tokens, **{n: part[rows] for n, part in parts.items() if part is not None})


def pack(shape: Shape, *seeds: int) -> Parameters:
    """A pack of models as they start, in float64."""
    starts = [bilstm.initial(shape, seed) for seed in seeds]
    return {name: torch.stack([s[name] for s in starts]).to(torch.float64) for name in starts[0]}


def classify(p: Parameters, *tokens: Tokens) -> bilstm.Answer:
    """What the models say: each of its own texts, or all of the same."""
    models = len(p["decoder.bias"])
    parts = [
        (t.ids, t.lengths, t.eligible)
        if t.auxiliary is None
        else (t.ids, t.lengths, t.eligible, t.auxiliary, t.auxiliary_lengths)
        for t in (tokens * models)[:models]
    ]
    return bilstm.classify(p, *(torch.stack(part) for part in zip(*parts, strict=True)))
