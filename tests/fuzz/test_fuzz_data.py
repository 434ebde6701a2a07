"""Odd files of images and texts: an image costs that image, a text file is refused."""

import csv
import gzip
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import faithscope as fs
import odd
from conftest import tiny_vit
from fuzzing import answered, cases

pytestmark = pytest.mark.filterwarnings("ignore")

SIZE = (16, 16)
MODES = ("RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16", "LAB")
EXIF = (b"", b"Exif\0\0garbage", b"\xff" * 20, b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
SHARES = st.integers(0, 1000)
"""Of a file: how long one is may differ by a byte from time to time."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


@pytest.fixture(scope="module")
def model() -> fs.Model:
    names = [f"class {i}" for i in range(5)]
    return fs.wrap(
        tiny_vit(), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3, classes=names, name="tiny"
    )


def picture(mode: str, size: tuple[int, int], kind: str, exif: bytes = b"") -> bytes:
    """A picture as a file, of whatever mode the format can hold."""
    made = Image.new("RGB", size, (200, 40, 90))
    try:
        made = made.convert(mode) if mode not in ("I;16", "LAB") else Image.new(mode, size)
        stream = io.BytesIO()
        made.save(stream, kind, **({"exif": exif} if exif and kind in ("JPEG", "PNG") else {}))
    except (OSError, ValueError, KeyError, TypeError):
        stream = io.BytesIO()
        made.convert("RGB").save(stream, "PNG")
    return stream.getvalue()


def animated() -> bytes:
    stream = io.BytesIO()
    frames = [Image.new("RGB", SIZE, (i * 20, 0, 0)) for i in range(4)]
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    return stream.getvalue()


def bomb(side: int = 60_000) -> bytes:
    """A PNG of a few bytes that says it is as large as a town."""

    def chunk(kind: bytes, held: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + held))
        return struct.pack(">I", len(held)) + kind + held + check

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@st.composite
def image_files(draw: st.DrawFn) -> bytes:
    """A picture, perhaps of an odd mode or size, perhaps cut, perhaps with other bytes in it."""
    made: bytes = draw(
        st.sampled_from([b"", b"not an image", animated(), bomb(), bomb(20_000)])
        | st.binary(max_size=60)
        | st.builds(
            picture,
            st.sampled_from(MODES),
            st.sampled_from([SIZE, (1, 1), (1, 40), (40, 1), (33, 17), (300, 2)]),
            st.sampled_from(FORMATS),
            st.sampled_from(
                [b"", b"Exif\0\0garbage", b"\xff" * 20, b"Exif\0\0II*\0\x08\0\0\0\xff\xff"]
            ),
        )
    )
    if made and draw(st.booleans()):
        made = made[: len(made) * draw(SHARES) // 1000]
    if made and draw(st.booleans()):
        place = (len(made) - 1) * draw(SHARES) // 1000
        made = made[:place] + draw(st.binary(min_size=1, max_size=3)) + made[place + 1 :]
    return made


@given(files=st.lists(image_files(), min_size=1, max_size=3), ending=st.sampled_from(odd.ENDINGS))
@cases(25)
def test_an_odd_image_costs_that_image(model, tmp_path_factory, files, ending):
    """The good one beside it is read, whatever the others are."""
    root = tmp_path_factory.mktemp("images")
    (root / "good.png").write_bytes(picture("RGB", SIZE, "PNG"))
    (root / f"folder{ending}").mkdir()
    for place, content in enumerate(files):
        (root / f"odd {place}{ending}").write_bytes(content)
    data = answered(fs.load_data, root, model)
    batches = answered(lambda: list(data.batches(8)))
    if isinstance(batches, fs.FaithscopeError):
        raise AssertionError(batches)
    names = [name for batch in batches for name in batch.samples]
    skipped = [item.sample for batch in batches for item in batch.skipped]
    assert "good.png" in names and len(names) + len(skipped) == len(data)
    assert all(batch.images.isfinite().all() for batch in batches)


@given(
    odd.arrays([(2, 4, 4, 3), (2, 3, 4, 4), (2, 1, 4, 4), (0, 3, 4, 4), (2, 4, 4), ()]), st.data()
)
@cases(15)
def test_odd_arrays_in_files(model, tmp_path_factory, held, data):
    """Images and labels in .npy and .npz, of every type; never unpickled."""
    root = tmp_path_factory.mktemp("arrays")
    labels = data.draw(odd.arrays([(2,), (3,), (), (2, 1)]))
    try:
        np.save(root / "a.npy", np.asarray(held), allow_pickle=True)
        np.savez(root / "b.npz", images=np.asarray(held), labels=np.asarray(labels))
    except (TypeError, RuntimeError, ValueError):
        return
    for name in ("a.npy", "b.npz"):
        found = answered(fs.load_data, f"array:{root / name}", model, limit=2)
        if not isinstance(found, fs.FaithscopeError):
            answered(lambda found=found: list(found.batches(4)))
    content = (root / "b.npz").read_bytes()
    (root / "c.npz").write_bytes(content[: len(content) * data.draw(SHARES) // 1000])
    answered(fs.load_data, f"array:{root / 'c.npz'}", model)


CELLS = st.text(max_size=12) | st.sampled_from(["good film", "bad film", "", "nan", "\0", '"', "é"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | CELLS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CELLS, inner, max_size=3),
    max_leaves=6,
)


def rows_of(labels: Any) -> list[list[Any]]:
    return [[f"word{i % 7} is here again", label] for i, label in enumerate(labels)]


def written(rows: list[list[Any]], header: list[str], separator: str) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator)
    writer.writerows([header, *rows])
    return stream.getvalue().encode("utf-8", "surrogatepass")


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, bytes]:
    """A table of texts, most of it good."""
    good = rows_of(draw(st.lists(st.sampled_from("ab"), min_size=20, max_size=30)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(good) - 1))
        good[place] = draw(st.lists(CELLS, max_size=4) | st.just(good[place]))
    header = draw(
        st.sampled_from([["text", "label"], ["text", "text"], ["", "label"], ["text", "label", ""]])
        | st.lists(CELLS, max_size=3)
        | st.just(["text", "label"])
    )
    kind = draw(st.sampled_from([".csv", ".tsv", ".jsonl", ".csv.gz"]))
    if kind == ".jsonl":
        lines = [json.dumps(dict(zip(header, row, strict=False))) for row in good]
        lines.append(json.dumps(draw(JSON)))
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
    else:
        content = written(good, header, "\t" if kind == ".tsv" else ",")
    if draw(st.booleans()):
        place = draw(st.integers(0, len(content)))
        other = draw(
            st.binary(max_size=3) | st.sampled_from([b"\xff\xfe", b'"', b"\0", b"\r", b"{"])
        )
        content = content[:place] + other + content[place:]
    if kind.endswith(".gz"):
        content = gzip.compress(content)
        content = content[: draw(st.sampled_from([len(content), len(content) // 2, 3]))]
    return kind, content


@given(table=tables(), data=st.data())
@cases(35)
def test_odd_tables_of_texts(tmp_path_factory, table, data):
    """Splits with words and labels, or a sentence."""
    kind, content = table
    file = tmp_path_factory.mktemp("texts") / f"mine{kind}"
    file.write_bytes(content)
    found = answered(fs.load_text, file)
    if not isinstance(found, fs.FaithscopeError):
        for _, split in found.splits:
            assert len(split) == len(split.labels) and all(split.words)
            assert split.labels.max() < len(found.classes)
        answered(fs.prepare_roar, found, measures="gradient", seeds=1, levels=[50], device="cpu")
    option = data.draw(
        st.sampled_from(["text", "label", "split", "auxiliary", "min_df", "vectors"])
    )
    answered(fs.load_text, f"{file}({option}={data.draw(odd.names())})")


@given(content=st.binary(max_size=80) | CELLS.map(lambda text: text.encode("utf-8", "replace")))
@cases(15)
def test_odd_files_of_the_papers_data(tmp_path_factory, content):
    """The official folders, with anything in their files."""
    root = tmp_path_factory.mktemp("papers")
    for name in (
        *("qa1_single-supporting-fact_train.txt", "qa1_single-supporting-fact_test.txt"),
        *("train.txt", "dev.txt", "test.txt", "train.jsonl", "test.jsonl", "vectors.json"),
        *("snli_1.0_train.jsonl", "snli_1.0_dev.jsonl", "snli_1.0_test.jsonl", "v.vec"),
        *("DIAGNOSES_ICD.csv", "NOTEEVENTS.csv"),
    ):
        (root / name).write_bytes(content)
    for source in ("babi", "sst", "imdb", "snli", "mimic"):
        answered(fs.load_text, f"{source}:{root}")
    for vectors in ("vectors.json", "v.vec"):
        answered(fs.load_text, f"bundled:babi1(vectors={root / vectors})", limit=5)


def test_a_folder_of_odd_names(model, tmp_path):
    """Names that a terminal would obey are shown, not obeyed."""
    for name in ("\x1b[31mred.png", "\udcff.png", "a b\n.png"):
        (tmp_path / name).write_bytes(picture("RGB", SIZE, "PNG"))
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dead.png").symlink_to(tmp_path / "nothing")
    data = answered(fs.load_data, tmp_path, model)
    assert len(data) == 3 and sum(len(batch.images) for batch in data.batches(4)) == 3


def test_large_pixels_are_scaled_and_bombs_are_left_out(model, tmp_path):
    """16 bits keep their range; an image beyond Pillow's limit is never unpacked."""
    deep = np.full(SIZE, 65535, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    (tmp_path / "bomb.png").write_bytes(bomb())
    (batch,) = fs.load_data(Path(tmp_path), model).batches(4)
    assert batch.samples == ("deep.png",) and batch.images.min() > 0.99
    assert [item.sample for item in batch.skipped] == ["bomb.png"]
