"""Tiny text encoders with their tokenizers, saved as folders on the spot, and a task to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from faithscope.data.text import TextData, Texts

FILLERS = "the a film plot of and is it was very this story acts scene".split()
KEYWORDS = ("bad", "good")

SPECIALS = {
    "Roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "Bert": ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"),
    "DistilBert": ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"),
}
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"intermediate_size": 32, "hidden_dim": 32}  # DistilBERT has another name for it
TINY |= {"max_position_embeddings": 24, "initializer_range": 0.1}
ENCODERS = tuple(SPECIALS)


def tokenizer(kind: str, *, mask: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words in the manner of its family."""
    start, pad, end, unknown, masked = SPECIALS[kind]
    words = Tokenizer(models.WordLevel(unk_token=unknown))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(special_tokens=list(SPECIALS[kind]), show_progress=False)
    words.train_from_iterator([[*FILLERS, *KEYWORDS]], trainer)
    ids = (end, words.token_to_id(end)), (start, words.token_to_id(start))
    family = processors.RobertaProcessing if kind == "Roberta" else processors.BertProcessing
    words.post_processor = family(*ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        cls_token=start,
        pad_token=pad,
        sep_token=end,
        unk_token=unknown,
        **({"mask_token": masked} if mask else {}),
    )


def config(kind: str, size: int, **options: Any) -> Any:
    """A tiny configuration; RoBERTa's positions begin behind its padding."""
    made = getattr(transformers, f"{kind}Config")(
        vocab_size=size, pad_token_id=1, **{**TINY, **options}
    )
    made.type_vocab_size = 2 if kind == "Bert" else 1
    return made


def save_encoder(folder: Path, kind: str, **options: Any) -> str:
    """Save a language model of random weights and its tokenizer; the name to load them by."""
    words = tokenizer(kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(transformers, f"{kind}ForMaskedLM")(config(kind, len(words), **options))
    module.save_pretrained(folder)
    words.save_pretrained(folder)
    return f"hf:{folder}"


def task(count: int = 160, *, pairs: bool = False, seed: int = 0) -> TextData:
    """Texts of filler words among which one keyword tells the class.

    In pairs the second text has to agree: a good film is one that both call so.
    """
    rng = np.random.default_rng(seed)

    def split(size: int) -> Texts:
        said = rng.integers(0, 2, size)
        agreed = rng.integers(0, 2, size) if pairs else np.ones(size, dtype=int)
        texts = []
        for keyword in said:
            words = list(rng.choice(FILLERS, rng.integers(3, 9)))
            words.insert(int(rng.integers(0, len(words) + 1)), KEYWORDS[keyword])
            texts.append(" ".join(words))
        others = tuple("is it good" if agrees else "it was a bad plot" for agrees in agreed)
        return Texts(
            texts=tuple(texts),
            words=tuple(tuple(text.split()) for text in texts),
            labels=said * agreed,
            auxiliary_texts=others if pairs else None,
            auxiliary_words=tuple(tuple(o.split()) for o in others) if pairs else None,
        )

    parts = [split(count), split(count // 4), split(count // 2)]
    return TextData("toy", "own", *parts, KEYWORDS, "accuracy", "accuracy")


def one_split(texts: list[str], others: list[str] | None = None) -> TextData:
    """The same few texts as all three splits."""
    part = Texts(
        texts=tuple(texts),
        words=tuple(tuple(text.split()) for text in texts),
        labels=np.zeros(len(texts), dtype=int),
        auxiliary_texts=None if others is None else tuple(others),
        auxiliary_words=None if others is None else tuple(tuple(o.split()) for o in others),
    )
    return TextData("few", "own", part, part, part, KEYWORDS, "accuracy", "accuracy")
