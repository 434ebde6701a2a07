"""Hugging Face sequence classifiers, unmodified: tokens to logits and their gradients.

Pretrained       a checkpoint by name: its tokenizer, and the weights that begin a training
TextClassifier   a module seen from its word embeddings, where a text is scaled and differentiated
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError
from faithscope.models.model import undisturbed
from faithscope.models.options import check_config, not_loaded

TOKENS_PER_PASS = 16 * 512
"""Tokens in one pass that explains: as many as the longest batch of a training has."""

T = TypeVar("T")


class Pretrained:
    """A checkpoint of Hugging Face by name, to be fine-tuned on so many classes.

    Args:
        name: ``hf:ID or folder`` of anything that AutoModelForSequenceClassification loads and
            that reads "start … end" with a mask token, as RoBERTa and BERT do.
        classes: how many classes the new head has.
        pretrained: take the checkpoint's weights; False begins with random ones.
        trust_remote_code: run the Python files that come with the model.
    """

    def __init__(
        self,
        name: str,
        classes: int,
        *,
        pretrained: bool = True,
        trust_remote_code: bool = False,
    ) -> None:
        source, colon, place = name.partition(":")
        if source != "hf" or not colon or not place:
            raise FaithscopeError(
                f"A text model is named 'hf:ID or folder', got '{name}': for example "
                "'hf:roberta-base'."
            )
        self.name, self.place, self.pretrained = name, _checked_place(name, place), pretrained
        self.trust = {"trust_remote_code": trust_remote_code}
        self.config = _read_config(name, self.place, classes, self.trust)
        with torch.device("meta"):
            shell = self._build()
        self.parameters: int = sum(parameter.numel() for parameter in shell.parameters())
        self.tokenizer = read_tokenizer(name, self.place, self.trust)
        self.start_id, self.end_id = self._delimiters()
        self.pad_id = self._special("pad")
        self.mask_id = self._special("mask")
        self.max_length = longest_text(shell, self.tokenizer)
        rows = shell.get_input_embeddings().num_embeddings
        if len(self.tokenizer) > rows:
            raise FaithscopeError(
                f"The tokenizer of '{name}' has {len(self.tokenizer)} tokens but its model embeds "
                f"{rows}: take the tokenizer that was trained with it."
            )

    def _build(self) -> Any:
        from transformers import AutoModelForSequenceClassification

        try:
            return AutoModelForSequenceClassification.from_config(self.config, **self.trust)
        except ValueError:
            raise FaithscopeError(
                f"'{self.name}' is a {self.config.model_type} model, which transformers has no "
                "sequence classifier for: name a text encoder, for example 'hf:roberta-base'."
            ) from None

    def _delimiters(self) -> tuple[int, int]:
        """What stands before and after every text: found by encoding the empty one."""
        around = self.tokenizer("")["input_ids"]
        if len(around) != 2:
            raise FaithscopeError(
                f"The tokenizer of '{self.name}' puts {len(around)} special tokens around a text "
                "instead of a start and an end token: use an encoder like RoBERTa or BERT."
            )
        return int(around[0]), int(around[1])

    def _special(self, role: str) -> int:
        found = getattr(self.tokenizer, f"{role}_token_id")
        if found is None:
            raise FaithscopeError(
                f"The tokenizer of '{self.name}' has no {role} token, without which no text can "
                "be masked: use an encoder like RoBERTa or BERT, or set it in the tokenizer."
            )
        return int(found)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """What every id stands for, as it is read (a byte of a character: as the token is)."""
        ids = range(len(self.tokenizer))
        tokens = self.tokenizer.convert_ids_to_tokens(list(ids))
        read = self.tokenizer.batch_decode([[i] for i in ids])
        return tuple(
            (token or "") if "\N{REPLACEMENT CHARACTER}" in text else text
            for token, text in zip(tokens, read, strict=True)
        )

    def build(self, seed: int) -> nn.Module:
        """A new float32 module on the CPU: the checkpoint below a head drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module: nn.Module = self._build().float()
        module.load_state_dict(self.backbone, strict=False)
        return module.eval()

    @cached_property
    def backbone(self) -> dict[str, Tensor]:
        """The checkpoint's weights but for any head it has."""
        from transformers import AutoModelForSequenceClassification

        if not self.pretrained:
            return {}
        module, report = _fetch(
            self.name,
            lambda: AutoModelForSequenceClassification.from_pretrained(
                self.place,
                config=self.config,
                ignore_mismatched_sizes=True,  # a head for other classes goes anyway
                output_loading_info=True,
                **self.trust,
            ),
        )
        prefix = f"{module.base_model_prefix}."
        unfit = {key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]}
        new = {key for key in {*report["missing_keys"], *unfit} if key.startswith(prefix)}
        lost = sorted(key for key in new if "pooler" not in key)  # a language model has no pooler
        if lost:
            raise FaithscopeError(
                f"The weights of '{self.name}' do not fit its configuration: {len(lost)} are "
                f"missing or of another shape (first: {lost[0]}); give a complete checkpoint."
            )
        state = module.float().state_dict()
        return {key: state[key] for key in state if key.startswith(prefix) and key not in new}

    def classifier(self, seed: int, device: str | torch.device = "cpu") -> TextClassifier:
        """The new module as something that can be trained and explained."""
        model = TextClassifier(self.build(seed).to(device), self.pad_id)
        special = set(self.tokenizer.all_special_ids)
        a, b = [i for i in range(len(self.tokenizer)) if i not in special][:2]
        start, end, pad = self.start_id, self.end_id, self.pad_id
        ids = [[start, a, b, a, end], [start, b, end, pad, pad]]
        model.check(self.name, torch.tensor(ids, device=device))
        return model


