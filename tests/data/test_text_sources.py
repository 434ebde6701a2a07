"""Texts by name: bAbI, SST, IMDB, SNLI, MIMIC, Hugging Face, own files; vocabulary and vectors.

Real corpora are checked where FAITHSCOPE_DATA names a folder that holds them (babi, sst, imdb,
snli); everything else runs on a few lines in the official formats.
"""

import gzip
import json
import lzma
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import faithscope as fs
from faithscope.data import mimic, snli, text_sources
from faithscope.data.babi import ANSWERS, parse_questions
from faithscope.data.splits import stratified_part, train_test_split
from faithscope.data.text import SPLITS, TextData, Texts, WordVectors
from faithscope.data.text_sources import TEXT_SOURCES, constant_score, describe, load_text
from faithscope.data.vectors import read_vectors
from faithscope.data.vocabulary import SPECIALS, Vocabulary
from families import refused

needs_spacy = pytest.mark.skipif("not __import__('importlib').util.find_spec('spacy')")


def write(file: Path, text: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def sizes(data: TextData) -> list[int]:
    return [len(split) for _, split in data.splits]


def named_labels(data: TextData, split: str = "train") -> list[str]:
    return [data.classes[label] for label in getattr(data, split).labels]


def block(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Make a library look as if it were not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)


# Splits


@pytest.mark.parametrize("count", [7, 100, 1001])
@pytest.mark.parametrize("share", [0.2, 0.8, 0.85])
def test_the_split_is_scikit_learns(count: int, share: float) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    ours, theirs = np.random.RandomState(0), np.random.RandomState(0)
    for _ in range(2):  # the generator goes on from one call to the next
        expected = selection.train_test_split(
            list(range(count)), train_size=share, random_state=theirs
        )
        assert list(train_test_split(range(count), share, ours)) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.floats(0, 0.9))
def test_a_stratified_part_holds_its_share_of_every_class(classes: list[int], share: float) -> None:
    labels = np.array(classes)
    kept, taken = stratified_part(labels, share, np.random.RandomState(0))
    assert sorted(kept + taken) == list(range(len(labels)))
    assert len(taken) == round(share * len(labels))
    for label, count in Counter(classes).items():
        assert abs((labels[taken] == label).sum() - len(taken) * count / len(labels)) <= 1.0 + 1e-9


# bAbI

