"""A text classifier of Hugging Face as faithscope sees it: the module, its tokenizer, its units."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, choose, shown
from faithscope.models.model import Model, unwrap_logits
from faithscope.models.text_classifier import longest_text
from faithscope.models.tokens import NO_UNIT, TokenInputs
from faithscope.models.vit import find_vit

UNITS = ("tokens", "words")
SIDES = ("both", "first", "second")


@dataclass(frozen=True)
class Encoded:
    """One text, or one pair, as a model reads it.

    `units` has the unit of each token, `words` what each unit is called.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...]
    units: tuple[int, ...]
    words: tuple[str, ...]
    is_cut: bool = False

    def inputs(self) -> TokenInputs:
        """A batch of this text alone."""
        ids, types, units = (torch.tensor([part]) for part in (self.ids, self.types, self.units))
        return TokenInputs(ids, torch.ones_like(ids), types, units, len(self.words))


@dataclass(frozen=True, eq=False, repr=False)
class TextModel(Model):
    """An unmodified sequence classifier and the tokenizer that feeds it.

    `units` says what is ranked, "tokens" or whole "words"; `side` which text of a pair.
    """

    modality: ClassVar[str] = "text"

    tokenizer: Any = None
    units: str = "tokens"
    side: str = "both"

    def __repr__(self) -> str:
        return f"TextModel({self.name}, {self.units}, weights {self.weights})"

    # Reading

    def logits(self, inputs: Any) -> Tensor:
        """Run the model once on texts."""
        return self._answer(inputs, {"input_ids": inputs.ids})

    def embed(self, inputs: Any) -> Tensor:
        """The word embeddings of texts, [B, T, E]."""
        words: Tensor = self.embedding(inputs.ids)
        return words.detach().clone()

    def read(self, inputs: Any, embedded: Tensor) -> Tensor:
        """Run the model on other word embeddings [B, T, E] in the places of these texts."""
        return self._answer(inputs, {"inputs_embeds": embedded})

    def _answer(self, inputs: TokenInputs, words: dict[str, Tensor]) -> Tensor:
        if self._has_types:
            words["token_type_ids"] = inputs.types
        config: Any = self.module.config
        unset = getattr(config, "pad_token_id", None) is None
        if unset:  # decoders refuse several texts if they could be padded; ours never are
            config.pad_token_id = NO_UNIT
        try:
            made = self.module(**words, attention_mask=inputs.attended)
        finally:
            if unset:
                config.pad_token_id = None
        return unwrap_logits(made, len(inputs), self.output)

    @property
    def embedding(self) -> nn.Embedding:
        """The table of word embeddings."""
        found: Any = self.module.get_input_embeddings()  # type: ignore[operator]
        return found  # type: ignore[no-any-return]

    @cached_property
    def _has_types(self) -> bool:
        takes = inspect.signature(self.module.forward).parameters
        kinds = getattr(self.module.config, "type_vocab_size", 0)
        return "token_type_ids" in takes and int(kinds or 0) > 1

    def numbers(self, inputs: Any) -> int:
        """How many numbers the model reads of one text."""
        return int(inputs.ids.shape[1] * self.embedding.embedding_dim)

    def padded(self, inputs: TokenInputs, *, keep_special: bool) -> TokenInputs:
        """The same texts with [PAD] in the place of every token, or of all but special ones."""
        pad = self.specials["pad"]
        if pad is None:
            reason = "its tokenizer has no pad token"
            raise FaithscopeError(
                f"{self.name} cannot be read with [PAD] as its words, since {reason}: choose "
                "baseline=zero.",
                reason=reason,
            )
        ids = torch.full_like(inputs.ids, pad)
        if keep_special:
            known = torch.tensor(sorted(self._never_ranked), device=ids.device)
            ids = torch.where(torch.isin(inputs.ids, known), inputs.ids, ids)
        return inputs.with_ids(ids)

    # Units

    def grid(self, height: int, width: int) -> tuple[int, int] | None:
        """A row of units."""
        return height, width

    def require_grid(self, images: Any, needed_by: str) -> tuple[int, int]:
        """A row of units."""
        return 1, images.count

    def token_counts(self, height: int, width: int) -> frozenset[int]:
        """Maps of texts cannot be mistaken for attention."""
        return frozenset()

    def with_units(self, units: str, side: str) -> TextModel:
        """The same module, explained by other units or of another side of pairs."""
        choose("units of texts", units, UNITS)
        choose("side", side, SIDES)
        return replace(self, units=units, side=side)

    @property
    def preparation(self) -> str:
        """What decides how a text becomes tokens: a hash of the tokenizer."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        made = backend.to_str() if backend is not None else str(sorted(self.tokenizer.get_vocab()))
        return f"tokenizer {hashlib.blake2b(made.encode(), digest_size=8).hexdigest()}"

    @property
    def specials(self) -> dict[str, int | None]:
        """The ids of the tokens that can stand in the place of others."""
        names = ("mask", "unk", "pad")
        return {name: getattr(self.tokenizer, f"{name}_token_id", None) for name in names}

    @cached_property
    def max_length(self) -> int:
        """The most tokens that the model reads."""
        return longest_text(self.module, self.tokenizer)

    @cached_property
    def _never_ranked(self) -> frozenset[int]:
        """Special tokens; one that stands for a word is a word."""
        words = {self.tokenizer.mask_token_id, self.tokenizer.unk_token_id}
        return frozenset(self.tokenizer.all_special_ids) - words

    def encode(self, text: str, pair: str | None = None) -> Encoded:
        """Tokens and units of a text, or of a pair; what the model has no place for is cut off."""
        given = (text,) if pair is None else (text, pair)
        whole = self.tokenizer(*given, truncation=False, verbose=False)
        is_cut = len(whole["input_ids"]) > self.max_length
        made = whole
        if is_cut:
            made = self.tokenizer(*given, truncation=True, max_length=self.max_length)
        ids = tuple(made["input_ids"])
        types = tuple(made.get("token_type_ids") or [0] * len(ids))
        sides = made.sequence_ids() if hasattr(made, "sequence_ids") else [0] * len(ids)
        ranked = [
            token not in self._never_ranked and side is not None and self._asks(side)
            for token, side in zip(ids, sides, strict=True)
        ]
        if self.units == "words":
            return self._by_word(given, made, ids, types, sides, ranked, is_cut)
        return self._by_token(ids, types, ranked, is_cut)

    def _asks(self, side: int) -> bool:
        return self.side == "both" or SIDES.index(self.side) == side + 1

    def _by_token(
        self, ids: Sequence[int], types: Sequence[int], ranked: Sequence[bool], is_cut: bool = False
    ) -> Encoded:
        units, words = [], list[str]()
        for token, counts in zip(ids, ranked, strict=True):
            units.append(len(words) if counts else NO_UNIT)
            if counts:
                words.append(self.token_name(token))
        return Encoded(tuple(ids), tuple(types), tuple(units), tuple(words), is_cut)

    def _by_word(
        self,
        given: Sequence[str],
        made: Any,
        ids: tuple[int, ...],
        types: tuple[int, ...],
        sides: Sequence[int | None],
        ranked: Sequence[bool],
        is_cut: bool,
    ) -> Encoded:
        places: dict[tuple[int | None, int | None], int] = {}
        units, words = [], list[str]()
        for side, word, counts in zip(sides, made.word_ids(), ranked, strict=True):
            if not counts or side is None or word is None:
                units.append(NO_UNIT)
                continue
            if (side, word) not in places:
                places[side, word] = len(words)
                span = made.word_to_chars(word, sequence_index=side)
                words.append(given[side][span.start : span.end])
            units.append(places[side, word])
        return Encoded(ids, types, tuple(units), tuple(words), is_cut)

    def token_name(self, token: int) -> str:
        """What a token is called: as it reads, with the mark of a word's beginning left out."""
        read = self.tokenizer.decode([token])
        name = str(self.tokenizer.convert_ids_to_tokens(token))
        return name if "\N{REPLACEMENT CHARACTER}" in read or not read.strip() else name_of(name)

    def encode_ids(self, ids: Sequence[int], types: Sequence[int] | None = None) -> Encoded:
        """Units of a text that was tokenized already, without its padding; units are tokens."""
        if self.units != "tokens":
            raise FaithscopeError(
                "Words are found by the tokenizer: give texts, or choose units='tokens'."
            )
        if len(ids) > self.max_length:
            raise FaithscopeError(
                f"A text has {len(ids)} tokens, and {self.name} reads {self.max_length}: cut it."
            )
        sides = _sides(ids, types, self.tokenizer.sep_token_id)
        ranked = [
            token not in self._never_ranked and self._asks(side)
            for token, side in zip(ids, sides, strict=True)
        ]
        return self._by_token(ids, types or [0] * len(ids), ranked)


