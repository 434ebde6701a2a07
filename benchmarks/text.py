"""Training and explaining BiLSTM-attention models, against the straightforward way.

    python benchmarks/text.py train    # an epoch, one thread: packed LSTM ÷ ours
    python benchmarks/text.py explain  # integrated gradients: packed, one α at a time ÷ ours
    python benchmarks/text.py pack --models 45   # on a GPU: one packed model at a time ÷ a pack
    python benchmarks/text.py steps --models 45  # on a GPU: a pack's step and its largest kernels
    python benchmarks/text.py end --epochs 20    # where both ways end, for a few seeds

The straightforward way is what one writes first: nn.LSTM on packed sequences, nn.Embedding, Adam
with its defaults, batches as they come. Both ways start from the same weights, see the same
batches, and what they give is compared in the same run. `--data` takes any text data set (the
default is the bundled sample), or shape:sst and shape:imdb: random words, for the speed alone.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from faithscope.data.text import TokenData, Tokens
from faithscope.data.text_sources import load_text
from faithscope.data.vocabulary import CLS, EOS, MASK, PAD
from faithscope.methods.text import ROAR, measure
from faithscope.probes.retrain.bilstm import BiLSTMLearner, PackTraining, _Recorded
from faithscope.probes.retrain.learner import Weights

T = TypeVar("T")


class Encoder(nn.Module):
    """An embedding and a BiLSTM over packed sequences."""

    def __init__(self, words: int, size: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, size, padding_idx=0)
        self.rnn = nn.LSTM(size, hidden, batch_first=True, bidirectional=True)

    def forward(self, embedded: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """States [B, T, 2H] and the two last states [B, 2H]."""
        packed = pack_padded_sequence(
            embedded, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, (last, _) = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=embedded.shape[1])
        return states, torch.cat((last[0], last[1]), -1)


class Straightforward(nn.Module):
    """BiLSTM-attention as one writes it first."""

    def __init__(self, words: int, size: int, hidden: int, classes: int, paired: bool) -> None:
        super().__init__()
        self.main = Encoder(words, size, hidden)
        self.auxiliary = Encoder(words, size, hidden) if paired else None
        self.attend = nn.Linear(2 * hidden, hidden)
        self.attend_query = nn.Linear(2 * hidden, hidden) if paired else None
        self.vector = nn.Linear(hidden, 1, bias=False)
        self.context = nn.Linear(2 * hidden, hidden) if paired else None
        self.query = nn.Linear(2 * hidden, hidden) if paired else None
        self.out = nn.Linear(hidden if paired else 2 * hidden, classes)

    def forward(
        self, embedded: Tensor, lengths: Tensor, eligible: Tensor, aux: Tensor, aux_lengths: Tensor
    ) -> Tensor:
        """Logits [B, C]."""
        states, _ = self.main(embedded, lengths)
        score = self.attend(states)
        last = None
        if self.auxiliary is not None:
            _, last = self.auxiliary(self.auxiliary.embedding(aux), aux_lengths)
            score = score + self.attend_query(last)[:, None]
        logit = self.vector(score.tanh())[..., 0].masked_fill(~eligible, -torch.inf)
        context = (logit.softmax(-1)[..., None] * states).sum(1)
        if last is not None:
            context = (self.context(context) + self.query(last)).tanh()
        return self.out(context)

    def take(self, weights: Weights) -> None:
        """Start from the weights of one of ours."""
        for name in ("main", "auxiliary") if self.auxiliary is not None else ("main",):
            encoder = getattr(self, name)
            encoder.embedding.weight.data.copy_(weights[f"{name}.embedding"])
            for mine, theirs in (
                ("weight_ih", "input_weight"),
                ("weight_hh", "hidden_weight"),
                ("bias_ih", "input_bias"),
                ("bias_hh", "hidden_bias"),
            ):
                for direction, end in enumerate(("_l0", "_l0_reverse")):
                    o, i, f, g = weights[f"{name}.{theirs}"][direction].chunk(4)
                    getattr(encoder.rnn, mine + end).data.copy_(torch.cat((i, f, g, o)))
        layers = {"attention": self.attend, "decoder": self.out}
        if self.auxiliary is not None:
            layers |= {"attention.query": self.attend_query, "decoder.context": self.context}
            layers["decoder.query"] = self.query
        for name, layer in layers.items():
            joint = "_" if "." in name else "."
            layer.weight.data.copy_(weights[f"{name}{joint}weight"])
            layer.bias.data.copy_(weights[f"{name}{joint}bias"])
        self.vector.weight.data.copy_(weights["attention.vector"][None])


def straightforward(learner: BiLSTMLearner, data: TokenData, weights: Weights) -> Straightforward:
    """The same model, the other way."""
    shape = learner.shape(data)
    model = Straightforward(
        shape.words, shape.embedding, shape.hidden, shape.classes, shape.is_paired
    )
    model.take(weights)
    return model.to(learner.device)


def padded(tokens: Tokens, rows: Tensor, device: str) -> tuple[Tensor, ...]:
    """A batch as a collate function makes it: cut to its longest text."""
    lengths = tokens.lengths[rows]
    steps = int(lengths.max())
    parts = [tokens.ids[rows, :steps], lengths, tokens.eligible[rows, :steps]]
    if tokens.auxiliary is not None and tokens.auxiliary_lengths is not None:
        lengths = tokens.auxiliary_lengths[rows]
        parts += [tokens.auxiliary[rows, : int(lengths.max())], lengths]
    else:
        parts += [lengths, lengths]
    return tuple(part.to(device) for part in (*parts, tokens.labels[rows]))


def adam(model: Straightforward, learner: BiLSTMLearner) -> torch.optim.Optimizer:
    """The optimiser with its defaults, and weight decay on everything, as for bAbI."""
    recipe = learner.recipe
    return torch.optim.Adam(
        model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, amsgrad=True
    )


def train_straightforward(
    model: Straightforward,
    data: TokenData,
    order: Tensor,
    learner: BiLSTMLearner,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[float]:
    """Train over the batches of `order` [steps, batch]; gives the losses."""
    optimizer = optimizer or adam(model, learner)
    losses = []
    for rows in order:
        batch = padded(data.train, rows[rows >= 0], learner.device)
        ids, lengths, eligible, aux, aux_lengths, labels = batch
        optimizer.zero_grad()
        embedded = model.main.embedding(ids)
        logits = model(embedded, lengths, eligible, aux, aux_lengths)
        loss = functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def explain_straightforward(
    model: Straightforward, tokens: Tokens, steps: int, device: str
) -> Tensor:
    """Integrated gradients, one α at a time, 256 texts a batch, through autograd."""
    found = torch.zeros(tokens.ids.shape)
    for rows in torch.arange(len(tokens)).split(256):
        ids, lengths, eligible, aux, aux_lengths, labels = padded(tokens, rows, device)
        embedded = model.main.embedding(ids).detach().requires_grad_()
        mean = torch.zeros_like(embedded)
        # cuDNN's backward needs the training mode
        for i in range(1, steps + 1):
            logits = model(embedded * (i / steps), lengths, eligible, aux, aux_lengths)
            gold = logits.gather(1, labels[:, None]).sum()
            mean += torch.autograd.grad(gold, embedded)[0] / steps
        found[rows, : ids.shape[1]] = (mean * embedded).sum(-1).abs().detach().cpu()
    return found


def timed(device: str, work: Callable[..., T], *given: Any) -> tuple[T, float]:
    """What some work gives, and how long it takes; on a CPU its own time, not the neighbours'."""
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    start = clock()
    made = work(*given)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return made, clock() - start


