"""A BiLSTM-attention classifier (bilstm.py) as an ordinary module, and as a model of texts.

ROAR trains packs of them; what is perturbed or explained is one, taken out of its pack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from faithscope.errors import FaithscopeError, choose
from faithscope.hashing import canonical, digest
from faithscope.models import bilstm
from faithscope.models.bilstm import CLS, EOS, MASK, PAD, SPECIALS, UNK, Reading, Shape
from faithscope.models.model import unwrap_logits
from faithscope.models.text_model import Encoded, TextModel
from faithscope.models.tokens import NO_UNIT, TokenInputs
from faithscope.models.vit import ViTView

ENDLESS = 1 << 30
"""Tokens of a text that a model reads which has no positions."""
Words = tuple[str, ...]


class BiLSTM(nn.Module):
    """One model of bilstm.py, its parameters called as there.

    The tokens of a pair stand one after the other; those of type 1 are its second text.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, value in weights.items():
            part, _, own = name.rpartition(".")
            if part not in self._modules:
                self.add_module(part, nn.Module())
            self.get_submodule(part).register_parameter(own, nn.Parameter(value.clone()))

    @property
    def is_paired(self) -> bool:
        """Whether it reads pairs of texts."""
        return "auxiliary" in self._modules

    def forward(
        self, ids: Tensor, types: Tensor, attended: Tensor, embedded: Tensor | None = None
    ) -> bilstm.Answer:
        """Logits [B, C] and attention [B, T] of tokens [B, T].

        With `embedded` [B, T, E] these are the words of the first text. A word that is not attended
        to counts as padding: its embedding is 0 and its attention weight, too.
        """
        p = {name: value[None] for name, value in self.named_parameters()}
        embedded = (self.words(ids) if embedded is None else embedded) * attended[..., None]
        reading = Reading.of(ids[None], (types == 0).sum(1)[None])
        gates = bilstm.project(p, "main", reading.laid_out(embedded[None]))
        query = bilstm.query_of(p, *_second_text(ids, types)) if self.is_paired else None
        eligible = (ids >= MASK) & (types == 0) & (attended > 0)
        made = bilstm.answer(p, reading, gates, eligible[None], query)
        return bilstm.Answer(made.logits[0], made.attention[0])

    def words(self, ids: Tensor) -> Tensor:
        """The embeddings of the first text's words, [B, T, E]."""
        return bilstm.look_up(self.get_parameter("main.embedding")[None], ids[None])[0]


