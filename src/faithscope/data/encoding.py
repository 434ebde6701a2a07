"""Texts as the tokens of a pretrained model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from faithscope.data.text import TextData, Texts, TokenData, Tokens
from faithscope.models.text_classifier import Pretrained, within


def encode(model: Pretrained, data: TextData) -> TokenData:
    """Turn texts into tokens with the checkpoint's own tokenizer.

    A text becomes "start … end". A pair is the main text so, then the auxiliary one without its
    start: BERT's own format, and one </s> between where RoBERTa would have two. What is longer than
    the model reads loses the tokens before its last one, and is counted.
    """
    parts = {name: _encode(model, texts) for name, texts in data.splits}
    return TokenData(
        name=data.name,
        kind=data.kind,
        train=parts["train"][0],
        validation=parts["validation"][0],
        test=parts["test"][0],
        classes=data.classes,
        metric=data.metric,
        selection=data.selection,
        words=model.words,
        mask_id=model.mask_id,
        pad_id=model.pad_id,
        truncated={name: count for name, (_, count) in parts.items()},
    )


def _encode(model: Pretrained, texts: Texts) -> tuple[Tokens, int]:
    """Encode a split; tell also how many of it were cut."""
    rows = mains = _ids(model, texts.texts)
    if texts.auxiliary_texts is not None:
        others = _ids(model, texts.auxiliary_texts)
        rows = [main + other[1:] for main, other in zip(mains, others, strict=True)]
    most = model.max_length
    kept = [row if len(row) <= most else [*row[: most - 1], row[-1]] for row in rows]
    ids = torch.full((len(kept), max(map(len, kept), default=0)), model.pad_id)
    for target, row in zip(ids, kept, strict=True):
        target[: len(row)] = torch.tensor(row)
    lengths = torch.tensor([min(len(main), most) for main in mains], dtype=torch.long)
    never = torch.tensor([model.pad_id, model.start_id, model.end_id])
    eligible = within(lengths, ids.shape[1]) & ~torch.isin(ids, never)
    labels = torch.as_tensor(texts.labels, dtype=torch.long)
    return Tokens(ids, lengths, eligible, labels), sum(len(row) > most for row in rows)


def _ids(model: Pretrained, texts: Sequence[str]) -> list[list[int]]:
    if not texts:
        return []
    found: list[list[int]] = model.tokenizer(list(texts), verbose=False)["input_ids"]
    return found
