"""A text classifier of Hugging Face as faithscope sees it: the module, its tokenizer, its units."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature, unwrap
from itertools import chain, compress, count
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

    `units` has the unit of each token, `words` what each unit is called; `second` is the first unit
    of the second text where both of a pair are ranked.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...]
    units: tuple[int, ...]
    words: tuple[str, ...]
    is_cut: bool = False
    second: int | None = None


def batch_of(texts: Sequence[Encoded]) -> TokenInputs:
    """Texts of equally many tokens and units as one batch."""
    ids = torch.tensor([one.ids for one in texts])
    types = torch.tensor([one.types for one in texts])
    units = torch.tensor([one.units for one in texts])
    return TokenInputs(ids, torch.ones_like(ids), types, units, len(texts[0].words))


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
        """The word embeddings of texts, [B, T, E], in at least float32."""
        words: Tensor = self.embedding(inputs.ids)
        return words.detach().to(torch.promote_types(words.dtype, torch.float32), copy=True)

    def read(self, inputs: Any, embedded: Tensor) -> Tensor:
        """Run the model on other word embeddings [B, T, E] in the places of these texts."""
        try:
            return self._answer(inputs, {"inputs_embeds": embedded})
        except NotImplementedError as error:
            reason = f"it takes no word embeddings ({str(error).splitlines()[0]})"
            raise FaithscopeError(
                f"{self.name} cannot be explained by gradients or attention, since {reason}: give "
                "maps of your own.",
                reason=reason,
            ) from None

    def _answer(self, inputs: TokenInputs, words: dict[str, Any]) -> Tensor:
        if self._has_types:
            words["token_type_ids"] = inputs.types
        if self._has_cache:  # of a decoder, which a block that is run once more would fill again
            words["use_cache"] = False
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

    @property
    def padding(self) -> int:
        """The token that is no word to the model; NO_UNIT, which is none, if it has no such."""
        known = getattr(self.module.config, "pad_token_id", None), self.embedding.padding_idx
        return next((token for token in known if token is not None), NO_UNIT)

    @cached_property
    def _has_types(self) -> bool:
        kinds = getattr(self.module.config, "type_vocab_size", 0)
        return "token_type_ids" in self._takes and int(kinds or 0) > 1

    @cached_property
    def _has_cache(self) -> bool:
        return "use_cache" in self._takes

    @cached_property
    def _takes(self) -> frozenset[str]:
        return frozenset(signature(self.module.forward).parameters)

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
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if units == "words" and getattr(backend, "pre_tokenizer", None) is None:
            raise FaithscopeError(
                f"The tokenizer of {self.name} does not split texts into words: choose "
                "units='tokens'."
            )
        return replace(self, units=units, side=side)

    @property
    def preparation(self) -> str:
        """What decides how a text becomes tokens: a hash of the tokenizer."""
        return f"tokenizer {tokenizer_digest(self.tokenizer)}"

    @property
    def specials(self) -> dict[str, int | None]:
        """The ids of the tokens that can stand in the place of others."""
        names = ("mask", "unk", "pad")
        found = {name: getattr(self.tokenizer, f"{name}_token_id", None) for name in names}
        return {
            name: token if name == "pad" or token != self._ends_before else None
            for name, token in found.items()
        }

    @cached_property
    def _ends_before(self) -> int | None:
        """The token before the first of which the model looks for the end of a text.

        As decoders do: if it stood for other words, their answer would be read elsewhere.
        """
        forward: Any = unwrap(type(self.module).forward)
        config: Any = self.module.config
        looks = "pad_token_id" in forward.__code__.co_names
        return getattr(config, "pad_token_id", None) if looks else None

    @property
    def vocabulary_size(self) -> int:
        """How many tokens the tokenizer knows."""
        return len(self.tokenizer)

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
        return self.encode_all([(text,) if pair is None else (text, pair)])[0]

    def encode_all(self, texts: Sequence[tuple[str, ...]]) -> list[Encoded]:
        """The same of several texts (text,) and pairs (text, text), which is much faster."""
        found: dict[int, Encoded] = {}
        for size in (1, 2):
            places = [place for place, given in enumerate(texts) if len(given) == size]
            found |= zip(places, self._encode([texts[place] for place in places]), strict=True)
        return [found[place] for place in range(len(texts))]

    def _encode(self, texts: Sequence[tuple[str, ...]], is_cut: bool = False) -> list[Encoded]:
        """Of texts, or of pairs."""
        if not texts:
            return []
        how: dict[str, Any] = {"truncation": False, "verbose": False}
        if is_cut:
            how = {"truncation": True, "max_length": self.max_length}
        made = self.tokenizer(*map(list, zip(*texts, strict=True)), **how)
        if self.units == "tokens":
            self._learn_names(chain.from_iterable(made["input_ids"]))
        is_long = [len(ids) > self.max_length for ids in made["input_ids"]]
        cut = iter(self._encode([*compress(texts, is_long)], is_cut=True))
        types = made.get("token_type_ids") or [None] * len(texts)
        each = zip(is_long, texts, made.encodings, types, strict=True)
        return [
            next(cut) if long else self._units_of(given, encoding, kinds, is_cut)
            for long, given, encoding, kinds in each
        ]

    def _units_of(
        self, given: tuple[str, ...], made: Any, types: Sequence[int] | None, is_cut: bool
    ) -> Encoded:
        ids, sides, special = made.ids, made.sequence_ids, self._never_ranked
        asked = {side for side in (0, 1) if self._asks(side)}  # others are None
        ranked = [
            side in asked and token not in special for token, side in zip(ids, sides, strict=True)
        ]
        types = types or [0] * len(ids)
        if self.units == "tokens":
            found = self._by_token(ids, types, ranked, is_cut)
            return found if len(given) == 1 else replace(found, second=_second(found.units, sides))
        places: dict[tuple[int, int], int] = {}
        units, words = [], list[str]()
        for side, word, counts in zip(sides, made.word_ids, ranked, strict=True):
            if not counts or word is None:
                units.append(NO_UNIT)
                continue
            if (side, word) not in places:
                places[side, word] = len(words)
                start, stop = made.word_to_chars(word, side)
                words.append(given[side][start:stop])
            units.append(places[side, word])
        second = None if len(given) == 1 else _second(units, sides)
        return Encoded(tuple(ids), tuple(types), tuple(units), tuple(words), is_cut, second)

    def _asks(self, side: int) -> bool:
        return self.side == "both" or SIDES.index(self.side) == side + 1

    def _by_token(
        self, ids: Sequence[int], types: Sequence[int], ranked: Sequence[bool], is_cut: bool = False
    ) -> Encoded:
        numbers = count()
        units = [next(numbers) if counts else NO_UNIT for counts in ranked]
        words = map(self.token_name, compress(ids, ranked))
        return Encoded(tuple(ids), tuple(types), tuple(units), tuple(words), is_cut)

    def token_name(self, token: int) -> str:
        """What a token is called: as it reads, with the mark of a word's beginning left out."""
        if token not in self._names:
            self._learn_names([token])
        return self._names[token]

    def _learn_names(self, tokens: Iterable[int]) -> None:
        """What many tokens are called, which is much faster than one by one."""
        new = [*({*tokens} - self._names.keys())]
        texts = self.tokenizer.backend_tokenizer.decode_batch(
            [[token] for token in new], skip_special_tokens=False
        )
        names = map(str, self.tokenizer.convert_ids_to_tokens(new))
        for token, read, name in zip(new, texts, names, strict=True):
            is_plain = read.strip() and "\N{REPLACEMENT CHARACTER}" not in read
            self._names[token] = name_of(name) if is_plain else name

    @cached_property
    def _names(self) -> dict[int, str]:
        """What tokens are called, as far as somebody asked."""
        return {}

    def _check_ids(self, ids: Sequence[int]) -> None:
        rows = self.embedding.num_embeddings
        for token in ids:
            if not 0 <= token < rows:
                raise FaithscopeError(
                    f"A text holds the token {token}, and {self.name} knows 0 to {rows - 1}: take "
                    "the tokenizer that was trained with it."
                )

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
        self._check_ids(ids)
        sides = _sides(ids, types, self.tokenizer.sep_token_id)
        ranked = [
            token not in self._never_ranked and self._asks(side)
            for token, side in zip(ids, sides, strict=True)
        ]
        found = self._by_token(ids, types or [0] * len(ids), ranked)
        return replace(found, second=_second(found.units, sides))