def name_of(token: str) -> str:
    """A token without the marks that tokenizers put on words and their pieces.

    >>> name_of("Ġgood"), name_of("▁good"), name_of("##ness")
    ('good', 'good', '##ness')
    """
    return token.lstrip("Ġ▁").removesuffix("</w>") or token


def _sides(ids: Sequence[int], types: Sequence[int] | None, separator: int | None) -> list[int]:
    """To which text of a pair each token belongs: by its type, or by the separators before it."""
    if types is not None and any(types):
        return [min(1, kind) for kind in types]
    sides, ended = [], 0
    for place, token in enumerate(ids):
        sides.append(min(1, ended))
        ended += token == separator and place > 0
    return sides


def text_model(
    module: nn.Module,
    tokenizer: Any,
    *,
    name: str,
    classes: Sequence[str] | None = None,
    **view: Any,
) -> TextModel:
    """Wrap a sequence classifier and its tokenizer."""
    embedding = getattr(module, "get_input_embeddings", lambda: None)()
    if not isinstance(embedding, nn.Embedding) or not hasattr(module, "config"):
        raise FaithscopeError(
            f"{name} is no text classifier of Hugging Face (a …ForSequenceClassification with word "
            "embeddings): give one, or leave the tokenizer out."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise FaithscopeError(
            f"The tokenizer of a text model must be a fast one of Hugging Face, got "
            f"{shown(tokenizer)}: use AutoTokenizer.from_pretrained."
        )
    if len(tokenizer) > embedding.num_embeddings:
        raise FaithscopeError(
            f"The tokenizer has {len(tokenizer)} tokens but {name} embeds "
            f"{embedding.num_embeddings}: take the tokenizer that was trained with it."
        )
    config: Any = module.config
    names: Mapping[int, str] = getattr(config, "id2label", None) or {}
    return TextModel(
        module=module,
        name=name,
        classes=tuple(classes) if classes else tuple(names[i] for i in sorted(names)) or None,
        vit=find_vit(module, **view),
        output="sigmoid"
        if getattr(config, "problem_type", None) == "multi_label_classification"
        else "softmax",
        tokenizer=tokenizer,
    )
