"""A tiny classifier of every family of text models, with a tokenizer, built on the spot."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import faithscope as fs
from faithscope.models import TextModel

WORDS = "the a film plot of and is it was very this story acts scene bad good".split()
SPECIALS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
PAD = 1  # where RoBERTa's and MPNet's positions begin to count

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "gelu"}
TINY |= {"intermediate_size": 32, "max_position_embeddings": 24, "initializer_range": 0.3}
GROUPED = {"num_key_value_heads": 1, "hidden_act": "silu"}

ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {"type_vocab_size": 2},
    "MiniLM": {"type_vocab_size": 2, "hidden_size": 24, "num_attention_heads": 6},
    "Roberta": {"type_vocab_size": 1},
    "XLMRoberta": {"type_vocab_size": 1},
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "Electra": {"embedding_size": 8, "type_vocab_size": 2},
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 8,
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "MPNet": {},
    "ModernBert": {"cls_token_id": 0, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2},
    "Albert": {"embedding_size": 8},
}
DECODERS: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24},
    "Llama": GROUPED,
    "Qwen2": GROUPED,
}
FAMILIES = ENCODERS | DECODERS
PLAIN = {"DebertaV2", "MPNet"}
"""Families without fused attention."""
COARSE = {"ModernBert", "Llama", "Qwen2"}
"""Families that compute their rotations, norms or softmax in float32 whatever the model is in."""


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words; that of a decoder puts nothing around them."""
    ids = {word: number for number, word in enumerate((*SPECIALS, *WORDS))}
    words = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind in DECODERS:
        return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    words.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=words, **dict(zip(names, SPECIALS, strict=True))
    )


@cache
def classifier(kind: str, kernel: str = "sdpa") -> TextModel:
    """A classifier of random weights in float64, biases and norms among them."""
    words = tokenizer(kind)
    family = "Bert" if kind == "MiniLM" else kind
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(words), pad_token_id=PAD, num_labels=3, **{**TINY, **FAMILIES[kind]}
    )
    config._attn_implementation = "eager" if kind in PLAIN else kernel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(transformers, f"{family}ForSequenceClassification")(config)
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
    if kind in DECODERS:
        module.config.pad_token_id = None
    return fs.wrap(module.double().eval().requires_grad_(False), tokenizer=words, name=kind)