def one(training: PackTraining, place: int = 0) -> Weights:
    """The weights of one model of a pack as they are now."""
    return {name: value[place].detach().cpu() for name, value in training.parameters.items()}


def bench_train(learner: BiLSTMLearner, data: TokenData, steps: int | None) -> None:
    """An epoch of one model, both ways, in turn; the best of three."""

    def steps_of(training: PackTraining, order: Tensor) -> list[float]:
        return torch.cat([training.step(rows) for rows in order]).tolist()

    times = []
    for _ in range(3):
        training = learner.begin([data], [0])
        order = training.order(0)[:steps]
        model = straightforward(learner, data, one(training))
        slow, theirs = timed(
            learner.device, train_straightforward, model, data, order[:, 0], learner
        )
        fast, ours = timed(learner.device, steps_of, training, order)
        times.append((theirs, ours))
    theirs, ours = (min(column) for column in zip(*times, strict=True))
    apart = (torch.tensor(slow) - torch.tensor(fast)).abs()
    print(f"{len(order)} steps: straightforward {theirs:.2f} s, ours {ours:.2f} s")
    print(f"ratio {theirs / ours:.2f}; losses of 50 steps apart by {apart[:50].max():.1e}")


def bench_explain(learner: BiLSTMLearner, data: TokenData, texts: int) -> None:
    """Integrated gradients of some validation texts, both ways, after 100 steps of training."""
    training = learner.begin([data], [0])
    for rows in training.order(0)[:100]:
        training.step(rows.to(learner.device))
    weights = one(training)
    model = straightforward(learner, data, weights)
    tokens = first(data.validation, texts)
    (rule,) = (measure(name) for name in ROAR if name.startswith("integrated_gradients"))
    times = []
    for _ in range(2):
        slow, theirs = timed(
            learner.device, explain_straightforward, model, tokens, 50, learner.device
        )
        (fast,), ours = timed(learner.device, learner.explain, [weights], [tokens], rule)
        times.append((theirs, ours))
    theirs, ours = (min(column) for column in zip(*times, strict=True))
    print(f"{len(tokens)} texts: straightforward {theirs:.2f} s, ours {ours:.2f} s")
    print(f"ratio {theirs / ours:.2f}; scores apart by {(slow - fast).abs().max():.1e}")


