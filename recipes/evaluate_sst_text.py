"""Measure the bundled text classifier on the test sentences, and write the bundled sample.

    python recipes/evaluate_sst_text.py --data sst --bundle src/faithscope/bundled

Reads what the bundle ships (float16 weights) into transformers' own class in float32. Writes the
sample, ``sst.jsonl``: of the test sentences of each class 100, evenly spread over the file; and
what was measured into the model's ``card.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from train_sst_text import (
    CLASSES,
    NEUTRAL,
    Text,
    count_right,
    count_texts,
    encode_sentences,
    read_trees,
    sentences,
    write_json,
)
from transformers import AutoModelForSequenceClassification, AutoTokenizer

PER_CLASS = 100
PLAIN = {"-LRB-": "(", "-RRB-": ")", "-lrb-": "(", "-rrb-": ")", "\\/": "/", "\\*": "*"}
"""What the treebank writes for signs that have a meaning in it."""


def choose_sample(texts: list[tuple[int, Text]]) -> list[dict]:
    """As many sentences of each class, evenly spread over the file, in its order."""
    chosen = []
    for number in range(len(CLASSES)):
        own = [row for row in texts if (row[1][1] > NEUTRAL) == number]
        chosen += [own[place * len(own) // PER_CLASS] for place in range(PER_CLASS)]
    return [
        {"id": f"test-{line}", "text": plain(text), "label": CLASSES[sentiment > NEUTRAL]}
        for line, (text, sentiment) in sorted(chosen)
    ]


def plain(text: str) -> str:
    """A sentence with its brackets and slashes, its words still apart."""
    for written, sign in PLAIN.items():
        text = text.replace(written, sign)
    return text


@torch.inference_mode()
def predict(model: torch.nn.Module, ids: list[int]) -> str:
    """The predicted class of one text."""
    return CLASSES[int(model(input_ids=torch.tensor([ids])).logits.argmax())]


def main() -> None:
    """Parse the command line, measure, write, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the trees")
    parser.add_argument("--bundle", type=Path, required=True, help="folder with the bundled files")
    args = parser.parse_args()

    folder = args.bundle / "sst_text"
    model = AutoModelForSequenceClassification.from_pretrained(folder).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    test = encode_sentences(tokenizer, args.data / "test.txt")
    right, count = count_right(model, test), count_texts(test)
    sample = choose_sample(sentences(read_trees(args.data / "test.txt")))
    found = [predict(model, tokenizer(row["text"])["input_ids"]) for row in sample]
    sample_right = sum(got == row["label"] for got, row in zip(found, sample, strict=True))

    with (args.bundle / "sst.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in sample)
    measured = {
        "test_sentences": count,
        "test_right": right,
        "test_accuracy": round(right / count, 4),
        "sample_sentences": len(sample),
        "sample_right": sample_right,
    }
    card = json.loads((folder / "card.json").read_text("utf-8"))
    write_json(folder / "card.json", {**card, **measured})
    print(f"test set  {right / count:.4f}  ({right} of {count})")
    print(f"sample    {sample_right / len(sample):.4f}  ({sample_right} of {len(sample)})")


if __name__ == "__main__":
    main()
