"""Train the bundled text classifier on the Stanford Sentiment Treebank, from scratch on a CPU.

A BERT of two blocks with a vocabulary of whole words learns the labelled phrases of the training
trees; neutral ones are left out. Their sentiment, 0 to 4, counts as a probability of "positive", 0
to 1. Some words of each phrase are replaced by [MASK], so the model has met that token. Texts of
equally many tokens make a batch: nothing is padded. The result is the moving average of the weights
after the epoch that is best on the development sentences, rounded to float16; with ``--with-dev``
these are learnt, too, and the last epoch is taken. The test sentences are not looked at: that is
for ``evaluate_sst_text.py``.

    python recipes/train_sst_text.py --data sst --out src/faithscope/bundled --seed 0

Reads ``train.txt`` and ``dev.txt`` (PTB trees, one a line). Writes into ``--out`` the folder
``sst_text``, a model of Hugging Face with its tokenizer and ``card.json``, how it was made, and
``train.log``.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import platform
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

CLASSES = ("negative", "positive")
NEUTRAL = 2
SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
LONGEST = 128  # tokens that the model reads
SHAPE = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
log = logging.getLogger("train")

Text = tuple[str, int]  # with its sentiment, 0 to 4


# Data


def read_trees(file: Path) -> list[list[Text]]:
    """Every phrase of every tree, words joined by blanks; the last one is the whole sentence."""
    return [_phrases(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def _phrases(line: str) -> list[Text]:
    found: list[Text] = []
    open_: list[tuple[int, list[str]]] = []
    for bracket, label, word, closed in re.findall(r"(\()(\d)|([^\s()]+)|(\))", line):
        if bracket:
            open_.append((int(label), []))
        elif word:
            open_[-1][1].append(word)
        elif closed:
            sentiment, words = open_.pop()
            found.append((" ".join(words), sentiment))
            if open_:
                open_[-1][1].extend(words)
    return found


def sentences(trees: list[list[Text]]) -> list[tuple[int, Text]]:
    """Sentences that are not neutral, each with the line it is on."""
    whole = ((line, tree[-1]) for line, tree in enumerate(trees, 1))
    return [(line, text) for line, text in whole if text[1] != NEUTRAL]


# Words


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Lower-case words that occur at least twice; punctuation and n't, 's … stand alone.

    Plain text and the treebank's spelling ("do n't", -LRB-, ``) give the same tokens.
    """
    spelling = {"-lrb-": "(", "-rrb-": ")", "``": '"', "''": '"', "\\/": " / ", "\\*": "*"}
    made = Tokenizer(models.WordLevel(unk_token=SPECIALS["unk"]))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.BertNormalizer(clean_text=True, strip_accents=True, lowercase=True),
            *(normalizers.Replace(old, new) for old, new in spelling.items()),
            normalizers.Replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"),
        ]
    )
    alone = Regex(r"(?:n't|'(?:s|re|ve|ll|d|m))(?!\w)|\.\.\.|--|[^\w\s'-]|(?<!\w)'|'(?!\w)")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(alone, "isolated")]
    )
    counts = Counter(
        word
        for text in texts
        for word, _ in made.pre_tokenizer.pre_tokenize_str(made.normalizer.normalize_str(text))
    )
    words = sorted(word for word, count in counts.items() if count > 1)
    made.model = models.WordLevel(
        {word: place for place, word in enumerate((*SPECIALS.values(), *words))},
        unk_token=SPECIALS["unk"],
    )
    cls, sep = SPECIALS["cls"], SPECIALS["sep"]
    made.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(one, made.token_to_id(one)) for one in (cls, sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=LONGEST,
        **{f"{role}_token": token for role, token in SPECIALS.items()},
    )


Encoded = dict[int, tuple[Tensor, Tensor]]


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[Text]) -> Encoded:
    """Distinct texts as token ids [N, T] and sentiments [N], by their number of tokens T."""
    ids = tokenizer([text for text, _ in texts])["input_ids"]
    rows = dict.fromkeys(
        (tuple(row), sentiment) for row, (_, sentiment) in zip(ids, texts, strict=True)
    )
    return _by_length(list(rows))


def encode_sentences(tokenizer: PreTrainedTokenizerFast, file: Path) -> Encoded:
    """The sentences of a split that are not neutral, all of them."""
    texts = [text for _, text in sentences(read_trees(file))]
    ids = tokenizer([text for text, _ in texts])["input_ids"]
    pairs = zip(ids, texts, strict=True)
    return _by_length([(tuple(row), sentiment) for row, (_, sentiment) in pairs])


def _by_length(rows: list[tuple[tuple[int, ...], int]]) -> Encoded:
    by_length: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for row in rows:
        by_length.setdefault(len(row[0]), []).append(row)
    return {
        length: (torch.tensor([ids for ids, _ in held]), torch.tensor([y for _, y in held]))
        for length, held in sorted(by_length.items())
    }


def count_texts(data: Encoded) -> int:
    """How many texts there are."""
    return sum(len(ids) for ids, _ in data.values())


# Training


def make_model(words: int, dropout: float) -> BertForSequenceClassification:
    """An ordinary BERT with post-norm blocks, small."""
    config = BertConfig(
        **SHAPE,
        vocab_size=words,
        intermediate_size=4 * SHAPE["hidden_size"],
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: number for number, name in enumerate(CLASSES)},
    )
    return BertForSequenceClassification(config)