def tokenizer_digest(tokenizer: Any) -> str:
    """A hash of what a tokenizer does."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    made = str(sorted(tokenizer.get_vocab()))
    if backend is not None:  # without what every call of it changes
        held = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
        made = json.dumps(held, sort_keys=True)
    return hashlib.blake2b(made.encode(), digest_size=8).hexdigest()


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


def word_embeddings(module: nn.Module) -> nn.Embedding | None:
    """The word embeddings of a model of Hugging Face that reads texts; None of any other."""
    if getattr(module, "main_input_name", "") != "input_ids":  # which says nothing by itself
        return None
    try:
        found: Any = module.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    return found if isinstance(found, nn.Embedding) and hasattr(module, "config") else None


def _second(units: Sequence[int], sides: Sequence[int | None]) -> int | None:
    """The first unit of the second text of a pair, where units of both are ranked."""
    pairs = [held for held in zip(units, sides, strict=True) if held[0] != NO_UNIT]
    seconds = [unit for unit, side in pairs if side == 1]
    return min(seconds) if 0 < len(seconds) < len(pairs) else None


def text_model(
    module: nn.Module,
    tokenizer: Any,
    *,
    name: str,
    classes: Sequence[str] | None = None,
    **view: Any,
) -> TextModel:
    """Wrap a sequence classifier and its tokenizer."""
    embedding = word_embeddings(module)
    if embedding is None:
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