STORIES = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Where is Daniel? \thallway\t4
1 Sandra travelled to the office.
2 Where is Sandra? \toffice\t1
"""


def test_a_question_has_all_facts_of_its_story_before_it() -> None:
    found = parse_questions(STORIES.splitlines())
    assert [item.answer for item in found] == ["bathroom", "hallway", "office"]
    assert found[1].story == (
        "Mary moved to the bathroom . John went to the hallway . Daniel went back to the hallway"
    )
    assert found[2].story == "Sandra travelled to the office"
    assert found[2].question == "Where is Sandra"


@pytest.fixture
def babi(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks_1-20_v1-2" / "en-10k"
    for split, times in (("train", 20), ("test", 3)):
        write(folder / f"qa1_single-supporting-fact_{split}.txt", STORIES * times)
    return folder


@pytest.mark.parametrize("up", [0, 1, 2])
def test_babi_is_found_in_its_folder_or_above(babi: Path, up: int) -> None:
    folder = [babi, *babi.parents][up]
    data = load_text(f"babi:{folder}")
    assert (data.name, data.kind, data.metric, data.selection) == (
        "babi-1",
        "babi",
        "accuracy",
        "accuracy",
    )
    assert sizes(data) == [51, 9, 9]
    assert data.is_paired and len(data.classes) == len(set(data.classes)) == 36


def test_babi_takes_another_training_file(babi: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "my files" / "own.txt", STORIES * 10)
    data = load_text(f"babi:{babi}(task=1, train={other})")
    assert sizes(data) == [25, 5, 9]
    assert "own.txt" in data.notes[0]


def test_babi_refuses_what_it_cannot_read(babi: Path, tmp_path: Path) -> None:
    with refused("qa2_two-supporting-facts_train.txt"):
        load_text(f"babi:{babi}(task=2)")
    with refused("1, 2 or 3"):
        load_text(f"babi:{babi}(task=4)")
    with refused("option", "did you mean 'task'"):
        load_text(f"babi:{babi}(tusk=1)")
    with refused("no folder"):
        load_text(f"babi:{tmp_path / 'nowhere'}")
    with refused("does not hold bAbI"):
        load_text(f"babi:{write(tmp_path / 'empty' / 'x.txt', 'x').parent}")
    with refused("Line 2", "question"):
        parse_questions(["1 Mary left.", "2 Where is Mary?"])
    write(tmp_path / "odd.txt", STORIES.replace("bathroom\t", "moon\t") * 9)
    with refused("'moon'"):
        load_text(f"babi:{babi}(train='{tmp_path / 'odd.txt'}')")


def test_the_bundled_sample() -> None:
    data = load_text("bundled:babi1")
    assert sizes(data) == [1700, 150, 150]
    tokens = Vocabulary.of(data).encode(data)
    assert len(tokens.words) == 25
    assert {story.count(" . ") for story in data.train.texts} == {1}
    assert set(named_labels(data)) == {
        "bathroom",
        "bedroom",
        "garden",
        "hallway",
        "kitchen",
        "office",
    }
    with refused("did you mean 'babi1'"):
        load_text("bundled:babi2")


# SST

TREES = [
    "(3 (2 It) (4 (2 's) (4 (3 (2 a) (4 lovely)) (3 (2 -LRB-) (2 film)))) (2 -RRB-) (2 .))",
    "(2 (2 It) (2 (2 is) (2 (2 a) (2 (2 film) (2 (2 like) (2 others))))))",  # neutral
    "(4 (2 a) (2 (2 b) (2 (2 c) (2 (2 d) (2 e)))))",  # five tokens
    "(0 (2 ``) (1 (2 Not) (1 (2 good) (1 (2 ,) (1 (2 I) (2 think))))))",
]


@needs_spacy
def test_sst_from_trees(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        write(tmp_path / "trees" / f"{split}.txt", "\n".join(TREES))
    data = load_text(f"sst:{tmp_path}")
    assert sizes(data) == [2, 2, 2]
    assert (data.metric, data.selection) == ("macro_f1", "auroc")
    mixed = random.Random(0).sample([0, 1], 2)
    assert data.train.labels.tolist() == [(1, 0)[place] for place in mixed]
    texts = dict(zip(named_labels(data), data.train.words, strict=True))
    assert texts["positive"] == ("it", "s", "a", "lovely", "film")
    assert texts["negative"] == (" ", "not", "good", "i", "think")  # its quote left a blank
    assert "It 's a lovely -LRB- film -RRB- ." in data.train.texts


@needs_spacy
def test_sst_refuses_what_is_no_tree(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", "not a tree")
    with refused("Line 1", "tree"):
        load_text(f"sst:{tmp_path}")
    write(tmp_path / "train.txt", TREES[0])
    with refused("dev.txt"):
        load_text(f"sst:{tmp_path}")


@needs_spacy
@pytest.mark.parametrize("empty", ["train", "dev", "test"])
def test_sst_whose_split_filters_to_nothing_is_refused(tmp_path: Path, empty: str) -> None:
    for split in ("train", "dev", "test"):
        kept = [tree for tree in TREES if split != empty] or ["(2 (2 A) (2 film))", "(4 (4 Good))"]
        write(tmp_path / f"{split}.txt", "\n".join(kept))
    with refused(f"{empty}.txt' holds no sentence of at least 6 tokens", "not neutral"):
        load_text(f"sst:{tmp_path}")


@pytest.mark.parametrize("empty", ["train", "validation", "test"])
def test_texts_without_a_split_are_refused_before_they_are_encoded(empty: str) -> None:
    data = load_text("bundled:babi1", limit=3)
    nothing = Texts(texts=(), words=(), labels=np.zeros(0, np.int64))
    if data.train.auxiliary_words is not None:
        nothing = replace(nothing, auxiliary_texts=(), auxiliary_words=())
    with refused(f"The {empty} split of 'bundled:babi1' has no texts"):
        fs.roar(replace(data, **{empty: nothing}), seeds=1)


def test_sst_without_spacy_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from faithscope.data.words import _spacy_tokenizer

    block(monkeypatch, "spacy")
    _spacy_tokenizer.cache_clear()
    for split in ("train", "dev", "test"):
        write(tmp_path / f"{split}.txt", TREES[0])
    with refused("spacy", "faithscope[text]"):
        load_text(f"sst:{tmp_path}")


# IMDB


def review(number: int, split: str, label: int) -> str:
    words = ["Good", "film,", "<br />", "number", str(number % 5), "of", "many", "seen", "here"]
    return " ".join([*words, "unheard" if split == "test" else "heard", ("bad", "fine")[label]])


def imdb_rows(split: str) -> list[tuple[int, int, str]]:
    rows = [(n, label, review(n, split, label)) for label in (0, 1) for n in range(20)]
    return [*rows, (20, 1, "too short, br"), (21, 0, "long " * 400)]


@pytest.fixture
def imdb(tmp_path: Path) -> tuple[Path, Path]:
    """The same reviews in both layouts."""
    for split in ("train", "test"):
        lines = []
        for number, label, text in imdb_rows(split):
            folder = tmp_path / "aclImdb" / split / ("neg", "pos")[label]
            write(folder / f"{number}_7.txt", text)
            lines.append(json.dumps({"id": number, "label": label, "text": text}))
        write(tmp_path / "jsonl" / f"{split}.jsonl.xz", lzma.compress("\n".join(lines).encode()))
    return tmp_path / "aclImdb", tmp_path / "jsonl"


def test_imdb_is_the_same_from_both_layouts(imdb: tuple[Path, Path]) -> None:
    first, second = (load_text(f"imdb:{folder}") for folder in imdb)
    assert text_sources.fingerprint(first) == text_sources.fingerprint(second)
    # 41 of 42 are shorter than 400 words: 32 + 9, and 8 of the test; a short one is left out later
    assert sum(sizes(first)[:2]) == 40 and sizes(first)[2] in (7, 8)
    assert first.min_df == 10
    words = {word for split in SPLITS for text in getattr(first, split).words for word in text}
    assert "br" in words and "film" in words
    assert "unheard" not in words  # no training review has it
    assert first.test.texts[0].split() == list(first.test.words[0])


def test_imdb_refuses(imdb: tuple[Path, Path], tmp_path: Path) -> None:
    write(tmp_path / "keras" / "imdb_full.pkl", b"")
    with refused("pickle", "aclImdb"):
        load_text(f"imdb:{tmp_path / 'keras'}")
    write(tmp_path / "wrong" / "train.jsonl", '{"id": 1, "label": "pos", "text": "fine"}')
    with refused("Row 1", "label"):
        load_text(f"imdb:{tmp_path / 'wrong'}")
    write(imdb[1] / "test.jsonl.xz", b"not xz")
    with refused("test.jsonl.xz", "cannot be read"):
        load_text(f"imdb:{imdb[1]}")
    write(imdb[0] / "test" / "pos" / "99_9.txt", b"caf\xe9")
    with refused("99_9.txt", "UTF-8"):
        load_text(f"imdb:{imdb[0]}")


# SNLI

PAIRS = [
    ("Two women  hug.", "There are 2 women.", "entailment"),
    ("Two women hug.", "They sleep.", "contradiction"),
    ("A man reads.", "He reads a novel.", "neutral"),
    ("A man reads.", "He is 40.", "-"),
]


@needs_spacy
@pytest.mark.parametrize("layout", ["official", "lines"])
def test_snli_from_both_layouts(tmp_path: Path, layout: str) -> None:
    for split in ("train", "dev", "test"):
        if layout == "official":
            keys = ("sentence1", "sentence2", "gold_label")
            rows = [json.dumps(dict(zip(keys, pair, strict=True))) for pair in PAIRS]
            write(tmp_path / "snli_1.0" / f"snli_1.0_{split}.jsonl", "\n".join(rows))
        else:
            for part, lines in zip(("s1", "s2", "labels"), zip(*PAIRS, strict=True), strict=True):
                write(tmp_path / f"{part}.{split}", "\n".join(lines) + "\n")
    data = load_text(f"snli:{tmp_path}")
    assert sizes(data) == [3, 3, 3]
    assert (data.metric, data.selection, data.min_df) == ("micro_f1", "accuracy", 3)
    assert named_labels(data) == ["entailment", "contradiction", "neutral"]
    assert data.train.words[0] == ("two", "women", "hug", ".")
    assert data.train.auxiliary_words is not None
    assert data.train.auxiliary_words[0] == ("there", "are", "[DIGITS]", "women", ".")
    # "women" is in two premises and one hypothesis, which count as texts of their own
    assert "women" in Vocabulary.of(data).ids and "hug" not in Vocabulary.of(data).ids


def test_snli_refuses(tmp_path: Path) -> None:
    write(tmp_path / "s1.dev", "a")
    with refused("snli_1.0_train.jsonl"):
        load_text(f"snli:{tmp_path}")
    write(tmp_path / "snli_1.0_train.jsonl", '{"sentence1": "a", "label": "neutral"}')
    with refused("sentence2", "sentence1, label"):
        load_text(f"snli:{tmp_path}")
    write(tmp_path / "s1.train", "a\nb")
    write(tmp_path / "s2.train", "a")
    write(tmp_path / "labels.train", "a\nb")
    with refused("differ in length"):
        load_text(f"snli:{tmp_path}")
    write(tmp_path / "s2.train", "a\nb")
    with refused("label of SNLI", "entailment"):
        load_text(f"snli:{tmp_path}")


# MIMIC

NOTE = '"{id}",{stay},{stay},"2101-10-{day}","Discharge summary","{kind}","{text}"\n'


def stays() -> list[tuple[int, list[str], str]]:
    """Numbers, codes and texts: 10 acute, 10 chronic, both, neither, and one that is too long."""
    rows = [
        (n, ["2851" if n % 2 else "28521", "25000"][: 1 + n % 3 // 2], "words") for n in range(20)
    ]
    rows += [(20, ["2851", "2852"], "both"), (21, ["V290"], "neither")]
    return [*rows, (22, ["2851"], "long " * 4000)]


@pytest.fixture
def mimic_folder(tmp_path: Path) -> Path:
    codes = '"ROW_ID","SUBJECT_ID","HADM_ID","SEQ_NUM","ICD9_CODE"\n1,1,,1,"2851"\n2,1,1,9,\n'
    notes = '"ROW_ID","SUBJECT_ID","HADM_ID","CHARTDATE","CATEGORY","DESCRIPTION","TEXT"\n'
    notes += '8,1,,"2101-10-01","Discharge summary","Report","no stay"\n'
    notes += '9,1,1,"2101-10-01","Nursing","Report","no summary"\n'
    for n, own, text in stays():
        codes += "".join(f'{n},{n},{n},{i},"{code}"\n' for i, code in enumerate(own))
        parts = [("30", "Addendum", "last"), ("28", "Report", "second"), ("09", "Report", "First")]
        for day, kind, lead in parts:
            body = f"{lead} [**Name {n}**] -- seen\n{text if lead == 'First' else ''} 5pm"
            notes += NOTE.format(id=n, stay=n, day=day, kind=kind, text=body)
    folder = tmp_path / "mimic"
    write(folder / "DIAGNOSES_ICD.csv.gz", gzip.compress(codes.encode()))
    write(folder / "NOTEEVENTS.csv.gz", gzip.compress(notes.encode()))
    for split, numbers in (("train", range(12)), ("dev", range(12, 16)), ("test", range(16, 21))):
        write(folder / f"{split}_50_hadm_ids.csv", "".join(f"{n}\n" for n in numbers))
    return folder


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Word vectors as if trained, in no time."""
    made = WordVectors({"first": np.ones(300), "unused": np.ones(300)}, size=300)
    monkeypatch.setattr(mimic, "train_vectors", lambda summaries: made)


