"""Make the bundled bAbI-1 sample: the first two facts and the first question of every story.

    python recipes/make_babi_sample.py --data tasks_1-20_v1-2/en-10k --out src/faithscope/bundled

Reads the official training file of task 1 (2,000 stories of five questions each) and writes
``babi1_sample.txt.xz``: the same format, three lines a story, so that bAbI's reader reads it.
A BiLSTM learns these short stories in seconds.
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

FILE = "qa1_single-supporting-fact_train.txt"
LINES = 3  # a story of task 1 begins with two facts and a question


def first_questions(lines: list[str]) -> list[str]:
    """Return the first lines of every story; each must be fact, fact, question."""
    starts = [place for place, line in enumerate(lines) if line.startswith("1 ")]
    stories = [lines[start : start + LINES] for start in starts]
    for story in stories:
        assert ["\t" in line for line in story] == [False, False, True], story
    return [line for story in stories for line in story]


def main() -> None:
    """Parse the command line, read the official file, write the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="bAbI's folder en-10k")
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundled files")
    arguments = parser.parse_args()
    kept = first_questions((arguments.data / FILE).read_text("utf-8").splitlines(keepends=True))
    packed = lzma.compress("".join(kept).encode(), preset=9 | lzma.PRESET_EXTREME)
    (arguments.out / "babi1_sample.txt.xz").write_bytes(packed)
    print(f"{len(kept) // LINES} stories, {len(packed)} bytes")


if __name__ == "__main__":
    main()
