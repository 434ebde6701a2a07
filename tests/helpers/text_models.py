"""Tiny text classifiers of every family, built on the spot, and what they must answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

import faithscope as fs
from encoders import FILLERS, KEYWORDS, SPECIALS
from faithscope.models.text_model import TextModel

ENCODERS = ("Bert", "Roberta", "DistilBert", "Electra", "DebertaV2", "MPNet")
DECODERS = ("GPT2", "Llama")
TYPED = ("Bert", "Electra")
"""Those that tell the sides of a pair apart by types."""
CLASSES = 3
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"intermediate_size": 32, "hidden_dim": 32, "embedding_size": 16}
TINY |= {"max_position_embeddings": 64, "num_labels": CLASSES, "type_vocab_size": 1}
TEXTS = (
    "it was a very good film",
    "bad",
    "the story of this plot and the acts of a scene is good good",
    "the plots is bad",
    "actings scenes films",
    "a good story and this is it",
)
PAIRS = (
    ("the film is good", "it was bad"),
    ("a story", "this is a very bad story of films"),
    ("plots", "acting"),
)


@cache
def tokenizer(kind: str, *, mask: bool = True, pad: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer of word pieces in the manner of a family; decoders add nothing to a text."""
    specials = SPECIALS.get("Roberta" if kind == "MPNet" else kind, SPECIALS["Bert"])
    start, pad_token, end, unknown, masked = specials
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [*specials, *FILLERS, *KEYWORDS, *letters, *(f"##{one}" for one in letters)]
    vocabulary = {name: place for place, name in enumerate(dict.fromkeys(names))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece()
    own: dict[str, Any] = {"unk_token": unknown}
    if kind not in DECODERS:
        ends = (end, vocabulary[end]), (start, vocabulary[start])
        of_roberta = kind in ("Roberta", "MPNet")
        family = processors.RobertaProcessing if of_roberta else processors.BertProcessing
        made.post_processor = family(*ends)
        own |= {"cls_token": start, "sep_token": end}
    own |= {"mask_token": masked} if mask else {}
    own |= {"pad_token": pad_token} if pad else {}
    if kind in TYPED:
        own["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, **own)


def config(kind: str, **options: Any) -> Any:
    """A tiny configuration; RoBERTa's positions begin behind its padding."""
    size = len(tokenizer("Roberta" if kind == "MPNet" else kind))
    sizes = {"vocab_size": size, "pad_token_id": 1, **TINY, **options}
    made = getattr(transformers, f"{kind}Config")(**sizes)
    if kind in TYPED and "type_vocab_size" not in options:
        made.type_vocab_size = 2
    return made


def classifier(kind: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """A sequence classifier whose weights are far from their timid initial values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = getattr(transformers, f"{kind}ForSequenceClassification")(config(kind, **options))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return made.eval().to(dtype)


def text_model(kind: str = "Bert", dtype: torch.dtype = torch.float64, **options: Any) -> TextModel:
    """The same with its tokenizer, as faithscope sees it."""
    made = fs.wrap(classifier(kind, dtype, **options), tokenizer=tokenizer(kind))
    assert isinstance(made, TextModel)
    return made


def save_classifier(folder: Path, kind: str = "Bert", **options: Any) -> str:
    """Save a classifier and its tokenizer; the name to load them by."""
    classifier(kind, torch.float32, **options).save_pretrained(folder)
    tokenizer(kind).save_pretrained(folder)
    return f"hf:{folder}"


def log_p(module: nn.Module, ids: Sequence[int], **more: Sequence[int]) -> Tensor:
    """The log-probabilities of one text, from a call of the module itself: [classes]."""
    given = {name: torch.tensor([row]) for name, row in more.items()}
    given = {"attention_mask": torch.ones(1, len(ids), dtype=torch.int64), **given}
    with torch.no_grad():
        logits: Tensor = module(input_ids=torch.tensor([ids]), **given).logits
    return logits[0].log_softmax(-1)