def first(tokens: Tokens, count: int) -> Tokens:
    """The first texts of a split."""
    parts = (getattr(tokens, field.name) for field in fields(tokens))
    return Tokens(*(None if part is None else part[:count] for part in parts))


def bench_pack(learner: BiLSTMLearner, data: TokenData, models: int, steps: int) -> None:
    """Steps of a pack on a GPU against steps of one packed model."""
    alone = learner.begin([data], [0])
    order = alone.order(0)[:steps]
    model = straightforward(learner, data, one(alone))
    train_straightforward(model, data, order[:10, 0], learner)
    model.take(one(alone))
    slow, theirs = timed(learner.device, train_straightforward, model, data, order[:, 0], learner)
    pack = learner.begin([data] * models, list(range(models)))
    _, recording = timed(learner.device, pack.run_epoch)
    losses = pack.losses.cpu()[: len(slow), 0]
    _, ours = timed(learner.device, pack.run_epoch)
    each, shared = theirs / len(order), ours / (pack.steps_per_epoch * models)
    print(f"first epoch with recording {recording:.2f} s, second with validation {ours:.2f} s")
    print(f"one packed model: {1000 * each:.2f} ms a step")
    print(f"pack of {models}: {1000 * shared * models:.2f} ms a step, {1000 * shared:.4f} a model")
    apart = (torch.tensor(slow) - losses).abs()
    print(f"ratio {each / shared:.0f}; losses of 50 steps apart by {apart[:50].max():.1e}")


def bench_steps(
    learner: BiLSTMLearner, data: TokenData, models: int, seeds: int, steps: int
) -> None:
    """A recorded step of a pack of models of a few seeds, and where its time goes."""
    training = learner.begin([data] * models, [place % seeds for place in range(models)])
    recorded = _Recorded(training)
    steps = min(steps, training.steps_per_epoch)
    for _ in range(3):
        recorded.graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(steps - 3):
        recorded.graph.replay()
    end.record()
    torch.cuda.synchronize()
    step = begin.elapsed_time(end) / (steps - 3)
    whole = training.steps_per_epoch * learner.recipe.epochs
    read, real = sum(recorded.counts), float(data.train.lengths.double().mean())
    longest = len(recorded.counts) * training.batch_size
    print(f"{models} models, {seeds} seeds: {step:.2f} ms a step, {whole} steps a training")
    print(f"tokens of a batch: {real * training.batch_size:.0f} in it, {read} read, not {longest}")
    recorded.at.zero_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        recorded.graph.replay()
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
    for row in rows[:6]:
        print(f"  {row.self_device_time_total / 1e3:.2f} ms in {row.count} × {row.key[:70]}")


