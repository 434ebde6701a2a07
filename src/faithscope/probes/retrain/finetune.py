"""Fine-tuning a Hugging Face sequence classifier as the paper does: RoBERTa's recipe, any encoder.

A training depends on its data, its seed and its recipe only: the head, the order of the texts and
the dropout are keyed by (seed, epoch), so a resumed training continues as if never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faithscope.data.encoding import encode
from faithscope.data.text import TextData, TokenData, Tokens
from faithscope.errors import FaithscopeError
from faithscope.methods import Method
from faithscope.methods.encoder import explain_blocks, explain_tokens
from faithscope.methods.text import reads_words_only
from faithscope.models import TextModel
from faithscope.models.device import device_to_train_on
from faithscope.models.tensor_files import tensor_digest
from faithscope.models.text_classifier import Pretrained, TextClassifier, read_lengths
from faithscope.models.text_model import text_model, tokenizer_digest
from faithscope.probes.retrain.classification import classification_scores, selection_score
from faithscope.probes.retrain.graphs import Lane
from faithscope.probes.retrain.learner import Learner, Recipe, Trained, Training, Weights
from faithscope.probes.retrain.pack import Epochs, best_epoch
from faithscope.rng import stream_keys

BETAS, EPSILON, WARM_UP = (0.9, 0.98), 1e-8, 0.06

PACK_ON_GPU, ROOM_ON_GPU = 12, 1 / 3
"""Models that are trained together at most, and the share of a GPU's memory that they may take."""
NUMBERS_OF_A_TOKEN = 40
"""What a token leaves behind in a layer until the backward pass, in units of its width."""
WIDTHS = 4
"""On a GPU the longest text of a batch is counted as a multiple of this."""


def finetune_recipe(kind: str) -> Recipe:
    """The paper's recipe for RoBERTa on a kind of data set.

    >>> finetune_recipe("babi").epochs, finetune_recipe("sst").epochs
    (8, 3)
    """
    epochs = 8 if kind == "babi" else 3
    return Recipe(epochs=epochs, batch_size=16, learning_rate=2e-5, weight_decay=0.01)


def warm_up_and_decay(step: int, steps: int) -> float:
    """The share of the learning rate at a step (from 0): linear up to 1, then down to 0.

    The first int(0.06 steps) steps lead up.

    >>> [round(warm_up_and_decay(step, 100), 2) for step in (0, 3, 6, 53, 99)]
    [0.0, 0.5, 1.0, 0.5, 0.01]
    """
    warm_up = int(WARM_UP * steps)
    return step / warm_up if step < warm_up else (steps - step) / max(1, steps - warm_up)