@needs_spacy
def test_mimic_anemia(mimic_folder: Path, no_training: None) -> None:
    pytest.importorskip("sklearn")
    data = load_text(f"mimic:{mimic_folder}")
    assert data.classes == ("chronic", "acute")
    # 21 with one of the two: 5 test, 3 validation, 13 train; the long one is left out of its split
    assert sum(sizes(data)) == 20
    assert sizes(data) in ([12, 3, 5], [13, 2, 5], [13, 3, 4])
    text = data.train.texts[0]
    parts = [text.index(word) for word in ("first", "second", "last")]
    assert parts == sorted(parts)
    assert text.startswith("first < de > - seen words [DIGITS] pm second < de >")
    assert data.vectors is not None and data.vectors.normal
    assert list(data.vectors.vectors) == ["first"]  # only words of the vocabulary
    assert data.min_df == 5 and "long" not in Vocabulary.of(data).ids


@needs_spacy
def test_mimic_diabetes(mimic_folder: Path, no_training: None) -> None:
    data = load_text(f"mimic:{mimic_folder}(subset=diabetes)")
    assert sizes(data) == [12, 4, 5]
    positive = {n for n, codes, _ in stays() if "25000" in codes}
    assert [n in positive for n in range(12)] == data.train.labels.astype(bool).tolist()
    write(mimic_folder / "dev_50_hadm_ids.csv", "999\n")
    with refused("names none"):
        load_text(f"mimic:{mimic_folder}(subset=diabetes)")


