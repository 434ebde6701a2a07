"""Where answers go: full, closed and special files are answered in a sentence, and left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from faithscope.errors import FaithscopeError
from faithscope.runs.files import replace_file, write_output

LIST = [sys.executable, "-m", "faithscope", "list", "fills"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_output_is_an_error():
    with open("/dev/full", "w") as full:
        ended = subprocess.run(LIST, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2
    assert "error: The output cannot be written" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_closed_output_is_no_traceback():
    command = " ".join(["exec", *LIST, ">&-"])
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FaithscopeError, match="device or a pipe"):
        write_output(pipe, b"page", "page")
    assert not pipe.is_file() and list(tmp_path.iterdir()) == [pipe]


def test_what_a_link_points_to_is_replaced(tmp_path: Path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    replace_file(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