class FinetuneLearner(Learner):
    """A pretrained encoder to be fine-tuned on one data set, on a GPU several models at a time.

    Args:
        name: ``hf:ID or folder``.
        data: the data set, whose kind chooses the recipe and whose classes size the head.
        recipe: how to train, if not as the paper does.
        device: "auto" is a GPU if there is one.
        pretrained: take the checkpoint's weights; False begins with random ones.
        trust_remote_code: run the Python files that come with the model.
    """

    explains_one_by_one = True

    def __init__(
        self,
        name: str,
        data: TextData,
        *,
        recipe: Recipe | None = None,
        device: str = "auto",
        pretrained: bool = True,
        trust_remote_code: bool = False,
    ) -> None:
        self.name = name
        self.device = str(device_to_train_on(device))
        self.recipe = recipe or finetune_recipe(data.kind)
        self.checkpoint = Pretrained(
            name, len(data.classes), pretrained=pretrained, trust_remote_code=trust_remote_code
        )
        self.pack_size = 1
        self._heads: dict[int, Weights] = {}
        self._benches: list[Bench] = []

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights a training begins with, so that others are noticed."""
        about = {
            "pretrained": str(self.checkpoint.pretrained),
            "size": str(self.checkpoint.parameters),
        }
        return tensor_digest(self.checkpoint.backbone, about)

    def parameters(self, data: TokenData) -> int:
        """How many numbers a model learns; the data set does not change them."""
        return self.checkpoint.parameters

    def card(self, data: TokenData) -> dict[str, Any]:
        """What is needed to use a trained model, beside its weights."""
        held = self.checkpoint
        known = {"checkpoint": held.name, "tokenizer": tokenizer_digest(held.tokenizer)}
        return {"kind": "hf", **known, "classes": data.classes}

    def encode(self, data: TextData) -> TokenData:
        made = encode(self.checkpoint, data)
        if torch.device(self.device).type == "cuda":
            room = ROOM_ON_GPU * torch.cuda.get_device_properties(self.device).total_memory
            self.pack_size = max(1, min(PACK_ON_GPU, int(room // self._bytes(made))))
        return made

    def _bytes(self, data: TokenData) -> int:
        """About what one model of a pack takes: itself, its gradient, its moments, a step."""
        config: Any = self.checkpoint.config
        wide = int(getattr(config, "hidden_size", 0) or 768)
        deep = int(getattr(config, "num_hidden_layers", 0) or 12)
        tokens = self.recipe.batch_size * data.train.ids.shape[1]
        return 16 * self.checkpoint.parameters + 4 * NUMBERS_OF_A_TOKEN * tokens * wide * deep

    def begin(self, data: Sequence[TokenData], seeds: Sequence[int]) -> Training:
        while len(self._benches) < len(data):
            self._benches.append(self._bench())
        benches = [self._benches.pop() for _ in data]
        for bench, seed in zip(benches, seeds, strict=True):
            bench.reset(self._initial(seed))
        members = [
            Finetuning(bench, one, seed=seed, recipe=self.recipe)
            for bench, one, seed in zip(benches, data, seeds, strict=True)
        ]
        return FinetuningPack(members, self._benches)

    def _bench(self) -> Bench:
        with _random_state_kept(torch.device(self.device)):
            return Bench(self.checkpoint.classifier(0, self.device), self.recipe)

    def _initial(self, seed: int) -> Weights:
        """The weights that a training begins with: the checkpoint below a head of the seed."""
        if seed not in self._heads:
            shared = self.checkpoint.backbone
            state = self.checkpoint.build(seed).state_dict()
            self._heads[seed] = {key: state[key] for key in state if key not in shared}
        return {**self.checkpoint.backbone, **self._heads[seed]}

    def explain(
        self,
        weights: Sequence[Weights],
        tokens: Sequence[Tokens],
        measure: Method,
        seeds: Sequence[int],
    ) -> list[Tensor]:
        return self.explain_together(weights, tokens, [measure], seeds)[0]

    def explain_together(
        self,
        weights: Sequence[Weights],
        tokens: Sequence[Tokens],
        measures: Sequence[Method],
        seeds: Sequence[int],
    ) -> list[list[Tensor]]:
        """By measure, the scores of every model; what reads blocks shares one trace."""
        for measure in measures:
            self.check(measure)
            if not measure.reads_model:
                raise FaithscopeError(f"The measure '{measure.label}' does not ask the model.")
        found = []
        with _random_state_kept(torch.device(self.device)):
            for state, part in zip(weights, tokens, strict=True):
                self._explained.module.load_state_dict(state)
                found.append(self._scores(part, measures))
        return [list(column) for column in zip(*found, strict=True)]

    def _scores(self, tokens: Tokens, measures: Sequence[Method]) -> list[Tensor]:
        """Scores [N, T] of a split by each measure, of the module as it is."""
        model = self._explained
        of_blocks = [measure for measure in measures if not reads_words_only(measure)]
        made = iter(
            explain_blocks(
                self._seen_inside,
                tokens,
                of_blocks,
                pad_id=model.pad_id,
                tokens_per_pass=model.tokens_per_pass,
            )
            if of_blocks
            else []
        )
        return [
            explain_tokens(model, tokens, measure) if reads_words_only(measure) else next(made)
            for measure in measures
        ]

    @cached_property
    def _seen_inside(self) -> TextModel:
        """The module to explain, with its blocks."""
        return text_model(self._explained.module, self.checkpoint.tokenizer, name=self.name)

    @cached_property
    def _explained(self) -> TextClassifier:
        """The one module that weights to explain are loaded into."""
        return self.checkpoint.classifier(0, self.device)

    def check(self, measure: Method) -> None:
        if measure.label == "attention":
            reason = (
                f"The measure 'attention' needs one attention weight per token, but "
                f"'{self.name}' has several layers of many heads"
            )
            advice = "say which, as rollout or raw_attention do, or use the BiLSTM"
            raise FaithscopeError(f"{reason}: {advice}.", reason=reason)
        if not reads_words_only(measure) and not measure.is_random:
            self._seen_inside.require_vit(f"The measure '{measure.label}'")


class Bench:
    """Where a model is trained: a module, its optimiser and a lane, used for one after another."""

    def __init__(self, model: TextClassifier, recipe: Recipe) -> None:
        self.model = model
        self.lane = Lane(model.device, self._step)
        self.optimizer = make_optimizer(model.module, recipe, in_graphs=self.lane.is_fast)
        if self.lane.is_fast:
            self._prepare()

    def _prepare(self) -> None:
        """Take a step without consequences, for what is made only once: moments, handles."""
        ids = torch.full((2, 8), self.model.pad_id + 1, device=self.model.device)
        self.lane.begin()
        with self.lane.entered():
            for _ in range(2):
                self._step(ids, torch.full_like(ids[:, 0], 8), torch.zeros_like(ids[:, 0]))
        self.lane.end()

    def _step(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(self.model.logits(ids, lengths), labels)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next steps."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def reset(self, weights: Weights, moments: Mapping[int, Weights] | None = None) -> None:
        """Begin with these weights, in their places, and with what the optimiser remembers."""
        self.model.module.load_state_dict(weights)
        if self.lane.is_fast:
            for number, memory in self.optimizer.state_dict()["state"].items():
                for key, value in memory.items():
                    value.copy_(moments[number][key]) if moments else value.zero_()
            return
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": dict(moments or {}), "param_groups": groups})

    def state(self) -> dict[str, Tensor]:
        """Weights, and what the optimiser remembers."""
        found = _named("model", self.model.module.state_dict())
        for number, memory in self.optimizer.state_dict()["state"].items():
            found |= _named(f"optimizer.{number}", memory)
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state."""
        memory: dict[int, dict[str, Tensor]] = {}
        for name, value in _under("optimizer", state).items():
            number, _, key = name.partition(".")
            memory.setdefault(int(number), {})[key] = value
        self.reset(_under("model", state), memory)


