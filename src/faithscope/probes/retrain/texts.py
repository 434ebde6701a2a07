"""Texts in ROAR: tokens are masked, and words have statistics of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from faithscope.data.labelled_images import is_labelled
from faithscope.data.text import TextData, TokenData, check_texts
from faithscope.data.text_sources import describe, load_text
from faithscope.errors import FaithscopeError, shown
from faithscope.methods import METHODS, Method, resolve_methods
from faithscope.methods.text import ROAR, TokenEvidence
from faithscope.methods.words import random_scores, word_information, word_scores
from faithscope.models.tensor_files import tensor_digest
from faithscope.probes.retrain.jobs import Jobs
from faithscope.probes.retrain.learner import Learner, Masks, Scores
from faithscope.probes.retrain.modality import Modality
from faithscope.probes.retrain.sparsity import sparsity
from faithscope.request import Given, Retrain
from faithscope.runs.cards import DataCard, Majority, TextCard, Vectors

EXAMPLES = 3
"""Test texts whose masks and scores are kept for people to look at."""


class TextModality(Modality):
    """Texts: what is masked becomes the mask token."""

    name: Literal["text", "image"] = "text"
    sample, unit, keeps_masks, shows_intact = "text", "token", True, False

    def open_options(self, request: Retrain) -> dict[str, Any]:
        for option in ("fill", "units"):
            if getattr(request, option) is not None:
                raise FaithscopeError(
                    f"{option} is of images, and '{request.model}' reads texts, whose tokens are "
                    "masked: leave it out."
                )
        return {}

    def measures(self, request: Retrain, given: Given) -> list[Method]:
        asked: list[Any] = []
        by_token = [held.label for held in METHODS.of("text").values() if held.by_token]
        for name in request.methods:
            several = {"all": ROAR, "registered": ["attention", *by_token]}
            asked += several.get(name) or [given.methods.get(name, name)]
        return resolve_methods(asked, "text")

    def load(self, request: Retrain, given: Given) -> TextData:
        if is_labelled(request.data if given.data is None else given.data):
            raise FaithscopeError(
                f"'{request.data}' are images, and '{request.model}' is trained on texts: give "
                "texts, or the model 'vit'."
            )
        if given.data is None:
            return load_text(request.data, limit=request.limit)
        if not isinstance(given.data, TextData):
            raise FaithscopeError(
                f"ROAR takes texts by name or as fs.load_text gives them, got "
                f"{type(given.data).__name__}."
            )
        if request.limit is not None:
            raise FaithscopeError(
                "limit applies only to data given by name: give the texts that are to be used."
            )
        check_texts(given.data)
        return given.data

    def encode(self, learner: Learner, source: TextData, request: Retrain) -> TokenData:
        tokens = learner.encode(source)
        if not isinstance(tokens, TokenData):
            raise FaithscopeError(
                f"What the learner '{learner.name}' encodes is TokenData, got {shown(tokens)}."
            )
        return tokens

    def granularity(self, method: Method, request: Retrain) -> str:
        return "token"

    def fingerprint(self, data: TokenData) -> str:
        """A hash of every token and label, and of what the words start from."""
        tensors = {
            f"{name} {part}": held
            for name, tokens in data.splits
            for part, held in vars(tokens).items()
            if held is not None
        }
        if data.vectors is not None:
            known = data.vectors.vectors
            rows = [known[word] for word in data.words if word in known]
            tensors["vectors"] = torch.from_numpy(np.array(rows))
        names = {"classes": list(data.classes), "words": list(data.words)}
        return tensor_digest(tensors, {"names": json.dumps(names)})

    def card(self, source: TextData, data: TokenData, jobs: Jobs) -> DataCard:
        about = describe(source, data)
        majority, vectors = about["majority"], about["vectors"]
        return DataCard(
            name=about["name"],
            samples=len(data.test),
            fingerprint=about["fingerprint"],
            texts=TextCard(
                kind=about["kind"],
                classes=tuple(about["classes"]),
                metric=about["metric"],
                selection=about["selection"],
                sizes=about["sizes"],
                mean_length=about["mean_length"],
                vocabulary=about["vocabulary"],
                majority=Majority(label=majority["class"], score=majority["score"]),
                truncated=about["truncated"],
                vectors=None if vectors is None else Vectors(**vectors),
                notes=(*about["notes"], *_too_short(data, jobs)),
            ),
        )

    def statistics(self, data: TokenData) -> Tensor:
        """What the words of the intact training texts tell of the class: [V]."""
        train = data.train
        inside = torch.arange(train.ids.shape[1]) < train.lengths[:, None]
        special = set(train.ids[inside & ~train.eligible].tolist())
        return word_information(train, len(data.words), len(data.classes), {data.pad_id, *special})

    def model_free(
        self, learner: Learner, data: TokenData, statistics: Tensor, item: Method, seed: int
    ) -> dict[str, Any]:
        splits = dict(data.splits)
        uniform = random_scores(list(splits.values()), seed) if item.is_random else [None] * 3
        scores = {}
        for (name, tokens), drawn in zip(splits.items(), uniform, strict=True):
            known = word_scores(tokens.ids, statistics) if item.needs else None
            scores[name] = item(TokenEvidence(word_scores=known, uniform=drawn))
        return scores

    def sparsity(
        self, data: TokenData, scores: Scores, request: Retrain
    ) -> Mapping[str, Mapping[int, float]]:
        part = data.validation
        held = scores["validation"]
        return sparsity(held, part.lengths, part.eligible, specials=request.specials)

    def examples(
        self, data: TokenData, masks: Masks, scores: Scores | None
    ) -> list[dict[str, Any]]:
        """The first test texts."""
        test, rows = data.test, []
        for index in range(min(EXAMPLES, len(test))):
            words, auxiliary = _written(data, index)
            length = int(test.lengths[index])
            rows.append(
                {
                    "split": "test",
                    "index": index,
                    "label": data.classes[int(test.labels[index])],
                    "words": words,
                    "auxiliary": auxiliary,
                    "eligible": test.eligible[index].nonzero().flatten().tolist(),
                    "masked": masks["test"][index].nonzero().flatten().tolist(),
                    "scores": [] if scores is None else scores["test"][index, :length].tolist(),
                }
            )
        return rows


def _too_short(data: TokenData, jobs: Jobs) -> list[str]:
    """Say how many texts keep all their tokens at every level below 100 %."""
    if jobs.strategy != "relative":
        return []
    highest = max(k for k in jobs.levels if k < 100)
    counts = torch.cat([tokens.eligible.sum(1) for _, tokens in data.splits])
    short = int((counts * highest < 100).sum())
    if not short:
        return []
    some = "1 text is" if short == 1 else f"{short:,} of {len(counts):,} texts are"
    return [f"{some} so short that {highest} % of the tokens is less than one: nothing is masked."]


def _written(data: TokenData, index: int) -> tuple[list[str], list[str] | None]:
    """The words of a test text, and of the one that comes with it."""
    test = data.test
    length = int(test.lengths[index])
    main, rest = test.ids[index, :length].tolist(), test.ids[index, length:].tolist()
    if test.auxiliary is not None and test.auxiliary_lengths is not None:
        rest = test.auxiliary[index, : int(test.auxiliary_lengths[index])].tolist()
    special = {data.pad_id, *test.ids[index, :length][~test.eligible[index, :length]].tolist()}
    words = [_shown(data.words[token]) for token in rest if token not in special]
    return [_shown(data.words[token]) for token in main], words or None


def _shown(word: str) -> str:
    r"""A word as a table can hold it: half a character, which has no UTF-8, is "?".

    >>> _shown("a\ud800")
    'a?'
    """
    return word.encode("utf-8", "replace").decode()