@needs_spacy
def test_word2vec_is_trained_on_all_summaries() -> None:
    pytest.importorskip("gensim")
    texts = ["fever and cough", "fever and rash", "once"]
    summaries = [mimic.Summary((n, n), text, ()) for n, text in enumerate(texts)]
    first, second = mimic.train_vectors(summaries), mimic.train_vectors(summaries)
    assert set(first.vectors) == {"fever", "and"} and first.size == 300  # others occur once
    assert np.array_equal(first.vectors["fever"], second.vectors["fever"])


def test_mimic_names_what_is_missing(
    mimic_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("subset of MIMIC", "did you mean 'anemia'"):
        load_text(f"mimic:{mimic_folder}(subset=anemic)")
    for name in ("NOTEEVENTS.csv", "DIAGNOSES_ICD.csv"):
        (mimic_folder / f"{name}.gz").unlink()
        with refused(name):
            load_text(f"mimic:{mimic_folder}")
    (mimic_folder / "train_50_hadm_ids.csv").unlink()
    with refused("train_50_hadm_ids.csv"):
        load_text(f"mimic:{mimic_folder}(subset=diabetes)")
    write(tmp_path / "odd" / "DIAGNOSES_ICD.csv", "SUBJECT_ID,ICD9_CODE\n1,2\n")
    write(tmp_path / "odd" / "NOTEEVENTS.csv", "x\n1\n")
    with refused("HADM_ID", "SUBJECT_ID, ICD9_CODE"):
        load_text(f"mimic:{tmp_path / 'odd'}")
    block(monkeypatch, "gensim")
    with refused("gensim", "faithscope[mimic]"):
        mimic.train_vectors([])


# Own files


def own_csv(file: Path, rows: int = 100, *, head: str = "text,label") -> Path:
    lines = [f'"This, for one, is text {n}",{("no", "yes")[n % 4 == 0]}' for n in range(rows)]
    return write(file, "\n".join([head, *lines]))


def test_a_table_is_cut_into_splits_by_class(tmp_path: Path) -> None:
    file = own_csv(tmp_path / "mine.csv")
    data = load_text(file)
    assert sizes(data) == [70, 15, 15]
    assert (data.name, data.kind, data.classes) == ("mine.csv", "own", ("no", "yes"))
    assert (data.metric, data.selection) == ("macro_f1", "auroc")
    assert [round(float(split.labels.mean()), 1) for _, split in data.splits] == [0.2, 0.3, 0.3]
    texts = [text for _, split in data.splits for text in split.texts]
    assert len(set(texts)) == 100
    assert data.train.words[0][:4] == ("this", ",", "for", "one")
    assert "70 %" in data.notes[0]
    assert load_text(str(file)).train.texts == data.train.texts


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_tables_may_be_compressed(tmp_path: Path, ending: str) -> None:
    plain = own_csv(tmp_path / "mine.csv").read_bytes()
    packed = gzip.compress(plain) if ending == ".gz" else lzma.compress(plain)
    assert sizes(load_text(write(tmp_path / f"mine.csv{ending}", packed))) == [70, 15, 15]


def test_a_pair_by_split_column_and_named_columns(tmp_path: Path) -> None:
    rows = [
        {"q": "What?", "body": f"It is {n}", "gold": n % 3, "part": part}
        for part in ("train", "dev", "test")
        for n in range(6)
    ]
    file = write(tmp_path / "own.jsonl", "\n".join(map(json.dumps, rows)))
    data = load_text(f"{file}(text=body, auxiliary=q, label=gold, split=part)")
    assert sizes(data) == [6, 6, 6] and data.is_paired
    assert (data.classes, data.selection) == (("0", "1", "2"), "accuracy")
    assert data.test.auxiliary_words == (("what", "?"),) * 6
    assert data.notes == ()


def test_text2_makes_a_pair_of_itself(tmp_path: Path) -> None:
    rows = "\n".join(f"one {n},two {n},{n % 2}" for n in range(20))
    data = load_text(write(tmp_path / "own.csv", f"text,text2,label\n{rows}"))
    assert data.is_paired and data.selection == "accuracy"


def test_numbers_are_classes_by_size(tmp_path: Path) -> None:
    rows = "\n".join(f"text {n},{(2, 10, 9)[n % 3]}" for n in range(60))
    data = load_text(write(tmp_path / "own.csv", f"text,label\n{rows}"))
    assert data.classes == ("2", "9", "10")


def test_a_folder_of_files(tmp_path: Path) -> None:
    for name in ("train.csv", "val.csv", "test.csv"):
        own_csv(tmp_path / name, 40)
    write(tmp_path / "README.md", "not a split")
    assert sizes(load_text(tmp_path)) == [40, 40, 40]
    (tmp_path / "val.csv").unlink()
    data = load_text(tmp_path)
    assert sizes(data) == [34, 6, 40] and "15 %" in data.notes[0]


def test_rows_without_text_or_label_are_left_out_and_counted(tmp_path: Path) -> None:
    file = own_csv(tmp_path / "mine.csv", 100)
    write(file, file.read_text() + '\n"",yes\n"  ",no\nfine,\n')
    data = load_text(file)
    assert sum(sizes(data)) == 100
    assert data.notes[0] == "3 rows without a text or a label left out (the first is row 101)."


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("mine.csv", "texts,label\na,1\n", ["column", "did you mean 'texts'", "(text=…)'"]),
        ("mine.csv", b"text,label\ncaf\xe9,1\n", ["mine.csv", "UTF-8"]),
        ("mine.csv", "text,label\nhello, world,1\n", ["Line 2", "3 fields"]),
        ("mine.csv", 'text,label\n"open,1\n', ["CSV"]),
        ("mine.csv", "text,label\n", ["no rows"]),
        ("mine.csv", "text,label\n,1\n ,0\n", ["No row", "text"]),
        ("mine.csv", "text,label\n" + "a,1\n" * 30, ["'1'", "two classes"]),
        ("mine.csv", "text,label\na,1\nb,0\n", ["too few rows"]),
        ("mine.csv", "text, text ,label\na,b,1\n", ["column 'text' twice"]),
        ("mine.docx", "x", ["not a file of texts", ".jsonl"]),
        ("mine.jsonl", '{"text": "a", "label": 1}\n[1]\n', ["Line 2", "JSON"]),
        ("mine.jsonl", '{"text": 5, "label": 1}\n', ["row 1", "not text"]),
    ],
)
def test_own_files_that_cannot_be_used_are_refused(tmp_path: Path, name, content, words) -> None:
    with refused(*words):
        load_text(write(tmp_path / name, content))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("no file or folder", "bundled:babi1"):
        load_text(tmp_path / "mine.csv")
    with refused("column", "'stars'"):
        load_text(f"{own_csv(tmp_path / 'mine.csv')}(label=stars)")
    with refused("no texts", "train.csv"):
        load_text(write(tmp_path / "none" / "x.txt", "x").parent)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"text": "a\\ud800", "label": 1}', ["column 'text'", "row 2", "half a character"]),
        ('{"text": "a", "label": "\\udfff"}', ["column 'label'", "row 2", "half a character"]),
        ('{"text": "a", "text2": "\\ud800", "label": 1}', ["column 'text2'", "row 2"]),
        ('{"text": "a", "label": NaN}', ["label in row 2", "nan"]),
        ('{"text": "a", "label": -Infinity}', ["label in row 2", "-inf"]),
    ],
)
def test_what_json_can_hold_but_no_file_or_class_is_refused(
    tmp_path: Path, row: str, words: list[str]
) -> None:
    first = (
        '{"text": "a \\ud83d\\ude00", "text2": "b", "label": 0}'  # a whole pair is one character
    )
    file = write(tmp_path / "mine.jsonl", f"{first}\n{row}\n")
    with refused("mine.jsonl", *words):
        load_text(file)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this disk takes no such name")
    own_csv(Path(os.fsdecode(folder)) / "train.csv")
    with refused("'caf\\udce9'", "rename"):
        load_text(Path(os.fsdecode(folder)))