class FinetuningPack(Training):
    """The fine-tuning of several models, a step of each in turn; on a GPU beside each other.

    A model of a pack is the one that would be fine-tuned alone: nothing is shared but the device.
    """

    def __init__(self, members: Sequence[Finetuning], free: list[Bench]) -> None:
        self.members, self._free = members, free

    @property
    def epoch(self) -> int:
        return self.members[0].epoch

    @property
    def is_done(self) -> bool:
        return self.members[0].is_done

    def run_epoch(self) -> None:
        with _random_state_kept(self.members[0].model.device):
            for group in zip(*(one.steps() for one in self.members), strict=True):
                for step in group:
                    step()
            for one in self.members:
                one.validate()

    def state(self) -> dict[str, Tensor]:
        """Weights, what AdamW remembers, the scores so far and, where they differ, the best.

        The epoch says which part of the schedule, of the order and of the dropout comes next.
        """
        found: dict[str, Tensor] = {}
        for place, one in enumerate(self.members):
            found |= _named(str(place), one.state())
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for place, one in enumerate(self.members):
            one.load_state(_under(str(place), state))

    def finish(self) -> list[Trained]:
        with _random_state_kept(self.members[0].model.device):
            finished = [one.finish() for one in self.members]
        self._free += [one.bench for one in self.members if one.bench not in self._free]
        return finished


