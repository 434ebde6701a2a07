"""bAbI tasks 1 to 3: stories, questions and one-word answers, from the official files.

Facebook's `tasks_1-20_v1-2`, folder `en-10k`. The story so far is the main text, the question the
auxiliary one, the answer the class (ROAR.md §1.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from faithscope.data.splits import train_test_split
from faithscope.data.text import TextData, Texts
from faithscope.data.text_files import existing_folder, find_file, open_text
from faithscope.errors import FaithscopeError
from faithscope.request import as_path

ANSWERS = tuple(
    ". Daniel John Mary Sandra Where apple back bathroom bedroom before discarded down dropped "
    "football garden got grabbed hallway is journeyed kitchen left milk moved office picked put "
    "the there to took travelled up was went".split()
)
"""The classes: all 36 words of the three tasks, as in the paper, though only places are answers."""
TASKS = (1, 2, 3)
TRAIN_SHARE = 0.85


@dataclass(frozen=True)
class Question:
    """A question, the story before it, and the answer."""

    story: str
    question: str
    answer: str


def load_babi(name: str, options: Mapping[str, Any]) -> TextData:
    """Load bAbI from `en-10k` or a folder above it; options: task (1, 2, 3), train (a file)."""
    task, train = options.get("task", 1), options.get("train", "")
    if task not in TASKS:
        raise FaithscopeError(f"The task of bAbI is 1, 2 or 3, got {task!r}.")
    folder = _official_folder(existing_folder(name))
    file = as_path(train, "train") if train else _official_file(folder, task, "train")
    test = read_questions(_official_file(folder, task, "test"))
    notes = (f"The training questions are those of '{file.name}', as asked.",) if train else ()
    return babi_data(f"babi-{task}", read_questions(file), test, notes=notes)


def babi_data(
    name: str,
    questions: Sequence[Question],
    test: Sequence[Question] | None = None,
    *,
    notes: tuple[str, ...] = (),
) -> TextData:
    """Questions for training (85 %) and validation (15 %), and the test questions.

    Where there are none for the test, the 15 % are halved.
    """
    train, validation = train_test_split(questions, TRAIN_SHARE, np.random.RandomState(0))
    if test is None:
        validation, test = validation[::2], validation[1::2]
    return TextData(
        name=name,
        kind="babi",
        train=_texts(train),
        validation=_texts(validation),
        test=_texts(test),
        classes=ANSWERS,
        metric="accuracy",
        selection="accuracy",
        notes=notes,
    )


def read_questions(file: Path) -> list[Question]:
    """The questions of a file in the official format."""
    with open_text(file) as stream:
        found = parse_questions(stream, str(file))
    if not found:
        raise FaithscopeError(f"'{file}' holds no questions: check that it is a file of bAbI.")
    return found


def parse_questions(lines: Iterable[str], file: str = "the text") -> list[Question]:
    r"""Questions with all facts of their story so far, joined by full stops.

    >>> parse_questions(["1 Mary went home.", "2 John left.", "3 Where is Mary? \thome\t1"])
    [Question(story='Mary went home . John left', question='Where is Mary', answer='home')]
    """
    facts: list[str] = []
    found = []
    for place, line in enumerate(lines, 1):
        number, _, text = line.strip().partition(" ")
        if not number:
            continue
        if number == "1":
            facts = []
        parts = [part.strip() for part in text.split("\t")]
        if number.isdecimal() and len(parts) == 1 and text.endswith("."):
            facts.append(text.removesuffix("."))
        elif number.isdecimal() and len(parts) == 3 and facts:
            found.append(Question(" . ".join(facts), parts[0].removesuffix("?"), parts[1]))
        else:
            raise FaithscopeError(
                f"Line {place} of '{file}' is neither a fact ('1 Mary went home.') nor a question, "
                "its answer and its facts between tabs: check that it is a file of bAbI."
            )
    return found


def babi_words(text: str) -> tuple[str, ...]:
    """The words of a story or a question; full stops stand between facts only.

    >>> babi_words("Mary went home. John left.")
    ('Mary', 'went', 'home', '.', 'John', 'left')
    """
    return tuple(text.rstrip(" .?").replace(".", " . ").split())


def _texts(questions: Sequence[Question]) -> Texts:
    return Texts(
        texts=tuple(item.story for item in questions),
        words=tuple(tuple(item.story.split()) for item in questions),
        labels=np.array([_class_of(item) for item in questions], dtype=np.int64),
        auxiliary_texts=tuple(item.question for item in questions),
        auxiliary_words=tuple(tuple(item.question.split()) for item in questions),
    )


def _class_of(question: Question) -> int:
    try:
        return ANSWERS.index(question.answer)
    except ValueError:
        raise FaithscopeError(
            f"The answer '{question.answer}' is no word of bAbI's tasks 1 to 3: give their files."
        ) from None


def _official_folder(root: Path) -> Path:
    for folder in (root, root / "en-10k", root / "tasks_1-20_v1-2" / "en-10k"):
        if any(folder.glob("qa*_*.txt*")):
            return folder
    raise FaithscopeError(
        f"The folder '{root}' does not hold bAbI: it needs en-10k/ with qa1_…_train.txt and others."
    )


def _official_file(folder: Path, task: int, split: str) -> Path:
    topics = {1: "single-supporting-fact", 2: "two-supporting-facts", 3: "three-supporting-facts"}
    return find_file(folder, f"qa{task}_{topics[task]}_{split}.txt")