def test_words_that_read_as_numbers_have_one_order(tmp_path: Path) -> None:
    """Also those that are equal or no numbers: the order of a set changes from run to run."""
    assert load_text(split_csv(tmp_path / "a.csv", **_twice("1.0", "1", "02"))).classes == (
        *("1", "1.0", "02"),
    )
    assert load_text(split_csv(tmp_path / "b.csv", **_twice("nan", "2", "10"))).classes == (
        *("10", "2", "nan"),
    )


def _twice(*labels: str) -> dict[str, tuple[str, ...]]:
    return {split: labels * 2 for split in SPLITS}


def split_csv(file: Path, **labels: Iterable[str]) -> Path:
    rows = [f"some text,{label},{split}" for split, row in labels.items() for label in row]
    return write(file, "\n".join(["text,label,split", *rows]))


def test_labels_and_splits_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    with refused("'c'", "row 7", "never seen in training"):
        load_text(split_csv(file, train="abab", validation="ab", test="ca"))
    with refused("validation", "only the class 'a'"):
        load_text(split_csv(file, train="abab", validation="aa", test="ab"))
    with refused("no test split"):
        load_text(split_csv(file, train="abab", validation="ab"))
    with refused("split in row 5", "did you mean 'test'"):
        load_text(split_csv(file, train="abab", tset="ab"))
    with refused("no train split"):
        load_text(split_csv(file, validation="ab", test="ab"))
    data = load_text(split_csv(file, train="abcabc", validation="abc", test="ab"))
    assert data.notes == ("The test split has no text of class 'c'.",)