@dataclass(eq=False)
class TextClassifier:
    """A sequence classifier that reads word embeddings; `module` is left as it is.

    ids [B, T] are padded on the right with `pad_id`; lengths [B] are those of the main part, and
    what follows it is the auxiliary text.
    """

    module: nn.Module
    pad_id: int
    tokens_per_pass: int = TOKENS_PER_PASS

    def __post_init__(self) -> None:
        self._gram: tuple[object, Tensor] | None = None
        takes = inspect.signature(self.module.forward).parameters
        self._has_types = (
            "token_type_ids" in takes
            and getattr(self.module.config, "type_vocab_size", 0) > 1  # RoBERTa has but one
        )

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return self.embedding.weight.device

    @property
    def embedding(self) -> nn.Embedding:
        found: Any = self.module.get_input_embeddings()  # type: ignore[operator]
        return found  # type: ignore[no-any-return]

    def logits(self, ids: Tensor, lengths: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """Logits [B, C] of tokens, or of other word embeddings [B, T, E] in their places."""
        read = ids != self.pad_id
        inputs = {"inputs_embeds": self.embedding(ids) if embeddings is None else embeddings}
        if self._has_types:
            inputs["token_type_ids"] = (read & ~within(lengths, ids.shape[1])).long()
        found: Tensor = self.module(**inputs, attention_mask=read.long()).logits
        return found

    def gram(self) -> Tensor:
        """The Gram matrix W^T W [E, E] of the word embeddings, made once per weights."""
        weight = self.embedding.weight.detach()
        # an optimiser's step and loading weights raise the version; .double() moves the data
        key = (weight.data_ptr(), weight._version, weight.dtype)
        if self._gram is None or self._gram[0] != key:
            self._gram = key, weight.T @ weight
        return self._gram[1]

    def gradient(self, ids: Tensor, lengths: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        """The gradient of each text's gold logit at its embeddings: that of their sum."""
        inputs = embeddings.detach().requires_grad_()
        gold = self.logits(ids, lengths, inputs).gather(1, labels[:, None]).sum()
        return torch.autograd.grad(gold, inputs)[0]

    def path_gradient(
        self,
        ids: Tensor,
        lengths: Tensor,
        labels: Tensor,
        embeddings: Tensor,
        path: Sequence[tuple[float, float]],
        start: Tensor | None = None,
    ) -> Tensor:
        """The weighted sum of the gradients on a path, as many of its places as fit per pass.

        `path` has the share of the way from `start`, 0 if there is none, and the weight of each
        place; beyond the main part nothing changes.
        """
        main = within(lengths, ids.shape[1])[..., None]
        start = torch.zeros_like(embeddings) if start is None else start
        total = torch.zeros_like(embeddings)
        together = max(1, self.tokens_per_pass // ids.numel())
        for first in range(0, len(path), together):
            part = embeddings.new_tensor(path[first : first + together])
            count = len(part)
            shares = part[:, 0, None, None, None]
            between = start + shares * (embeddings - start)  # [A, B, T, E]
            gradients = self.gradient(
                ids.repeat(count, 1),
                lengths.repeat(count),
                labels.repeat(count),
                torch.where(main, between, embeddings).flatten(0, 1),
            )
            total += torch.einsum(
                "a,abte->bte", part[:, 1], gradients.view(count, *embeddings.shape)
            )
        return total

    def predict(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits [N, C] of texts [N, T], on the CPU."""
        rows = torch.zeros(0)
        with undisturbed(self.module), torch.no_grad():
            for index, part in self.by_length(ids):
                logits = self.logits(part, lengths[index].to(self.device)).cpu()
                if not len(rows):
                    rows = logits.new_zeros(len(ids), logits.shape[1])
                rows[index] = logits
        return rows

    def by_length(self, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Texts of like lengths in batches: their places, and their ids on the device."""
        totals = read_lengths(ids, self.pad_id)
        for index in by_length(totals, self.tokens_per_pass):
            yield index, ids[index, : int(totals[index].max())].to(self.device)

    def check(self, name: str, ids: Tensor) -> None:
        """Refuse a model that does not read the same from embeddings, or beside longer texts.

        ids [B, T] are complete texts of which some are padded.
        """
        totals = read_lengths(ids, self.pad_id)
        try:
            with undisturbed(self.module), torch.no_grad():
                mask = (ids != self.pad_id).long()
                expected = self.module(input_ids=ids, attention_mask=mask).logits
                batch = self.logits(ids, totals)
                alone = [
                    self.logits(row[None, :n], n[None]) for row, n in zip(ids, totals, strict=True)
                ]
        except Exception as error:
            said = str(error).strip().splitlines()[0] if str(error).strip() else "no reason"
            raise FaithscopeError(
                f"'{name}' cannot be read from word embeddings ({type(error).__name__}: {said}): "
                "use an encoder like RoBERTa or BERT."
            ) from None
        near = 1e-3 * expected.abs().max()
        for found in (batch, torch.cat(alone)):
            if not (found - expected).abs().max() <= near:
                raise FaithscopeError(
                    f"'{name}' answers differently when it reads word embeddings or padded texts, "
                    "so that its gradients would mislead: use an encoder like RoBERTa or BERT."
                )


def within(lengths: Tensor, width: int) -> Tensor:
    """Which of `width` positions lie within each length: lengths [B] -> bool [B, width].

    >>> within(torch.tensor([1, 3]), 3).int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def read_lengths(ids: Tensor, pad_id: int) -> Tensor:
    """How far each text goes before its padding: ids [B, T] -> [B].

    >>> read_lengths(torch.tensor([[5, 6, 0], [0, 0, 0]]), 0)
    tensor([2, 0])
    """
    places = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return ((ids != pad_id) * places).amax(1) if ids.numel() else places.new_zeros(len(ids))


def by_length(lengths: Tensor, tokens: int) -> Iterator[Tensor]:
    """Batch texts of like lengths, longest first: their indices, at most `tokens` with padding.

    >>> [batch.tolist() for batch in by_length(torch.tensor([2, 9, 3, 2]), 6)]
    [[1], [2, 0], [3]]
    """
    order = lengths.argsort(descending=True, stable=True)
    first = 0
    while first < len(order):
        count = max(1, tokens // max(1, int(lengths[order[first]])))
        yield order[first : first + count]
        first += count


def _checked_place(name: str, place: str) -> str:
    """The ID, or the folder with its ~ resolved; a path that is no folder is refused at once."""
    path = Path(place).expanduser()
    if path.is_dir():
        return str(path)
    if place.startswith(("/", ".", "~")) or path.exists():
        raise FaithscopeError(f"There is no folder '{place}' (model '{name}'): check the path.")
    return place


def _read_config(name: str, place: str, classes: int, trust: Mapping[str, bool]) -> Any:
    from transformers import AutoConfig

    config = _fetch(name, lambda: AutoConfig.from_pretrained(place, num_labels=classes, **trust))
    check_config(name, config)
    return config


def read_tokenizer(name: str, place: str, trust: Mapping[str, bool]) -> Any:
    """The fast tokenizer that comes with a model."""
    from transformers import AutoTokenizer

    complaint = FaithscopeError(
        f"'{name}' comes without a fast tokenizer: save one beside the model "
        "(tokenizer.save_pretrained)."
    )
    if not Path(place).is_dir():
        tokenizer = _fetch(name, lambda: AutoTokenizer.from_pretrained(place, **trust))
    else:
        try:
            tokenizer = quietly(lambda: AutoTokenizer.from_pretrained(place, **trust))
        except Exception:
            raise complaint from None
    # where the files are missing, transformers 5 makes one that knows special tokens only
    if not tokenizer.is_fast or len(tokenizer) <= len(tokenizer.all_special_ids):
        raise complaint
    return tokenizer


def longest_text(shell: nn.Module, tokenizer: Any) -> int:
    """The most tokens that the model has positions for and its tokenizer allows."""
    limits = [int(tokenizer.model_max_length)]  # astronomical where it was not set
    config: Any = shell.config
    positions = getattr(config, "max_position_embeddings", None) or 0
    if positions > 0:
        offsets = [
            module.padding_idx + 1  # RoBERTa's positions begin behind that of the padding
            for name, module in shell.named_modules()
            if name.endswith("position_embeddings")
            and isinstance(module, nn.Embedding)
            and module.padding_idx is not None
        ]
        limits.append(positions - max(offsets, default=0))
    return min(limits)


def _fetch(name: str, build: Callable[[], T]) -> T:
    try:
        return quietly(build)
    except Exception as error:
        raise not_loaded(
            name,
            error,
            "without a network give a local folder with its configuration, weights and tokenizer",
        ) from None


def quietly(build: Callable[[], T]) -> T:
    """Load without progress bars, and without a word of what is new or left over."""
    with _silence():
        return build()


@contextmanager
def _silence() -> Iterator[None]:
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