def batches(data: Encoded, tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch: texts of one length together, about so many tokens at once, in random order."""
    parts = [
        (length, part)
        for length, (ids, _) in data.items()
        for part in torch.randperm(len(ids)).split(max(8, tokens // length))
    ]
    for place in torch.randperm(len(parts)).tolist():
        length, part = parts[place]
        ids, sentiments = data[length]
        yield ids[part], sentiments[part]


def hide_words(ids: Tensor, share: float, mask: int) -> Tensor:
    """Replace a share of the tokens by [MASK], the first and the last one, [CLS] and [SEP], not."""
    hidden = torch.rand(ids.shape) < share
    hidden[:, 0] = hidden[:, -1] = False
    return ids.masked_fill(hidden, mask)


def learning_rate(progress: float, peak: float, warmup: float = 0.05) -> float:
    """Linear warm-up, then a cosine to zero; ``progress`` runs from 0 to 1."""
    if progress < warmup:
        return peak * progress / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


@torch.inference_mode()
def count_right(model: torch.nn.Module, data: Encoded) -> int:
    """How many texts are classified right."""
    model.eval()
    return sum(
        int((model(input_ids=ids).logits.argmax(1) == (sentiments > NEUTRAL)).sum())
        for ids, sentiments in data.values()
    )


def train(
    model: BertForSequenceClassification, data: Encoded, dev: Encoded, args: argparse.Namespace
) -> tuple[BertForSequenceClassification, dict]:
    """Return the best moving average of the weights, without `dev` the last, and its epoch."""
    average = copy.deepcopy(model)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": args.decay}, {"params": others}]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.98), fused=True)
    steps = args.epochs * sum(1 for _ in batches(data, args.tokens))
    done, started, best = 0, time.perf_counter(), {"dev_right": -1}
    for epoch in range(1, args.epochs + 1):
        model.train()
        total = 0.0
        for ids, sentiments in batches(data, args.tokens):
            done += 1
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(done / steps, args.lr)
            logits = model(input_ids=hide_words(ids, args.hide, args.mask)).logits
            positive = sentiments / 4  # "rather positive" is 3 of 4, not certainty
            loss = F.cross_entropy(logits, torch.stack([1 - positive, positive], 1))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            kept = min(args.average, done / (done + 10))
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - kept)
            total += float(loss.detach()) * len(ids)
        right = count_right(average, dev)
        measured = f"dev accuracy {right / count_texts(dev):.4f} ({right}) " if dev else ""
        log.info(
            "epoch %d/%d loss %.4f %s%.1f s",
            *(epoch, args.epochs, total / count_texts(data), measured),
            time.perf_counter() - started,
        )
        if not dev or right > best["dev_right"]:
            best = {"dev_right": right, "best_epoch": epoch}
            chosen = copy.deepcopy(average)
    return chosen, best


# Saving


def save_model(
    model: BertForSequenceClassification, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Write config, float16 weights and tokenizer; the model is to be read in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**model.config.to_diff_dict(), "architectures": [type(model).__name__]}
    write_json(folder / "config.json", {**config, "dtype": "float32"})
    half = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # its name in every version
    write_json(folder / "tokenizer_config.json", settings)
    compact = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    text = json.dumps(compact, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n", "utf-8")


def write_json(file: Path, content: dict) -> None:
    """Write a few values for people and programs."""
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def set_up_log(file: Path) -> None:
    """Log to the terminal and to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        handlers=[logging.StreamHandler(), logging.FileHandler(file, mode="w")],
    )


def main() -> None:
    """Parse the command line, train, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the trees")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens in a batch, about")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--hide", type=float, default=0.3, help="share of words to hide")
    parser.add_argument("--average", type=float, default=0.999, help="decay of the average")
    parser.add_argument("--with-dev", action="store_true", help="learn the dev trees, too")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    set_up_log(args.out / "train.log")
    log.info("python %s", shlex.join(sys.argv))
    log.info(
        "%s, %d threads, torch %s, transformers %s",
        *(platform.machine(), args.threads, torch.__version__, transformers.__version__),
    )

    splits = ("train", "dev") if args.with_dev else ("train",)
    trees = [tree for split in splits for tree in read_trees(args.data / f"{split}.txt")]
    phrases = [phrase for tree in trees for phrase in tree if phrase[1] != NEUTRAL]
    tokenizer = make_tokenizer([tree[-1][0] for tree in trees])
    args.mask = tokenizer.mask_token_id
    data = encode(tokenizer, phrases)
    dev = {} if args.with_dev else encode_sentences(tokenizer, args.data / "dev.txt")
    model = make_model(len(tokenizer), args.dropout)
    log.info("%d distinct phrases, %d dev sentences", count_texts(data), count_texts(dev))
    log.info("%d tokens, %d parameters", len(tokenizer), sum(map(Tensor.numel, model.parameters())))
    started = time.perf_counter()
    model, found = train(model, data, dev, args)
    minutes = (time.perf_counter() - started) / 60
    save_model(model, tokenizer, args.out / "sst_text")
    record = {
        "source": f"Stanford Sentiment Treebank, the phrases of the {' and '.join(splits)} trees",
        "classes": list(CLASSES),
        "parameters": sum(map(Tensor.numel, model.parameters())),
        "seed": args.seed,
        "epochs": args.epochs,
        "best_epoch": found["best_epoch"],
    }
    if dev:
        record["dev_right"], record["dev_sentences"] = found["dev_right"], count_texts(dev)
    write_json(args.out / "sst_text" / "card.json", record)
    log.info("%.2f minutes, saved epoch %d", minutes, found["best_epoch"])


if __name__ == "__main__":
    main()