def test_a_text_of_one_word_is_fine(tmp_path: Path) -> None:
    data = load_text(split_csv(tmp_path / "own.csv", train="ab", validation="ab", test="ab"))
    words = (("one",), ("unknown",))
    texts = Texts(("one", "unknown"), words, np.array([0, 1]))
    tokens = Vocabulary.from_words(["one"])._encode_split(texts)
    assert tokens.ids.tolist() == [[1, 5, 2], [1, 4, 2]]
    assert tokens.eligible.tolist() == [[False, True, False]] * 2
    assert data.train.words == (("some", "text"),) * 2


# Hugging Face


def test_hugging_face_datasets_saved_in_a_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["yes", "maybe", "no"]),
        }
    )
    rows = [
        {"premise": f"A man {n}", "hypothesis": "He", "label": n % 3 if n else -1}
        for n in range(31)
    ]
    one = datasets.Dataset.from_list(rows, features=features)
    folder = tmp_path / "saved"
    datasets.DatasetDict({"train": one, "validation": one, "test": one}).save_to_disk(folder)
    data = load_text(f"hf:{folder}(text=premise, auxiliary=hypothesis)")
    assert sizes(data) == [30, 30, 30]
    assert data.classes == ("yes", "maybe", "no")  # the data set's own order
    assert named_labels(data)[:3] == ["maybe", "no", "yes"]
    assert data.name == "hf:saved" and data.selection == "accuracy"
    assert data.notes[0].startswith("1 row of the train split without a text or a label left out")
    with refused("column", "did you mean 'premise'"):
        load_text(f"hf:{folder}(text=premises)")
    one.save_to_disk(tmp_path / "alone")
    assert sum(sizes(load_text(f"hf:{tmp_path / 'alone'}(text=premise)"))) == 30
    with refused("hf:nowhere"):
        load_text("hf:nowhere")