class Finetuning(Epochs):
    """The fine-tuning of one model."""

    def __init__(self, bench: Bench, data: TokenData, *, seed: int, recipe: Recipe) -> None:
        self.bench, self.data, self.seed, self.recipe = bench, data, seed, recipe
        self.model, self.module = bench.model, bench.model.module
        self.validation = list[float]()
        self.best: Weights = {}
        tokens, device = data.train, self.model.device
        self._read = read_lengths(tokens.ids, data.pad_id)
        self._train = [part.to(device) for part in (tokens.ids, tokens.lengths, tokens.labels)]

    def steps(self) -> Iterator[Callable[[], Tensor]]:
        """The steps of the next epoch; each gives its loss."""
        order = torch.randperm(len(self._read), generator=self._generator("order"))
        batches = torch.split(order, self.recipe.batch_size)
        done, steps = self.epoch * len(batches), self.recipe.epochs * len(batches)
        self.module.train()
        lane = self.bench.lane
        lane.begin()
        lane.seed(self._key("dropout"))
        for number, index in enumerate(batches, start=done):
            yield partial(self._step, index, warm_up_and_decay(number, steps))
        lane.end()
        self.module.eval()

    def _step(self, index: Tensor, share: float) -> Tensor:
        lane, width = self.bench.lane, int(self._read[index].max())
        if lane.is_fast:  # fewer shapes, fewer graphs
            width = min(-(-width // WIDTHS) * WIDTHS, self._train[0].shape[1])
        with lane.entered():
            self.bench.set_rate(self.recipe.learning_rate * share)
            index = index.to(self.model.device, non_blocking=True)
            ids, lengths, labels = (part[index] for part in self._train)
            return lane.take(ids[:, :width], lengths, labels)

    def validate(self) -> None:
        """Score the epoch, and keep the weights if it is the best so far."""
        validation = self.data.validation
        logits = self.model.predict(validation.ids, validation.lengths)
        self.validation.append(selection_score(logits, validation.labels, self.data.selection))
        if best_epoch(self.validation) == self.epoch:
            self.best = _copy(self.module.state_dict())

    def _key(self, purpose: str) -> int:
        keys = stream_keys(["finetune"], seed=self.seed, purpose=purpose, draw=self.epoch)
        return int(keys[0])

    def _generator(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(self._key(purpose))

    def state(self) -> dict[str, Tensor]:
        """Everything needed to resume."""
        found = self.bench.state()
        if best_epoch(self.validation) != self.epoch:
            found |= _named("best", self.best)
        scores = torch.tensor(self.validation, dtype=torch.float64)
        return _copy(found | {"validation": scores})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        self.bench.load_state(state)
        self.validation = state["validation"].tolist()
        is_best = 0 < best_epoch(self.validation) == self.epoch
        self.best = _copy(_under("model" if is_best else "best", state))

    def finish(self) -> Trained:
        """Test the best epoch."""
        if not self.best:
            raise FaithscopeError("This training has not finished an epoch: run one first.")
        self.module.load_state_dict(self.best)
        test = self.data.test
        logits = self.model.predict(test.ids, test.lengths)
        scores = classification_scores(logits, test.labels)
        history = tuple(self.validation)
        return Trained(self.best, best_epoch(history), history, scores)


def make_optimizer(
    module: nn.Module, recipe: Recipe, *, in_graphs: bool = False
) -> torch.optim.AdamW:
    """AdamW whose weight decay spares biases and the weights of normalisations."""
    spared = {
        f"{name}.{own}"
        for name, child in module.named_modules()
        for own, _ in child.named_parameters(recurse=False)
        if own == "bias" or "Norm" in type(child).__name__
    }
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if name not in spared]},
        {"params": [p for name, p in named if name in spared], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=torch.tensor(recipe.learning_rate, device=groups[0]["params"][0].device)
        if in_graphs
        else recipe.learning_rate,
        betas=BETAS,
        eps=EPSILON,
        weight_decay=recipe.weight_decay,
        fused=True,
        capturable=in_graphs,
    )


@contextmanager
def _random_state_kept(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside, also by a library, random state is as it was outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def _named(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in state.items()}


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name[len(start) :]: state[name] for name in state if name.startswith(start)}