@torch.no_grad()
def accuracy(model: Straightforward, tokens: Tokens, device: str) -> float:
    """Share of texts that are answered rightly."""
    right = 0
    for rows in torch.arange(len(tokens)).split(256):
        ids, lengths, eligible, aux, aux_lengths, labels = padded(tokens, rows, device)
        logits = model(model.main.embedding(ids), lengths, eligible, aux, aux_lengths)
        right += int((logits.argmax(-1) == labels).sum())
    return right / len(tokens)


def bench_end(learner: BiLSTMLearner, data: TokenData, seeds: int) -> None:
    """Test accuracy of the best validation epoch: each seed alone, and in a pack."""
    pack = learner.begin([data] * seeds, list(range(seeds)))
    starts = [one(pack, seed) for seed in range(seeds)]
    while not pack.is_done:
        pack.run_epoch()
    ours = [trained.scores["accuracy"] for trained in pack.finish()]
    for seed in range(seeds):
        model = straightforward(learner, data, starts[seed])
        optimizer, best, end = adam(model, learner), -1.0, 0.0
        for epoch in range(learner.recipe.epochs):
            train_straightforward(model, data, pack.order(epoch)[:, seed], learner, optimizer)
            now = accuracy(model, data.validation, learner.device)
            if now > best:
                best, end = now, accuracy(model, data.test, learner.device)
        print(f"seed {seed}: straightforward {end:.4f}, in the pack {ours[seed]:.4f}", flush=True)


SHAPES = {"sst": (1920, 20, 58, 13766), "imdb": (640, 181, 399, 12482)}
"""Training texts, mean length, longest, words: the paper's data sets, fewer texts."""


def shaped(kind: str) -> TokenData:
    """Random words in the shape of a data set."""
    count, mean, longest, words = SHAPES[kind]
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Tokens:
        spread = torch.randn(count, generator=generator) * mean / 3 + mean
        lengths = spread.clamp(8, longest).long()
        lengths[0] = longest
        inside = torch.arange(longest) < lengths[:, None]
        ids = torch.randint(5, words, (count, longest), generator=generator) * inside
        ids[:, 0], ids[torch.arange(count), lengths - 1] = CLS, EOS
        labels = torch.randint(0, 2, (count,), generator=generator)
        return Tokens(ids, lengths, ids >= MASK, labels)

    return TokenData(
        name=f"shape:{kind}",
        kind=kind,
        train=split(count),
        validation=split(64),
        test=split(64),
        classes=("0", "1"),
        metric="macro_f1",
        selection="accuracy",
        words=tuple(map(str, range(words))),
        mask_id=MASK,
        pad_id=PAD,
    )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("train", "explain", "pack", "steps", "end"))
    parser.add_argument("--data", default="bundled:babi1")
    parser.add_argument("--device", default=None)
    parser.add_argument("--models", type=int, default=45)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    device = given.device or ("cuda" if given.what in ("pack", "steps") else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"there is no GPU for '{given.what}': run it where one is.")
    torch.set_num_threads(given.threads)
    if given.data.startswith("shape:"):
        data = shaped(given.data.removeprefix("shape:"))
        learner = BiLSTMLearner(data.kind, device=device)
    else:
        texts = load_text(given.data)
        learner = BiLSTMLearner(texts.kind, device=device)
        data = learner.encode(texts)
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor()
    print(f"{data.name}, {device} ({name}), {given.threads} thread(s), torch {torch.__version__}")
    if given.what == "train":
        bench_train(learner, data, given.steps)
    elif given.what == "explain":
        bench_explain(learner, data, given.texts)
    elif given.what == "pack":
        bench_pack(learner, data, given.models, given.steps or 60)
    elif given.what == "steps":
        bench_steps(learner, data, given.models, given.seeds, given.steps or 100)
    else:
        recipe = replace(learner.recipe, epochs=given.epochs)
        bench_end(BiLSTMLearner(data.kind, device=device, recipe=recipe), data, given.seeds)


if __name__ == "__main__":
    main()