def test_other_splits_of_hugging_face_are_left_aside(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a b", "c d"] * 20, "label": ["x", "y"] * 20})
    parts = {"train": rows, "test": rows, "unsupervised": rows}
    datasets.DatasetDict(parts).save_to_disk(tmp_path)
    assert sizes(load_text(f"hf:{tmp_path}")) == [34, 6, 40]
    datasets.DatasetDict({"one": rows, "two": rows}).save_to_disk(tmp_path / "odd")
    with refused("one, two", "validation"):
        load_text(f"hf:{tmp_path / 'odd'}")


# Names, limits, options


def test_names_and_limits() -> None:
    with refused("text source", "did you mean 'babi'"):
        load_text("bab:somewhere")
    with refused("'babi:…'"):
        load_text("babi")
    with refused("'sst:…'"):
        load_text("sst:")
    with refused("limit"):
        load_text("bundled:babi1", limit=0)
    some = load_text("bundled:babi1", limit=100)
    assert sizes(some) == [100, 100, 100]
    assert some.train.auxiliary_texts is not None and len(some.train.auxiliary_texts) == 100
    assert "100" in some.notes[-1]
    assert load_text("bundled:babi1", limit=10**6).notes == ()
    assert {"babi", "sst", "imdb", "snli", "mimic", "hf", "file", "bundled"} <= set(TEXT_SOURCES)


def test_min_df_may_be_asked_for() -> None:
    all_words = Vocabulary.of(load_text("bundled:babi1"))
    assert len(Vocabulary.of(load_text("bundled:babi1(min_df=800)"))) < len(all_words)
    with refused("min_df"):
        load_text("bundled:babi1(min_df=0)")


# Vocabulary


def small_data(**options: object) -> TextData:
    def texts(*rows: str) -> Texts:
        words = tuple(tuple(row.split()) for row in rows)
        return Texts(rows, words, np.array([place % 2 for place in range(len(rows))]))

    parts = (texts("b a a [MASK]", "c b"), texts("a"), texts("d b", "a b c"))
    return TextData("small", "own", *parts, ("no", "yes"), "macro_f1", "auroc", **options)  # type: ignore[arg-type]


def test_ids_are_specials_then_sorted_words_of_enough_texts() -> None:
    vocabulary = Vocabulary.of(small_data())
    assert vocabulary.words == (*SPECIALS, "a", "b", "c")
    assert Vocabulary.of(small_data(min_df=2)).words == (*SPECIALS, "b")  # a: twice in one text
    assert Vocabulary.of(small_data(vocabulary=("z",))).words == (*SPECIALS, "z")


def test_encoding_pads_on_the_right_and_protects_special_tokens() -> None:
    tokens = Vocabulary.of(small_data()).encode(small_data())
    assert tokens.train.ids.tolist() == [[1, 6, 5, 5, 4, 2], [1, 7, 6, 2, 0, 0]]
    assert tokens.train.ids.dtype == tokens.train.labels.dtype == torch.int64
    assert tokens.train.lengths.tolist() == [6, 4]
    assert tokens.train.eligible.tolist() == [
        [False, True, True, True, True, False],
        [False, True, True, False, False, False],
    ]
    assert tokens.test.ids.tolist() == [[1, 4, 6, 2, 0], [1, 5, 6, 7, 2]]
    assert (tokens.pad_id, tokens.mask_id, tokens.truncated) == (0, 3, {})
    assert tokens.train.auxiliary is None


def test_a_pair_is_encoded_apart() -> None:
    data = load_text("bundled:babi1", limit=5)
    tokens = Vocabulary.of(data).encode(data)
    split = tokens.validation
    assert split.auxiliary is not None and split.auxiliary_lengths is not None
    assert split.auxiliary_lengths.tolist() == [5] * 5  # [CLS] Where is X [EOS]
    words = [tokens.words[token] for token in split.ids[0][: split.lengths[0]]]
    assert words == ["[CLS]", *data.validation.words[0], "[EOS]"]


# Vectors


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fast.vec", "3 2\nMary 1 2 \nMary 9 9\nextra 3 4\nthe 5 6\n"),
        ("glove.txt", "Mary 1 2\nat a.b@c.d 7 8\nextra 3 4\nthe 5 6\n"),
        (
            "wink.json",
            '{"vectors": {"Mary": [1, 2, 9, 0], "the": [5, 6, 9, 1], "extra": [3, 4, 9, 2]}}',
        ),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_vectors_of_the_words_needed(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    if packed:
        file = write(tmp_path / f"{name}.gz", gzip.compress(text.encode()))
    else:
        file = write(tmp_path / name, text)
    data = load_text(f"bundled:babi1(vectors={file})")
    assert data.vectors is not None and data.vectors.size == 2 and not data.vectors.normal
    found = {word: vector.tolist() for word, vector in data.vectors.vectors.items()}
    assert found == {"Mary": [1, 2], "the": [5, 6]}
    tokens = Vocabulary.of(data).encode(data)
    assert tokens.vectors is data.vectors
    assert load_text("bundled:babi1").vectors is None


def test_files_that_hold_no_vectors_are_refused(tmp_path: Path) -> None:
    with refused("no file"):
        read_vectors(tmp_path / "none.vec", ["a"])
    with refused("none of the 1 words"):
        read_vectors(write(tmp_path / "x.vec", "b 1 2\n"), ["a"])
    with refused("Line 2", "numbers"):
        read_vectors(write(tmp_path / "x.vec", "b 1 2\na 1 x\n"), ["a"])
    with refused("holds no word vectors"):
        read_vectors(write(tmp_path / "x.vec", "a\n"), ["a"])
    for text in ("[]", "{", '{"vectors": {}}', '{"vectors": {"a": "no numbers"}}'):
        with refused("JSON file of word vectors"):
            read_vectors(write(tmp_path / "x.json", text), ["a"])


# What a data set is like


def test_describe_says_what_the_tables_say() -> None:
    data = small_data()
    found = describe(data, Vocabulary.of(data).encode(data))
    assert found["sizes"] == {"train": 2, "validation": 1, "test": 2}
    assert found["mean_length"] == pytest.approx((6 + 4 + 3 + 4 + 5) / 5)
    assert found["vocabulary"] == 8
    assert found["majority"] == {"class": "no", "score": pytest.approx(1 / 3)}
    json.dumps(found)


@given(st.lists(st.integers(0, 3), min_size=1), st.integers(0, 3))
def test_the_score_of_one_answer_is_scikit_learns(labels: list[int], answer: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    given, answers = np.array(labels), np.full(len(labels), answer)
    accuracy = metrics.accuracy_score(given, answers)
    assert constant_score("accuracy", given, answer) == pytest.approx(accuracy)
    for average in ("macro", "micro"):
        expected = metrics.f1_score(given, answers, average=average, zero_division=0)
        assert constant_score(f"{average}_f1", given, answer) == pytest.approx(expected)


def test_the_fingerprint_sees_words_labels_and_splits() -> None:
    from dataclasses import replace

    data = small_data()
    other = replace(data.train, labels=data.train.labels[::-1])
    words = replace(data.train, words=(data.train.words[0], ("c", "c")))
    changed = [
        replace(data, train=other),
        replace(data, train=words),
        replace(data, train=data.test, test=data.train),
    ]
    prints = {text_sources.fingerprint(item) for item in (data, small_data(), *changed)}
    assert len(prints) == 4


# The real thing: FAITHSCOPE_DATA=folder pytest tests/data/test_text_sources.py

REAL = Path(os.environ.get("FAITHSCOPE_DATA", "missing"))
real = pytest.mark.skipif(not REAL.is_dir(), reason="FAITHSCOPE_DATA names no folder of corpora")


@real
@pytest.mark.parametrize(
    ("name", "wanted", "vocabulary", "length", "majority"),
    [
        ("babi:{}/babi", (8500, 1500, 1000), 25, 38.19, 14.9),
        ("babi:{}/babi/en-10k(task=2)", (8500, 1500, 1000), 39, 96.06, 18.7),
        ("sst:{}/sst", (6579, 848, 1776), 13766, 20.20, 33.3),
        ("imdb:{}/imdb", (17212, 4304, 4362), 12488, 181.43, 33.6),
    ],
)
def test_real_data_is_the_papers(
    name: str, wanted: tuple[int, ...], vocabulary: int, length: float, majority: float
) -> None:
    data = load_text(name.format(REAL))
    found = describe(data, Vocabulary.of(data).encode(data))
    assert tuple(found["sizes"].values()) == wanted
    assert found["vocabulary"] == vocabulary
    assert round(found["mean_length"], 2) == length
    assert round(100 * found["majority"]["score"], 1) == majority


@real
def test_all_words_of_babi_are_its_classes() -> None:
    words: set[str] = set()
    third = REAL / "babi" / "synthetic" / "qa3_three-supporting-facts_train.txt"
    for options in ("task=1", "task=2", f"task=3, train={third}"):
        words.update(Vocabulary.of(load_text(f"babi:{REAL}/babi({options})")).ids)
        answers = load_text(f"babi:{REAL}/babi({options})").train.labels
        words.update(ANSWERS[label] for label in answers)
    assert sorted(words) == sorted(ANSWERS)


@real
def test_real_snli_sizes() -> None:
    sizes = [len(snli.read_pairs(REAL / "snli", split)) for split in ("dev", "test")]
    assert sizes == [9842, 9824]
    with refused("snli_1.0_train.jsonl"):
        load_text(f"snli:{REAL}/snli")