def _second_text(ids: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of type 1, at the front [1, B, T], and how many there are [1, B]."""
    places = (types == 0).sum(1, keepdim=True) + torch.arange(ids.shape[1], device=ids.device)
    return ids.gather(1, places.clamp_max(ids.shape[1] - 1))[None], types.sum(1)[None]


@dataclass(frozen=True, eq=False, repr=False)
class BiLSTMText(TextModel):
    """A BiLSTM and the vocabulary that feeds it; `kind` says how texts are cut into words.

    Of a pair the first text is explained; the second is read as it is, as in ROAR.
    """

    words: Words = ()
    kind: str = "own"

    def __repr__(self) -> str:
        return f"BiLSTMText({self.name}, {len(self.words)} words, weights {self.weights})"

    @property
    def is_paired(self) -> bool:
        """Whether it reads pairs of texts."""
        return bool(self.module.is_paired)

    # Reading

    def logits(self, inputs: Any) -> Tensor:
        return unwrap_logits(self._answer(inputs), len(inputs), self.output)

    def embed(self, inputs: Any) -> Tensor:
        return self.embedding(inputs.ids).detach().clone()  # type: ignore[no-any-return]

    def read(self, inputs: Any, embedded: Tensor) -> Tensor:
        return unwrap_logits(self._answer(inputs, embedded), len(inputs), self.output)

    def attention(self, inputs: TokenInputs) -> Tensor:
        """How far it attends to each token, [B, T]."""
        with torch.no_grad():
            found: Tensor = self._answer(inputs).attention
        return found

    def _answer(self, inputs: TokenInputs, words: Tensor | None = None) -> Any:  # type: ignore[override]
        return self.module(inputs.ids, inputs.types, inputs.attended, words)

    @property
    def embedding(self) -> nn.Embedding:
        made: nn.Embedding = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            self.module.get_parameter("main.embedding")
        )
        return made

    def padded(self, inputs: TokenInputs, *, keep_special: bool) -> TokenInputs:
        changed = inputs.types == 0
        if keep_special:
            changed &= inputs.ids >= MASK
        return inputs.with_ids(inputs.ids.masked_fill(changed, PAD))

    # Units

    def with_units(self, units: str, side: str) -> TextModel:
        if choose("units of texts", units, ("tokens", "words")) == "words":
            raise FaithscopeError(
                f"The tokens of {self.name} are words already: choose units='tokens'."
            )
        made = super().with_units(units, side)
        if self.is_paired and side != "first":
            raise FaithscopeError(
                f"{self.name} explains the first text of a pair, and reads the second as it is: "
                "choose side='first' (--side first)."
            )
        return made

    def require_vit(self, needed_by: str) -> ViTView:
        reason = "it is a BiLSTM, which has no Transformer blocks"
        raise FaithscopeError(
            f"{needed_by} cannot read {self.name}, since {reason}: choose attention, gradient, "
            "input_x_gradient, integrated_gradients or random.",
            reason=reason,
        )

    @property
    def preparation(self) -> str:
        return f"vocabulary {digest(canonical([self.kind, *self.words]))[:16]}"

    @property
    def specials(self) -> dict[str, int | None]:
        return {"mask": MASK, "unk": UNK, "pad": PAD}

    @property
    def padding(self) -> int:
        return PAD

    @property
    def vocabulary_size(self) -> int:
        return len(self.words)

    @cached_property
    def max_length(self) -> int:
        return ENDLESS

    @cached_property
    def _never_ranked(self) -> frozenset[int]:
        return frozenset((PAD, CLS, EOS))

    @cached_property
    def _places(self) -> dict[str, int]:
        """Words to ids, without the special tokens."""
        return {word: at for at, word in enumerate(self.words) if at >= len(SPECIALS)}

    def encode_all(self, texts: Sequence[tuple[Any, ...]]) -> list[Encoded]:
        """Of texts cut into words, (words,) or (words, words); strings are cut at blanks."""
        return [self._of_words(given) for given in texts]

    def _of_words(self, given: tuple[Any, ...]) -> Encoded:
        if (len(given) > 1) != self.is_paired:
            wanted, got = ("pairs of", "single") if self.is_paired else ("single", "pairs of")
            raise FaithscopeError(
                f"{self.name} reads {wanted} texts, and was given {got} texts: give what it was "
                "trained on."
            )
        cut = [tuple(side.split()) if isinstance(side, str) else side for side in given]
        ids, types = list[int](), list[int]()
        for side, words in enumerate(cut):
            own = [CLS, *(self._places.get(word, UNK) for word in words), EOS]
            ids += own
            types += [side] * len(own)
        units = [NO_UNIT, *range(len(cut[0])), NO_UNIT]
        units += [NO_UNIT] * (len(ids) - len(units))
        return Encoded(tuple(ids), tuple(types), tuple(units), cut[0])

    def encode_ids(self, ids: Sequence[int], types: Sequence[int] | None = None) -> Encoded:
        made = list(types) if types is not None else [0] * len(ids)
        if any(made) != self.is_paired:
            raise FaithscopeError(
                f"{self.name} reads {'pairs' if self.is_paired else 'single texts'}: give "
                "token_type_ids that say so, 0 of the first text and 1 of the second."
            )
        self._check_ids(ids)
        ranked = [
            token not in self._never_ranked and not kind
            for token, kind in zip(ids, made, strict=True)
        ]
        return self._by_token(ids, made, ranked)

    def token_name(self, token: int) -> str:
        return self.words[token]


def bilstm_text(
    weights: Mapping[str, Tensor],
    words: Sequence[str],
    *,
    name: str,
    classes: Sequence[str],
    kind: str = "own",
) -> BiLSTMText:
    """A model of its weights and its vocabulary; what does not go together is a ValueError."""
    size, hidden = (weights[f"main.{part}"].shape[-1] for part in ("embedding", "hidden_weight"))
    is_paired = "auxiliary.embedding" in weights
    shape = Shape(len(words), size, hidden, len(classes), is_paired)
    if {key: tuple(held.shape) for key, held in weights.items()} != shape.parameters():
        raise ValueError("its weights are not those of such a model")
    return BiLSTMText(
        module=BiLSTM({key: weights[key] for key in shape.parameters()}).eval(),
        name=name,
        classes=tuple(classes),
        vit="it is a BiLSTM",
        words=tuple(words),
        kind=kind,
    )
